//! No file system would write these, but an image can hold them: numbers at their limits, and
//! directories in a circle. Each causes at most an error at its place, and the rest of the volume
//! works (invariant 14).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::image;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, RenameFlags, SetAttributes, WriteAt};
use ubtrfs_damage::Image;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, TreeId};

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;
const ROOT: u64 = 256;

/// Offsets of fields of an inode item.
const SIZE: usize = 16;
const NBYTES: usize = 24;
const NLINK: usize = 40;
const ATIME: usize = 112;
const SEQUENCE: usize = 72;

fn open(path: &Path) -> Arc<Filesystem> {
    image::open(path, Options::default())
}

/// Makes a volume with the directories `one` and `two`, a directory `sub` in `one`, and a file
/// `file` of 10,000 bytes.
fn volume(dir: &Path) -> PathBuf {
    let path = dir.join("image");
    image::make(&path, 256 << 20, |_| ());
    let fs = open(&path);
    let one = create(&fs, fs.root(), "one", DIR);
    create(&fs, fs.root(), "two", DIR);
    create(&fs, one, "sub", DIR);
    let file = create(&fs, fs.root(), "file", FILE);
    fs.files().write(file, WriteAt::Offset(0), &[7; 10_000], false).unwrap();
    fs.close().unwrap();
    path
}

fn create(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> InodeId {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap()
}

fn find(fs: &Filesystem, path: &str) -> InodeId {
    path.split('/').fold(fs.root(), |dir, name| fs.directories().lookup(dir, name.as_bytes()).unwrap())
}

fn ino(path: &Path, name: &str) -> Ino {
    find(&open(path), name).ino
}

/// Overwrites a field of an inode item.
fn set_inode(path: &Path, name: &str, field: usize, bytes: &[u8]) {
    let ino = ino(path, name);
    let image = Image::open(path);
    image.edit(
        TreeId::FS,
        |key, _| key.objectid == ino.0 && key.item_type == ItemType::INODE_ITEM,
        |_, data| data[field..field + bytes.len()].copy_from_slice(bytes),
    );
}

/// Returns whether an item is the root directory's entry of the name `file`. The name is at the
/// item's end, behind a header of thirty bytes.
fn is_entry_of_file(item_type: ItemType, key: &Key, data: &[u8]) -> bool {
    key.objectid == ROOT && key.item_type == item_type && data[30..] == *b"file"
}

/// Performs all operations that change an inode's numbers.
fn work_on(fs: &Filesystem, id: InodeId) {
    fs.inodes().attributes(id).unwrap();
    fs.files().read(id, 0, 100).unwrap();
    fs.files().write(id, WriteAt::Offset(3000), &vec![1; 100_000], true).unwrap();
    fs.inodes()
        .set_attributes(id, &SetAttributes { size: Some(5000), mode: Some(0o600), ..SetAttributes::default() })
        .unwrap();
    fs.durability().sync().unwrap();
    fs.files().write(id, WriteAt::End, &[2; 10], false).unwrap();
    fs.directories().rename(fs.root(), b"file", fs.root(), b"renamed", RenameFlags::default()).unwrap();
    fs.close().unwrap();
}

#[test]
fn operations_continue_with_counters_at_their_limit() {
    for (field, bytes) in [
        (SEQUENCE, &u64::MAX.to_le_bytes()[..]),
        (NBYTES, &u64::MAX.to_le_bytes()),
        (ATIME, &(i64::MAX as u64).to_le_bytes()),
        (ATIME, &u64::MAX.to_le_bytes()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = volume(dir.path());
        set_inode(&path, "file", field, bytes);
        let fs = open(&path);
        work_on(&fs, find(&fs, "file"));
        drop(fs);
        let fs = open(&path);
        assert_eq!(fs.inodes().attributes(find(&fs, "renamed")).unwrap().size, 5010);
    }
}

#[test]
fn a_link_count_at_its_limit_takes_no_more_links() {
    let dir = tempfile::tempdir().unwrap();
    let path = volume(dir.path());
    set_inode(&path, "file", NLINK, &u32::MAX.to_le_bytes());
    let fs = open(&path);
    let id = find(&fs, "file");
    assert_eq!(fs.directories().link(id, fs.root(), b"another").unwrap_err().errno(), Errno::MLINK);
    work_on(&fs, id);
}

#[test]
fn a_file_that_is_too_large_costs_itself() {
    for size in [u64::MAX, u64::MAX - 4094, 1 << 63] {
        let dir = tempfile::tempdir().unwrap();
        let path = volume(dir.path());
        set_inode(&path, "file", SIZE, &size.to_le_bytes());
        let fs = open(&path);
        assert_eq!(fs.directories().lookup(fs.root(), b"file").unwrap_err().errno(), Errno::IO);
        create(&fs, find(&fs, "one"), "new", FILE);
        fs.close().unwrap();
    }
    // A file of the largest possible size is a file like any other.
    let dir = tempfile::tempdir().unwrap();
    let path = volume(dir.path());
    set_inode(&path, "file", SIZE, &(i64::MAX as u64).to_le_bytes());
    let fs = open(&path);
    let id = find(&fs, "file");
    assert_eq!(fs.files().read(id, i64::MAX as u64 - 10, 100).unwrap(), [0; 10]);
    assert_eq!(fs.files().write(id, WriteAt::End, b"x", false).unwrap_err().errno(), Errno::FBIG);
    work_on(&fs, id);
}

#[test]
fn a_directory_whose_numbers_are_used_up_can_be_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = volume(dir.path());
    let is_last = |key: &Key, data: &[u8]| is_entry_of_file(ItemType::DIR_INDEX, key, data);
    Image::open(&path).edit(TreeId::FS, is_last, |key, _| key.offset = u64::MAX);
    let fs = open(&path);
    let last = fs.directories().last_index(fs.root()).unwrap();
    let mut after = DirIndex(0);
    let mut names = Vec::new();
    loop {
        let listed = fs.directories().list(fs.root(), after, last, 1).unwrap();
        let Some(entry) = listed.into_iter().next() else { break };
        after = entry.index;
        names.push(entry.name);
        assert!(names.len() < 10, "the listing goes round: {names:?}");
    }
    assert_eq!(names.len(), 3);
    let new = NewInode { mode: FILE, ..NewInode::default() };
    assert_eq!(fs.directories().create(fs.root(), b"new", &new).unwrap_err().errno(), Errno::NOSPC);
    create(&fs, find(&fs, "one"), "new", FILE);
    fs.close().unwrap();
}

#[test]
fn directories_in_a_circle_end_a_rename_by_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = volume(dir.path());
    let (one, two) = (ino(&path, "one"), ino(&path, "two"));
    let image = Image::open(&path);
    for (child, parent) in [(one, two), (two, one)] {
        let is_ref = |key: &Key, _: &[u8]| key.objectid == child.0 && key.item_type == ItemType::INODE_REF;
        image.edit(TreeId::FS, is_ref, |key, _| key.offset = parent.0);
    }
    let fs = open(&path);
    let error = fs
        .directories()
        .rename(find(&fs, "one"), b"sub", find(&fs, "two"), b"sub", RenameFlags::default())
        .unwrap_err();
    assert_eq!(error.errno(), Errno::LOOP);
    let error = ubtrfs::changes_since(&fs, TreeId::FS, Generation(0), |_| true).unwrap_err();
    assert!(error.to_string().contains("below itself"), "{error:?}");
    fs.close().unwrap();
}

#[test]
fn an_entry_of_its_own_directory_can_not_be_removed_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = volume(dir.path());
    let image = Image::open(&path);
    for item_type in [ItemType::DIR_INDEX, ItemType::DIR_ITEM] {
        let is_entry = |key: &Key, data: &[u8]| is_entry_of_file(item_type, key, data);
        image.edit(TreeId::FS, is_entry, |_, data| {
            data[..8].copy_from_slice(&ROOT.to_le_bytes());
            data[29] = 2;
        });
    }
    let fs = open(&path);
    let root = fs.root();
    assert_eq!(find(&fs, "file/file/file/one").ino, find(&fs, "one").ino);
    assert!(fs.directories().rmdir(root, b"file").is_err());
    assert!(fs.directories().unlink(root, b"file").is_err());
    assert!(fs.directories().rename(root, b"file", find(&fs, "one"), b"file", RenameFlags::default()).is_err());
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    let _ = fs.directories().rename(root, b"file", root, b"one", exchange);
    create(&fs, find(&fs, "two"), "new", FILE);
    let _ = fs.close();
}

/// A chunk lies where another one does, or where the device tree has none, so a write to it could
/// overwrite anything. The kernel doesn't mount such a volume.
#[test]
fn volumes_whose_chunks_are_not_theirs_are_only_read() {
    /// The offset of the first stripe's address in a chunk item.
    const OFFSET: usize = 56;
    let dir = tempfile::tempdir().unwrap();
    let path = volume(dir.path());
    let image = Image::open(&path);
    let of = |kind: BlockGroupFlags| {
        let found = image.chunks().iter().find(|(_, chunk)| chunk.flags.contains(kind)).unwrap();
        (found.0.0, found.1.stripes[0].offset.0)
    };
    let ((data, place), (_, metadata)) = (of(BlockGroupFlags::DATA), of(BlockGroupFlags::METADATA));
    let put = |place: u64| {
        image.edit(
            TreeId::CHUNK,
            |key, _| key.item_type == ItemType::CHUNK_ITEM && key.offset == data,
            |_, item| item[OFFSET..OFFSET + 8].copy_from_slice(&place.to_le_bytes()),
        );
    };
    let opens = |read_only| image::try_open(&path, Options { read_only, ..Options::default() });
    for wrong in [metadata, metadata - (64 << 10), place + (1 << 20)] {
        put(wrong);
        let refused = opens(false).err().unwrap_or_else(|| panic!("the chunk at {wrong} is written to"));
        assert!(
            refused.to_string().contains("CHUNK_ITEM") || refused.to_string().contains("DEV_EXTENT"),
            "{refused:?}"
        );
        assert_eq!(find(&opens(true).unwrap(), "one/sub").subvolume, TreeId::FS);
    }
    put(place);
    opens(false).unwrap().close().unwrap();
}

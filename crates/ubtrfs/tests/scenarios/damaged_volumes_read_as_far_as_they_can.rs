//! On a volume that is damaged, truncated or full, only the damaged part is lost; durable data
//! stays; and a refusal says why.

use std::fs::OpenOptions as FileOptions;
use std::path::Path;
use std::sync::Arc;

use crate::common::{image, pattern};
use ubtrfs::{Errno, Error, Filesystem, InodeId, NewInode, Options, Rescue, WriteAt};
use ubtrfs_damage::Image;
use ubtrfs_format::items::{BlockGroupFlags, ExtentFlags, ExtentItem, InodeItem};
use ubtrfs_format::{DirIndex, Ino, ItemType, Key, Logical, SUPERBLOCK_COPIES, TreeId};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_volume::{
    Device, Exclusive, FaultyDevice, FileDevice, Lasting, OpenMode, OpenOptions, Operation, OverlayDevice, Volume,
};

const FILE: u32 = 0o100_644;
const SIZE: u64 = 256 << 20;
/// Files of the test volume: enough for many leaves of 4 KiB.
const FILES: u64 = 400;
const ENOSPC: i32 = 28;

fn name(number: u64) -> String {
    format!("file number {number}")
}

/// Returns the content of a file: small files are inline, some have an extent.
fn content(number: u64) -> Vec<u8> {
    pattern(number, if number.is_multiple_of(5) { 12_288 } else { number as usize % 90 })
}

fn make_volume(path: &Path, size: u64) {
    image::make(path, size, |options| options.node_size = Some(4096));
}

/// Makes a volume with files in it.
fn volume(path: &Path) {
    make_volume(path, SIZE);
    let fs = open(path, false).unwrap();
    for number in 0..FILES {
        create(&fs, &name(number), &content(number)).unwrap();
    }
    fs.close().unwrap();
}

fn create(fs: &Filesystem, name: &str, content: &[u8]) -> Result<InodeId, Error> {
    let id = fs.directories().create(fs.root(), name.as_bytes(), &NewInode { mode: FILE, ..NewInode::default() })?;
    fs.files().write(id, WriteAt::Offset(0), content, false)?;
    Ok(id)
}

fn open_device(device: Arc<dyn Device>, read_only: bool) -> Result<Arc<Filesystem>, Error> {
    let volume = Volume::open(vec![device], OpenOptions { read_only })?;
    let options = Options { read_only, background_commits: false, ..Options::default() };
    Filesystem::open(Arc::new(volume), options)
}

fn open(path: &Path, read_only: bool) -> Result<Arc<Filesystem>, Error> {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    open_device(Arc::new(FileDevice::open(path, mode, Exclusive::Yes).unwrap()), read_only)
}

fn read(fs: &Filesystem, name: &str) -> Result<Vec<u8>, Error> {
    let id = fs.directories().lookup(fs.root(), name.as_bytes())?;
    let content =
        fs.inodes().attributes(id).and_then(|attributes| fs.files().read(id, 0, attributes.size as usize + 1));
    fs.references().forget(id, 1);
    content
}

/// Returns the numbers of the files that can't be read, each for a reason that programs see as EIO.
/// All others have the right content.
fn lost(fs: &Filesystem) -> Vec<u64> {
    let is_lost = |number: &u64| match read(fs, &name(*number)) {
        Ok(found) => {
            assert!(found == content(*number), "file {number} has another content");
            false
        }
        Err(error) => {
            assert_eq!(error.errno(), Errno::IO, "file {number}: {error:?}");
            true
        }
    };
    (0..FILES).filter(is_lost).collect()
}

fn assert_clean(path: &Path) {
    let device = Arc::new(FileDevice::open(path, OpenMode::ReadOnly, Exclusive::No).unwrap());
    let report = ubtrfs_check::check(&[device as Arc<dyn Device>], &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.faults);
}

/// Returns the address of the first data extent.
fn data_extent(image: &Image) -> Logical {
    let is_data = |(key, data): &(Key, Vec<u8>)| {
        key.item_type == ItemType::EXTENT_ITEM && ExtentItem::parse(key, data).unwrap().flags & ExtentFlags::DATA != 0
    };
    Logical(image.items(TreeId::EXTENT).iter().find(|item| is_data(item)).unwrap().0.objectid)
}

fn sentence(result: Result<Arc<Filesystem>, Error>) -> String {
    result.expect_err("the volume is refused").chain()
}

#[test]
fn one_bad_copy_of_the_metadata_costs_nothing_and_is_repaired_by_writers_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let image = Image::open(&path);
    let leaves = image.leaves(TreeId::FS);
    assert!(leaves.len() > 20);
    for leaf in &leaves {
        image.flip(leaf.plus(300), &[0]);
    }
    let before = std::fs::read(&path).unwrap();
    let fs = open(&path, true).unwrap();
    assert!(lost(&fs).is_empty());
    assert_eq!(fs.volume().counters().repairs, 0);
    drop(fs);
    assert!(std::fs::read(&path).unwrap() == before, "a read-only mount wrote");

    let fs = open(&path, false).unwrap();
    assert!(lost(&fs).is_empty());
    assert_eq!(
        fs.directories().list(fs.root(), DirIndex(0), DirIndex(u64::MAX), usize::MAX).unwrap().len() as u64,
        FILES
    );
    assert_eq!(fs.volume().counters().repairs as usize, leaves.len());
    fs.close().unwrap();
    drop(fs);
    assert_clean(&path);
}

#[test]
fn a_lost_leaf_costs_only_the_files_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let image = Image::open(&path);
    let leaves = image.leaves(TreeId::FS);
    // Takes a leaf near the end of the tree, which has items of files and not of the directory.
    let leaf = leaves[leaves.len() * 3 / 4];
    image.flip_all(leaf.plus(300));
    let fs = open(&path, true).unwrap();
    let gone = lost(&fs);
    assert!((1..40).contains(&gone.len()), "{gone:?}");
    drop(fs);

    // The rest of the volume can be used.
    let fs = open(&path, false).unwrap();
    assert_eq!(lost(&fs), gone);
    let id = fs.directories().lookup(fs.root(), name(0).as_bytes()).unwrap();
    fs.files().write(id, WriteAt::Offset(0), &content(0), false).unwrap();
    fs.durability().sync().unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_eq!(lost(&open(&path, true).unwrap()), gone);
}

#[test]
fn a_malformed_item_costs_itself_when_reading_and_is_reported_when_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let image = Image::open(&path);
    let leaves = image.leaves(TreeId::FS);
    let (leaf, key) = leaves[leaves.len() * 3 / 4..]
        .iter()
        .find_map(|leaf| {
            let items = image.leaf(*leaf);
            let (key, _) = items.into_iter().find(|(key, _)| key.item_type == ItemType::INODE_ITEM)?;
            Some((leaf, key))
        })
        .unwrap();
    // Sets a file type that does not exist; the mode is at offset 52.
    image.edit(
        TreeId::FS,
        |other, _| *other == key,
        |_, data| data[52..56].copy_from_slice(&0o170_000_u32.to_le_bytes()),
    );
    let fs = open(&path, true).unwrap();
    let id = InodeId::new(TreeId::FS, ubtrfs_format::Ino(key.objectid));
    assert_eq!(fs.files().read(id, 0, 100).unwrap_err().errno(), Errno::INVAL);
    let unreadable = (0..FILES).filter(|number| read(&fs, &name(*number)).is_err()).count();
    assert_eq!(unreadable, 1);
    drop(fs);

    let fs = open(&path, false).unwrap();
    let error = fs.inodes().attributes(id).unwrap_err();
    assert_eq!(error.errno(), Errno::IO);
    let cause = error.chain();
    assert!(cause.contains(&format!("tree block {leaf}")) && cause.contains("inode mode"), "{cause}");
    assert!((1..40).contains(&lost(&fs).len()));
}

/// Data that does not match its checksum is never read as a file's content (invariant 11).
#[test]
fn a_bad_data_sector_costs_that_sector() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    make_volume(&path, SIZE);
    let fs = open(&path, false).unwrap();
    let data = pattern(3, 40_960);
    create(&fs, "data", &data).unwrap();
    fs.close().unwrap();
    drop(fs);
    let image = Image::open(&path);
    image.flip(data_extent(&image).plus(3 * 4096 + 77), &[0]);

    for read_only in [true, false] {
        let fs = open(&path, read_only).unwrap();
        let id = fs.directories().lookup(fs.root(), b"data").unwrap();
        assert!(fs.files().read(id, 0, 3 * 4096).unwrap() == data[..3 * 4096]);
        assert!(fs.files().read(id, 4 * 4096, 40_960).unwrap() == data[4 * 4096..]);
        for (offset, len) in [(3 * 4096, 1), (4 * 4096 - 1, 1), (0, 40_960)] {
            assert_eq!(fs.files().read(id, offset, len).unwrap_err().errno(), Errno::IO);
        }
        // Writing the sector again mends it, and when the whole file is rewritten the bad extent is
        // freed.
        if !read_only {
            fs.files().write(id, WriteAt::Offset(3 * 4096), &data[3 * 4096..4 * 4096], false).unwrap();
            fs.durability().sync().unwrap();
            assert!(fs.files().read(id, 0, 40_960).unwrap() == data);
            fs.files().write(id, WriteAt::Offset(0), &data, false).unwrap();
            fs.close().unwrap();
        }
    }
    assert!(read(&open(&path, true).unwrap(), "data").unwrap() == data);
    assert_clean(&path);
}

#[test]
fn a_truncated_image_costs_only_the_missing_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let fs = open(&path, false).unwrap();
    create(&fs, "far away", &pattern(1, 30 << 20)).unwrap();
    fs.close().unwrap();
    drop(fs);
    // Truncates the image after the first copy of the metadata; the second copy is lost, with the
    // data behind it.
    let image = Image::open(&path);
    let (_, chunk) = image.chunks().iter().find(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::METADATA)).unwrap();
    let end = chunk.stripes.iter().map(|stripe| stripe.offset.0).min().unwrap() + chunk.length;
    assert!(chunk.stripes.iter().any(|stripe| stripe.offset.0 >= end));
    FileOptions::new().write(true).open(&path).unwrap().set_len(end).unwrap();

    let refused = sentence(open(&path, false));
    assert!(refused.contains("truncated") && refused.contains("read-only"), "{refused}");
    let fs = open(&path, true).unwrap();
    assert!(lost(&fs).is_empty());
    assert_eq!(read(&fs, "far away").unwrap_err().errno(), Errno::IO);
}

#[test]
fn other_contents_are_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let image = Image::open(&path);
    for at in SUPERBLOCK_COPIES.into_iter().filter(|at| at.0 < SIZE) {
        image.write_raw(at.plus(64), b"_NoBtrfs");
    }
    for read_only in [true, false] {
        let refused = sentence(open(&path, read_only));
        assert!(refused.contains("no btrfs"), "{refused}");
    }
}

#[test]
fn a_damaged_primary_superblock_costs_only_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let image = Image::open(&path);
    image.write_raw(SUPERBLOCK_COPIES[0].plus(700), b"damage");
    let refused = sentence(open(&path, false));
    // The command names the remedies, since they depend on how it was called.
    let parts = ["superblock is damaged", "the copy at 64 MiB is good"];
    assert!(parts.iter().all(|what| refused.contains(what)), "{refused}");
    assert!(lost(&open(&path, true).unwrap()).is_empty());
}

#[test]
fn a_lost_extent_tree_costs_only_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let image = Image::open(&path);
    image.flip_all(image.root(TreeId::EXTENT).plus(300));
    assert!(lost(&open(&path, true).unwrap()).is_empty());
    let refused = open(&path, false).err().unwrap();
    assert_eq!(refused.errno(), Errno::IO);
    assert!(refused.chain().contains("tree 2"), "{refused:?}");
}

/// Makes files and syncs until something fails. Returns how many files are durable, and the error.
fn fill(fs: &Filesystem) -> (u64, Error) {
    let mut durable = 0;
    loop {
        let made = create(fs, &name(durable), &full_content(durable));
        if let Err(error) = made.and_then(|_| fs.durability().sync()) {
            return (durable, error);
        }
        durable += 1;
        assert!(durable < 5000, "the device never filled up");
    }
}

fn full_content(number: u64) -> Vec<u8> {
    pattern(number, 100_000)
}

fn assert_holds(fs: &Filesystem, durable: u64) {
    for number in 0..durable {
        assert!(read(fs, &name(number)).unwrap() == full_content(number), "file {number} of {durable}");
    }
}

/// Asserts the state of a file system after its device has failed.
fn assert_gave_up(fs: &Filesystem, durable: u64) {
    assert!(fs.is_read_only() && fs.abort_reason().is_some());
    assert_eq!(create(fs, "one more", b"?").unwrap_err().errno(), Errno::ROFS);
    assert_holds(fs, durable);
    assert!(fs.close().is_err(), "closing hides that something was lost");
}

#[test]
fn a_backing_file_system_that_is_full_costs_nothing_durable() {
    require!(Need::Root);
    let dir = ubtrfs_testkit::scratch::scratch_dir();
    let backing = Backing::mount(&dir.path().join("backing"), "24m");
    let path = backing.0.join("image");
    make_volume(&path, SIZE);
    let fs = open(&path, false).unwrap();
    let (durable, error) = fill(&fs);
    assert!(durable > 20, "{durable}: {error:?}");
    assert!(error.chain().contains("No space left"), "{error:?}");
    assert_gave_up(&fs, durable);
    drop(fs);

    let fs = open(&path, true).unwrap();
    assert_holds(&fs, durable);
    drop(fs);
    assert_clean(&path);
    backing.grow("200m");
    let fs = open(&path, false).unwrap();
    assert_holds(&fs, durable);
    create(&fs, "room again", b"yes").unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_clean(&path);
}

/// A tmpfs, which is unmounted on drop.
struct Backing(std::path::PathBuf);

impl Backing {
    fn mount(at: &Path, size: &str) -> Self {
        std::fs::create_dir(at).unwrap();
        run(command("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(at)).ok();
        Self(at.to_owned())
    }

    fn grow(&self, size: &str) {
        run(command("mount", &["-o", &format!("remount,size={size}")]).arg(&self.0)).ok();
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        run(command("umount", &["-l"]).arg(&self.0));
    }
}

#[test]
fn a_device_that_fails_at_any_write_or_flush_costs_nothing_durable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    make_volume(&path, SIZE);
    let base: Arc<[u8]> = std::fs::read(&path).unwrap().into();
    for (operation, successes) in [0, 1, 5, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 200]
        .map(|successes| (Operation::Write, successes))
        .into_iter()
        .chain((0..8).map(|successes| (Operation::Flush, successes)))
    {
        let memory = Arc::new(OverlayDevice::new(base.clone()));
        let faulty = Arc::new(FaultyDevice::new(memory.clone()));
        let fs = open_device(faulty.clone(), false).unwrap();
        faulty.fail(operation, successes, ENOSPC, Lasting::Forever);
        let (durable, _) = fill(&fs);
        assert_gave_up(&fs, durable);
        drop(fs);
        let fs = open_device(memory.clone(), false).unwrap();
        assert_holds(&fs, durable);
        create(&fs, "afterwards", b"it works").unwrap();
        fs.close().unwrap();
        drop(fs);
        let report = ubtrfs_check::check(&[memory as Arc<dyn Device>], &ubtrfs_check::Options::default()).unwrap();
        assert!(report.is_clean(), "{operation:?} {successes}: {:#?}", report.faults);
    }
}

/// The mount fails with a reason, since no path could be reached in such a subvolume. A mount of
/// another subvolume, or a rescue mount, is still possible.
#[test]
fn a_root_that_is_no_directory_is_not_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    volume(&path);
    let is_root = |key: &Key, _: &[u8]| key.objectid == Ino::ROOT_DIR.0 && key.item_type == ItemType::INODE_ITEM;
    Image::open(&path).edit(TreeId::FS, is_root, |_, item| {
        let root = InodeItem::parse(item).unwrap();
        *item = InodeItem { mode: FILE, ..root }.to_bytes().to_vec();
    });
    for read_only in [false, true] {
        let refused = open(&path, read_only).unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
        assert!(refused.to_string().contains("the root inode of the subvolume 5 is not a directory"), "{refused:?}");
    }
    let device = Arc::new(FileDevice::open(&path, OpenMode::ReadOnly, Exclusive::Yes).unwrap());
    let volume = Volume::open(vec![device], OpenOptions { read_only: true }).unwrap();
    let rescue = Rescue { pass_over: Some(Arc::default()), ..Rescue::default() };
    let options = Options { read_only: true, background_commits: false, rescue, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap();
}

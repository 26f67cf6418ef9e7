//! The content of a block group is moved elsewhere: files, snapshots and the extents that they
//! share stay as they were, whatever happens meanwhile, and both checkers and the kernel agree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ubtrfs::{Compression, CompressionMode, Errno, Filesystem, InodeId, NewInode, Options, WriteAt};
use ubtrfs_format::items::{
    BlockGroupFlags, ExtentFlags, ExtentItem, FileExtent, FileExtentKind, InlineRef, InodeFlags,
};
use ubtrfs_format::{Ino, ItemType, Key, Logical, TreeId};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::files::file;
use crate::common::tree::tree_of;
use crate::common::{image, pattern};

const SIZE: u64 = 1 << 30;

/// Options of mounts in which reads change nothing.
fn options() -> Options {
    Options { no_atime: true, ..Options::default() }
}

fn root_of(id: TreeId) -> InodeId {
    InodeId::new(id, Ino::ROOT_DIR)
}

fn groups(fs: &Filesystem, kind: BlockGroupFlags) -> Vec<Logical> {
    let all = fs.volume().chunk_map().all();
    all.into_iter().filter(|(_, chunk)| chunk.flags.contains(kind)).map(|(start, _)| start).collect()
}

/// Files of all kinds, some of them shared.
fn fill(fs: &Filesystem, dir: InodeId) {
    for number in 0..400 {
        file(fs, dir, &format!("file{number}"), &pattern(number, 1000 + number as usize * 137));
    }
    let large = file(fs, dir, "large", &pattern(7, 6 << 20));
    let copy = file(fs, dir, "copy", b"");
    fs.files().clone_range(large, 1 << 20, copy, 0, 2 << 20).unwrap();
    fs.files().clone_range(large, 3 << 20, copy, 4 << 20, 1 << 20).unwrap();
    fs.files().clone_range(large, 3 << 20, large, 5 << 20, 64 << 10).unwrap();
    let nocow = fs.directories().create(dir, b"nocow", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    fs.inodes().set_flags(nocow, InodeFlags::NODATACOW).unwrap();
    fs.files().write(nocow, WriteAt::Offset(0), &pattern(9, 1 << 20), false).unwrap();
    let reserved = file(fs, dir, "reserved", b"");
    fs.files().allocate(reserved, 0, 2 << 20, false).unwrap();
    fs.durability().sync().unwrap();
    fs.files().write(reserved, WriteAt::Offset(256 << 10), &pattern(3, 64 << 10), false).unwrap();
    fs.set_compression(Some(CompressionMode { algorithm: Compression::Zstd, level: 3, force: false }));
    file(fs, dir, "packed", &b"much of the same ".repeat(60_000));
    fs.set_compression(None);
    fs.durability().sync().unwrap();
}

/// A part of an extent that a file uses: subvolume, inode, file offset, offset in the extent,
/// length.
type Use = (u64, u64, u64, u64, u64);

/// How extents are shared, without their addresses.
#[derive(PartialEq, Eq)]
struct Sharing {
    /// The number of data extents and of nodes of subvolumes, by level and by number of references,
    /// without regard to the kind of reference; that of data also by length and generation.
    extents: BTreeMap<(Option<u64>, u64, u64, u64), usize>,
    /// The uses of each extent.
    uses: BTreeSet<Vec<Use>>,
}

fn sharing(fs: &Filesystem) -> Sharing {
    let all = (Key::MIN, Key::MAX);
    // The roots of trees that belong to no subvolume change with what is moved.
    let mut extents = BTreeMap::new();
    fs.search_tree(TreeId::EXTENT, all.0, all.1, &mut |item| {
        if ![ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM].contains(&item.key.item_type) {
            return true;
        }
        let extent = ExtentItem::parse(&item.key, &item.data).unwrap();
        let is_of_files = |reference: &InlineRef| match reference {
            InlineRef::TreeBlock { root } => root.is_subvolume(),
            _ => true,
        };
        let is_data = extent.flags & ExtentFlags::DATA != 0;
        if extent.inline_refs.is_empty() || extent.inline_refs.iter().any(is_of_files) {
            let (level, length, generation) =
                if is_data { (None, item.key.offset, extent.generation.0) } else { (Some(item.key.offset), 0, 0) };
            *extents.entry((level, length, generation, extent.refs)).or_insert(0) += 1;
        }
        true
    })
    .unwrap();
    let mut by_extent: BTreeMap<u64, Vec<Use>> = BTreeMap::new();
    for tree in fs.subvolumes().ids() {
        fs.search_tree(tree, all.0, all.1, &mut |item| {
            if item.key.item_type == ItemType::EXTENT_DATA
                && let FileExtentKind::Regular { disk_bytenr, offset, num_bytes, .. } =
                    FileExtent::parse(&item.data).unwrap().kind
                && disk_bytenr.0 != 0
            {
                let part = (tree.0, item.key.objectid, item.key.offset, offset, num_bytes);
                by_extent.entry(disk_bytenr.0).or_default().push(part);
            }
            true
        })
        .unwrap();
    }
    let sorted = |mut uses: Vec<Use>| {
        uses.sort_unstable();
        uses
    };
    Sharing { extents, uses: by_extent.into_values().map(sorted).collect() }
}

fn check(fs: Arc<Filesystem>, path: &Path) -> Arc<Filesystem> {
    fs.close().unwrap();
    drop(fs);
    assert_ubtrfs_check_clean(path);
    assert_btrfs_check_clean(path);
    image::open(path, options())
}

/// Everything is found at its new address, and shared as before (invariant 35).
#[test]
fn extents_that_snapshots_share_are_shared_at_their_new_addresses() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, options());
    let work = fs.subvolumes().create_subvolume(fs.root(), b"work", 0o755, (0, 0)).unwrap();
    fill(&fs, root_of(work));
    for number in 0..6 {
        let copy =
            fs.subvolumes().snapshot(work, fs.root(), format!("copy{number}").as_bytes(), number % 2 == 0).unwrap();
        let changed = if number % 2 == 0 { work } else { copy };
        for other in 0..30 {
            let name = format!("file{}", (other * 13 + number * 5) % 400);
            let id = fs.directories().lookup(root_of(changed), name.as_bytes()).unwrap();
            fs.files().write(id, WriteAt::Offset(4096), &pattern(number, 9000), false).unwrap();
        }
        fs.durability().sync().unwrap();
    }
    let fs = check(fs, &path);
    let (before, shared) = (tree_of(&fs), sharing(&fs));
    for kind in [BlockGroupFlags::DATA, BlockGroupFlags::METADATA, BlockGroupFlags::SYSTEM] {
        for start in groups(&fs, kind) {
            assert!(fs.relocator().empty_block_group(start, &|| true).unwrap(), "{start}");
            assert!(fs.volume().chunk_map().get(start).is_none(), "the chunk {start} is still there");
        }
        assert!(sharing(&fs) == shared, "what is shared has changed by emptying groups of {kind:?}");
        assert_eq!(tree_of(&fs), before, "{kind:?}");
    }
    let fs = check(fs, &path);
    assert!(sharing(&fs) == shared, "what is shared has changed by a mount");
    assert_eq!(tree_of(&fs), before);
    // The trees can be changed as before.
    for number in 0..6 {
        let root = fs.directories().lookup(fs.root(), format!("copy{number}").as_bytes()).unwrap();
        if number % 2 == 1 {
            let id = fs.directories().lookup(root, b"large").unwrap();
            fs.files().write(id, WriteAt::Offset(12_288), &pattern(5, 5000), false).unwrap();
        }
        if number > 2 {
            fs.subvolumes().delete_subvolume(fs.root(), format!("copy{number}").as_bytes()).unwrap();
        }
    }
    drop(check(fs, &path));
}

/// Each step leaves a whole state of the volume, and the emptying can stop after any of them.
#[test]
fn emptying_can_be_stopped_between_any_two_steps() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, options());
    for number in 0..12 {
        file(&fs, fs.root(), &format!("file{number}"), &pattern(number, 9 << 20));
    }
    fs.durability().sync().unwrap();
    fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"copy", false).unwrap();
    let before = tree_of(&fs);
    let start = groups(&fs, BlockGroupFlags::DATA)[0];
    let steps = std::cell::Cell::new(0);
    let first_only = || steps.replace(steps.get() + 1) == 0;
    assert!(!fs.relocator().empty_block_group(start, &first_only).unwrap());
    assert_eq!(steps.get(), 2, "the group has more than one step holds");
    assert!(fs.volume().chunk_map().get(start).is_some());
    assert_eq!(tree_of(&fs), before);
    let fs = check(fs, &path);
    assert_eq!(tree_of(&fs), before);
    assert_eq!(fs.relocator().empty_block_group(Logical(12_345), &|| true).unwrap_err().errno(), Errno::NOENT);
    drop(check(fs, &path));
}

/// A copy does not change (invariant 36): files are written, cloned, fsynced and snapshotted while
/// their extents move.
#[test]
fn block_groups_are_emptied_while_files_are_in_use() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, options());
    fill(&fs, fs.root());
    for number in 0..8 {
        file(&fs, fs.root(), &format!("written{number}"), &pattern(number, 4 << 20));
    }
    fs.durability().sync().unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..4_u64 {
            let (fs, ended) = (&fs, &ended);
            scope.spawn(move || {
                let source = fs.directories().lookup(fs.root(), format!("written{writer}").as_bytes()).unwrap();
                let nocow = fs.directories().lookup(fs.root(), b"nocow").unwrap();
                let content = pattern(writer, 4 << 20);
                for round in 0_u64.. {
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("clone{writer}.{}", round % 5);
                    let _ = fs.directories().unlink(fs.root(), name.as_bytes());
                    let clone = file(fs, fs.root(), &name, b"");
                    let at = (round % 7) * (64 << 10);
                    fs.files().clone_range(source, at, clone, 0, 1 << 20).unwrap();
                    assert_eq!(fs.files().read(clone, 0, 1 << 20).unwrap()[..], content[at as usize..][..1 << 20]);
                    if round % 3 == 0 {
                        fs.durability().fsync(clone).unwrap();
                    }
                    assert_eq!(fs.files().read(clone, 0, 1 << 20).unwrap()[..], content[at as usize..][..1 << 20]);
                    // btrfs check does not expect orphans in snapshots.
                    fs.references().forget(clone, 1);
                    let place = (writer * 4 + round % 4) << 14;
                    fs.files().write(nocow, WriteAt::Offset(place), &pattern(round, 1 << 14), false).unwrap();
                    if round % 4 == 0 {
                        fs.durability().fsync(nocow).unwrap();
                    }
                    assert_eq!(fs.files().read(nocow, place, 1 << 14).unwrap(), pattern(round, 1 << 14));
                    if round % 9 == 0 && writer == 0 && round < 40 {
                        fs.subvolumes()
                            .snapshot(TreeId::FS, fs.root(), format!("snapshot{round}").as_bytes(), true)
                            .unwrap();
                    }
                }
            });
        }
        let mut failed = Vec::new();

        for _ in 0..2 {
            for kind in [BlockGroupFlags::DATA, BlockGroupFlags::METADATA] {
                for start in groups(&fs, kind) {
                    // The next commit removes an empty group by itself.
                    let result = fs.relocator().empty_block_group(start, &|| true);
                    failed.extend(result.err().filter(|error| error.errno() != Errno::NOENT).map(|e| e.chain()));
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(failed, Vec::<String>::new());
    });
    let before = tree_of(&fs);
    let fs = check(fs, &path);
    assert_eq!(tree_of(&fs), before);
    for number in 0..8 {
        let id = fs.directories().lookup(fs.root(), format!("written{number}").as_bytes()).unwrap();
        assert_eq!(fs.files().read(id, 0, 4 << 20).unwrap(), pattern(number, 4 << 20));
    }
}

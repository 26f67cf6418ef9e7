//! Subvolumes are made, copied and deleted. A snapshot keeps what its source had, whatever happens
//! to the two; both checkers agree after each step, and the kernel reads the same.

use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, NewInode, Options, WriteAt};
use ubtrfs_format::{Header, Ino, TreeId};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::files::{file, mkdir};
use crate::common::image;
use crate::common::tree::tree_of;

const SIZE: u64 = 512 << 20;

fn root_of(id: TreeId) -> InodeId {
    InodeId::new(id, Ino::ROOT_DIR)
}

fn read(fs: &Filesystem, dir: InodeId, name: &str) -> Vec<u8> {
    let id = fs.directories().lookup(dir, name.as_bytes()).unwrap();
    fs.files().read(id, 0, 1 << 20).unwrap()
}

fn check(fs: Arc<Filesystem>, path: &Path) -> Arc<Filesystem> {
    fs.close().unwrap();
    drop(fs);
    assert_ubtrfs_check_clean(path);
    assert_btrfs_check_clean(path);
    image::open(path, Options::default())
}

#[test]
fn a_snapshot_inside_its_source_holds_all_but_itself() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, Options::default());
    for number in 0..300 {
        file(&fs, fs.root(), &format!("file{number}"), &vec![number as u8; 20_000]);
    }
    let deep = mkdir(&fs, fs.root(), "deep");
    file(&fs, deep, "below", b"below");
    let snapshot = fs.subvolumes().snapshot(TreeId::FS, deep, b"snapshot", false).unwrap();
    let root = root_of(snapshot);
    assert_eq!(fs.directories().lookup(deep, b"snapshot").unwrap(), root);
    assert_eq!(read(&fs, root, "file7"), vec![7; 20_000]);
    let inner = fs.directories().lookup(root, b"deep").unwrap();
    assert_eq!(read(&fs, inner, "below"), b"below");
    assert!(fs.directories().lookup(inner, b"snapshot").is_err(), "a snapshot holds its own entry");

    let fs = check(fs, &path);
    // Each side changes without the other.
    let root = root_of(snapshot);
    for number in 0..300 {
        let name = format!("file{number}");
        if number % 3 == 0 {
            fs.directories().unlink(fs.root(), name.as_bytes()).unwrap();
        }
        if number % 5 == 0 {
            let id = fs.directories().lookup(root, name.as_bytes()).unwrap();
            fs.files().write(id, WriteAt::Offset(4096), &[0xee; 4096], false).unwrap();
        }
    }
    let fs = check(fs, &path);
    assert_eq!(read(&fs, root, "file3"), vec![3; 20_000]);
    assert_eq!(read(&fs, fs.root(), "file5"), vec![5; 20_000]);
    assert_eq!(read(&fs, root, "file5")[4096..8192], [0xee; 4096]);

    let info = fs.subvolumes().subvolume_info(snapshot).unwrap();
    assert_eq!(info.parent_uuid, fs.subvolumes().subvolume_info(TreeId::FS).unwrap().uuid);
    assert!(!info.read_only);
    assert_eq!(fs.subvolumes().ids(), [TreeId::FS, snapshot]);

    assert_eq!(fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"deep", true).unwrap_err().errno(), Errno::EXIST);
    let fixed = fs.subvolumes().snapshot(snapshot, fs.root(), b"fixed", true).unwrap();
    assert!(fs.subvolumes().subvolume_info(fixed).unwrap().read_only);
    let refused = fs.directories().create(root_of(fixed), b"new", &NewInode { mode: 0o100_644, ..NewInode::default() });
    assert_eq!(refused.unwrap_err().errno(), Errno::ROFS);
    let fs = check(fs, &path);
    assert_eq!(tree_of(&fs).entries.len(), tree_of(&fs).entries.len());
}

#[test]
fn deleted_subvolumes_are_dropped_in_steps() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let few = || Options {
        freeing: FreeingLimits { per_transaction: 40, at_the_end: 40, ..FreeingLimits::default() },
        ..Options::default()
    };
    let fs = image::open(&path, few());
    let id = fs.subvolumes().create_subvolume(fs.root(), b"work", 0o755, (0, 0)).unwrap();
    for number in 0..2000 {
        file(&fs, root_of(id), &format!("file{number}"), &vec![number as u8; 5000]);
    }
    fs.durability().sync().unwrap();
    let free = fs.statfs();
    let copies: Vec<_> = (0..3)
        .map(|number| {
            let copy = fs.subvolumes().snapshot(id, fs.root(), format!("copy{number}").as_bytes(), false).unwrap();
            for other in 0..200 {
                let name = format!("file{}", other * 7 + number);
                fs.directories().unlink(root_of(copy), name.as_bytes()).unwrap();
            }
            file(&fs, root_of(copy), "own", &vec![number as u8; 100_000]);
            copy
        })
        .collect();
    let fs = check(fs, &path);
    assert_eq!(fs.subvolumes().delete_subvolume(fs.root(), b"absent").unwrap_err().errno(), Errno::NOENT);
    // The source, which has made the shared blocks, is deleted first.
    for name in ["work", "copy1", "copy0"] {
        fs.subvolumes().delete_subvolume(fs.root(), name.as_bytes()).unwrap();
        assert_eq!(fs.directories().lookup(fs.root(), name.as_bytes()).unwrap_err().errno(), Errno::NOENT);
    }
    fs.close().unwrap();
    drop(fs);
    let mut rounds = 0;
    loop {
        assert_ubtrfs_check_clean(&path);
        assert_btrfs_check_clean(&path);
        let fs = image::open(&path, few());
        let left = fs.subvolumes().deleted_subvolumes();
        assert_eq!(read(&fs, root_of(copies[2]), "file1"), vec![1; 5000]);
        for _ in 0..8 {
            fs.durability().sync().unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        rounds += 1;
        assert!(rounds < 60, "{left:?} are never dropped");
        if left.is_empty() {
            break;
        }
    }
    assert!(rounds > 2, "all was dropped at once");
    let fs = image::open(&path, few());
    assert_eq!(fs.subvolumes().ids(), [TreeId::FS, copies[2]]);
    let now = fs.statfs();
    println!("{free:?} {now:?} {rounds}");
}

/// Blocks that a deleted subvolume has made and its snapshot shares get references by address
/// before the subvolume is gone, in as many steps as that takes, while the snapshot changes.
#[test]
fn shared_trees_outlive_their_maker_whenever_its_drop_is_interrupted() {
    const FILES: usize = 2500;
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |options| options.node_size = Some(4096));
    let by_single_nodes = || Options {
        freeing: FreeingLimits { per_transaction: 1, at_the_end: 1, ..FreeingLimits::default() },
        ..Options::default()
    };
    let fs = image::open(&path, by_single_nodes());
    let maker = fs.subvolumes().create_subvolume(fs.root(), b"maker", 0o755, (0, 0)).unwrap();
    for number in 0..FILES {
        file(&fs, root_of(maker), &format!("file{number}"), &[number as u8; 100]);
    }
    fs.durability().sync().unwrap();
    let kept = fs.subvolumes().snapshot(maker, fs.root(), b"kept", false).unwrap();
    fs.subvolumes().delete_subvolume(fs.root(), b"maker").unwrap();
    let mut fs = check(fs, &path);
    let (mut steps, mut changed) = (0, 0);
    while !fs.subvolumes().deleted_subvolumes().is_empty() {
        fs.close().unwrap();
        drop(fs);
        fs = image::open(&path, by_single_nodes());
        for _ in 0..20 {
            fs.durability().sync().unwrap();
            steps += 1;
            // The changes are all over the tree, in parts that the drop has passed and in others.
            changed = (changed + 811) % FILES;
            fs.directories().unlink(root_of(kept), format!("file{changed}").as_bytes()).ok();
        }
        if steps % 100 == 0 {
            fs = check(fs, &path);
        }
        assert!(steps < 5000, "the subvolume is never dropped");
    }
    assert!(steps > 100, "all was dropped in {steps} steps");
    let fs = check(fs, &path);
    assert_eq!(fs.subvolumes().ids(), [TreeId::FS, kept]);
}

/// Several threads read the root items of a mount, each some of the leaves.
#[test]
fn a_mount_finds_all_of_very_many_subvolumes_or_fails() {
    const NODE: usize = 4096;
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |options| options.node_size = Some(NODE as u32));
    let fs = image::open(&path, Options::default());
    let made: Vec<_> = (0..600)
        .map(|number| {
            let name = format!("subvolume{number}");
            fs.subvolumes().create_subvolume(fs.root(), name.as_bytes(), 0o755, (0, 0)).unwrap()
        })
        .collect();
    let fs = check(fs, &path);
    let expected: Vec<_> = [TreeId::FS].into_iter().chain(made.iter().copied()).collect();
    assert_eq!(fs.subvolumes().ids(), expected);
    fs.close().unwrap();
    drop(fs);

    let whole = std::fs::read(&path).unwrap();
    for lost in [made[0], made[300], made[599]] {
        let mut bytes = whole.clone();
        let mut destroyed = 0;
        for block in bytes.chunks_mut(NODE) {
            let is_leaf = Header::parse(block).is_ok_and(|header| header.owner == TreeId::ROOT && header.level == 0);
            let key = [&lost.0.to_le_bytes()[..], &[132]].concat();
            if is_leaf && block.windows(key.len()).any(|bytes| bytes == key) {
                block.fill(0);
                destroyed += 1;
            }
        }
        assert!(destroyed > 0);
        std::fs::write(&path, &bytes).unwrap();
        let opened = image::try_open(&path, Options { read_only: true, ..Options::default() });
        assert!(opened.is_err(), "the root item of {lost:?} is gone");
    }
}

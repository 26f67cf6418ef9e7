//! A merge moves files of all users through a directory of the target. No user gets at them there,
//! or makes the merge move another file than the one that it means.

use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Errno, Filesystem, InodeId, MergeEffect, MergeSides, Options, Prefer, RenameFlags, SetAttributes};
use ubtrfs_format::{DirIndex, TreeId};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::common::image;
use crate::common::script::run;

const ALICE: u32 = 1000;

fn open(path: &Path) -> Arc<Filesystem> {
    image::make(path, 512 << 20, |_| {});
    image::open(path, Options::default())
}

fn find(fs: &Filesystem, dir: InodeId, name: &str) -> InodeId {
    let found = fs.directories().lookup(dir, name.as_bytes()).unwrap();
    fs.references().forget(found, 1);
    found
}

/// Makes subvolumes whose root directories are Alice's. The changed side has a new file in a
/// directory of another user, and has renamed one there.
fn sides(fs: &Filesystem, number: u32) -> MergeSides {
    let name = |what: &str| format!("{what}{number}").into_bytes();
    let base = fs.subvolumes().create_subvolume(fs.root(), &name("base"), 0o755, (ALICE, ALICE)).unwrap();
    run(fs, base, "mkdir bob; make bob/old; make bob/own; make alices");
    let snapshot = |what: &str| fs.subvolumes().snapshot(base, fs.root(), &name(what), false).unwrap();
    let sides = MergeSides { base, changed: snapshot("changed"), target: snapshot("target") };
    run(fs, sides.changed, "make bob/new; write bob/new 1 0 9000; mv bob/old bob/moved");
    sides
}

/// Returns the directory of a merge; there is only one.
fn staging(fs: &Filesystem, target: TreeId) -> InodeId {
    find(fs, InodeId::root_of(target), ".ubtrfs-merge-0")
}

/// Returns whether a directory has an entry of this very inode.
fn has(fs: &Filesystem, dir: InodeId, id: InodeId) -> bool {
    let listed = fs.directories().list(dir, DirIndex(0), DirIndex(u64::MAX), 100).unwrap();
    listed.iter().any(|entry| entry.inode == id)
}

#[test]
fn the_owner_of_the_target_has_no_access_to_staged_files() {
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    let sides = sides(&fs, 0);
    let mut looked = 0;
    let mut effect = |effect: MergeEffect| {
        // At the end, the name of the directory itself is removed.
        let MergeEffect::Name(dir, _) = effect else { return };
        let Ok(found) = fs.directories().lookup(InodeId::root_of(sides.target), b".ubtrfs-merge-0") else { return };
        fs.references().forget(found, 1);
        let is = fs.inodes().attributes(found).unwrap();
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!((is.uid, is.gid, is.mode), (user, group, 0o040_700));
        looked += u32::from(dir == found);
    };
    ubtrfs::merge(&fs, sides, Prefer::Neither, false, &mut effect).unwrap();
    assert!(looked >= 3, "it was looked at {looked} times");
    assert_eq!(fs.inodes().attributes(InodeId::root_of(sides.target)).unwrap().uid, ALICE);
    fs.close().unwrap();
}

#[test]
fn a_file_that_was_put_in_the_place_of_another_is_not_moved() {
    let dir = scratch_dir();
    let fs = open(&dir.path().join("image"));
    // Exchanges a file before the merge removes it, or before the merge places it.
    for (number, is_staged) in [false, true].into_iter().enumerate() {
        let sides = sides(&fs, number as u32);
        let root = InodeId::root_of(sides.target);
        let (bob, alices) = (find(&fs, root, "bob"), find(&fs, root, "alices"));
        let is_alices = SetAttributes { uid: Some(ALICE), ..SetAttributes::default() };
        fs.inodes().set_attributes(alices, &is_alices).unwrap();
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let mut is_exchanged = false;
        let mut effect = |effect: MergeEffect| {
            let MergeEffect::Name(dir, name) = effect else { return };
            if !is_exchanged && dir != root && dir == staging(&fs, sides.target) {
                is_exchanged = true;
                let victim: (InodeId, &[u8]) = if is_staged { (dir, &name) } else { (bob, b"old") };
                fs.directories().rename(root, b"alices", victim.0, victim.1, exchange).unwrap();
            }
        };
        let failed = ubtrfs::merge(&fs, sides, Prefer::Neither, false, &mut effect).unwrap_err();
        assert!(is_exchanged);
        assert_eq!(failed.errno(), Errno::BUSY, "staged: {is_staged}");
        assert_eq!(has(&fs, bob, alices), !is_staged, "staged: {is_staged}");
        if !is_staged {
            assert_eq!(find(&fs, bob, "old"), alices, "it was moved");
        }
        assert!(fs.directories().lookup(bob, b"new").is_err(), "staged: {is_staged}");
    }
    fs.close().unwrap();
}

//! A full volume fails operations with ENOSPC, and does nothing worse.

use std::sync::Arc;

use crate::common::memory::new_volume;
use ubtrfs::{Errno, Error, Filesystem, FreeingLimits, NewInode, Options, Result, SetAttributes, WriteAt};
use ubtrfs_format::TreeId;
use ubtrfs_volume::{OpenOptions, Volume};

const FILE: u32 = 0o100_644;
const SIZE: u64 = 128 << 20;

/// Makes a volume whose space is all in data chunks, except for the metadata chunk that mkfs made.
fn without_room_for_metadata() -> Arc<Filesystem> {
    let device = Arc::new(new_volume(SIZE));
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).unwrap();
    let big = fs.directories().create(fs.root(), b"big", &regular()).unwrap();
    let filled = (0..).find_map(|at| fs.files().write(big, WriteAt::Offset(at << 20), &vec![7; 1 << 20], false).err());
    assert_full(&filled.unwrap());
    fs.directories().unlink(fs.root(), b"big").unwrap();
    fs.references().forget(big, 1);
    fs.durability().sync().unwrap();
    fs
}

fn regular() -> NewInode {
    NewInode { mode: FILE, ..NewInode::default() }
}

fn assert_full(error: &Error) {
    assert_eq!(error.errno(), Errno::NOSPC, "{error:?}");
}

/// Makes files by `make` until the volume is full, commits, removes them, and commits.
fn fill_and_empty(fs: &Filesystem, make: impl Fn(&str) -> Result<()>) {
    let mut made = 0;
    let full = loop {
        match make(&format!("file{made}")) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_full(&full);
    fs.durability().sync().unwrap();
    for number in 0..made {
        fs.directories().unlink(fs.root(), format!("file{number}").as_bytes()).unwrap();
    }
    fs.durability().sync().unwrap();
    assert!(made > 500, "full after {made} files");
}

#[test]
fn small_files_that_are_kept_within_metadata_are_refused_in_time() {
    let fs = without_room_for_metadata();
    fill_and_empty(&fs, |name| {
        let file = fs.directories().create(fs.root(), name.as_bytes(), &regular())?;
        let written = fs.files().write(file, WriteAt::End, &[1; 1900], false);
        fs.references().forget(file, 1);
        written.map(drop)
    });
    fs.close().unwrap();
}

#[test]
fn files_that_are_truncated_until_they_are_inline_are_refused_in_time() {
    let fs = without_room_for_metadata();
    fill_and_empty(&fs, |name| {
        let file = fs.directories().create(fs.root(), name.as_bytes(), &regular())?;
        let written = fs.files().write(file, WriteAt::End, &[1; 4096], false);
        let truncated =
            fs.inodes().set_attributes(file, &SetAttributes { size: Some(2000), ..SetAttributes::default() });
        fs.references().forget(file, 1);
        written.and(truncated).map(drop)
    });
    fs.close().unwrap();
}

/// An operation that lacks space has unlinked files freed. If a snapshot shares their extents, that
/// gives nothing back, and the operation fails long before all of them are freed.
#[test]
fn operations_do_not_wait_for_a_long_queue_that_gives_nothing_back() {
    const FILES: u64 = 400;
    let device = Arc::new(new_volume(SIZE));
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    let freeing = FreeingLimits { at_once: 0, per_transaction: 1, at_the_end: 1, queue: 1 << 20 };
    let fs = Filesystem::open(Arc::new(volume), Options { background_commits: false, freeing, ..Options::default() });
    let fs = fs.unwrap();
    for number in 0..FILES {
        let file = fs.directories().create(fs.root(), format!("file{number}").as_bytes(), &regular()).unwrap();
        fs.files().write(file, WriteAt::Offset(0), &vec![5; 64 << 10], false).unwrap();
        fs.references().forget(file, 1);
    }
    fs.durability().sync().unwrap();
    fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"copy", false).unwrap();
    let big = fs.directories().create(fs.root(), b"big", &regular()).unwrap();
    let write = |at: u64| fs.files().write(big, WriteAt::Offset(at << 20), &vec![7; 1 << 20], false);
    let full = (0..SIZE >> 20).find(|at| write(*at).is_err()).unwrap();
    for number in 0..FILES {
        fs.directories().unlink(fs.root(), format!("file{number}").as_bytes()).unwrap();
    }
    let before = fs.stats().inactivation;
    assert!(before.inodes > FILES / 2, "{before:?}");
    assert_full(&write(full).unwrap_err());
    let after = fs.stats().inactivation;
    assert!(after.steps - before.steps < 64 && after.inodes > FILES / 2, "{before:?}, then {after:?}");
    fs.close().unwrap();
}

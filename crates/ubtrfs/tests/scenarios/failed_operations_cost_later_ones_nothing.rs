//! Failed operations leave no reservations behind, nor errors of writes that were not waited for.

use std::sync::Arc;

use crate::common::memory::new_volume;
use ubtrfs::{Filesystem, InodeId, NewInode, Options, SetAttributes, WriteAt};
use ubtrfs_volume::{Device, FaultyDevice, Lasting, OpenOptions, Operation, Volume};

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;
const EIO: i32 = 5;

fn fresh(size: u64) -> Arc<dyn Device> {
    Arc::new(new_volume(size))
}

fn open(device: Arc<dyn Device>) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn create(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> InodeId {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap()
}

#[test]
fn operations_that_fail_keep_no_space_from_others() {
    let fs = open(fresh(128 << 20));
    let full = create(&fs, fs.root(), "full", DIR);
    create(&fs, full, "file", FILE);
    fs.durability().sync().unwrap();
    let before = fs.statfs();
    for _ in 0..150_000 {
        fs.directories().rmdir(fs.root(), b"full").unwrap_err();
        fs.inodes().remove_xattr(full, b"user.none").unwrap_err();
    }
    let after = fs.statfs();
    assert_eq!(after, before, "chunks were made for nothing");
    create(&fs, full, "another", FILE);
    fs.close().unwrap();
}

/// A write finds after it has reserved space that its inode is gone, and releases the reservation.
#[test]
fn writes_beside_the_removal_of_their_file_keep_no_space() {
    let fs = open(fresh(256 << 20));
    fs.durability().sync().unwrap();
    let before = fs.statfs().blocks_available;
    let chunk = vec![1; 64 << 10];
    let mut failed = 0;
    for _ in 0..2000 {
        let file = create(&fs, fs.root(), "file", FILE);
        fs.references().forget(file, 1);
        std::thread::scope(|scope| {
            // The loop ends with the first write that finds no file.
            let writer = scope.spawn(|| while fs.files().write(file, WriteAt::Offset(0), &chunk, false).is_ok() {});
            std::thread::yield_now();
            fs.directories().unlink(fs.root(), b"file").unwrap();
            writer.join().unwrap();
        });
        failed += 1;
    }
    for _ in 0..3 {
        fs.durability().sync().unwrap();
    }
    let lost = before.saturating_sub(fs.statfs().blocks_available);
    assert!(lost < 100, "{lost} blocks are lost after {failed} failed writes");
}

#[test]
fn data_that_failed_to_reach_the_device_is_never_committed() {
    let device = fresh(256 << 20);
    let faulty = Arc::new(FaultyDevice::new(device.clone()));
    let fs = open(faulty.clone());
    let file = create(&fs, fs.root(), "file", FILE);
    fs.durability().sync().unwrap();
    // The first writeback fails; a later write of the same file is the first to get the error.
    faulty.fail(Operation::Write, 0, EIO, Lasting::Once);
    let chunk = vec![7; 1 << 20];
    let mut failed = false;
    for index in 0..40 {
        failed |= fs.files().write(file, WriteAt::Offset(index << 20), &chunk, false).is_err();
    }
    assert!(failed, "no write was reported");
    fs.durability().fsync(file).unwrap_err();
    fs.durability().sync().unwrap_err();
    drop(fs);
    let fs = open(device);
    let file = fs.directories().lookup(fs.root(), b"file").unwrap();
    assert_eq!(fs.inodes().attributes(file).unwrap().size, 0, "a commit took the data for written");
}

#[test]
fn what_grows_after_a_hole_was_punched_at_the_end_reads_as_zeroes() {
    let fs = open(fresh(128 << 20));
    let file = create(&fs, fs.root(), "file", FILE);
    fs.files().write(file, WriteAt::Offset(0), &[9; 12_000], false).unwrap();
    fs.durability().sync().unwrap();
    fs.files().punch_hole(file, 100, 4096 - 100).unwrap();
    fs.files().punch_hole(file, 9000, 3000).unwrap();
    let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    fs.inodes().set_attributes(file, &size(20_000)).unwrap();
    let mut expected = vec![9; 9000];
    expected[100..4096].fill(0);
    expected.resize(20_000, 0);
    assert!(fs.files().read(file, 0, 20_000).unwrap() == expected);
    fs.durability().sync().unwrap();
    assert!(fs.files().read(file, 0, 20_000).unwrap() == expected);
}

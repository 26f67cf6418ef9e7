//! A file shows the space that it takes, whatever is committed meanwhile.

use std::thread;

use crate::common::gated::open_gated;
use ubtrfs::{Filesystem, InodeId, NewInode, SetAttributes, WriteAt};

const SECTOR: u64 = 4096;

fn create(fs: &Filesystem, name: &str) -> InodeId {
    fs.directories().create(fs.root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap()
}

fn write(fs: &Filesystem, id: InodeId, sector: u64, count: u64) {
    fs.files().write(id, WriteAt::Offset(sector * SECTOR), &vec![7; (count * SECTOR) as usize], false).unwrap();
}

/// Returns the sectors that a file's attributes show.
fn sectors(fs: &Filesystem, id: InodeId) -> u64 {
    fs.inodes().attributes(id).unwrap().blocks * 512 / SECTOR
}

#[test]
fn data_of_a_commit_counts_though_more_is_written_meanwhile() {
    const ROUNDS: u64 = 5;
    let (device, fs) = open_gated(256 << 20);
    let file = create(&fs, "file");
    for round in 0..ROUNDS {
        // The written sectors are not adjacent, and the one from before is rewritten.
        write(&fs, file, round * 4, 1);
        thread::scope(|scope| {
            device.flushes.close();
            let commit = scope.spawn(|| fs.durability().sync().unwrap());
            device.flushes.until_reached();
            write(&fs, file, round * 4 + 2, 1);
            write(&fs, file, round * 4, 1);
            device.flushes.open();
            commit.join().unwrap();
        });
        assert_eq!(sectors(&fs, file), 2 * round + 2, "round {round}");
    }
    fs.durability().fsync(file).unwrap();
    assert_eq!(sectors(&fs, file), 2 * ROUNDS);
    fs.durability().sync().unwrap();
    assert_eq!(sectors(&fs, file), 2 * ROUNDS);
}

#[test]
fn data_truncated_before_writeback_is_not_counted() {
    let (device, fs) = open_gated(256 << 20);
    let (first, truncated) = (create(&fs, "first"), create(&fs, "truncated"));
    // This is as much as a commit submits before it comes to other files.
    write(&fs, first, 0, 256);
    write(&fs, truncated, 0, 8);
    thread::scope(|scope| {
        device.writes.close();
        let commit = scope.spawn(|| fs.durability().sync().unwrap());
        device.writes.until_reached();
        let size = Some(3 * SECTOR);
        fs.inodes().set_attributes(truncated, &SetAttributes { size, ..SetAttributes::default() }).unwrap();
        write(&fs, truncated, 10, 1);
        device.writes.open();
        commit.join().unwrap();
    });
    assert_eq!(sectors(&fs, truncated), 4);
    fs.durability().fsync(truncated).unwrap();
    assert_eq!(sectors(&fs, truncated), 4);
    fs.durability().sync().unwrap();
    assert_eq!(sectors(&fs, truncated), 4);
}

//! The extents of a file are listed with their addresses, and with whether they are shared as of
//! now.

use std::sync::Arc;

use crate::common::gated::open_gated;
use crate::common::pattern;
use ubtrfs::format::TreeId;
use ubtrfs::{Filesystem, FoundExtent, InodeId, NewInode, WriteAt};

const SECTOR: u64 = 4096;

fn create(fs: &Filesystem, name: &str) -> InodeId {
    fs.directories().create(fs.root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap()
}

fn write(fs: &Filesystem, id: InodeId, sector: u64, count: u64) {
    let data = pattern(sector, (count * SECTOR) as usize);
    fs.files().write(id, WriteAt::Offset(sector * SECTOR), &data, false).unwrap();
    fs.durability().fsync(id).unwrap();
}

fn extents(fs: &Filesystem, id: InodeId) -> Vec<FoundExtent> {
    fs.files().extents(id, 0, usize::MAX).unwrap()
}

/// Returns for each extent its offset and length in sectors, and whether it is shared.
fn shared(fs: &Filesystem, id: InodeId) -> Vec<(u64, u64, bool)> {
    extents(fs, id).iter().map(|extent| (extent.offset / SECTOR, extent.len / SECTOR, extent.is_shared)).collect()
}

fn open() -> Arc<Filesystem> {
    open_gated(256 << 20).1
}

#[test]
fn each_kind_of_extent_is_listed() {
    let fs = open();
    let file = create(&fs, "file");
    write(&fs, file, 2, 3);
    fs.files().allocate(file, 8 * SECTOR, 2 * SECTOR, true).unwrap();
    let found = extents(&fs, file);
    let (data, reserved) = (&found[0], &found[1]);
    assert_eq!(found.len(), 2);
    assert_eq!((data.offset, data.len, data.is_reserved), (2 * SECTOR, 3 * SECTOR, false));
    assert_eq!((reserved.offset, reserved.len, reserved.is_reserved), (8 * SECTOR, 2 * SECTOR, true));
    assert!(data.address.is_some() && data.address != reserved.address);
    assert_eq!(fs.files().extents(file, 0, 1).unwrap(), found[..1]);
    assert_eq!(fs.files().extents(file, data.offset + data.len, 9).unwrap(), found[1..]);

    let small = create(&fs, "small");
    fs.files().write(small, WriteAt::Offset(0), b"few", false).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(extents(&fs, small).iter().map(|extent| extent.address).collect::<Vec<_>>(), [None]);
    assert_eq!(extents(&fs, fs.root()), []);
}

#[test]
fn an_extent_is_shared_from_the_reflink_to_the_commit_that_ends_it() {
    let fs = open();
    let (file, copy) = (create(&fs, "file"), create(&fs, "copy"));
    write(&fs, file, 0, 8);
    // Both pieces belong to one extent, which no other file shares.
    write(&fs, file, 3, 1);
    assert_eq!(shared(&fs, file), [(0, 3, false), (3, 1, false), (4, 4, false)]);
    fs.durability().sync().unwrap();
    assert_eq!(shared(&fs, file), [(0, 3, false), (3, 1, false), (4, 4, false)]);
    fs.files().clone_range(file, 4 * SECTOR, copy, 0, SECTOR).unwrap();
    for _ in 0..2 {
        // Whether the whole extent is shared counts, not whether a part of it is: before and after
        // a commit.
        assert_eq!(shared(&fs, file), [(0, 3, true), (3, 1, false), (4, 4, true)]);
        assert_eq!(shared(&fs, copy), [(0, 1, true)]);
        fs.durability().sync().unwrap();
    }
    fs.files().punch_hole(copy, 0, SECTOR).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(shared(&fs, file), [(0, 3, false), (3, 1, false), (4, 4, false)]);
}

#[test]
fn a_snapshot_shares_what_was_there_when_it_was_made() {
    let fs = open();
    let file = create(&fs, "file");
    write(&fs, file, 0, 4);
    let snapshot = fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"snapshot", false).unwrap();
    fs.durability().sync().unwrap();
    write(&fs, file, 8, 1);
    fs.durability().sync().unwrap();
    assert_eq!(shared(&fs, file), [(0, 4, true), (8, 1, false)]);
    let old = fs.directories().lookup(InodeId::root_of(snapshot), b"file").unwrap();
    assert_eq!(shared(&fs, old), [(0, 4, true)]);
    fs.files().punch_hole(old, 0, 4 * SECTOR).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(shared(&fs, file), [(0, 4, false), (8, 1, false)]);
}

/// A reflink of many extents serves other operations between its parts.
#[test]
fn a_reflink_of_many_extents_is_done_in_parts_and_whole_in_the_end() {
    let fs = open();
    let (source, target) = (create(&fs, "source"), create(&fs, "target"));
    for number in 0..2000 {
        write(&fs, source, 2 * number, 1);
    }
    fs.durability().sync().unwrap();
    let length = fs.inodes().size(source).unwrap();
    let (mut done, mut parts) = (0, 0);
    while done < length {
        let more = fs.files().clone_some(source, done, target, done, length - done).unwrap();
        assert!(more > 0, "after {done} of {length} bytes");
        (done, parts) = (done + more, parts + 1);
    }
    assert!(parts > 1 && done == length, "{parts} parts of {done} bytes");
    let read = |id| fs.files().read(id, 0, length as usize).unwrap();
    assert!(read(source) == read(target));
}

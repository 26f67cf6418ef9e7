//! Preallocated space, data written there, and shared extents: power may be cut after each
//! operation.

use ubtrfs::{Compression, Recompression};
use ubtrfs_simulator::words::{
    allocate, append, at, clone, clone_range, defragment, directory, fdatasync, file, fsync, link, nodatacow, path,
    rename, reserve, unlink, write, zero,
};
use ubtrfs_simulator::{Operation, Stage, shrink};

/// Crash states of each sequence.
const STATES: usize = 60;

/// Asserts that no crash breaks a promise, after `committed` was committed and `operations` were
/// performed.
#[track_caller]
fn survive(committed: &[Operation], operations: &[Operation]) {
    let committed = [&[directory("A"), directory("B")], committed].concat();
    let stage = Stage::new(&committed).unwrap_or_else(|what| panic!("{what}"));
    if let Err(failure) = stage.run(operations, 1, STATES) {
        let shorter = shrink(operations, 100, &mut |some| stage.run(some, 1, STATES).is_err());
        let shorter = stage.run(&shorter, 1, STATES).err();
        panic!("{failure}\n\nshorter:\n{}", shorter.map_or(String::new(), |failure| failure.to_string()));
    }
}

/// Asserts it with `before` committed, and with everything in one transaction.
#[track_caller]
fn survive_either_way(before: &[Operation], operations: &[Operation]) {
    survive(before, operations);
    survive(&[], &[before, operations].concat());
}

fn truncate(text: &str, size: u64) -> Operation {
    Operation::Truncate { what: at(text), size }
}

fn punch(text: &str, offset: u64, len: u64) -> Operation {
    Operation::Punch { what: at(text), offset, len }
}

const FOO: &str = "A/foo";
const BAR: &str = "B/bar";

#[test]
fn data_in_reserved_space_is_there_after_fsync() {
    let reserved = [file(FOO), allocate(FOO, 0, 600_000)];
    for sync in [fsync(FOO), fdatasync(FOO)] {
        survive_either_way(&reserved, &[write(FOO, 0, 9000), sync.clone(), write(FOO, 8192, 4096), sync.clone()]);
        survive_either_way(
            &reserved,
            &[write(FOO, 300_000, 70_000), sync.clone(), write(FOO, 5000, 10), sync.clone(), write(FOO, 4096, 4096)],
        );
        survive_either_way(&reserved, &[write(FOO, 0, 4096), Operation::Sync, write(FOO, 0, 8192), sync]);
    }
}

#[test]
fn space_behind_the_end_is_filled_step_by_step() {
    let reserved = [file(FOO), append(FOO, 3000), reserve(FOO, 0, 300_000)];
    let step = [append(FOO, 5000), fsync(FOO)];
    survive_either_way(&reserved, &vec![step.clone(); 8].concat());
    survive_either_way(
        &reserved,
        &[&step[..], &[Operation::Sync], &step, &[rename(FOO, "B/foo"), fsync("B")]].concat(),
    );
    survive_either_way(&reserved, &[truncate(FOO, 100_000), fsync(FOO), append(FOO, 10), fsync(FOO)]);
    survive_either_way(&reserved, &[append(FOO, 70_000), fsync(FOO), truncate(FOO, 9000), fsync(FOO), append(FOO, 10)]);
    survive_either_way(&reserved, &[truncate(FOO, 3000), fsync(FOO), append(FOO, 9000), fsync(FOO)]);
    survive_either_way(&reserved, &[link(FOO, BAR), fsync("B"), append(FOO, 9000), fsync(BAR)]);
    survive_either_way(&reserved, &[rename(FOO, BAR), fsync("B"), append(BAR, 9000), fsync(BAR)]);
}

#[test]
fn holes_data_and_reserved_space_side_by_side() {
    let mixed = [file(FOO), write(FOO, 20_000, 30_000), allocate(FOO, 0, 80_000), punch(FOO, 30_000, 9000)];
    survive_either_way(&mixed, &[write(FOO, 1000, 90_000), fsync(FOO), punch(FOO, 10_000, 50_000), fsync(FOO)]);
    survive_either_way(&mixed, &[zero(FOO, 5000, 60_001), fsync(FOO), write(FOO, 0, 50_000), fsync(FOO)]);
    survive_either_way(&mixed, &[zero(FOO, 25_000, 100), write(FOO, 30_000, 10), fsync(FOO), zero(FOO, 0, 1 << 20)]);
    survive_either_way(&mixed, &[punch(FOO, 0, 1 << 20), allocate(FOO, 4096, 8192), append(FOO, 1), fsync(FOO)]);
    survive_either_way(
        &mixed,
        &[truncate(FOO, 0), allocate(FOO, 0, 9000), fsync(FOO), write(FOO, 0, 9000), fsync(FOO)],
    );
}

#[test]
fn small_files_leave_their_inode_when_space_is_reserved() {
    let small = [file(FOO), append(FOO, 300)];
    survive_either_way(&small, &[reserve(FOO, 0, 100), fsync(FOO), append(FOO, 10), fsync(FOO)]);
    survive_either_way(&small, &[allocate(FOO, 100, 9000), fsync(FOO), truncate(FOO, 10), fsync(FOO)]);
    survive_either_way(&small, &[zero(FOO, 10, 20), fsync(FOO), append(FOO, 10), fsync(FOO)]);
}

#[test]
fn extents_that_grow_hold_what_each_fsync_promised() {
    let step = |len| [append(FOO, len), fsync(FOO)];
    let steps = |number, len| vec![step(len); number].concat();
    for begun in [vec![file(FOO)], vec![file(FOO), append(FOO, 8192)], vec![file(FOO), nodatacow(FOO)]] {
        survive_either_way(&begun, &steps(6, 8192));
        // The checksums of 8 MiB take one item of the log: one item is logged again, and another
        // one begins.
        survive_either_way(&begun, &[&steps(1, 7 << 20)[..], &steps(3, 1 << 20)].concat());
        survive_either_way(&begun, &[&steps(3, 8192)[..], &[write(FOO, 4096, 8192)], &steps(2, 8192)].concat());
        survive_either_way(&begun, &[&steps(3, 8192)[..], &[truncate(FOO, 12_288)], &steps(2, 8192)].concat());
        survive_either_way(&begun, &[&steps(2, 8192)[..], &[punch(FOO, 0, 4096)], &steps(2, 8192)].concat());
        survive_either_way(
            &begun,
            &[&steps(2, 8192)[..], &[file(BAR), clone(FOO, BAR), fsync(BAR)], &steps(2, 8192), &[fsync(BAR)]].concat(),
        );
        // The log has another file that refers to the grown extent, but not the file by which it
        // grew (invariant 21).
        for (old, new) in [(8192, 8192), (64 << 10, 64 << 10)] {
            let grown = [&step(old)[..], &[append(FOO, new), file(BAR), clone(FOO, BAR), fsync(BAR)]].concat();
            survive_either_way(&begun, &grown);
            survive_either_way(&begun, &[&grown[..], &[append(FOO, 10), fsync(FOO)]].concat());
            survive_either_way(&begun, &[&grown[..], &[truncate(FOO, 4096), write(BAR, 0, 10), fsync(BAR)]].concat());
            let renamed = [&step(old)[..], &[append(FOO, new), file(BAR), clone(FOO, BAR), unlink(FOO), fsync(BAR)]];
            survive_either_way(&begun, &renamed.concat());
        }
        survive_either_way(&begun, &[&steps(2, 8192)[..], &[Operation::Sync], &steps(3, 8192)].concat());
        survive_either_way(&begun, &[&steps(2, 8192)[..], &[unlink(FOO), file(FOO)], &steps(2, 8192)].concat());
        survive_either_way(&begun, &[&steps(2, 8192)[..], &[rename(FOO, BAR), append(BAR, 8192), fsync(BAR)]].concat());
    }
}

#[test]
fn shared_ranges_are_there_after_fsync() {
    let source = [file(FOO), append(FOO, 100_000), file(BAR), append(BAR, 30_000)];
    survive_either_way(&source, &[clone(FOO, BAR), fsync(BAR), append(BAR, 10), fsync(BAR)]);
    survive_either_way(
        &source,
        &[clone(FOO, BAR), fsync(BAR), unlink(FOO), fsync("A"), write(BAR, 5000, 10), fsync(BAR)],
    );
    survive_either_way(&source, &[clone(FOO, BAR), write(FOO, 0, 50_000), fsync(FOO), fsync(BAR)]);
    survive_either_way(&source, &[write(FOO, 8192, 9000), clone_range(FOO, 4096, BAR, 20_480, 40_960), fsync(BAR)]);
    survive_either_way(
        &source,
        &[clone_range(FOO, 0, FOO, 102_400, 40_960), fsync(FOO), truncate(FOO, 50_000), fsync(FOO)],
    );
    survive_either_way(&source, &[clone(FOO, BAR), truncate(FOO, 0), fsync(FOO), clone(BAR, FOO), fsync(FOO)]);
    survive_either_way(&source, &[clone_range(FOO, 8192, BAR, 1 << 20, 8192), fsync(BAR), punch(BAR, 0, 2 << 20)]);
}

#[test]
fn what_shares_reserved_space_is_not_written_with_it() {
    let reserved = [file(FOO), allocate(FOO, 0, 200_000), write(FOO, 0, 50_000), file(BAR), append(BAR, 5)];
    survive_either_way(&reserved, &[clone(FOO, BAR), write(FOO, 40_000, 60_000), fsync(FOO), fsync(BAR)]);
    survive_either_way(&reserved, &[clone(FOO, BAR), fsync(BAR), write(BAR, 40_000, 60_000), fsync(BAR)]);
    survive_either_way(
        &reserved,
        &[write(FOO, 60_000, 9000), fsync(FOO), clone(FOO, BAR), unlink(FOO), fsync(BAR), append(BAR, 9), fsync(BAR)],
    );
}

#[test]
fn the_log_of_a_file_that_shares_an_extent_has_only_its_own_part() {
    let reserved = [file(FOO), allocate(FOO, 0, 64 << 10), file(BAR)];
    let part = [write(FOO, 8192, 16_384), clone_range(FOO, 8192, BAR, 0, 4096), fsync(BAR)];
    survive_either_way(&reserved, &part);
    survive_either_way(&reserved, &[&part[..], &[write(FOO, 32_768, 4096), fsync(FOO)]].concat());
    survive_either_way(&reserved, &[&part[..], &[unlink(BAR), write(FOO, 8192, 4096), fsync(FOO)]].concat());
}

#[test]
fn small_files_are_copied() {
    let small = [file(FOO), append(FOO, 300), file(BAR), append(BAR, 200)];
    survive_either_way(&small, &[clone(FOO, BAR), fsync(BAR), unlink(FOO), append(BAR, 9000), fsync(BAR)]);
    survive_either_way(&small, &[clone_range(FOO, 0, BAR, 8192, 300), fsync(BAR), append(FOO, 9000), clone(FOO, BAR)]);
}

#[test]
fn overwritten_data_is_there_after_fsync() {
    let old = [file(FOO), nodatacow(FOO), write(FOO, 0, 100_000)];
    for sync in [fsync(FOO), fdatasync(FOO)] {
        let over = [write(FOO, 5000, 30_000), sync.clone(), write(FOO, 20_000, 30_000)];
        survive_either_way(&old, &over);
        survive_either_way(&old, &[&over[..], &[truncate(FOO, 30_000), sync.clone(), append(FOO, 9000)]].concat());
        survive_either_way(
            &old,
            &[&over[..], &[punch(FOO, 8192, 40_960), sync.clone(), write(FOO, 0, 60_000)]].concat(),
        );
        survive_either_way(
            &old,
            &[&over[..], &[unlink(FOO), Operation::Sync, file(BAR), append(BAR, 90_000)]].concat(),
        );
        let copied = [file(BAR), nodatacow(BAR), clone(FOO, BAR)];
        let parted = [write(FOO, 4096, 20_000), sync.clone(), write(BAR, 50_000, 100), fsync(BAR)];
        survive_either_way(&old, &[&over[..], &copied, &parted].concat());
        survive_either_way(&[&old[..], &copied].concat(), &parted);
        // When the extent is not shared any more, it is overwritten in place again, but not before
        // a commit.
        let alone = [unlink(BAR), write(FOO, 0, 50_000), sync.clone(), Operation::Sync, write(FOO, 9000, 20_000), sync];
        survive_either_way(&[&old[..], &copied].concat(), &alone);
    }
}

/// A model that allowed only the old or the new file would demand too much. That both kinds of
/// pages occur shows that data is really overwritten in place.
#[test]
fn pages_of_two_versions_stand_side_by_side_where_they_are_written_in_place() {
    let stage = Stage::new(&[file("f"), nodatacow("f"), write("f", 0, 60_000)]).unwrap();
    let mut mixed = 0;
    let over = [write("f", 0, 40_960), fdatasync("f"), write("f", 8192, 40_960), fsync("f")];
    stage
        .run_with(&over, 1, 400, &mut |examined| {
            let id = examined.found.model.resolve(&path("f")).expect("a file that is committed");
            let found = &examined.found.model.node(id).body;
            let versions = &examined.judge.trace.versions;
            mixed += usize::from(versions.iter().all(|version| version.model.node(id).body != *found));
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(mixed > 0);
}

/// Returns operations by which parts of a file are written in other transactions, and shared with
/// another file.
fn fragmented(first: Operation) -> Vec<Operation> {
    let pieces = (0..4).flat_map(|number| [write(FOO, number * 16_384, 9000), Operation::Sync]);
    [file(FOO), first].into_iter().chain(pieces).chain([file(BAR), clone_range(FOO, 16_384, BAR, 0, 8192)]).collect()
}

#[test]
fn defragmented_files_hold_what_each_fsync_promised() {
    let zstd = Recompression::With { algorithm: Compression::Zstd, level: None };
    for how in [Recompression::Keep, zstd] {
        for first in [append(FOO, 70_000), nodatacow(FOO), allocate(FOO, 0, 70_000)] {
            let defragment = defragment(FOO, how);
            let begun = fragmented(first);
            survive_either_way(&begun, &[defragment.clone(), fsync(FOO), write(FOO, 5000, 9000), fsync(FOO)]);
            survive_either_way(&begun, &[write(FOO, 30_000, 50), fsync(FOO), defragment.clone(), fsync(FOO)]);
            survive_either_way(&begun, &[defragment.clone(), fsync(BAR), clone(FOO, BAR), fsync(BAR)]);
            survive_either_way(&begun, &[defragment.clone(), unlink(FOO), Operation::Sync, append(BAR, 9000)]);
            survive_either_way(&begun, &[append(FOO, 9000), fsync(FOO), defragment, truncate(FOO, 20_000), fsync(FOO)]);
        }
    }
}

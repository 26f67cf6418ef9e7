//! Files that share extents have what each fsync promised, whatever state the shared file was in,
//! and whichever of them is fsynced (invariant 3, invariant 4, invariant 21, invariant 22).

use std::sync::atomic::{AtomicUsize, Ordering};

use ubtrfs::testing::LogFault;
use ubtrfs_simulator::words::{
    append, at, clone, clone_range, directory, file, fsync, nodatacow, path, reserve, unlink, write,
};
use ubtrfs_simulator::{Operation, Stage, What, shrink};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;

const FOO: &str = "A/foo";
const BAR: &str = "B/bar";

fn truncate(text: &str, size: u64) -> Operation {
    Operation::Truncate { what: at(text), size }
}

fn punch(text: &str, offset: u64, len: u64) -> Operation {
    Operation::Punch { what: at(text), offset, len }
}

/// Returns operations on a file before it is shared.
fn states() -> Vec<Vec<Operation>> {
    let logged = [append(FOO, 65_536), fsync(FOO)];
    vec![
        vec![],
        vec![append(FOO, 300)],
        vec![append(FOO, 20_000)],
        vec![append(FOO, 20_000), Operation::Sync],
        logged.to_vec(),
        [&logged[..], &[append(FOO, 65_536)]].concat(),
        [&logged[..], &[append(FOO, 8192), fsync(FOO), append(FOO, 8192)]].concat(),
        [&logged[..], &[append(FOO, 8192), append(BAR, 8192)]].concat(),
        [&logged[..], &[write(FOO, 8192, 20_000)]].concat(),
        [&logged[..], &[truncate(FOO, 30_000)]].concat(),
        [&logged[..], &[punch(FOO, 8192, 8192), append(FOO, 4096)]].concat(),
        [&logged[..], &[Operation::Sync, append(FOO, 8192)]].concat(),
        vec![append(FOO, 4096), reserve(FOO, 4096, 100_000)],
        vec![reserve(FOO, 0, 100_000), append(FOO, 30_000), fsync(FOO), append(FOO, 30_000)],
        vec![nodatacow(FOO), nodatacow(BAR), write(FOO, 0, 60_000)],
        vec![nodatacow(FOO), nodatacow(BAR), write(FOO, 0, 60_000), fsync(FOO), write(FOO, 8192, 60_000)],
    ]
}

/// Returns ways of sharing between files.
fn shares() -> Vec<Vec<Operation>> {
    vec![
        vec![clone(FOO, BAR)],
        vec![clone_range(FOO, 0, BAR, 0, 8192)],
        vec![clone_range(FOO, 4096, BAR, 65_536, 1 << 20)],
        vec![clone_range(FOO, 0, FOO, 262_144, 65_536), clone(FOO, BAR)],
    ]
}

/// Returns operations after the files share extents.
fn afterwards() -> Vec<Vec<Operation>> {
    vec![
        vec![],
        vec![append(FOO, 8192)],
        vec![append(BAR, 8192)],
        vec![truncate(FOO, 4096), append(FOO, 8192)],
        vec![write(FOO, 0, 9000), write(BAR, 4096, 50)],
        vec![unlink(FOO)],
    ]
}

/// Returns the syncs right after the sharing, and those at the end.
fn syncs() -> Vec<[Vec<Operation>; 2]> {
    vec![
        [vec![], vec![fsync(BAR)]],
        [vec![fsync(BAR)], vec![fsync(FOO)]],
        [vec![fsync(FOO)], vec![fsync(BAR)]],
        [vec![fsync(BAR)], vec![fsync(BAR), fsync(FOO)]],
        [vec![Operation::Sync], vec![fsync(FOO)]],
    ]
}

/// Returns all sequences: a state, a way to share, syncs, operations, and syncs at the end.
fn sequences() -> Vec<Vec<Operation>> {
    let mut all = Vec::new();
    for state in states() {
        for share in shares() {
            for after in afterwards() {
                for [first, last] in syncs() {
                    // A file without a name can't be fsynced by its path.
                    let gone = after.contains(&unlink(FOO));
                    let last = last.iter().filter(|operation| !gone || **operation != fsync(FOO)).cloned();
                    all.push([state.clone(), share.clone(), first, after.clone(), last.collect()].concat());
                }
            }
        }
    }
    all
}

fn begun() -> Stage {
    Stage::new(&[directory("A"), directory("B"), file(FOO), file(BAR)]).unwrap()
}

#[test]
fn two_files_in_all_states_hold_what_each_fsync_promised() {
    /// A usual run takes one in so many sequences.
    const SAMPLE: usize = 9;
    let (step, budget) = if soaks() { (1, 60) } else { (SAMPLE, 10) };
    let stage = begun();
    let chosen: Vec<_> = sequences().into_iter().step_by(step).collect();
    let (next, states) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(operations) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match stage.run(operations, 1, budget) {
                        Ok(more) => drop(states.fetch_add(more, Ordering::Relaxed)),
                        Err(failure) => {
                            let shorter = shrink(operations, 100, &mut |some| stage.run(some, 1, budget).is_err());
                            let shorter = stage.run(&shorter, 1, budget).err();
                            panic!("{failure}\n\nshorter:\n{}", shorter.map_or(String::new(), |f| f.to_string()));
                        }
                    }
                }
            });
        }
    });
    eprintln!("{} crash states of {} sequences", states.into_inner(), chosen.len());
}

/// A file without names has no items in the log that could have an old length of the extent.
#[test]
fn a_file_by_which_an_extent_grew_may_lose_its_names_before_the_other_is_fsynced() {
    let open = Operation::Open { path: path(FOO) };
    let sync = Operation::Fsync { what: What::Handle(0), data_only: false };
    let grown = [append(FOO, 65_536), fsync(FOO), append(FOO, 65_536), clone(FOO, BAR)];
    for last in [vec![sync.clone(), fsync(BAR)], vec![fsync(BAR), sync.clone()], vec![fsync(BAR)]] {
        let operations = [&grown[..], &[open.clone(), unlink(FOO)], &last].concat();
        begun().run(&operations, 1, 60).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Returns a volume that the kernel made.
fn by_the_kernel(fixture: &str) -> Stage {
    let dir = scratch_dir();
    let image = Fixture::load(fixture).unpack(dir.path()).remove(0);
    Stage::found(std::fs::read(image).unwrap().into()).unwrap()
}

/// On volumes with snapshots, a write, growth or another share in one of them concerns extents of
/// others, which must not change.
#[test]
fn files_that_share_with_snapshots_hold_what_each_fsync_promised() {
    let stage = by_the_kernel("snapshots");
    let copied = |from: &str, to: &str| [file(to), clone(from, to), append(to, 65_536), fsync(to)];
    for (from, to) in [("base", "copy"), ("snap2/noise", "snap2/copy"), ("snap2/regular", "snap2/copy")] {
        let begun = copied(from, to);
        let ends: [&[Operation]; 4] = [
            &[append(to, 8192), clone_range(to, 0, from, 0, 8192), fsync(from)],
            &[write(from, 0, 9000), fsync(from), append(to, 65_536), clone(to, from), fsync(from)],
            &[reserve(from, 262_144, 65_536), append(from, 9000), fsync(from), unlink(to)],
            &[truncate(from, 4096), fsync(from), Operation::Sync, write(to, 0, 50), fsync(to)],
        ];
        for end in ends {
            let operations = [&begun[..], end].concat();
            stage.run(&operations, 1, 8).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

fn compressed(algorithm: &str) -> Stage {
    by_the_kernel(&format!("comp-{algorithm}"))
}

/// Returns sequences in which a file with compressed extents gets preallocated space behind its
/// end, is written there and is shared.
fn written_behind_compressed_extents(len: usize) -> Vec<Vec<Operation>> {
    let begun = [file("copy"), reserve("mixed", 262_144, 131_072), append("mixed", len), clone("mixed", "copy")];
    let orders = [["mixed", "copy"], ["copy", "mixed"]];
    orders.map(|order| [&begun[..], &order.map(fsync)].concat()).to_vec()
}

#[test]
fn data_in_reserved_space_behind_compressed_extents_keeps_its_checksums() {
    for algorithm in ["zstd", "zlib", "lzo"] {
        let stage = compressed(algorithm);
        for len in [9000, 70_000] {
            for operations in written_behind_compressed_extents(len) {
                stage.run(&operations, 1, 12).unwrap_or_else(|failure| panic!("{algorithm}: {failure}"));
            }
        }
    }
}

#[test]
fn compressed_extents_taken_for_longer_than_they_are_are_noticed() {
    let stage = compressed("zstd").with_options(|options| options.faults.log = Some(LogFault::MistakePackedLength));
    let noticed = |operations: &Vec<Operation>| stage.run(operations, 1, 12).is_err();
    let all: Vec<_> = [9000, 70_000].into_iter().flat_map(written_behind_compressed_extents).collect();
    assert!(all.iter().any(noticed));
}

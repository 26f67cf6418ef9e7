//! When the device fails, the engine reports it and turns read-only; the last commit is still there
//! (invariant 13).

use std::sync::{Arc, Mutex};

use ubtrfs::{Errno, Filesystem, NewInode, Options, WriteAt};
use ubtrfs_simulator::{History, Random, examine, make_volume};
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_volume::{Device, FaultyDevice, Lasting, OpenOptions, Operation, OverlayDevice, RecordingDevice, Volume};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Runs a history on a device that fails at some time. Returns whether the engine turned read-only.
fn one_fault(seed: u64, operation: Operation) -> bool {
    let mut random = Random::new(seed ^ 0xfa17);
    let mut history = History::new(seed);
    history.habits.remount = false;
    history.habits.privileges = false;
    history.faults = true;
    let most = match operation {
        Operation::Read => 400,
        Operation::Write => 80,
        Operation::Flush | Operation::Discard => 12,
    };
    let successes = random.below(most);
    let errno = random.one_of([EIO, ENOSPC]);
    let lasting = random.one_of([Lasting::Once, Lasting::Forever]);
    let used = Mutex::new(None);
    let wrap = |recording: Arc<RecordingDevice>| -> Arc<dyn Device> {
        let faulty = Arc::new(FaultyDevice::new(recording));
        faulty.fail(operation, successes, errno, lasting);
        *used.lock().unwrap() = Some(faulty.clone());
        faulty
    };
    let recorded = match history.run_on(50, &wrap) {
        Ok(recorded) => recorded,
        // The mount failed. That is right for a device that can't be read, and for one that can't
        // be flushed, since a mount begins with a barrier (invariant 22).
        Err(failure) if operation != Operation::Write && failure.operations.is_empty() => return false,
        Err(failure) => panic!("{operation:?} {successes} {errno} {lasting:?}: {failure}"),
    };
    let what = format!("seed {seed}: {operation:?} fails after {successes} with {errno}, {lasting:?}");
    if operation != Operation::Read && recorded.tolerated > 0 {
        assert!(recorded.aborted.is_some(), "{what}: the engine continues");
    }
    let last = recorded.recording.len();
    examine(&recorded.judge, &recorded.recording.current(), last)
        .unwrap_or_else(|error| panic!("{what}: {error}\n{:?}", recorded.operations));
    recorded.survey(20).unwrap_or_else(|failure| panic!("{what}: {failure}"));
    recorded.aborted.is_some()
}

fn many_faults(operation: Operation) -> usize {
    let usual = if soaks() { 300 } else { 16 };
    seeds(usual).into_iter().filter(|seed| one_fault(*seed, operation)).count()
}

#[test]
fn failing_writes_lose_nothing_durable() {
    let gave_up = many_faults(Operation::Write);
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || gave_up > 5, "{gave_up}");
}

#[test]
fn failing_barriers_lose_nothing_durable() {
    let gave_up = many_faults(Operation::Flush);
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || gave_up > 5, "{gave_up}");
}

#[test]
fn failing_reads_lose_nothing_durable() {
    many_faults(Operation::Read);
}

#[test]
fn after_a_failed_commit_nothing_changes_and_everything_reads() {
    for operation in [Operation::Write, Operation::Flush] {
        let base = make_volume(&History::new(3).plan.options);
        let device = Arc::new(FaultyDevice::new(Arc::new(OverlayDevice::new(base))));
        let volume = Volume::open(vec![device.clone()], OpenOptions::default()).unwrap();
        let options = Options { background_commits: false, ..Options::default() };
        let fs = Filesystem::open(Arc::new(volume), options).unwrap();
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let file = fs.directories().create(fs.root(), b"file", &new).unwrap();
        fs.files().write(file, WriteAt::Offset(0), &[1; 10_000], false).unwrap();
        fs.durability().sync().unwrap();
        fs.files().write(file, WriteAt::Offset(5000), &[2; 10_000], false).unwrap();
        device.fail(operation, 0, EIO, Lasting::Once);
        assert_eq!(fs.durability().fsync(file).unwrap_err().errno(), Errno::IO);
        assert!(fs.abort_reason().is_some() && fs.is_read_only());
        let errno = |error: ubtrfs::Error| error.errno();
        assert_eq!(fs.directories().create(fs.root(), b"other", &new).map_err(errno), Err(Errno::ROFS));
        assert_eq!(fs.files().write(file, WriteAt::End, b"more", false).map_err(errno), Err(Errno::ROFS));
        assert_eq!(fs.directories().unlink(fs.root(), b"file").map_err(errno), Err(Errno::ROFS));
        assert!(
            fs.durability().fsync(file).is_err() && fs.durability().sync().is_err(),
            "a later fsync must not say that all is well"
        );
        let content = fs.files().read(file, 0, 20_000).unwrap();
        assert!(content.len() == 15_000 && content[..5000] == [1; 5000] && content[5000..] == [2; 10_000]);
        assert!(fs.close().is_err());
    }
}

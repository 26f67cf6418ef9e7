//! A script of mounts, a replay of a log, some hundred operations, also on subvolumes, commits,
//! fsyncs, frees of unlinked files, and unmounts. Each of its reads, writes and barriers fails
//! once, alone or with all after it. The caller gets the error, durable data is there afterwards,
//! nothing panics and nothing hangs.
//!
//! With `UBTRFS_SOAK` each request is tried; without it one in several, and other ones with another
//! seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ubtrfs::{FreeingLimits, Options};
use ubtrfs_format::TreeId;
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_simulator::{
    Generator, Habits, Judge, Model, Operation, Path, Random, Session, Tolerance, What, examine, make_volume,
};
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_volume::{Device, FaultyDevice, Lasting, Operation as Kind, OverlayDevice, RecordingDevice};

const EIO: i32 = 5;
/// Operations of each of the two mounts.
const LENGTH: usize = 150;

/// A volume with a log and with an unlinked inode, and its content.
struct Begin {
    device: OverlayDevice,
    model: Model,
    judge: Judge,
}

fn options() -> Options {
    Options {
        background_commits: false,
        // Mounts this subvolume, whatever the default is.
        subvolume_id: Some(TreeId::FS.0),
        // With so little memory, nodes are read again and again.
        memory: 128 << 10,
        freeing: FreeingLimits { at_once: 8192, per_transaction: 3, at_the_end: 3, queue: 4 },
        ..Options::default()
    }
}

fn habits() -> Habits {
    Habits {
        remount: false,
        privileges: false,
        large: false,
        huge: false,
        eager: false,
        fsyncs: true,
        shares: false,
        subvolumes: true,
        devices: false,
    }
}

/// Random operations that fit the present model; the script of a seed is always the same.
struct Script {
    generator: Generator,
    left: usize,
}

impl Script {
    fn new(seed: u64, left: usize) -> Self {
        Self { generator: Generator::new(seed, habits()), left }
    }

    fn next(&mut self, session: &Session) -> Option<Operation> {
        self.left = self.left.checked_sub(1)?;
        let operation = self.generator.next(&session.worker.model, session.worker.handles.len());
        Some(if self.left.is_multiple_of(40) { Operation::Sync } else { operation })
    }
}

fn begin(seed: u64) -> Begin {
    let mut plan = MkfsOptions::new(46 << 20);
    plan.metadata_profile = Some(Profile::Single);
    plan.node_size = Some(4096);
    let recording = Arc::new(RecordingDevice::new(make_volume(&plan)));
    let judge = Judge::new(options(), &recording).unwrap();
    let device = recording.clone();
    let mut session = Session::open(recording.clone(), device, options(), None, Tolerance::default()).unwrap();
    let mut script = Script::new(seed, LENGTH);
    while let Some(operation) = script.next(&session) {
        session.perform(&operation).unwrap();
    }
    session.perform(&Operation::Sync).unwrap();
    let file = Path(b"logged".to_vec());
    let (mode, owner) = (0o100_644, (0, 0));
    let new = Operation::Create {
        path: file.clone(),
        mode,
        owner,
        rdev: 0,
        target: Path::default(),
        xattr: false,
        open: false,
    };
    let (what, at) = (What::At(file), ubtrfs::WriteAt::End);
    let write = Operation::Write { what: what.clone(), at, len: 30_000, fill: 7, kill_privileges: false };
    for operation in [new, write, Operation::Fsync { what, data_only: false }] {
        session.perform(&operation).unwrap();
    }
    let device = recording.current();
    let found = examine(&Judge { trace: session.trace, ..judge.clone() }, &device, recording.len()).unwrap();
    assert!(found.has_log);
    let mut model = found.model;
    model.drop_orphans();
    Begin { device, model, judge }
}

/// Runs two mounts. Fails the test if anything is not as promised. Returns whether the fault was
/// reported to any caller. Most faults end the mount, but an operation that only moves data just
/// ends with the error.
fn run(begin: &Begin, seed: u64, (kind, successes, lasting): (Kind, u64, Lasting)) -> (Arc<FaultyDevice>, bool) {
    let recording = Arc::new(RecordingDevice::on(&begin.device));
    let faulty = Arc::new(FaultyDevice::new(recording.clone()));
    faulty.fail(kind, successes, EIO, lasting);
    let tolerance = Tolerance { no_space: false, faults: true };
    let mut model = begin.model.clone();
    let mut is_reported = false;
    for mount in 0..2 {
        let on_what = faulty.clone();
        let opened = Session::open(recording.clone(), on_what, options(), Some(model.clone()), tolerance);
        let mut session = match opened {
            Ok(session) => session,
            Err(error) => {
                let causes = ["Input/output error", "os error 5", "cannot be read"];
                assert!(causes.iter().any(|cause| error.contains(cause)), "not reported why: {error}");
                // No step was made, so the next mount shows everything as before.
                faulty.heal();
                shows(&recording, model);
                return (faulty, true);
            }
        };
        let mut script = Script::new(seed ^ (mount + 1) << 8, LENGTH);
        while let Some(operation) = script.next(&session) {
            session.perform(&operation).unwrap_or_else(|what| panic!("{what}\n{:?}", session.operations));
            if session.is_aborted() {
                break;
            }
        }
        let closed = if session.is_aborted() { None } else { Some(session.worker.fs.close()) };
        let reason = session.worker.fs.abort_reason();
        if closed.is_none_or(|closed| closed.is_err()) || reason.is_some() {
            assert!(reason.is_some_and(|reason| !reason.is_empty()), "turned read-only without a reason");
            faulty.heal();
            let judge = judge_of(begin, &mut session);
            let last = recording.len();
            examine(&judge, &recording.current(), last)
                .unwrap_or_else(|what| panic!("{what}\n{:?}", session.operations));
            return (faulty, true);
        }
        is_reported |= session.worker.tolerated > 0;
        model = session.worker.model.clone();
        model.drop_orphans();
    }
    faulty.heal();
    shows(&recording, model);
    (faulty, is_reported)
}

/// Returns the judge of a session that may have ended with a commit of everything.
fn judge_of(begin: &Begin, session: &mut Session) -> Judge {
    let mut trace = session.trace.clone();
    let version = trace.now();
    let newest = trace.commits.iter().map(|commit| commit.generation).max().unwrap_or_default();
    for generation in newest + 1..=newest + 3 {
        let (began, returned) = (session.recording.len(), None);
        trace.commits.push(ubtrfs_simulator::Commit { generation, began, returned, versions: version..version + 1 });
    }
    Judge { trace, unknown_orphans: true, ..begin.judge.clone() }
}

/// Asserts that the volume, mounted again, shows the model.
fn shows(recording: &RecordingDevice, model: Model) {
    let fork = Arc::new(RecordingDevice::on(&recording.current()));
    let device: Arc<dyn Device> = fork.clone();
    let mut session = Session::open(fork, device, options(), Some(model), Tolerance::default()).unwrap();
    session.perform(&Operation::Look).unwrap();
    session.worker.fs.close().unwrap();
}

/// Ends the test program when one run takes too long, until this is dropped: a thread that hangs
/// can't be joined.
struct Watch {
    /// Nothing is ever sent; dropping the sender ends the watch.
    _end: mpsc::Sender<()>,
}

impl Watch {
    fn over(runs: Arc<AtomicU64>) -> Self {
        const MAX_RUN: Duration = Duration::from_secs(300);
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let mut last = u64::MAX;
            while ended.recv_timeout(MAX_RUN) == Err(mpsc::RecvTimeoutError::Timeout) {
                let now = runs.load(Ordering::Relaxed);
                if now == last {
                    eprintln!("run {now} hangs");
                    std::process::abort();
                }
                last = now;
            }
        });
        Self { _end: end }
    }
}

fn every(kind: Kind, usual_step: u64) {
    let runs = Arc::new(AtomicU64::new(0));
    let _watch = Watch::over(runs.clone());
    for seed in seeds(if soaks() { 2 } else { 1 }) {
        let begin = begin(seed);
        // Runs the script with a fault that never occurs: with reported faults, it leaves some
        // steps out.
        let (counter, reported) = run(&begin, seed, (kind, u64::MAX, Lasting::Once));
        assert!(!reported, "the script fails by itself");
        let total = counter.asked(kind);
        let step = if soaks() { 1 } else { usual_step };
        let first = Random::new(seed).below(step);
        let (mut noticed, mut tried) = (0, 0);
        for successes in (first..total).step_by(step as usize) {
            for lasting in [Lasting::Once, Lasting::Forever] {
                runs.fetch_add(1, Ordering::Relaxed);
                let fault = (kind, successes, lasting);
                let result = catch_unwind(AssertUnwindSafe(|| run(&begin, seed, fault).1));
                let what = format!("seed {seed}: {kind:?} {successes} of {total} fails, {lasting:?}");
                let reported = result.unwrap_or_else(|_| panic!("{what}"));
                assert!(reported || kind == Kind::Read, "{what}, and nobody noticed");
                noticed += u64::from(reported);
                tried += 1;
            }
        }
        eprintln!("seed {seed}: {tried} faults of {kind:?}, of {total} each; {noticed} were noticed");
        assert!(tried > 4, "{total}");
    }
}

#[test]
fn every_read_fails() {
    every(Kind::Read, 25);
}

#[test]
fn every_write_fails() {
    every(Kind::Write, 25);
}

#[test]
fn every_flush_fails() {
    every(Kind::Flush, 6);
}

//! An fsync or a commit that fails says at which step, on which device, at which address, and why.
//! All callers that waited for it get the same error, and the statistics show it.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use ubtrfs::scheduling::FsyncLeader;
use ubtrfs::testing::{CommitHook, CommitStep, Faults};
use ubtrfs::{Errno, Error, Filesystem, InodeId, NewInode, Options, Step, WriteAt, XattrMode};
use ubtrfs_format::{Ino, Physical, SUPERBLOCK_COPIES, TreeId};
use ubtrfs_volume::{DeviceFault, FaultyDevice, Lasting, OpenOptions, Operation, Volume};

use crate::common::memory::new_volume;
use crate::common::pattern;

const EIO: i32 = 5;
const LEN: usize = 64 << 10;

fn mount(device: &Arc<FaultyDevice>, options: Options) -> Arc<Filesystem> {
    let volume = Volume::open(vec![device.clone()], OpenOptions { read_only: false }).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..options }).unwrap()
}

fn mounted() -> (Arc<FaultyDevice>, Arc<Filesystem>) {
    let device = Arc::new(FaultyDevice::new(Arc::new(new_volume(128 << 20))));
    let fs = mount(&device, Options::default());
    (device, fs)
}

/// Makes a file with data that is not durable.
fn file(fs: &Filesystem, name: &[u8]) -> InodeId {
    let id = fs.directories().create(fs.root(), name, &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    fs.files().write(id, WriteAt::Offset(0), &pattern(1, LEN), false).unwrap();
    id
}

/// Starts an fsync. Returns its leader, if this thread has to lead it, and the channel of its
/// result.
fn start_fsync(fs: &Filesystem, id: InodeId) -> (Option<FsyncLeader>, Receiver<ubtrfs::Result<()>>) {
    let (sender, received) = channel();
    (fs.durability().join_fsync(id, false, Box::new(move |result| sender.send(result).unwrap())), received)
}

/// Returns the steps and the device fault of an error, after checks that hold for every error: the
/// causes end with the device's own error, and the line about the error has all of them.
#[track_caller]
fn causes(error: &Error) -> (Vec<Step>, DeviceFault) {
    let line = error.chain();
    let (steps, fault) = (error.steps().0, error.device_fault().unwrap_or_else(|| panic!("no device: {line}")));
    assert!(!line.contains('\n') && !line.contains("os error"), "{line}");
    for step in &steps {
        assert!(line.contains(&step.to_string()), "{step}: {line}");
    }
    assert!(line.contains("device 1: ") && line.ends_with(": Input/output error"), "{line}");
    for address in [fault.physical.map(|at| at.0), fault.logical.map(|at| at.0)].into_iter().flatten() {
        assert!(line.contains(&address.to_string()), "{address}: {line}");
    }
    let mut last: &dyn std::error::Error = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let cause = last.downcast_ref::<io::Error>().unwrap_or_else(|| panic!("ends at {last:?}: {line}"));
    assert_eq!(cause.raw_os_error(), Some(EIO), "{line}");
    (steps, fault)
}

/// Checks the address of a fault against its step: data and tree blocks have a logical address,
/// which maps to that physical one; a superblock has the address of its copy, and a flush has none.
#[track_caller]
fn is_there(fs: &Filesystem, step: Step, fault: DeviceFault) {
    assert_eq!(fault.devid.0, 1);
    match step {
        Step::WriteSuperblock { copy } => {
            let own = DeviceFault { physical: Some(SUPERBLOCK_COPIES[copy]), logical: None, len: 4096, ..fault };
            assert_eq!(fault, own);
        }
        Step::FlushBeforeSuperblock | Step::FlushAfterSuperblock => {
            assert_eq!((fault.physical, fault.logical), (None, None), "{step}");
        }
        _ => {
            let (at, physical) = (fault.logical.unwrap(), fault.physical.unwrap());
            let chunks = fs.volume().chunk_map().all();
            let (start, chunk) = chunks.iter().rev().find(|(start, _)| *start <= at).unwrap();
            let places = chunk.stripes.iter().map(|stripe| Physical(stripe.offset.0 + at.0 - start.0));
            assert!(places.collect::<Vec<_>>().contains(&physical), "{step}: {at} is not at {physical}");
            assert!(fault.len > 0 && at.0 < start.0 + chunk.length);
        }
    }
}

/// Checks that the newest error of the statistics is this one, and that it has made the file system
/// read-only.
#[track_caller]
fn is_shown(fs: &Filesystem, error: &Error) {
    let stats = fs.stats();
    let newest = stats.last_errors.last().unwrap();
    let (steps, cause) = error.steps();
    assert_eq!((&newest.steps, &newest.cause, newest.device), (&steps, &cause.chain(), error.device_fault()));
    assert_eq!((stats.errors, newest.count), (1, 1), "{:?}", stats.last_errors);
    let reason = stats.aborted.unwrap();
    assert!(error.chain().ends_with(&reason), "{reason:?} is not why {:?}", error.chain());
}

/// Checks that nothing can be changed any more, and that each attempt gets the reason.
#[track_caller]
fn is_refused_with_the_cause(fs: &Filesystem, error: &Error) {
    let refused = fs.directories().create(fs.root(), b"later", &NewInode::default()).unwrap_err();
    assert!(matches!(refused, Error::Aborted(_)), "{refused:?}");
    assert_eq!((refused.errno(), causes(&refused)), (Errno::ROFS, causes(error)));
    let later = fs.durability().sync().unwrap_err();
    assert_eq!((later.errno(), causes(&later)), (Errno::ROFS, causes(error)));
}

/// Lets each request of a kind fail in turn, until `fails` finds none that failed. Returns the
/// steps at which they failed.
fn each(operation: Operation, fails: impl Fn(Operation, u64) -> Option<Vec<Step>>) -> Vec<Vec<Step>> {
    let mut seen: Vec<_> = (0..60).map_while(|successes| fails(operation, successes)).collect();
    assert!(!seen.is_empty() && seen.len() < 60, "{operation:?}: {seen:?}");
    seen.dedup();
    seen
}

fn data_of(id: InodeId) -> Step {
    Step::WriteData { subvolume: id.subvolume, ino: id.ino }
}

/// The first inode of a new volume.
const FIRST: InodeId = InodeId { subvolume: TreeId::FS, ino: Ino(257) };

#[test]
fn an_fsync_says_at_which_step_and_where_it_failed() {
    let fails = |operation, successes| {
        let (device, fs) = mounted();
        let id = file(&fs, b"file");
        let transaction = fs.generation().next();
        device.fail(operation, successes, EIO, Lasting::Forever);
        let error = fs.durability().fsync(id).err()?;
        assert_eq!((error.errno(), id), (Errno::IO, FIRST));
        let (steps, fault) = causes(&error);
        is_there(&fs, *steps.last().unwrap(), fault);
        is_shown(&fs, &error);
        is_refused_with_the_cause(&fs, &error);
        assert!(steps.len() == 1 || steps[0] == Step::Log(transaction), "{steps:?}");
        Some(steps.into_iter().filter(|step| !matches!(step, Step::Log(_))).collect())
    };
    let writes = each(Operation::Write, fails);
    let expected = [data_of(FIRST), Step::WriteLogTreeBlocks, Step::WriteSuperblock { copy: 0 }];
    assert_eq!(writes, expected.map(|step| vec![step]));
    let flushes = each(Operation::Flush, fails);
    assert_eq!(flushes, [Step::FlushBeforeSuperblock, Step::FlushAfterSuperblock].map(|step| vec![step]));
}

#[test]
fn a_commit_says_at_which_step_and_where_it_failed() {
    let fails = |operation, successes| {
        let (device, fs) = mounted();
        file(&fs, b"file");
        let transaction = fs.generation().next();
        device.fail(operation, successes, EIO, Lasting::Forever);
        let error = fs.durability().sync().err()?;
        assert_eq!(error.errno(), Errno::IO);
        let (steps, fault) = causes(&error);
        is_there(&fs, *steps.last().unwrap(), fault);
        is_shown(&fs, &error);
        is_refused_with_the_cause(&fs, &error);
        assert!(steps.len() == 1 || steps[0] == Step::Commit(transaction), "{steps:?}");
        Some(steps.into_iter().filter(|step| !matches!(step, Step::Commit(_))).collect())
    };
    let copies = [0, 1].map(|copy| Step::WriteSuperblock { copy });
    let expected = [data_of(FIRST), Step::WriteTreeBlocks, copies[0], copies[1]];
    assert_eq!(each(Operation::Write, fails), expected.map(|step| vec![step]));
    let flushes = each(Operation::Flush, fails);
    assert_eq!(flushes, [Step::FlushBeforeSuperblock, Step::FlushAfterSuperblock].map(|step| vec![step]));
}

/// Two fsyncs wait for a commit: the commit writes the log of one of them along with itself, and
/// the other waits for the commit alone. The failure goes to the caller of the commit and to both
/// fsyncs.
#[test]
fn a_commit_tells_the_fsyncs_that_wait_for_it_why_it_failed() {
    let mut seen = Vec::new();
    for operation in [Operation::Write, Operation::Flush] {
        seen.extend(each(operation, |operation, successes| {
            let device = Arc::new(FaultyDevice::new(Arc::new(new_volume(128 << 20))));
            let fs_of_hook: Arc<OnceLock<Weak<Filesystem>>> = Arc::default();
            let waiting = Arc::new(Mutex::new(Vec::new()));
            let hook = CommitHook(Arc::new({
                let (device, fs, waiting) = (device.clone(), fs_of_hook.clone(), waiting.clone());
                move |step| {
                    let Some(fs) = fs.get().and_then(Weak::upgrade) else { return };
                    if step == CommitStep::Merged && waiting.lock().is_empty() {
                        let early = fs.directories().lookup(fs.root(), b"early").unwrap();
                        let late = file(&fs, b"late");
                        device.fail(operation, successes, EIO, Lasting::Once);
                        waiting.lock().extend([start_fsync(&fs, late), start_fsync(&fs, early)]);
                    }
                }
            }));
            let fs = mount(
                &device,
                Options { faults: Faults { hook: Some(hook), ..Faults::default() }, ..Options::default() },
            );
            fs_of_hook.set(Arc::downgrade(&fs)).unwrap();
            file(&fs, b"early");
            let transaction = fs.generation().next();
            let error = fs.durability().sync().err()?;
            let (steps, fault) = causes(&error);
            is_there(&fs, *steps.last().unwrap(), fault);
            is_shown(&fs, &error);
            let waiting = std::mem::take(&mut *waiting.lock());
            for (leader, received) in waiting {
                if let Some(leader) = leader {
                    fs.durability().lead_fsync(leader);
                }
                let received = received.recv().unwrap().unwrap_err();
                assert_eq!(
                    (received.errno(), causes(&received)),
                    (Errno::IO, (steps.clone(), fault)),
                    "{}",
                    received.chain()
                );
            }
            assert!(steps.len() == 1 || steps[0] == Step::Commit(transaction), "{steps:?}");
            Some(steps.last().copied().into_iter().collect())
        }));
    }
    let seen: Vec<Step> = seen.into_iter().flatten().collect();
    for step in [Step::WriteTreeBlocks, Step::WriteLogTreeBlocks, Step::FlushBeforeSuperblock] {
        assert!(seen.contains(&step), "{step}: {seen:?}");
    }
    assert!(seen.iter().any(|step| matches!(step, Step::WriteData { ino: Ino(258), .. })), "{seen:?}");
}

#[test]
fn all_fsyncs_of_a_group_get_the_same_failure() {
    let (device, fs) = mounted();
    let (writes, written) = start_fsync(&fs, file(&fs, b"before"));
    // While the leader has the log, the other fsyncs form a group.
    let waiting: Vec<_> = [&b"one"[..], b"two", b"three"].map(|name| start_fsync(&fs, file(&fs, name))).into();
    assert_eq!(waiting.iter().filter(|(leader, _)| leader.is_some()).count(), 1, "one group");
    fs.durability().lead_fsync(writes.unwrap());
    written.recv().unwrap().unwrap();
    device.fail(Operation::Flush, 0, EIO, Lasting::Once);
    let mut errors = Vec::new();
    for (leader, received) in waiting {
        if let Some(leader) = leader {
            fs.durability().lead_fsync(leader);
        }
        errors.push(received.recv().unwrap().unwrap_err());
    }
    let causes: Vec<_> = errors.iter().map(causes).collect();
    assert_eq!(causes[0].0.last(), Some(&Step::FlushBeforeSuperblock));
    assert!(causes.iter().all(|other| *other == causes[0]), "{causes:?}");
    let shared = errors.iter().map(|error| match error {
        Error::NotDurable(cause) => cause,
        other => panic!("{other:?}"),
    });
    assert!(shared.clone().all(|cause| Arc::ptr_eq(cause, shared.clone().next().unwrap())));
    assert_eq!(fs.stats().errors, 1);
}

/// The messages of events at the level of errors.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Events {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        *about.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn the_trace_has_the_whole_chain_in_one_line() {
    let (device, fs) = mounted();
    file(&fs, b"file");
    device.fail(Operation::Flush, 1, EIO, Lasting::Once);
    let events = Events::default();
    let transaction = fs.generation().next();
    tracing::subscriber::with_default(events.clone(), || fs.durability().sync().unwrap_err());
    let chain = format!(
        "commit of transaction {transaction}: flush after the superblock: device 1: flushing: Input/output error"
    );
    assert_eq!(*events.0.lock(), [format!("turning read-only: {chain}")]);
}

/// If a block that the log needs can't be read, the fsync becomes a commit. That is no error, and
/// the statistics show what happened.
#[test]
fn an_fsync_that_becomes_a_commit_since_something_is_unreadable_leaves_the_cause() {
    const NAMES: u8 = 40;
    let (device, fs) = mounted();
    let id = file(&fs, b"file");
    for number in 0..NAMES {
        let name = [b"user.".as_slice(), &[b'a' + number / 10, b'a' + number % 10]].concat();
        fs.inodes().set_xattr(id, &name, &pattern(number.into(), 2000), XattrMode::Set).unwrap();
    }
    fs.durability().sync().unwrap();
    drop(fs);
    let fs = mount(&device, Options::default());
    let id = fs.directories().lookup(fs.root(), b"file").unwrap();
    // This brings the nodes into memory that the writeback needs, but not those of the xattrs.
    fs.files().read(id, 0, LEN).unwrap();
    fs.files().write(id, WriteAt::Offset(0), &pattern(2, LEN), false).unwrap();
    // Lets both copies of a tree block fail, or the only one.
    device.fail(Operation::Read, 0, EIO, Lasting::Once);
    device.fail(Operation::Read, 1, EIO, Lasting::Once);
    let transaction = fs.generation().next();
    fs.durability().fsync(id).unwrap();
    let stats = fs.stats();
    let fallen: Vec<_> = stats.log_fallbacks.iter().filter(|(_, count)| *count > 0).collect();
    assert!(matches!(fallen[..], [(ubtrfs::Reason::Unreadable, 1)]), "{fallen:?}");
    let [noted] = &stats.last_errors[..] else { panic!("{:?}", stats.last_errors) };
    assert_eq!(noted.steps, [Step::Log(transaction), Step::GatherLog]);
    let fault = noted.device.unwrap();
    is_there(&fs, Step::GatherLog, fault);
    assert!(noted.cause.contains("cannot be read: device 1: reading "), "{}", noted.cause);
    assert_eq!(stats.aborted, None);
}

//! The devices of this crate keep what the trait promises (`conformance`).

use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::{SUPERBLOCK_COPIES, SUPERBLOCK_MAGIC, SUPERBLOCK_MAGIC_AT};
use ubtrfs_testkit::nbd_server::NbdServer;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::absent_device::AbsentDevice;
use crate::conformance::{Subject, assert_conforms};
use crate::protected_device::ProtectedDevice;
use crate::{
    DeferredSuperblocks, Device, DevicePart, Engine, Exclusive, Fate, FaultyDevice, FileDevice, Lasting, MemoryDevice,
    NbdDevice, OpenMode, Operation, OverlayDevice, ReadAheadDevice, RecordingDevice, StagedDevice, ThrottledDevice,
    WindowDevice, WriterTiming,
};

const SIZE: usize = 5 << 20;
/// An address behind the superblock and the writer's mark.
const BEHIND_SUPERBLOCK: u64 = 128 << 10;

/// A device on a recorded one whose requests can be made to fail.
struct Stack {
    recording: Arc<RecordingDevice>,
    faulty: Arc<FaultyDevice>,
}

impl Stack {
    fn new() -> Self {
        let recording = Arc::new(RecordingDevice::new(vec![3; SIZE].into()));
        Self { faulty: Arc::new(FaultyDevice::new(recording.clone())), recording }
    }

    fn subject(&self, device: impl Device + 'static) -> Subject {
        let (recording, failing, healing) = (self.recording.clone(), self.faulty.clone(), self.faulty.clone());
        Subject::new(Arc::new(device))
            .after_crash(move || Arc::new(recording.crash_state(recording.len(), &mut |_| Fate::Lost)))
            .fail(move || {
                for operation in [Operation::Read, Operation::Write, Operation::Flush, Operation::Discard] {
                    failing.fail(operation, 0, libc::EIO, Lasting::Forever);
                }
            })
            .heal(move || healing.heal())
            .behind(self.recording.clone())
    }
}

#[test]
fn devices_in_memory_conform() {
    for seed in 0..2 {
        assert_conforms(Subject::new(Arc::new(MemoryDevice::new(SIZE))).seed(seed));
        assert_conforms(Subject::new(Arc::new(MemoryDevice::from_bytes(vec![1; SIZE + 100]))).seed(seed));
        assert_conforms(Subject::new(Arc::new(OverlayDevice::new(vec![1; SIZE / 2 + 100].into()))).seed(seed));
        assert_conforms(Subject::new(Arc::new(OverlayDevice::zeroed(SIZE as u64))).seed(seed));
        let base = Arc::new(MemoryDevice::from_bytes(vec![1; SIZE + 100]));
        assert_conforms(Subject::new(Arc::new(StagedDevice::new(base))).seed(seed));
    }
}

#[test]
fn recording_and_faulty_devices_conform() {
    let recording = Arc::new(RecordingDevice::new(vec![3; SIZE].into()));
    let recorded = recording.clone();
    let left = move || Arc::new(recorded.crash_state(recorded.len(), &mut |_| Fate::Lost)) as Arc<dyn Device>;
    assert_conforms(Subject::new(recording).after_crash(left));
    let stack = Stack::new();
    assert_conforms(stack.subject(FaultyDevice::new(stack.faulty.clone())));
}

#[test]
fn devices_over_others_conform() {
    let stack = Stack::new();
    assert_conforms(stack.subject(ThrottledDevice::new(stack.faulty.clone(), 4 << 30)));
    let stack = Stack::new();
    assert_conforms(stack.subject(ReadAheadDevice::new(stack.faulty.clone(), 0)));
    let stack = Stack::new();
    assert_conforms(stack.subject(DeferredSuperblocks::new(stack.faulty.clone())).from(BEHIND_SUPERBLOCK));
    let stack = Stack::new();
    let whole = stack.recording.clone();
    let behind = Arc::new(WindowDevice::new(whole.clone(), 1 << 20, None).unwrap());
    let left = move || {
        let left = whole.crash_state(whole.len(), &mut |_| Fate::Lost);
        Arc::new(WindowDevice::new(Arc::new(left), 1 << 20, None).unwrap()) as Arc<dyn Device>
    };
    let window = WindowDevice::new(stack.faulty.clone(), 1 << 20, Some(3 << 20)).unwrap();
    assert_conforms(stack.subject(window).after_crash(left).behind(behind));
}

#[test]
fn protected_devices_conform() {
    let timing = WriterTiming {
        renewal: Duration::from_millis(5),
        silence: Duration::from_millis(20),
        lease: Duration::ZERO,
        settling: Duration::from_millis(1),
    };
    let mut bytes = vec![0; SIZE];
    bytes[SUPERBLOCK_COPIES[0].0 as usize + SUPERBLOCK_MAGIC_AT..][..8].copy_from_slice(&SUPERBLOCK_MAGIC);
    let recording = Arc::new(RecordingDevice::new(bytes.into()));
    let stack = Stack { faulty: Arc::new(FaultyDevice::new(recording.clone())), recording };
    let protected = ProtectedDevice::new(stack.faulty.clone(), 0, timing, None).unwrap();
    assert!(stack.recording.counters().written_bytes > 0, "there is a mark");
    assert_conforms(stack.subject(protected).from(BEHIND_SUPERBLOCK));
    // A device without a superblock gets no mark.
    let stack = Stack::new();
    let protected = ProtectedDevice::new(stack.faulty.clone(), 0, timing, None).unwrap();
    assert_conforms(stack.subject(protected));
}

#[test]
fn devices_that_are_away_conform() {
    assert_conforms(Subject::new(Arc::new(AbsentDevice::new(SIZE as u64))).away());
}

#[test]
fn files_conform() {
    let dir = scratch_dir();
    for (seed, engine) in [Engine::Auto, Engine::Threads].into_iter().enumerate() {
        let path = dir.path().join(format!("{engine:?}"));
        std::fs::File::create(&path).unwrap().set_len(SIZE as u64 + 100).unwrap();
        let device = FileDevice::open_with_engine(&path, OpenMode::ReadWrite, Exclusive::Yes, engine).unwrap();
        let resized = path.clone();
        let set_size = move |size| {
            std::fs::File::options().write(true).open(&resized).unwrap().set_len(size).unwrap();
        };
        assert_conforms(Subject::new(Arc::new(device)).set_size(set_size).seed(seed as u64));
        let device = FileDevice::open(&path, OpenMode::ReadOnly, Exclusive::Yes).unwrap();
        assert_conforms(Subject::new(Arc::new(device)));
    }
}

#[test]
fn exports_of_servers_conform() {
    require!(Need::Tool("nbdkit"));
    let dir = scratch_dir();
    let server = NbdServer::nbdkit(&dir.path().join("socket"), &["memory", "8M"]);
    let open = |mode| NbdDevice::open(&server.uri(""), mode, DevicePart::WHOLE, None).unwrap();
    assert_conforms(Subject::new(Arc::new(open(OpenMode::ReadWrite))));
    assert_conforms(Subject::new(Arc::new(open(OpenMode::ReadOnly))));
}

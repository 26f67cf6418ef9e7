use std::time::Duration;

use super::*;
use crate::conformance::{Subject, assert_conforms};
use crate::error::WriteError;
use crate::memory_device::MemoryDevice;
use ubtrfs_threads::Rank;

const SUPERBLOCK: usize = SUPERBLOCK_COPIES[0].0 as usize;
const PLACE: usize = SUPERBLOCK + SUPERBLOCK_SIZE;
/// For tests without another writer at the same time.
const NO_RIVAL: Duration = Duration::from_millis(50);
/// With this timing the mark is read before each write.
const QUICK: Timing = Timing {
    renewal: Duration::from_millis(10),
    silence: Duration::from_millis(200),
    lease: Duration::ZERO,
    settling: NO_RIVAL,
};
/// With this timing the mark is not renewed during a test.
const SLOW: Timing = Timing {
    renewal: Duration::from_secs(3600),
    silence: Duration::from_millis(200),
    lease: Duration::ZERO,
    settling: NO_RIVAL,
};

/// Returns a device with as much of a volume as marks need.
fn volume() -> Arc<MemoryDevice> {
    let mut bytes = vec![0; 1 << 20];
    bytes[SUPERBLOCK + SUPERBLOCK_MAGIC_AT..][..8].copy_from_slice(&SUPERBLOCK_MAGIC);
    Arc::new(MemoryDevice::from_bytes(bytes))
}

fn mark(device: &MemoryDevice) -> Option<WriterMark> {
    WriterMark::parse(&device.to_bytes()[PLACE..PLACE + MARK_SIZE])
}

fn put(device: &MemoryDevice, at: usize, data: &[u8]) -> Result<(), WriteError> {
    write(device, at, data)
}

fn write(device: &dyn Device, at: usize, data: &[u8]) -> Result<(), WriteError> {
    let data = SharedBuffer::from(Buffer::from(data));
    device.submit(vec![DeviceWrite { at: Physical(at as u64), data }]).wait()
}

#[test]
fn a_writer_marks_a_volume_and_takes_the_mark_away() {
    let device = volume();
    let before = device.to_bytes();
    let protected = ProtectedDevice::new(device.clone(), 0, SLOW, None).unwrap();
    assert_eq!(mark(&device).unwrap().process.pid, std::process::id());
    // All of the first MiB is written and discarded; the mark stays.
    write(&protected, 0, &vec![7; 1 << 20]).unwrap();
    protected.discard(Physical(0), 1 << 20).unwrap();
    assert!(mark(&device).is_some());
    let mut expected = vec![0; 1 << 20];
    expected[PLACE..PLACE + MARK_SIZE].copy_from_slice(&device.to_bytes()[PLACE..PLACE + MARK_SIZE]);
    assert!(device.to_bytes() == expected);
    put(&device, 0, &before[..PLACE]).unwrap();
    drop(protected);
    assert!(device.to_bytes() == before);
}

#[test]
fn a_second_writer_is_refused_as_long_as_the_first_one_lives() {
    let device = volume();
    let first = ProtectedDevice::new(device.clone(), 0, QUICK, None).unwrap();
    let refused = ProtectedDevice::new(device.clone(), 0, QUICK, None);
    assert!(
        matches!(&refused, Err(Refusal::Held(who)) if who.contains(&std::process::id().to_string())),
        "{refused:?}"
    );
    write(&first, 0, &[1; 4096]).unwrap();
    drop(first);
    drop(ProtectedDevice::new(device, 0, QUICK, None).unwrap());
}

/// A device that is added to a mounted volume has no superblock yet when it is opened.
#[test]
fn a_device_that_becomes_a_volumes_is_marked_when_it_has_been_wiped() {
    let device = Arc::new(MemoryDevice::from_bytes(vec![7; 16 << 20]));
    let protected = ProtectedDevice::new(device.clone(), 0, SLOW, None).unwrap();
    assert_eq!(mark(&device), None, "something else is there");
    crate::membership::wipe(&protected).unwrap();
    let superblock = volume().to_bytes()[..PLACE].to_vec();
    write(&protected, 0, &superblock).unwrap();
    assert_eq!(mark(&device).unwrap().process.pid, std::process::id());
    let refused = ProtectedDevice::new(device.clone(), 0, QUICK, None);
    assert!(matches!(refused, Err(Refusal::Held(_))), "{refused:?}");
    drop(protected);
    assert_eq!(mark(&device), None);
    drop(ProtectedDevice::new(device, 0, QUICK, None).unwrap());
}

/// A volume may be used as soon as it is unmounted, though its server takes a while to end.
#[test]
fn a_device_that_is_released_is_another_writers_at_once() {
    let device = volume();
    let first = ProtectedDevice::new(device.clone(), 0, SLOW, None).unwrap();
    first.release();
    let second = ProtectedDevice::new(device.clone(), 0, SLOW, None).unwrap();
    let marked = mark(&device);
    drop(first);
    assert!(marked.is_some() && mark(&device) == marked, "that of the second one");
    write(&second, 0, &[1; 4096]).unwrap();
}

#[test]
fn a_writer_that_can_not_be_seen_is_watched_until_it_is_silent() {
    let device = volume();
    let mut left = WriterMark::elsewhere();
    put(&device, PLACE, &left.to_bytes()).unwrap();
    let protected = ProtectedDevice::new(device.clone(), 0, SLOW, None).unwrap();
    assert_ne!(mark(&device).unwrap().writer, left.writer);
    drop(protected);
    // The other writer lives.
    put(&device, PLACE, &left.to_bytes()).unwrap();
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            ProtectedDevice::new(device.clone(), 0, Timing { silence: Duration::from_secs(60), ..QUICK }, None)
        });
        while !refused.is_finished() {
            left.sequence += 1;
            put(&device, PLACE, &left.to_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(refused.join().unwrap(), Err(Refusal::Held(who)) if who.contains("elsewhere")));
    });
    assert_eq!(mark(&device), Some(left), "it was left alone");
}

/// Of invariant 12.
#[test]
fn nothing_is_written_to_a_volume_that_another_writer_has_taken_over() {
    for taken in [WriterMark::elsewhere().to_bytes(), [0; MARK_SIZE]] {
        let device = volume();
        let protected = ProtectedDevice::new(device.clone(), 0, SLOW, None).unwrap();
        write(&protected, 0, &[1; 4096]).unwrap();
        put(&device, PLACE, &taken).unwrap();
        let before = device.to_bytes();
        let error = write(&protected, 0, &[2; 4096]).unwrap_err();
        assert!(error.source.to_string().contains("taken the volume over"), "{error:?}");
        assert!(protected.discard(Physical(0), 4096).is_err());
        drop(protected);
        assert!(device.to_bytes() == before, "invariant 12: nothing of it was written over");
    }
}

#[test]
fn a_mark_is_renewed_and_another_one_is_noticed_then() {
    let device = volume();
    let protected =
        ProtectedDevice::new(device.clone(), 0, Timing { lease: Duration::from_secs(3600), ..QUICK }, None).unwrap();
    let first = mark(&device).unwrap();
    while mark(&device).unwrap().sequence < first.sequence + 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    put(&device, PLACE, &WriterMark::elsewhere().to_bytes()).unwrap();
    while protected.shared.writer.lost().is_none() {
        // A renewal that was in flight may have been written later. Then the other writer writes
        // its mark again.
        put(&device, PLACE, &WriterMark::elsewhere().to_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(write(&protected, 0, &[2; 4096]).is_err());
}

#[test]
fn what_is_no_volume_or_has_a_boot_loader_there_is_not_marked() {
    let other = volume();
    put(&other, PLACE, &[7; MARK_SIZE]).unwrap();
    for device in [other, Arc::new(MemoryDevice::new(1 << 20)), Arc::new(MemoryDevice::new(SUPERBLOCK + 4096))] {
        let before = device.to_bytes();
        let protected = ProtectedDevice::new(device.clone(), 0, QUICK, None).unwrap();
        write(&protected, 0, &[0; 4096]).unwrap();
        drop(protected);
        assert!(device.to_bytes() == before);
    }
}

/// A device whose reads wait as long as somebody has the lock.
#[derive(Debug)]
struct LateReads(Arc<MemoryDevice>, Arc<Mutex<()>>);

impl Device for LateReads {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        let _turn = self.1.lock();
        self.0.read_at(at, buf)
    }
    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.0.submit(writes)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.0.discard(at, len)
    }
    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

#[test]
fn who_submits_does_not_wait_for_a_device_that_does_not_show_the_mark() {
    let (device, gate) = (volume(), Arc::new(Mutex::new(Rank::TestGate, ())));
    let protected = ProtectedDevice::new(Arc::new(LateReads(device.clone(), gate.clone())), 0, SLOW, None).unwrap();
    write(&protected, 0, &[1; 4096]).unwrap();
    let closed = gate.lock();
    let data = SharedBuffer::from(Buffer::from(&[2; 4096][..]));
    let ticket = protected.submit(vec![DeviceWrite { at: Physical(0), data }]);
    assert!(!ticket.is_done() && device.to_bytes()[0] == 1, "nothing is written before the mark is seen");
    drop(closed);
    ticket.wait().unwrap();
    assert_eq!(device.to_bytes()[0], 2);
}

/// A slow server may not yet have carried out what the other writer sent.
#[test]
fn a_writer_that_is_silent_on_a_slow_device_is_watched_for_longer() {
    let device = volume();
    put(&device, PLACE, &WriterMark::elsewhere().to_bytes()).unwrap();
    let gate = Arc::new(Mutex::new(Rank::TestGate, ()));
    let slow = Arc::new(LateReads(device.clone(), gate.clone()));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each look takes about as long as this.
            while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                let closed = gate.lock();
                std::thread::sleep(Duration::from_millis(100));
                drop(closed);
                std::thread::yield_now();
            }
        });
        let begun = std::time::Instant::now();
        let protected = ProtectedDevice::new(slow, 0, SLOW, None);
        let took = begun.elapsed();
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(took > SLOW.silence * 3, "{took:?}");
        drop(protected);
    });
}

/// A writer without a lease starts like a new one.
#[test]
fn a_mark_of_ours_with_another_number_may_be_over_that_of_another_writer() {
    let device = volume();
    let timing = Timing { lease: Duration::from_millis(100), silence: Duration::from_secs(4), ..SLOW };
    let protected = ProtectedDevice::new(device.clone(), 0, timing, None).unwrap();
    for is_late in [false, true] {
        std::thread::sleep(timing.lease);
        let found = mark(&device).unwrap();
        if is_late {
            // That renewal was in flight, and it is not known what it has overwritten.
            put(&device, PLACE, &WriterMark { sequence: found.sequence + 100, ..found }.to_bytes()).unwrap();
        }
        let begun = std::time::Instant::now();
        write(&protected, 0, &[1; 4096]).unwrap();
        assert!(!is_late || begun.elapsed() >= timing.silence / 2, "others have the time to notice");
    }
}

/// Of invariant 12.
#[test]
fn of_writers_that_come_at_the_same_time_one_writes() {
    let timing = Timing {
        renewal: Duration::from_millis(400),
        silence: Duration::from_secs(60),
        lease: Duration::from_millis(800),
        settling: Duration::from_millis(100),
    };
    for round in 0..5 {
        let device = volume();
        let start = std::sync::Barrier::new(4);
        let writers: Vec<bool> = std::thread::scope(|scope| {
            let one = || {
                start.wait();
                let protected = ProtectedDevice::new(device.clone(), 0, timing, None);
                let written = protected.as_ref().is_ok_and(|protected| write(protected, 0, &[1; 4096]).is_ok());
                // Writers that have opened the device see the last one's mark.
                start.wait();
                written
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(writers.iter().filter(|written| **written).count() <= 1, "round {round}: {writers:?}");
    }
}

#[test]
fn a_device_with_late_reads_conforms() {
    let gate = Arc::new(Mutex::new(Rank::TestGate, ()));
    assert_conforms(Subject::new(Arc::new(LateReads(Arc::new(MemoryDevice::new(2 << 20)), gate))));
}

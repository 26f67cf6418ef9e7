//! A device that fails a copy of an extent which is being moved is not current before it has the
//! copy (invariant 34), though no commit refers to the copy yet.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{Faults, FaultyDevice, Lasting, Operation, ResilverFault};
use ubtrfs::{Filesystem, Options};
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{DeviceId, Logical, Physical};
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, OpenOptions, OverlayDevice, Volume};

use crate::common::volumes::{alone, assert_clean, assert_holds, volume, write};

const EIO: i32 = 5;
const LEN: usize = 1 << 20;
/// How long a copy waits for the operation beside it, which may have to wait for the copy.
const BESIDE: Duration = Duration::from_secs(1);

/// A device that fails the first write of data, and calls `beside` before the second one.
struct Meddling {
    inner: FaultyDevice,
    /// Writes of data since it was armed; very many before that.
    writes: AtomicUsize,
    beside: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Meddling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Device for Meddling {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if writes.iter().any(|write| write.data.len() > 64 << 10) {
            match self.writes.fetch_add(1, Ordering::SeqCst) {
                0 => self.inner.fail(Operation::Write, 0, EIO, Lasting::Once),
                1 => {
                    let beside = self.beside.lock().take();
                    if let Some(beside) = beside {
                        beside();
                    }
                }
                _ => {}
            }
        }
        self.inner.submit(writes)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.inner.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

fn first_group(fs: &Filesystem) -> Logical {
    let mut groups = fs.volume().chunk_map().all().into_iter();
    groups.find(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::DATA)).unwrap().0
}

/// Returns the devices of a mirror, of which the second fails a copy and is brought up to the first
/// before a commit has all copies.
fn brought_up_beside_copies(faults: Faults) -> Vec<Arc<OverlayDevice>> {
    let devices: Vec<_> = volume(2, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new).collect();
    let meddling = Arc::new(Meddling {
        inner: FaultyDevice::new(devices[1].clone()),
        writes: AtomicUsize::new(1000),
        beside: Mutex::default(),
    });
    let volume = Volume::open(vec![devices[0].clone(), meddling.clone()], OpenOptions::default()).unwrap();
    let options = Options { background_commits: false, faults, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).unwrap();
    for number in 0..4 {
        write(&fs, &format!("file {number}"), number, LEN).unwrap();
        fs.durability().sync().unwrap();
    }
    let (ended, has_ended) = channel();
    let other = Arc::clone(&fs);
    *meddling.beside.lock() = Some(Box::new(move || {
        assert_eq!(other.volume().devices().lagging(), [DeviceId(2)]);
        std::thread::spawn(move || {
            other.durability().sync().unwrap();
            let caught_up = other.scrubber().catch_up(&mut |_| true);
            drop(other);
            let _ = ended.send(caught_up);
        });
        std::thread::sleep(BESIDE);
    }));
    meddling.writes.store(0, Ordering::SeqCst);
    assert!(fs.relocator().empty_block_group(first_group(&fs), &|| true).unwrap());
    has_ended.recv().unwrap().unwrap();
    fs.scrubber().catch_up(&mut |_| true).unwrap();
    assert_eq!(fs.volume().devices().lagging(), []);
    fs.close().unwrap();
    devices
}

#[test]
fn a_device_that_fails_a_copy_is_brought_up_when_a_commit_has_it() {
    let devices = brought_up_beside_copies(Faults::default());
    let shared: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as _).collect();
    assert_clean(&shared, "in the end");
    let fs = alone(&devices[1]);
    (0..4).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, LEN));
}

/// The fault that this prevents is found where it is put back.
#[test]
fn a_device_that_is_current_before_a_commit_has_the_copy_is_noticed() {
    let devices =
        brought_up_beside_copies(Faults { resilver: Some(ResilverFault::OverlookCopies), ..Faults::default() });
    let shared: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as _).collect();
    let report = ubtrfs_check::check(&shared, &ubtrfs_check::Options::default()).unwrap();
    assert!(!report.is_clean(), "the fault is not found");
}

#[test]
fn a_device_that_does_not_meddle_yet_conforms() {
    let inner = FaultyDevice::new(Arc::new(OverlayDevice::zeroed(2 << 20)));
    // There are very many, so that none is the first one.
    let device = Meddling { inner, writes: AtomicUsize::new(1 << 40), beside: Mutex::default() };
    assert_conforms(Subject::new(Arc::new(device)));
}

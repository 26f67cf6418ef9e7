//! A device that fails at random, in one way at a time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use ubtrfs::testing::{FaultyDevice, Lasting, Operation, OverlayDevice};
use ubtrfs_format::Physical;
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, Rng};

const EIO: i32 = 5;
/// Of so many requests to a flaky device, one fails on average.
const ONE_OF: u64 = 40;
/// After so many requests, a glitching device goes away or comes back.
const GLITCH: u64 = 60;

/// The health of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Some requests fail.
    Flaky,
    /// All requests fail for a while, and then none fails for a while.
    Glitching,
    /// Some reads return other bytes.
    Lying,
    /// All requests fail.
    Dead,
}

#[derive(Debug)]
pub struct FailingDevice {
    pub inner: Arc<OverlayDevice>,
    faulty: FaultyDevice,
    state: Mutex<(Health, Rng)>,
    /// Requests since it began to glitch.
    requests: AtomicU64,
}

impl FailingDevice {
    /// Makes a device that is well.
    pub fn new(inner: OverlayDevice, seed: u64) -> Arc<Self> {
        let inner = Arc::new(inner);
        let faulty = FaultyDevice::new(inner.clone());
        Arc::new(Self { inner, faulty, state: Mutex::new((Health::Well, Rng::new(seed))), requests: AtomicU64::new(0) })
    }

    pub fn health(&self) -> Health {
        self.state.lock().0
    }

    pub fn become_so(&self, health: Health) {
        let mut state = self.state.lock();
        state.0 = health;
        self.faulty.heal();
        self.requests.store(0, Ordering::Relaxed);
        if health == Health::Dead {
            for operation in [Operation::Read, Operation::Write, Operation::Flush, Operation::Discard] {
                self.faulty.fail(operation, 0, EIO, Lasting::Forever);
            }
        }
    }

    /// Decides which of the next `requests` requests of a kind fail.
    fn draw(&self, operation: Operation, requests: usize) {
        let (health, random) = &mut *self.state.lock();
        if *health == Health::Glitching {
            let before = self.requests.fetch_add(requests as u64, Ordering::Relaxed);
            let is_gone = |request: &u64| ((before + request) / GLITCH).is_multiple_of(2);
            for after in (0..requests as u64).filter(is_gone) {
                self.faulty.fail(operation, after, EIO, Lasting::Once);
            }
        }
        if *health != Health::Flaky {
            return;
        }
        for after in (0..requests as u64).filter(|_| random.below(ONE_OF) == 0) {
            self.faulty.fail(operation, after, EIO, Lasting::Once);
        }
    }

    /// Returns the offset of the byte of a read that is made wrong, if one is.
    fn lie(&self, len: usize) -> Option<usize> {
        let (health, random) = &mut *self.state.lock();
        (*health == Health::Lying && random.below(ONE_OF) == 0).then(|| random.below(len as u64) as usize)
    }
}

impl Device for FailingDevice {
    fn size(&self) -> u64 {
        self.faulty.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.draw(Operation::Read, 1);
        self.faulty.read_at(at, buf)?;
        if let Some(place) = self.lie(buf.len()) {
            buf[place] ^= 0x55;
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.draw(Operation::Write, writes.len());
        self.faulty.submit(writes)
    }

    fn flush(&self) -> io::Result<()> {
        self.draw(Operation::Flush, 1);
        self.faulty.flush()
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.draw(Operation::Discard, 1);
        self.faulty.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.faulty.counters()
    }
}

#[test]
fn failing_devices_conform() {
    let device = FailingDevice::new(OverlayDevice::zeroed(2 << 20), 1);
    let (failing, healing, behind) = (device.clone(), device.clone(), device.inner.clone());
    let subject = Subject::new(device).fail(move || failing.become_so(Health::Dead));
    assert_conforms(subject.heal(move || healing.become_so(Health::Well)).behind(behind));
}

//! Devices that lose power together: after so many writes to any of them, no write reaches any of
//! them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use ubtrfs::testing::OverlayDevice;
use ubtrfs_format::Physical;
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, WriteError, check_writes};

const EIO: i32 = 5;

/// The power supply of several devices, which counts their writes.
#[derive(Debug)]
pub struct Power {
    writes: AtomicU64,
    end: AtomicU64,
}

impl Power {
    /// Returns a supply that never ends.
    pub fn endless() -> Arc<Self> {
        Arc::new(Self { writes: AtomicU64::new(0), end: AtomicU64::new(u64::MAX) })
    }

    /// Lets the supply end after so many more writes.
    pub fn end_after(&self, writes: u64) {
        self.end.store(self.writes() + writes, Ordering::SeqCst);
    }

    /// Returns the number of writes so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Returns whether the supply has ended.
    pub fn has_ended(&self) -> bool {
        self.writes() > self.end.load(Ordering::SeqCst)
    }

    fn takes_one_more(&self) -> bool {
        self.writes.fetch_add(1, Ordering::SeqCst) < self.end.load(Ordering::SeqCst)
    }
}

/// A device with a write cache.
#[derive(Debug)]
pub struct PoweredDevice {
    power: Arc<Power>,
    /// The device with all that was written.
    seen: OverlayDevice,
    /// The device with all that was flushed.
    durable: OverlayDevice,
    unflushed: Mutex<Vec<DeviceWrite>>,
}

impl PoweredDevice {
    /// Makes a device with the content of `start`.
    pub fn new(power: &Arc<Power>, start: &OverlayDevice) -> Arc<Self> {
        let (seen, durable) = (start.fork(), start.fork());
        Arc::new(Self { power: Arc::clone(power), seen, durable, unflushed: Mutex::default() })
    }

    /// Returns what the device has when the power is back, with or without the content of its
    /// cache.
    pub fn after_crash(&self, keeps_cache: bool) -> Arc<OverlayDevice> {
        Arc::new(if keeps_cache { self.seen.fork() } else { self.durable.fork() })
    }

    /// Returns what the device has when the power is back, with those writes of its cache for which
    /// `keeps` returns true.
    pub fn after_cut(&self, mut keeps: impl FnMut() -> bool) -> OverlayDevice {
        let left = self.durable.fork();
        let kept = self.unflushed.lock().iter().filter(|_| keeps()).cloned().collect();
        left.submit(kept).wait().expect("a device in memory");
        left
    }
}

impl Device for PoweredDevice {
    fn size(&self) -> u64 {
        self.seen.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.seen.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size()) {
            return DeviceTicket::done(Err(error));
        }
        let mut done = Ok(());
        for write in writes {
            let (at, len) = (write.at, write.data.len());
            let is_lost = !self.power.takes_one_more();
            if is_lost {
                done = Err(WriteError { at, len, source: io::Error::from_raw_os_error(EIO) });
                continue;
            }
            self.unflushed.lock().push(write.clone());
            done = done.and(self.seen.submit(vec![write]).wait());
        }
        DeviceTicket::done(done)
    }

    fn flush(&self) -> io::Result<()> {
        if self.power.has_ended() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let writes = std::mem::take(&mut *self.unflushed.lock());
        self.durable.submit(writes).wait().map_err(Into::into)
    }

    fn discard(&self, _at: Physical, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn counters(&self) -> DeviceCounters {
        self.seen.counters()
    }
}

#[test]
fn powered_devices_conform() {
    let power = Power::endless();
    let device = PoweredDevice::new(&power, &OverlayDevice::zeroed(2 << 20));
    let left = device.clone();
    let subject = Subject::new(device).after_crash(move || left.after_crash(false));
    assert_conforms(subject.fail(move || power.end_after(0)));
}

//! A device whose requests can be blocked, to test events during a commit that are otherwise rare.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::memory::new_volume;
use parking_lot::{Condvar, Mutex};
use ubtrfs::{Filesystem, Options};
use ubtrfs_format::Physical;
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, MemoryDevice, OpenOptions, Volume};

/// A gate, which blocks requests while it is closed.
#[derive(Debug, Default)]
pub struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    /// Blocks all requests from now on.
    pub fn close(&self) {
        *self.closed.lock() = true;
    }

    /// Lets all requests continue.
    pub fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while *closed {
            self.opened.wait(&mut closed);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until the gate blocks a thread.
    pub fn until_reached(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

/// A device whose writes and flushes can be blocked.
#[derive(Debug)]
pub struct Gated {
    inner: MemoryDevice,
    pub writes: Gate,
    pub flushes: Gate,
    /// How often writes were submitted.
    pub submissions: AtomicUsize,
}

impl Device for Gated {
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
        self.writes.pass();
        self.submissions.fetch_add(1, Ordering::SeqCst);
        self.inner.submit(writes)
    }
    fn flush(&self) -> io::Result<()> {
        self.flushes.pass();
        self.inner.flush()
    }
    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.inner.discard(at, len)
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// Makes a new volume of `size` bytes on such a device, and opens it.
pub fn open_gated(size: u64) -> (Arc<Gated>, Arc<Filesystem>) {
    let (writes, flushes) = (Gate::default(), Gate::default());
    let device = Arc::new(Gated { inner: new_volume(size), writes, flushes, submissions: AtomicUsize::new(0) });
    let volume = Volume::open(vec![device.clone()], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    (device, Filesystem::open(Arc::new(volume), options).unwrap())
}

#[test]
fn gated_devices_conform() {
    let inner = MemoryDevice::new(2 << 20);
    let (writes, flushes) = (Gate::default(), Gate::default());
    let device = Gated { inner, writes, flushes, submissions: AtomicUsize::new(0) };
    assert_conforms(Subject::new(Arc::new(device)));
}

//! A device of limited bandwidth, for measurements that don't depend on the disk of a machine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::Physical;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Mutex, Rank};

use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites};
use crate::error::WriteError;

/// A device over another one that reads, and writes, at most this many bytes per second. A barrier
/// takes no time, since the writes that it makes durable have completed and have had their time.
#[derive(Debug)]
pub struct ThrottledDevice {
    inner: Arc<dyn Device>,
    reads: Line,
    writes: Line,
}

/// A queue of transfers.
#[derive(Debug)]
struct Line {
    bytes_per_second: u64,
    free_from: Mutex<Instant>,
}

impl Line {
    /// Returns when a transfer ends that begins now or after those before it.
    fn end_of(&self, bytes: usize) -> Instant {
        let time = Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.bytes_per_second);
        let mut free_from = self.free_from.lock();
        *free_from = (*free_from).max(Instant::now()) + time;
        *free_from
    }
}

fn sleep_until(end: Instant) {
    ubtrfs_threads::thread::sleep(end.saturating_duration_since(Instant::now()));
}

impl ThrottledDevice {
    /// A device that does what `inner` does, with this many bytes per second in each direction.
    pub fn new(inner: Arc<dyn Device>, bytes_per_second: u64) -> Self {
        let line = || Line {
            bytes_per_second: bytes_per_second.max(1),
            free_from: Mutex::new(Rank::ThrottledDevice, Instant::now()),
        };
        Self { inner, reads: line(), writes: line() }
    }
}

impl Device for ThrottledDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        let end = self.reads.end_of(buf.len());
        self.inner.read_at(at, buf)?;
        sleep_until(end);
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        let end = self.writes.end_of(writes.iter().map(|write| write.data.len()).sum());
        DeviceTicket::new(ThrottledTicket { ticket: self.inner.submit(writes), end })
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn take_writes_again(&self) {
        self.inner.take_writes_again();
    }

    fn begin_comparing(&self) {
        self.inner.begin_comparing();
    }

    fn end_comparing(&self) {
        self.inner.end_comparing();
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.inner.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

#[derive(Debug)]
struct ThrottledTicket {
    ticket: DeviceTicket,
    end: Instant,
}

impl PendingWrites for ThrottledTicket {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        let result = self.ticket.wait();
        sleep_until(self.end);
        result
    }

    fn is_done(&self) -> bool {
        Instant::now() >= self.end && self.ticket.is_done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultyDevice, Lasting, MemoryDevice, Operation, SharedBuffer};

    fn writes(pages: usize) -> Vec<DeviceWrite> {
        vec![DeviceWrite { at: Physical(0), data: SharedBuffer::from(vec![7; pages * 4096]) }]
    }

    #[test]
    fn transfers_take_their_time_one_after_the_other() {
        // 4 KiB take 10 ms.
        let device = ThrottledDevice::new(Arc::new(MemoryDevice::new(1 << 20)), 409_600);
        let start = Instant::now();
        let (first, second) = (device.submit(writes(2)), device.submit(writes(1)));
        assert!(!second.is_done() || start.elapsed() >= Duration::from_millis(30));
        second.wait().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert!(first.is_done(), "it was before the other");
        let start = Instant::now();
        let mut bytes = [0; 4096];
        device.read_at(Physical(4096), &mut bytes).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(10));
        assert_eq!((bytes[0], device.counters().written_bytes), (7, 3 * 4096));
    }

    #[test]
    fn errors_of_the_device_are_passed_on() {
        let faulty = Arc::new(FaultyDevice::new(Arc::new(MemoryDevice::new(1 << 20))));
        faulty.fail(Operation::Write, 0, libc::EIO, Lasting::Once);
        faulty.fail(Operation::Read, 0, libc::EIO, Lasting::Once);
        let device = ThrottledDevice::new(faulty, 1 << 30);
        assert!(device.submit(writes(1)).wait().is_err());
        assert!(device.read_at(Physical(0), &mut [0; 16]).is_err());
    }
}

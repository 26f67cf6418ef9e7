//! A device that fails on request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_format::Physical;
use ubtrfs_threads::{Mutex, Rank};

use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites};
use crate::error::WriteError;

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read.
    Read,
    /// One write of a batch. It does not reach the device; the others do.
    Write,
    /// A barrier. It does not reach the device.
    Flush,
    /// A discard. It does not reach the device.
    Discard,
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// Once; later operations succeed.
    Once,
    /// From then on.
    Forever,
}

/// A device over another one, with faults on demand.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    faults: Mutex<Vec<Fault>>,
    /// How many reads, writes, barriers and discards were requested.
    asked: [AtomicU64; 4],
}

#[derive(Debug)]
struct Fault {
    operation: Operation,
    /// Operations that still succeed.
    countdown: u64,
    errno: i32,
    lasting: Lasting,
}

impl FaultyDevice {
    /// A device that does what `inner` does.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, faults: Mutex::with_default(Rank::FaultyDevice), asked: Default::default() }
    }

    /// After `successes` more operations of this kind, the next one fails with the system's error
    /// number `errno`.
    pub fn fail(&self, operation: Operation, successes: u64, errno: i32, lasting: Lasting) {
        self.faults.lock().push(Fault { operation, countdown: successes, errno, lasting });
    }

    /// Returns how many operations of this kind were requested so far, whether they failed or not.
    pub fn asked(&self, operation: Operation) -> u64 {
        self.asked[operation as usize].load(Ordering::Relaxed)
    }

    /// Forgets all faults.
    pub fn heal(&self) {
        self.faults.lock().clear();
    }

    fn pass(&self, operation: Operation) -> io::Result<()> {
        self.asked[operation as usize].fetch_add(1, Ordering::Relaxed);
        let mut faults = self.faults.lock();
        let mut failed = None;
        faults.retain_mut(|fault| {
            if fault.operation != operation {
                return true;
            }
            if fault.countdown > 0 {
                fault.countdown -= 1;
                return true;
            }
            failed.get_or_insert(fault.errno);
            fault.lasting == Lasting::Forever
        });
        failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

impl Device for FaultyDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.pass(Operation::Read)?;
        self.inner.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        let mut failure = None;
        let mut good = Vec::with_capacity(writes.len());
        for write in writes {
            match self.pass(Operation::Write) {
                Ok(()) => good.push(write),
                Err(source) => {
                    failure.get_or_insert(WriteError { at: write.at, len: write.data.len(), source });
                }
            }
        }
        let ticket = self.inner.submit(good);
        match failure {
            None => ticket,
            Some(error) => DeviceTicket::new(FailedTicket { ticket, error }),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.pass(Operation::Flush)?;
        self.inner.flush()
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.pass(Operation::Discard)?;
        self.inner.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

#[derive(Debug)]
struct FailedTicket {
    ticket: DeviceTicket,
    error: WriteError,
}

impl PendingWrites for FailedTicket {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        self.ticket.wait()?;
        Err(self.error)
    }

    fn is_done(&self) -> bool {
        self.ticket.is_done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, SharedBuffer};

    #[test]
    fn faults_occur_where_requested_and_nowhere_else() {
        let device = FaultyDevice::new(Arc::new(MemoryDevice::new(64 << 10)));
        device.fail(Operation::Write, 1, libc::ENOSPC, Lasting::Once);
        device.fail(Operation::Flush, 0, libc::EIO, Lasting::Forever);
        let write = |at| DeviceWrite { at: Physical(at), data: SharedBuffer::from(vec![1; 4096]) };
        let result = device.submit(vec![write(0), write(4096), write(8192)]).wait();
        let error = result.unwrap_err();
        assert_eq!((error.at, error.len, error.source.raw_os_error()), (Physical(4096), 4096, Some(libc::ENOSPC)));
        let mut bytes = [9; 3];
        for (at, byte) in [(0, 0), (4096, 1), (8192, 2)] {
            device.read_at(Physical(at), &mut bytes[byte..=byte]).unwrap();
        }
        assert_eq!(bytes, [1, 0, 1]);
        device.submit(vec![write(4096)]).wait().unwrap();
        assert!(device.flush().is_err() && device.flush().is_err());
        device.heal();
        device.flush().unwrap();
        device.fail(Operation::Discard, 0, libc::EIO, Lasting::Once);
        assert!(device.discard(Physical(0), 4096).is_err());
        device.discard(Physical(0), 4096).unwrap();
        let kinds = [Operation::Read, Operation::Write, Operation::Flush, Operation::Discard];
        assert_eq!(kinds.map(|kind| device.asked(kind)), [3, 4, 3, 2]);
    }
}

//! A device in memory.

use std::io;

use ubtrfs_format::Physical;
use ubtrfs_threads::{Rank, RwLock};

use crate::device::{CounterCells, Device, DeviceCounters, DeviceTicket, DeviceWrite, check_range, check_writes};
use crate::runs;

/// A device whose bytes are plain memory.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>>,
    size: u64,
    counters: CounterCells,
}

impl MemoryDevice {
    /// A device of `size` zero bytes.
    pub fn new(size: usize) -> Self {
        Self::from_bytes(vec![0; size])
    }

    /// A device that holds these bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let size = bytes.len() as u64;
        Self { bytes: RwLock::new(Rank::MemoryDevice, bytes), size, counters: CounterCells::default() }
    }

    /// Returns a copy of all bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size)?;
        let start = at.0 as usize;
        buf.copy_from_slice(&self.bytes.read()[start..start + buf.len()]);
        self.counters.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size) {
            return DeviceTicket::done(Err(error));
        }
        let mut bytes = self.bytes.write();
        // Neighbours count as one write, as on other devices.
        for run in runs::join(writes, false) {
            self.counters.write(run.len);
            let mut at = run.at as usize;
            for part in run.parts {
                bytes[at..at + part.len()].copy_from_slice(&part);
                at += part.len();
            }
        }
        DeviceTicket::done(Ok(()))
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        check_range(at, len as usize, self.size)?;
        self.bytes.write()[at.0 as usize..(at.0 + len) as usize].fill(0);
        self.counters.discard();
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.get()
    }
}

//! A device that keeps superblocks in memory until they are published: until then the volume on the
//! device stays as it was, however many commits there are.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_threads::{Mutex, Rank};

use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, check_range, check_writes};

/// A device whose superblocks only [`Self::publish`] writes. Everything else is written at once, so
/// its user must not overwrite anything that the superblocks on the device refer to.
#[derive(Debug)]
pub struct DeferredSuperblocks {
    device: Arc<dyn Device>,
    /// The newest content of each superblock copy, by its address.
    superblocks: Mutex<BTreeMap<Physical, DeviceWrite>>,
}

impl DeferredSuperblocks {
    /// Defers the superblocks of a device.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, superblocks: Mutex::with_default(Rank::DeferredSuperblocks) }
    }

    /// Makes everything else durable, then writes the superblocks and makes them durable, too.
    pub fn publish(self: &Arc<Self>) -> io::Result<()> {
        Self::publish_all(std::slice::from_ref(self))
    }

    /// As [`Self::publish`], for all devices of a volume. Everything else is durable on all of them
    /// before any of them gets its superblock. All superblocks are written at once, so that a crash
    /// hardly comes in between.
    pub fn publish_all(devices: &[Arc<Self>]) -> io::Result<()> {
        // The devices below may defer superblocks, too, so the lock is not held while they are
        // used.
        let kept: Vec<(&Arc<Self>, BTreeMap<Physical, DeviceWrite>)> = devices
            .iter()
            .map(|device| (device, device.superblocks.lock().clone()))
            .filter(|(_, kept)| !kept.is_empty())
            .collect();
        kept.iter().try_for_each(|(device, _)| device.device.flush())?;
        let submit = |(device, kept): &(&Arc<Self>, BTreeMap<Physical, DeviceWrite>)| {
            device.device.submit(kept.values().cloned().collect())
        };
        let tickets: Vec<DeviceTicket> = kept.iter().map(submit).collect();
        // All tickets are waited for, even if the first one fails.
        let written: Vec<io::Result<()>> = tickets.into_iter().map(|ticket| Ok(ticket.wait()?)).collect();
        written.into_iter().collect::<io::Result<()>>()?;
        kept.iter().try_for_each(|(device, _)| device.device.flush())?;
        for (device, kept) in kept {
            let is_newer =
                |at: &Physical, write: &mut DeviceWrite| kept.get(at).is_none_or(|it| it.data[..] != write.data[..]);
            device.superblocks.lock().retain(is_newer);
        }
        Ok(())
    }
}

impl Device for DeferredSuperblocks {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size())?;
        self.device.read_at(at, buf)?;
        let end = at.0 + buf.len() as u64;
        for (Physical(start), write) in &*self.superblocks.lock() {
            let (from, to) = (at.0.max(*start), end.min(start + write.data.len() as u64));
            if from < to {
                let new = &write.data[(from - start) as usize..(to - start) as usize];
                buf[(from - at.0) as usize..(to - at.0) as usize].copy_from_slice(new);
            }
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size()) {
            return DeviceTicket::done(Err(error));
        }
        let is_superblock =
            |write: &DeviceWrite| SUPERBLOCK_COPIES.contains(&write.at) && write.data.len() == SUPERBLOCK_SIZE;
        let (kept, others): (Vec<_>, Vec<_>) = writes.into_iter().partition(is_superblock);
        self.superblocks.lock().extend(kept.into_iter().map(|write| (write.at, write)));
        if others.is_empty() { DeviceTicket::done(Ok(())) } else { self.device.submit(others) }
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn take_writes_again(&self) {
        self.device.take_writes_again();
    }

    fn begin_comparing(&self) {
        self.device.begin_comparing();
    }

    fn end_comparing(&self) {
        self.device.end_comparing();
    }

    fn protect(&self) -> io::Result<()> {
        self.device.protect()
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.device.discard(at, len)
    }

    fn reads_ahead(&self) -> usize {
        self.device.reads_ahead()
    }

    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        self.device.data_ranges()
    }

    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, SharedBuffer};

    #[test]
    fn superblocks_are_read_back_at_once_and_written_when_asked_for() {
        let base = Arc::new(MemoryDevice::new(128 << 10));
        let device = Arc::new(DeferredSuperblocks::new(base.clone()));
        let write = |at: u64, byte: u8| {
            let write = DeviceWrite { at: Physical(at), data: SharedBuffer::from(vec![byte; SUPERBLOCK_SIZE]) };
            device.submit(vec![write]).wait().unwrap();
        };
        write(64 << 10, 1);
        write(64 << 10, 2);
        write(68 << 10, 3);
        let mut seen = vec![9; 8192];
        device.read_at(Physical(62 << 10), &mut seen).unwrap();
        assert_eq!((seen[2047], seen[2048], seen[6143], seen[6144]), (0, 2, 2, 3));
        let byte = |at: usize| base.to_bytes()[at];
        assert_eq!((byte(64 << 10), byte(68 << 10)), (0, 3), "the superblock waits");
        device.publish().unwrap();
        assert_eq!(byte(64 << 10), 2);
    }
}

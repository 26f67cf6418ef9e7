//! A device whose writes stay in memory until they are applied. What a repair would write can be
//! read back and checked before anything on the device below changes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ubtrfs_format::Physical;
use ubtrfs_threads::{Rank, RwLock};

use crate::buffer::{ALIGNMENT, SharedBuffer};
use crate::device::{CounterCells, Device, DeviceCounters, DeviceTicket, DeviceWrite, check_range, check_writes};
use crate::page::{Page, pages_of};

/// A device over another one, which is only read.
#[derive(Debug)]
pub struct StagedDevice {
    base: Arc<dyn Device>,
    pages: RwLock<BTreeMap<u64, Arc<Page>>>,
    size: u64,
    counters: CounterCells,
}

impl StagedDevice {
    /// A device with the content of `base`. An incomplete last page is cut off.
    pub fn new(base: Arc<dyn Device>) -> Self {
        let size = base.size() - base.size() % ALIGNMENT as u64;
        Self { base, pages: RwLock::new(Rank::StagedDevice, BTreeMap::new()), size, counters: CounterCells::default() }
    }

    /// Returns the device below.
    pub fn base(&self) -> &Arc<dyn Device> {
        &self.base
    }

    /// Returns how many bytes differ, by whole pages, from the device below, or were written as
    /// they were.
    pub fn staged_bytes(&self) -> u64 {
        (self.pages.read().len() * ALIGNMENT) as u64
    }

    /// Returns all writes in the order of their addresses, each of at most `max` bytes.
    pub fn writes(&self, max: usize) -> Vec<DeviceWrite> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (page, content) in self.pages.read().iter() {
            let at = page * ALIGNMENT as u64;
            match runs.last_mut() {
                Some((start, run)) if *start + run.len() as u64 == at && run.len() + ALIGNMENT <= max => {
                    run.extend_from_slice(&content[..]);
                }
                _ => runs.push((at, content.to_vec())),
            }
        }
        let write = |(at, data)| DeviceWrite { at: Physical(at), data: SharedBuffer::from(data) };
        runs.into_iter().map(write).collect()
    }
}

impl Device for StagedDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size)?;
        self.base.read_at(at, buf)?;
        let unit = ALIGNMENT as u64;
        let (start, end) = (at.0, at.0 + buf.len() as u64);
        for (page, content) in self.pages.read().range(start / unit..end.div_ceil(unit)) {
            let (from, to) = ((page * unit).max(start), ((page + 1) * unit).min(end));
            let within = (from - page * unit) as usize..(to - page * unit) as usize;
            buf[(from - start) as usize..(to - start) as usize].copy_from_slice(&content[within]);
        }
        self.counters.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size) {
            return DeviceTicket::done(Err(error));
        }
        let mut pages = self.pages.write();
        for write in &writes {
            pages.extend((write.at.0 / ALIGNMENT as u64..).zip(pages_of(&write.data)));
            self.counters.write(write.data.len());
        }
        DeviceTicket::done(Ok(()))
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        check_range(at, len as usize, self.size)?;
        if len == 0 { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn writes_are_read_back_and_the_device_below_stays_as_it_was() {
        let base = Arc::new(MemoryDevice::from_bytes(vec![7; 8 * ALIGNMENT]));
        let staged = StagedDevice::new(base.clone());
        let write = |page: u64, len: usize, fill: u8| DeviceWrite {
            at: Physical(page * ALIGNMENT as u64),
            data: vec![fill; len * ALIGNMENT].into(),
        };
        staged.submit(vec![write(2, 2, 1), write(4, 1, 2), write(6, 1, 3)]).wait().unwrap();
        let mut bytes = vec![0; 4 * ALIGNMENT];
        staged.read_at(Physical(ALIGNMENT as u64 + 100), &mut bytes).unwrap();
        assert_eq!(bytes[ALIGNMENT - 101..=ALIGNMENT - 100], [7, 1]);
        assert_eq!(bytes[3 * ALIGNMENT - 101..=3 * ALIGNMENT - 100], [1, 2]);
        assert_eq!(bytes[4 * ALIGNMENT - 101..=4 * ALIGNMENT - 100], [2, 7]);
        base.read_at(Physical(0), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        let shape = |max| -> Vec<(u64, usize)> {
            let writes = staged.writes(max);
            writes.iter().map(|write| (write.at.0 / ALIGNMENT as u64, write.data.len() / ALIGNMENT)).collect()
        };
        assert_eq!(shape(1 << 20), [(2, 3), (6, 1)]);
        assert_eq!(shape(2 * ALIGNMENT), [(2, 2), (4, 1), (6, 1)]);
        assert_eq!(staged.staged_bytes(), 4 * ALIGNMENT as u64);
    }
}

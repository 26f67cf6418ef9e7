//! The stand-in for a device of a volume that is missing.

use std::io;

use ubtrfs_format::Physical;

use crate::deferred_writes::failed;
use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite};

/// A device that fails every request with `ENODEV`.
#[derive(Debug)]
pub(crate) struct AbsentDevice {
    size: u64,
}

impl AbsentDevice {
    /// Stands for a device of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        Self { size }
    }
}

fn absent() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NODEV.raw_os_error())
}

impl Device for AbsentDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_at(&self, _at: Physical, _buf: &mut [u8]) -> io::Result<()> {
        Err(absent())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        failed(&writes, absent())
    }

    fn flush(&self) -> io::Result<()> {
        Err(absent())
    }

    fn discard(&self, _at: Physical, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

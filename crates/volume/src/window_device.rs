//! A part of a device as a device: a volume inside of an image, at an offset.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::Physical;

use crate::buffer::ALIGNMENT;
use crate::deferred_writes::Submit;
use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites, check_range, check_writes};
use crate::error::{Error, Result, WriteError};

/// A range of another device.
#[derive(Debug)]
pub struct WindowDevice {
    device: Arc<dyn Device>,
    start: u64,
    size: u64,
}

impl WindowDevice {
    /// The part from `start` on, `size` bytes long or up to the end. The start must be a multiple
    /// of 4096 and inside the device.
    pub fn new(device: Arc<dyn Device>, start: u64, size: Option<u64>) -> Result<Self> {
        if !start.is_multiple_of(ALIGNMENT as u64) {
            return Err(Error::BadRequest("an offset that is no multiple of 4096"));
        }
        let rest = device.size().checked_sub(start).filter(|rest| *rest > 0);
        let rest = rest.ok_or(Error::BadRequest("an offset behind the end of the device"))?;
        let size = size.map_or(rest, |size| size.min(rest));
        Ok(Self { device, start, size: size - size % ALIGNMENT as u64 })
    }

    fn place(&self, at: Physical) -> Physical {
        Physical(self.start.saturating_add(at.0))
    }
}

impl WindowDevice {
    fn submit_by(&self, mut writes: Vec<DeviceWrite>, how: Submit) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size) {
            return DeviceTicket::done(Err(error));
        }
        for write in &mut writes {
            write.at = self.place(write.at);
        }
        DeviceTicket::new(WindowTicket { ticket: how.submit(&*self.device, writes), start: self.start })
    }
}

impl Device for WindowDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size)?;
        self.device.read_at(self.place(at), buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, Submit::Usual)
    }

    fn submit_fua(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, Submit::Fua)
    }

    fn has_fua(&self) -> bool {
        self.device.has_fua()
    }

    fn reads_ahead(&self) -> usize {
        self.device.reads_ahead()
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

    fn stop_waiting(&self) {
        self.device.stop_waiting();
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        check_range(at, len as usize, self.size)?;
        self.device.discard(self.place(at), len)
    }

    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        let start = self.place(Physical(0)).0;
        let within = |range: Range<u64>| {
            let inside = |at: u64| at.saturating_sub(start).min(self.size);
            Some(inside(range.start)..inside(range.end)).filter(|range| !range.is_empty())
        };
        Ok(self.device.data_ranges()?.map(|ranges| ranges.into_iter().filter_map(within).collect()))
    }

    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }
}

/// A ticket that reports where writes failed in addresses of the window.
#[derive(Debug)]
struct WindowTicket {
    ticket: DeviceTicket,
    start: u64,
}

impl PendingWrites for WindowTicket {
    fn wait(self: Box<Self>) -> std::result::Result<(), WriteError> {
        let Self { ticket, start } = *self;
        ticket.wait().map_err(|error| WriteError { at: Physical(error.at.0.saturating_sub(start)), ..error })
    }

    fn is_done(&self) -> bool {
        self.ticket.is_done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultyDevice, Lasting, Operation, OverlayDevice, SharedBuffer};

    #[test]
    fn a_failed_write_is_reported_by_its_address_in_the_window() {
        let base = Arc::new(FaultyDevice::new(Arc::new(OverlayDevice::new(vec![7; 5 * ALIGNMENT].into()))));
        let window = WindowDevice::new(base.clone(), 8192, None).unwrap();
        base.fail(Operation::Write, 0, libc::EIO, Lasting::Once);
        let write = DeviceWrite { at: Physical(4096), data: SharedBuffer::from(vec![1; 4096]) };
        let error = window.submit(vec![write]).wait().unwrap_err();
        assert_eq!((error.at, error.len), (Physical(4096), 4096));
    }

    #[test]
    fn nothing_outside_of_the_window_is_touched() {
        let base = Arc::new(OverlayDevice::new(vec![7; 5 * ALIGNMENT].into()));
        let window = WindowDevice::new(base.clone(), 4096, Some(2 * 4096 + 100)).unwrap();
        assert_eq!(window.size(), 8192);
        let write = |at: u64, len: usize| {
            window.submit(vec![DeviceWrite { at: Physical(at), data: SharedBuffer::from(vec![1; len]) }]).wait()
        };
        write(4096, 4096).unwrap();
        assert!(write(8192, 4096).is_err() && write(0, 3 * 4096).is_err());
        let bytes = base.to_bytes();
        assert!(bytes[..8192].iter().chain(&bytes[12288..]).all(|byte| *byte == 7));
        assert!(bytes[8192..12288].iter().all(|byte| *byte == 1));
        assert!(window.read_at(Physical(8191), &mut [0; 2]).is_err());
        assert!(window.discard(Physical(4096), 8192).is_err());
        for odd in [100, 5 * 4096, 1 << 40] {
            assert!(WindowDevice::new(base.clone(), odd, None).is_err(), "{odd}");
        }
    }
}

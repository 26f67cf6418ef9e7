//! A device that fails at random, in one of several ways at a time.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use ubtrfs::testing::OverlayDevice;
use ubtrfs_format::Physical;
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites, SplitMix64, WriteError};

const EIO: i32 = 5;
/// Of so many requests one fails while a device is flaky.
const ONE_OF: u64 = 40;

/// How a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Some requests fail.
    Flaky,
    /// Some reads return other bytes.
    Lying,
    /// All requests fail.
    Dead,
}

#[derive(Debug)]
pub struct FailingDevice {
    pub inner: OverlayDevice,
    state: Mutex<(Health, SplitMix64)>,
}

impl FailingDevice {
    /// One that is well.
    pub fn new(inner: OverlayDevice, seed: u64) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::new((Health::Well, SplitMix64::new(seed))) })
    }

    pub fn health(&self) -> Health {
        self.state.lock().0
    }

    pub fn become_so(&self, health: Health) {
        self.state.lock().0 = health;
    }

    fn pass(&self) -> io::Result<()> {
        let (health, random) = &mut *self.state.lock();
        match health {
            Health::Dead => Err(io::Error::from_raw_os_error(EIO)),
            Health::Flaky if random.below(ONE_OF) == 0 => Err(io::Error::from_raw_os_error(EIO)),
            _ => Ok(()),
        }
    }

    /// The byte of a read that is wrong, if one is.
    fn lie(&self, len: usize) -> Option<usize> {
        let (health, random) = &mut *self.state.lock();
        (*health == Health::Lying && random.below(ONE_OF) == 0).then(|| random.below(len as u64) as usize)
    }
}

impl Device for FailingDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.pass()?;
        self.inner.read_at(at, buf)?;
        if let Some(place) = self.lie(buf.len()) {
            buf[place] ^= 0x55;
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        let mut failure = None;
        let mut good = Vec::with_capacity(writes.len());
        for write in writes {
            match self.pass() {
                Ok(()) => good.push(write),
                Err(source) => {
                    failure.get_or_insert(WriteError { at: write.at, len: write.data.len(), source });
                }
            }
        }
        let ticket = self.inner.submit(good);
        match failure {
            None => ticket,
            Some(error) => DeviceTicket::new(Failed { ticket, error }),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.pass()?;
        self.inner.flush()
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.pass()?;
        self.inner.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

#[derive(Debug)]
struct Failed {
    ticket: DeviceTicket,
    error: WriteError,
}

impl PendingWrites for Failed {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        self.ticket.wait()?;
        Err(self.error)
    }

    fn is_done(&self) -> bool {
        self.ticket.is_done()
    }
}

//! Writes that are submitted later, once something is known that only a slow request to the device
//! can find out. The caller that submits them does not wait for that.

use std::io;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::device::{Device, DeviceTicket, DeviceWrite, PendingWrites};
use crate::error::WriteError;

/// How writes are submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Submit {
    Usual,
    /// Durable as they complete.
    Fua,
}

impl Submit {
    pub(crate) fn submit(self, device: &dyn Device, writes: Vec<DeviceWrite>) -> DeviceTicket {
        match self {
            Self::Usual => device.submit(writes),
            Self::Fua => device.submit_fua(writes),
        }
    }
}

/// Returns a ticket that fails with this error, for writes that were not made.
pub(crate) fn failed(writes: &[DeviceWrite], source: io::Error) -> DeviceTicket {
    let (at, len) = writes.first().map(|write| (write.at, write.data.len())).unwrap_or_default();
    DeviceTicket::done(Err(WriteError { at, len, source }))
}

/// Writes that are not submitted yet.
#[derive(Debug)]
pub(crate) struct DeferredWrites {
    writes: Vec<DeviceWrite>,
    how: Submit,
    place: Arc<Place>,
}

/// Where the device's ticket is put when the writes are submitted.
#[derive(Debug)]
struct Place {
    ticket: Mutex<Option<DeviceTicket>>,
    filled: Condvar,
}

impl Default for Place {
    fn default() -> Self {
        Self { ticket: Mutex::with_default(Rank::DeferredWrite), filled: Condvar::new() }
    }
}

impl DeferredWrites {
    /// Returns the deferred writes, and a ticket to wait for them.
    pub(crate) fn new(writes: Vec<DeviceWrite>, how: Submit) -> (Self, DeviceTicket) {
        let place = Arc::new(Place::default());
        let ticket = DeviceTicket::new(DeferredTicket(Arc::clone(&place)));
        (Self { writes, how, place }, ticket)
    }

    /// Submits the writes, or has them fail with the error in `may_write`.
    pub(crate) fn submit(self, device: &dyn Device, may_write: &io::Result<()>) {
        let ticket = match may_write {
            Ok(()) => self.how.submit(device, self.writes),
            Err(error) => failed(&self.writes, io::Error::new(error.kind(), sentence(error))),
        };
        *self.place.ticket.lock() = Some(ticket);
        self.place.filled.notify_all();
    }
}

#[derive(Debug)]
struct DeferredTicket(Arc<Place>);

impl PendingWrites for DeferredTicket {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        let mut place = self.0.ticket.lock();
        let ticket = loop {
            match place.take() {
                Some(ticket) => break ticket,
                None => self.0.filled.wait(&mut place),
            }
        };
        // Not waited for under this lock, since the device takes locks of its own.
        drop(place);
        ticket.wait()
    }

    fn is_done(&self) -> bool {
        // The ticket is taken out meanwhile, since the device takes locks of its own. No other
        // thread waits for it.
        let Some(ticket) = self.0.ticket.lock().take() else { return false };
        let is_done = ticket.is_done();
        *self.0.ticket.lock() = Some(ticket);
        is_done
    }
}

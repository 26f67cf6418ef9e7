//! Writes that are submitted later, when something is known that takes a device to find out: the
//! one who has them written does not wait for that.

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

/// The ticket of writes that are not done.
pub(crate) fn failed(writes: &[DeviceWrite], source: io::Error) -> DeviceTicket {
    let (at, len) = writes.first().map(|write| (write.at, write.data.len())).unwrap_or_default();
    DeviceTicket::done(Err(WriteError { at, len, source }))
}

/// Such writes.
#[derive(Debug)]
pub(crate) struct DeferredWrites {
    writes: Vec<DeviceWrite>,
    how: Submit,
    place: Arc<Place>,
}

/// Where the ticket of the device comes.
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
    /// The writes, and the ticket by which they are waited for.
    pub(crate) fn new(writes: Vec<DeviceWrite>, how: Submit) -> (Self, DeviceTicket) {
        let place = Arc::new(Place::default());
        let ticket = DeviceTicket::new(DeferredTicket(Arc::clone(&place)));
        (Self { writes, how, place }, ticket)
    }

    /// Submits them, or has them fail.
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
        // The device takes locks of its own.
        drop(place);
        ticket.wait()
    }

    fn is_done(&self) -> bool {
        // Taken out meanwhile, since the device takes locks of its own. Nobody else waits for it.
        let Some(ticket) = self.0.ticket.lock().take() else { return false };
        let is_done = ticket.is_done();
        *self.0.ticket.lock() = Some(ticket);
        is_done
    }
}

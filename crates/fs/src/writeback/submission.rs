//! Collects writes of data and submits them together.

use std::sync::Arc;

use ubtrfs_format::Logical;
use ubtrfs_volume::{SharedBuffer, Volume, Write};

use super::in_flight::InFlight;
use super::owner::Writeback;
use crate::error::{AtStep, Result, Step};
use crate::inode::{DataWrites, InodeId, OrderedExtent, SharedTicket, new_ticket};

/// Writes that are submitted together: adjacent ones become one write to the device, and all have
/// one ticket.
pub(super) struct Submission<'a> {
    /// The file whose data is added now.
    id: InodeId,
    volume: &'a Volume,
    in_flight: &'a InFlight,
    writes: Vec<Write>,
    bytes: u64,
    ticket: SharedTicket,
}

impl<'a> Submission<'a> {
    pub(super) fn new(writeback: &'a Writeback, id: InodeId) -> Self {
        let (volume, in_flight) = (&*writeback.info.volume, &writeback.in_flight);
        Self { id, volume, in_flight, writes: Vec::new(), bytes: 0, ticket: new_ticket() }
    }

    /// Submits what `add` adds, even if it fails midway: data that has its location has to be
    /// written there.
    pub(super) fn of(writeback: &'a Writeback, id: InodeId, add: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut submission = Self::new(writeback, id);
        let added = add(&mut submission);
        submission.end(added)
    }

    /// Submits what was added. `added` is the result of adding the last file; its error takes
    /// precedence.
    pub(super) fn end(mut self, added: Result<()>) -> Result<()> {
        let InodeId { subvolume, ino } = self.id;
        added.and(self.submit()).at(Step::Writeback { subvolume, ino })
    }

    /// Adds the data of an extent.
    pub(super) fn add(&mut self, start: Logical, data: Vec<SharedBuffer>) -> Arc<OrderedExtent> {
        let mut at = start;
        for part in &data {
            self.writes.push(Write { at, data: part.clone() });
            at = at.plus(part.len() as u64);
        }
        self.bytes += at.0 - start.0;
        let counted = self.in_flight.count(at.0 - start.0);
        Arc::new(OrderedExtent::new(self.id, start, data, self.ticket.clone(), counted))
    }

    /// Submits the added writes. Must be called before others can see the extents.
    pub(super) fn submit(&mut self) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let submitted = self.volume.writer().submit(std::mem::take(&mut self.writes));
        let ticket = std::mem::replace(&mut self.ticket, new_ticket());
        let mut writes = ticket.lock();
        let (state, result) = match submitted {
            Ok(ticket) => (DataWrites::UnderWay(ticket), Ok(())),
            Err(error) => (DataWrites::Failed, Err(error.into())),
        };
        *writes = state;
        result
    }

    /// Begins another file, to which the data added from now on belongs.
    pub(super) fn begin_file(&mut self, id: InodeId) {
        self.id = id;
    }

    /// Returns the bytes that were added and are not submitted yet.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether an extent's data was added and is not submitted yet.
    pub(super) fn has(&self, extent: &OrderedExtent) -> bool {
        Arc::ptr_eq(&extent.ticket, &self.ticket)
    }
}

//! Writing, waiting and barriers. What has been reached is proven by tokens that nobody else can
//! make.

use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::{DeviceId, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};

use crate::buffer::SharedBuffer;
use crate::chunk_map::IoStripe;
use crate::device::{DeviceTicket, DeviceWrite};
use crate::error::{Error, Result};
use crate::in_flight::{InFlight, Registration};
use crate::volume::Volume;

/// One write of the volume.
#[derive(Clone, Debug)]
pub struct Write {
    /// Where.
    pub at: Logical,
    /// What: a multiple of the sector size.
    pub data: SharedBuffer,
}

impl Write {
    fn range(&self) -> Range<u64> {
        self.at.0..self.at.0.saturating_add(self.data.len() as u64)
    }
}

/// Writes under way. Dropping it waits for them, but loses their errors.
#[must_use = "only `Volume::wait` tells whether the writes succeeded"]
#[derive(Debug)]
pub struct Ticket {
    parts: Vec<(DeviceId, DeviceTicket)>,
    _in_flight: Registration,
}

/// Proof that certain writes have completed, though they may not be durable.
#[must_use = "completed writes are durable only after a flush"]
#[derive(Debug)]
pub struct CompletedWrites(());

/// Proof that writes completed and that all devices were flushed afterwards.
#[must_use = "a flush that no superblock follows publishes nothing"]
#[derive(Debug)]
pub struct Flushed(());

impl CompletedWrites {
    /// Proof that no write failed because there was none.
    pub fn nothing() -> Self {
        Self(())
    }

    /// Proof of both sets of writes.
    pub fn merge(self, _other: Self) -> Self {
        self
    }
}

impl Ticket {
    /// Whether waiting would return at once.
    pub fn is_done(&self) -> bool {
        self.parts.iter().all(|(_, ticket)| ticket.is_done())
    }

    fn finish(&mut self) -> Result<()> {
        let mut result = Ok(());
        for (devid, ticket) in self.parts.drain(..) {
            if let Err(source) = ticket.wait() {
                result = result.and(Err(Error::Write { devid, source }));
            }
        }
        result
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!(%error, "a write failed that nobody waited for");
        }
    }
}

impl Volume {
    /// Starts writes to all copies of their addresses, in no particular order. Until they have been
    /// waited for nobody may read there.
    pub fn submit(&self, writes: Vec<Write>) -> Result<Ticket> {
        let ranges = writes.iter().map(Write::range).collect();
        self.start(writes, |in_flight| in_flight.register(ranges))
    }

    /// The same for nodes, each a write of its own, which [`Volume::read_node`] finds at once.
    pub fn submit_nodes(&self, writes: Vec<Write>) -> Result<Ticket> {
        let nodes = writes.iter().map(|write| (write.range(), write.data.clone())).collect();
        self.start(writes, |in_flight| in_flight.register_nodes(nodes))
    }

    fn start(&self, writes: Vec<Write>, register: impl FnOnce(&Arc<InFlight>) -> Registration) -> Result<Ticket> {
        self.require_writable()?;
        let sector = u64::from(self.sector_size());
        let mut batches: Vec<(DeviceId, Vec<DeviceWrite>)> = Vec::with_capacity(self.members.len());
        let map = self.map.read();
        for Write { at: start, data } in writes {
            let len = data.len() as u64;
            if !start.0.is_multiple_of(sector) || !len.is_multiple_of(sector) {
                return Err(Error::BadRequest("a write is not aligned to sectors"));
            }
            let mut done = 0;
            for piece in map.pieces(start, len)? {
                if !piece.writable {
                    return Err(Error::Unwritable { profile: "RAID5 and RAID6" });
                }
                let part = data.slice(done..done + piece.len as usize);
                done += piece.len as usize;
                for IoStripe { devid, at } in piece.copies {
                    keep_superblocks(at, piece.len)?;
                    let entry = DeviceWrite { at, data: part.clone() };
                    match batches.iter_mut().find(|(id, _)| *id == devid) {
                        Some((_, batch)) => batch.push(entry),
                        None => batches.push((devid, vec![entry])),
                    }
                }
            }
        }
        drop(map);
        for (_, batch) in &mut batches {
            // Neighbours next to each other, so that the device can join them; copies of one block
            // are apart.
            batch.sort_by_key(|write| write.at);
        }
        let registration = register(&self.in_flight);
        let _not_during_repairs = self.submissions.read();
        let mut ticket = Ticket { parts: Vec::with_capacity(batches.len()), _in_flight: registration };
        for (devid, batch) in batches {
            ticket.parts.push((devid, self.member(devid)?.device.submit(batch)));
        }
        Ok(ticket)
    }

    /// Waits for writes. An error means that some of them may not have happened, on one device or
    /// all.
    pub fn wait(&self, mut ticket: Ticket) -> Result<CompletedWrites> {
        ticket.finish().map(|()| CompletedWrites(()))
    }

    /// A barrier on every device: makes durable what was written. After a failure nothing is known
    /// of what is durable, so the volume turns read-only.
    pub fn flush(&self, _written: CompletedWrites) -> Result<Flushed> {
        self.flush_devices().map(|()| Flushed(()))
    }

    pub(crate) fn flush_devices(&self) -> Result<()> {
        let flush = |member: &crate::volume::Member| {
            member.device.flush().map_err(|source| Error::Flush { devid: member.devid, source })
        };
        let result = match self.members.as_slice() {
            [member] => flush(member),
            members => std::thread::scope(|scope| {
                let threads: Vec<_> = members.iter().map(|member| scope.spawn(move || flush(member))).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                    thread.join().unwrap_or(Err(Error::BadRequest("a flush panicked")))
                };
                threads.into_iter().map(join).fold(Ok(()), Result::and)
            }),
        };
        if result.is_err() {
            self.set_read_only();
        }
        result
    }

    /// Discards these addresses on the devices: their content is no longer needed. Returns how many
    /// bytes of theirs that is, of all copies; `None` if one of them can't discard.
    pub fn discard(&self, at: Logical, len: u64) -> Result<Option<u64>> {
        self.require_writable()?;
        let pieces = self.map.read().pieces(at, len)?;
        let (mut done, mut bytes) = (true, 0);
        for piece in pieces.iter().filter(|piece| piece.writable) {
            for place in &piece.copies {
                done &= self.discard_at(place.devid, place.at, piece.len)?;
                bytes += piece.len;
            }
        }
        Ok(done.then_some(bytes))
    }

    /// The same for a range of a device that no chunk has; an error if one does.
    pub fn discard_unallocated(&self, devid: DeviceId, at: Physical, len: u64) -> Result<Option<u64>> {
        self.require_writable()?;
        if self.map.read().has_stripe_in(devid, at.0..at.0.saturating_add(len)) {
            return Err(Error::BadRequest("a discard of what a chunk has"));
        }
        Ok(self.discard_at(devid, at, len)?.then_some(len))
    }

    fn discard_at(&self, devid: DeviceId, at: Physical, len: u64) -> Result<bool> {
        keep_superblocks(at, len)?;
        match self.member(devid)?.device.discard(at, len) {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Ok(false),
            other => other.map(|()| true).map_err(|source| Error::Discard { devid, source }),
        }
    }
}

/// An error where a range of a device holds a superblock: a writer that comes there has a wrong map
/// of free space.
fn keep_superblocks(at: Physical, len: u64) -> Result<()> {
    let hits = |copy: &Physical| at.0 < copy.0 + SUPERBLOCK_SIZE as u64 && copy.0 < at.0.saturating_add(len);
    if SUPERBLOCK_COPIES.iter().any(hits) {
        return Err(Error::BadRequest("a write or discard that hits a superblock"));
    }
    Ok(())
}

//! Writing, waiting and barriers. Tokens that nobody else can make prove which of these steps are
//! done. There are separate tokens for data and for nodes, since a flush takes both (invariant 1).

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_threads::thread::Builder;

use crate::buffer::SharedBuffer;
use crate::chunk_map::IoStripe;
use crate::device::{DeviceTicket, DeviceWrite};
use crate::devices::VolumeDevices;
use crate::error::{Error, Result, WriteError};
use crate::identity::VolumeIdentity;
use crate::in_flight::{InFlight, Registration};
use crate::member::{DeviceErrorKind, Member};
use crate::read::VolumeReader;
use crate::shared_chunk_map::SharedChunkMap;
use crate::shared_state::SharedState;
use crate::superblocks::Superblocks;
use crate::write_access::WriteAccess;
use crate::written::{CompletedWrites, Data, Flushed, Nodes};

/// One write of the volume.
#[derive(Clone, Debug)]
pub struct Write {
    /// The logical address.
    pub at: Logical,
    /// The content. Its length is a multiple of the sector size.
    pub data: SharedBuffer,
}

impl Write {
    fn range(&self) -> Range<u64> {
        self.at.0..self.at.0.saturating_add(self.data.len() as u64)
    }
}

/// Writes of one kind in flight. Dropping it waits for them, but loses their errors.
#[must_use = "only `VolumeWriter::wait` tells whether the writes succeeded"]
#[derive(Debug)]
pub struct Ticket<Kind> {
    parts: Vec<(Arc<Member>, DeviceTicket)>,
    in_flight: Registration,
    _kind: PhantomData<Kind>,
}

impl<Kind> Ticket<Kind> {
    /// Returns whether waiting would return at once.
    pub fn is_done(&self) -> bool {
        self.parts.iter().all(|(_, ticket)| ticket.is_done())
    }

    /// Waits for all writes, and returns the errors with their devices.
    fn finish(&mut self) -> Vec<(Arc<Member>, WriteError)> {
        self.parts.drain(..).filter_map(|(member, ticket)| Some((member, ticket.wait().err()?))).collect()
    }
}

impl<Kind> Drop for Ticket<Kind> {
    fn drop(&mut self) {
        for (member, error) in self.finish() {
            tracing::error!(device = member.devid().0, error = %sentence(&error), "a write failed that nobody waited for");
        }
    }
}

/// Writes to a volume. All methods may be called by many threads at once.
#[derive(Debug)]
pub struct VolumeWriter {
    identity: Arc<VolumeIdentity>,
    access: Arc<WriteAccess>,
    chunk_map: Arc<SharedChunkMap>,
    devices: Arc<VolumeDevices>,
    superblocks: Arc<Superblocks>,
    reader: Arc<VolumeReader>,
}

impl VolumeWriter {
    pub(crate) fn new(shared: SharedState, superblocks: Arc<Superblocks>, reader: Arc<VolumeReader>) -> Self {
        let SharedState { identity, access, chunk_map, devices } = shared;
        Self { identity, access, chunk_map, devices, superblocks, reader }
    }

    /// Starts writes of data to all copies of their addresses, in no particular order. Nobody may
    /// read these addresses until the writes have been waited for.
    pub fn submit(&self, writes: Vec<Write>) -> Result<Ticket<Data>> {
        let ranges = writes.iter().map(Write::range).collect();
        self.start(writes, |in_flight| in_flight.register(ranges))
    }

    /// Starts writes of nodes, one node each. [`VolumeReader::read_node`] finds them at once.
    ///
    /// # Panics
    ///
    /// If a node's header has another address or volume. Nothing is written then.
    pub fn submit_nodes(&self, writes: Vec<Write>) -> Result<Ticket<Nodes>> {
        for Write { at, data } in &writes {
            assert!(self.reader.has_header_of(*at, data), "invariant 11: what is written at {at} is of another place");
            // Checking all of it makes an fsync a tenth slower (`ubtrfs-bench touches`).
            debug_assert!(
                self.reader.is_node_for(*at, data),
                "invariant 11: what is written at {at} could not be read"
            );
        }
        let nodes = writes.iter().map(|write| (write.range(), write.data.clone())).collect();
        self.start(writes, |in_flight| in_flight.register_nodes(nodes))
    }

    fn start<Kind>(
        &self,
        writes: Vec<Write>,
        register: impl FnOnce(&Arc<InFlight>) -> Registration,
    ) -> Result<Ticket<Kind>> {
        let registration = self.superblocks.begin_as(register(self.access.in_flight()))?;
        let sector = u64::from(self.identity.sector_size());
        let _not_during_repairs = self.devices.submitting();
        let set = self.devices.set();
        let mut batches: Vec<(&Arc<Member>, Vec<DeviceWrite>)> = Vec::with_capacity(set.members.len());
        let map = self.chunk_map.read();
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
                let missing = |stripe: &IoStripe| set.member(stripe.devid).map_or(true, |member| member.is_missing());
                if let Some(first) = piece.copies.first().filter(|_| piece.copies.iter().all(missing)) {
                    return Err(Error::MissingDevice(first.devid));
                }
                let is_seed = |stripe: &&IoStripe| set.member(stripe.devid).is_ok_and(|member| member.is_seed());
                if let Some(seed) = piece.copies.iter().find(is_seed) {
                    return Err(Error::SeedDevice(seed.devid));
                }
                let targets: Vec<_> =
                    piece.copies.iter().filter_map(|place| Some((set.target_of(place.devid)?, place.at))).collect();
                for IoStripe { devid, at } in piece.copies.into_iter().filter(|stripe| !missing(stripe)) {
                    keep_superblocks(at, piece.len)?;
                    push(&mut batches, set.member(devid)?, DeviceWrite { at, data: part.clone() });
                }
                for (target, at) in targets {
                    push(&mut batches, target, DeviceWrite { at, data: part.clone() });
                }
            }
        }
        drop(map);
        for (_, batch) in &mut batches {
            // Sorted so that neighbours are next to each other and the device can join them. Copies
            // of one block are apart.
            batch.sort_by_key(|write| write.at);
        }
        let mut ticket =
            Ticket { parts: Vec::with_capacity(batches.len()), in_flight: registration, _kind: PhantomData };
        for (member, batch) in batches {
            ticket.parts.push((Arc::clone(member), member.device.submit(batch)));
        }
        Ok(ticket)
    }

    /// Waits for writes. An error means that some of them may not have happened, on so many devices
    /// that no copy of something exists. A device that the volume can do without may fail.
    pub fn wait<Kind>(&self, ticket: Ticket<Kind>) -> Result<CompletedWrites<Kind>> {
        self.wait_all([ticket])
    }

    /// Waits for several sets of writes, in order, up to the first that fails. There may be no
    /// sets, which proves that nothing of this kind had to be written.
    ///
    /// # Panics
    ///
    /// If one of them is of another volume.
    pub fn wait_all<Kind>(&self, tickets: impl IntoIterator<Item = Ticket<Kind>>) -> Result<CompletedWrites<Kind>> {
        for mut ticket in tickets {
            assert!(
                ticket.in_flight.is_of(self.access.in_flight()),
                "invariant 1: writes are waited for where they are"
            );
            for (member, error) in ticket.finish() {
                let devid = member.devid();
                let logical = self.chunk_map.logical_of(devid, error.at);
                self.devices.tolerate(&member, DeviceErrorKind::Write, Error::writing(devid, error, logical))?;
            }
        }
        Ok(CompletedWrites::of(self.access.in_flight()))
    }

    /// Issues a barrier on every device, which makes everything durable that was written, data and
    /// the nodes that refer to it. After a failure it is not known what is durable, so the volume
    /// turns read-only. If devices are far away and a comparison of the superblocks is due, they
    /// are read meanwhile, for the superblock that follows.
    ///
    /// # Panics
    ///
    /// If the writes were of another volume.
    pub fn flush(&self, data: CompletedWrites<Data>, nodes: CompletedWrites<Nodes>) -> Result<Flushed> {
        for volume in [data.into_volume(), nodes.into_volume()] {
            assert!(
                Arc::ptr_eq(&volume, self.access.in_flight()),
                "invariant 1: a flush is of the volume that was written"
            );
        }
        let resilvered = self.superblocks.resilver_record().last();
        let has_looked = ubtrfs_threads::thread::scope(|scope| {
            let is_far_and_due = self.devices.reads_ahead() > 0 && self.superblocks.is_look_due();
            let look = || Builder::new().name("look".into()).spawn_scoped(scope, || self.superblocks.look());
            // If no thread can be started, the superblocks are read later.
            let look = if is_far_and_due { look().ok() } else { None };
            self.devices.flush()?;
            // If the comparison failed, it is repeated while no other thread of ours writes
            // superblocks.
            Ok(look.is_some_and(|look| matches!(look.join(), Ok(Ok(())))))
        })?;
        Ok(Flushed { volume: Arc::clone(self.access.in_flight()), has_looked, resilvered })
    }

    /// Issues a barrier for what others wrote: makes everything durable that can be read. Gives no
    /// proof for a superblock. After a failure the volume turns read-only.
    pub fn barrier(&self) -> Result<()> {
        self.devices.flush()
    }

    /// Discards these addresses on the devices: their content is no longer needed. Returns how many
    /// bytes that is on the devices, over all copies, or `None` if a device can't discard.
    pub fn discard(&self, at: Logical, len: u64) -> Result<Option<u64>> {
        let _under_way = self.superblocks.begin()?;
        let pieces = self.chunk_map.pieces(at, len)?;
        let (mut done, mut bytes) = (true, 0);
        for piece in pieces.iter().filter(|piece| piece.writable) {
            for place in &piece.copies {
                done &= self.discard_at(place.devid, place.at, piece.len)?;
                bytes += piece.len;
            }
        }
        Ok(done.then_some(bytes))
    }

    /// Discards a range of a device that no chunk has. Fails if a chunk has it.
    pub fn discard_unallocated(&self, devid: DeviceId, at: Physical, len: u64) -> Result<Option<u64>> {
        let _under_way = self.superblocks.begin()?;
        if self.chunk_map.has_stripe_in(devid, at.0..at.0.saturating_add(len)) {
            return Err(Error::BadRequest("a discard of what a chunk has"));
        }
        Ok(self.discard_at(devid, at, len)?.then_some(len))
    }

    fn discard_at(&self, devid: DeviceId, at: Physical, len: u64) -> Result<bool> {
        keep_superblocks(at, len)?;
        let member = self.devices.member(devid)?;
        if !member.is_written() {
            return Ok(true);
        }
        match member.device.discard(at, len) {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Ok(false),
            other => other.map(|()| true).map_err(|source| Error::Discard { devid, at, len, source }),
        }
    }
}

/// Adds a write to those of its device.
fn push<'a>(batches: &mut Vec<(&'a Arc<Member>, Vec<DeviceWrite>)>, to: &'a Arc<Member>, write: DeviceWrite) {
    match batches.iter_mut().find(|(member, _)| Arc::ptr_eq(member, to)) {
        Some((_, batch)) => batch.push(write),
        None => batches.push((to, vec![write])),
    }
}

/// Fails if a range of a device holds a superblock: a writer that uses this range has a wrong map
/// of free space.
fn keep_superblocks(at: Physical, len: u64) -> Result<()> {
    let hits = |copy: &Physical| at.0 < copy.0 + SUPERBLOCK_SIZE as u64 && copy.0 < at.0.saturating_add(len);
    if SUPERBLOCK_COPIES.iter().any(hits) {
        return Err(Error::BadRequest("a write or discard that hits a superblock"));
    }
    Ok(())
}

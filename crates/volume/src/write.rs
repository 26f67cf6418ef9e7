//! Writing, waiting and barriers. Tokens that nobody else can make prove which of these steps are
//! done. There are separate tokens for data and for nodes, since a flush takes both (invariant 1).

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Logical, Physical, Resilvered, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_threads::thread::Builder;

use crate::buffer::SharedBuffer;
use crate::chunk_map::IoStripe;
use crate::device::{DeviceTicket, DeviceWrite};
use crate::error::{Error, Result, WriteError};
use crate::in_flight::{InFlight, Registration};
use crate::member::{DeviceErrorKind, Member};
use crate::volume::Volume;

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

/// The content of files, as a kind of writes.
#[derive(Clone, Copy, Debug)]
pub enum Data {}

/// Nodes of trees, as a kind of writes.
#[derive(Clone, Copy, Debug)]
pub enum Nodes {}

/// Writes of one kind in flight. Dropping it waits for them, but loses their errors.
#[must_use = "only `Volume::wait` tells whether the writes succeeded"]
#[derive(Debug)]
pub struct Ticket<Kind> {
    parts: Vec<(Arc<Member>, DeviceTicket)>,
    in_flight: Registration,
    _kind: PhantomData<Kind>,
}

/// Proof that certain writes of one kind have completed, though they may not be durable. Only a
/// wait on a volume gives it; [`Volume::wait_all`] without writes gives the proof that nothing of
/// the kind had to be written. Completed writes stay completed, so the proof may be shared.
///
/// It can't be made without a volume:
/// ```compile_fail
/// let written = ubtrfs_volume::CompletedWrites::<ubtrfs_volume::Data>::default();
/// ```
/// Written nodes do not prove that the data to which they refer is written (invariant 1):
/// ```compile_fail
/// use ubtrfs_volume::{CompletedWrites, Nodes, Volume};
/// fn forgets_data(volume: &Volume, nodes: CompletedWrites<Nodes>) {
///     let _ = volume.flush(nodes.clone(), nodes);
/// }
/// ```
/// With both it compiles:
/// ```
/// use ubtrfs_volume::{CompletedWrites, Data, Flushed, Nodes, Result, Volume};
/// fn flush(volume: &Volume, data: CompletedWrites<Data>, nodes: CompletedWrites<Nodes>) -> Result<Flushed> {
///     volume.flush(data, nodes)
/// }
/// ```
#[must_use = "completed writes are durable only after a flush"]
#[derive(Clone, Debug)]
pub struct CompletedWrites<Kind> {
    /// Identifies the volume of the writes.
    volume: Arc<InFlight>,
    _kind: PhantomData<Kind>,
}

/// Proof that writes completed and that all devices were flushed afterwards. It can be used for one
/// superblock only:
/// ```compile_fail
/// use ubtrfs_format::Superblock;
/// use ubtrfs_volume::{Copies, Flushed, Volume};
/// fn twice(volume: &Volume, superblock: &Superblock, flushed: Flushed) {
///     let _first = volume.write_superblock(superblock, Copies::All, flushed);
///     let _second = volume.write_superblock(superblock, Copies::All, flushed);
/// }
/// ```
#[must_use = "a flush that no superblock follows publishes nothing"]
#[derive(Debug)]
pub struct Flushed {
    pub(crate) volume: Arc<InFlight>,
    /// The superblocks were read during the flush, and are those that were written last.
    pub(crate) has_looked: bool,
    /// How far a device had been brought up to the others before the flush.
    pub(crate) resilvered: Option<(Resilvered, u64)>,
}

impl<Kind> CompletedWrites<Kind> {
    /// Proof of both sets of writes.
    ///
    /// # Panics
    ///
    /// If they are of two volumes.
    pub fn merge(self, other: Self) -> Self {
        let Self { volume, .. } = other;
        assert!(Arc::ptr_eq(&self.volume, &volume), "invariant 1: a proof is of one volume");
        self
    }
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

impl Volume {
    /// Starts writes of data to all copies of their addresses, in no particular order. Nobody may
    /// read these addresses until the writes have been waited for.
    pub fn submit(&self, writes: Vec<Write>) -> Result<Ticket<Data>> {
        let ranges = writes.iter().map(Write::range).collect();
        self.start(writes, |in_flight| in_flight.register(ranges))
    }

    /// Starts writes of nodes, one node each. [`Volume::read_node`] finds them at once.
    ///
    /// # Panics
    ///
    /// If a node's header has another address or volume. Nothing is written then.
    pub fn submit_nodes(&self, writes: Vec<Write>) -> Result<Ticket<Nodes>> {
        for Write { at, data } in &writes {
            assert!(self.has_header_of(*at, data), "invariant 11: what is written at {at} is of another place");
            // Checking all of it makes an fsync a tenth slower (`ubtrfs-bench touches`).
            debug_assert!(self.is_node_for(*at, data), "invariant 11: what is written at {at} could not be read");
        }
        let nodes = writes.iter().map(|write| (write.range(), write.data.clone())).collect();
        self.start(writes, |in_flight| in_flight.register_nodes(nodes))
    }

    fn start<Kind>(
        &self,
        writes: Vec<Write>,
        register: impl FnOnce(&Arc<InFlight>) -> Registration,
    ) -> Result<Ticket<Kind>> {
        let registration = self.begin_as(register(&self.in_flight))?;
        let sector = u64::from(self.sector_size());
        let _not_during_repairs = self.submissions.read();
        let set = self.devices.load_full();
        let mut batches: Vec<(&Arc<Member>, Vec<DeviceWrite>)> = Vec::with_capacity(set.members.len());
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
            assert!(ticket.in_flight.is_of(&self.in_flight), "invariant 1: writes are waited for where they are");
            for (member, error) in ticket.finish() {
                let devid = member.devid();
                let logical = self.map.read().logical_of(devid, error.at);
                self.tolerate(&member, DeviceErrorKind::Write, Error::writing(devid, error, logical))?;
            }
        }
        Ok(CompletedWrites { volume: Arc::clone(&self.in_flight), _kind: PhantomData })
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
        for volume in [data.volume, nodes.volume] {
            assert!(Arc::ptr_eq(&volume, &self.in_flight), "invariant 1: a flush is of the volume that was written");
        }
        let resilvered = *self.resilvered.lock();
        let has_looked = ubtrfs_threads::thread::scope(|scope| {
            let is_far_and_due = self.reads_ahead() > 0 && self.is_look_due();
            let look = || Builder::new().name("look".into()).spawn_scoped(scope, || self.look_at_superblocks());
            // If no thread can be started, the superblocks are read later.
            let look = if is_far_and_due { look().ok() } else { None };
            self.barrier()?;
            // If the comparison failed, it is repeated while no other thread of ours writes
            // superblocks.
            Ok(look.is_some_and(|look| matches!(look.join(), Ok(Ok(())))))
        })?;
        Ok(Flushed { volume: Arc::clone(&self.in_flight), has_looked, resilvered })
    }

    /// Issues a barrier for what others wrote: makes everything durable that can be read. Gives no
    /// proof for a superblock. After a failure the volume turns read-only.
    pub fn barrier(&self) -> Result<()> {
        self.flush_devices()
    }

    pub(crate) fn flush_devices(&self) -> Result<()> {
        let set = self.devices.load_full();
        let flush = |member: &Member| {
            let devid = member.devid();
            let failed = |source| self.tolerate(member, DeviceErrorKind::Flush, Error::Flush { devid, source });
            member.device.flush().or_else(failed)
        };
        let members: Vec<&Arc<Member>> = set.written().collect();
        let result = match members.as_slice() {
            [member] => flush(member),
            members => ubtrfs_threads::thread::scope(|scope| {
                let flush = &flush;
                let begun: Vec<_> = members
                    .iter()
                    .map(|member| {
                        let thread = Builder::new().name("flush".into()).spawn_scoped(scope, move || flush(member));
                        // If this user may have no more threads, the flushes run one after the
                        // other.
                        thread.map_err(|_| flush(member))
                    })
                    .collect();
                let ends = begun.into_iter().map(|begun| match begun {
                    Ok(thread) => thread.join().unwrap_or(Err(Error::BadRequest("a flush panicked"))),
                    Err(flushed) => flushed,
                });
                ends.fold(Ok(()), Result::and)
            }),
        };
        if let Err(error) = result {
            // Invariant 13: nothing is written after that.
            self.set_read_only();
            return Err(error);
        }
        Ok(())
    }

    /// Discards these addresses on the devices: their content is no longer needed. Returns how many
    /// bytes that is on the devices, over all copies, or `None` if a device can't discard.
    pub fn discard(&self, at: Logical, len: u64) -> Result<Option<u64>> {
        let _under_way = self.begin()?;
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

    /// Discards a range of a device that no chunk has. Fails if a chunk has it.
    pub fn discard_unallocated(&self, devid: DeviceId, at: Physical, len: u64) -> Result<Option<u64>> {
        let _under_way = self.begin()?;
        if self.map.read().has_stripe_in(devid, at.0..at.0.saturating_add(len)) {
            return Err(Error::BadRequest("a discard of what a chunk has"));
        }
        Ok(self.discard_at(devid, at, len)?.then_some(len))
    }

    fn discard_at(&self, devid: DeviceId, at: Physical, len: u64) -> Result<bool> {
        keep_superblocks(at, len)?;
        let member = self.member(devid)?;
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

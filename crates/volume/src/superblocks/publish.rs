//! Writing the superblock: the point in time at which a commit or a log becomes the volume's state.
//!
//! This module completes invariant 1: writing a superblock takes the proof that everything it
//! refers to is durable, and gives the proof that the superblock itself is, which is required to
//! drop what came before. It also keeps invariant 12: the primary is read again first, so that no
//! other writer's superblock is overwritten; and invariant 54: before the first write all devices
//! have the same superblock. An epoch begins when a device gets no more superblocks (invariant 44).

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ubtrfs_format::items::DevItem;
use ubtrfs_format::{
    DeviceId, DevicesWithout, Epoch, Epochs, Generation, Logical, Physical, Resilvered, SUPERBLOCK_COPIES,
    SUPERBLOCK_SIZE, Superblock,
};
use ubtrfs_threads::time;

use super::{Copies, Superblocks, items};
use crate::buffer::{Buffer, SharedBuffer};
use crate::device::DeviceWrite;
use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::member::{DeviceErrorKind, Member};
use crate::replacing::{Replacing, forget_volume};
use crate::written::Flushed;

/// Proof that a superblock, and all that it refers to, is durable. Only writing one gives it:
/// ```compile_fail
/// use ubtrfs_format::{Generation, Logical};
/// let published = ubtrfs_volume::Published { generation: Generation(7), log_root: Logical(0) };
/// ```
#[must_use = "what came before is dropped only by this proof"]
#[derive(Debug)]
pub struct Published {
    generation: Generation,
    log_root: Logical,
}

impl Published {
    /// Returns the commit to which the superblock refers.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns whether the superblock refers to this log.
    pub fn has_log(&self, root: Logical) -> bool {
        self.log_root == root
    }
}

impl Superblocks {
    /// Writes the superblock to every device and makes it durable, by FUA or a flush. `proof` says
    /// that everything it refers to is durable.
    ///
    /// Each device's superblock gets its own address, and the device item that
    /// [`VolumeDevices::items`](crate::VolumeDevices::items) shows. The log gets its number, and
    /// the superblock the volume's epochs and the record of how far a device was brought up. Those
    /// in `superblock` are ignored. If the primary isn't the one that was read or written last,
    /// another process writes this volume: [`Error::ForeignWriter`]. (Commits always check that,
    /// log writes the first time and then once a second.) After that or any other error the volume
    /// is read-only, since it is not known which superblock a crash would leave.
    ///
    /// # Panics
    ///
    /// If the proof is another volume's.
    pub fn write(&self, superblock: &Superblock, copies: Copies, proof: Flushed) -> Result<Published> {
        let Flushed { volume, has_looked, resilvered } = proof;
        assert!(Arc::ptr_eq(&volume, self.shared.access.in_flight()), "invariant 1: a flush of this volume precedes");
        for root in [superblock.root, superblock.chunk_root, superblock.log_root] {
            assert!(
                root.0 == 0
                    || !self.shared.access.in_flight().touches(root, u64::from(self.shared.identity.node_size())),
                "invariant 1: a superblock refers to {root}, which is on its way"
            );
        }
        let _under_way = self.begin()?;
        let mut left_out = self.publishing();
        if self.shared.access.is_read_only() {
            // By invariant 13 what was durable before the failure stays.
            return Err(Error::ReadOnly);
        }
        if superblock.fsid != self.shared.identity.fsid() || superblock.generation < self.generation() {
            return Err(Error::BadRequest("a superblock of another volume or an older commit"));
        }
        if has_looked {
            self.note_look();
        }
        let ours = if has_looked { Ok(()) } else { self.require_ours(copies) };
        let before = self.current();
        let mut next = superblock.clone();
        next.number_log_after(&before);
        next.epochs = before.epochs.clone();
        // Invariant 45. A superblock with a log has no such record, since the log refers to later
        // changes.
        next.resilvered = self.resilver_record().if_it_holds(resilvered).filter(|_| next.log_root.0 == 0);
        if let Some(Resilvered { devid, has, .. }) = next.resilvered {
            let is_older = has < next.generation;
            assert!(is_older, "invariant 45: device {devid} has all of {has}, and is brought up to an older commit");
        }
        let result = ours.and_then(|()| self.publish(&before, next, copies, &mut left_out));
        if result.is_err() {
            self.shared.access.set_read_only();
        }
        result
    }

    /// Begins an epoch with this superblock if a device that does not get it may have the present
    /// one (invariant 44). For a device that has been away since before the mount, it is not known
    /// whether it has got superblocks that the others lack, as a power cut may have left it.
    ///
    /// `replaced` is the number of a device whose replacement is about to get a superblock with
    /// that number.
    fn begin_epoch(
        before: &Superblock,
        next: &mut Superblock,
        lagging: &[&Arc<Member>],
        replaced: Option<DeviceId>,
        left_out: &mut Vec<DeviceId>,
    ) {
        let without: DevicesWithout =
            lagging.iter().map(|member| member.devid()).filter(|devid| Some(*devid) != replaced).collect();
        let has = |member: &Arc<Member>, epochs: &Epochs| {
            member.primary.lock().candidates().any(|own| epochs.after(own.epochs.last()) == Ok(None))
        };
        let may_have = |member: &Arc<Member>| {
            let is_unknown = member.primary.lock().candidates().next().is_none();
            has(member, &before.epochs) || is_unknown && !left_out.contains(&member.devid())
        };
        if lagging.iter().any(|member| may_have(member)) {
            let (generation, _, log) = before.moment();
            let time = time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let (id, _) = uuid::Uuid::new_v4().as_u64_pair();
            let fingerprint = before.fingerprint();
            next.epochs.begin(Epoch { before: (generation, log), id, time, fingerprint, without });
        } else {
            next.epochs.keep_without(if before.is_of_ubtrfs() { without } else { DevicesWithout::default() });
        }
        *left_out = lagging.iter().map(|member| member.devid()).collect();
        for member in lagging {
            let devid = member.devid();
            assert!(!has(member, &next.epochs), "invariant 44: device {devid} is left out, and has the present epoch");
        }
    }

    fn publish(
        &self,
        before: &Superblock,
        mut superblock: Superblock,
        copies: Copies,
        left_out: &mut Vec<DeviceId>,
    ) -> Result<Published> {
        let generation = superblock.generation;
        let set = self.shared.devices.set();
        let lagging: Vec<&Arc<Member>> =
            set.members.iter().filter(|member| member.lags() && member.belongs_to(generation)).collect();
        let replaced = set.replacing.as_ref().map(|replacing| replacing.source);
        Self::begin_epoch(before, &mut superblock, &lagging, replaced, left_out);
        if superblock.num_devices > 1 {
            superblock.epochs.set_of_ubtrfs(generation);
        }
        let superblock = &superblock;
        // From this commit on the other devices need those that join by it. So the joining ones get
        // their superblocks before any other says that they belong to the volume.
        let joins = |member: &&Arc<Member>| copies == Copies::All && member.joins_by(generation);
        let current = set.current().filter(|member| member.belongs_to(generation));
        let (joining, others): (Vec<_>, Vec<_>) = current.partition(joins);
        for member in joining.iter().chain(&others) {
            assert!(
                lagging.iter().all(|lagging| lagging.devid() != member.devid()),
                "invariant 34: device {} lags, and gets a superblock",
                member.devid()
            );
        }
        if !joining.is_empty() {
            self.write_to(&items(&joining), superblock, copies)?;
        }
        let replacing = set.replacing.as_ref();
        let swapped = match replacing {
            Some(replacing) if self.has_swapped(&set, replacing, superblock, copies)? => Some(replacing),
            _ => None,
        };
        let is_source = |member: &&Arc<Member>| swapped.is_some_and(|replacing| replacing.source == member.devid());
        let others: Vec<_> = others.into_iter().filter(|member| !is_source(member)).collect();
        let mut others = items(&others);
        if let Some(replacing) = replacing.filter(|replacing| swapped.is_none() && replacing.is_alive())
            && let Ok(source) = set.member(replacing.source)
        {
            let item = *source.item.lock();
            others.push((&replacing.target, replacing.target_item(&item)));
        }
        self.write_to(&others, superblock, copies)?;
        if let Some(replacing) = swapped
            && !self.shared.devices.swap_target(replacing)
            && let Ok(source) = set.member(replacing.source)
        {
            // The target has failed since its superblocks were written.
            forget_volume(&replacing.target);
            self.write_to(&items(&[source]), superblock, copies)?;
        }
        // A log has the generation of the commit before it, so a lagging device may have that
        // generation, too.
        for member in lagging.into_iter().filter(|member| member.generation() < Some(generation)) {
            member.set_lagging(true);
        }
        if copies == Copies::All {
            self.shared.devices.forget_removed(generation);
        }
        let mut current = superblock.clone();
        if let Some(first) = self.shared.devices.set().current().next() {
            current.bytenr = SUPERBLOCK_COPIES[0];
            current.dev_item = *first.item.lock();
        }
        self.set_current(current);
        self.shared.devices.say_due_bad_copies();
        Ok(Published { generation, log_root: superblock.log_root })
    }

    /// Writes the target's superblocks if this commit swaps the devices. Returns whether the target
    /// has the superblocks that put it into the source's place. A target that fails them is given
    /// up; then the source keeps its place.
    fn has_swapped(
        &self,
        set: &DeviceSet,
        replacing: &Replacing,
        superblock: &Superblock,
        copies: Copies,
    ) -> Result<bool> {
        if copies != Copies::All || !replacing.swaps_by(superblock.generation) {
            return Ok(false);
        }
        let item = *set.member(replacing.source)?.item.lock();
        self.write_to(&[(&replacing.target, item)], superblock, copies)?;
        if replacing.is_alive() {
            return Ok(true);
        }
        forget_volume(&replacing.target);
        Ok(false)
    }

    /// Writes superblocks to these devices, with these items, and makes them durable.
    pub(super) fn write_to(
        &self,
        members: &[(&Arc<Member>, DevItem)],
        superblock: &Superblock,
        copies: Copies,
    ) -> Result<()> {
        let mut written = Vec::with_capacity(members.len());
        for (member, item) in members {
            let writes = encode(member, *item, superblock, copies)?;
            let primary = writes.first().map(|write| write.data.clone());
            let device = &member.device;
            let ticket = if device.has_fua() { device.submit_fua(writes) } else { device.submit(writes) };
            written.push((member, primary, ticket));
        }
        let mut result = Ok(());
        let mut primaries = Vec::with_capacity(written.len());
        for (member, primary, ticket) in written {
            match ticket.wait() {
                Ok(()) => primaries.push((member, primary)),
                Err(error) => {
                    if let Some(primary) = primary {
                        member.primary.lock().may_have_become(primary);
                    }
                    let error = Error::writing(member.devid(), error, None);
                    result = result.and(self.shared.devices.tolerate(member, DeviceErrorKind::Write, error));
                }
            }
        }
        result?;
        if !members.iter().all(|(member, _)| member.lags() || member.device.has_fua()) {
            self.shared.devices.flush()?;
        }
        for (member, primary) in primaries {
            if let Some(primary) = primary {
                member.primary.lock().has_become(&primary);
            }
        }
        Ok(())
    }
}

/// Returns the copies of one device's superblock, the primary first.
fn encode(member: &Member, item: DevItem, superblock: &Superblock, copies: Copies) -> Result<Vec<DeviceWrite>> {
    let mut own = superblock.clone();
    own.dev_item = item;
    let size = own.dev_item.total_bytes.min(member.device.size());
    let wanted = match copies {
        Copies::All => &SUPERBLOCK_COPIES[..],
        Copies::Primary => &SUPERBLOCK_COPIES[..1],
    };
    let in_range = |at: &&Physical| at.0 + (SUPERBLOCK_SIZE as u64) < size;
    wanted
        .iter()
        .filter(in_range)
        .map(|at| {
            own.bytenr = *at;
            let bytes = own.to_bytes().map_err(Error::Encode)?;
            Ok(DeviceWrite { at: *at, data: SharedBuffer::from(Buffer::from(&bytes[..])) })
        })
        .collect()
}

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
use ubtrfs_threads::atomic::Ordering;
use ubtrfs_threads::time;

use crate::buffer::{Buffer, SharedBuffer};
use crate::device::DeviceWrite;
use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::faults::{self, SuperblockFault};
use crate::member::{DeviceErrorKind, Member};
use crate::replacing::{Replacing, forget_volume};
use crate::staleness::is_same;
use crate::volume::Volume;
use crate::write::Flushed;

/// Which copies of the superblock are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// All copies within the device: for commits.
    All,
    /// The first copy: for log writes, which a commit soon follows.
    Primary,
}

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

impl Volume {
    /// Writes the superblock to every device and makes it durable, by FUA or a flush. `proof` says
    /// that everything it refers to is durable.
    ///
    /// Each device's superblock gets its own address, and the device item that [`Volume::devices`]
    /// shows. The log gets its number, and the superblock the volume's epochs and the record of how
    /// far a device was brought up. Those in `superblock` are ignored. If the primary isn't the one
    /// that was read or written last, another process writes this volume: [`Error::ForeignWriter`].
    /// (Commits always check that, log writes the first time and then once a second.) After that or
    /// any other error the volume is read-only, since it is not known which superblock a crash
    /// would leave.
    ///
    /// # Panics
    ///
    /// If the proof is another volume's.
    pub fn write_superblock(&self, superblock: &Superblock, copies: Copies, proof: Flushed) -> Result<Published> {
        let Flushed { volume, has_looked, resilvered } = proof;
        assert!(Arc::ptr_eq(&volume, &self.in_flight), "invariant 1: a flush of this volume precedes");
        for root in [superblock.root, superblock.chunk_root, superblock.log_root] {
            assert!(
                root.0 == 0 || !self.in_flight.touches(root, u64::from(self.node_size())),
                "invariant 1: a superblock refers to {root}, which is on its way"
            );
        }
        let _under_way = self.begin()?;
        let mut left_out = self.publishing.lock();
        if self.is_read_only() {
            // By invariant 13 what was durable before the failure stays.
            return Err(Error::ReadOnly);
        }
        if superblock.fsid != self.fsid() || superblock.generation < self.superblock.read().generation {
            return Err(Error::BadRequest("a superblock of another volume or an older commit"));
        }
        if has_looked {
            self.looks.lock().note_look();
        }
        let ours = if has_looked { Ok(()) } else { self.require_ours(copies) };
        let before = self.superblock();
        let mut next = superblock.clone();
        next.number_log_after(&before);
        next.epochs = before.epochs.clone();
        // Invariant 45. A superblock with a log has no such record, since the log refers to later
        // changes.
        next.resilvered = self.still_resilvered(resilvered).filter(|_| next.log_root.0 == 0);
        if let Some(Resilvered { devid, has, .. }) = next.resilvered {
            let is_older = has < next.generation;
            assert!(is_older, "invariant 45: device {devid} has all of {has}, and is brought up to an older commit");
        }
        let result = ours.and_then(|()| self.publish(&before, next, copies, &mut left_out));
        if result.is_err() {
            self.set_read_only();
        }
        result
    }

    /// Writes the superblock that counts to all devices that have another one, before anything else
    /// is written. They differ if a crash came while superblocks were written. A device with a
    /// newer one must not keep it, since its blocks are overwritten from now on. A device with an
    /// older one would be two commits behind after the next crash (invariant 54). Everything that
    /// writes to the volume calls this first.
    pub fn level_superblocks(&self) -> Result<()> {
        if self.is_level() {
            return Ok(());
        }
        let mut about_to_join = self.about_to_join.lock();
        if self.is_level() {
            return Ok(());
        }
        let (counts, set) = (self.superblock(), self.devices.load_full());
        let others: Vec<&Arc<Member>> = set
            .current()
            .filter(|member| member.primary.lock().superblock().is_none_or(|own| !is_same(&own, &counts)))
            .collect();
        let given_up: Vec<&Arc<Member>> = set.members.iter().filter(|member| member.is_given_up()).collect();
        if !others.is_empty() || !about_to_join.is_empty() || !given_up.is_empty() {
            self.look_at_superblocks()?;
        }
        if !others.is_empty() || !about_to_join.is_empty() {
            tracing::info!("a crash has left devices with another superblock: they get the one that counts");
            about_to_join.drain(..).for_each(|member| forget_volume(&member));
            self.write_to(&items(&others), &counts, Copies::All)?;
        }
        if !given_up.is_empty() {
            self.write_to(&items(&given_up), &before_all_others(&counts), Copies::All)?;
            for member in given_up {
                member.set_given_up_on_disk();
            }
        }
        self.is_level.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn is_level(&self) -> bool {
        self.is_level.load(Ordering::Acquire)
    }

    /// Fails if another process has written a superblock. Commits always check that, logs if a
    /// check is due.
    fn require_ours(&self, copies: Copies) -> Result<()> {
        if copies == Copies::All || self.is_look_due() {
            self.look_at_superblocks()?;
            self.looks.lock().note_look();
        }
        Ok(())
    }

    /// Returns whether a log has to compare the superblocks: the last comparison is too long ago,
    /// or one was found to be lost lately.
    pub(crate) fn is_look_due(&self) -> bool {
        self.looks.lock().is_due()
    }

    /// Fails if another process has written a superblock. A device that returns no superblock, or
    /// one that we had written earlier, while others still have ours, has failed. It lags from now
    /// on if the others have all that it has. It may have lost not only the superblock but
    /// everything that it has got since the one that it returns (invariant 34).
    pub(crate) fn look_at_superblocks(&self) -> Result<()> {
        let mut failed = Ok(());
        let set = self.devices.load();
        let (mut looked, mut members) = (false, set.current());
        members.try_for_each(|member| match look_at_superblock(member) {
            Look::Unread(error) => {
                member.note_error(DeviceErrorKind::Read);
                failed = Err(error);
                Ok(())
            }
            // The device then lags, so its superblock is not overwritten.
            Look::Lost(error) => {
                self.looks.lock().note_lost();
                self.tolerate(member, DeviceErrorKind::Corruption, error)
            }
            // By invariant 12 the other writer's superblock stays.
            Look::Foreign(error) => Err(error),
            Look::Ours => {
                looked = true;
                Ok(())
            }
        })?;
        // A device that can't be read does not show who writes; another one does.
        if looked { Ok(()) } else { failed }
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
        let set = self.devices.load_full();
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
            && !self.swap_target(replacing)
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
            self.forget_removed(generation);
        }
        let mut current = superblock.clone();
        if let Some(first) = self.devices.load().current().next() {
            current.bytenr = SUPERBLOCK_COPIES[0];
            current.dev_item = *first.item.lock();
        }
        *self.superblock.write() = current;
        self.faults.say_rest(false);
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

    /// Puts the target into the source's place, as superblocks say that are durable. Returns false
    /// if the target has failed since.
    fn swap_target(&self, replacing: &Replacing) -> bool {
        let _turn = self.changing_devices.lock();
        // From here on a failure of the target is treated as that of any device.
        let turn = self.giving_up.lock();
        if !replacing.is_alive() {
            return false;
        }
        let mut set = (*self.devices.load_full()).clone();
        set.replacing = None;
        let Some(place) = set.members.iter_mut().find(|member| member.devid() == replacing.source) else {
            return false;
        };
        let source = std::mem::replace(place, Arc::clone(&replacing.target));
        let item = *source.item.lock();
        replacing.target.take_place(item);
        self.devices.store(Arc::new(set));
        drop(turn);
        forget_volume(&source);
        true
    }

    /// Writes superblocks to these devices, with these items, and makes them durable.
    fn write_to(&self, members: &[(&Arc<Member>, DevItem)], superblock: &Superblock, copies: Copies) -> Result<()> {
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
                    result = result.and(self.tolerate(member, DeviceErrorKind::Write, error));
                }
            }
        }
        result?;
        if !members.iter().all(|(member, _)| member.lags() || member.device.has_fua()) {
            self.flush_devices()?;
        }
        for (member, primary) in primaries {
            if let Some(primary) = primary {
                member.primary.lock().has_become(&primary);
            }
        }
        Ok(())
    }
}

/// Returns a superblock that is older than any other one of the volume. A device that has it has
/// missed all commits.
fn before_all_others(counts: &Superblock) -> Superblock {
    let mut first = counts.clone();
    first.drop_log();
    first.resilvered = None;
    (first.generation, first.chunk_root_generation, first.epochs) = (Generation(0), Generation(0), Epochs::default());
    if first.cache_generation.0 != u64::MAX {
        first.cache_generation = Generation(0);
    }
    first
}

/// Pairs devices with their current items.
fn items<'a>(members: &[&'a Arc<Member>]) -> Vec<(&'a Arc<Member>, DevItem)> {
    members.iter().map(|member| (*member, *member.item.lock())).collect()
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

/// What was found in the place of the primary superblock.
enum Look {
    /// The superblock that was read or written last.
    Ours,
    /// It can't be read.
    Unread(Error),
    /// No superblock, or an earlier one: a write was lost.
    Lost(Error),
    /// Another writer's superblock.
    Foreign(Error),
}

fn look_at_superblock(member: &Member) -> Look {
    let (at, devid) = (SUPERBLOCK_COPIES[0], member.devid());
    let mut is_again = false;
    loop {
        let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE);
        if let Err(source) = member.device.read_at(at, &mut bytes) {
            return Look::Unread(Error::Read { devid, at, logical: None, len: SUPERBLOCK_SIZE, source });
        }
        let mut ours = member.primary.lock();
        if ours.may_be(&bytes) {
            return Look::Ours;
        }
        let found = Superblock::parse(&bytes, at).ok().map(|found| found.generation);
        if found.is_none() && !std::mem::replace(&mut is_again, true) {
            // A device may return the right content the next time.
            member.note_error(DeviceErrorKind::Corruption);
            continue;
        }
        let expected = ours.newest_generation().unwrap_or_default();
        if !ours.is_lost_by(&bytes) || faults::has(SuperblockFault::MistakeLostForForeign) {
            return Look::Foreign(Error::ForeignWriter { devid, expected, found });
        }
        ours.note_lost(&bytes);
        drop(ours);
        member.set_has_blocks_of(Generation(0));
        return Look::Lost(Error::LostSuperblock { devid, expected, found });
    }
}

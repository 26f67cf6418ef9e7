//! Opening a volume: decides which superblock is believed, and checks what must hold before
//! anything is read or written.

mod chunk_tree;
mod salvage;

use std::sync::Arc;

use ubtrfs_format::{DeviceId, SUPERBLOCK_COPIES, Superblock, SuperblockFlags};

use self::chunk_tree::system_chunks;
use crate::device::Device;
use crate::device_set::DeviceSet;
use crate::error::{Error, Half, Result};
use crate::identity::VolumeIdentity;
use crate::member::Member;
use crate::replacing::TARGET;
use crate::superblock_copy::{Found, find_superblock};
use crate::superblock_order::{Descent, descent, has_blocks_of, missed, was_left_out};
use crate::volume::{Parts, Volume};

/// How to open a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Nothing is written, not even repairs. Some damage is tolerated that a writer may not
    /// tolerate.
    pub read_only: bool,
}

impl Volume {
    /// Opens the volume on these devices; all of its devices must be given, in any order.
    ///
    /// The primary superblock is believed. If it is damaged and another copy is good, a read-only
    /// open uses that copy. Of several devices the newest superblock counts, by its commit and then
    /// by its log, since a crash can leave some of them one superblock behind. But the one before
    /// it counts if a crash certainly came before the newest was acknowledged, and it is not
    /// certain that all devices have what the newest refers to.
    ///
    /// Devices that were each written without the other one are not joined: [`Error::Apart`].
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Self> {
        Self::open_some(devices, options, false, &[])
    }

    /// Opens the volume on those of its devices that are there. Data that only missing devices
    /// have, and that does not follow from parity, can't be read. For writing, the devices must
    /// have all data, else the error is [`Error::MissingData`].
    pub fn open_degraded(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Self> {
        Self::open_some(devices, options, true, &[])
    }

    /// Opens the volume for writing and ignores what is on the given-up devices, whatever their
    /// superblocks say: they lag, and what only they have is lost when they are brought up to the
    /// others. With `degraded`, others may be missing. A device that has all that the others have,
    /// and more, can't be given up: [`Error::OthersLag`].
    pub fn open_giving_up(given_up: &[DeviceId], devices: Vec<Arc<dyn Device>>, degraded: bool) -> Result<Self> {
        Self::open_some(devices, OpenOptions { read_only: false }, degraded, given_up)
    }

    /// Returns the superblock by which a volume with this device would be opened.
    ///
    /// # Errors
    ///
    /// If the device can't be opened so: [`Error::NotBtrfs`], [`Error::SuperblockUnread`],
    /// [`Error::Superblock`] and [`Error::PrimarySuperblock`].
    pub fn superblock_to_open(device: &dyn Device, options: OpenOptions) -> Result<Superblock> {
        find_superblock(device, options.read_only).map(|found| found.superblock)
    }

    fn open_some(
        devices: Vec<Arc<dyn Device>>,
        options: OpenOptions,
        degraded: bool,
        given_up: &[DeviceId],
    ) -> Result<Self> {
        let (mut found, target) = sort_out(find_superblocks(devices.clone(), options)?)?;
        let counts = |(_, found): &&FoundDevice| !given_up.contains(&found.superblock.dev_item.devid);
        let Some(mut newest) = newest_of(found.iter().filter(counts)) else {
            return Err(if given_up.is_empty() { Error::NoDevice } else { Error::AllGivenUp });
        };
        if let Some((_, only)) = found.iter().find(|one| !counts(one) && is_ahead(&one.1.superblock, &newest)) {
            let (ahead, behind) = (only.superblock.dev_item.devid, newest.dev_item.devid);
            return Err(Error::OthersLag { ahead, behind });
        }
        let mut apart = apart_from(&found, &newest);
        apart.retain(|devid| !given_up.contains(devid));
        if !apart.is_empty()
            && let Some(without) = Self::without_its_rivals(&devices, &found, options)?
        {
            let rivals = apart_from(&found, &without);
            tracing::warn!(?rivals, "they are no devices of the volume, which was about to get them: left out");
            found.retain(|(_, found)| !rivals.contains(&found.superblock.dev_item.devid));
            (newest, apart) = (without, Vec::new());
        }
        let behind = behind(&found, &newest, given_up);
        let both = apart.first().map(|other| halves(&found, &newest, *other));
        let volume = match Self::open_by(found, newest.clone(), options, degraded) {
            Err(_)
                if !options.read_only
                    && let Some(both) = both =>
            {
                return Err(Error::Apart(both.into()));
            }
            Err(Error::MissingDevices { have, need, .. }) if !degraded && have < need => {
                let Ok(others) = Self::open_degraded(devices, OpenOptions { read_only: true }) else {
                    return Err(Error::MissingDevices { have, need, missing: Vec::new() });
                };
                let need = others.devices().items().len() as u64;
                return Err(Error::MissingDevices { have, need, missing: others.devices().missing() });
            }
            opened => opened?,
        };
        // A device that no longer belongs to the volume is ignored, whatever it has.
        apart.retain(|devid| volume.devices().member(*devid).is_ok());
        if let (Some(both), false, false) = (both, apart.is_empty(), options.read_only) {
            return Err(Error::Apart(both.into()));
        }
        for devid in apart {
            tracing::warn!(
                device = devid.0,
                "it was written without device {}, and that without it",
                newest.dev_item.devid
            );
            let member = volume.devices().member(devid)?;
            member.set_descent(Descent::Apart);
            member.set_lagging(true);
        }
        let behind = volume.without_removed(behind);
        if !volume.is_unfinished(&behind) {
            volume.judge_stale_devices(&behind)?;
            volume.give_up(given_up);
            return Ok(volume.with_target(target));
        }
        let is_older = |found: &FoundDevice| counts(&found) && missed(&newest, &found.1.superblock) > 0;
        let (before, others): (Vec<_>, Vec<_>) = find_superblocks(devices, options)?.into_iter().partition(is_older);
        let older = newest_of(before.iter()).ok_or(Error::NoDevice)?;
        // These devices have replaced others by the commit that does not count. The others are
        // still there.
        let replaces = |(_, newer): &FoundDevice| {
            before.iter().any(|(_, found)| newer.superblock.has_the_number_of(&found.superblock))
        };
        let (replacements, others): (Vec<_>, Vec<_>) = others.into_iter().partition(replaces);
        let (found, _) = sort_out(before.into_iter().chain(others).collect())?;
        let behind = self::behind(&found, &older, given_up);
        let volume = Self::open_by(found, older, options, degraded)?;
        volume.superblocks().leave_out(replacements.into_iter().map(member_of));
        let behind = volume.without_removed(behind);
        volume.judge_stale_devices(&behind)?;
        volume.give_up(given_up);
        Ok(volume.with_target(target))
    }

    fn give_up(&self, given_up: &[DeviceId]) {
        for member in given_up.iter().filter_map(|devid| self.devices().member(*devid).ok()) {
            tracing::warn!(device = member.devid().0, "what only it has is given up");
            member.give_up();
        }
    }

    /// Returns the superblock of the newest commit in a special case: there are several newest
    /// commits that exclude each other, and one of them is of a volume that lacks the devices of
    /// the others, on which nothing is allocated. This happens when a crash came after a new device
    /// had its superblock and before the others had theirs, and the others were used without it
    /// since then. Devices on which something is allocated have a history of their own, which may
    /// not be given up.
    fn without_its_rivals(
        devices: &[Arc<dyn Device>],
        found: &[FoundDevice],
        options: OpenOptions,
    ) -> Result<Option<Superblock>> {
        let newest = found.iter().map(|(_, found)| found.superblock.generation).max();
        let mut commits: Vec<(&Superblock, Vec<DeviceId>)> = Vec::new();
        for (_, one) in found.iter().filter(|(_, found)| Some(found.superblock.generation) == newest) {
            let rivals = apart_from(found, &one.superblock);
            if !commits.iter().any(|(_, known)| *known == rivals) {
                commits.push((&one.superblock, rivals));
            }
        }
        let is_empty = |rival: &DeviceId| {
            let mut rivals = found.iter().filter(|(_, found)| found.superblock.dev_item.devid == *rival);
            rivals.all(|(_, found)| found.superblock.dev_item.bytes_used == 0)
        };
        for (superblock, rivals) in commits.into_iter().filter(|(_, rivals)| rivals.iter().all(is_empty)) {
            let (mut own, _) = sort_out(find_superblocks(devices.to_vec(), options)?)?;
            own.retain(|(_, found)| !rivals.contains(&found.superblock.dev_item.devid));
            let opened = Self::open_by(own, superblock.clone(), OpenOptions { read_only: true }, false);
            if opened.is_ok_and(|volume| rivals.iter().all(|rival| volume.devices().member(*rival).is_err())) {
                return Ok(Some(superblock.clone()));
            }
        }
        Ok(None)
    }

    /// Remembers, in the volume, the device that was to replace another one.
    fn with_target(self, target: Option<FoundDevice>) -> Self {
        let is_ours = |(_, found): &FoundDevice| found.superblock.fsid == self.fsid();
        self.replacement().found(target.filter(is_ours).map(member_of));
        self
    }

    /// Returns the list without the devices that the volume no longer has.
    fn without_removed(&self, mut behind: Vec<(DeviceId, u64)>) -> Vec<(DeviceId, u64)> {
        behind.retain(|(devid, _)| self.devices().member(*devid).is_ok());
        behind
    }

    /// Returns whether the newest commit or log does not count, given how many superblocks each
    /// device has missed.
    ///
    /// Devices that the volume can't do without are not given up. So if it can't do without all
    /// those that are behind, a crash came while the superblocks were written, and the commit or
    /// log was not acknowledged. If one of these devices may nevertheless have been given up
    /// meanwhile, it lacks something that the superblock refers to, and it is not known which one
    /// it is. But all devices have what was acknowledged before.
    fn is_unfinished(&self, behind: &[(DeviceId, u64)]) -> bool {
        let is_last = |devid: DeviceId| behind.contains(&(devid, 1));
        let is_behind = |devid: DeviceId| behind.iter().any(|(it, missed)| *it == devid && *missed > 0);
        let is_lost = |devid: DeviceId| is_behind(devid) && !is_last(devid);
        let set = self.devices().set();
        let may_have_failed = |one: &Arc<Member>| {
            is_last(one.devid()) && self.devices().survive(|devid: DeviceId| devid == one.devid() || is_lost(devid))
        };
        set.members.iter().all(|member| !member.is_missing())
            && !self.devices().survive(is_behind)
            && set.members.iter().any(may_have_failed)
    }

    /// Marks the devices that lag, given how many superblocks each has missed.
    ///
    /// A device that has missed one superblock may have missed other writes, too; or a crash came
    /// while the superblocks were written, after all that they refer to. If the volume can't do
    /// without all these devices together, it was a crash.
    fn judge_stale_devices(&self, behind: &[(DeviceId, u64)]) -> Result<()> {
        let lost = |least: u64| {
            move |devid: DeviceId| {
                behind.iter().any(|(stale, missed)| *stale == devid && *missed >= least)
                    || self.devices().member(devid).is_ok_and(|member| member.is_missing())
            }
        };
        let least = if self.devices().survive(lost(1)) { 1 } else { 2 };
        let counts = self.superblocks().current();
        for (devid, missed) in behind.iter().filter(|(_, missed)| *missed >= least) {
            if *missed < u64::MAX {
                tracing::warn!(device = devid.0, "the other devices have written {missed} superblocks since its own");
            }
            let member = self.devices().member(*devid)?;
            let own = member.primary.lock().superblock();
            if let Some(generation) = own.as_ref().and_then(|own| has_blocks_of(&counts, own)) {
                member.set_has_blocks_of(generation);
            }
            // A device without a superblock is taken to have nothing.
            if member.shares_history() {
                member.set_descent(own.map_or(Descent::Plausible, |own| descent(&counts, &own)));
            }
            member.set_lagging(true);
            self.superblocks().resilver_record().remember(&counts, &member);
        }
        self.require_data(lost(least))
    }

    /// Fails if the volume is to be written and devices are lost that have data which no other has.
    fn require_data(&self, lost: impl Fn(DeviceId) -> bool) -> Result<()> {
        if self.is_read_only() || self.devices().survive(&lost) {
            return Ok(());
        }
        let lost = self.devices().items().into_iter().map(|item| item.devid).filter(|devid| lost(*devid));
        Err(Error::MissingData(lost.collect()))
    }

    /// Opens the volume on these devices (in the order of their numbers) by this superblock. The
    /// chunk tree tells which devices the volume has: if a superblock counts another number of
    /// them, it is believed in everything else, as by the kernel, and the next commit corrects the
    /// number.
    pub(crate) fn open_by(
        found: Vec<FoundDevice>,
        superblock: Superblock,
        options: OpenOptions,
        degraded: bool,
    ) -> Result<Self> {
        let (have, need) = (found.len() as u64, superblock.num_devices);
        let before = Self::before_chunk_tree(found, superblock, options)?;
        let volume = before.with_chunk_tree(degraded).map_err(|error| {
            // What can't be read may be on the devices that were not given.
            let lacks = !degraded && have < need;
            if lacks { Error::MissingDevices { have, need, missing: Vec::new() } } else { error }
        })?;
        require_counted(volume.devices().set().present().count() as u64, need)?;
        Ok(volume)
    }

    /// Opens the volume on these devices by this superblock, for reading only, without those that
    /// are missing and as far as its chunk tree can be read. Returns the error of the chunk tree as
    /// well, if parts of that can't be read.
    pub(crate) fn open_by_what_is_left(
        found: impl Fn() -> Vec<FoundDevice>,
        superblock: &Superblock,
    ) -> Result<(Self, Option<Error>)> {
        let read_only = OpenOptions { read_only: true };
        match Self::open_by(found(), superblock.clone(), read_only, true) {
            Ok(volume) => Ok((volume, None)),
            // The contents of another device are not those that the volume had there.
            Err(error @ Error::WrongDevice(_)) => Err(error),
            Err(error) => {
                let before = Self::before_chunk_tree(found(), superblock.clone(), read_only);
                match before.and_then(|before| before.with_salvaged_chunks()) {
                    Ok(volume) => Ok((volume, Some(error))),
                    Err(_) => Err(error),
                }
            }
        }
    }

    /// Returns the volume as the superblock alone describes it: it has the chunks of the chunk
    /// tree, and only the devices that were given.
    fn before_chunk_tree(found: Vec<FoundDevice>, superblock: Superblock, options: OpenOptions) -> Result<Self> {
        check_members(&found, &superblock, options)?;
        if superblock.flags.contains(SuperblockFlags::SEEDING) && !options.read_only {
            return Err(Error::Seed);
        }
        let member = |(device, found): (Arc<dyn Device>, Found)| {
            let new = if found.may_be_seed_of(superblock.fsid) { Member::seed } else { Member::new };
            Arc::new(new(device, found.superblock.dev_item, found.bytes))
        };
        let members: Vec<Arc<Member>> = found.into_iter().map(member).collect();
        let seeds = members.iter().filter(|member| member.is_seed()).map(|member| member.item.lock().fsid).collect();
        Ok(Self::assemble(Parts {
            identity: VolumeIdentity::of(&superblock, seeds),
            map: system_chunks(&superblock)?,
            devices: DeviceSet { members, replacing: None },
            superblock,
            about_to_join: Vec::new(),
            corrected_count: None,
            read_only: options.read_only,
            is_open: false,
            faults: Arc::default(),
            checksum_errors: 0,
        }))
    }
}

/// Finds the superblock by which each device is opened.
fn find_superblocks(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Vec<(Arc<dyn Device>, Found)>> {
    let mut found = Vec::with_capacity(devices.len());
    for device in devices {
        let own = find_superblock(&*device, options.read_only)?;
        if own.superblock.bytenr != SUPERBLOCK_COPIES[0] {
            tracing::warn!(copy = own.superblock.bytenr.0, "the primary superblock is damaged: a copy is used");
        }
        found.push((device, own));
    }
    Ok(found)
}

/// Returns the newest superblock of some devices. A seed beside another volume's device is a part
/// of that volume, so the seed's superblock counts only if there is no other.
fn newest_of<'a>(found: impl Iterator<Item = &'a FoundDevice>) -> Option<Superblock> {
    let newest = found.max_by_key(|(_, found)| (!found.is_seed(), found.superblock.moment()));
    newest.map(|(_, found)| found.superblock.clone())
}

/// Returns how many superblocks each device has missed up to this one. A seed is not listed, a
/// device that is given up has missed all, and one that was left out has missed more than one.
fn behind(found: &[FoundDevice], newest: &Superblock, given_up: &[DeviceId]) -> Vec<(DeviceId, u64)> {
    let of = |(_, found): &FoundDevice| {
        let devid = found.superblock.dev_item.devid;
        let missed = match missed(newest, &found.superblock) {
            1 if was_left_out(newest, &found.superblock) => 2,
            missed => missed,
        };
        (devid, if given_up.contains(&devid) { u64::MAX } else { missed })
    };
    found.iter().filter(|(_, found)| !found.may_be_seed_of(newest.fsid)).map(of).collect()
}

/// Returns the devices that were written without the device of this superblock, which is the
/// newest, while that was written without them: they have different commits with the same number,
/// or were left out at different times.
fn apart_from(found: &[FoundDevice], newest: &Superblock) -> Vec<DeviceId> {
    let own = found.iter().map(|(_, found)| &found.superblock).filter(|own| own.fsid == newest.fsid);
    let apart = own.filter(|own| own.moment() <= newest.moment() && descent(newest, own) == Descent::Apart);
    apart.map(|own| own.dev_item.devid).collect()
}

/// Returns whether the device of the first superblock has all that the device of the other has, and
/// more.
fn is_ahead(own: &Superblock, other: &Superblock) -> bool {
    own.fsid == other.fsid && own.moment() > other.moment() && descent(own, other) != Descent::Apart
}

/// Describes this superblock's device and another one that were written without each other.
fn halves(found: &[FoundDevice], newest: &Superblock, other: DeviceId) -> [Half; 2] {
    let is_other = |(_, found): &&FoundDevice| found.superblock.dev_item.devid == other;
    let other = found.iter().find(is_other).map_or(newest, |(_, found)| &found.superblock);
    let half = |of: &Superblock, than: &Superblock| Half {
        devid: of.dev_item.devid,
        generation: of.generation,
        since: of.epochs.without(&than.epochs).map(|epoch| (epoch.before.0, epoch.time)),
    };
    [half(newest, other), half(other, newest)]
}

/// A device, and the superblock that it is opened by.
type FoundDevice = (Arc<dyn Device>, Found);

/// Makes it a device of the volume.
fn member_of((device, found): FoundDevice) -> Arc<Member> {
    Arc::new(Member::new(device, found.superblock.dev_item, found.bytes))
}

/// Returns the devices in the order of their numbers, and the one that was to replace another one.
/// Of devices with the same number only the newest is used, and the others are left as they are:
/// the newest has replaced them, or got their number after they were removed, or they are old
/// copies of it, which the user may want to keep.
fn sort_out(mut found: Vec<FoundDevice>) -> Result<(Vec<FoundDevice>, Option<FoundDevice>)> {
    let newest_first = |(_, found): &FoundDevice| {
        let Superblock { dev_item, generation, .. } = &found.superblock;
        (dev_item.devid, std::cmp::Reverse(*generation))
    };
    found.sort_by_key(newest_first);
    let (mut devices, mut targets): (Vec<FoundDevice>, Vec<FoundDevice>) = Default::default();
    for (device, found) in found {
        let own = &found.superblock;
        let is_older = |(_, newer): &FoundDevice| newer.superblock.has_the_number_of(own);
        if own.dev_item.devid == TARGET {
            targets.push((device, found));
        } else if devices.last().is_some_and(is_older) {
            tracing::warn!(device = own.dev_item.devid.0, "another one has its number, and is newer: left out");
        } else {
            devices.push((device, found));
        }
    }
    if targets.len() > 1 {
        return Err(Error::DuplicateDevice(TARGET));
    }
    Ok((devices, targets.pop()))
}

/// Fails if a volume whose superblock counts one device would have more. The kernel knows of no
/// other device of such a volume, so it would write the volume without them.
fn require_counted(have: u64, need: u64) -> Result<()> {
    if need == 1 && have > need {
        return Err(Error::MissingDevices { have, need, missing: Vec::new() });
    }
    Ok(())
}

/// Checks that these devices may belong to one volume that can be opened in the requested mode.
fn check_members(found: &[(Arc<dyn Device>, Found)], superblock: &Superblock, options: OpenOptions) -> Result<()> {
    let mut last: Option<DeviceId> = None;
    for (device, found) in found {
        let (own, is_seed) = (&found.superblock, found.may_be_seed_of(superblock.fsid));
        let is_same = own.fsid == superblock.fsid && own.metadata_fsid() == superblock.metadata_fsid();
        if !is_seed && !is_same {
            return Err(Error::ForeignDevice { expected: superblock.fsid, found: own.fsid });
        }
        let item = &own.dev_item;
        if last == Some(item.devid) {
            return Err(Error::DuplicateDevice(item.devid));
        }
        last = Some(item.devid);
        if own.node_size != superblock.node_size
            || own.sector_size != superblock.sector_size
            || own.checksum != superblock.checksum
        {
            return Err(Error::BadRequest("the devices' superblocks disagree about the volume's geometry"));
        }
        if !is_seed && own.generation != superblock.generation {
            tracing::warn!(device = item.devid.0, generation = own.generation.0, "an older superblock than the newest");
        }
        if options.read_only {
            continue;
        }
        if device.is_read_only() && !is_seed {
            return Err(Error::ReadOnly);
        }
        if device.size() < item.total_bytes {
            return Err(Error::Truncated { devid: item.devid, have: device.size(), need: item.total_bytes });
        }
    }
    // Devices that were removed from the volume have older superblocks than the others. Those that
    // were added by a commit that does not count have newer ones.
    let is_of_another_commit = |(_, found): &&FoundDevice| {
        !found.may_be_seed_of(superblock.fsid) && found.superblock.generation != superblock.generation
    };
    let others = found.iter().filter(is_of_another_commit).count() as u64;
    require_counted(found.len() as u64 - others, superblock.num_devices)
}

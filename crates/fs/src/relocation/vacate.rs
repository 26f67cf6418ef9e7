//! Taking chunks off a device: off all of it, before it leaves the volume, or off its end, before
//! it gets smaller. From the beginning no chunk is made there; those that are there are emptied,
//! one after the other, and go. Nothing in the volume says that more is to come: after a crash it
//! has to be asked for again, and what has been moved stays where it is.

use std::time::Duration;

use ubtrfs_format::{DeviceId, Logical};
use ubtrfs_threads::time::Instant;
use ubtrfs_volume::MIN_DEVICE;

use super::Relocator;
use super::group::Emptied;
use crate::error::{Errno, Result};
use crate::exclusive_op::Running;
use ubtrfs_space::stripe_length;

/// How often it is looked whether the last readers of what has been moved have ended.
const MOMENT: Duration = Duration::from_millis(10);
/// For how long they may be waited for without a word.
const LONG: Duration = Duration::from_secs(10);

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VacateProgress {
    /// Bytes that chunks had there when it began.
    pub total_bytes: u64,
    /// Bytes that they have there now.
    pub left_bytes: u64,
}

/// Asked again and again whether to go on.
type GoesOn<'a> = &'a dyn Fn(&VacateProgress) -> bool;

/// A device on which no chunk is made until this is dropped.
struct Closed<'a> {
    relocator: &'a Relocator,
    devid: DeviceId,
    was_open: bool,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut space = self.relocator.info.space.lock();
        if self.was_open {
            space.devices_mut().open_again(self.devid);
        }
        space.open_emptied();
    }
}

/// A device on which no chunk is made behind its new end until this is dropped.
struct Limited<'a> {
    relocator: &'a Relocator,
    devid: DeviceId,
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let mut space = self.relocator.info.space.lock();
        space.devices_mut().lift_limit(self.devid);
        space.open_emptied();
    }
}

impl Relocator {
    /// Moves all that is on a device elsewhere, and takes the device out of the volume; this is
    /// durable when it returns. Its superblocks are wiped. The device may be missing, or be one of
    /// a seed. `goes_on` is asked again and again. `ENODEV` if there is no such device, `EINVAL` if
    /// the others are too few for the volume's profiles, `ENOSPC` if they have no room,
    /// `EINPROGRESS` beside a balance or another change of devices, `ECANCELED` if `goes_on` says
    /// no: then, as after an error, what has been moved stays where it is.
    pub fn remove_device(&self, devid: DeviceId, goes_on: GoesOn<'_>) -> Result<()> {
        let _exclusive = self.begin()?;
        if self.committer.replacement().is_of(devid) {
            return Err(Errno::INPROGRESS.into());
        }
        let was_open = self.info.space.lock().devices_mut().close(devid).ok_or(Errno::NODEV)?;
        let _closed = Closed { relocator: self, devid, was_open };
        self.check_profiles()?;
        self.vacate(devid, 0, goes_on)?;
        let _without_discards = self.reserver.hold_off_discards();
        self.committer.remove_device(devid)
    }

    /// Gives a device another size, after what is behind that has been moved elsewhere; this is
    /// durable when it returns. `ENODEV` if there is no such device, `EPERM` if it is one of a
    /// seed, `EINVAL` if that is too small, `EFBIG` if the device is not that large, `EBUSY` if it
    /// lags, `ENOSPC`, `EOPNOTSUPP`, `EINPROGRESS` and `ECANCELED` as for removals.
    pub fn resize_device(&self, devid: DeviceId, bytes: u64, goes_on: GoesOn<'_>) -> Result<()> {
        let _exclusive = self.begin()?;
        let volume = &self.info.volume;
        let sector = u64::from(volume.sector_size());
        let bytes = bytes / sector * sector;
        let item = self.info.space.lock().devices().item(devid).ok_or(Errno::NODEV)?;
        if volume.missing_devices().iter().any(|missing| missing.devid == devid) {
            return Err(Errno::NODEV.into());
        }
        if volume.seed_devices().contains(&devid) {
            return Err(Errno::PERM.into());
        }
        if bytes < MIN_DEVICE {
            return Err(Errno::INVAL.into());
        }
        // It gets no superblock, and so would not have the size at the next mount.
        if volume.lagging_devices().contains(&devid) {
            return Err(Errno::BUSY.into());
        }
        if bytes > volume.device_size(devid)? {
            return Err(Errno::FBIG.into());
        }
        if bytes < item.total_bytes {
            self.info.space.lock().devices_mut().set_limit(devid, bytes);
            let _limited = Limited { relocator: self, devid };
            self.vacate(devid, bytes, goes_on)?;
            let _without_discards = self.reserver.hold_off_discards();
            return self.committer.resize_device(devid, bytes);
        }
        self.committer.resize_device(devid, bytes)
    }

    fn begin(&self) -> Result<Running<'_>> {
        ubtrfs_tree::ensure_may_block()?;
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let exclusive = self.info.exclusive_op.begin()?;
        if self.info.volume.replacement().is_some() {
            return Err(Errno::INPROGRESS.into());
        }
        Ok(exclusive)
    }

    /// `EINVAL` if chunks of the profiles that the volume has can't be made on the devices that get
    /// chunks.
    fn check_profiles(&self) -> Result<()> {
        let devices = self.info.space.lock().devices().open_devices();
        let fits = |chunk: &ubtrfs_format::items::ChunkItem| {
            chunk.flags.raid().is_some_and(|raid| raid.least_devices <= devices)
        };
        if devices > 0 && self.info.volume.chunks().iter().all(|(_, chunk)| fits(chunk)) {
            Ok(())
        } else {
            Err(Errno::INVAL.into())
        }
    }

    /// Empties all chunks that have something on a device from this place on.
    fn vacate(&self, devid: DeviceId, from: u64, goes_on: GoesOn<'_>) -> Result<()> {
        let total_bytes = self.left(devid, from).1;
        let may_go_on = || {
            let progress = VacateProgress { total_bytes, left_bytes: self.left(devid, from).1 };
            !self.info.exclusive_op.is_ending() && goes_on(&progress)
        };
        let pace = self.rate.begin();
        let mut waits = None;
        loop {
            let (starts, _) = self.left(devid, from);
            if starts.is_empty() {
                return Ok(());
            }
            if !self.info.committed().keeps_free_space_tree() {
                // Then no chunk goes, however empty it is.
                return Err(Errno::OPNOTSUPP.into());
            }
            let (mut is_further, mut no_room) = (false, None);
            for start in starts.into_iter().rev() {
                if !may_go_on() {
                    return Err(Errno::CANCELED.into());
                }
                if self.info.space.lock().is_excluded_for_good(start) {
                    // It stays for this mount, however empty it is.
                    return Err(Errno::BUSY.into());
                }
                if self.info.space.lock().is_emptied(start) {
                    // It goes when the last readers of what was there have ended.
                    ubtrfs_threads::thread::sleep(MOMENT);
                    self.info.space.unpin();
                    self.committer.commit()?;
                    self.say_that_it_waits(&mut waits, start);
                    is_further = true;
                    continue;
                }
                match self.empty_group(start, &pace, &may_go_on) {
                    Ok(Emptied::All) => is_further = true,
                    Ok(Emptied::Stopped) => return Err(Errno::CANCELED.into()),
                    // It went by itself, or is about to.
                    Err(error) if error.errno() == Errno::NOENT => {
                        ubtrfs_threads::thread::sleep(MOMENT);
                        is_further = true;
                    }
                    // Another one may fit, and make room.
                    Err(error) if error.errno() == Errno::NOSPC => no_room = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if let Some(error) = no_room.filter(|_| !is_further) {
                return Err(error);
            }
        }
    }

    /// Says once of a chunk that was emptied why it stays, if it has stayed for long.
    fn say_that_it_waits(&self, waits: &mut Option<(Logical, Option<Instant>)>, start: Logical) {
        match waits {
            Some((waiting, since)) if *waiting == start => {
                if since.take_if(|since| since.elapsed() >= LONG).is_some() {
                    let why = self.info.space.lock().what_keeps(start);
                    tracing::warn!("chunk {start} is empty, and has not gone for {} s: {why}", LONG.as_secs());
                }
            }
            _ => *waits = Some((start, Some(Instant::now()))),
        }
    }

    /// The chunks that have something on a device from this place on, and the bytes of all of them
    /// there.
    fn left(&self, devid: DeviceId, from: u64) -> (Vec<Logical>, u64) {
        let (mut starts, mut bytes) = (Vec::new(), 0);
        for (start, chunk) in self.info.volume.chunks() {
            let length = stripe_length(&chunk);
            let is_there = |stripe: &&ubtrfs_format::items::Stripe| {
                stripe.devid == devid && stripe.offset.0.saturating_add(length) > from
            };
            let stripes = chunk.stripes.iter().filter(is_there).count() as u64;
            if stripes > 0 {
                starts.push(start);
                bytes += stripes * length;
            }
        }
        (starts, bytes)
    }
}

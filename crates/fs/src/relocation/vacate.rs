//! Moves chunks away from a device: from all of it before it is removed from the volume, or from
//! its end before it is shrunk. From the beginning no chunk is allocated there; the existing ones
//! are emptied and removed, one after the other. Nothing in the volume records that more is to
//! come: after a crash the operation has to be requested again, and what has been moved stays where
//! it is.

use std::time::Duration;

use ubtrfs_format::{DeviceId, Logical};
use ubtrfs_threads::time::Instant;
use ubtrfs_volume::MIN_DEVICE;

use super::Relocator;
use super::group::Emptied;
use crate::error::{Errno, Result};
use crate::exclusive_op::Running;
use ubtrfs_space::stripe_length;

/// How often to check whether the last readers of moved content have ended.
const MOMENT: Duration = Duration::from_millis(10);
/// How long to wait for them before a warning.
const LONG: Duration = Duration::from_secs(10);

/// The progress of vacating a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VacateProgress {
    /// Bytes that chunks had there at the beginning.
    pub total_bytes: u64,
    /// Bytes that chunks have there now.
    pub left_bytes: u64,
}

/// Called repeatedly; returns whether to go on.
type GoesOn<'a> = &'a dyn Fn(&VacateProgress) -> bool;

/// A device on which no chunk is allocated until this is dropped.
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

/// A device on which no chunk is allocated behind its new end until this is dropped.
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
    /// Moves everything on a device elsewhere, and removes the device from the volume; this is
    /// durable when it returns. The superblocks of the device are wiped. The device may be missing,
    /// or belong to a seed. `goes_on` is called repeatedly. `ENODEV` if there is no such device,
    /// `EINVAL` if the other devices are too few for the volume's profiles, `ENOSPC` if they lack
    /// space, `EINPROGRESS` during a balance or another change of devices, `ECANCELED` if `goes_on`
    /// returns false: then, as after an error, what has been moved stays where it is.
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

    /// Resizes a device, after what is behind its new end has been moved elsewhere; this is durable
    /// when it returns. `ENODEV` if there is no such device, `EPERM` if it belongs to a seed,
    /// `EINVAL` if the size is too small, `EFBIG` if the device is not that large, `EBUSY` if it
    /// lags, `ENOSPC`, `EOPNOTSUPP`, `EINPROGRESS` and `ECANCELED` as for removals.
    pub fn resize_device(&self, devid: DeviceId, bytes: u64, goes_on: GoesOn<'_>) -> Result<()> {
        let _exclusive = self.begin()?;
        let volume = &self.info.volume;
        let sector = u64::from(volume.sector_size());
        let bytes = bytes / sector * sector;
        let item = self.info.space.lock().devices().item(devid).ok_or(Errno::NODEV)?;
        if volume.devices().missing().iter().any(|missing| missing.devid == devid) {
            return Err(Errno::NODEV.into());
        }
        if volume.devices().seeds().contains(&devid) {
            return Err(Errno::PERM.into());
        }
        if bytes < MIN_DEVICE {
            return Err(Errno::INVAL.into());
        }
        // A lagging device gets no superblock, so the next mount would not know its new size.
        if volume.devices().lagging().contains(&devid) {
            return Err(Errno::BUSY.into());
        }
        if bytes > volume.devices().size(devid)? {
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
        if self.info.volume.replacement().state().is_some() {
            return Err(Errno::INPROGRESS.into());
        }
        Ok(exclusive)
    }

    /// `EINVAL` if the devices on which chunks are allocated are too few for chunks of the volume's
    /// profiles.
    fn check_profiles(&self) -> Result<()> {
        let devices = self.info.space.lock().devices().open_devices();
        let fits = |chunk: &ubtrfs_format::items::ChunkItem| {
            chunk.flags.raid().is_some_and(|raid| raid.least_devices <= devices)
        };
        if devices > 0 && self.info.volume.chunk_map().all().iter().all(|(_, chunk)| fits(chunk)) {
            Ok(())
        } else {
            Err(Errno::INVAL.into())
        }
    }

    /// Empties all chunks that have a stripe on a device from `from` on.
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
                // Without a free-space tree no chunk is removed, however empty it is.
                return Err(Errno::OPNOTSUPP.into());
            }
            let (mut is_further, mut no_room) = (false, None);
            for start in starts.into_iter().rev() {
                if !may_go_on() {
                    return Err(Errno::CANCELED.into());
                }
                if self.info.space.lock().is_excluded_for_good(start) {
                    // The chunk stays for this mount, however empty it is.
                    return Err(Errno::BUSY.into());
                }
                if self.info.space.lock().is_emptied(start) {
                    // The chunk is removed when the last readers of its content have ended.
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
                    // The chunk was removed meanwhile, or is about to be.
                    Err(error) if error.errno() == Errno::NOENT => {
                        ubtrfs_threads::thread::sleep(MOMENT);
                        is_further = true;
                    }
                    // Another chunk may fit, and make space.
                    Err(error) if error.errno() == Errno::NOSPC => no_room = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if let Some(error) = no_room.filter(|_| !is_further) {
                return Err(error);
            }
        }
    }

    /// Warns once why a chunk that was emptied stays, if it has stayed for long.
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

    /// Returns the chunks that have a stripe on a device from `from` on, and the total bytes of
    /// these stripes.
    fn left(&self, devid: DeviceId, from: u64) -> (Vec<Logical>, u64) {
        let (mut starts, mut bytes) = (Vec::new(), 0);
        for (start, chunk) in self.info.volume.chunk_map().all() {
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

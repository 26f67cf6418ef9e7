//! The superblock that counts: the one that was read or written last.
//!
//! This module keeps invariant 12: the primary is read again before a superblock is written, so
//! that no other writer's superblock is overwritten; and invariant 54: before the first write all
//! devices have the same superblock.

mod comparison_times;
mod foreign_writer;
pub(crate) mod publish;
mod resilvered;

use std::sync::Arc;

use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Epochs, Generation, Physical, Resilvered, SUPERBLOCK_COPIES, Superblock};
use ubtrfs_threads::atomic::{AtomicBool, Ordering};
use ubtrfs_threads::{Mutex, MutexGuard, Rank, RwLock};

use self::comparison_times::Looks;
use self::resilvered::ResilverRecord;
use crate::error::{Error, Result};
use crate::in_flight::Registration;
use crate::member::{DeviceErrorKind, Member};
use crate::replacing::forget_volume;
use crate::shared_state::SharedState;
use crate::superblock_copy::{CopyError, read_copy};
use crate::superblock_order::is_same;

/// Which copies of the superblock are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// All copies within the device: for commits.
    All,
    /// The first copy: for log writes, which a commit soon follows.
    Primary,
}

/// The superblocks of a volume. All methods may be called by many threads at once.
#[derive(Debug)]
pub struct Superblocks {
    shared: SharedState,
    current: RwLock<Superblock>,
    /// If a superblock counts another number of devices than its chunk tree has: its commit, and
    /// the number in the chunk tree.
    corrected_count: Option<(Generation, u64)>,
    /// All devices have the same superblock; no crash has left some of them with another one.
    is_level: AtomicBool,
    /// Devices that belong only to a newer commit, which does not count.
    about_to_join: Mutex<Vec<Arc<Member>>>,
    /// Held while superblocks are written. Has the devices that did not get the last one.
    publishing: Mutex<Vec<DeviceId>>,
    resilvered: ResilverRecord,
    /// When the superblocks on the devices were last compared with ours.
    looks: Mutex<Looks>,
}

impl Superblocks {
    pub(crate) fn new(
        shared: SharedState,
        current: Superblock,
        about_to_join: Vec<Arc<Member>>,
        corrected_count: Option<(Generation, u64)>,
    ) -> Self {
        Self {
            resilvered: ResilverRecord::new(Arc::clone(&shared.devices)),
            shared,
            current: RwLock::new(Rank::Superblock, current),
            corrected_count,
            is_level: AtomicBool::new(false),
            about_to_join: Mutex::new(Rank::LevelingSuperblocks, about_to_join),
            publishing: Mutex::with_default(Rank::VolumePublishing),
            looks: Mutex::with_default(Rank::LastLook),
        }
    }

    /// Returns the superblock as last read or written.
    pub fn current(&self) -> Superblock {
        self.current.read().clone()
    }

    /// Returns the commit of the superblock that was last read or written.
    pub(crate) fn generation(&self) -> Generation {
        self.current.read().generation
    }

    fn set_current(&self, superblock: Superblock) {
        *self.current.write() = superblock;
    }

    /// Excludes other writers of superblocks. Has the devices that did not get the last one.
    fn publishing(&self) -> MutexGuard<'_, Vec<DeviceId>> {
        self.publishing.lock()
    }

    /// Returns how far a device that lags was brought up to the others.
    pub(crate) fn resilver_record(&self) -> &ResilverRecord {
        &self.resilvered
    }

    /// Notes devices that belong only to a commit which does not count.
    pub(crate) fn leave_out(&self, members: impl IntoIterator<Item = Arc<Member>>) {
        self.about_to_join.lock().extend(members);
    }

    /// Registers an operation that needs the devices, without addresses, and then checks that it
    /// may write. So the release of the volume waits for the operation, or came first and is found
    /// here.
    pub(crate) fn begin(&self) -> Result<Registration> {
        self.begin_as(self.shared.access.in_flight().register_unaddressed())
    }

    /// As [`Self::begin`], for an operation that is registered already.
    pub(crate) fn begin_as(&self, registration: Registration) -> Result<Registration> {
        if self.shared.access.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.level()?;
        assert!(self.is_level(), "invariant 54: the devices have one superblock before anything is written");
        Ok(registration)
    }

    /// Writes the superblock that counts to all devices that have another one, before anything else
    /// is written. They differ if a crash came while superblocks were written. A device with a
    /// newer one must not keep it, since its blocks are overwritten from now on. A device with an
    /// older one would be two commits behind after the next crash (invariant 54). Everything that
    /// writes to the volume calls this first.
    pub fn level(&self) -> Result<()> {
        if self.is_level() {
            return Ok(());
        }
        let mut about_to_join = self.about_to_join.lock();
        if self.is_level() {
            return Ok(());
        }
        let (counts, set) = (self.current(), self.shared.devices.set());
        let others: Vec<&Arc<Member>> = set
            .current()
            .filter(|member| member.primary.lock().superblock().is_none_or(|own| !is_same(&own, &counts)))
            .collect();
        let given_up: Vec<&Arc<Member>> = set.members.iter().filter(|member| member.is_given_up()).collect();
        if !others.is_empty() || !about_to_join.is_empty() || !given_up.is_empty() {
            self.look()?;
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

    fn is_level(&self) -> bool {
        self.is_level.load(Ordering::Acquire)
    }

    /// Returns how many devices the volume has by a superblock: the number that it counts, or, if
    /// that is wrong, the number in the chunk tree of its commit.
    pub fn devices_by(&self, superblock: &Superblock) -> u64 {
        let corrected = self.corrected_count.filter(|(generation, _)| *generation == superblock.generation);
        corrected.map_or(superblock.num_devices, |(_, listed)| listed)
    }

    /// Returns whether a copy of the superblock may be of the commit after the one that counts.
    /// That is so if a crash came after that copy was written and before the primary was, or before
    /// other devices' primaries were. Devices that are missing or can't be read may have such a
    /// copy, and so may a device that was about to be added. The next commit must not use that
    /// generation for something else: when the device comes back, it would be taken for one that
    /// has that commit.
    pub fn may_have_copy_ahead(&self) -> bool {
        let set = self.shared.devices.set();
        if !self.about_to_join.lock().is_empty() || set.members.iter().any(|member| member.is_missing()) {
            return true;
        }
        let ahead = self.current().generation.next();
        let is_ahead = |member: &Member, at: Physical| match read_copy(&*member.device, at) {
            Ok(found) => found.superblock.fsid == self.shared.identity.fsid() && found.superblock.generation == ahead,
            Err(CopyError::Unread(_)) => {
                member.note_error(DeviceErrorKind::Read);
                true
            }
            Err(CopyError::Missing | CopyError::Damaged(_)) => false,
        };
        set.members.iter().any(|member| SUPERBLOCK_COPIES.iter().any(|at| is_ahead(member, *at)))
    }

    /// Notes that a lagging device, which had missed that many writes, has been brought up to the
    /// others: it gets superblocks again. Does nothing if it has missed more writes since. Returns
    /// whether the device is current.
    pub fn set_device_current(&self, devid: DeviceId, missed: u64) -> bool {
        let Ok(member) = self.shared.devices.member(devid) else { return false };
        // Excludes writers of superblocks, which leave out the devices that lag.
        let _published = self.publishing();
        let _turn = self.shared.devices.judging();
        let is_current = !member.is_missing() && member.missed() == missed;
        if is_current {
            member.set_current();
            self.resilvered.forget(devid);
        }
        is_current
    }

    /// Returns how far a device that lags has been brought up to the others, also in an earlier
    /// mount, or `None` if that is not known.
    pub fn resilvered(&self, devid: DeviceId) -> Option<Resilvered> {
        self.resilvered.of(devid)
    }

    /// Notes how far a lagging device, which had missed that many writes, has been brought up. The
    /// next commit records this if the device has not missed more until then.
    pub fn set_resilvered(&self, resilvered: Resilvered, missed: u64) {
        self.resilvered.set(resilvered, missed);
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

//! The devices of a volume: which ones it has, and what is known of each.
//!
//! The set of devices is replaced as a whole, so an operation that has taken it works with the same
//! devices to its end. Writes and repairs hold [`VolumeDevices::submitting`] meanwhile, so that no
//! device joins or leaves while a write goes to all copies.

mod redundancy;

use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Generation, Physical};
use ubtrfs_threads::thread::Builder;
use ubtrfs_threads::{ArcSwap, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::comparison::Comparison;
use crate::device::DeviceCounters;
use crate::device_set::DeviceSet;
use crate::error::{DeviceFault, Error, Result};
use crate::fault_log::{FaultLog, FaultRecord, Outcome, Place};
use crate::member::{DeviceErrorKind, Member};
use crate::replacing::{Replacing, forget_volume};
use crate::shared_chunk_map::SharedChunkMap;
use crate::write_access::WriteAccess;

/// The devices of a volume. All methods may be called by many threads at once.
#[derive(Debug)]
pub struct VolumeDevices {
    set: ArcSwap<DeviceSet>,
    /// Held while devices are added or removed.
    changing: Mutex<()>,
    /// Held shared by writes and repairs, and exclusively while devices are added or removed.
    submissions: RwLock<()>,
    /// Held while it is decided whether the volume can do without a device.
    giving_up: Mutex<()>,
    faults: Arc<FaultLog>,
    chunk_map: Arc<SharedChunkMap>,
    access: Arc<WriteAccess>,
}

impl VolumeDevices {
    pub(crate) fn new(
        set: DeviceSet,
        chunk_map: Arc<SharedChunkMap>,
        access: Arc<WriteAccess>,
        faults: Arc<FaultLog>,
    ) -> Self {
        Self {
            set: ArcSwap::from_pointee(set),
            changing: Mutex::new(Rank::ChangingDevices, ()),
            submissions: RwLock::new(Rank::Submissions, ()),
            giving_up: Mutex::new(Rank::GivingUp, ()),
            faults,
            chunk_map,
            access,
        }
    }

    /// Returns the present set of devices.
    pub(crate) fn set(&self) -> Arc<DeviceSet> {
        self.set.load_full()
    }

    pub(crate) fn member(&self, devid: DeviceId) -> Result<Arc<Member>> {
        self.set.load().member(devid).map(Arc::clone)
    }

    /// Returns the size of a device by its item, in bytes.
    pub(crate) fn bytes_of(&self, devid: DeviceId) -> Option<u64> {
        self.set.load().bytes_of(devid)
    }

    /// Excludes changes of the set of devices while a write or a repair submits what it writes.
    pub(crate) fn submitting(&self) -> RwLockReadGuard<'_, ()> {
        self.submissions.read()
    }

    /// Excludes all writes and repairs from submitting anything.
    pub(crate) fn exclude_submissions(&self) -> RwLockWriteGuard<'_, ()> {
        self.submissions.write()
    }

    /// Excludes everything that decides whether the volume can do without a device.
    pub(crate) fn judging(&self) -> MutexGuard<'_, ()> {
        self.giving_up.lock()
    }

    /// Replaces the set of devices by what `change` makes of it, while no write is being submitted.
    /// Other changes wait until `change` has returned.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut DeviceSet) -> Result<T>) -> Result<T> {
        let _turn = self.changing.lock();
        let mut set = DeviceSet::clone(&self.set.load());
        let result = change(&mut set)?;
        let _not_while_others_write = self.exclude_submissions();
        self.set.store(Arc::new(set));
        Ok(result)
    }

    /// Puts the target of a replacement into the source's place, as superblocks say that are
    /// durable. Returns false if the target has failed since.
    pub(crate) fn swap_target(&self, replacing: &Replacing) -> bool {
        let _turn = self.changing.lock();
        // From here on a failure of the target is treated as that of any device.
        let turn = self.judging();
        if !replacing.is_alive() {
            return false;
        }
        let mut set = DeviceSet::clone(&self.set.load());
        set.replacing = None;
        let Some(place) = set.members.iter_mut().find(|member| member.devid() == replacing.source) else {
            return false;
        };
        let source = std::mem::replace(place, Arc::clone(&replacing.target));
        let item = *source.item.lock();
        replacing.target.take_place(item);
        self.set.store(Arc::new(set));
        drop(turn);
        forget_volume(&source);
        true
    }

    /// Releases the target of a replacement, if it has not taken the source's place.
    pub(crate) fn drop_target(&self) {
        let _turn = self.changing.lock();
        let mut set = DeviceSet::clone(&self.set.load());
        if let Some(replacing) = set.replacing.take() {
            self.set.store(Arc::new(set));
            forget_volume(&replacing.target);
        }
    }

    /// Releases the devices that the commit of this generation removes, which is durable.
    pub(crate) fn forget_removed(&self, generation: Generation) {
        let leaves = |member: &Arc<Member>| member.leaves_by(generation);
        if !self.set.load().members.iter().any(leaves) {
            return;
        }
        let _turn = self.changing.lock();
        let mut set = DeviceSet::clone(&self.set.load());
        let (removed, kept): (Vec<_>, Vec<_>) = set.members.into_iter().partition(leaves);
        set.members = kept;
        self.set.store(Arc::new(set));
        removed.iter().filter(|member| !member.is_seed()).for_each(|member| forget_volume(member));
    }

    /// Gives up all devices, and the target of a replacement.
    pub(crate) fn release(&self) {
        let set = self.set.load();
        let target = set.replacing.iter().map(|replacing| &replacing.target);
        set.members.iter().chain(target).for_each(|member| member.device.release());
    }

    /// Issues a barrier on every device. A device that the volume can do without may fail.
    /// Otherwise it is not known what is durable, and the volume turns read-only.
    pub(crate) fn flush(&self) -> Result<()> {
        let set = self.set();
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
            self.access.set_read_only();
            return Err(error);
        }
        Ok(())
    }

    /// Returns how many reads are best in flight at a time before what they read is needed, or 0 if
    /// all devices are near.
    pub fn reads_ahead(&self) -> usize {
        self.set.load().members.iter().map(|member| member.device.reads_ahead()).max().unwrap_or_default()
    }

    /// Returns the items of all devices, also of missing ones, by device number.
    pub fn items(&self) -> Vec<DevItem> {
        self.set.load().members.iter().map(|member| *member.item.lock()).collect()
    }

    /// Returns the present size of a device in bytes, of which the volume may use less.
    pub fn size(&self, devid: DeviceId) -> Result<u64> {
        let member = self.member(devid)?;
        let failed = |source| Error::Read { devid, at: Physical(0), logical: None, len: 0, source };
        member.device.find_size().map_err(failed)
    }

    /// Returns the items of the devices that are missing. What only they have can't be read.
    pub fn missing(&self) -> Vec<DevItem> {
        let set = self.set.load();
        set.members.iter().filter(|member| member.is_missing()).map(|member| *member.item.lock()).collect()
    }

    /// Returns the devices on which nothing can be allocated: missing ones and those of seeds.
    pub fn closed(&self) -> Vec<DeviceId> {
        let set = self.set.load();
        set.members.iter().filter(|member| !member.is_written()).map(|member| member.devid()).collect()
    }

    /// Returns the devices of the seeds from which this volume was made. They are only read.
    pub fn seeds(&self) -> Vec<DeviceId> {
        let set = self.set.load();
        set.members.iter().filter(|member| member.is_seed()).map(|member| member.devid()).collect()
    }

    /// Sets a device's item (bytes used, size), which its next superblock and [`Self::items`] will
    /// show.
    pub fn set_item(&self, item: DevItem) -> Result<()> {
        let member = self.member(item.devid)?;
        if member.device.size() < item.total_bytes {
            let have = member.device.size();
            return Err(Error::Truncated { devid: item.devid, have, need: item.total_bytes });
        }
        *member.item.lock() = item;
        Ok(())
    }

    /// Has requests to devices that are away fail soon instead of waiting.
    pub fn stop_waiting(&self) {
        self.set.load().present().for_each(|member| member.device.stop_waiting());
    }

    /// Tells all devices that their content is compared, until the result is dropped.
    pub fn compare(&self) -> Comparison {
        Comparison::of(self.set.load().members.iter().map(|member| Arc::clone(&member.device)).collect())
    }

    /// Returns the sum of the counters of all devices.
    pub(crate) fn counters(&self) -> DeviceCounters {
        let set = self.set.load();
        let devices = set.members.iter().map(|member| member.device.counters());
        devices.fold(DeviceCounters::default(), DeviceCounters::plus)
    }

    /// Returns the record of faults.
    pub(crate) fn faults(&self) -> Arc<FaultLog> {
        Arc::clone(&self.faults)
    }

    /// Returns how many faults of devices there were that lost nothing or made a tree block
    /// unreadable, and the last of them, the newest at the end. Errors that a caller gets anyway
    /// are not counted.
    pub fn last_faults(&self) -> (u64, Vec<FaultRecord>) {
        self.faults.get()
    }

    /// Writes to the log what has not been logged yet about bad copies.
    pub fn say_bad_copies(&self) {
        self.faults.say_rest(true);
    }

    /// Writes to the log what is due of what has not been logged yet about bad copies.
    pub(crate) fn say_due_bad_copies(&self) {
        self.faults.say_rest(false);
    }

    /// Notes an error of a device that no caller gets.
    pub(crate) fn note_overcome(&self, error: &Error) {
        if let Some(fault) = error.device_fault() {
            self.note_fault(sentence(error), fault);
        }
    }

    /// Notes for the statistics what is wrong with a device.
    pub(crate) fn note_fault(&self, cause: String, fault: DeviceFault) {
        self.faults.note(cause, fault);
    }

    /// Notes a bad copy, and what was done about it, for the log.
    pub(crate) fn note_bad_copy(&self, copy: Place, outcome: Outcome, what: &str, why: &str) {
        self.faults.bad_copy(copy, outcome, what, why);
    }

    /// Returns whether the devices that are not lost have the data of all chunks.
    pub(crate) fn survive(&self, lost: impl Fn(DeviceId) -> bool) -> bool {
        self.chunk_map.survives(lost)
    }
}

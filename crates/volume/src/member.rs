//! One device of a volume, and how far its content can be relied on.
//!
//! A device that failed a write or a flush lacks something that the others have: it *lags*. It
//! still gets all later writes, as far as it accepts them, but no more superblocks (invariant 34),
//! so that at the next mount its generation shows that it is behind. Until all of it has been
//! compared and rewritten, it is read only for what the others can't supply, and only what a
//! checksum proves is used.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Generation, ItemType, Key, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, objectid};
use ubtrfs_threads::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use ubtrfs_threads::{Mutex, Rank};

use crate::absent_device::AbsentDevice;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::primary_superblock::Primary;
use crate::superblock_order::Descent;

/// One device of the volume.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) device: Arc<dyn Device>,
    devid: AtomicU64,
    pub(crate) item: Mutex<DevItem>,
    pub(crate) primary: Mutex<Primary>,
    is_missing: bool,
    is_seed: bool,
    /// The first commit for which it has a superblock.
    joins: AtomicU64,
    /// The first commit for which it has no superblock any more.
    leaves: AtomicU64,
    lag: AtomicU8,
    history: AtomicU8,
    /// The last commit of which its tree blocks are believed, if that is later than the commit of
    /// its superblock; or 0.
    has_blocks_of: AtomicU64,
    /// It is given up, but its superblock does not say so yet.
    is_given_up: AtomicBool,
    /// How many reads are in flight.
    reads: Arc<AtomicUsize>,
    /// How often it has failed to keep what it should have got.
    missed: AtomicU64,
    errors: [AtomicU64; 5],
    /// The counters that the volume's `DEV_STATS` item has.
    saved_errors: Mutex<DeviceErrors>,
}

const CURRENT: u8 = 0;
/// It lags, but a crash would leave it with a superblock as new as the others'.
const LAG_UNKNOWN: u8 = 1;
/// It lags, and its superblock is older than the others'.
const LAG_DURABLE: u8 = 2;

/// Its superblock is one that the volume had.
const SHARED: u8 = 0;
/// Its superblock is likely, but not certainly, one that the volume had.
const UNPROVEN: u8 = 1;
/// It was written without the others, or it is given up.
const APART: u8 = 2;

/// What a device failed at, in the order of the counters in `DEV_STATS` items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceErrorKind {
    /// A write.
    Write,
    /// A read.
    Read,
    /// A flush.
    Flush,
    /// A checksum or the structure of a block was wrong.
    Corruption,
    /// A block was of another generation than expected.
    Generation,
}

/// How often a device has failed, as `DEV_STATS` items count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceErrors {
    /// By [`DeviceErrorKind`].
    pub counts: [u64; 5],
}

impl DeviceErrors {
    /// Returns how often it failed at this.
    pub fn of(&self, kind: DeviceErrorKind) -> u64 {
        self.counts[kind as usize]
    }

    /// Returns the key of a device's `DEV_STATS` item in the device tree:
    /// `(0 PERSISTENT_ITEM devid)`.
    pub fn key(devid: DeviceId) -> Key {
        Key::new(objectid::DEV_STATS, ItemType::PERSISTENT_ITEM, devid.0)
    }

    /// The counters of an item, of eight bytes each; older kernels wrote fewer.
    pub fn parse(item: &[u8]) -> Self {
        let mut errors = Self::default();
        for (count, bytes) in errors.counts.iter_mut().zip(item.chunks_exact(8)) {
            *count = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        errors
    }

    /// Returns the content of the item.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.counts.iter().flat_map(|count| count.to_le_bytes()).collect()
    }
}

/// Counts a read as long as it lives.
#[derive(Debug)]
pub(crate) struct Reading(Arc<AtomicUsize>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Member {
    pub(crate) fn new(device: Arc<dyn Device>, item: DevItem, primary: Buffer) -> Self {
        Self {
            device,
            devid: AtomicU64::new(item.devid.0),
            item: Mutex::new(Rank::MemberItem, item),
            primary: Mutex::new(Rank::MemberPrimary, Primary::new(primary)),
            is_missing: false,
            is_seed: false,
            joins: AtomicU64::new(0),
            leaves: AtomicU64::new(u64::MAX),
            lag: AtomicU8::new(CURRENT),
            history: AtomicU8::new(SHARED),
            has_blocks_of: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            reads: Arc::default(),
            missed: AtomicU64::new(0),
            errors: Default::default(),
            saved_errors: Mutex::with_default(Rank::MemberErrors),
        }
    }

    /// A device that is not there.
    pub(crate) fn missing(item: DevItem) -> Self {
        let device = Arc::new(AbsentDevice::new(item.total_bytes));
        Self { is_missing: true, lag: AtomicU8::new(LAG_DURABLE), ..Self::new(device, item, Buffer::zeroed(0)) }
    }

    /// A device of the seed volume from which this one was made: it is only read, and others may
    /// read it, too.
    pub(crate) fn seed(device: Arc<dyn Device>, item: DevItem, primary: Buffer) -> Self {
        Self { is_seed: true, ..Self::new(device, item, primary) }
    }

    /// Returns whether the device belongs to a seed, from which this volume was made.
    pub(crate) fn is_seed(&self) -> bool {
        self.is_seed
    }

    /// Returns whether anything is written to it at all.
    pub(crate) fn is_written(&self) -> bool {
        !self.is_missing && !self.is_seed
    }

    /// A device that is being added to the volume. It gets superblocks from the commit on that
    /// [`Self::set_joining`] names.
    pub(crate) fn joining(device: Arc<dyn Device>, item: DevItem) -> Self {
        Self { joins: AtomicU64::new(u64::MAX), ..Self::new(device, item, Buffer::zeroed(SUPERBLOCK_SIZE)) }
    }

    /// Returns its number in the volume.
    pub(crate) fn devid(&self) -> DeviceId {
        DeviceId(self.devid.load(Ordering::Acquire))
    }

    /// Gives it the item, and so the number, of the device that it replaces.
    pub(crate) fn take_place(&self, item: DevItem) {
        *self.item.lock() = item;
        self.devid.store(item.devid.0, Ordering::Release);
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing
    }

    /// Notes that the commit of this generation adds it to the volume.
    pub(crate) fn set_joining(&self, generation: Generation) {
        self.joins.store(generation.0, Ordering::Release);
    }

    /// Notes that the commit of this generation removes it from the volume.
    pub(crate) fn set_leaving(&self, generation: Generation) {
        self.leaves.store(generation.0, Ordering::Release);
    }

    /// Returns whether it belongs to the volume as of this commit.
    pub(crate) fn belongs_to(&self, generation: Generation) -> bool {
        self.joins.load(Ordering::Acquire) <= generation.0 && !self.leaves_by(generation)
    }

    /// Returns whether a commit is to remove it from the volume.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves.load(Ordering::Acquire) != u64::MAX
    }

    /// Returns whether this commit or an earlier one removes it from the volume.
    pub(crate) fn leaves_by(&self, generation: Generation) -> bool {
        self.leaves.load(Ordering::Acquire) <= generation.0
    }

    /// Returns whether this commit adds it to the volume.
    pub(crate) fn joins_by(&self, generation: Generation) -> bool {
        self.joins.load(Ordering::Acquire) == generation.0
    }

    /// Returns whether it lacks something that the others have, or is missing.
    pub(crate) fn lags(&self) -> bool {
        self.lag.load(Ordering::Acquire) != CURRENT
    }

    /// Returns whether it lags and nothing on the devices shows that yet.
    pub(crate) fn lags_in_secret(&self) -> bool {
        self.lag.load(Ordering::Acquire) == LAG_UNKNOWN
    }

    /// Marks it as lagging. `is_durable` means that its superblock is older than the others', so
    /// that the next mount sees that it lags.
    pub(crate) fn set_lagging(&self, is_durable: bool) {
        self.lag.fetch_max(if is_durable { LAG_DURABLE } else { LAG_UNKNOWN }, Ordering::AcqRel);
    }

    /// Notes what is known of the descent of its superblock.
    pub(crate) fn set_descent(&self, descent: Descent) {
        let history = match descent {
            Descent::Proven => SHARED,
            Descent::Plausible => UNPROVEN,
            Descent::Apart => APART,
        };
        self.history.store(history, Ordering::Release);
    }

    /// Returns whether its superblock is one that the volume had.
    pub(crate) fn shares_history(&self) -> bool {
        self.history.load(Ordering::Acquire) == SHARED
    }

    /// Gives up what only this device has. Before the first write it gets a superblock that says
    /// so.
    pub(crate) fn give_up(&self) {
        self.set_descent(Descent::Apart);
        self.set_lagging(true);
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Returns whether it is given up, and its superblock does not say so yet.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Notes that its superblock says that it is given up.
    pub(crate) fn set_given_up_on_disk(&self) {
        self.is_given_up.store(false, Ordering::Release);
    }

    /// Returns the newest generation that its superblock may have, or `None` if it has none.
    pub(crate) fn generation(&self) -> Option<Generation> {
        self.primary.lock().newest_generation()
    }

    /// Returns the commit of its superblock, of which it has everything, or `None` if it has no
    /// superblock, or one of another history than the volume's.
    pub(crate) fn has_all_of(&self) -> Option<Generation> {
        if self.history.load(Ordering::Acquire) == APART { None } else { self.primary.lock().has_all_of() }
    }

    /// Notes that, as far as is known, it lacks nothing of this commit but the superblock.
    pub(crate) fn set_has_blocks_of(&self, generation: Generation) {
        self.has_blocks_of.store(generation.0, Ordering::Release);
    }

    /// Returns the last commit of which its tree blocks are believed, or `None` if none are.
    pub(crate) fn has_blocks_of(&self) -> Option<Generation> {
        let later = Generation(self.has_blocks_of.load(Ordering::Acquire));
        self.has_all_of().map(|generation| generation.max(later))
    }

    /// Marks it as current: it has all that the others have, and gets superblocks again, even if
    /// its own is damaged.
    pub(crate) fn set_current(&self) {
        if self.is_missing {
            return;
        }
        let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE);
        if self.device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).is_ok() {
            self.primary.lock().may_be_written_over(&bytes);
        }
        self.history.store(SHARED, Ordering::Release);
        self.lag.store(CURRENT, Ordering::Release);
    }

    /// Counts a read until the result is dropped.
    pub(crate) fn begin_read(&self) -> Reading {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Reading(Arc::clone(&self.reads))
    }

    /// Returns how many reads are in flight.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    pub(crate) fn note_error(&self, kind: DeviceErrorKind) {
        if !self.is_missing {
            self.errors[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that it has failed to keep what it should have got.
    pub(crate) fn note_missed(&self) {
        self.missed.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how often it has failed to keep what it should have got. Unlike its counters of
    /// errors, this is never reset.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Acquire)
    }

    /// Returns the counters if they differ from those that the volume's item has.
    pub(crate) fn unsaved_errors(&self) -> Option<DeviceErrors> {
        let errors = self.errors();
        (errors != *self.saved_errors.lock()).then_some(errors)
    }

    /// Notes that the volume's item has these counters now.
    pub(crate) fn note_saved(&self, errors: DeviceErrors) {
        *self.saved_errors.lock() = errors;
    }

    pub(crate) fn errors(&self) -> DeviceErrors {
        DeviceErrors { counts: std::array::from_fn(|kind| self.errors[kind].load(Ordering::Relaxed)) }
    }

    pub(crate) fn add_errors(&self, errors: DeviceErrors) {
        for (cell, count) in self.errors.iter().zip(errors.counts) {
            // Saturates, since a damaged item may have any value.
            let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_add(count)));
        }
    }

    pub(crate) fn reset_errors(&self) {
        self.errors.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
    }
}

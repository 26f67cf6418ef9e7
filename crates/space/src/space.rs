//! The space of a volume under its lock, and the operations on it that are one step.

use std::ops::{Deref, DerefMut};

use ubtrfs_format::Logical;
use ubtrfs_format::items::{BlockGroupFlags, DevItem};
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, MutexGuard, Panics, Rank, WatchPanics};
use ubtrfs_volume::{CountedMutex, LockCounters};

use crate::chunks::Chunks;
use crate::demand::Reserved;
use crate::device_map::DeviceMap;
use crate::freed_ranges::Discards;
use crate::group::BlockGroup;
use crate::groups::Groups;
use crate::pins::Pins;
use crate::profiles::Profiles;

/// The space of a volume.
pub struct Space {
    inner: CountedMutex<SpaceState>,
    node_size: u64,
    panics: Panics,
    /// Signalled when the emptying of a group has ended.
    pub(crate) left: Condvar,
}

/// The state of space, locked.
pub struct SpaceGuard<'a> {
    // Dropped before the next thread gets the lock.
    _watch: WatchPanics<'a>,
    state: MutexGuard<'a, SpaceState>,
}

impl Deref for SpaceGuard<'_> {
    type Target = SpaceState;

    fn deref(&self) -> &SpaceState {
        &self.state
    }
}

impl DerefMut for SpaceGuard<'_> {
    fn deref_mut(&mut self) -> &mut SpaceState {
        &mut self.state
    }
}

impl SpaceGuard<'_> {
    /// Waits until a condition is signalled, or until this time. Returns whether the time has come.
    pub(crate) fn wait_until(&mut self, condition: &Condvar, until: Instant) -> bool {
        condition.wait_until(&mut self.state, until).timed_out()
    }
}

/// The state that the lock of space protects.
pub struct SpaceState {
    pub(crate) groups: Groups,
    pub(crate) devices: DeviceMap,
    pub(crate) chunks: Chunks,
    pub(crate) profiles: Profiles,
    pub(crate) pins: Pins,
    pub(crate) discards: Discards,
    pub(crate) reserved: Reserved,
    /// How many operations wait for the space of groups that are being emptied.
    pub(crate) waiting_for_groups: usize,
    pub(crate) node_size: u64,
    pub(crate) sector_size: u64,
}

impl Space {
    /// The space of a volume that [was read](crate::load_space).
    pub fn new(inner: SpaceState) -> Self {
        Self {
            node_size: inner.node_size,
            inner: CountedMutex::new(Rank::Space, inner),
            panics: Panics::default(),
            left: Condvar::new(),
        }
    }

    /// The space of a volume whose block groups can't be read: nothing can be allocated.
    pub fn unknown(devices: &[DevItem], node_size: u64, sector_size: u64) -> Self {
        let devices = DeviceMap::new(devices, []);
        Self::new(SpaceState { devices, ..SpaceState::empty(node_size, sector_size) })
    }

    /// Locks the state, for the commit's own steps.
    pub fn lock(&self) -> SpaceGuard<'_> {
        let state = self.inner.lock();
        SpaceGuard { _watch: self.panics.watch(), state }
    }

    /// Returns whether a thread has panicked while it held the lock: the records may be wrong.
    pub fn has_panicked(&self) -> bool {
        self.panics.any()
    }

    /// Returns how often its lock was taken.
    pub fn counters(&self) -> LockCounters {
        self.inner.counters()
    }

    /// Allocates up to `want` contiguous bytes of data (a multiple of the sector size) near `hint`.
    pub fn allocate_data(&self, want: u64, hint: Logical) -> Option<(Logical, u64)> {
        self.lock().allocate_data(want, hint)
    }

    /// Allocates exactly `len` contiguous bytes of data near `hint`.
    pub fn allocate_whole_data(&self, len: u64, hint: Logical) -> Option<Logical> {
        let mut inner = self.lock();
        let (start, found) = inner.allocate_data(len, hint)?;
        if found < len {
            inner.make_available(start, found);
            return None;
        }
        Some(start)
    }

    /// Allocates a node for the commit in flight in the system chunks (`system`) or in the metadata
    /// chunks. With `known_only`, leaves out chunks that this commit does not write.
    pub fn allocate_node(&self, system: bool, known_only: bool) -> Option<Logical> {
        let mut inner = self.lock();
        let node = inner.allocate_node(system, known_only)?;
        if !system {
            inner.note_commit_node(true);
        }
        Some(node)
    }

    /// Gives a node back that the commit in flight has allocated and not written.
    pub fn release_node(&self, system: bool, bytenr: Logical) {
        let mut inner = self.lock();
        inner.make_available(bytenr, self.node_size);
        if !system {
            inner.note_commit_node(false);
        }
    }

    /// Returns the size of a node in bytes.
    pub fn node_size(&self) -> u64 {
        self.node_size
    }

    /// Allocates a node of the log in a chunk that the last commit has. Does so only if no commit
    /// may need the space and more than `left` bytes remain free.
    pub fn allocate_log_node(&self, left: u64) -> Option<Logical> {
        let mut inner = self.lock();
        if inner.spare_metadata() < inner.node_size + left { None } else { inner.allocate_node(false, true) }
    }

    /// Returns whether two addresses are in one chunk.
    pub fn are_in_one_chunk(&self, one: Logical, other: Logical) -> bool {
        let inner = self.lock();
        let chunk = inner.groups.of(one).map(|group| group.start);
        chunk.is_some() && chunk == inner.groups.of(other).map(|group| group.start)
    }

    /// Returns whether the content at an address may be overwritten in place. It may not on devices
    /// of seeds, nor in a group that is being emptied, since it may have been copied already.
    pub fn may_be_overwritten(&self, address: Logical) -> bool {
        self.lock().groups.of(address).is_some_and(BlockGroup::may_be_overwritten)
    }

    /// Returns whether an address is in a chunk that the last commit does not have.
    pub fn is_in_new_chunk(&self, address: Logical) -> bool {
        self.lock().groups.of(address).is_none_or(|group| group.new)
    }

    /// Excludes space that a log uses from allocation. Returns true if the trees of the last commit
    /// have it as allocated, false if it was free, and `None` if it is neither, or not of this
    /// kind.
    pub fn exclude(&self, start: Logical, len: u64, kind: BlockGroupFlags) -> Option<bool> {
        let mut inner = self.lock();
        let mut group = inner.group_of(start).filter(|group| group.flags.contains(kind))?;
        if group.is_free(start, len)? { group.available.remove(start.0, len).then_some(false) } else { Some(true) }
    }

    /// Returns whether the block groups could be read.
    pub fn is_known(&self) -> bool {
        !self.lock().groups.is_empty()
    }

    /// Frees allocated space to which no tree or superblock ever referred.
    pub fn release(&self, start: Logical, len: u64) {
        self.lock().make_available(start, len);
    }
}

impl SpaceState {
    /// The space of a volume without devices and block groups.
    pub(crate) fn empty(node_size: u64, sector_size: u64) -> Self {
        Self {
            groups: Groups::default(),
            devices: DeviceMap::new(&[], []),
            chunks: Chunks::default(),
            profiles: Profiles::default(),
            pins: Pins::default(),
            discards: Discards::default(),
            reserved: Reserved::default(),
            waiting_for_groups: 0,
            node_size,
            sector_size,
        }
    }

    /// Returns the devices, with the map of their chunks.
    pub fn devices(&self) -> &DeviceMap {
        &self.devices
    }

    /// Returns the devices to change them.
    pub fn devices_mut(&mut self) -> &mut DeviceMap {
        &mut self.devices
    }

    /// Returns whether the next commit has to write something about space though no tree has
    /// changed.
    pub fn has_changes(&self) -> bool {
        self.chunks.has_new() || self.devices.has_changes()
    }
}

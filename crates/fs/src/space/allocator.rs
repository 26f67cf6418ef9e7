//! The allocator: what may be allocated, what is pinned, and what the commit being made records.
//! Nothing that a durable superblock refers to is given to anybody (invariant 3).

use ubtrfs_format::Logical;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, DevItem};
use ubtrfs_threads::{Condvar, MutexGuard, Rank};
use ubtrfs_volume::{CountedMutex, LockCounters, Volume};

use super::DeviceChanges;
use super::demand::{Kept, Needs, Reserved, Shortage};
use super::device_map::{DeviceMap, Shrink};
use super::freed::{KeptSpace, Pinned};
use super::group::BlockGroup;
use super::groups::{GroupMut, Groups};
use crate::error::Result;

/// No chunk is shorter.
pub(super) const LEAST_CHUNK: u64 = 1 << 20;

/// A chunk that was made since the last commit.
#[derive(Clone, Debug)]
pub(crate) struct NewChunk {
    pub(crate) start: Logical,
    pub(crate) chunk: ChunkItem,
}

/// The commit whose trees get the chunks that are made now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunksJoin {
    /// The one in flight, if there is any.
    CommitInFlight,
    /// The one after it: that in flight has taken its chunks, and its nodes can be in no others.
    NextCommit,
}

/// The space of a volume.
pub(crate) struct Space {
    pub(super) inner: CountedMutex<SpaceInner>,
    pub(crate) node_size: u64,
    /// Signalled when the emptying of a group has ended.
    pub(super) left: Condvar,
}

pub(crate) struct SpaceInner {
    pub(super) groups: Groups,
    pub(crate) devices: DeviceMap,
    pub(crate) new_chunks: Vec<NewChunk>,
    pub(super) chunks_join: ChunksJoin,
    /// What the next commit changes of the devices.
    pub(crate) device_changes: DeviceChanges,
    /// Chunks that the commit in progress removes.
    pub(super) leaving: Vec<(Logical, ChunkItem)>,
    /// Whether the devices are to end where their last chunks end.
    pub(super) shrink: Shrink,
    /// The kinds of space that were short since the last commit.
    pub(super) wanted: Option<Shortage>,
    pub(super) freed: super::freed::Freed,
    /// Excluded ranges that a device may still discard: in no group's free space in this mount.
    pub(super) excluded_for_good: Vec<(Logical, u64)>,
    /// The empty group that a commit looked at last.
    pub(super) looked_at: (u64, Logical),
    /// Chunks made and removed.
    pub(super) chunk_counts: (u64, u64),
    /// The next commit rewrites all records of block groups, devices and free space, whatever the
    /// trees have.
    pub(crate) rewrite_all: bool,
    pub(super) pinned: Vec<Pinned>,
    /// The commits that are kept.
    pub(super) kept_commits: Vec<KeptSpace>,
    pub(super) reserved: Reserved,
    /// Operations that wait for the space of groups that are being emptied.
    pub(super) waiting_for_groups: usize,
    pub(super) needs: Needs,
    pub(super) kept: Kept,
    pub(super) forget_global_reserve: bool,
    pub(super) data_profile: BlockGroupFlags,
    pub(super) metadata_profile: BlockGroupFlags,
    pub(super) system_profile: BlockGroupFlags,
    pub(super) mixed: bool,
    pub(super) node_size: u64,
    pub(super) sector_size: u64,
    /// The most bytes of a new chunk, if it is given.
    pub(super) largest_chunk: Option<u64>,
    pub(crate) chunk_tree_uuid: ubtrfs_format::Uuid,
}

/// Total and used space, for statfs and `info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceTotals {
    /// Bytes of all devices.
    pub device_bytes: u64,
    /// Device bytes that no chunk has.
    pub unallocated: u64,
    /// Bytes of data block groups.
    pub data_total: u64,
    /// Bytes of them that can be allocated now.
    pub data_free: u64,
    /// Bytes of metadata block groups.
    pub metadata_total: u64,
    /// Bytes of them that can be allocated now.
    pub metadata_free: u64,
    /// Copies that a data byte takes on devices.
    pub data_copies: u64,
    /// Copies that a metadata byte takes on devices.
    pub metadata_copies: u64,
    /// Device bytes of allocated and pinned space, all copies counted.
    pub used_on_devices: u64,
    /// Bytes that are reserved for writes and not allocated yet.
    pub data_reserved: u64,
    /// Device bytes of empty metadata chunks, which will be removed, at the latest when data needs
    /// them.
    pub reclaimable: u64,
    /// Bytes that data can get: in its block groups, in new ones and in removed metadata chunks, as
    /// far as metadata has room for their items.
    pub data_available: u64,
    /// Bytes of metadata block groups that have to stay free for the kernel's driver.
    pub kernel_needs: u64,
    /// Whether data and metadata share block groups.
    pub mixed: bool,
}

/// Bytes that are left free after the new extent of a file that had to continue elsewhere, because
/// another file took the space behind it, so that it can grow contiguously there. They remain free
/// for later allocations.
const ROOM_TO_GROW: u64 = 1 << 20;
/// Where chunks may begin among logical addresses.
const CHUNK_ALIGN: u64 = 1 << 20;

impl Space {
    pub(crate) fn new(inner: SpaceInner) -> Self {
        Self { node_size: inner.node_size, inner: CountedMutex::new(Rank::Space, inner), left: Condvar::new() }
    }

    /// The space of a volume whose block groups can't be read: nothing can be allocated.
    pub(crate) fn unknown(devices: &[DevItem], node_size: u64, sector_size: u64) -> Self {
        Self::new(SpaceInner {
            groups: Groups::default(),
            devices: DeviceMap::new(devices, []),
            new_chunks: Vec::new(),
            chunks_join: ChunksJoin::CommitInFlight,
            device_changes: DeviceChanges::default(),
            leaving: Vec::new(),
            shrink: Shrink::No,
            wanted: None,
            freed: super::freed::Freed::default(),
            excluded_for_good: Vec::new(),
            looked_at: (0, Logical(0)),
            chunk_counts: (0, 0),
            rewrite_all: false,
            pinned: Vec::new(),
            kept_commits: Vec::new(),
            reserved: Reserved::default(),
            waiting_for_groups: 0,
            needs: Needs::default(),
            kept: Kept::default(),
            forget_global_reserve: false,
            data_profile: BlockGroupFlags(0),
            metadata_profile: BlockGroupFlags(0),
            system_profile: BlockGroupFlags(0),
            mixed: false,
            node_size,
            sector_size,
            largest_chunk: None,
            chunk_tree_uuid: ubtrfs_format::Uuid::NIL,
        })
    }

    /// The state itself, for the commit's own steps.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SpaceInner> {
        self.inner.lock()
    }

    /// How often its lock was taken.
    pub(crate) fn counters(&self) -> LockCounters {
        self.inner.counters()
    }

    /// Allocates up to `want` contiguous bytes of data (a multiple of the sector size) near `hint`.
    pub(crate) fn allocate_data(&self, want: u64, hint: Logical) -> Option<(Logical, u64)> {
        self.inner.lock().allocate_data(want, hint)
    }

    /// Allocates exactly `len` contiguous bytes of data near `hint`.
    pub(crate) fn allocate_whole_data(&self, len: u64, hint: Logical) -> Option<Logical> {
        let mut inner = self.inner.lock();
        let (start, found) = inner.allocate_data(len, hint)?;
        if found < len {
            inner.make_available(start, found);
            return None;
        }
        Some(start)
    }

    /// Space for a node of a tree in the system chunks (`system`) or in the metadata chunks.
    /// `known_only`: not in chunks that the commit being made does not write.
    pub(crate) fn allocate_node(&self, system: bool, known_only: bool) -> Option<Logical> {
        self.inner.lock().allocate_node(system, known_only)
    }

    /// Bytes of a node.
    pub(crate) fn node_size(&self) -> u64 {
        self.node_size
    }

    /// Allocates a node of the log: only if no commit may need the space, if more than `left` bytes
    /// remain free, and in a chunk that the last commit has.
    pub(crate) fn allocate_log_node(&self, left: u64) -> Option<Logical> {
        let mut inner = self.inner.lock();
        if inner.spare_metadata() < inner.node_size + left { None } else { inner.allocate_node(false, true) }
    }

    /// Whether two addresses are in one chunk.
    pub(crate) fn are_in_one_chunk(&self, one: Logical, other: Logical) -> bool {
        let inner = self.inner.lock();
        let chunk = inner.groups.of(one).map(|group| group.start);
        chunk.is_some() && chunk == inner.groups.of(other).map(|group| group.start)
    }

    /// Whether what is at an address may be overwritten: not on devices of seeds, and not in a
    /// group that is being emptied, since it may have been copied already.
    pub(crate) fn may_be_overwritten(&self, address: Logical) -> bool {
        self.inner.lock().groups.of(address).is_some_and(BlockGroup::may_be_overwritten)
    }

    /// Whether an address is in a chunk that the last commit does not have.
    pub(crate) fn is_in_new_chunk(&self, address: Logical) -> bool {
        self.inner.lock().groups.of(address).is_none_or(|group| group.new)
    }

    /// Excludes space that a log uses from allocation. Returns whether the trees of the last commit
    /// have it as allocated; `None` if it is neither that nor free, or not of this kind.
    pub(crate) fn exclude(&self, start: Logical, len: u64, kind: BlockGroupFlags) -> Option<bool> {
        let mut inner = self.inner.lock();
        let mut group = inner.group_of(start).filter(|group| group.flags.contains(kind))?;
        if group.is_free(start, len)? { group.available.remove(start.0, len).then_some(false) } else { Some(true) }
    }

    /// Whether the block groups could be read.
    pub(crate) fn is_known(&self) -> bool {
        !self.inner.lock().groups.is_empty()
    }

    /// Frees space that was allocated and to which no tree or superblock ever referred.
    pub(crate) fn release(&self, start: Logical, len: u64) {
        self.inner.lock().make_available(start, len);
    }

    /// The sums that statfs needs.
    pub(crate) fn totals(&self) -> SpaceTotals {
        self.inner.lock().totals()
    }
}

impl SpaceInner {
    /// The group that holds an address, to change it.
    pub(crate) fn group_of(&mut self, address: Logical) -> Option<GroupMut<'_>> {
        self.groups.of_mut(address)
    }

    fn allocate_data(&mut self, want: u64, hint: Logical) -> Option<(Logical, u64)> {
        let sector = self.sector_size;
        // Nodes of the commit in flight can't be in new groups; data can.
        let of_age = if self.leaves_nodes_room(want) { &[false, true][..] } else { &[true] };
        let may_take = |group: &&BlockGroup| group.flags.contains(BlockGroupFlags::DATA) && of_age.contains(&group.new);
        if let Some(group) = self.groups.of(hint).filter(may_take)
            && let Some((start, len)) = group.available.find(hint.0, want, sector)
            && (start, len) == (hint.0, want)
        {
            let group = group.start;
            self.allocate_in(group, start, len)?;
            return Some((hint, want));
        }
        let profile = self.chunk_flags(BlockGroupFlags::DATA).profile();
        let (group, start, len) = self.groups.find(BlockGroupFlags::DATA, profile, of_age, (want, sector))?;
        self.allocate_in(group, start, len)?.cursor = start + len + if hint.0 > 0 { ROOM_TO_GROW } else { 0 };
        Some((Logical(start), len))
    }

    fn allocate_node(&mut self, system: bool, known_only: bool) -> Option<Logical> {
        let kind = if system { BlockGroupFlags::SYSTEM } else { BlockGroupFlags::METADATA };
        let of_age = if known_only { &[false][..] } else { &[false, true] };
        let (profile, node_size) = (self.chunk_flags(kind).profile(), self.node_size);
        let found = self.groups.find(kind, profile, of_age, (node_size, node_size));
        let (group, start, _) = found.filter(|(_, _, len)| *len == node_size)?;
        self.allocate_in(group, start, node_size)?.cursor = start + node_size;
        Some(Logical(start))
    }

    /// Takes a range of a group that may be given out.
    fn allocate_in(&mut self, group: Logical, start: u64, len: u64) -> Option<GroupMut<'_>> {
        self.kept_commits.iter_mut().for_each(|kept| kept.add_allocated(start, len));
        let mut group = self.groups.get_mut(group)?;
        group.allocate(start, len);
        Some(group)
    }

    pub(crate) fn make_available(&mut self, start: Logical, len: u64) {
        if let Some(mut group) = self.group_of(start) {
            debug_assert!(
                group.is_free(start, len) == Some(true),
                "invariant 3: {start}+{len} becomes available, and the trees have it"
            );
            let fresh = group.give_back(start.0, len);
            debug_assert!(fresh, "invariant 10: {start}+{len} freed twice");
        }
    }

    pub(super) fn copies(flags: BlockGroupFlags) -> u64 {
        flags.raid().map_or(1, |raid| raid.copies)
    }

    fn totals(&self) -> SpaceTotals {
        let mut totals = SpaceTotals {
            device_bytes: self.devices.total_bytes(),
            unallocated: self.devices.unallocated(),
            data_copies: Self::copies(self.data_profile),
            metadata_copies: Self::copies(self.metadata_profile),
            data_reserved: self.reserved.data,
            reclaimable: self.reclaimable(),
            data_available: self.data_available(),
            kernel_needs: self.kernel_needs(),
            mixed: self.mixed,
            ..SpaceTotals::default()
        };
        let data = self.groups.sums(BlockGroupFlags::DATA);
        let metadata = self
            .groups
            .sums_where(|flags| flags.contains(BlockGroupFlags::METADATA) && !flags.contains(BlockGroupFlags::DATA));
        (totals.data_total, totals.data_free) = (data.length, data.available);
        (totals.metadata_total, totals.metadata_free) = (metadata.length, metadata.available);
        totals.used_on_devices = self.groups.bytes_on_devices(|sums| sums.length - sums.unused, Self::copies);
        totals
    }

    /// The type and profile of a new chunk of this kind.
    pub(super) fn chunk_flags(&self, kind: BlockGroupFlags) -> BlockGroupFlags {
        match kind {
            BlockGroupFlags::SYSTEM => kind.with(self.system_profile),
            BlockGroupFlags::DATA | BlockGroupFlags::METADATA if self.mixed => {
                BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA).with(self.metadata_profile)
            }
            BlockGroupFlags::DATA => kind.with(self.data_profile),
            _ => kind.with(self.metadata_profile),
        }
    }

    /// Makes a chunk of this kind out of unallocated device space, and adds it to the volume before
    /// anything can be allocated from it; the next commit writes it to the trees. `None` if no
    /// device has room.
    pub(crate) fn add_chunk(&mut self, kind: BlockGroupFlags, volume: &Volume) -> Result<Option<NewChunk>> {
        let Some((start, chunk)) = self.place_chunk(kind, volume) else { return Ok(None) };
        if let Err(error) = volume.add_chunk(start, chunk.clone()) {
            // It is nowhere, so nothing is allocated from it.
            self.devices.uncount(&chunk);
            self.devices.vacate(&chunk);
            return Err(error.into());
        }
        let mut group = BlockGroup::empty(start, chunk.length, chunk.flags);
        group.new = true;
        group.touched = true;
        group.delta.come.insert((start.0, chunk.length));
        for (at, len) in DeviceMap::superblock_ranges(start, &chunk) {
            group.available.remove_any(at.0, len);
        }
        self.groups.insert(group);
        let made = NewChunk { start, chunk };
        self.count_kept();
        self.new_chunks.push(made.clone());
        self.chunk_counts.0 += 1;
        Ok(Some(made))
    }

    /// Takes unallocated device space for a chunk of this kind.
    fn place_chunk(&mut self, kind: BlockGroupFlags, volume: &Volume) -> Option<(Logical, ChunkItem)> {
        let flags = self.chunk_flags(kind);
        let want = self.next_chunk_length(kind);
        let stripes = self.devices.place(flags, want, LEAST_CHUNK, &volume.lagging_devices())?;
        let leaving = self.leaving.iter().map(|(start, chunk)| start.0 + chunk.length);
        let end = self.groups.end().into_iter().chain(leaving).max();
        let start = end.unwrap_or(CHUNK_ALIGN).checked_next_multiple_of(CHUNK_ALIGN)?;
        let length = stripes.length;
        let chunk = ChunkItem {
            length,
            owner: 2,
            stripe_len: ubtrfs_format::items::STRIPE_LEN,
            flags,
            io_align: 65536,
            io_width: 65536,
            sector_size: self.sector_size as u32,
            sub_stripes: flags.raid()?.sub_stripes,
            stripes: stripes.stripes,
        };
        Some((Logical(start), chunk))
    }

    /// Takes the chunks that are to be in the trees of the commit in progress. None that is made
    /// until it ends will be.
    pub(crate) fn take_new_chunks(&mut self) -> Vec<NewChunk> {
        self.chunks_join = ChunksJoin::NextCommit;
        let new = std::mem::take(&mut self.new_chunks);
        for chunk in &new {
            if let Some(mut group) = self.groups.get_mut(chunk.start) {
                group.new = false;
            }
        }
        new
    }

    /// Chunks made so far, and removed.
    pub(crate) fn chunk_counts(&self) -> (u64, u64) {
        self.chunk_counts
    }

    /// The device items as they are now.
    pub(crate) fn device_items(&self) -> Vec<DevItem> {
        self.devices.items()
    }
}

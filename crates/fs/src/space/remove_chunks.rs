//! Giving empty block groups back to the devices, so that the other kind can have the room.
//!
//! A group goes when nothing is in it for anybody: not in the trees of the last commit nor in those
//! that readers of older ones may see (what these freed is pinned), not in the log, not in the open
//! transaction. All of these keep space from being *available*, so a group that is available as a
//! whole is empty in every state that a crash may leave. From the moment at which a commit takes
//! such a group nobody can allocate in it; the device's space is given to others only when that
//! commit is durable (invariant 18).

use std::ops::Range;

use ubtrfs_format::Logical;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem};
use ubtrfs_volume::{Published, Volume};

use super::allocator::SpaceInner;
use super::device_map::Shrink;
use super::free_map::FreeMap;
use super::freed::Pinned;
use super::group::{Emptying, Giving};
use super::{BlockGroup, DeviceMap, Shortage};

/// The number of commits during which a group must have been empty, so that one that is filled
/// again soon stays.
const IDLE_COMMITS: u32 = 2;
/// Empty groups that a commit looks at, in turn, unless an operation waits for them: each that goes
/// makes the commit longer.
const MAX_LOOKED_AT: usize = 256;

impl SpaceInner {
    /// Notes that a reservation failed and that no chunk can be made for it, so that empty chunks
    /// of the other kind are removed at once.
    pub(crate) fn want_empty_groups(&mut self, shortage: Shortage) {
        self.wanted = Some(shortage);
    }

    /// Whether commits would remove groups, though nothing else has changed; perhaps only those
    /// that were emptied on purpose.
    pub(crate) fn has_empty_groups(&self, volume: &Volume, only_emptied: bool) -> bool {
        let goes = |group: &BlockGroup| is_unused(group, volume) && self.may_go(group);
        if only_emptied {
            return self.groups.emptying().any(|group| group.emptying == Some(Emptying::Ended) && goes(group));
        }
        let empty = self.groups.empty_after(self.looked_at, self.most_looked_at());
        empty.into_iter().filter_map(|(_, start)| self.groups.get(start)).any(goes)
    }

    /// Empty groups that a commit looks at.
    fn most_looked_at(&self) -> usize {
        if self.wanted.is_some() { usize::MAX } else { MAX_LOOKED_AT }
    }

    /// Why a group that was emptied has not gone, for the log.
    pub(crate) fn what_keeps(&self, start: Logical) -> String {
        let Some(group) = self.groups.get(start) else { return "it has left the volume".into() };
        let is_in_it = |(at, _): &&(Logical, u64)| (start.0..group.end()).contains(&at.0);
        let pinned: u64 = self.pinned.iter().flat_map(Pinned::extents).filter(is_in_it).map(|(_, len)| len).sum();
        format!(
            "of {} bytes {} are in use and {} free by the trees, {} are free, {} may be given out, readers of older \
             commits may see {pinned}; it is {}, and may {}go",
            group.length,
            group.recorded_used,
            group.recorded_free.total(),
            group.unused().total(),
            group.available.total(),
            if group.new { "new" } else { "old" },
            if self.may_go(group) { "" } else { "not " },
        )
    }

    /// The addresses of nearly empty metadata groups except for the first one, if that has room for
    /// their content.
    pub(crate) fn sparse_metadata(&self) -> Vec<Range<u64>> {
        let (few, room) = (16 * self.node_size, 64 * self.node_size);
        let is_open = |group: &&BlockGroup| group.giving == Giving::Open;
        let mut groups = self.groups.of_kind(BlockGroupFlags::METADATA).filter(is_open);
        if groups.next().is_none_or(|first| first.available.total() < room) || self.mixed {
            return Vec::new();
        }
        let is_sparse = |group: &&BlockGroup| group.recorded_used > 0 && group.recorded_used <= few;
        groups.filter(is_sparse).map(|group| group.start.0..group.end()).collect()
    }

    /// Device bytes of empty metadata chunks that could be data chunks.
    pub(super) fn reclaimable(&self) -> u64 {
        if self.mixed {
            return 0;
        }
        let metadata = self.groups.sums(BlockGroupFlags::METADATA);
        let kept = usize::from(metadata.groups == metadata.empty_groups);
        let mut spare = self.dispensable_metadata();
        let mut bytes = 0;
        for group in self.groups.empty(BlockGroupFlags::METADATA).skip(kept) {
            if let Some(left) = spare.checked_sub(group.available.total()) {
                spare = left;
                bytes += group.length * Self::copies(group.flags);
            }
        }
        bytes
    }

    /// Takes the groups that the commit in progress removes, with their chunks.
    pub(crate) fn take_empty_groups(&mut self, volume: &Volume) -> Vec<(BlockGroup, ChunkItem)> {
        let mut removed = Vec::new();
        for (flags, start) in self.groups.empty_after(self.looked_at, self.most_looked_at()) {
            self.looked_at = (flags, start);
            let Some(group) = self.groups.get(start) else { continue };
            let idle = if is_unused(group, volume) { group.idle_commits.saturating_add(1) } else { 0 };
            let is_due = idle > IDLE_COMMITS || self.wanted.is_some() || group.held.is_some();
            let goes = idle > 0 && is_due && self.may_go(group);
            if let Some(mut group) = self.groups.get_mut(start) {
                group.idle_commits = idle;
            }
            if goes
                && let Some(chunk) = volume.chunk(start)
                && let Some(group) = self.groups.remove(start)
            {
                let pins = |extents: &[(Logical, u64)]| {
                    extents.iter().any(|(at, len)| at.0 < group.end() && start.0 < at.0 + len)
                };
                debug_assert!(
                    !self.pinned.iter().any(|pinned| pins(pinned.extents())),
                    "invariant 18: chunk {start} goes, and readers may see what was in it"
                );
                self.devices.uncount(&chunk);
                self.leaving.push((start, chunk.clone()));
                removed.push((group, chunk));
            }
        }
        if !removed.is_empty() {
            self.count_kept();
        }
        self.wanted = None;
        removed
    }

    /// Ends the devices where their last chunks end, if the commit in progress is to do that;
    /// returns whether it is.
    pub(crate) fn cut_devices(&mut self) -> bool {
        if self.shrink == Shrink::Wanted {
            self.shrink = Shrink::Done(self.devices.cut_off_unallocated());
        }
        self.shrink != Shrink::No
    }

    /// The next commit ends the devices where their last chunks end.
    pub(crate) fn shrink_devices(&mut self) {
        self.shrink = Shrink::Wanted;
    }

    /// Whether the next commit has to end the devices elsewhere.
    pub(crate) fn is_to_shrink(&self) -> bool {
        self.shrink == Shrink::Wanted
    }

    /// Bytes that the commit in progress has taken from the devices.
    pub(crate) fn take_cut(&mut self) -> u64 {
        match std::mem::replace(&mut self.shrink, Shrink::No) {
            Shrink::Done(bytes) => bytes,
            Shrink::No | Shrink::Wanted => 0,
        }
    }

    /// The commit that gave groups back is durable: others can have their place on the devices.
    pub(crate) fn vacate(&mut self, volume: &Volume, _published: &Published) {
        for (start, chunk) in std::mem::take(&mut self.leaving) {
            debug_assert!(
                self.groups.of(start).is_none(),
                "invariant 18: the addresses of chunk {start} were given out"
            );
            self.chunk_counts.1 += 1;
            if let Err(error) = volume.remove_chunk(start) {
                tracing::warn!("chunk {start}: {error}");
            }
            for (devid, start, len) in self.devices.vacate(&chunk) {
                self.freed.add_vacated(devid, start, len);
            }
        }
    }

    /// Whether a group is dispensable: it isn't the last of its kind, and the others satisfy all
    /// reservations. System chunks stay: they are small, and the superblock has a copy of each.
    fn may_go(&self, group: &BlockGroup) -> bool {
        let flags = group.flags;
        if group.held.is_some() {
            return self.may_be_emptied(group);
        }
        !group.new
            && !flags.contains(BlockGroupFlags::SYSTEM)
            && self.groups.sums_where(|other| other == flags).open_groups > 1
            && group.available.total() <= self.spare(flags)
    }
}

/// Whether a group is empty in every state.
fn is_unused(group: &BlockGroup, volume: &Volume) -> bool {
    if group.recorded_used != 0 || group.recorded_free.total() != group.length {
        return false;
    }
    let Some(chunk) = volume.chunk(group.start) else { return false };
    let mut all = FreeMap::default();
    all.insert(group.start.0, group.length);
    for (at, len) in DeviceMap::superblock_ranges(group.start, &chunk) {
        all.remove_any(at.0, len);
    }
    all.total() == group.unused().total()
}

//! Giving empty block groups back to the devices, so that the other kind can have the room.
//!
//! A group goes when nothing is in it for anybody: not in the trees of the last commit nor in those
//! that readers of older ones may see (what these freed is pinned), not in the log, not in the open
//! transaction. All of these keep space from being *available*, so a group that is available as a
//! whole is empty in every state that a crash may leave. From the moment at which a commit takes
//! such a group nobody can allocate in it; the device's space is given to others only when that
//! commit is durable (invariant 18).

use std::ops::Range;

use ubtrfs_errors::sentence;
use ubtrfs_format::Logical;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem};
use ubtrfs_volume::{Published, Volume};

use crate::demand::Shortage;
use crate::device_map::DeviceMap;
use crate::free_map::FreeMap;
use crate::free_space_tree::GroupEdits;
use crate::group::{BlockGroup, Emptying, Giving};
use crate::profiles::copies;
use crate::space::SpaceState;

/// The number of commits during which a group must have been empty, so that one that is filled
/// again soon stays.
const IDLE_COMMITS: u32 = 2;
/// Empty groups that a commit looks at, in turn, unless an operation waits for them: each that goes
/// makes the commit longer.
const MAX_LOOKED_AT: usize = 256;

impl SpaceState {
    /// Notes that a reservation failed and that no chunk can be made for it, so that empty chunks
    /// of the other kind are removed at once.
    pub fn want_empty_groups(&mut self, shortage: Shortage) {
        self.chunks.set_wanted(Some(shortage));
    }

    /// Whether commits would remove groups, though nothing else has changed; perhaps only those
    /// that were emptied on purpose.
    pub fn has_empty_groups(&self, volume: &Volume, only_emptied: bool) -> bool {
        let goes = |group: &BlockGroup| is_unused(group, volume) && self.may_go(group);
        if only_emptied {
            return self.groups.emptying().any(|group| group.emptying == Some(Emptying::Ended) && goes(group));
        }
        let empty = self.groups.empty_after(self.chunks.looked_at(), self.most_looked_at());
        empty.into_iter().filter_map(|(_, start)| self.groups.get(start)).any(goes)
    }

    /// Empty groups that a commit looks at.
    fn most_looked_at(&self) -> usize {
        if self.chunks.wanted().is_some() { usize::MAX } else { MAX_LOOKED_AT }
    }

    /// Why a group that was emptied has not gone, for the log.
    pub fn what_keeps(&self, start: Logical) -> String {
        let Some(group) = self.groups.get(start) else { return "it has left the volume".into() };
        let pinned = self.pins.bytes_in(&(start.0..group.end()));
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
    pub fn sparse_metadata(&self) -> Vec<Range<u64>> {
        let (few, room) = (16 * self.node_size, 64 * self.node_size);
        let is_open = |group: &&BlockGroup| group.giving == Giving::Open;
        let sparse = self.groups.sparse().filter(is_open).filter(|group| group.recorded_used <= few);
        let mut sparse: Vec<_> = sparse.map(|group| group.start.0..group.end()).collect();
        if sparse.is_empty() || self.profiles.is_mixed() {
            return Vec::new();
        }
        let first = self.groups.of_kind(BlockGroupFlags::METADATA).find(is_open);
        match first.filter(|first| first.available.total() >= room) {
            Some(first) => sparse.retain(|range| range.start != first.start.0),
            None => sparse.clear(),
        }
        sparse
    }

    /// Device bytes of empty metadata chunks that could be data chunks.
    pub(crate) fn reclaimable(&self) -> u64 {
        if self.profiles.is_mixed() {
            return 0;
        }
        let metadata = self.groups.sums(BlockGroupFlags::METADATA);
        let kept = usize::from(metadata.groups == metadata.empty_groups);
        let mut spare = self.dispensable_metadata();
        let mut bytes = 0;
        for group in self.groups.empty(BlockGroupFlags::METADATA).skip(kept) {
            if let Some(left) = spare.checked_sub(group.available.total()) {
                spare = left;
                bytes += group.length * copies(group.flags);
            }
        }
        bytes
    }

    /// Takes the chunks that the commit in progress removes; the edits get those that delete the
    /// records of their groups.
    pub fn take_empty_groups(&mut self, volume: &Volume, edits: &mut GroupEdits) -> Vec<(Logical, ChunkItem)> {
        let mut removed = Vec::new();
        for (flags, start) in self.groups.empty_after(self.chunks.looked_at(), self.most_looked_at()) {
            self.chunks.set_looked_at((flags, start));
            let Some(group) = self.groups.get(start) else { continue };
            let idle = if is_unused(group, volume) { group.idle_commits.saturating_add(1) } else { 0 };
            let is_due = idle > IDLE_COMMITS || self.chunks.wanted().is_some() || group.held.is_some();
            // The leaves of the chunk tree that lose an item are written again.
            let has_room = removed.is_empty() || !self.is_system_short();
            let goes = idle > 0 && is_due && has_room && self.may_go(group);
            if let Some(mut group) = self.groups.get_mut(start) {
                group.idle_commits = idle;
            }
            if goes
                && let Some(chunk) = volume.chunk(start)
                && let Some(group) = self.groups.remove(start)
            {
                assert!(
                    is_unused(&group, volume),
                    "invariant 18: chunk {start} goes, and not all of it may be allocated"
                );
                // All pins are looked at.
                debug_assert!(
                    self.pins.bytes_in(&(start.0..group.end())) == 0,
                    "invariant 18: chunk {start} goes, and readers may see what was in it"
                );
                self.devices.uncount(&chunk);
                self.chunks.leave(start, chunk.clone());
                group.delete_items(edits);
                removed.push((start, chunk));
            }
        }
        if !removed.is_empty() {
            self.count_reserve();
        }
        self.chunks.set_wanted(None);
        removed
    }

    /// The commit that gave groups back is durable: others can have their place on the devices.
    pub fn vacate(&mut self, volume: &Volume, _published: &Published) {
        for (start, chunk) in self.chunks.take_leaving() {
            assert!(self.groups.of(start).is_none(), "invariant 18: the addresses of chunk {start} were given out");
            if let Err(error) = volume.remove_chunk(start) {
                tracing::warn!("chunk {start}: {}", sentence(&error));
            }
            for (devid, start, len) in self.devices.vacate(&chunk) {
                self.discards.add_vacated(devid, start, len);
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

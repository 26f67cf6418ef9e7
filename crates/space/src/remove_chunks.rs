//! Removing empty block groups, so that the other kind can have their device space.
//!
//! A group is removed when nothing uses it: neither the trees of the last commit nor those that
//! readers of older commits may see (extents that these lost are pinned), nor the log, nor the open
//! transaction. All of these keep space from being *available*, so a group that is available as a
//! whole is empty in every state that a crash may leave. Once a commit takes such a group, nothing
//! can be allocated in it. Its device space is used again only when that commit is durable
//! (invariant 18).

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

/// A group must have been empty during this many commits, so that one that is soon filled again
/// stays.
const IDLE_COMMITS: u32 = 2;
/// How many empty groups a commit considers, in rotation, unless an operation waits for space: each
/// removal makes the commit longer.
const MAX_LOOKED_AT: usize = 256;

impl SpaceState {
    /// Notes that a reservation failed and that no chunk can be made for it, so that empty chunks
    /// of the other kind are removed at once.
    pub fn want_empty_groups(&mut self, shortage: Shortage) {
        self.chunks.set_wanted(Some(shortage));
    }

    /// Returns whether commits would remove groups though nothing else has changed. With
    /// `only_emptied`, considers only those that were emptied on purpose.
    pub fn has_empty_groups(&self, volume: &Volume, only_emptied: bool) -> bool {
        let goes = |group: &BlockGroup| is_unused(group, volume) && self.may_go(group);
        if only_emptied {
            return self.groups.emptying().any(|group| group.emptying == Some(Emptying::Ended) && goes(group));
        }
        let empty = self.groups.empty_after(self.chunks.looked_at(), self.most_looked_at());
        empty.into_iter().filter_map(|(_, start)| self.groups.get(start)).any(goes)
    }

    /// Returns how many empty groups a commit considers.
    fn most_looked_at(&self) -> usize {
        if self.chunks.wanted().is_some() { usize::MAX } else { MAX_LOOKED_AT }
    }

    /// Returns, for the log, why a group that was emptied has not been removed.
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

    /// Returns the address ranges of nearly empty metadata groups, except the first one in the
    /// profile of new chunks, which must have room for their content: it gets what they have.
    pub fn sparse_metadata(&self) -> Vec<Range<u64>> {
        let (few, room) = (16 * self.node_size, 64 * self.node_size);
        let is_open = |group: &&BlockGroup| group.giving == Giving::Open;
        let sparse = self.groups.sparse().filter(is_open).filter(|group| group.recorded_used <= few);
        let mut sparse: Vec<_> = sparse.map(|group| group.start.0..group.end()).collect();
        if sparse.is_empty() || self.profiles.is_mixed() {
            return Vec::new();
        }
        // Nodes are not moved into groups of other profiles. So such a group as the destination
        // would let every commit move them again.
        let profile = self.profiles.of_new_chunks(BlockGroupFlags::METADATA).profile();
        let may_get = |group: &&BlockGroup| is_open(group) && group.flags.profile() == profile;
        let first = self.groups.of_kind(BlockGroupFlags::METADATA).find(may_get);
        match first.filter(|first| first.available.total() >= room) {
            Some(first) => sparse.retain(|range| range.start != first.start.0),
            None => sparse.clear(),
        }
        sparse
    }

    /// Returns the device bytes of empty metadata chunks that could become data chunks.
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

    /// Takes the chunks that the commit in progress removes. Adds to `edits` those that delete the
    /// records of their groups.
    pub fn take_empty_groups(&mut self, volume: &Volume, edits: &mut GroupEdits) -> Vec<(Logical, ChunkItem)> {
        let mut removed = Vec::new();
        for (flags, start) in self.groups.empty_after(self.chunks.looked_at(), self.most_looked_at()) {
            self.chunks.set_looked_at((flags, start));
            let Some(group) = self.groups.get(start) else { continue };
            let idle = if is_unused(group, volume) { group.idle_commits.saturating_add(1) } else { 0 };
            let is_due = idle > IDLE_COMMITS || self.chunks.wanted().is_some() || group.held.is_some();
            // The leaves of the chunk tree that lose an item are rewritten.
            let has_room = removed.is_empty() || !self.is_system_short();
            let goes = idle > 0 && is_due && has_room && self.may_go(group);
            if let Some(mut group) = self.groups.get_mut(start) {
                group.idle_commits = idle;
            }
            if goes
                && let Some(chunk) = volume.chunk_map().get(start)
                && let Some(group) = self.groups.remove(start)
            {
                assert!(
                    is_unused(&group, volume),
                    "invariant 18: chunk {start} goes, and not all of it may be allocated"
                );
                // This visits all pins.
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

    /// Releases the device space of removed groups, once the commit that removed them is durable.
    pub fn vacate(&mut self, volume: &Volume, _published: &Published) {
        for (start, chunk) in self.chunks.take_leaving() {
            assert!(self.groups.of(start).is_none(), "invariant 18: the addresses of chunk {start} were given out");
            if let Err(error) = volume.chunk_map().remove(start) {
                tracing::warn!("chunk {start}: {}", sentence(&error));
            }
            for (devid, start, len) in self.devices.vacate(&chunk) {
                self.discards.add_vacated(devid, start, len);
            }
        }
    }

    /// Returns whether a group is dispensable: it isn't the last of its kind, and the others
    /// satisfy all reservations. System chunks stay: they are small, and the superblock has a copy
    /// of each.
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

/// Returns whether a group is empty in every state that a crash may leave.
fn is_unused(group: &BlockGroup, volume: &Volume) -> bool {
    if group.recorded_used != 0 || group.recorded_free.total() != group.length {
        return false;
    }
    let Some(chunk) = volume.chunk_map().get(group.start) else { return false };
    let mut all = FreeMap::default();
    all.insert(group.start.0, group.length);
    for (at, len) in DeviceMap::superblock_ranges(group.start, &chunk) {
        all.remove_any(at.0, len);
    }
    all.total() == group.unused().total()
}

//! The allocator. It allocates only space to which no durable superblock refers (invariant 3).

use ubtrfs_format::Logical;
use ubtrfs_format::items::BlockGroupFlags;

use crate::group::BlockGroup;
use crate::groups::GroupMut;
use crate::space::SpaceState;

/// When a file has to continue elsewhere, because another file took the space behind its extent,
/// this many bytes are left free behind its new extent, so that it can grow contiguously there.
/// Later allocations may use them.
const ROOM_TO_GROW: u64 = 1 << 20;

impl SpaceState {
    /// Returns the group that holds an address, to change it.
    pub(crate) fn group_of(&mut self, address: Logical) -> Option<GroupMut<'_>> {
        self.groups.of_mut(address)
    }

    /// Allocates up to `want` bytes of data near `hint`. Returns address and length.
    pub(crate) fn allocate_data(&mut self, want: u64, hint: Logical) -> Option<(Logical, u64)> {
        // Nodes of the commit in flight can't be in new groups; data can. The global reserve is
        // left to these nodes, too, as long as data finds another place: data has a reservation,
        // and must find one.
        let reserve = self.reserved.global_reserve.bytes;
        let of_age = if self.leaves_nodes_room(want, reserve) { &[false, true][..] } else { &[true] };
        self.allocate_data_in(want, hint, of_age).or_else(|| {
            let may_take_more = of_age.len() == 1 && self.leaves_nodes_room(want, 0);
            if may_take_more { self.allocate_data_in(want, hint, &[false]) } else { None }
        })
    }

    /// Allocates data in groups of these ages: new ones (`true`) or others.
    fn allocate_data_in(&mut self, want: u64, hint: Logical, of_age: &[bool]) -> Option<(Logical, u64)> {
        let sector = self.sector_size;
        let may_take = |group: &&BlockGroup| group.flags.contains(BlockGroupFlags::DATA) && of_age.contains(&group.new);
        if let Some(group) = self.groups.of(hint).filter(may_take)
            && let Some((start, len)) = group.available.find(hint.0, want, sector)
            && (start, len) == (hint.0, want)
        {
            let group = group.start;
            self.allocate_in(group, start, len)?;
            return Some((hint, want));
        }
        let profile = self.profiles.of_new_chunks(BlockGroupFlags::DATA).profile();
        let (group, start, len) = self.groups.find(BlockGroupFlags::DATA, profile, of_age, (want, sector))?;
        self.allocate_in(group, start, len)?.cursor = start + len + if hint.0 > 0 { ROOM_TO_GROW } else { 0 };
        Some((Logical(start), len))
    }

    /// Allocates a node in system chunks or in metadata chunks. With `known_only`, chunks that the
    /// trees do not have yet are left out.
    pub(crate) fn allocate_node(&mut self, system: bool, known_only: bool) -> Option<Logical> {
        let kind = if system { BlockGroupFlags::SYSTEM } else { BlockGroupFlags::METADATA };
        let of_age = if known_only { &[false][..] } else { &[false, true] };
        let (profile, node_size) = (self.profiles.of_new_chunks(kind).profile(), self.node_size);
        let found = self.groups.find(kind, profile, of_age, (node_size, node_size));
        let (group, start, _) = found.filter(|(_, _, len)| *len == node_size)?;
        self.allocate_in(group, start, node_size)?.cursor = start + node_size;
        Some(Logical(start))
    }

    /// Allocates an available range of a group.
    fn allocate_in(&mut self, group: Logical, start: u64, len: u64) -> Option<GroupMut<'_>> {
        self.pins.note_allocated(start, len);
        let mut group = self.groups.get_mut(group)?;
        group.allocate(start, len);
        Some(group)
    }

    /// Makes a range available again that was allocated, excluded or pinned.
    ///
    /// # Panics
    ///
    /// If the trees use the range, or if it is available already: its next owner would overwrite
    /// another's data (invariants 3 and 10).
    pub fn make_available(&mut self, start: Logical, len: u64) {
        if let Some(mut group) = self.group_of(start) {
            assert!(
                group.is_free(start, len) == Some(true),
                "invariant 3: {start}+{len} becomes available, and the trees have it"
            );
            let fresh = group.give_back(start.0, len);
            assert!(fresh, "invariant 10: {start}+{len} freed twice");
        }
    }
}

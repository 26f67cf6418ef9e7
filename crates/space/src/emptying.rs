//! Block groups that are being emptied. Nothing is allocated in them, and nothing in them is
//! overwritten in place, so their content does not change while it is copied (invariant 36), and
//! can only become less. Once nothing is left in a group, it is removed as any empty group is,
//! after the readers of older commits that may see its content have ended.
//!
//! An operation that would fail for lack of the space in such groups gets it. Groups in which
//! nothing is left become available again at once. If a group's content is still being moved, its
//! space is asked back, so that the emptying stops and the group stays (`give_back_groups`).

use ubtrfs_format::Logical;
use ubtrfs_format::items::BlockGroupFlags;

use crate::group::{BlockGroup, Emptying, Giving};
use crate::space::SpaceState;

/// Returns a group's type, without its profile.
fn type_of(flags: BlockGroupFlags) -> u64 {
    flags.0 & BlockGroupFlags::TYPE_MASK.0
}

impl SpaceState {
    /// Closes a group to allocation. Returns false, and changes nothing, if the other groups can't
    /// satisfy what is reserved, or if there are none of its type.
    pub fn begin_emptying(&mut self, start: Logical) -> bool {
        let Some(group) = self.groups.get(start).filter(|group| group.may_be_closed()) else {
            return false;
        };
        let (flags, free) = (group.flags, group.available.total());
        // Data that was promised space in this group then needs space in others.
        let is_promised =
            flags.contains(BlockGroupFlags::DATA) && self.available(BlockGroupFlags::DATA) < self.reserved.data;
        if !self.has_other_of_type(group) || is_promised || self.spare_of(flags) < free {
            return false;
        }
        if let Some(mut group) = self.groups.get_mut(start) {
            group.emptying = Some(Emptying::UnderWay);
            if group.giving == Giving::Open {
                group.held = Some(std::mem::take(&mut group.available));
            }
        }
        true
    }

    /// Notes that nothing is left in the group: it is removed when the last readers of its content
    /// have ended. If an operation has asked for its space, it is available again until then.
    pub fn emptying_ends(&mut self, start: Logical) {
        let Some(mut group) = self.groups.get_mut(start) else { return };
        match group.emptying {
            Some(Emptying::AskedBack) => group.open_again(),
            _ => group.emptying = Some(Emptying::Ended),
        }
    }

    /// Ends the emptying of a group with what is left in it: its space is available again.
    pub fn leave(&mut self, start: Logical) {
        if let Some(mut group) = self.groups.get_mut(start) {
            group.open_again();
        }
    }

    /// Returns whether nothing is left in a group that was being emptied. It is removed when the
    /// last reader of its content has ended.
    pub fn is_emptied(&self, start: Logical) -> bool {
        self.groups.get(start).is_some_and(|group| group.emptying == Some(Emptying::Ended))
    }

    /// Returns whether a group that is being emptied may be removed.
    pub(crate) fn may_be_emptied(&self, group: &BlockGroup) -> bool {
        !group.new && self.has_other_of_type(group)
    }

    /// Returns whether another group, which is not being emptied, is of the same type.
    fn has_other_of_type(&self, group: &BlockGroup) -> bool {
        let of_type = self.groups.sums_where(|flags| type_of(flags) == type_of(group.flags));
        of_type.open_groups > u64::from(group.held.is_none())
    }

    /// Returns how many bytes of groups of this type nothing has reserved.
    fn spare_of(&self, flags: BlockGroupFlags) -> u64 {
        let mut spare = u64::MAX;
        if flags.contains(BlockGroupFlags::DATA) {
            spare = spare.min(self.available(BlockGroupFlags::DATA).saturating_sub(self.reserved.data));
        }
        if flags.contains(BlockGroupFlags::METADATA) {
            spare = spare.min(self.spare_metadata());
        }
        if flags.contains(BlockGroupFlags::SYSTEM) {
            spare = spare.min(self.available(BlockGroupFlags::SYSTEM).saturating_sub(self.system_need()));
        }
        spare
    }

    /// Makes new chunks of these types in this profile from now on.
    pub fn convert_to(&mut self, kind: BlockGroupFlags, profile: BlockGroupFlags) {
        self.profiles.convert(kind, profile);
    }

    /// Returns whether groups of this kind, in the profile of new chunks, have so many bytes
    /// available.
    pub fn has_converted_room(&self, kind: BlockGroupFlags, bytes: u64) -> bool {
        let flags = self.profiles.of_new_chunks(kind);
        self.groups.sums_where(|other| other == flags).available >= bytes
    }

    /// Returns how many bytes of a group the trees use, its length and its type.
    pub fn usage(&self, start: Logical) -> Option<(u64, u64, BlockGroupFlags)> {
        self.groups.get(start).map(|group| (group.recorded_used, group.length, group.flags))
    }

    /// Returns whether a balance can move the content of a group. It can't for a group on a device
    /// of a seed, nor for one in which nothing is left.
    pub fn can_be_emptied(&self, start: Logical) -> bool {
        self.groups.get(start).is_some_and(|group| group.giving == Giving::Open && group.emptying.is_none())
    }

    /// Returns whether data and metadata share groups.
    pub fn is_mixed(&self) -> bool {
        self.profiles.is_mixed()
    }

    /// Reserves metadata for a step of relocation, in whichever commit that is. Returns false if
    /// there is too little.
    pub fn reserve_relocation(&mut self, bytes: u64) -> bool {
        let fits = self.spare_metadata() >= bytes;
        if fits {
            self.reserved.relocation += bytes;
        }
        fits
    }

    /// Ends the reservation of a step of relocation.
    pub fn unreserve_relocation(&mut self, bytes: u64) {
        self.reserved.relocation = self.reserved.relocation.saturating_sub(bytes);
    }

    /// Returns how many bytes of a group are allocated or pinned, or `None` if it is not there.
    pub fn in_use(&self, start: Logical) -> Option<u64> {
        self.groups.get(start).map(|group| group.length - group.unused().total())
    }
}

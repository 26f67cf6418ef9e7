//! Block groups that are being emptied. Nobody gets space in them, and nothing in them is written
//! in place, so what is in them stays as it is while it is copied (invariant 41), and can only
//! become less. Once nothing is left they go as any empty group does; what readers of older commits
//! may see keeps them until these end.
//!
//! An operation that would fail for want of the space that such groups hold aside gets it: those in
//! which nothing is left give space again at once, and one from which something is being moved is
//! asked back, so that it is left as it is (`give_back_groups`).

use ubtrfs_format::Logical;
use ubtrfs_format::items::BlockGroupFlags;

use crate::group::{BlockGroup, Emptying, Giving};
use crate::space::SpaceState;

/// A group's type, without its profile.
fn type_of(flags: BlockGroupFlags) -> u64 {
    flags.0 & BlockGroupFlags::TYPE_MASK.0
}

impl SpaceState {
    /// Nobody gets space in a group from now on. `false`, and nothing changes, if the others can't
    /// satisfy what is reserved, or if there are none of its type.
    pub fn begin_emptying(&mut self, start: Logical) -> bool {
        let Some(group) = self.groups.get(start).filter(|group| group.may_be_closed()) else {
            return false;
        };
        let (flags, free) = (group.flags, group.available.total());
        // Data that was promised to go to places in the group needs others then.
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

    /// Nothing is left in the group: it goes when the last readers of what was there have ended.
    /// One that an operation has asked for gives space again until then.
    pub fn emptying_ends(&mut self, start: Logical) {
        let Some(mut group) = self.groups.get_mut(start) else { return };
        match group.emptying {
            Some(Emptying::AskedBack) => group.open_again(),
            _ => group.emptying = Some(Emptying::Ended),
        }
    }

    /// The group stays, with what is left in it: its space is given out again.
    pub fn leave(&mut self, start: Logical) {
        if let Some(mut group) = self.groups.get_mut(start) {
            group.open_again();
        }
    }

    /// Whether nothing is left in a group that was being emptied: it goes when the last reader of
    /// what was there has ended.
    pub fn is_emptied(&self, start: Logical) -> bool {
        self.groups.get(start).is_some_and(|group| group.emptying == Some(Emptying::Ended))
    }

    /// Whether a group that is being emptied may go.
    pub(crate) fn may_be_emptied(&self, group: &BlockGroup) -> bool {
        !group.new && self.has_other_of_type(group)
    }

    /// Whether another group, which is not being emptied, is of the same type.
    fn has_other_of_type(&self, group: &BlockGroup) -> bool {
        let of_type = self.groups.sums_where(|flags| type_of(flags) == type_of(group.flags));
        of_type.open_groups > u64::from(group.held.is_none())
    }

    /// Bytes of groups of this type that nothing has reserved.
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

    /// Has new chunks of these types made in a profile.
    pub fn convert_to(&mut self, kind: BlockGroupFlags, profile: BlockGroupFlags) {
        self.profiles.convert(kind, profile);
    }

    /// Whether space of this kind in groups of the profile of new ones has so much room.
    pub fn has_converted_room(&self, kind: BlockGroupFlags, bytes: u64) -> bool {
        let flags = self.profiles.of_new_chunks(kind);
        self.groups.sums_where(|other| other == flags).available >= bytes
    }

    /// The share of a group that is in use by the trees, its length and its type.
    pub fn usage(&self, start: Logical) -> Option<(u64, u64, BlockGroupFlags)> {
        self.groups.get(start).map(|group| (group.recorded_used, group.length, group.flags))
    }

    /// Whether a balance moves what is in a group: nothing on a device of a seed, nor where nothing
    /// is left.
    pub fn can_be_emptied(&self, start: Logical) -> bool {
        self.groups.get(start).is_some_and(|group| group.giving == Giving::Open && group.emptying.is_none())
    }

    /// Whether data and metadata share groups.
    pub fn is_mixed(&self) -> bool {
        self.profiles.is_mixed()
    }

    /// Reserves metadata for a step of relocation, whichever commit it is in. `false` if there is
    /// too little.
    pub fn reserve_relocation(&mut self, bytes: u64) -> bool {
        let fits = self.spare_metadata() >= bytes;
        if fits {
            self.reserved.relocation += bytes;
        }
        fits
    }

    /// The step is done.
    pub fn unreserve_relocation(&mut self, bytes: u64) {
        self.reserved.relocation = self.reserved.relocation.saturating_sub(bytes);
    }

    /// Whether a group is there, and what of it is allocated or pinned.
    pub fn in_use(&self, start: Logical) -> Option<u64> {
        self.groups.get(start).map(|group| group.length - group.unused().total())
    }
}

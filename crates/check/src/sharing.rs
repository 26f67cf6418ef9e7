//! Which subvolumes share which extents: the use of quota groups follows from it.
//!
//! Extents that the same subvolumes refer to have the same set, and sets are numbered, so that an
//! extent takes a few bytes however many subvolumes share it.

use std::collections::HashMap;

use serde::Serialize;
use ubtrfs_format::items::{FileExtent, FileExtentKind};
use ubtrfs_format::{ItemType, Leaf, Logical, TreeId};

/// The most members that all sets may have together; beyond that nothing is compared.
const MAX_MEMBERS: usize = 16 << 20;

/// An extent of a subvolume, and all subvolumes that refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SharedExtent {
    /// The logical address.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// The ids of the subvolumes, in ascending order.
    pub subvolumes: Vec<u64>,
}

/// The subvolumes that refer to each extent.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    trees: Vec<TreeId>,
    /// The members of each set, as ascending positions in `trees`.
    sets: Vec<Vec<u32>>,
    numbers: HashMap<Vec<u32>, u32>,
    /// The set of a set with one more member.
    larger: HashMap<(u32, u32), u32>,
    /// The set and the length of each extent.
    extents: HashMap<u64, (u32, u64)>,
    members: usize,
}

impl Sharing {
    /// The subvolumes, in the order by which sets name them.
    pub(crate) fn trees(&self) -> &[TreeId] {
        &self.trees
    }

    /// Returns whether there was too much to remember.
    pub(crate) fn is_too_large(&self) -> bool {
        self.members > MAX_MEMBERS
    }

    /// Begins a subvolume; what is noted after this is its.
    pub(crate) fn begin(&mut self, tree: TreeId) {
        self.trees.push(tree);
    }

    /// Notes that the subvolume refers to an extent of this length.
    pub(crate) fn note(&mut self, extent: Logical, length: u64) {
        let Some(tree) = self.trees.len().checked_sub(1).and_then(|last| u32::try_from(last).ok()) else { return };
        if self.is_too_large() {
            return;
        }
        let known = self.extents.get(&extent.0).map(|(set, _)| *set);
        let is_member = |set: u32| self.sets.get(set as usize).is_some_and(|members| members.last() == Some(&tree));
        let set = match known {
            Some(set) if is_member(set) => return,
            Some(set) => self.with(set, tree),
            None => self.number(vec![tree]),
        };
        self.extents.insert(extent.0, (set, length));
    }

    /// Notes the data extents of a leaf.
    pub(crate) fn note_data(&mut self, leaf: &Leaf<'_>) {
        for (_, data) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA) {
            if let Ok(FileExtent { kind: FileExtentKind::Regular { disk_bytenr, disk_num_bytes, .. }, .. }) =
                FileExtent::parse(data)
                && disk_bytenr.0 != 0
            {
                self.note(disk_bytenr, disk_num_bytes);
            }
        }
    }

    fn with(&mut self, set: u32, tree: u32) -> u32 {
        if let Some(larger) = self.larger.get(&(set, tree)) {
            return *larger;
        }
        let mut members = self.sets.get(set as usize).cloned().unwrap_or_default();
        members.push(tree);
        let larger = self.number(members);
        self.larger.insert((set, tree), larger);
        larger
    }

    fn number(&mut self, members: Vec<u32>) -> u32 {
        if let Some(number) = self.numbers.get(&members) {
            return *number;
        }
        let number = u32::try_from(self.sets.len()).unwrap_or(u32::MAX);
        self.members += members.len();
        self.sets.push(members.clone());
        self.numbers.insert(members, number);
        number
    }

    /// The extents of a subvolume, by address.
    pub(crate) fn extents_of(&self, tree: TreeId) -> Vec<SharedExtent> {
        let ids = |set: u32| {
            let members = self.sets.get(set as usize)?;
            let mut ids: Vec<u64> =
                members.iter().filter_map(|at| self.trees.get(*at as usize)).map(|id| id.0).collect();
            ids.sort_unstable();
            ids.contains(&tree.0).then_some(ids)
        };
        let extents = self.extents.iter().filter_map(|(address, (set, length))| {
            Some(SharedExtent { address: *address, length: *length, subvolumes: ids(*set)? })
        });
        let mut extents: Vec<_> = extents.collect();
        extents.sort_unstable_by_key(|extent| extent.address);
        extents
    }

    /// The members of each set, and the bytes of the extents that have this set.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (&[u32], u64)> {
        let mut totals = vec![0_u64; self.sets.len()];
        for (set, length) in self.extents.values() {
            if let Some(total) = totals.get_mut(*set as usize) {
                *total = total.saturating_add(*length);
            }
        }
        self.sets.iter().map(Vec::as_slice).zip(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_summed_by_who_shares_them() {
        let mut sharing = Sharing::default();
        sharing.begin(TreeId::FS);
        for (extent, length) in [(100, 1), (200, 2), (100, 1), (300, 4)] {
            sharing.note(Logical(extent), length);
        }
        sharing.begin(TreeId(256));
        for (extent, length) in [(200, 2), (200, 2), (300, 4), (400, 8)] {
            sharing.note(Logical(extent), length);
        }
        let mut totals: Vec<_> = sharing.totals().filter(|(_, bytes)| *bytes > 0).collect();
        totals.sort_unstable();
        assert_eq!(totals, [(&[0][..], 1), (&[0, 1][..], 6), (&[1][..], 8)]);
    }
}

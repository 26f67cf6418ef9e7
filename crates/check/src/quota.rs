//! Checks quota groups: that their items and relations are complete, and that their use is what the
//! subvolumes have.
//!
//! A group of level 0 counts what one subvolume refers to, a higher group what all subvolumes below
//! it refer to together, shared extents once. What only members of a group refer to is exclusive.
//! Facts: the on-disk format of btrfs's documentation, and volumes that kernels made.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ubtrfs_format::{Generation, ItemType, Key, Superblock, TreeId};

use crate::fault::{FaultKind, Location};
use crate::report::{Faults, QgroupReport};
use crate::roots::Roots;
use crate::sharing::Sharing;

/// Bits of the status.
const FLAG_ON: u64 = 1 << 0;
const FLAG_RESCAN: u64 = 1 << 1;
const FLAG_INCONSISTENT: u64 = 1 << 2;
/// Simple quotas count what a subvolume allocated, not what it shares.
const FLAG_SIMPLE: u64 = 1 << 3;

/// The length of each item; a status may have one more field.
const STATUS_LENGTHS: [usize; 2] = [32, 40];
const INFO_LENGTH: usize = 40;
const LIMIT_LENGTH: usize = 40;

/// How many bits of a group's number are its id; those above are its level.
const ID_BITS: u32 = 48;

#[derive(Debug, Clone, Copy, Default)]
struct Info {
    /// Referenced and exclusive bytes, each as they are and compressed.
    sums: [u64; 4],
}

/// The items of the quota tree.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    /// The generation and the flags.
    status: Option<(Generation, u64)>,
    infos: BTreeMap<u64, Info>,
    limits: BTreeSet<u64>,
    relations: BTreeSet<(u64, u64)>,
}

fn shown(qgroup: u64) -> String {
    format!("{}/{}", qgroup >> ID_BITS, qgroup & ((1 << ID_BITS) - 1))
}

fn words<const N: usize>(data: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(data.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    words
}

impl Quota {
    /// Adds an item of the quota tree.
    pub(crate) fn take(&mut self, key: Key, data: &[u8], faults: &mut Faults) {
        let is_right = match key.item_type {
            ItemType::QGROUP_STATUS => STATUS_LENGTHS.contains(&data.len()),
            ItemType::QGROUP_INFO => data.len() == INFO_LENGTH,
            ItemType::QGROUP_LIMIT => data.len() == LIMIT_LENGTH,
            ItemType::QGROUP_RELATION => data.is_empty(),
            _ => return,
        };
        if !is_right {
            let kind = FaultKind::BadItem { reason: format!("quota item of {} bytes", data.len()) };
            faults.add(kind, Location::item(TreeId::QUOTA, key));
            return;
        }
        match key.item_type {
            ItemType::QGROUP_STATUS => {
                let [_, generation, flags] = words(data);
                self.status = Some((Generation(generation), flags));
            }
            ItemType::QGROUP_INFO => {
                let [_, sums @ ..] = words::<5>(data);
                self.infos.insert(key.offset, Info { sums });
            }
            ItemType::QGROUP_LIMIT => {
                self.limits.insert(key.offset);
            }
            _ => {
                self.relations.insert((key.objectid, key.offset));
            }
        }
    }

    fn flags(&self) -> u64 {
        self.status.map_or(0, |(_, flags)| flags)
    }

    /// Returns whether the groups count what subvolumes refer to.
    pub(crate) fn counts_references(&self) -> bool {
        self.flags() & FLAG_ON != 0 && self.flags() & FLAG_SIMPLE == 0
    }

    /// Returns whether the use must be right. A writer that does not know quota groups leaves the
    /// generation behind; the next mount then marks them as inconsistent.
    pub(crate) fn is_consistent(&self, superblock: &Superblock) -> bool {
        let is_current = self.status.is_some_and(|(generation, _)| generation == superblock.generation);
        is_current && self.counts_references() && self.flags() & (FLAG_INCONSISTENT | FLAG_RESCAN) == 0
    }

    /// Checks that items and relations are complete.
    pub(crate) fn judge_items(&self, superblock: &Superblock, roots: &Roots, faults: &mut Faults) {
        let place = || Location::tree(TreeId::QUOTA);
        for (from, to) in &self.relations {
            let (child, parent) = (shown(*from.min(to)), shown(*from.max(to)));
            if !self.infos.contains_key(from) || !self.infos.contains_key(to) {
                let rule = "one of them does not exist";
                // Its other half would say the same.
                if from < to || !self.relations.contains(&(*to, *from)) {
                    faults.add(FaultKind::QgroupRelation { child, parent, rule }, place());
                }
            } else if !self.relations.contains(&(*to, *from)) {
                let rule = "only one of them has it";
                faults.add(FaultKind::QgroupRelation { child, parent, rule }, place());
            }
        }
        if self.flags() & FLAG_ON == 0 {
            return;
        }
        if !self.is_consistent(superblock) {
            if self.counts_references() {
                faults.add(FaultKind::QgroupsInconsistent, place());
            }
            return;
        }
        let mut lacks = |qgroup: u64, what| {
            faults.add(FaultKind::QgroupItemMissing { qgroup: shown(qgroup), what }, place());
        };
        for qgroup in self.infos.keys().filter(|qgroup| !self.limits.contains(qgroup)) {
            lacks(*qgroup, "limit item");
        }
        for qgroup in self.limits.iter().filter(|qgroup| !self.infos.contains_key(qgroup)) {
            lacks(*qgroup, "item of its use");
        }
        for (key, item) in &roots.items {
            let known = self.infos.contains_key(&key.objectid) || self.limits.contains(&key.objectid);
            if TreeId(key.objectid).is_subvolume() && item.refs != 0 && !known {
                lacks(key.objectid, "items");
            }
        }
    }

    /// The groups that a subvolume belongs to, directly or by other groups.
    fn groups_of(&self, subvolume: u64) -> Vec<u64> {
        let mut found = BTreeSet::new();
        let mut next = vec![subvolume];
        while let Some(group) = next.pop() {
            if self.infos.contains_key(&group) && found.insert(group) {
                let parents = self.relations.range((group, group.saturating_add(1))..=(group, u64::MAX));
                next.extend(parents.map(|(_, parent)| *parent));
            }
        }
        found.into_iter().collect()
    }

    /// The use of each group by its item and by the trees.
    pub(crate) fn report(&self, sharing: &Sharing) -> Vec<QgroupReport> {
        let groups: Vec<Vec<u64>> = sharing.trees().iter().map(|tree| self.groups_of(tree.0)).collect();
        let mut found: HashMap<u64, (u64, u64)> = HashMap::new();
        for (members, bytes) in sharing.totals() {
            let mut counts: HashMap<u64, usize> = HashMap::new();
            for group in members.iter().filter_map(|member| groups.get(*member as usize)).flatten() {
                *counts.entry(*group).or_default() += 1;
            }
            for (group, count) in counts {
                let sums = found.entry(group).or_default();
                sums.0 = sums.0.saturating_add(bytes);
                if count == members.len() {
                    sums.1 = sums.1.saturating_add(bytes);
                }
            }
        }
        let report = |(qgroup, info): (&u64, &Info)| {
            let (referenced_found, exclusive_found) = found.get(qgroup).copied().unwrap_or_default();
            let [referenced, _, exclusive, _] = info.sums;
            QgroupReport { qgroup: shown(*qgroup), referenced, referenced_found, exclusive, exclusive_found }
        };
        self.infos.iter().map(report).collect()
    }

    /// Reports groups whose use is not what the trees have.
    pub(crate) fn judge_use(report: &[QgroupReport], faults: &mut Faults) {
        for group in report {
            for (field, found, expected) in [
                ("the referenced use", group.referenced, group.referenced_found),
                ("the exclusive use", group.exclusive, group.exclusive_found),
            ] {
                if found != expected {
                    let kind = FaultKind::QgroupUse { qgroup: group.qgroup.clone(), field, found, expected };
                    faults.add(kind, Location::tree(TreeId::QUOTA));
                }
            }
        }
    }
}

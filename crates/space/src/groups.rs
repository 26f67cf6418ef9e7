//! All block groups of a volume, and the indexes for questions about many of them at once.
//!
//! A volume of 10 TiB has ten thousand groups, so no operation may visit all of them. There are
//! indexes for sums by type and profile, for the groups with available space by the size of that,
//! for the empty ones, and for those that a commit has to write. They follow each change of a
//! group: it is changed through a [`GroupMut`], which compares the group's entries in the indexes
//! before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Add, Deref, DerefMut, Sub};

use ubtrfs_format::Logical;
use ubtrfs_format::items::BlockGroupFlags;

use crate::group::{BlockGroup, Emptying};

/// How many groups of one size class are searched before those of the next class are.
const MAX_TRIED: usize = 8;
/// The most bytes that the trees use in a group that is called sparse: 16 of the largest nodes.
const MAX_SPARSE: u64 = 16 << 16;

/// Sums over groups, in bytes except for the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) groups: u64,
    /// Groups in which space is allocated: they are not being emptied, nor on a seed.
    pub(crate) open_groups: u64,
    /// Groups in which the trees use nothing.
    pub(crate) empty_groups: u64,
    pub(crate) length: u64,
    /// The bytes that the trees use.
    pub(crate) used: u64,
    /// The bytes that may be allocated.
    pub(crate) available: u64,
    /// The bytes that may be allocated in groups that the last commit has.
    pub(crate) available_in_old: u64,
    /// The bytes that are neither allocated nor pinned.
    pub(crate) unused: u64,
}

impl Sums {
    /// Combines each of these sums with that of `other`.
    fn with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            groups: combine(self.groups, other.groups),
            open_groups: combine(self.open_groups, other.open_groups),
            empty_groups: combine(self.empty_groups, other.empty_groups),
            length: combine(self.length, other.length),
            used: combine(self.used, other.used),
            available: combine(self.available, other.available),
            available_in_old: combine(self.available_in_old, other.available_in_old),
            unused: combine(self.unused, other.unused),
        }
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, u64::add)
    }

    fn minus(self, other: Self) -> Self {
        self.with(other, u64::sub)
    }
}

/// The properties of a group that the indexes have.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Digest {
    flags: BlockGroupFlags,
    sums: Sums,
    is_new: bool,
    is_touched: bool,
    emptying: Option<Emptying>,
    /// Whether it is a metadata group of which the trees use little.
    is_sparse: bool,
    /// The size class of its largest available range, if there is one.
    largest: Option<u32>,
}

impl Digest {
    fn of(group: &BlockGroup) -> Self {
        let available = group.available.total();
        let sums = Sums {
            groups: 1,
            open_groups: u64::from(group.held.is_none()),
            empty_groups: u64::from(group.recorded_used == 0),
            length: group.length,
            used: group.recorded_used,
            available,
            available_in_old: if group.new { 0 } else { available },
            unused: group.unused().total(),
        };
        Self {
            flags: group.flags,
            sums,
            is_new: group.new,
            is_touched: group.touched,
            emptying: group.emptying,
            is_sparse: group.flags.contains(BlockGroupFlags::METADATA)
                && (1..=MAX_SPARSE).contains(&group.recorded_used),
            largest: group.available.largest().map(u64::ilog2),
        }
    }

    fn is_empty(&self) -> bool {
        self.sums.empty_groups > 0
    }

    /// Returns the properties that determine the sets to which the group belongs.
    fn key(&self) -> impl PartialEq {
        (self.flags, self.is_new, self.is_touched, self.emptying, self.is_sparse, self.largest, self.is_empty())
    }
}

/// The indexes of all groups, by their digests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Indexes {
    /// By type and profile, of which there are few.
    sums: BTreeMap<u64, Sums>,
    /// Groups with available space: by type and profile, by whether the last commit lacks them, and
    /// by the size class of their largest available range.
    with_room: BTreeMap<(u64, bool, u32), BTreeSet<Logical>>,
    /// Groups in which the trees use nothing, by type and profile.
    empty: BTreeSet<(u64, Logical)>,
    /// Groups whose records the next commit has to write.
    touched: BTreeSet<Logical>,
    emptying: BTreeSet<Logical>,
    sparse: BTreeSet<Logical>,
}

impl Indexes {
    fn add(&mut self, start: Logical, digest: &Digest) {
        let sums = self.sums.entry(digest.flags.0).or_default();
        *sums = sums.plus(digest.sums);
        if let Some(class) = digest.largest {
            self.with_room.entry((digest.flags.0, digest.is_new, class)).or_default().insert(start);
        }
        if digest.is_empty() {
            self.empty.insert((digest.flags.0, start));
        }
        let sets = [
            (&mut self.touched, digest.is_touched),
            (&mut self.emptying, digest.emptying.is_some()),
            (&mut self.sparse, digest.is_sparse),
        ];
        for (set, _) in sets.into_iter().filter(|(_, is_in)| *is_in) {
            set.insert(start);
        }
    }

    fn remove(&mut self, start: Logical, digest: &Digest) {
        if let Some(sums) = self.sums.get_mut(&digest.flags.0) {
            *sums = sums.minus(digest.sums);
            if sums.groups == 0 {
                self.sums.remove(&digest.flags.0);
            }
        }
        if let Some(class) = digest.largest {
            let key = (digest.flags.0, digest.is_new, class);
            if let Some(starts) = self.with_room.get_mut(&key) {
                starts.remove(&start);
                if starts.is_empty() {
                    self.with_room.remove(&key);
                }
            }
        }
        self.empty.remove(&(digest.flags.0, start));
        for set in [&mut self.touched, &mut self.emptying, &mut self.sparse] {
            set.remove(&start);
        }
    }

    fn change(&mut self, start: Logical, before: &Digest, after: &Digest) {
        if before.key() != after.key() {
            self.remove(start, before);
            self.add(start, after);
        } else if let Some(sums) = self.sums.get_mut(&after.flags.0) {
            // Most changes only change the sums.
            *sums = sums.minus(before.sums).plus(after.sums);
        }
    }
}

/// The block groups of a volume.
#[derive(Default)]
pub(crate) struct Groups {
    by_start: BTreeMap<Logical, BlockGroup>,
    indexes: Indexes,
}

/// A group that is being changed.
pub(crate) struct GroupMut<'a> {
    group: &'a mut BlockGroup,
    indexes: &'a mut Indexes,
    before: Digest,
}

impl Deref for GroupMut<'_> {
    type Target = BlockGroup;

    fn deref(&self) -> &BlockGroup {
        self.group
    }
}

impl DerefMut for GroupMut<'_> {
    fn deref_mut(&mut self) -> &mut BlockGroup {
        self.group
    }
}

impl Drop for GroupMut<'_> {
    fn drop(&mut self) {
        let after = Digest::of(self.group);
        if after != self.before {
            if !after.is_empty() {
                self.group.idle_commits = 0;
            }
            self.indexes.change(self.group.start, &self.before, &after);
        }
    }
}

impl Groups {
    /// Returns whether there are no groups, since they could not be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Adds a group where none is.
    pub(crate) fn insert(&mut self, group: BlockGroup) {
        let (start, digest) = (group.start, Digest::of(&group));
        let before = self.by_start.insert(start, group);
        assert!(before.is_none(), "invariant 18: two block groups begin at {start}");
        self.indexes.add(start, &digest);
    }

    /// Removes a group.
    pub(crate) fn remove(&mut self, start: Logical) -> Option<BlockGroup> {
        let group = self.by_start.remove(&start)?;
        self.indexes.remove(start, &Digest::of(&group));
        Some(group)
    }

    /// Returns the group that begins at an address.
    pub(crate) fn get(&self, start: Logical) -> Option<&BlockGroup> {
        self.by_start.get(&start)
    }

    /// Returns the group that begins at an address, to change it.
    pub(crate) fn get_mut(&mut self, start: Logical) -> Option<GroupMut<'_>> {
        let group = self.by_start.get_mut(&start)?;
        Some(GroupMut { before: Digest::of(group), indexes: &mut self.indexes, group })
    }

    /// Returns the group that holds an address.
    pub(crate) fn of(&self, address: Logical) -> Option<&BlockGroup> {
        let (_, group) = self.by_start.range(..=address).next_back()?;
        (address.0 < group.end()).then_some(group)
    }

    /// Returns the group that holds an address, to change it.
    pub(crate) fn of_mut(&mut self, address: Logical) -> Option<GroupMut<'_>> {
        let start = self.of(address)?.start;
        self.get_mut(start)
    }

    /// Returns the first group that ends behind an address.
    pub(crate) fn first_behind(&self, address: Logical) -> Option<&BlockGroup> {
        self.of(address).or_else(|| self.by_start.range(address..).next().map(|(_, group)| group))
    }

    /// Returns the end address of the last group.
    pub(crate) fn end(&self) -> Option<u64> {
        self.by_start.values().next_back().map(BlockGroup::end)
    }

    /// Returns the sums of groups by type and profile.
    fn by_flags(&self) -> impl Iterator<Item = (BlockGroupFlags, Sums)> + Clone {
        self.indexes.sums.iter().map(|(flags, sums)| (BlockGroupFlags(*flags), *sums))
    }

    /// Returns the sums of the groups whose type and profile satisfy `which`.
    pub(crate) fn sums_where(&self, which: impl Fn(BlockGroupFlags) -> bool) -> Sums {
        self.by_flags().filter(|(flags, _)| which(*flags)).fold(Sums::default(), |sum, (_, sums)| sum.plus(sums))
    }

    /// Returns the sums of groups that hold a kind of blocks.
    pub(crate) fn sums(&self, kind: BlockGroupFlags) -> Sums {
        self.sums_where(|flags| flags.contains(kind))
    }

    /// Returns a sum of bytes over all groups, each multiplied by the copies that its profile
    /// makes.
    pub(crate) fn bytes_on_devices(&self, bytes: impl Fn(Sums) -> u64, copies: impl Fn(BlockGroupFlags) -> u64) -> u64 {
        self.by_flags().map(|(flags, sums)| bytes(sums) * copies(flags)).sum()
    }

    /// Returns the groups of a kind in which the trees use nothing, by type and profile and then by
    /// address.
    pub(crate) fn empty(&self, kind: BlockGroupFlags) -> impl Iterator<Item = &BlockGroup> {
        let flags = self.by_flags().map(|(flags, _)| flags).filter(move |flags| flags.contains(kind));
        let starts = flags.flat_map(|flags| {
            let range = (flags.0, Logical(0))..=(flags.0, Logical(u64::MAX));
            self.indexes.empty.range(range).map(|(_, start)| *start)
        });
        starts.filter_map(|start| self.get(start))
    }

    /// Returns up to `most` groups in which the trees use nothing, by type and address: from the
    /// first one behind `after` on, wrapping around.
    pub(crate) fn empty_after(&self, after: (u64, Logical), most: usize) -> Vec<(u64, Logical)> {
        let behind = self.indexes.empty.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
        behind.chain(self.indexes.empty.range(..=after)).take(most).copied().collect()
    }

    /// Returns the groups of a kind in the order of their addresses. There may be many, so no
    /// operation visits them all.
    pub(crate) fn of_kind(&self, kind: BlockGroupFlags) -> impl Iterator<Item = &BlockGroup> {
        self.by_start.values().filter(move |group| group.flags.contains(kind))
    }

    /// Returns the start addresses of groups whose records the next commit has to write.
    pub(crate) fn touched(&self) -> Vec<Logical> {
        self.indexes.touched.iter().copied().collect()
    }

    /// Returns the groups that are being emptied or were emptied.
    pub(crate) fn emptying(&self) -> impl Iterator<Item = &BlockGroup> {
        self.indexes.emptying.iter().filter_map(|start| self.get(*start))
    }

    /// Returns the metadata groups of which the trees use little.
    pub(crate) fn sparse(&self) -> impl Iterator<Item = &BlockGroup> {
        self.indexes.sparse.iter().filter_map(|start| self.get(*start))
    }

    /// Changes the groups that are being emptied or were emptied.
    pub(crate) fn change_emptying(&mut self, mut change: impl FnMut(&mut BlockGroup)) {
        for start in self.indexes.emptying.clone() {
            if let Some(mut group) = self.get_mut(start) {
                change(&mut group);
            }
        }
    }

    /// Finds an available range of up to `want` bytes, whose start and length are multiples of
    /// `align`. Returns its group, its start and its length. It is in the first group with a range
    /// for all of it, among the few that are searched, else it is the largest one. Groups of
    /// `profile` come first. `of_age` says which groups count: those that the last commit has
    /// (`false`), and those that it lacks (`true`).
    pub(crate) fn find(
        &self,
        kind: BlockGroupFlags,
        profile: BlockGroupFlags,
        of_age: &[bool],
        (want, align): (u64, u64),
    ) -> Option<(Logical, u64, u64)> {
        let mut largest: Option<(Logical, u64, u64)> = None;
        for is_of_profile in [true, false] {
            let flags = self.by_flags().map(|(flags, _)| flags).filter(|flags| flags.contains(kind));
            let flags = flags.filter(|flags| (flags.profile() == profile) == is_of_profile);
            for start in self.candidates(flags.flat_map(|flags| of_age.iter().map(move |age| (flags.0, *age))), want) {
                let Some(group) = self.get(start) else { continue };
                let Some((at, len)) = group.available.find(group.cursor, want, align) else { continue };
                if len == want {
                    return Some((start, at, len));
                }
                if largest.is_none_or(|(_, _, found)| len > found) {
                    largest = Some((start, at, len));
                }
            }
        }
        largest
    }

    /// Returns groups that may have a range of `want` bytes, the most likely first: a few at low
    /// addresses with a range of about this size, then the first group that surely has one, then
    /// those with the largest ranges.
    fn candidates(&self, keys: impl Iterator<Item = (u64, bool)> + Clone, want: u64) -> impl Iterator<Item = Logical> {
        let class = want.max(1).ilog2();
        let in_classes = move |(flags, age): (u64, bool), from: u32, to: u32| {
            self.indexes.with_room.range((flags, age, from)..=(flags, age, to)).map(|(_, starts)| starts)
        };
        let larger = keys.clone().flat_map(move |key| in_classes(key, class + 1, u32::MAX));
        let sure = larger.filter_map(BTreeSet::first).min().copied();
        let similar = keys.clone().flat_map(move |key| in_classes(key, class, class));
        let similar = similar.flat_map(|starts| starts.iter().take(MAX_TRIED).copied());
        let similar = similar.filter(move |start| sure.is_none_or(|sure| *start < sure));
        // After alignment a range may be too small. If none is large enough, the largest is used.
        let largest = keys.filter_map(move |key| in_classes(key, 0, u32::MAX).next_back());
        similar.chain(sure).chain(largest.flat_map(|starts| starts.iter().take(MAX_TRIED).copied()))
    }

    /// Panics unless the indexes match the groups.
    pub(crate) fn check_indexes(&self) {
        let mut recounted = Indexes::default();
        self.by_start.iter().for_each(|(start, group)| recounted.add(*start, &Digest::of(group)));
        assert_eq!(recounted, self.indexes, "invariant 9: what is known of all block groups is not what they say");
    }
}

impl FromIterator<BlockGroup> for Groups {
    fn from_iter<T: IntoIterator<Item = BlockGroup>>(groups: T) -> Self {
        let mut all = Self::default();
        groups.into_iter().for_each(|group| all.insert(group));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const KINDS: [BlockGroupFlags; 2] = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA];

    /// Groups of 1 MiB, every other one of data.
    fn groups(count: u64) -> Groups {
        (1..=count).map(|at| BlockGroup::empty(Logical(at * MIB), MIB, KINDS[at as usize % 2])).collect()
    }

    #[test]
    fn a_range_is_found_in_the_first_group_that_has_it() {
        let mut groups = groups(1000);
        let find = |groups: &Groups, want| {
            groups.find(KINDS[0], BlockGroupFlags(0), &[false], (want, 4096)).map(|(group, ..)| group.0 / MIB)
        };
        assert_eq!(find(&groups, MIB), Some(2));
        for at in (2..=1000).step_by(2) {
            groups.get_mut(Logical(at * MIB)).unwrap().allocate(at * MIB, MIB - 12288);
        }
        assert_eq!(find(&groups, 12288), Some(2));
        // No range is as large, so the largest one is found.
        groups.get_mut(Logical(500 * MIB)).unwrap().give_back(500 * MIB + MIB - 16384, 4096);
        assert_eq!(find(&groups, MIB), Some(500));
        assert_eq!(find(&groups, 16384), Some(500));
        groups.remove(Logical(2 * MIB)).unwrap();
        assert_eq!(find(&groups, 4096), Some(4));
        groups.check_indexes();
    }

    #[test]
    fn groups_of_the_profile_of_new_ones_come_first() {
        let mut groups = groups(4);
        let converted = BlockGroup::empty(Logical(9 * MIB), MIB, KINDS[0].with(BlockGroupFlags::RAID1));
        groups.insert(converted);
        let find = |groups: &Groups, profile| groups.find(KINDS[0], profile, &[false], (4096, 4096)).unwrap().0;
        assert_eq!(find(&groups, BlockGroupFlags::RAID1), Logical(9 * MIB));
        assert_eq!(find(&groups, BlockGroupFlags(0)), Logical(2 * MIB));
    }

    #[test]
    fn empty_groups_are_looked_at_in_turn() {
        let groups = groups(10);
        let mut after = (0, Logical(0));
        let mut seen = Vec::new();
        for _ in 0..5 {
            let some = groups.empty_after(after, 4);
            after = *some.last().unwrap();
            seen.extend(some.into_iter().map(|(_, start)| start));
        }
        let once: BTreeSet<_> = seen[..10].iter().copied().collect();
        assert_eq!((once.len(), &seen[..10]), (10, &seen[10..]));
    }

    proptest::proptest! {
        /// Of invariant 9: sums and indexes are those of a recount after all changes, and a range
        /// that is found may be allocated.
        #[test]
        fn indexes_follow_every_change(
            steps in proptest::collection::vec((0..8_u8, 0..12_u64, 1..40_u64, proptest::bool::ANY), 1..200),
        ) {
            let mut groups = groups(8);
            let mut given: Vec<(Logical, u64, u64)> = Vec::new();
            for (step, at, sectors, is_data) in steps {
                let (start, len) = (Logical((at + 1) * MIB), sectors * 4096);
                let kind = KINDS[usize::from(!is_data)];
                match step {
                    0..3 => {
                        let found = groups.find(kind, BlockGroupFlags(0), &[false, true], (len, 4096));
                        if let Some((group, from, len)) = found {
                            let mut group = groups.get_mut(group).unwrap();
                            proptest::prop_assert!(group.flags.contains(kind));
                            group.allocate(from, len);
                            proptest::prop_assert!(group.record_allocated(Logical(from), len));
                            given.push((group.start, from, len));
                        } else {
                            let kind = |group: &&BlockGroup| group.flags.contains(kind);
                            let rooms = groups.by_start.values().filter(kind).map(|group| group.available.total());
                            proptest::prop_assert_eq!(rooms.sum::<u64>(), 0);
                        }
                    }
                    3..5 if !given.is_empty() => {
                        let (group, from, len) = given.swap_remove(at as usize % given.len());
                        if let Some(mut group) = groups.get_mut(group) {
                            proptest::prop_assert!(group.record_freed(Logical(from), len));
                            proptest::prop_assert!(group.give_back(from, len));
                        }
                    }
                    5 => if let Some(mut group) = groups.get_mut(start).filter(|group| group.may_be_closed()) {
                        group.emptying = Some(Emptying::UnderWay);
                        group.held = Some(std::mem::take(&mut group.available));
                    },
                    6 => groups.change_emptying(BlockGroup::open_again),
                    _ if groups.get(start).is_none() => {
                        let mut group = BlockGroup::empty(start, MIB, kind);
                        (group.new, group.touched) = (is_data, true);
                        groups.insert(group);
                    }
                    _ => {
                        groups.remove(start);
                        given.retain(|(group, ..)| *group != start);
                    }
                }
                groups.check_indexes();
            }
        }
    }
}

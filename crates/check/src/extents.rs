//! Reads the extent tree: first to learn what it says is in use, and in the end to compare that
//! with what the trees use.

use std::collections::{BTreeMap, HashMap, HashSet};

use ubtrfs_format::items::{
    BlockGroupFlags, ExtentFlags, ExtentItem, InlineRef, STRIPE_LEN, decode_data_ref, decode_shared_data_ref,
};
use ubtrfs_format::{Generation, ItemType, Key, Leaf, Logical, TreeId};

use crate::fault::{FaultKind, Location};
use crate::groups::Groups;
use crate::ranges::RangeSet;
use crate::report::Faults;
use crate::uses::{Use, User, UserKind, Uses};
use crate::walk::{Block, Visitor};

fn is_extent(key: &Key) -> bool {
    matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM)
}

/// The length in bytes of the extent that an item with this key describes.
fn length_of(key: &Key, node_size: u32) -> u64 {
    if key.item_type == ItemType::METADATA_ITEM { node_size.into() } else { key.offset }
}

/// Returns whether a data extent has references other than those of one place of one file.
fn is_shared(item: &ExtentItem) -> bool {
    let of_one =
        |reference: &InlineRef| matches!(reference, InlineRef::Data { count, .. } if u64::from(*count) == item.refs);
    !item.inline_refs.iter().any(of_one)
}

/// The first pass over the extent tree: the used space, and its users.
pub(crate) struct Allocated {
    node_size: u32,
    /// Data extents and tree blocks.
    pub(crate) used: RangeSet,
    /// Data extents alone.
    pub(crate) data: RangeSet,
    /// Data extents that more than one place of one file refers to.
    pub(crate) shared: RangeSet,
    /// Blocks whose children are referred to by address.
    pub(crate) full_backref: Vec<Logical>,
    /// Block groups, if they have no tree of their own.
    pub(crate) groups: Groups,
    pub(crate) extents: u64,
    last_end: u64,
}

impl Allocated {
    pub(crate) fn new(node_size: u32) -> Self {
        Self {
            node_size,
            used: RangeSet::default(),
            data: RangeSet::default(),
            shared: RangeSet::default(),
            full_backref: Vec::new(),
            groups: Groups::default(),
            extents: 0,
            last_end: 0,
        }
    }

    fn extent(&mut self, key: Key, data: &[u8], faults: &mut Faults) {
        let start = key.objectid;
        let end = start.saturating_add(length_of(&key, self.node_size));
        self.extents += 1;
        if start < self.last_end {
            faults.add(FaultKind::ExtentsOverlap, Location::item(TreeId::EXTENT, key));
        }
        self.last_end = self.last_end.max(end);
        self.used.push(start, end);
        let flags = data.get(16..24).and_then(|field| field.try_into().ok()).map_or(0, u64::from_le_bytes);
        if flags & ExtentFlags::DATA != 0 {
            self.data.push(start, end);
            if ExtentItem::parse(&key, data).is_ok_and(|item| is_shared(&item)) {
                self.shared.push(start, end);
            }
        } else if flags & ExtentFlags::FULL_BACKREF != 0 {
            self.full_backref.push(Logical(start));
        }
    }
}

impl Visitor for Allocated {
    fn leaf(&mut self, _: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter() {
            if is_extent(&key) {
                self.extent(key, data, faults);
            } else {
                self.groups.take(key, data);
            }
        }
    }
}

/// An extent of the extent tree: its item and the keyed references that follow.
struct Extent {
    key: Key,
    item: ExtentItem,
    users: Vec<(User, u64)>,
}

/// The second pass over the extent tree, which compares it with the uses in all trees together.
pub(crate) struct Comparison<'a> {
    uses: &'a Uses,
    /// The position in the sorted uses.
    at: usize,
    blocks: &'a HashMap<Logical, Block>,
    groups: &'a Groups,
    node_size: u32,
    sector_size: u32,
    current: Option<Extent>,
    /// Whether part of the extent tree could not be read, so that missing items may have been
    /// there.
    gaps: bool,
    /// The trees that have a root; `None` if not all of them are known.
    trees: Option<HashSet<TreeId>>,
    /// How many references belong to each subvolume that has no root.
    lost: BTreeMap<u64, u64>,
}

impl<'a> Comparison<'a> {
    /// Begins the comparison. `uses` must be sorted; `gaps` says that the extent tree is known to
    /// have unreadable parts.
    pub(crate) fn new(
        uses: &'a Uses,
        blocks: &'a HashMap<Logical, Block>,
        groups: &'a Groups,
        (node_size, sector_size): (u32, u32),
        gaps: bool,
    ) -> Self {
        let lost = BTreeMap::new();
        Self { uses, at: 0, blocks, groups, node_size, sector_size, current: None, gaps, trees: None, lost }
    }

    /// Sets the trees that have a root. References of any other subvolume are then counted instead
    /// of being reported one by one.
    pub(crate) fn with_trees(self, trees: HashSet<TreeId>) -> Self {
        Self { trees: Some(trees), ..self }
    }

    /// Ends the comparison: the uses that are left have no extent item. Returns how many references
    /// belong to each subvolume that has no root.
    pub(crate) fn finish(mut self, faults: &mut Faults) -> BTreeMap<u64, u64> {
        self.close(faults);
        self.unallocated_before(u64::MAX, faults);
        if self.gaps {
            faults.not_compared("uses of extents that the unreadable parts of the extent tree may describe");
        }
        if self.uses.incomplete {
            faults.not_compared("references that the unreadable parts of other trees may justify");
        }
        self.lost
    }

    /// Returns the subvolume that this user names, if it has no root.
    fn lost_subvolume(&self, user: &User) -> Option<u64> {
        let trees = self.trees.as_ref()?;
        let is_named = matches!(user.kind, UserKind::Tree | UserKind::File);
        let is_lost = |tree: TreeId| tree.is_subvolume() && !trees.contains(&tree);
        (is_named && is_lost(TreeId(user.by))).then_some(user.by)
    }

    /// Takes the uses of the next extent, which all have the same address.
    fn next_uses(&mut self) -> &'a [Use] {
        let rest = self.uses.list.get(self.at..).unwrap_or_default();
        let Some(first) = rest.first() else { return &[] };
        let count = rest.iter().take_while(|next| next.extent == first.extent).count();
        self.at += count;
        rest.get(..count).unwrap_or_default()
    }

    /// Reports all used extents before `address` that the extent tree left out.
    fn unallocated_before(&mut self, address: u64, faults: &mut Faults) {
        while self.uses.list.get(self.at).is_some_and(|next| next.extent < address) {
            let uses = self.next_uses();
            if let (Some(first), false) = (uses.first(), self.gaps) {
                let kind = FaultKind::MissingExtentItem { uses: uses.len() as u64 };
                faults.add(kind, Location::at(Logical(first.extent)));
            }
        }
    }

    /// Skips the uses of one extent without comparing them.
    fn skip_uses_of(&mut self, address: u64) {
        if self.uses.list.get(self.at).is_some_and(|next| next.extent == address) {
            self.next_uses();
        }
    }

    fn close(&mut self, faults: &mut Faults) {
        let Some(extent) = self.current.take() else { return };
        let start = extent.key.objectid;
        self.unallocated_before(start, faults);
        let uses =
            if self.uses.list.get(self.at).is_some_and(|next| next.extent == start) { self.next_uses() } else { &[] };
        let place = Location::item(TreeId::EXTENT, extent.key);
        self.judge_place(&extent, &place, faults);
        let block = self.blocks.get(&Logical(start)).filter(|block| !block.bad);
        if extent.item.flags & ExtentFlags::TREE_BLOCK != 0 {
            self.judge_block(&extent, block, &place, faults);
        }
        self.judge_length(&extent, uses, &place, faults);
        self.judge_users(extent, uses, &place, faults);
    }

    /// Checks that the extent is where an extent of its kind may be.
    fn judge_place(&self, extent: &Extent, place: &Location, faults: &mut Faults) {
        let start = extent.key.objectid;
        let length = length_of(&extent.key, self.node_size);
        let end = start.saturating_add(length);
        let is_data = extent.item.flags & ExtentFlags::DATA != 0;
        if !is_data && start / STRIPE_LEN != end.saturating_sub(1) / STRIPE_LEN {
            faults.add(FaultKind::BlockCrossesStripe, place.clone());
        }
        let Some(group) = self.groups.holding(start, end) else {
            faults.add(FaultKind::ExtentOutsideBlockGroup { length }, place.clone());
            return;
        };
        let wanted = match self.blocks.get(&Logical(start)) {
            _ if is_data => BlockGroupFlags::DATA,
            Some(block) if block.owner == TreeId::CHUNK => BlockGroupFlags::SYSTEM,
            Some(_) => BlockGroupFlags::METADATA,
            None => return,
        };
        if !group.flags.contains(wanted) {
            faults.add(FaultKind::ExtentInWrongBlockGroup, place.clone());
        }
    }

    fn judge_block(&self, extent: &Extent, block: Option<&Block>, place: &Location, faults: &mut Faults) {
        let Some(block) = block else { return };
        let Generation(found) = extent.item.generation;
        if found != block.generation.0 {
            faults.add(FaultKind::ExtentGeneration { found, expected: block.generation.0 }, place.clone());
        }
        let level = match extent.item.tree_block {
            Some((_, level)) => level.into(),
            None => extent.key.offset,
        };
        if level != u64::from(block.level) {
            faults.add(FaultKind::ExtentLevel { found: level, expected: block.level.into() }, place.clone());
        }
        let full = extent.item.flags & ExtentFlags::FULL_BACKREF != 0;
        let owner = User::tree(block.owner);
        // While a balance merges its trees, and after it, the owner may use the block by a parent
        // that relocation wrote.
        let is_by_relocated = |user: &User| {
            let parent = || self.blocks.get(&Logical(user.by));
            user.kind == UserKind::Block && parent().is_some_and(|parent| parent.relocated)
        };
        if !full
            && !self.uses.dropping
            && block.owner != TreeId::RELOC
            && !extent.users.iter().any(|(user, _)| *user == owner || is_by_relocated(user))
        {
            faults.add(FaultKind::FullBackrefMissing, place.clone());
        }
    }

    fn judge_length(&self, extent: &Extent, uses: &[Use], place: &Location, faults: &mut Faults) {
        let is_data = extent.item.flags & ExtentFlags::DATA != 0;
        let used_as_data = |user: &User| matches!(user.kind, UserKind::File | UserKind::Leaf);
        if uses.iter().any(|one| used_as_data(&one.user) != is_data) {
            faults.add(FaultKind::ExtentKind, place.clone());
            return;
        }
        let length = length_of(&extent.key, self.node_size);
        let sector = u64::from(self.sector_size);
        if is_data && let Some(wrong) = uses.iter().find(|one| u64::from(one.sectors) != length.div_ceil(sector)) {
            let expected = u64::from(wrong.sectors).saturating_mul(sector);
            faults.add(FaultKind::ExtentLength { found: length, expected }, place.clone());
        } else if !is_data && length != u64::from(self.node_size) {
            faults.add(FaultKind::ExtentLength { found: length, expected: self.node_size.into() }, place.clone());
        }
    }

    fn judge_users(&mut self, extent: Extent, uses: &[Use], place: &Location, faults: &mut Faults) {
        let listed: u64 = extent.users.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
        if listed != extent.item.refs {
            faults.add(FaultKind::ReferenceTotal { found: extent.item.refs, expected: listed }, place.clone());
        }
        if uses.is_empty() {
            let lost = extent.users.iter().map(|(user, _)| self.lost_subvolume(user)).collect::<Option<Vec<_>>>();
            match lost {
                Some(lost) if !lost.is_empty() => {
                    for child in lost {
                        *self.lost.entry(child).or_default() += 1;
                    }
                }
                _ if !self.uses.incomplete => faults.add(FaultKind::UnusedExtentItem, place.clone()),
                _ => {}
            }
            return;
        }
        let mut noted = extent.users;
        noted.sort_unstable();
        noted.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(next.1);
            }
            same
        });
        let mut noted = noted.into_iter().peekable();
        let mut uses = uses.iter().peekable();
        loop {
            let next = match (noted.peek(), uses.peek()) {
                (Some((user, _)), Some(one)) => (*user).min(one.user),
                (Some((user, _)), None) => *user,
                (None, Some(one)) => one.user,
                (None, None) => return,
            };
            let found = noted.next_if(|(user, _)| *user == next).map_or(0, |(_, count)| count);
            let mut expected = 0;
            while uses.next_if(|one| one.user == next).is_some() {
                expected += 1;
            }
            let reference = || next.to_string();
            if found < expected && !self.gaps {
                faults.add(FaultKind::MissingReference { reference: reference(), found, expected }, place.clone());
            } else if expected == 0
                && let Some(child) = self.lost_subvolume(&next)
            {
                *self.lost.entry(child).or_default() += 1;
            } else if found > expected && !self.uses.incomplete {
                faults.add(FaultKind::SurplusReference { reference: reference(), found, expected }, place.clone());
            }
        }
    }

    fn keyed(&mut self, key: Key, data: &[u8], faults: &mut Faults) {
        let reference = match key.item_type {
            ItemType::TREE_BLOCK_REF => Ok((User::tree(TreeId(key.offset)), 1)),
            ItemType::SHARED_BLOCK_REF => Ok((User::block(Logical(key.offset)), 1)),
            ItemType::EXTENT_DATA_REF => decode_data_ref(data).map(|(data, count)| (User::file(data), count.into())),
            ItemType::SHARED_DATA_REF => {
                decode_shared_data_ref(data).map(|count| (User::leaf(Logical(key.offset)), count.into()))
            }
            _ => return,
        };
        match (&mut self.current, reference) {
            (Some(extent), Ok(reference)) if extent.key.objectid == key.objectid => extent.users.push(reference),
            (_, Ok(_)) if !self.gaps => {
                faults.add(FaultKind::ReferenceWithoutExtent, Location::item(TreeId::EXTENT, key));
            }
            _ => {}
        }
    }
}

impl Visitor for Comparison<'_> {
    fn leaf(&mut self, _: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter() {
            if !is_extent(&key) {
                self.keyed(key, data, faults);
                continue;
            }
            self.close(faults);
            if let Ok(item) = ExtentItem::parse(&key, data) {
                let users = item.inline_refs.iter().filter_map(User::of).collect();
                self.current = Some(Extent { key, item, users });
            } else {
                // The item check has reported it; its uses must not count as missing.
                self.unallocated_before(key.objectid, faults);
                self.skip_uses_of(key.objectid);
            }
        }
    }

    fn gap(&mut self) {
        self.gaps = true;
    }
}

//! The extent tree as the uses of blocks and data say that it must be.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter::Peekable;

use ubtrfs_format::items::{
    DataRef, ExtentFlags, ExtentItem, InlineRef, decode_data_ref, decode_shared_data_ref, encode_data_ref,
};
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{EditBatch, Item, Root};

use crate::error::Result;
use crate::session::Session;
use crate::survey::{BlockFacts, BlockUser, Survey};

/// An extent as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: Logical,
    /// Its length in bytes.
    pub length: u64,
    /// The level and the first key of a tree block; `None` for data.
    pub block: Option<(u8, Key)>,
    pub generation: Generation,
    /// The references to it, each with a count of at least one.
    pub refs: Vec<InlineRef>,
    /// Whether what the block refers to has backrefs by its address.
    pub is_full: bool,
}

/// What the present extent tree says that follows from nothing else.
#[derive(Debug, Default)]
pub struct Present {
    /// Blocks whose children have backrefs by the block's address.
    full: HashSet<Logical>,
    /// Whether a part of the tree can't be read, so that it is rebuilt.
    pub is_incomplete: bool,
}

impl Present {
    /// Reads the extent tree.
    pub fn read(session: &Session, survey: &Survey) -> Self {
        let mut present = Self::default();
        let Some(root) = session.root_of(TreeId::EXTENT) else {
            return Self { is_incomplete: true, ..present };
        };
        present.is_incomplete = survey.is_unreadable(TreeId::EXTENT);
        for item in session.tree(root, true).range(Key::MIN..=Key::MAX) {
            let Ok(item) = item else {
                present.is_incomplete = true;
                break;
            };
            let is_extent = matches!(item.key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM);
            if is_extent
                && ExtentItem::parse(&item.key, &item).is_ok_and(|item| item.flags & ExtentFlags::FULL_BACKREF != 0)
            {
                present.full.insert(Logical(item.key.objectid));
            }
        }
        present
    }
}

/// Returns all extents that the trees use, by ascending address.
pub fn wanted(session: &Session, survey: &Survey, present: &Present) -> Vec<Extent> {
    let is_full = |at: &Logical, facts: &BlockFacts| {
        shares(facts.owner) && (present.full.contains(at) || !facts.is_reached_by_owner)
    };
    let mut extents: BTreeMap<Logical, Extent> = BTreeMap::new();
    for (at, facts) in &survey.blocks {
        let extent = Extent {
            start: *at,
            length: session.geometry.node_size.into(),
            block: Some((facts.level, facts.first_key)),
            generation: facts.generation,
            refs: Vec::new(),
            is_full: is_full(at, facts),
        };
        extents.insert(*at, extent);
    }
    let of_parent = |parent: Logical| survey.blocks.get(&parent).map(|facts| (facts.owner, is_full(&parent, facts)));
    for (at, user) in &survey.block_uses {
        let reference = match user {
            BlockUser::Root(tree) => InlineRef::TreeBlock { root: *tree },
            BlockUser::Parent(parent) => match of_parent(*parent) {
                Some((_, true)) => InlineRef::SharedBlock { parent: *parent },
                Some((root, false)) => InlineRef::TreeBlock { root },
                None => continue,
            },
        };
        if let Some(extent) = extents.get_mut(at)
            && !extent.refs.contains(&reference)
        {
            extent.refs.push(reference);
        }
    }
    let mut counts: HashMap<(Logical, InlineRefKey), u32> = HashMap::new();
    for used in &survey.data_uses {
        let Some((root, is_full)) = of_parent(used.leaf) else { continue };
        let key = if is_full {
            InlineRefKey::Leaf(used.leaf)
        } else {
            InlineRefKey::File(DataRef { root, ino: used.ino, offset: used.offset })
        };
        *counts.entry((used.extent, key)).or_default() += 1;
        let extent = extents.entry(used.extent).or_insert_with(|| Extent {
            start: used.extent,
            length: used.length,
            block: None,
            generation: used.generation,
            refs: Vec::new(),
            is_full: false,
        });
        if extent.block.is_none() {
            extent.generation = extent.generation.min(used.generation);
        }
    }
    for ((at, key), count) in counts {
        if let Some(extent) = extents.get_mut(&at).filter(|extent| extent.block.is_none()) {
            extent.refs.push(match key {
                InlineRefKey::Leaf(parent) => InlineRef::SharedData { parent, count },
                InlineRefKey::File(data) => InlineRef::Data { data, count },
            });
        }
    }
    extents.into_values().map(Extent::in_order).collect()
}

/// What a reference to data is counted by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum InlineRefKey {
    Leaf(Logical),
    File(DataRef),
}

/// Whether blocks of this tree may be shared.
fn shares(owner: TreeId) -> bool {
    owner.is_subvolume() || owner == TreeId::DATA_RELOC
}

impl Extent {
    /// Sorts the references as the format does.
    fn in_order(mut self) -> Self {
        self.refs.sort_by_key(|reference| (reference.item_type(), std::cmp::Reverse(reference.sequence())));
        self
    }

    /// Returns the address where it ends.
    pub fn end(&self) -> u64 {
        self.start.0.saturating_add(self.length)
    }

    /// Returns the key of the extent's item.
    fn key(&self, has_skinny_metadata: bool) -> Key {
        match self.block {
            Some((level, _)) if has_skinny_metadata => Key::new(self.start.0, ItemType::METADATA_ITEM, level.into()),
            _ => Key::new(self.start.0, ItemType::EXTENT_ITEM, self.length),
        }
    }

    /// Returns the items of the extent. References that don't fit into its item are items of their
    /// own.
    pub fn items(&self, has_skinny_metadata: bool, node_size: u32, owner: Option<InlineRef>) -> Vec<(Key, Vec<u8>)> {
        let key = self.key(has_skinny_metadata);
        let kind = if self.block.is_some() { ExtentFlags::TREE_BLOCK } else { ExtentFlags::DATA };
        let mut item = ExtentItem {
            refs: self.refs.iter().map(InlineRef::count).sum(),
            generation: self.generation,
            flags: kind | if self.is_full { ExtentFlags::FULL_BACKREF } else { 0 },
            tree_block: self.block.filter(|_| !has_skinny_metadata).map(|(level, first)| (first, level)),
            inline_refs: owner.into_iter().collect(),
        };
        let max = ExtentItem::max_inline_size(node_size as usize);
        let mut keyed: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        for reference in &self.refs {
            if item.size() + reference.size() <= max {
                item.inline_refs.push(*reference);
                continue;
            }
            let mut place = Key::new(self.start.0, reference.item_type(), reference.sequence());
            let bytes = match reference {
                InlineRef::Data { data, count } => {
                    // Files whose hashes collide have the next free keys.
                    while keyed.contains_key(&place) {
                        place.offset = place.offset.wrapping_add(1);
                    }
                    encode_data_ref(*data, *count).to_vec()
                }
                InlineRef::SharedData { count, .. } => count.to_le_bytes().to_vec(),
                _ => Vec::new(),
            };
            keyed.insert(place, bytes);
        }
        [(key, item.to_bytes())].into_iter().chain(keyed).collect()
    }
}

/// The edits that make the extent tree what it must be.
#[derive(Debug, Default)]
pub struct ExtentEdits {
    pub batch: EditBatch,
    /// How many extents get another item, a new one, or lose theirs.
    pub changed: u64,
    pub added: u64,
    pub removed: u64,
}

impl ExtentEdits {
    /// Compares the tree under `root` with the extents that are wanted. Without a root all of them
    /// are added.
    pub fn between(session: &Session, root: Option<Root>, wanted: &[Extent]) -> Result<Self> {
        let sizes = Sizes::of(session);
        let mut edits = Self::default();
        let mut wanted = wanted.iter().peekable();
        if let Some(root) = root {
            let mut group: Vec<(Key, Vec<u8>)> = Vec::new();
            for item in session.tree(root, false).range(Key::MIN..=Key::MAX) {
                let item: Item = item?;
                if item.key.item_type == ItemType::BLOCK_GROUP_ITEM {
                    continue;
                }
                if group.first().is_some_and(|(first, _)| first.objectid != item.key.objectid) {
                    edits.settle(&std::mem::take(&mut group), &mut wanted, sizes);
                }
                group.push((item.key, item.to_vec()));
            }
            edits.settle(&group, &mut wanted, sizes);
        }
        for extent in wanted {
            edits.add(extent, None, sizes);
        }
        Ok(edits)
    }

    /// Compares all items of one address with what is wanted there, after adding what is wanted
    /// before it.
    fn settle<'a>(
        &mut self,
        group: &[(Key, Vec<u8>)],
        wanted: &mut Peekable<impl Iterator<Item = &'a Extent>>,
        sizes: Sizes,
    ) {
        let Some(at) = group.first().map(|(key, _)| Logical(key.objectid)) else { return };
        while let Some(extent) = wanted.next_if(|extent| extent.start < at) {
            self.add(extent, None, sizes);
        }
        match wanted.next_if(|extent| extent.start == at) {
            None => {
                self.removed += 1;
                self.remove(group);
            }
            Some(extent) => {
                let present = PresentExtent::of(group);
                if present.as_ref().is_some_and(|present| present.is(extent, sizes)) {
                    return;
                }
                self.changed += 1;
                self.remove(group);
                // Data keeps the generation that its item has, and the subvolume that simple quotas
                // charge.
                let mut extent = extent.clone();
                let kept = present.filter(|present| present.block_level.is_none() == extent.block.is_none());
                if extent.block.is_none()
                    && let Some(present) = kept.as_ref().filter(|present| present.generation <= sizes.newest)
                {
                    extent.generation = present.generation;
                }
                self.put(&extent, kept.and_then(|present| present.owner), sizes);
            }
        }
    }

    fn remove(&mut self, group: &[(Key, Vec<u8>)]) {
        for (key, _) in group {
            self.batch.delete(*key);
        }
    }

    fn add(&mut self, extent: &Extent, owner: Option<InlineRef>, sizes: Sizes) {
        self.added += 1;
        self.put(extent, owner, sizes);
    }

    fn put(&mut self, extent: &Extent, owner: Option<InlineRef>, sizes: Sizes) {
        for (key, bytes) in extent.items(sizes.has_skinny_metadata, sizes.node_size, owner) {
            self.batch.put(key, bytes);
        }
    }
}

/// What extent items depend on.
#[derive(Clone, Copy)]
struct Sizes {
    /// The generation of the commit that the superblock refers to.
    newest: Generation,
    node_size: u32,
    has_skinny_metadata: bool,
}

impl Sizes {
    fn of(session: &Session) -> Self {
        Self {
            newest: session.superblock.generation,
            node_size: session.geometry.node_size,
            has_skinny_metadata: session.has_skinny_metadata(),
        }
    }
}

/// The items of one address, as they are.
struct PresentExtent {
    key: Key,
    generation: Generation,
    flags: u64,
    /// The level of a tree block.
    block_level: Option<u8>,
    total: u64,
    refs: Vec<InlineRef>,
    owner: Option<InlineRef>,
}

impl PresentExtent {
    /// Reads the items of one address. Returns `None` if they are not those of one extent.
    fn of(group: &[(Key, Vec<u8>)]) -> Option<Self> {
        let is_extent = |key: &Key| matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM);
        let mut items = group.iter().filter(|(key, _)| is_extent(key));
        let (key, bytes) = items.next()?;
        if items.next().is_some() {
            return None;
        }
        let item = ExtentItem::parse(key, bytes).ok()?;
        let is_block = item.flags & ExtentFlags::TREE_BLOCK != 0;
        let mut present = Self {
            key: *key,
            generation: item.generation,
            flags: item.flags,
            block_level: is_block.then(|| item.level(key)),
            total: item.refs,
            refs: Vec::new(),
            owner: None,
        };
        for reference in item.inline_refs {
            match reference {
                InlineRef::Owner { .. } => present.owner = Some(reference),
                _ => present.refs.push(reference),
            }
        }
        for (key, bytes) in group.iter().filter(|(key, _)| !is_extent(key)) {
            present.refs.push(match key.item_type {
                ItemType::TREE_BLOCK_REF => InlineRef::TreeBlock { root: TreeId(key.offset) },
                ItemType::SHARED_BLOCK_REF => InlineRef::SharedBlock { parent: Logical(key.offset) },
                ItemType::SHARED_DATA_REF => {
                    InlineRef::SharedData { parent: Logical(key.offset), count: decode_shared_data_ref(bytes).ok()? }
                }
                ItemType::EXTENT_DATA_REF => {
                    let (data, count) = decode_data_ref(bytes).ok()?;
                    InlineRef::Data { data, count }
                }
                _ => return None,
            });
        }
        Some(present)
    }

    /// Whether this says all that is wanted.
    fn is(&self, wanted: &Extent, sizes: Sizes) -> bool {
        let kind = if wanted.block.is_some() { ExtentFlags::TREE_BLOCK } else { ExtentFlags::DATA };
        let flags = kind | if wanted.is_full { ExtentFlags::FULL_BACKREF } else { 0 };
        let is_key = self.key == wanted.key(sizes.has_skinny_metadata)
            // Volumes have items of either form where the feature was turned on later.
            || wanted.block.is_some()
                && self.key == Key::new(wanted.start.0, ItemType::EXTENT_ITEM, wanted.length);
        let sorted = |refs: &[InlineRef]| {
            let mut refs: Vec<_> = refs.iter().map(|one| (one.item_type(), one.sequence(), one.count())).collect();
            refs.sort_unstable();
            refs
        };
        is_key
            && self.flags == flags
            && self.block_level == wanted.block.map(|(level, _)| level)
            && (self.generation == wanted.generation || wanted.block.is_none() && self.generation <= sizes.newest)
            && self.total == wanted.refs.iter().map(InlineRef::count).sum::<u64>()
            && sorted(&self.refs) == sorted(&wanted.refs)
    }
}

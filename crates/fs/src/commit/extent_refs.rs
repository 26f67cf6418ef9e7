//! The item of one extent with its inline and keyed references, as a commit changes them.

use std::collections::BTreeMap;

use ubtrfs_format::items::{
    DataRef, ExtentFlags, ExtentItem, InlineRef, decode_data_ref, decode_shared_data_ref, encode_data_ref,
};
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{EditBatch, Snapshot};

use crate::error::{Error, Result};

/// A user of an extent. It is named by its tree, or by the address of the block with the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum User {
    /// A tree uses a block.
    Tree(TreeId),
    /// The block at this address uses a block.
    Block(Logical),
    /// A file of a subvolume uses data.
    File(DataRef),
    /// The leaf at this address uses data.
    Leaf(Logical),
}

impl User {
    fn inline(self, count: u32) -> InlineRef {
        match self {
            Self::Tree(root) => InlineRef::TreeBlock { root },
            Self::Block(parent) => InlineRef::SharedBlock { parent },
            Self::File(data) => InlineRef::Data { data, count },
            Self::Leaf(parent) => InlineRef::SharedData { parent, count },
        }
    }

    fn of(reference: &InlineRef) -> Option<Self> {
        match *reference {
            InlineRef::TreeBlock { root } => Some(Self::Tree(root)),
            InlineRef::SharedBlock { parent } => Some(Self::Block(parent)),
            InlineRef::Data { data, .. } => Some(Self::File(data)),
            InlineRef::SharedData { parent, .. } => Some(Self::Leaf(parent)),
            InlineRef::Owner { .. } => None,
        }
    }

    /// Returns the slot of the user's keyed item, or the first slot in which it may be.
    fn slot(self) -> Slot {
        match self {
            Self::Tree(root) => (ItemType::TREE_BLOCK_REF, root.0),
            Self::Block(parent) => (ItemType::SHARED_BLOCK_REF, parent.0),
            Self::File(data) => (ItemType::EXTENT_DATA_REF, data.hash()),
            Self::Leaf(parent) => (ItemType::SHARED_DATA_REF, parent.0),
        }
    }

    /// Parses a keyed item into the user and its count.
    fn parse(slot: Slot, item: &[u8]) -> ubtrfs_format::Result<(Self, u32)> {
        Ok(match slot {
            (ItemType::TREE_BLOCK_REF, root) => (Self::Tree(TreeId(root)), 1),
            (ItemType::SHARED_BLOCK_REF, parent) => (Self::Block(Logical(parent)), 1),
            (ItemType::SHARED_DATA_REF, parent) => (Self::Leaf(Logical(parent)), decode_shared_data_ref(item)?),
            _ => {
                let (data, count) = decode_data_ref(item)?;
                (Self::File(data), count)
            }
        })
    }

    fn keyed(self, count: u32) -> Vec<u8> {
        match self {
            Self::Tree(_) | Self::Block(_) => Vec::new(),
            Self::File(data) => encode_data_ref(data, count).to_vec(),
            Self::Leaf(_) => count.to_le_bytes().to_vec(),
        }
    }

    /// Returns how often one user can refer to an extent: a tree points to a block once.
    fn most(self) -> u32 {
        if matches!(self, Self::Tree(_) | Self::Block(_)) { 1 } else { u32::MAX }
    }
}

/// Type and offset of a keyed reference's key.
type Slot = (ItemType, u64);

/// The types of keyed references.
const KEYED: [ItemType; 4] =
    [ItemType::TREE_BLOCK_REF, ItemType::EXTENT_DATA_REF, ItemType::SHARED_BLOCK_REF, ItemType::SHARED_DATA_REF];

/// An extent item, and the keyed references that changed. A deleted one is `None`.
#[derive(Debug)]
pub(super) struct ExtentRefs {
    key: Key,
    pub(super) item: ExtentItem,
    keyed: BTreeMap<Slot, Option<(User, u32)>>,
}

impl ExtentRefs {
    /// Creates a data extent without users.
    pub(super) fn new_data(start: Logical, length: u64, generation: Generation) -> Self {
        let item =
            ExtentItem { refs: 0, generation, flags: ExtentFlags::DATA, tree_block: None, inline_refs: Vec::new() };
        Self { key: Key::new(start.0, ItemType::EXTENT_ITEM, length), item, keyed: BTreeMap::new() }
    }

    /// Creates a tree block that only its tree uses.
    pub(super) fn new_block(key: Key, owner: TreeId, generation: Generation, tree_block: Option<(Key, u8)>) -> Self {
        let inline_refs = vec![InlineRef::TreeBlock { root: owner }];
        let item = ExtentItem { refs: 1, generation, flags: ExtentFlags::TREE_BLOCK, tree_block, inline_refs };
        Self { key, item, keyed: BTreeMap::new() }
    }

    /// Loads the extent whose item has this key, if any.
    pub(super) fn load(tree: &Snapshot, key: Key) -> Result<Option<Self>> {
        let Some(item) = tree.get(&key)? else { return Ok(None) };
        Ok(Some(Self { key, item: ExtentItem::parse(&key, &item)?, keyed: BTreeMap::new() }))
    }

    /// Does the same, and loads all keyed references, too.
    pub(super) fn load_all(tree: &Snapshot, key: Key) -> Result<Option<Self>> {
        let Some(mut refs) = Self::load(tree, key)? else { return Ok(None) };
        let range = Key::new(key.objectid, ItemType::TREE_BLOCK_REF, 0)
            ..=Key::new(key.objectid, ItemType::SHARED_DATA_REF, u64::MAX);
        for item in tree.range(range) {
            let item = item?;
            let slot = (item.key.item_type, item.key.offset);
            if KEYED.contains(&slot.0) {
                refs.keyed.insert(slot, Some(User::parse(slot, &item)?));
            }
        }
        Ok(Some(refs))
    }

    /// Returns all users of an extent that was loaded with all keyed references.
    pub(super) fn users(&self) -> impl Iterator<Item = User> + '_ {
        let inline = self.item.inline_refs.iter().filter_map(User::of);
        inline.chain(self.keyed.values().flatten().map(|(user, _)| *user))
    }

    /// Gives an extent that was loaded with all its references another key, and replaces its users
    /// by those that `renamed` returns. Returns what the extent tree gets for the old key:
    /// deletions.
    pub(super) fn move_to(&mut self, key: Key, renamed: &dyn Fn(User) -> User) -> Self {
        let mut gone = Self { key: self.key, item: self.item.clone(), keyed: BTreeMap::new() };
        gone.item.refs = 0;
        gone.keyed = self.keyed.keys().map(|slot| (*slot, None)).collect();
        self.key = key;
        for reference in &mut self.item.inline_refs {
            if let Some(user) = User::of(reference) {
                *reference = renamed(user).inline(reference.count() as u32);
            }
        }
        for (slot, reference) in std::mem::take(&mut self.keyed) {
            let reference = reference.map(|(user, count)| (renamed(user), count));
            // References of files are in the slots of their hashes, or behind them.
            let slot = match reference {
                Some((user @ (User::Block(_) | User::Leaf(_)), _)) => user.slot(),
                _ => slot,
            };
            self.keyed.insert(slot, reference);
        }
        gone
    }

    pub(super) fn inconsistent(&self, what: &'static str) -> Error {
        Error::Inconsistent { tree: TreeId::EXTENT, key: self.key, what }
    }

    /// Returns the keyed reference in a slot, including the changes so far.
    fn keyed_at(&self, tree: Option<&Snapshot>, slot: Slot) -> Result<Option<(User, u32)>> {
        if let Some(changed) = self.keyed.get(&slot) {
            return Ok(*changed);
        }
        let Some(tree) = tree else { return Ok(None) };
        let item = tree.get(&Key::new(self.key.objectid, slot.0, slot.1))?;
        item.map(|item| User::parse(slot, &item).map_err(Error::from)).transpose()
    }

    fn changed(&self, user: User, old: u32, count: i64) -> Result<u32> {
        let new = u32::try_from(i64::from(old) + count).ok().filter(|new| *new <= user.most());
        new.ok_or_else(|| {
            self.inconsistent(if count < 0 {
                "more references are dropped than there are"
            } else {
                "a reference is there already"
            })
        })
    }

    /// Changes how often `user` refers to the extent. `tree` has its keyed references, if it may
    /// have any. A new reference becomes keyed if the item would outgrow the size to which inline
    /// references are limited in a node of `node_size` bytes.
    pub(super) fn change(&mut self, tree: Option<&Snapshot>, user: User, count: i64, node_size: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let refs = self.item.refs.checked_add_signed(count);
        self.item.refs = refs.ok_or_else(|| self.inconsistent("more references are dropped than there are"))?;
        let inline = self.item.inline_refs.iter().position(|reference| User::of(reference) == Some(user));
        if let Some(position) = inline {
            match self.changed(user, self.item.inline_refs[position].count() as u32, count)? {
                0 => drop(self.item.inline_refs.remove(position)),
                count => self.item.inline_refs[position] = user.inline(count),
            }
            return Ok(());
        }
        // Keyed references of files with the same hash are in consecutive slots.
        let mut slot = user.slot();
        while let Some((found, old)) = self.keyed_at(tree, slot)? {
            if found == user {
                let new = self.changed(user, old, count)?;
                self.keyed.insert(slot, (new > 0).then_some((user, new)));
                return Ok(());
            }
            slot.1 = slot.1.wrapping_add(1);
        }
        if count < 0 {
            return self.drop_behind_gap(tree, user, count);
        }
        let count = self.changed(user, 0, count)?;
        let reference = user.inline(count);
        if self.item.size() + reference.size() <= ExtentItem::max_inline_size(node_size) {
            self.item.inline_refs.push(reference);
        } else {
            self.keyed.insert(slot, Some((user, count)));
        }
        Ok(())
    }

    /// Drops a keyed reference that is behind a free slot: the slot had a reference of the same
    /// hash that was removed since.
    fn drop_behind_gap(&mut self, tree: Option<&Snapshot>, user: User, count: i64) -> Result<()> {
        let (kind, first) = user.slot();
        let known = self.keyed.iter().find_map(|(slot, reference)| {
            let (found, count) = (*reference)?;
            (found == user).then_some((*slot, count))
        });
        if let Some((slot, old)) = known {
            let new = self.changed(user, old, count)?;
            self.keyed.insert(slot, (new > 0).then_some((user, new)));
            return Ok(());
        }
        let key = |offset| Key::new(self.key.objectid, kind, offset);
        let places = tree.filter(|_| matches!(user, User::File(_)));
        for item in places.into_iter().flat_map(|tree| tree.range(key(first)..=key(u64::MAX))) {
            let slot = (kind, item?.key.offset);
            if let Some((found, old)) = self.keyed_at(tree, slot)?
                && found == user
            {
                let new = self.changed(user, old, count)?;
                self.keyed.insert(slot, (new > 0).then_some((user, new)));
                return Ok(());
            }
        }
        Err(self.inconsistent("a reference is dropped that is not there"))
    }

    /// Whether the extent has no users any more.
    pub(super) fn is_unused(&self) -> bool {
        self.item.refs == 0
    }

    /// Adds the edits of the extent tree for these changes. Without a user the extent's item is
    /// deleted.
    pub(super) fn emit(&self, edits: &mut EditBatch) {
        if self.is_unused() {
            edits.delete(self.key);
        } else {
            edits.put(self.key, self.item.to_bytes());
        }
        for ((kind, offset), reference) in &self.keyed {
            let key = Key::new(self.key.objectid, *kind, *offset);
            match reference {
                Some((user, count)) => edits.put(key, user.keyed(*count)),
                None => edits.delete(key),
            }
        }
    }
}

//! What can still be read of a tree block with a wrong checksum, or whose parts are not where
//! they should be.

use std::collections::BTreeMap;

use ubtrfs_format::{
    ChildPointer, Generation, HEADER_SIZE, Header, ITEM_HEADER_SIZE, ItemContext, ItemType, KEY_POINTER_SIZE, Key,
    KeyBytes, Logical, TreeId, check_item,
};
use ubtrfs_tree::NodeRef;
use zerocopy::FromBytes;

use crate::session::Session;

/// A block that can't be used as it is.
pub struct BadBlock {
    at: NodeRef,
    header: Header,
    bytes: Vec<u8>,
}

impl BadBlock {
    /// Reads a block without verifying it. Returns `None` if it is no block of this place, so that
    /// its content may belong anywhere.
    pub fn read(session: &Session, at: &NodeRef) -> Option<Self> {
        let mut bytes = vec![0; session.geometry.node_size as usize];
        session.volume.reader().read_data(at.bytenr, &mut bytes, None).ok()?;
        let header = Header::parse(&bytes).ok()?;
        let is_of_place =
            header.bytenr == at.bytenr && header.level == at.level && header.fsid == session.geometry.fsid;
        is_of_place.then_some(Self { at: *at, header, bytes })
    }

    /// Returns the tree that made the block, if that is possible, else the tree that has it.
    pub fn owner(&self, tree: TreeId) -> TreeId {
        if self.header.owner.is_subvolume() { self.header.owner } else { tree }
    }

    /// Returns the items that keep the rules of their types and belong here, in order.
    pub fn items(&self, session: &Session) -> Vec<(Key, Vec<u8>)> {
        let context = ItemContext::from(&session.superblock);
        let mut items: BTreeMap<Key, &[u8]> = BTreeMap::new();
        for slot in 0..self.slots(ITEM_HEADER_SIZE) {
            let head = &self.bytes[HEADER_SIZE + slot * ITEM_HEADER_SIZE..];
            let Ok((key, rest)) = KeyBytes::read_from_prefix(head) else { break };
            let word = |at: usize| {
                rest.get(at..at + 4)
                    .map_or(0, |word| word.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
            };
            let key = Key::from(key);
            let start = HEADER_SIZE + word(0);
            let Some(data) = self.bytes.get(start..start.saturating_add(word(4))) else { continue };
            if self.belongs(&key) && is_of_subvolume(&key) && check_item(&key, data, &context).is_ok() {
                items.entry(key).or_insert(data);
            }
        }
        // Items of a whole block fit into a block, unless lengths are wrong and they overlap.
        let room = self.bytes.len() - HEADER_SIZE;
        let mut used = 0;
        let mut fitting = items.into_iter().take_while(|(_, data)| {
            used += ITEM_HEADER_SIZE + data.len();
            used <= room
        });
        fitting.by_ref().map(|(key, data)| (key, data.to_vec())).collect()
    }

    /// Returns the children that are in this volume's generations and in the order of their keys,
    /// each as a place and as a pointer.
    pub fn children(&self, session: &Session) -> Vec<(NodeRef, ChildPointer)> {
        let Some(level) = self.at.level.checked_sub(1) else { return Vec::new() };
        let mut children: Vec<ChildPointer> = Vec::new();
        for slot in 0..self.slots(KEY_POINTER_SIZE) {
            let pointer = &self.bytes[HEADER_SIZE + slot * KEY_POINTER_SIZE..];
            let Ok((key, rest)) = KeyBytes::read_from_prefix(pointer) else { break };
            let word = |at: usize| {
                rest.get(at..at + 8)
                    .map_or(0, |word| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            };
            let child = ChildPointer { key: key.into(), bytenr: Logical(word(0)), generation: Generation(word(8)) };
            let is_next = children.last().is_none_or(|last| last.key < child.key);
            let reference = self.child(&child, level, None);
            if is_next && self.belongs(&child.key) && session.cache.get(&reference).is_ok() {
                children.push(child);
            }
        }
        let uppers = children.iter().skip(1).map(|next| Some(next.key)).chain([self.at.upper]);
        children.iter().zip(uppers).map(|(child, upper)| (self.child(child, level, upper), *child)).collect()
    }

    fn child(&self, child: &ChildPointer, level: u8, upper: Option<Key>) -> NodeRef {
        NodeRef {
            tree: self.at.tree,
            bytenr: child.bytenr,
            generation: child.generation,
            level,
            first_key: Some(child.key),
            upper,
        }
    }

    /// Returns how many items or pointers there are, if so many fit.
    fn slots(&self, size: usize) -> usize {
        (self.header.nritems as usize).min((self.bytes.len() - HEADER_SIZE) / size)
    }

    fn belongs(&self, key: &Key) -> bool {
        self.at.first_key.is_none_or(|first| *key >= first) && self.at.upper.is_none_or(|upper| *key < upper)
    }
}

/// Whether subvolumes have items of this type.
fn is_of_subvolume(key: &Key) -> bool {
    matches!(
        key.item_type,
        ItemType::INODE_ITEM
            | ItemType::INODE_REF
            | ItemType::INODE_EXTREF
            | ItemType::XATTR_ITEM
            | ItemType::VERITY_DESC_ITEM
            | ItemType::VERITY_MERKLE_ITEM
            | ItemType::ORPHAN_ITEM
            | ItemType::DIR_ITEM
            | ItemType::DIR_INDEX
            | ItemType::EXTENT_DATA
    )
}

//! Removes from tree blocks what is no metadata: the content of inline files, and remains of old
//! items between the headers of items and their data.

use std::ops::Range;

use ubtrfs_format::items::{FileType, INLINE_DATA_OFFSET, InodeItem};
use ubtrfs_format::{HEADER_SIZE, Header, ITEM_HEADER_SIZE, ItemType, KEY_POINTER_SIZE, Key, Leaf, Node, TreeId};

/// An item of a leaf, and where its data is in the block.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) data: Range<usize>,
}

/// Returns the items of a block that was checked; none if it is no leaf.
pub(crate) fn items(block: &[u8]) -> Vec<Item> {
    let Ok(Node::Leaf(leaf)) = Node::view(block) else { return Vec::new() };
    // By the check, items lie one after the other from the block's end down.
    let mut end = block.len();
    let place = |(key, data): (Key, &[u8])| {
        end -= data.len();
        Item { key, data: end..end + data.len() }
    };
    leaf.iter().map(place).collect()
}

/// What is known of the inode whose items are visited, from leaf to leaf.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastInode {
    /// Tree, number and type.
    known: Option<(TreeId, u64, FileType)>,
}

impl LastInode {
    /// Forgets the inode, since leaves were passed over.
    pub(crate) fn forget(&mut self) {
        self.known = None;
    }

    /// Notes an item, if it is an inode's.
    pub(crate) fn note(&mut self, tree: TreeId, key: Key, data: &[u8]) {
        if key.item_type == ItemType::INODE_ITEM {
            let item = InodeItem::parse(data).ok();
            self.known = item.map(|item| (tree, key.objectid, FileType::from_mode(item.mode)));
        }
    }

    /// Returns the type of an inode, if it is known.
    pub(crate) fn file_type(&self, tree: TreeId, ino: u64) -> Option<FileType> {
        self.known.filter(|(of, number, _)| (*of, *number) == (tree, ino)).map(|(_, _, file_type)| file_type)
    }
}

/// The filler where it is not known whether an inline extent is a file or the target of a symbolic
/// link, which must not have zero bytes.
const UNKNOWN: u8 = b'x';

/// Zeroes what is no metadata in a block that was checked. Targets of symbolic links are kept.
/// Returns whether the block has changed.
pub(crate) fn clean(block: &mut [u8], tree: TreeId, last: &mut LastInode) -> bool {
    let mut changed = fill(block, unused(block), 0);
    for item in items(block) {
        last.note(tree, item.key, &block[item.data.clone()]);
        if let Some(content) = inline(&item, block) {
            match last.file_type(tree, item.key.objectid) {
                Some(FileType::Symlink) => {}
                Some(_) => changed |= fill(block, content, 0),
                None => changed |= fill(block, content, UNKNOWN),
            }
        }
    }
    changed
}

/// Returns where the content of an inline extent is, if the item is one.
pub(crate) fn inline(item: &Item, block: &[u8]) -> Option<Range<usize>> {
    let data = block.get(item.data.clone())?;
    let is_inline = item.key.item_type == ItemType::EXTENT_DATA && data.get(INLINE_DATA_OFFSET - 1) == Some(&0);
    is_inline.then(|| item.data.start + INLINE_DATA_OFFSET..item.data.end)
}

fn fill(block: &mut [u8], range: Range<usize>, with: u8) -> bool {
    let Some(bytes) = block.get_mut(range) else { return false };
    let changes = bytes.iter().any(|byte| *byte != with);
    bytes.fill(with);
    changes
}

/// Returns which bytes of a block nothing refers to.
fn unused(block: &[u8]) -> Range<usize> {
    let Ok(header) = Header::parse(block) else { return 0..0 };
    let count = header.nritems as usize;
    if header.level > 0 {
        return HEADER_SIZE + count * KEY_POINTER_SIZE..block.len();
    }
    let used = match Node::view(block) {
        Ok(Node::Leaf(leaf)) => Leaf::used(&leaf),
        _ => return 0..0,
    };
    let headers = HEADER_SIZE + count * ITEM_HEADER_SIZE;
    let data = block.len().saturating_sub(used.saturating_sub(count * ITEM_HEADER_SIZE));
    headers..data.max(headers)
}

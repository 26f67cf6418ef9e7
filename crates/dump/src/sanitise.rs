//! Replaces names in tree blocks: those of files, of subvolumes and of xattrs, the targets of
//! symbolic links and the values of users' xattrs.

use ubtrfs_format::items::{DIR_ENTRY_HEADER, FileType};
use ubtrfs_format::{HEADER_SIZE, ITEM_HEADER_SIZE, ItemType, TreeId, name_hash};

use crate::clean::{Item, LastInode, inline, items};
use crate::named_items::{has_names, header_of, lengths};
use crate::names::{Names, free_start};
use crate::report::Dumped;
use crate::short_names::ShortNames;

/// Where a key has its offset.
const KEY_OFFSET: usize = 9;

/// What names become.
pub(crate) struct Replacements {
    pub(crate) names: Names,
    /// What those become that have no others with their hashes.
    pub(crate) short: ShortNames,
}

/// Replaces names in a leaf that was checked. `before` knows the inode at the leaf's beginning.
/// Returns whether the block has changed.
pub(crate) fn sanitise(
    block: &mut [u8],
    tree: TreeId,
    mut before: LastInode,
    replacements: &Replacements,
    dumped: &mut Dumped,
) -> bool {
    let mut work = Work { replacements, dumped, changed: false };
    for (slot, item) in items(block).into_iter().enumerate() {
        before.note(tree, item.key, &block[item.data.clone()]);
        if let Some(content) = inline(&item, block) {
            if before.file_type(tree, item.key.objectid) == Some(FileType::Symlink)
                && let Some(target) = block.get_mut(content)
            {
                replacements.names.fill(target);
                work.changed = true;
            }
            continue;
        }
        if let Some(hash) = work.item(block, &item, tree) {
            let at = HEADER_SIZE + slot * ITEM_HEADER_SIZE + KEY_OFFSET;
            block[at..at + 8].copy_from_slice(&hash.to_le_bytes());
        }
    }
    work.changed
}

struct Work<'a> {
    replacements: &'a Replacements,
    dumped: &'a mut Dumped,
    changed: bool,
}

impl Work<'_> {
    /// Replaces the names of an item. Returns the hash that its key gets, if it gets another one.
    fn item(&mut self, block: &mut [u8], item: &Item, tree: TreeId) -> Option<u64> {
        let data = block.get_mut(item.data.clone())?;
        let item_type = item.key.item_type;
        match item_type {
            ItemType::STRING_ITEM => {
                data.fill(b'x');
                self.changed = true;
            }
            _ if !has_names(item.key, tree) => {}
            ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
                let hash = self.entries(data, item_type == ItemType::XATTR_ITEM)?;
                return Some(hash).filter(|hash| item_type != ItemType::DIR_INDEX && *hash != item.key.offset);
            }
            ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
                self.name(data.get_mut(header_of(item_type)..)?, 0);
            }
            _ => self.refs(data, header_of(item_type)),
        }
        None
    }

    fn name(&mut self, name: &mut [u8], kept: usize) {
        if name == b".." {
            return;
        }
        let Replacements { names, short } = self.replacements;
        match names.other(name, kept).or_else(|| short.other(name)) {
            Some(other) => {
                name.copy_from_slice(&other);
                self.dumped.replaced += 1;
                self.changed = true;
            }
            None => self.dumped.kept += 1,
        }
    }

    /// Entries of a directory, or xattrs. Returns the hash of the last name.
    fn entries(&mut self, mut data: &mut [u8], are_xattrs: bool) -> Option<u64> {
        let mut hash = None;
        while let Some((name_len, value_len)) = lengths(data) {
            let (entry, rest) = data.split_at_mut((DIR_ENTRY_HEADER + name_len + value_len).min(data.len()));
            data = rest;
            let both = entry.get_mut(DIR_ENTRY_HEADER..)?;
            let (name, value) = both.split_at_mut_checked(name_len)?;
            if !are_xattrs {
                self.name(name, 0);
            } else if let Some(start) = free_start(name) {
                self.name(name, start);
                self.replacements.names.fill(value);
                self.changed = true;
            }
            hash = Some(name_hash(name));
        }
        hash
    }

    /// References to names, each with a header that ends with the length of the name.
    fn refs(&mut self, mut data: &mut [u8], header: usize) {
        while let Some(len) = data.get(header - 2..header).map(|len| usize::from(u16::from_le_bytes([len[0], len[1]])))
        {
            let (entry, rest) = data.split_at_mut((header + len).min(data.len()));
            if let Some(name) = entry.get_mut(header..) {
                self.name(name, 0);
            }
            data = rest;
        }
    }
}

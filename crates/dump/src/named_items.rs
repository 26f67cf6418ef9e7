//! Which items have names, and where.

use ubtrfs_format::items::{DIR_ENTRY_HEADER, EXTREF_HEADER, INODE_REF_HEADER};
use ubtrfs_format::{ItemType, Key, TreeId};

/// Bytes of a reference to or from a subvolume before its name.
const ROOT_REF_HEADER: usize = 18;
/// Where an entry of a directory has the length of an xattr's value.
const VALUE_LEN: usize = 25;
/// Where an entry of a directory has the length of its name.
const NAME_LEN: usize = 27;

/// Returns whether an item has names that are replaced. In the root tree the directory entry
/// `default` says which subvolume is mounted, and the inodes of free-space caches have no names.
pub(crate) fn has_names(key: Key, tree: TreeId) -> bool {
    match key.item_type {
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::INODE_REF => tree != TreeId::ROOT,
        ItemType::XATTR_ITEM | ItemType::INODE_EXTREF | ItemType::ROOT_REF | ItemType::ROOT_BACKREF => true,
        _ => false,
    }
}

/// Returns how many bytes an item of this type has before each name, the last two of which are the
/// length of the name.
pub(crate) fn header_of(item_type: ItemType) -> usize {
    match item_type {
        ItemType::INODE_EXTREF => EXTREF_HEADER,
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => ROOT_REF_HEADER,
        _ => INODE_REF_HEADER,
    }
}

/// Returns the lengths of the name and the value of the first entry of a directory item or xattr,
/// if there is one.
pub(crate) fn lengths(data: &[u8]) -> Option<(usize, usize)> {
    let field = |at: usize| data.get(at..at + 2).map(|len| usize::from(u16::from_le_bytes([len[0], len[1]])));
    data.get(DIR_ENTRY_HEADER..)?;
    Some((field(NAME_LEN)?, field(VALUE_LEN)?))
}

/// Returns the names of an item that refers back to directories.
pub(crate) fn back_references(item_type: ItemType, mut data: &[u8]) -> Vec<&[u8]> {
    let header = header_of(item_type);
    let mut names = Vec::new();
    while let Some(len) = data.get(header - 2..header).map(|len| usize::from(u16::from_le_bytes([len[0], len[1]]))) {
        names.extend(data.get(header..header + len));
        data = data.get(header + len..).unwrap_or_default();
    }
    names
}

//! Which items each tree may have. Facts: the on-disk format of btrfs's documentation, and volumes
//! that kernels and mkfs.btrfs made.

use ubtrfs_format::{Ino, ItemType, Key, TreeId, objectid};

use crate::fault::FaultKind;

/// Headers of free-space caches have no item type of their own.
const UNTYPED: ItemType = ItemType(0);
/// Older names of types that no current writer uses: references to extents and blocks before
/// Linux 2.6.29.
const OLD_TYPES: [ItemType; 1] = [ItemType(180)];

/// What an item of a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fits,
    /// It fits, but belongs to the inode cache, which kernels since Linux 5.11 don't read.
    OfInodeCache,
    Misplaced,
}

/// Returns the fault that an item with this key is in this tree, if it is one.
pub(crate) fn fault_of(tree: TreeId, key: &Key) -> Option<FaultKind> {
    let is_known = key.item_type == UNTYPED || key.item_type.name().is_some() || OLD_TYPES.contains(&key.item_type);
    if !is_known {
        return Some(FaultKind::UnknownItem { item_type: key.item_type.0 });
    }
    match verdict(tree, key) {
        Verdict::Fits => None,
        Verdict::OfInodeCache => Some(FaultKind::InodeCache),
        Verdict::Misplaced => Some(FaultKind::MisplacedItem),
    }
}

fn verdict(tree: TreeId, key: &Key) -> Verdict {
    use ItemType as Type;
    let Key { objectid: id, item_type, .. } = *key;
    let fits = match tree {
        TreeId::ROOT => of_root_tree(key),
        TreeId::EXTENT => matches!(
            item_type,
            Type::EXTENT_ITEM
                | Type::METADATA_ITEM
                | Type::EXTENT_OWNER_REF
                | Type::TREE_BLOCK_REF
                | Type::EXTENT_DATA_REF
                | Type::SHARED_BLOCK_REF
                | Type::SHARED_DATA_REF
                | Type::BLOCK_GROUP_ITEM
        ),
        TreeId::CHUNK => match item_type {
            Type::DEV_ITEM => id == objectid::DEV_ITEMS,
            Type::CHUNK_ITEM => id == objectid::FIRST_CHUNK_TREE,
            _ => false,
        },
        TreeId::DEV => match item_type {
            Type::DEV_EXTENT => true,
            Type::PERSISTENT_ITEM | Type::DEV_REPLACE => id == objectid::DEV_STATS,
            _ => false,
        },
        TreeId::CSUM => item_type == Type::EXTENT_CSUM && id == objectid::EXTENT_CSUM,
        TreeId::QUOTA => {
            matches!(item_type, Type::QGROUP_STATUS | Type::QGROUP_INFO | Type::QGROUP_LIMIT | Type::QGROUP_RELATION)
        }
        TreeId::UUID => matches!(item_type, Type::UUID_KEY_SUBVOL | Type::UUID_KEY_RECEIVED_SUBVOL),
        TreeId::FREE_SPACE => {
            matches!(item_type, Type::FREE_SPACE_INFO | Type::FREE_SPACE_EXTENT | Type::FREE_SPACE_BITMAP)
        }
        TreeId::BLOCK_GROUP => item_type == Type::BLOCK_GROUP_ITEM,
        TreeId::RAID_STRIPE => item_type == Type::RAID_STRIPE,
        TreeId::LOG => of_log(key),
        _ if tree.is_subvolume() || tree == TreeId::DATA_RELOC || tree == TreeId::RELOC => {
            if id == objectid::FREE_INO && matches!(item_type, UNTYPED | Type::INODE_ITEM | Type::EXTENT_DATA) {
                return Verdict::OfInodeCache;
            }
            of_inode(key)
        }
        // Nothing is known of other trees.
        _ => true,
    };
    if fits { Verdict::Fits } else { Verdict::Misplaced }
}

/// Whether the root tree may have the item: trees, their references, what is to be deleted, a
/// balance, the directory that names the default subvolume, and version 1 of the free-space cache.
fn of_root_tree(key: &Key) -> bool {
    use ItemType as Type;
    let id = key.objectid;
    match key.item_type {
        Type::ROOT_ITEM | Type::ROOT_REF | Type::ROOT_BACKREF => true,
        Type::ORPHAN_ITEM => id == objectid::ORPHAN,
        Type::TEMPORARY_ITEM => id == objectid::BALANCE,
        UNTYPED => id == objectid::FREE_SPACE,
        Type::INODE_ITEM => id == TreeId::ROOT_TREE_DIR.0 || is_ino(id),
        // mkfs.btrfs gives the top level a reference to the directory.
        Type::INODE_REF => key.offset == TreeId::ROOT_TREE_DIR.0 || is_ino(id),
        Type::DIR_ITEM | Type::DIR_INDEX | Type::XATTR_ITEM => id == TreeId::ROOT_TREE_DIR.0,
        Type::EXTENT_DATA => is_ino(id),
        _ => false,
    }
}

fn of_inode(key: &Key) -> bool {
    use ItemType as Type;
    match key.item_type {
        Type::INODE_ITEM
        | Type::INODE_REF
        | Type::INODE_EXTREF
        | Type::XATTR_ITEM
        | Type::VERITY_DESC_ITEM
        | Type::VERITY_MERKLE_ITEM
        | Type::DIR_ITEM
        | Type::DIR_INDEX
        | Type::EXTENT_DATA => is_ino(key.objectid),
        Type::ORPHAN_ITEM => key.objectid == objectid::ORPHAN,
        _ => false,
    }
}

/// Whether a log may have the item: the trees of subvolumes in the tree of logs, and what was
/// logged of inodes.
fn of_log(key: &Key) -> bool {
    use ItemType as Type;
    match key.item_type {
        Type::ROOT_ITEM | Type::EXTENT_CSUM | Type::DIR_LOG_ITEM | Type::DIR_LOG_INDEX => true,
        _ => of_inode(key),
    }
}

fn is_ino(id: u64) -> bool {
    (Ino::FIRST_FREE.0..=Ino::LAST_FREE.0).contains(&id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_fit_their_own_tree_and_no_other() {
        let inode = Key::new(257, ItemType::INODE_ITEM, 0);
        let extent = Key::new(1 << 20, ItemType::METADATA_ITEM, 0);
        let sums = Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, 1 << 20);
        let balance = Key::new(objectid::BALANCE, ItemType::TEMPORARY_ITEM, 0);
        for (tree, key) in [
            (TreeId::FS, inode),
            (TreeId(300), inode),
            (TreeId::EXTENT, extent),
            (TreeId::CSUM, sums),
            (TreeId::LOG, sums),
            (TreeId::ROOT, balance),
        ] {
            assert_eq!(fault_of(tree, &key), None, "{tree} {key}");
        }
        for (tree, key) in [
            (TreeId::CSUM, inode),
            (TreeId::FS, extent),
            (TreeId::FS, sums),
            (TreeId::UUID, balance),
            (TreeId::ROOT, extent),
            (TreeId::CSUM, Key { objectid: 5, ..sums }),
            (TreeId::FS, Key { objectid: 5, ..inode }),
        ] {
            assert_eq!(fault_of(tree, &key), Some(FaultKind::MisplacedItem), "{tree} {key}");
        }
        let unknown = Key::new(257, ItemType(77), 0);
        assert_eq!(fault_of(TreeId::FS, &unknown), Some(FaultKind::UnknownItem { item_type: 77 }));
        let cache = Key::new(objectid::FREE_INO, UNTYPED, 0);
        assert_eq!(fault_of(TreeId(300), &cache), Some(FaultKind::InodeCache));
        assert_eq!(fault_of(TreeId::CSUM, &cache), Some(FaultKind::MisplacedItem));
    }
}

//! Enumerates all that is allocated according to the extent tree of a commit, for callers that read
//! every copy.

use ubtrfs_file::ChecksumTree;
use ubtrfs_format::items::{ExtentFlags, ExtentItem};
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};

use crate::committed::Committed;
use crate::error::Result;

/// Bytes of data that are shown at a time.
pub(crate) const AT_ONCE: u64 = 1 << 20;

/// Something that is allocated.
pub(crate) enum Allocated {
    /// A tree block.
    Node { at: Logical, level: u8, generation: Generation },
    /// The beginning of a data extent.
    Extent,
    /// A part of the extent, in whole sectors, with its checksums if it has any.
    Data { at: Logical, len: u64, sums: Option<Vec<u8>> },
}

/// Number of bytes after which no further extent is reported.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

/// Calls `show` for what is allocated from `from` to `end`: at most `most` extents, and not many
/// more than `MAX_BYTES` bytes, since `committed` holds back what later commits free meanwhile.
/// Returns the address at which to go on, or `None` at the end.
pub(crate) fn visit(
    committed: &Committed,
    from: Logical,
    end: Logical,
    most: usize,
    show: &mut dyn FnMut(Allocated) -> Result<()>,
) -> Result<Option<Logical>> {
    let superblock = &committed.superblock;
    let node_size = u64::from(superblock.node_size);
    let sums = ChecksumTree::new(committed.tree(TreeId::CSUM)?, superblock.checksum, superblock.sector_size);
    let range = Key::new(from.0, ItemType(0), 0)..=Key::new(end.0 - 1, ItemType(u8::MAX), u64::MAX);
    let (mut count, mut bytes, mut next) = (0, 0, from);
    for item in committed.tree(TreeId::EXTENT)?.range(range) {
        let item = item?;
        let key = item.key;
        let (at, is_node, len) = match key.item_type {
            ItemType::METADATA_ITEM => (Logical(key.objectid), true, node_size),
            ItemType::EXTENT_ITEM => (Logical(key.objectid), false, key.offset),
            _ => continue,
        };
        if count == most || bytes >= MAX_BYTES {
            return Ok(Some(next));
        }
        count += 1;
        bytes += len;
        let extent = ExtentItem::parse(&key, &item)?;
        if is_node || extent.flags & ExtentFlags::TREE_BLOCK != 0 {
            show(Allocated::Node { at, level: extent.level(&key), generation: extent.generation })?;
        } else {
            show(Allocated::Extent)?;
            let mut done = 0;
            while done < len {
                let piece = AT_ONCE.min(len - done);
                for (at, len, sums) in sums.runs(at.plus(done), piece)? {
                    show(Allocated::Data { at, len, sums })?;
                }
                done += piece;
            }
        }
        next = at.plus(len);
    }
    Ok(None)
}

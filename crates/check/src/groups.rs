//! Block groups, as their items describe them.

use ubtrfs_format::items::{BlockGroupFlags, BlockGroupItem};
use ubtrfs_format::{ItemType, Key};

/// A block group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) used: u64,
    pub(crate) flags: BlockGroupFlags,
}

impl Group {
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }
}

/// All block groups, in order of their addresses.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) list: Vec<Group>,
}

impl Groups {
    /// Adds a `BLOCK_GROUP_ITEM`, and ignores other items. The item check reports malformed ones.
    pub(crate) fn take(&mut self, key: Key, data: &[u8]) {
        if key.item_type == ItemType::BLOCK_GROUP_ITEM
            && let Ok(item) = BlockGroupItem::parse(data)
        {
            let flags = BlockGroupFlags(item.flags);
            self.list.push(Group { start: key.objectid, length: key.offset, used: item.used, flags });
        }
    }

    /// The group that holds all of `start..end`.
    pub(crate) fn holding(&self, start: u64, end: u64) -> Option<&Group> {
        let after = self.list.partition_point(|group| group.start <= start);
        self.list.get(after.checked_sub(1)?).filter(|group| end <= group.end())
    }

    /// The group that starts here.
    pub(crate) fn starting(&self, start: u64) -> Option<&Group> {
        let index = self.list.binary_search_by_key(&start, |group| group.start).ok()?;
        self.list.get(index)
    }
}

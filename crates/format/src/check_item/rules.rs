//! The common parts of the rules of items: the facts about the volume that they need, and simple
//! bounds.

use crate::{ChecksumType, Error, Generation, Incompat, Ino, Result, Superblock, TreeId};

/// The facts about the volume that the rules need.
#[derive(Clone, Copy, Debug)]
pub struct ItemContext {
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Bytes of a tree block.
    pub node_size: u32,
    /// The checksum algorithm, whose size decides that of checksum items.
    pub checksum: ChecksumType,
    /// The superblock's generation. Items may be one generation ahead of it, as those of a log are.
    pub generation: Generation,
    /// The features that some items require.
    pub incompat: Incompat,
}

impl From<&Superblock> for ItemContext {
    fn from(superblock: &Superblock) -> Self {
        Self {
            sector_size: superblock.sector_size,
            node_size: superblock.node_size,
            checksum: superblock.checksum,
            generation: superblock.generation,
            incompat: superblock.incompat,
        }
    }
}

impl ItemContext {
    pub(super) fn aligned(&self, what: &'static str, value: u64) -> Result<()> {
        require(value.is_multiple_of(u64::from(self.sector_size.max(1))), what, value)
    }

    pub(super) fn generation(&self, what: &'static str, generation: Generation) -> Result<()> {
        require(generation <= self.generation.next(), what, generation.0)
    }
}

pub(super) fn require(holds: bool, what: &'static str, value: u64) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::BadValue { what, value }) }
}

pub(super) fn length(what: &'static str, item: &[u8], need: usize) -> Result<()> {
    if item.len() == need { Ok(()) } else { Err(Error::WrongLength { what, need, have: item.len() }) }
}

/// Checks that the item is one or more pieces of `size` bytes.
pub(super) fn multiple(what: &'static str, item: &[u8], size: usize) -> Result<()> {
    let holds = !item.is_empty() && item.len().is_multiple_of(size);
    if holds { Ok(()) } else { Err(Error::WrongLength { what, need: size, have: item.len() }) }
}

/// Checks that `length` is not zero, and that `start + length` stays below 2^64.
pub(super) fn range(what: &'static str, start: u64, length: u64) -> Result<()> {
    require(length != 0 && start.checked_add(length).is_some(), what, length)
}

pub(super) fn is_file(ino: u64) -> bool {
    (Ino::FIRST_FREE.0..=Ino::LAST_FREE.0).contains(&ino)
}

/// Returns whether data can belong to the tree: to subvolumes, data relocation and, for v1 caches,
/// the root tree.
pub(super) fn holds_data(tree: TreeId) -> bool {
    tree.is_subvolume() || tree == TreeId::DATA_RELOC || tree == TreeId::ROOT
}

//! Where a check starts: which superblock and which roots it believes.

use ubtrfs_format::{Generation, Header, Logical, Superblock, verify_node_checksum};
use ubtrfs_volume::Buffer;

use crate::error::{Error, Result};
use crate::media::Media;

/// Where a check starts, if not at the roots of the newest superblock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Start {
    /// The number of the copy of the superblock to read.
    pub superblock: Option<u8>,
    /// Whether to use the newest roots in the superblock's backups that can be read.
    pub backup: bool,
    /// The address of the root tree's root.
    pub root: Option<Logical>,
    /// The address of the chunk tree's root.
    pub chunk_root: Option<Logical>,
}

impl Start {
    /// Changes a superblock so that it refers to the roots where the check starts.
    pub(crate) fn apply(&self, superblock: &mut Superblock, media: &Media) -> Result<()> {
        let header = |at: Logical| header_at(media, superblock, at);
        if self.backup {
            let mut backups: Vec<_> =
                superblock.backup_roots.iter().filter(|backup| backup.trees[0].0.0 != 0).collect();
            backups.sort_by_key(|backup| std::cmp::Reverse(backup.trees[0].1));
            let is_readable = |(at, generation, level): (Logical, Generation, u8)| {
                header(at).is_some_and(|header| header.generation == generation && header.level == level)
            };
            // The root tree may be mapped only by chunks that the chunk tree has.
            let chosen = backups.into_iter().find(|backup| is_readable(backup.trees[1])).copied();
            let backup = chosen.ok_or(Error::NoBackup)?;
            let [(root, generation, level), (chunk_root, chunk_generation, chunk_level), ..] = backup.trees;
            (superblock.root, superblock.generation, superblock.root_level) = (root, generation, level);
            superblock.chunk_root = chunk_root;
            superblock.chunk_root_generation = chunk_generation;
            superblock.chunk_root_level = chunk_level;
            superblock.bytes_used = backup.bytes_used;
            superblock.total_bytes = backup.total_bytes;
            superblock.num_devices = backup.num_devices;
        }
        if let Some(at) = self.chunk_root {
            let found = header_at(media, superblock, at).ok_or(Error::NoBlock(at))?;
            superblock.chunk_root = at;
            superblock.chunk_root_generation = found.generation;
            superblock.chunk_root_level = found.level;
        }
        if self.backup || self.root.is_some() {
            // The log belongs to the newest commit.
            superblock.log_root = Logical(0);
        }
        Ok(())
    }

    /// Changes the root tree's root. All chunks must be known.
    pub(crate) fn apply_root(&self, superblock: &mut Superblock, media: &Media) -> Result<()> {
        let Some(at) = self.root else { return Ok(()) };
        let found = header_at(media, superblock, at).ok_or(Error::NoBlock(at))?;
        (superblock.root, superblock.generation, superblock.root_level) = (at, found.generation, found.level);
        Ok(())
    }
}

/// The header of the tree block at an address, from the first copy with a right checksum.
fn header_at(media: &Media, superblock: &Superblock, at: Logical) -> Option<Header> {
    (0..media.copies(at)).find_map(|copy| {
        let mut block = Buffer::zeroed(superblock.node_size as usize);
        media.read_copy(at, copy, &mut block).ok()?;
        verify_node_checksum(&block, superblock.checksum).ok()?;
        Header::parse(&block).ok().filter(|header| header.bytenr == at)
    })
}

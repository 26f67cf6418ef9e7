//! Which volumes a repair may write to.

use ubtrfs_format::items::{BlockGroupFlags, ChunkItem};
use ubtrfs_format::{CompatRo, Incompat};

use crate::error::{Error, Result};
use crate::session::Session;

/// Features of which a repair knows what they mean for the trees that it writes.
const KNOWN: [Incompat; 13] = [
    Incompat::MIXED_BACKREF,
    Incompat::DEFAULT_SUBVOL,
    Incompat::MIXED_GROUPS,
    Incompat::COMPRESS_LZO,
    Incompat::COMPRESS_ZSTD,
    Incompat::BIG_METADATA,
    Incompat::EXTENDED_IREF,
    Incompat::RAID56,
    Incompat::SKINNY_METADATA,
    Incompat::NO_HOLES,
    Incompat::METADATA_UUID,
    Incompat::RAID1C34,
    Incompat::SIMPLE_QUOTA,
];

/// Refuses volumes of which not everything is known that a commit has to write.
pub fn require_writable(session: &Session) -> Result<()> {
    let known = KNOWN.into_iter().fold(Incompat(0), Incompat::with);
    if session.superblock.incompat.0 & !known.0 != 0 {
        return Err(Error::Refused("the volume has features that a repair does not know"));
    }
    let compat =
        [CompatRo::FREE_SPACE_TREE, CompatRo::FREE_SPACE_TREE_VALID, CompatRo::VERITY, CompatRo::BLOCK_GROUP_TREE];
    let known = compat.into_iter().fold(CompatRo(0), CompatRo::with);
    if session.superblock.compat_ro.0 & !known.0 != 0 {
        return Err(Error::Refused("the volume has features that a repair does not know"));
    }
    let has_parity = |chunk: &ChunkItem| {
        !chunk.flags.types().contains(BlockGroupFlags::DATA) && chunk.flags.raid().is_none_or(|raid| raid.parities > 0)
    };
    if session.volume.chunk_map().all().iter().any(|(_, chunk)| has_parity(chunk)) {
        return Err(Error::Refused("its metadata has parity (RAID5 or RAID6), to which a repair does not write"));
    }
    Ok(())
}

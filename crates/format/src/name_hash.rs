//! Hashes in keys.
//!
//! All are CRC-32C without the usual inversions, continued from a seed.

use crate::Ino;

fn raw_crc32c(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// Returns the key offset of a `DIR_ITEM` or `XATTR_ITEM`: the hash of its name, seed `!1`.
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(raw_crc32c(!1, name))
}

/// Returns the key offset of an `INODE_EXTREF`: the hash of the name, seeded with the directory's
/// inode number.
pub fn extref_hash(parent: Ino, name: &[u8]) -> u64 {
    u64::from(raw_crc32c(parent.0 as u32, name))
}

/// Returns the hash by which data references are ordered, and the key offset of a keyed
/// `EXTENT_DATA_REF`.
///
/// `offset` is the file offset at which the extent would start, modulo 2^64.
pub fn data_ref_hash(root: u64, ino: u64, offset: u64) -> u64 {
    let high = raw_crc32c(u32::MAX, &root.to_le_bytes());
    let low = raw_crc32c(raw_crc32c(u32::MAX, &ino.to_le_bytes()), &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_subvolume_entry_has_its_well_known_hash() {
        // Every volume holds the entry "default" at (6 DIR_ITEM 2378154706) in its root tree.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}

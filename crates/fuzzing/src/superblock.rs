use ubtrfs_format::items::sys_chunks;
use ubtrfs_format::{
    CHECKSUM_FIELD, ChecksumType, ItemContext, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock,
    check_chunk,
};

/// The offset of the address of this copy.
const BYTENR: std::ops::Range<usize> = 48..56;
/// The offset of the type of the checksum.
const CHECKSUM_TYPE: usize = 196;

/// Reads arbitrary bytes as a superblock: as they are, and with a corrected checksum. A superblock
/// that is accepted is written and read back the same, and its system chunks are parsed and
/// checked.
pub fn superblock(data: &[u8]) {
    examine(data);
    let Some(whole) = data.get(..SUPERBLOCK_SIZE) else { return };
    let mut sealed = whole.to_vec();
    let checksum = u16::from_le_bytes([sealed[CHECKSUM_TYPE], sealed[CHECKSUM_TYPE + 1]]);
    if let Ok(checksum) = ChecksumType::from_raw(checksum) {
        let sum = checksum.compute(&sealed[CHECKSUM_FIELD..]);
        sealed[..CHECKSUM_FIELD].copy_from_slice(&sum.0);
        examine(&sealed);
    }
}

fn examine(data: &[u8]) {
    for at in SUPERBLOCK_COPIES {
        drop(Superblock::parse(data, at));
    }
    // Reads it at the address that it claims, so that not every input fails because of the copy's
    // number.
    let mut claimed = [0; 8];
    claimed.copy_from_slice(data.get(BYTENR).unwrap_or(&[0; 8]));
    let at = Physical(u64::from_le_bytes(claimed));
    let Ok(superblock) = Superblock::parse(data, at) else { return };
    let bytes = superblock.to_bytes().unwrap_or_else(|error| panic!("a parsed superblock cannot be written: {error}"));
    assert_eq!(Superblock::parse(bytes.as_slice(), at).as_ref(), Ok(&superblock));
    let _ = (superblock.label_bytes(), superblock.metadata_fsid());
    let _ = (superblock.incompat.names(), superblock.compat_ro.names(), superblock.flags.names());
    let context = ItemContext::from(&superblock);
    if let Ok(chunks) = sys_chunks(&superblock.sys_chunk_array) {
        for (key, chunk) in chunks {
            drop(check_chunk(Logical(key.offset), &chunk, &context));
            assert_eq!(chunk.to_bytes().len(), chunk.encoded_len());
        }
    }
}

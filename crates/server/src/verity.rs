//! The ioctls of fs-verity. The kernel passes on to FUSE the ones that measure and that protect a
//! file, with the memory that they point to. The one that reads the Merkle tree has a pointer that
//! no server can follow.

use ubtrfs::{Errno, Filesystem, InodeId, VerityParameters};

use crate::shared::errno;

/// Bytes of `struct fsverity_enable_arg`, behind which the kernel puts salt and signature.
const ENABLE_SIZE: usize = 128;
/// Bytes of `struct fsverity_digest` without the digest: the algorithm and the size.
const HEAD: usize = 4;

/// Returns the fs-verity digest of a file. `EOVERFLOW` if the caller has no room for the hash.
pub(crate) fn measure(engine: &Filesystem, id: InodeId, argument: &[u8]) -> Result<Vec<u8>, Errno> {
    let digest = engine.files().verity_digest(id).map_err(|error| errno(&error))?;
    let room = argument.get(2..HEAD).and_then(|size| size.try_into().ok()).map(u16::from_le_bytes);
    let room = room.ok_or(Errno::INVAL)?;
    let size = u16::try_from(digest.hash.len()).map_err(|_| Errno::OVERFLOW)?;
    if room < size {
        return Err(Errno::OVERFLOW);
    }
    Ok([&digest.algorithm.to_le_bytes(), &size.to_le_bytes(), &*digest.hash].concat())
}

/// Reads how a file is to be protected. `EINVAL` if the argument makes no sense.
pub(crate) fn parse_enable(data: &[u8]) -> Result<VerityParameters, Errno> {
    parameters(data).ok_or(Errno::INVAL)
}

fn parameters(data: &[u8]) -> Option<VerityParameters> {
    let (argument, behind) = data.split_at_checked(ENABLE_SIZE)?;
    let number = |at: usize| argument.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let (version, salt_size, signature_size) = (number(0)?, number(12)? as usize, number(24)? as usize);
    // Bytes to which no kernel gives a meaning must be zero.
    let is_reserved = |at: usize| !(0..24).contains(&at) && !(24..28).contains(&at) && !(32..40).contains(&at);
    let has_more = argument.iter().enumerate().any(|(at, byte)| is_reserved(at) && *byte != 0);
    if version != 1 || has_more || behind.len() != salt_size.checked_add(signature_size)? {
        return None;
    }
    let (salt, signature) = behind.split_at_checked(salt_size)?;
    Some(VerityParameters {
        algorithm: number(4)?,
        block_size: number(8)?,
        salt: salt.to_vec(),
        signature: signature.to_vec(),
    })
}

//! fs-verity by ioctls. Of these the kernel passes on to FUSE what measures a file and what has it
//! protected, with the memory that they point to; what reads the tree of hashes has a pointer that
//! no server can follow.

use ubtrfs::{Errno, Filesystem, InodeId, VerityParameters};

use crate::shared::errno;

/// Bytes of `struct fsverity_enable_arg`; the kernel puts salt and signature behind it.
const ENABLE_SIZE: usize = 128;
/// Bytes of `struct fsverity_digest` without the digest: the algorithm and the size.
const HEAD: usize = 4;

/// Measures a file. `EOVERFLOW` if the caller has no room for the hash.
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

/// How a file is to be protected. `EINVAL` for what it can't mean.
pub(crate) fn parse_enable(data: &[u8]) -> Result<VerityParameters, Errno> {
    parameters(data).ok_or(Errno::INVAL)
}

fn parameters(data: &[u8]) -> Option<VerityParameters> {
    let (argument, behind) = data.split_at_checked(ENABLE_SIZE)?;
    let number = |at: usize| argument.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let (version, salt_size, signature_size) = (number(0)?, number(12)? as usize, number(24)? as usize);
    // What no kernel knows has to be zero.
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

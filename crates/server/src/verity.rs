//! fs-verity by ioctls. Of these the kernel passes on to FUSE what measures a file, with the
//! memory that it points to; what reads the tree of hashes has a pointer that no server can follow.

use ubtrfs::{Errno, Filesystem, InodeId};

use crate::shared::errno;

/// `FS_IOC_MEASURE_VERITY`
const MEASURE: u32 = 0xc004_6686;
/// Bytes of `struct fsverity_digest` without the digest: the algorithm and the size.
const HEAD: usize = 4;

/// Whether this is the command that measures a file.
pub(crate) fn measures(command: u32) -> bool {
    command == MEASURE
}

/// Measures a file. `EOVERFLOW` if the caller has no room for the hash.
pub(crate) fn measure(engine: &Filesystem, id: InodeId, argument: &[u8]) -> Result<Vec<u8>, Errno> {
    let digest = engine.verity_digest(id).map_err(|error| errno(&error))?;
    let room = argument.get(2..HEAD).and_then(|size| size.try_into().ok()).map(u16::from_le_bytes);
    let room = room.ok_or(Errno::INVAL)?;
    let size = u16::try_from(digest.hash.len()).map_err(|_| Errno::OVERFLOW)?;
    if room < size {
        return Err(Errno::OVERFLOW);
    }
    Ok([&digest.algorithm.to_le_bytes(), &size.to_le_bytes(), &*digest.hash].concat())
}

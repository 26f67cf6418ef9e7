//! Contents that identify themselves: each block has the id of its file, its number and its
//! version, and all other bytes follow from these.

use ubtrfs_random::Rng;

/// The size of a block.
pub const BLOCK: u64 = 4096;

/// Bytes at the start of a block that identify it; a file's last block is never shorter.
pub(super) const HEAD: u64 = 32;

const MAGIC: &[u8; 8] = b"promised";

/// A version of a file's content: its size, and the version of each block (0: a hole).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlocksState {
    /// The size in bytes.
    pub size: u64,
    /// The versions of the blocks that begin below the size.
    pub versions: Vec<u32>,
}

impl BlocksState {
    /// Returns the state after `versions` were written from block `first` on. The last of them is
    /// `last` bytes long.
    pub fn written(&self, first: usize, versions: &[u32], last: u64) -> Self {
        let mut next = self.clone();
        let end = first + versions.len();
        next.versions.resize(next.versions.len().max(end), 0);
        next.versions[first..end].copy_from_slice(versions);
        next.size = next.size.max((end as u64 - 1) * BLOCK + last);
        next
    }

    /// Returns the state after a truncation.
    pub fn resized(&self, size: u64) -> Self {
        let mut versions = self.versions.clone();
        versions.resize(size.div_ceil(BLOCK) as usize, 0);
        Self { size, versions }
    }
}

/// Returns block `number` of the file `id` in a version, which is not 0.
pub(super) fn block(id: u64, number: u32, version: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK as usize);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    let mut rng = Rng::new(id << 40 ^ u64::from(number) << 32 ^ u64::from(version));
    out.extend_from_slice(&rng.next_u64().to_le_bytes());
    let rest = (BLOCK - HEAD) as usize;
    out.extend(if rng.one_in(4) { vec![b'.'; rest] } else { rng.noise(rest) });
    out
}

/// Returns the version of block `number` of the file `id`, given its `bytes`, or what is wrong with
/// them.
pub(super) fn version_of(id: u64, number: u32, bytes: &[u8]) -> Result<u32, String> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let field = |from: usize, to: usize| bytes.get(from..to).unwrap_or_default();
    if field(0, 8) != MAGIC {
        return Err(format!(
            "block {number} is no block of ours: {}…",
            crate::content::hex(&bytes[..bytes.len().min(16)])
        ));
    }
    let whose = u64::from_le_bytes(field(8, 16).try_into().unwrap_or_default());
    let which = u32::from_le_bytes(field(16, 20).try_into().unwrap_or_default());
    let version = u32::from_le_bytes(field(20, 24).try_into().unwrap_or_default());
    if (whose, which) != (id, number) {
        return Err(format!("block {number} of file {id} is block {which} of file {whose}, version {version}"));
    }
    let wanted = block(id, number, version);
    match bytes.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted) {
        None => Ok(version),
        Some(at) => Err(format!("block {number}, version {version}, is wrong from byte {at} on")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_identify_themselves() {
        let mut bytes = block(7, 3, 11);
        assert_eq!(bytes.len() as u64, BLOCK);
        assert_eq!(version_of(7, 3, &bytes), Ok(11));
        assert_eq!(version_of(7, 3, &bytes[..32]), Ok(11));
        assert!(version_of(8, 3, &bytes).is_err());
        assert!(version_of(7, 4, &bytes).is_err());
        bytes[3000] ^= 1;
        assert!(version_of(7, 3, &bytes).is_err());
        assert_eq!(version_of(7, 3, &[0; 100]), Ok(0));
    }

    #[test]
    fn states_follow_writes_and_truncations() {
        let state = BlocksState::default().written(0, &[1, 2], 100);
        assert_eq!(state, BlocksState { size: 4196, versions: vec![1, 2] });
        assert_eq!(state.written(3, &[4], 4096), BlocksState { size: 16384, versions: vec![1, 2, 0, 4] });
        assert_eq!(state.resized(50), BlocksState { size: 50, versions: vec![1] });
        assert_eq!(state.written(0, &[9], 4096), BlocksState { size: 4196, versions: vec![9, 2] });
    }
}

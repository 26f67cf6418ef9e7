//! The fs-verity digest of the content of a file: SHA-256 of a descriptor that has the root hash of
//! a Merkle tree of blocks, as the kernel's documentation of fs-verity describes it.

use sha2::{Digest, Sha256};

/// The length of a block of the file and of the Merkle tree in bytes.
const BLOCK: usize = 4096;

type Hash = [u8; 32];

/// Computes the digest from the content of a file, which it takes in order.
#[derive(Debug, Default)]
pub(crate) struct Verity {
    /// The block that is being filled of the file, and of each level of the Merkle tree above it.
    levels: Vec<Vec<u8>>,
    size: u64,
}

impl Verity {
    /// Takes the next bytes.
    pub(crate) fn update(&mut self, data: &[u8]) {
        self.size += data.len() as u64;
        self.add(0, data);
    }

    fn add(&mut self, level: usize, mut data: &[u8]) {
        if self.levels.len() == level {
            self.levels.push(Vec::with_capacity(BLOCK));
        }
        while !data.is_empty() {
            // A full block is hashed only when there are further bytes: if it stays the only block
            // of its level, its hash is the root.
            if self.levels[level].len() == BLOCK {
                let hash = hash_of(&mut self.levels[level]);
                self.add(level + 1, &hash);
            }
            let block = &mut self.levels[level];
            let (now, rest) = data.split_at(data.len().min(BLOCK - block.len()));
            block.extend_from_slice(now);
            data = rest;
        }
    }

    /// Returns the digest of all that was taken.
    pub(crate) fn finish(mut self) -> Hash {
        let mut root = Hash::default();
        let mut level = 0;
        while level < self.levels.len() {
            root = hash_of(&mut self.levels[level]);
            if level + 1 < self.levels.len() {
                self.add(level + 1, &root);
            }
            level += 1;
        }
        let mut descriptor = [0; 256];
        // These are the version, SHA-256, and the binary logarithm of the block size.
        descriptor[..3].copy_from_slice(&[1, 1, 12]);
        descriptor[8..16].copy_from_slice(&self.size.to_le_bytes());
        descriptor[16..48].copy_from_slice(&root);
        Sha256::digest(descriptor).into()
    }
}

/// Hashes a block, filled up with zeros, and empties it.
fn hash_of(block: &mut Vec<u8>) -> Hash {
    block.resize(BLOCK, 0);
    let hash = Sha256::digest(&*block);
    block.clear();
    hash.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_program_fsverity() {
        for (len, expected) in [
            (0, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95"),
            (1, "b803429503d95915829b29fdbc8bbad142f3abfd11b1cadf5526582e685c0551"),
            (4096, "13e9b8848ae484a36acb3f3cac0ceb2f7601e96633d15c92f9bd3dd44e492157"),
            (4097, "b0d074abef4d544404facfab6ba242f6a8ccbde90f1325cd286f3c8aa8d0f8aa"),
            (524_288, "d82861203d50ae9b60948504a704f35f5118bd229aeb1a22d6dae47b1767c4c4"),
            (524_289, "4dc6905041c9c4ee73e13b53f63f5d289c46da359b664a965ead7f8cc4d799d4"),
            (3_000_000, "806637cc95983f0e50918d26413ef0a35b7cd8ed7c16e2c5ff140ea87bdc8f58"),
            (70_000_000, "a2d12f099406b506c1a3fa76f16ce203f6251d4b90b94a98c9a557fa2f1af0d8"),
        ] {
            let content: Vec<u8> = (0..len).map(|at: u32| (at % 251) as u8).collect();
            let mut verity = Verity::default();
            content.chunks(10_007).for_each(|part| verity.update(part));
            let digest = verity.finish().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
            assert_eq!(digest, expected, "{len}");
        }
    }
}

//! The four checksum algorithms of metadata blocks and data sectors.

use crate::{Error, Result};

/// Bytes of the largest checksum, and of the checksum field of superblock and node headers.
pub const MAX_CHECKSUM_SIZE: usize = 32;

/// The checksum algorithm of a volume, which is fixed when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumType {
    /// CRC-32C, 4 bytes.
    #[default]
    Crc32c,
    /// xxHash64 with seed 0, 8 bytes.
    XxHash64,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE2b-256, 32 bytes.
    Blake2b,
}

/// A checksum; the bytes past the type's size are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub [u8; MAX_CHECKSUM_SIZE]);

impl ChecksumType {
    /// All types.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::XxHash64, Self::Sha256, Self::Blake2b];

    /// The type with this number in the superblock.
    pub fn from_raw(raw: u16) -> Result<Self> {
        Self::ALL.get(usize::from(raw)).copied().ok_or(Error::UnknownChecksumType(raw))
    }

    /// Returns the number in the superblock.
    pub fn raw(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::XxHash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// Bytes of one checksum.
    pub fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::XxHash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// Returns the name that mkfs uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::XxHash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    /// Returns the checksum of `data`.
    pub fn compute(self, data: &[u8]) -> Checksum {
        let mut sum = [0; MAX_CHECKSUM_SIZE];
        match self {
            Self::Crc32c => sum[..4].copy_from_slice(&crc32c::crc32c(data).to_le_bytes()),
            Self::XxHash64 => sum[..8].copy_from_slice(&xxhash64(data).to_le_bytes()),
            Self::Sha256 => {
                use sha2::Digest;
                sum.copy_from_slice(&sha2::Sha256::digest(data));
            }
            Self::Blake2b => {
                let hash = blake2b_simd::Params::new().hash_length(MAX_CHECKSUM_SIZE).hash(data);
                sum.copy_from_slice(hash.as_bytes());
            }
        }
        Checksum(sum)
    }

    /// Returns whether `stored` (at least [`Self::size`] bytes) is the checksum of `data`.
    pub fn matches(self, data: &[u8], stored: &[u8]) -> bool {
        stored.get(..self.size()) == Some(&self.compute(data).0[..self.size()])
    }
}

/// XXHASH64 with seed 0, as a number.
pub fn xxhash64(data: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(data, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vectors() {
        assert_eq!(ChecksumType::Crc32c.compute(b"123456789").0[..4], 0xe306_9283_u32.to_le_bytes());
        assert_eq!(ChecksumType::XxHash64.compute(b"").0[..8], 0xef46_db37_51d8_e999_u64.to_le_bytes());
        assert_eq!(ChecksumType::Sha256.compute(b"").0[..4], [0xe3, 0xb0, 0xc4, 0x42]);
        assert_eq!(ChecksumType::Blake2b.compute(b"").0[..4], [0x0e, 0x57, 0x51, 0xc0]);
        assert!(!ChecksumType::Crc32c.matches(b"123456789", &[0; 32]));
    }
}

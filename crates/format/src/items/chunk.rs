//! `CHUNK_ITEM`: the mapping of a range of logical addresses to devices. Key `(256 CHUNK_ITEM
//! logical)`.

use zerocopy::{FromBytes, IntoBytes};

use super::record::record;
use crate::{DeviceId, Error, ItemType, Key, KeyBytes, Physical, Result, Uuid};

/// The bytes of a stripe on one device before the next device follows.
pub const STRIPE_LEN: u64 = 64 << 10;
/// The most stripes of a new chunk: one that a superblock can hold as a system chunk.
pub const MAX_STRIPES: usize = 32;

/// Type and profile of a chunk or block group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockGroupFlags(pub u64);

impl BlockGroupFlags {
    /// Holds file data.
    pub const DATA: Self = Self(1 << 0);
    /// Holds the chunk tree.
    pub const SYSTEM: Self = Self(1 << 1);
    /// Holds all other trees.
    pub const METADATA: Self = Self(1 << 2);
    /// Striped, no copies.
    pub const RAID0: Self = Self(1 << 3);
    /// Two copies on two devices.
    pub const RAID1: Self = Self(1 << 4);
    /// Two copies on one device.
    pub const DUP: Self = Self(1 << 5);
    /// Striped over pairs.
    pub const RAID10: Self = Self(1 << 6);
    /// One parity.
    pub const RAID5: Self = Self(1 << 7);
    /// Two parities.
    pub const RAID6: Self = Self(1 << 8);
    /// Three copies.
    pub const RAID1C3: Self = Self(1 << 9);
    /// Four copies.
    pub const RAID1C4: Self = Self(1 << 10);
    /// All types.
    pub const TYPE_MASK: Self = Self(0b111);
    /// All profiles; none of them set means single.
    pub const PROFILE_MASK: Self = Self(0xff << 3);

    /// Returns whether all of `other`'s bits are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits of both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the type bits.
    #[must_use]
    pub fn types(self) -> Self {
        Self(self.0 & Self::TYPE_MASK.0)
    }

    /// Returns the profile bits.
    #[must_use]
    pub fn profile(self) -> Self {
        Self(self.0 & Self::PROFILE_MASK.0)
    }

    /// Returns the profile's name as `btrfs filesystem df` shows it.
    pub fn profile_name(self) -> &'static str {
        match self.profile() {
            Self(0) => "single",
            Self::RAID0 => "RAID0",
            Self::RAID1 => "RAID1",
            Self::DUP => "DUP",
            Self::RAID10 => "RAID10",
            Self::RAID5 => "RAID5",
            Self::RAID6 => "RAID6",
            Self::RAID1C3 => "RAID1C3",
            Self::RAID1C4 => "RAID1C4",
            _ => "mixed profiles",
        }
    }

    /// Returns the type's name as `btrfs filesystem df` shows it.
    pub fn type_name(self) -> &'static str {
        match self.types() {
            Self::DATA => "Data",
            Self::SYSTEM => "System",
            Self::METADATA => "Metadata",
            Self(0b101) => "Data+Metadata",
            _ => "unknown",
        }
    }
}

/// Where one stripe of a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The device.
    pub devid: DeviceId,
    /// Where on it.
    pub offset: Physical,
    /// The device's id.
    pub dev_uuid: Uuid,
}

record! {
    /// The fixed part of a chunk item.
    ChunkHeader / ChunkHeaderBytes [48] "chunk item" {
        /// Bytes of logical addresses.
        length: u64,
        /// 2, the extent tree.
        owner: u64,
        /// Always 64 KiB.
        stripe_len: u64,
        /// Type and profile.
        flags: u64,
        /// Alignment of I/O.
        io_align: u32,
        /// Width of I/O.
        io_width: u32,
        /// The sector size.
        sector_size: u32,
        /// Stripes that follow.
        num_stripes: u16,
        /// 2 for RAID10, else 1 or 0.
        sub_stripes: u16,
    }
}

record! {
    /// A stripe in a chunk item.
    RawStripe / RawStripeBytes [32] "chunk stripe" {
        /// The device.
        devid: DeviceId,
        /// Where on it.
        offset: Physical,
        /// The device's id.
        dev_uuid: Uuid,
    }
}

/// A chunk's mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkItem {
    /// Bytes of logical addresses.
    pub length: u64,
    /// 2, the extent tree.
    pub owner: u64,
    /// Always 64 KiB.
    pub stripe_len: u64,
    /// Type and profile.
    pub flags: BlockGroupFlags,
    /// Alignment of I/O.
    pub io_align: u32,
    /// Width of I/O.
    pub io_width: u32,
    /// The sector size.
    pub sector_size: u32,
    /// 2 for RAID10.
    pub sub_stripes: u16,
    /// The stripes, at least one.
    pub stripes: Vec<Stripe>,
}

impl ChunkItem {
    /// Reads the chunk at the start of `bytes`. Also returns how many bytes it takes.
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, usize)> {
        let header = ChunkHeader::parse_prefix(bytes)?;
        let flags = BlockGroupFlags(header.flags);
        let bad = |what, value| Err(Error::BadValue { what, value });
        if header.stripe_len != STRIPE_LEN {
            return bad("chunk stripe_len", header.stripe_len);
        }
        if header.num_stripes == 0 {
            return bad("chunk num_stripes", 0);
        }
        if header.length == 0 || header.length >= u64::from(u32::MAX) << 16 {
            return bad("chunk length", header.length);
        }
        if flags.types().0 == 0 || flags.profile().0.count_ones() > 1 {
            return bad("chunk type", header.flags);
        }
        let stripes: Result<Vec<_>> = (0..usize::from(header.num_stripes))
            .map(|index| {
                let at = ChunkHeader::SIZE + index * RawStripe::SIZE;
                let raw = RawStripe::parse_prefix(bytes.get(at..).unwrap_or_default())?;
                Ok(Stripe { devid: raw.devid, offset: raw.offset, dev_uuid: raw.dev_uuid })
            })
            .collect();
        let chunk = Self {
            length: header.length,
            owner: header.owner,
            stripe_len: header.stripe_len,
            flags,
            io_align: header.io_align,
            io_width: header.io_width,
            sector_size: header.sector_size,
            sub_stripes: header.sub_stripes,
            stripes: stripes?,
        };
        let size = chunk.encoded_len();
        Ok((chunk, size))
    }

    /// Reads a chunk item.
    pub fn parse(item: &[u8]) -> Result<Self> {
        let (chunk, size) = Self::parse_prefix(item)?;
        if size == item.len() {
            Ok(chunk)
        } else {
            Err(Error::WrongLength { what: "chunk item", need: size, have: item.len() })
        }
    }

    /// Returns the size of the item in bytes.
    pub fn encoded_len(&self) -> usize {
        ChunkHeader::SIZE + self.stripes.len() * RawStripe::SIZE
    }

    /// Returns the item's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = ChunkHeader {
            length: self.length,
            owner: self.owner,
            stripe_len: self.stripe_len,
            flags: self.flags.0,
            io_align: self.io_align,
            io_width: self.io_width,
            sector_size: self.sector_size,
            num_stripes: self.stripes.len() as u16,
            sub_stripes: self.sub_stripes,
        };
        let mut item = header.to_bytes().to_vec();
        for stripe in &self.stripes {
            let raw = RawStripe { devid: stripe.devid, offset: stripe.offset, dev_uuid: stripe.dev_uuid };
            item.extend_from_slice(&raw.to_bytes());
        }
        item
    }
}

/// Returns the chunks in a superblock's `sys_chunk_array`.
pub fn sys_chunks(array: &[u8]) -> Result<Vec<(Key, ChunkItem)>> {
    let mut rest = array;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let (key, after_key) = KeyBytes::read_from_prefix(rest).map_err(|_| Error::TooShort {
            what: "system chunk array",
            need: size_of::<KeyBytes>(),
            have: rest.len(),
        })?;
        let key = Key::from(key);
        if key.item_type != ItemType::CHUNK_ITEM {
            return Err(Error::UnexpectedItem(key.item_type));
        }
        let (chunk, size) = ChunkItem::parse_prefix(after_key)?;
        chunks.push((key, chunk));
        rest = &after_key[size..];
    }
    Ok(chunks)
}

/// Appends a chunk to a `sys_chunk_array`.
pub fn encode_sys_chunk(array: &mut Vec<u8>, key: Key, chunk: &ChunkItem) {
    array.extend_from_slice(KeyBytes::from(key).as_bytes());
    array.extend_from_slice(&chunk.to_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_parsed_as_written_also_from_the_superblock_array() {
        let stripe = Stripe { devid: DeviceId(1), offset: Physical(1 << 20), dev_uuid: Uuid([9; 16]) };
        let chunk = ChunkItem {
            length: 8 << 20,
            owner: 2,
            stripe_len: STRIPE_LEN,
            flags: BlockGroupFlags::SYSTEM.with(BlockGroupFlags::DUP),
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 1,
            stripes: vec![stripe, Stripe { offset: Physical(9 << 20), ..stripe }],
        };
        assert_eq!(ChunkItem::parse(&chunk.to_bytes()), Ok(chunk.clone()));
        let key = Key::new(256, ItemType::CHUNK_ITEM, 1 << 20);
        let mut array = Vec::new();
        encode_sys_chunk(&mut array, key, &chunk);
        encode_sys_chunk(&mut array, key, &chunk);
        assert_eq!(sys_chunks(&array).unwrap().len(), 2);
        assert!(sys_chunks(&array[..array.len() - 1]).is_err());
    }
}

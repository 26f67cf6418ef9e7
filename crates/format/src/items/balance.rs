//! The arguments of a balance, in the item of a balance in progress, key
//! `(BALANCE TEMPORARY_ITEM 0)`, and in the arguments of its ioctls.

use super::slice;
use crate::Result;

/// Flags of a balance.
pub struct BalanceFlags;

impl BalanceFlags {
    /// Data chunks are balanced.
    pub const DATA: u64 = 1 << 0;
    /// System chunks are balanced.
    pub const SYSTEM: u64 = 1 << 1;
    /// Metadata chunks are balanced.
    pub const METADATA: u64 = 1 << 2;
    /// A conversion may reduce redundancy.
    pub const FORCE: u64 = 1 << 3;
    /// An interrupted balance is resumed.
    pub const RESUME: u64 = 1 << 4;
}

/// Filters of a balance, which say which fields of its arguments count.
pub struct BalanceFilters;

impl BalanceFilters {
    /// Chunks of these profiles.
    pub const PROFILES: u64 = 1 << 0;
    /// Chunks with less use.
    pub const USAGE: u64 = 1 << 1;
    /// Chunks on this device.
    pub const DEVID: u64 = 1 << 2;
    /// Chunks in this range of the device.
    pub const DRANGE: u64 = 1 << 3;
    /// Chunks in this range of addresses.
    pub const VRANGE: u64 = 1 << 4;
    /// At most this many chunks.
    pub const LIMIT: u64 = 1 << 5;
    /// A number of chunks in this range.
    pub const LIMIT_RANGE: u64 = 1 << 6;
    /// Chunks with a number of stripes in this range.
    pub const STRIPES_RANGE: u64 = 1 << 7;
    /// The new chunks have another profile.
    pub const CONVERT: u64 = 1 << 8;
    /// Chunks that already have the new profile stay.
    pub const SOFT: u64 = 1 << 9;
    /// Chunks with a use in this range.
    pub const USAGE_RANGE: u64 = 1 << 10;
}

/// The bit for the profile "single" in fields where no bit means no profile.
pub const SINGLE: u64 = 1 << 48;

/// The arguments for the chunks of one type: which of them a balance takes, and their new profile.
/// A field without its filter has no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceArgs {
    /// Bits of profiles.
    pub profiles: u64,
    /// The percentage of use, or the least (low half) and the most (high half).
    pub usage: u64,
    /// A device.
    pub devid: u64,
    /// A range of the device.
    pub device_range: (u64, u64),
    /// A range of addresses.
    pub range: (u64, u64),
    /// The new profile.
    pub target: u64,
    /// [`BalanceFilters`].
    pub filters: u64,
    /// The number of chunks, or the least (low half) and the most (high half).
    pub limit: u64,
    /// The least (low half) and the most (high half) stripes.
    pub stripes: u64,
}

impl BalanceArgs {
    /// The size in bytes.
    pub const SIZE: usize = 136;

    /// Reads the structure.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bytes = slice(bytes, 0, Self::SIZE, "balance arguments")?;
        let number = |index: usize| {
            let field = bytes[index * 8..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(field)
        };
        Ok(Self {
            profiles: number(0),
            usage: number(1),
            devid: number(2),
            device_range: (number(3), number(4)),
            range: (number(5), number(6)),
            target: number(7),
            filters: number(8),
            limit: number(9),
            stripes: number(10),
        })
    }

    /// Returns its bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let numbers = [
            self.profiles,
            self.usage,
            self.devid,
            self.device_range.0,
            self.device_range.1,
            self.range.0,
            self.range.1,
            self.target,
            self.filters,
            self.limit,
            self.stripes,
        ];
        for (field, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// A balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceItem {
    /// [`BalanceFlags`].
    pub flags: u64,
    /// The arguments for data chunks.
    pub data: BalanceArgs,
    /// The arguments for metadata chunks.
    pub metadata: BalanceArgs,
    /// The arguments for system chunks.
    pub system: BalanceArgs,
}

impl BalanceItem {
    /// The size in bytes, including unused bytes.
    pub const SIZE: usize = 448;

    /// Reads the structure.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "balance item";
        let args = |number: usize| {
            let at = 8 + number * BalanceArgs::SIZE;
            BalanceArgs::parse(slice(bytes, at, BalanceArgs::SIZE, WHAT)?)
        };
        let flags = slice(bytes, 0, 8, WHAT)?.first_chunk().copied().unwrap_or_default();
        Ok(Self { flags: u64::from_le_bytes(flags), data: args(0)?, metadata: args(1)?, system: args(2)? })
    }

    /// Returns its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.flags.to_le_bytes().to_vec();
        for args in [self.data, self.metadata, self.system] {
            bytes.extend(args.to_bytes());
        }
        bytes.resize(Self::SIZE, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balance_is_parsed_as_written() {
        let args = |from: u64| BalanceArgs {
            profiles: from,
            usage: from + 1,
            devid: from + 2,
            device_range: (from + 3, from + 4),
            range: (from + 5, from + 6),
            target: from + 7,
            filters: from + 8,
            limit: from + 9,
            stripes: from + 10,
        };
        let balance = BalanceItem { flags: 7, data: args(10), metadata: args(30), system: args(50) };
        assert_eq!(BalanceItem::parse(&balance.to_bytes()), Ok(balance));
        assert_eq!(balance.to_bytes().len(), BalanceItem::SIZE);
        assert!(BalanceItem::parse(&balance.to_bytes()[..400]).is_err());
    }
}

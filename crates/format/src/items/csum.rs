//! `EXTENT_CSUM`: checksums of adjacent data sectors. Key `(-10 EXTENT_CSUM address of the first)`.

use crate::{ChecksumType, Error, Logical, Result};

/// Checksums of adjacent sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsumItem<'a> {
    start: Logical,
    sector_size: u32,
    checksum_size: usize,
    sums: &'a [u8],
}

impl<'a> CsumItem<'a> {
    /// Reads the item whose key's offset is `start`.
    pub fn parse(start: Logical, item: &'a [u8], checksum: ChecksumType, sector_size: u32) -> Result<Self> {
        let checksum_size = checksum.size();
        if item.is_empty() || !item.len().is_multiple_of(checksum_size) {
            return Err(Error::WrongLength { what: "checksum item", need: checksum_size, have: item.len() });
        }
        if !start.0.is_multiple_of(sector_size.max(1).into()) {
            return Err(Error::BadValue { what: "checksum item address", value: start.0 });
        }
        Ok(Self { start, sector_size, checksum_size, sums: item })
    }

    /// Returns the address of the first sector.
    pub fn start(&self) -> Logical {
        self.start
    }

    /// Returns the address after the last sector.
    pub fn end(&self) -> Logical {
        self.start.plus((self.sums.len() / self.checksum_size) as u64 * u64::from(self.sector_size))
    }

    /// Returns the checksum of the sector at `address`, if it is here.
    pub fn get(&self, address: Logical) -> Option<&'a [u8]> {
        let sector = address.0.checked_sub(self.start.0)? / u64::from(self.sector_size);
        let at = usize::try_from(sector).ok()?.checked_mul(self.checksum_size)?;
        self.sums.get(at..at.checked_add(self.checksum_size)?)
    }
}

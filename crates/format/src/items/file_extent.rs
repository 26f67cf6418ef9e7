//! `EXTENT_DATA`: a piece of a file's content. Key `(ino EXTENT_DATA file offset)`.

use super::slice;
use crate::{Error, Generation, Logical, Result};

/// Where the content of an inline extent starts in its item.
pub const INLINE_DATA_OFFSET: usize = 21;
const REGULAR_SIZE: usize = 53;
const WHAT: &str = "file extent item";

/// How an extent's data is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Compression {
    #[default]
    None,
    Zlib,
    Lzo,
    Zstd,
}

impl Compression {
    /// The algorithm with this number.
    pub fn from_raw(raw: u8) -> Result<Self> {
        match raw {
            0 => Ok(Self::None),
            1 => Ok(Self::Zlib),
            2 => Ok(Self::Lzo),
            3 => Ok(Self::Zstd),
            _ => Err(Error::BadValue { what: "compression type", value: raw.into() }),
        }
    }

    /// Returns the number on disk.
    pub fn raw(self) -> u8 {
        self as u8
    }
}

/// Where a file extent's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileExtentKind<'a> {
    /// In the item itself, perhaps compressed.
    Inline(&'a [u8]),
    /// On disk; a hole if `disk_bytenr` is 0.
    Regular {
        /// Start of the extent on disk; 0 for a hole.
        disk_bytenr: Logical,
        /// Bytes of the whole extent on disk.
        disk_num_bytes: u64,
        /// Where in the (unpacked) extent this piece starts, in bytes.
        offset: u64,
        /// Bytes of the file that this piece covers.
        num_bytes: u64,
        /// It is reserved space, which reads as zeros.
        prealloc: bool,
    },
}

/// A piece of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent<'a> {
    /// The transaction that wrote the extent.
    pub generation: Generation,
    /// Bytes of the whole extent when unpacked.
    pub ram_bytes: u64,
    /// How the data is packed.
    pub compression: Compression,
    /// Where the data is.
    pub kind: FileExtentKind<'a>,
}

impl<'a> FileExtent<'a> {
    /// Reads an item.
    pub fn parse(item: &'a [u8]) -> Result<Self> {
        let word = |at: usize| -> Result<u64> {
            let mut field = [0; 8];
            field.copy_from_slice(slice(item, at, 8, WHAT)?);
            Ok(u64::from_le_bytes(field))
        };
        let bytes = slice(item, 0, INLINE_DATA_OFFSET, WHAT)?;
        if bytes[17] != 0 || bytes[18] != 0 || bytes[19] != 0 {
            return Err(Error::BadValue { what: "file extent encoding", value: bytes[17].into() });
        }
        let kind = match bytes[20] {
            0 => FileExtentKind::Inline(&item[INLINE_DATA_OFFSET..]),
            raw @ (1 | 2) => {
                if item.len() != REGULAR_SIZE {
                    return Err(Error::WrongLength { what: WHAT, need: REGULAR_SIZE, have: item.len() });
                }
                FileExtentKind::Regular {
                    disk_bytenr: Logical(word(21)?),
                    disk_num_bytes: word(29)?,
                    offset: word(37)?,
                    num_bytes: word(45)?,
                    prealloc: raw == 2,
                }
            }
            raw => return Err(Error::BadValue { what: "file extent type", value: raw.into() }),
        };
        Ok(Self {
            generation: Generation(word(0)?),
            ram_bytes: word(8)?,
            compression: Compression::from_raw(bytes[16])?,
            kind,
        })
    }

    /// Returns the item's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut item = Vec::with_capacity(REGULAR_SIZE);
        item.extend_from_slice(&self.generation.0.to_le_bytes());
        item.extend_from_slice(&self.ram_bytes.to_le_bytes());
        item.extend_from_slice(&[self.compression.raw(), 0, 0, 0]);
        match self.kind {
            FileExtentKind::Inline(data) => {
                item.push(0);
                item.extend_from_slice(data);
            }
            FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc } => {
                item.push(1 + u8::from(prealloc));
                for field in [disk_bytenr.0, disk_num_bytes, offset, num_bytes] {
                    item.extend_from_slice(&field.to_le_bytes());
                }
            }
        }
        item
    }

    /// Returns how many bytes of the file the piece covers (for inline pieces the unpacked length).
    pub fn len(&self) -> u64 {
        match self.kind {
            FileExtentKind::Inline(_) => self.ram_bytes,
            FileExtentKind::Regular { num_bytes, .. } => num_bytes,
        }
    }

    /// Returns whether the piece covers nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_parsed_as_written() {
        let inline = FileExtent {
            generation: Generation(7),
            ram_bytes: 5,
            compression: Compression::None,
            kind: FileExtentKind::Inline(b"hello"),
        };
        assert_eq!(FileExtent::parse(&inline.to_bytes()), Ok(inline));
        let regular = FileExtent {
            kind: FileExtentKind::Regular {
                disk_bytenr: Logical(4096),
                disk_num_bytes: 8192,
                offset: 4096,
                num_bytes: 4096,
                prealloc: true,
            },
            ..inline
        };
        assert_eq!(FileExtent::parse(&regular.to_bytes()), Ok(regular));
        assert!(FileExtent::parse(&regular.to_bytes()[..52]).is_err());
        assert!(FileExtent::parse(&[0; 20]).is_err());
    }
}

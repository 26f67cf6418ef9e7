//! The header of an entry of a tar archive: names and numbers in all forms (v7, ustar, pax, GNU).
//! tar(5) of libarchive and POSIX's pax describe them.

use tar::Header;
use ubtrfs::format::items::Timespec;
use ubtrfs::format::posix::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG};

use crate::error::{Error, Result};

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Regular,
    /// Another name of a file.
    Link,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
}

impl Kind {
    /// The kind of an entry by the type in its header. By POSIX, an entry of an unknown type is a
    /// regular file.
    pub fn of(byte: u8) -> Self {
        match byte {
            b'1' => Self::Link,
            b'2' => Self::Symlink,
            b'3' => Self::Char,
            b'4' => Self::Block,
            // GNU tar writes 'D' in incremental archives; the data are the names in the directory.
            b'5' | b'D' => Self::Directory,
            b'6' => Self::Fifo,
            _ => Self::Regular,
        }
    }

    /// The type bits in the mode of an inode; a link has no type of its own.
    pub fn type_bits(self) -> u32 {
        match self {
            Self::Regular | Self::Link => S_IFREG,
            Self::Directory => S_IFDIR,
            Self::Symlink => S_IFLNK,
            Self::Char => S_IFCHR,
            Self::Block => S_IFBLK,
            Self::Fifo => S_IFIFO,
        }
    }
}

/// The fields of a header.
#[derive(Debug)]
pub struct Fields<'a> {
    header: &'a Header,
    bytes: &'a [u8; 512],
}

impl<'a> Fields<'a> {
    pub fn of(header: &'a Header) -> Self {
        Self { header, bytes: header.as_bytes() }
    }

    pub fn path(&self) -> Vec<u8> {
        self.header.path_bytes().into_owned()
    }

    pub fn target(&self) -> Vec<u8> {
        self.header.link_name_bytes().map_or_else(Vec::new, std::borrow::Cow::into_owned)
    }

    pub fn kind(&self) -> u8 {
        self.bytes[156]
    }

    /// The bytes of data after the header, by its size field.
    pub fn size(&self) -> Result<u64> {
        self.unsigned(124..136, "size")
    }

    pub fn mode(&self) -> Result<u32> {
        Ok(self.unsigned(100..108, "permissions")? as u32 & 0o7777)
    }

    pub fn uid(&self) -> Result<u32> {
        self.id(108..116)
    }

    pub fn gid(&self) -> Result<u32> {
        self.id(116..124)
    }

    pub fn mtime(&self) -> Result<Timespec> {
        let seconds = number(&self.bytes[136..148]).ok_or_else(|| malformed("time"))?;
        Ok(Timespec { sec: seconds as u64, nsec: 0 })
    }

    /// The number of a device node in btrfs's form.
    pub fn device(&self) -> Result<u64> {
        if self.header.as_ustar().is_none() && self.header.as_gnu().is_none() {
            return Ok(0);
        }
        let (major, minor) = (self.unsigned(329..337, "device number")?, self.unsigned(337..345, "device number")?);
        if major >= 1 << 12 || minor >= 1 << 20 {
            return Err(Error::Refused(format!("the archive has a device with the numbers {major}, {minor}")));
        }
        Ok(major << 20 | minor)
    }

    fn unsigned(&self, field: std::ops::Range<usize>, what: &str) -> Result<u64> {
        number(&self.bytes[field]).and_then(|number| u64::try_from(number).ok()).ok_or_else(|| malformed(what))
    }

    fn id(&self, field: std::ops::Range<usize>) -> Result<u32> {
        let id = self.unsigned(field, "owner")?;
        // The last number means that there is no id.
        let id = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        id.ok_or_else(|| Error::Refused("the archive has an owner with a number that nobody has".into()))
    }
}

fn malformed(what: &str) -> Error {
    Error::Refused(format!("the archive has an entry with a malformed {what}"))
}

/// Parses a number of a header: octal digits, or binary if the first bit is set, as GNU tar and
/// star write numbers with too many digits and negative numbers. A blank field means 0, which
/// archives in package registries have.
pub fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // The second bit is the sign.
        let sign = if first & 0x40 == 0 { i128::from(first & 0x3f) } else { i128::from(first | 0x80) - 256 };
        let value = rest.iter().try_fold(sign, |value, byte| value.checked_mul(256)?.checked_add(i128::from(*byte)));
        return i64::try_from(value?).ok();
    }
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default().trim_ascii();
    text.iter().try_fold(0_i64, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary_or_blank() {
        let binary = |bytes: &[u8]| {
            let mut field = vec![0; 12 - bytes.len()];
            field.extend(bytes);
            field[0] |= 0x80;
            field
        };
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"644     ", Some(0o644)),
            (b"        ", Some(0)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"77777777", Some(0o77_777_777)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"00008   ", None),
            (b"-1      ", None),
            (b"12 34\0  ", None),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
        assert_eq!(number(&binary(&[1, 0, 0, 0, 0])), Some(1 << 32));
        assert_eq!(number(&binary(&[0x7f, 255, 255, 255, 255, 255, 255, 255])), Some(i64::MAX));
        assert_eq!(number(&binary(&[0x80, 0, 0, 0, 0, 0, 0, 0])), None);
        assert_eq!(number(&binary(&[1; 12])), None);
    }
}

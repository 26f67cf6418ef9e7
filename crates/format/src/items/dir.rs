//! `DIR_ITEM`, `DIR_INDEX` and `XATTR_ITEM`: a location, a name and, for xattrs, a value. Several
//! entries share an item if their hashes collide.

use zerocopy::IntoBytes;

use super::slice;
use crate::posix;
use crate::{Error, Generation, Key, KeyBytes, Result};

/// The longest name of an entry or an xattr.
pub const MAX_NAME_LEN: usize = 255;

/// Bytes of an entry or xattr before its name: location, transaction, lengths and type.
pub const DIR_ENTRY_HEADER: usize = 30;
const WHAT: &str = "directory item";

/// The type of an inode in its directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FileType {
    Unknown,
    Regular,
    Directory,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
    Symlink,
    Xattr,
}

impl FileType {
    const ALL: [Self; 9] = [
        Self::Unknown,
        Self::Regular,
        Self::Directory,
        Self::CharDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
        Self::Xattr,
    ];

    /// Returns the type with this number. The top bit means that the name is encrypted, which no
    /// kernel writes yet.
    pub fn from_raw(raw: u8) -> Result<Self> {
        Self::ALL
            .get(usize::from(raw))
            .copied()
            .ok_or(Error::BadValue { what: "directory item type", value: raw.into() })
    }

    /// Returns the number on disk.
    pub fn raw(self) -> u8 {
        self as u8
    }

    /// The type of an inode with this mode.
    pub fn from_mode(mode: u32) -> Self {
        match mode & posix::S_IFMT {
            posix::S_IFREG => Self::Regular,
            posix::S_IFDIR => Self::Directory,
            posix::S_IFCHR => Self::CharDevice,
            posix::S_IFBLK => Self::BlockDevice,
            posix::S_IFIFO => Self::Fifo,
            posix::S_IFSOCK => Self::Socket,
            posix::S_IFLNK => Self::Symlink,
            _ => Self::Unknown,
        }
    }

    /// Returns the type bits of a mode, or 0 for [`Self::Unknown`] and [`Self::Xattr`].
    pub fn type_bits(self) -> u32 {
        match self {
            Self::Regular => posix::S_IFREG,
            Self::Directory => posix::S_IFDIR,
            Self::CharDevice => posix::S_IFCHR,
            Self::BlockDevice => posix::S_IFBLK,
            Self::Fifo => posix::S_IFIFO,
            Self::Socket => posix::S_IFSOCK,
            Self::Symlink => posix::S_IFLNK,
            Self::Unknown | Self::Xattr => 0,
        }
    }
}

/// An entry of a directory, or an xattr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The key of what the name refers to: an inode item or a subvolume's root item; zero for
    /// xattrs.
    pub location: Key,
    /// The transaction that made the entry.
    pub transid: Generation,
    /// The type of what the name refers to.
    pub file_type: FileType,
    /// The name.
    pub name: &'a [u8],
    /// The value of an xattr; empty for entries.
    pub value: &'a [u8],
}

/// Returns the entries in an item. Ends after the first error.
pub fn dir_entries(mut item: &[u8]) -> impl Iterator<Item = Result<DirEntry<'_>>> {
    std::iter::from_fn(move || {
        if item.is_empty() {
            return None;
        }
        let parsed = parse_one(item);
        item = parsed.as_ref().map_or(&[][..], |(_, rest)| rest);
        Some(parsed.map(|(entry, _)| entry))
    })
}

fn parse_one(item: &[u8]) -> Result<(DirEntry<'_>, &[u8])> {
    let header = slice(item, 0, DIR_ENTRY_HEADER, WHAT)?;
    let (location, rest) = <KeyBytes as zerocopy::FromBytes>::read_from_prefix(header)
        .map_err(|_| Error::TooShort { what: WHAT, need: DIR_ENTRY_HEADER, have: item.len() })?;
    let mut transid = [0; 8];
    transid.copy_from_slice(&rest[..8]);
    let value_len = usize::from(u16::from_le_bytes([rest[8], rest[9]]));
    let name_len = usize::from(u16::from_le_bytes([rest[10], rest[11]]));
    if name_len == 0 || name_len > MAX_NAME_LEN {
        return Err(Error::BadValue { what: "directory item name length", value: name_len as u64 });
    }
    let name = slice(item, DIR_ENTRY_HEADER, name_len, WHAT)?;
    let value = slice(item, DIR_ENTRY_HEADER + name_len, value_len, WHAT)?;
    let entry = DirEntry {
        location: location.into(),
        transid: Generation(u64::from_le_bytes(transid)),
        file_type: FileType::from_raw(rest[12])?,
        name,
        value,
    };
    Ok((entry, &item[DIR_ENTRY_HEADER + name_len + value_len..]))
}

/// Appends an entry to an item.
pub fn encode_dir_entry(item: &mut Vec<u8>, entry: &DirEntry<'_>) {
    item.extend_from_slice(KeyBytes::from(entry.location).as_bytes());
    item.extend_from_slice(&entry.transid.0.to_le_bytes());
    item.extend_from_slice(&(entry.value.len() as u16).to_le_bytes());
    item.extend_from_slice(&(entry.name.len() as u16).to_le_bytes());
    item.push(entry.file_type.raw());
    item.extend_from_slice(entry.name);
    item.extend_from_slice(entry.value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ItemType;

    #[test]
    fn entries_are_parsed_as_written_and_a_truncated_item_is_an_error() {
        let first = DirEntry {
            location: Key::new(257, ItemType::INODE_ITEM, 0),
            transid: Generation(8),
            file_type: FileType::Regular,
            name: b"file",
            value: b"",
        };
        let second = DirEntry { name: b"user.x", value: b"value", file_type: FileType::Xattr, ..first };
        let mut item = Vec::new();
        encode_dir_entry(&mut item, &first);
        encode_dir_entry(&mut item, &second);
        assert_eq!(dir_entries(&item).collect::<Result<Vec<_>>>(), Ok(vec![first, second]));
        for end in 1..item.len() {
            if end != DIR_ENTRY_HEADER + 4 {
                assert!(dir_entries(&item[..end]).any(|entry| entry.is_err()), "end at {end}");
            }
        }
    }
}

//! `INODE_REF` and `INODE_EXTREF`: the names of an inode. Several may share an item.

use super::slice;
use crate::{DirIndex, Error, Ino, ItemType, Key, Result};

/// A name of an inode in the directory of the item's key: `(ino INODE_REF parent)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRef<'a> {
    /// The entry's number in the directory.
    pub index: DirIndex,
    /// The name.
    pub name: &'a [u8],
}

/// A name of an inode: key `(ino INODE_EXTREF hash(parent, name))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtRef<'a> {
    /// The directory.
    pub parent: Ino,
    /// The entry's number in the directory.
    pub index: DirIndex,
    /// The name.
    pub name: &'a [u8],
}

/// Bytes besides the name in an `INODE_REF`.
pub const INODE_REF_HEADER: usize = 10;
/// Bytes besides the name in an `INODE_EXTREF`.
pub const EXTREF_HEADER: usize = 18;

fn u64_at(bytes: &[u8], at: usize, what: &'static str) -> Result<u64> {
    let mut field = [0; 8];
    field.copy_from_slice(slice(bytes, at, 8, what)?);
    Ok(u64::from_le_bytes(field))
}

fn u16_at(bytes: &[u8], at: usize, what: &'static str) -> Result<usize> {
    let mut field = [0; 2];
    field.copy_from_slice(slice(bytes, at, 2, what)?);
    Ok(u16::from_le_bytes(field).into())
}

fn checked_name(name: &[u8]) -> Result<&[u8]> {
    if name.is_empty() || name.len() > super::MAX_NAME_LEN {
        return Err(Error::BadValue { what: "name length of an inode reference", value: name.len() as u64 });
    }
    Ok(name)
}

/// Returns the names in an `INODE_REF` item. Ends after the first error.
pub fn inode_refs(mut item: &[u8]) -> impl Iterator<Item = Result<InodeRef<'_>>> {
    const WHAT: &str = "inode reference";
    std::iter::from_fn(move || {
        if item.is_empty() {
            return None;
        }
        let parsed = (|| {
            let index = DirIndex(u64_at(item, 0, WHAT)?);
            let len = u16_at(item, 8, WHAT)?;
            let name = checked_name(slice(item, INODE_REF_HEADER, len, WHAT)?)?;
            Ok((InodeRef { index, name }, &item[INODE_REF_HEADER + len..]))
        })();
        item = parsed.as_ref().map_or(&[][..], |(_, rest)| rest);
        Some(parsed.map(|(found, _)| found))
    })
}

/// Returns the names in an `INODE_EXTREF` item. Ends after the first error.
pub fn extrefs(mut item: &[u8]) -> impl Iterator<Item = Result<ExtRef<'_>>> {
    const WHAT: &str = "extended inode reference";
    std::iter::from_fn(move || {
        if item.is_empty() {
            return None;
        }
        let parsed = (|| {
            let parent = Ino(u64_at(item, 0, WHAT)?);
            let index = DirIndex(u64_at(item, 8, WHAT)?);
            let len = u16_at(item, 16, WHAT)?;
            let name = checked_name(slice(item, EXTREF_HEADER, len, WHAT)?)?;
            Ok((ExtRef { parent, index, name }, &item[EXTREF_HEADER + len..]))
        })();
        item = parsed.as_ref().map_or(&[][..], |(_, rest)| rest);
        Some(parsed.map(|(found, _)| found))
    })
}

/// Returns the names in an item of type `INODE_REF` or `INODE_EXTREF`, each with its directory;
/// none in an item of another type. Ends after the first error.
pub fn inode_backrefs<'a>(key: &Key, item: &'a [u8]) -> impl Iterator<Item = Result<ExtRef<'a>>> + use<'a> {
    let parent = Ino(key.offset);
    let (listed, extended) = match key.item_type {
        ItemType::INODE_REF => (item, &[][..]),
        ItemType::INODE_EXTREF => (&[][..], item),
        _ => (&[][..], &[][..]),
    };
    let listed =
        inode_refs(listed).map(move |entry| entry.map(|InodeRef { index, name }| ExtRef { parent, index, name }));
    listed.chain(extrefs(extended))
}

/// Appends a name to an `INODE_REF` item.
pub fn encode_inode_ref(item: &mut Vec<u8>, entry: InodeRef<'_>) {
    item.extend_from_slice(&entry.index.0.to_le_bytes());
    item.extend_from_slice(&(entry.name.len() as u16).to_le_bytes());
    item.extend_from_slice(entry.name);
}

/// Appends a name to an `INODE_EXTREF` item.
pub fn encode_extref(item: &mut Vec<u8>, entry: ExtRef<'_>) {
    item.extend_from_slice(&entry.parent.0.to_le_bytes());
    item.extend_from_slice(&entry.index.0.to_le_bytes());
    item.extend_from_slice(&(entry.name.len() as u16).to_le_bytes());
    item.extend_from_slice(entry.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_written_and_a_truncated_item_is_an_error() {
        let mut item = Vec::new();
        let first = InodeRef { index: DirIndex(2), name: b"a" };
        let second = InodeRef { index: DirIndex(7), name: b"name" };
        encode_inode_ref(&mut item, first);
        encode_inode_ref(&mut item, second);
        let all: Result<Vec<_>> = inode_refs(&item).collect();
        assert_eq!(all, Ok(vec![first, second]));
        assert!(inode_refs(&item[..item.len() - 1]).any(|found| found.is_err()));

        let mut item = Vec::new();
        let ext = ExtRef { parent: Ino(256), index: DirIndex(9), name: b"x" };
        encode_extref(&mut item, ext);
        assert_eq!(extrefs(&item).collect::<Result<Vec<_>>>(), Ok(vec![ext]));
        assert!(extrefs(&item[..17]).any(|found| found.is_err()));
    }
}

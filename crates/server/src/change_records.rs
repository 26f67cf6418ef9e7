//! The encoding of changes of files, which a mount's server sends and `ubtrfs diff` reads: a
//! sequence of records, each preceded by its length.
//!
//! Numbers are little-endian; attributes of an inode have their form on disk; lists and strings
//! begin with their length.

use ubtrfs::{
    ChangedAttribute, ChangedContent, ChangedSubvolume, ChangedXattr, Content, FileChange, FileName, WhatChanged,
};
use ubtrfs_format::items::{FileType, InodeItem};
use ubtrfs_format::{Ino, TreeId};

/// Bytes of a record's length.
const HEAD: usize = 4;
/// The longest record in bytes. The record of a file with a million changed extents has some 20 MB.
/// The comparison itself refuses a change whose record would be longer than half of this, apart
/// from names.
const MAX: usize = 512 << 20;

/// What became of an inode, by its number in a record.
const WHAT: [WhatChanged; 3] = [WhatChanged::Made, WhatChanged::Removed, WhatChanged::Changed];
/// What a range holds, by its number in a record.
const CONTENT: [Content; 3] = [Content::Hole, Content::Prealloc, Content::Data];
/// The attributes, by their bits in a record.
const ATTRIBUTES: [ChangedAttribute; 9] = [
    ChangedAttribute::Mode,
    ChangedAttribute::Owner,
    ChangedAttribute::Size,
    ChangedAttribute::Device,
    ChangedAttribute::Flags,
    ChangedAttribute::AccessTime,
    ChangedAttribute::ModificationTime,
    ChangedAttribute::ChangeTime,
    ChangedAttribute::CreationTime,
];
/// The value that says that there is none, where a number in a table is expected.
const NONE: u8 = u8::MAX;

/// A change as a record; `None` if it is too long for one.
pub fn encode(change: &FileChange) -> Option<Vec<u8>> {
    let mut out = Writer(vec![0; HEAD]);
    out.u64(change.ino.0);
    out.u8(number(&WHAT, &change.what));
    for item in [&change.old, &change.new] {
        out.option(item.as_ref(), |out, item| out.0.extend(item.to_bytes()));
    }
    for names in [&change.old_names, &change.new_names, &change.names_removed, &change.names_added] {
        out.list(names, |out, name| {
            out.u64(name.parent.0);
            out.bytes(&name.name);
            out.bytes(&name.path);
        });
    }
    let bits = change.attributes.iter().map(|attribute| 1 << number(&ATTRIBUTES, attribute));
    out.u64(bits.sum());
    out.list(&change.xattrs, |out, xattr| {
        out.bytes(&xattr.name);
        out.option(xattr.old.as_ref(), |out, value| out.bytes(value));
        out.option(xattr.new.as_ref(), |out, value| out.bytes(value));
    });
    out.list(&change.content, |out, changed| {
        out.u64(changed.range.start);
        out.u64(changed.range.end);
        out.u8(changed.old.map_or(NONE, |content| number(&CONTENT, &content)));
        out.u8(number(&CONTENT, &changed.new));
    });
    out.list(&change.subvolumes, |out, entry| {
        out.bytes(&entry.name);
        out.option(entry.old.as_ref(), |out, id| out.u64(id.0));
        out.option(entry.new.as_ref(), |out, id| out.u64(id.0));
    });
    let mut record = out.0;
    let length = u32::try_from(record.len() - HEAD).ok().filter(|length| *length as usize <= MAX)?;
    record[..HEAD].copy_from_slice(&length.to_le_bytes());
    Some(record)
}

/// The length in bytes of the first record of `bytes`, or `None` if not all of it is there. An
/// error if `bytes` is no record.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, NoRecord> {
    let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if length > MAX {
        return Err(NoRecord);
    }
    Ok((bytes.len() - HEAD >= length).then_some(HEAD + length))
}

/// Reads a record.
pub fn decode(record: &[u8]) -> Result<FileChange, NoRecord> {
    let mut from = Reader(record.get(HEAD..).ok_or(NoRecord)?);
    let ino = Ino(from.u64()?);
    let what = *WHAT.get(usize::from(from.u8()?)).ok_or(NoRecord)?;
    let item = |from: &mut Reader<'_>| from.option(Reader::item);
    let (old, new) = (item(&mut from)?, item(&mut from)?);
    let mut names = || from.list(Reader::name);
    let (old_names, new_names, names_removed, names_added) = (names()?, names()?, names()?, names()?);
    let bits = from.u64()?;
    let attributes = (0..).zip(ATTRIBUTES).filter(|(bit, _)| bits & 1 << bit != 0);
    Ok(FileChange {
        ino,
        what,
        file_type: FileType::from_mode(new.or(old).map_or(0, |item| item.mode)),
        old,
        new,
        old_names,
        new_names,
        names_removed,
        names_added,
        attributes: attributes.map(|(_, attribute)| attribute).collect(),
        xattrs: from.list(|from| {
            let name = from.bytes()?;
            Ok(ChangedXattr { name, old: from.option(Reader::bytes)?, new: from.option(Reader::bytes)? })
        })?,
        content: from.list(|from| {
            let range = from.u64()?..from.u64()?;
            let old = match from.u8()? {
                NONE => None,
                number => Some(content(number)?),
            };
            Ok(ChangedContent { range, old, new: content(from.u8()?)? })
        })?,
        subvolumes: from.list(|from| {
            let name = from.bytes()?;
            let id = |from: &mut Reader<'_>| Ok(TreeId(from.u64()?));
            Ok(ChangedSubvolume { name, old: from.option(id)?, new: from.option(id)? })
        })?,
    })
}

/// The error that bytes are no record of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRecord;

fn number<T: PartialEq>(table: &[T], value: &T) -> u8 {
    table.iter().position(|known| known == value).map_or(NONE, |number| number as u8)
}

fn content(number: u8) -> Result<Content, NoRecord> {
    CONTENT.get(usize::from(number)).copied().ok_or(NoRecord)
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn list<T>(&mut self, values: &[T], write: impl Fn(&mut Self, &T)) {
        self.u64(values.len() as u64);
        for value in values {
            write(self, value);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], NoRecord> {
        let (array, rest) = self.0.split_first_chunk().ok_or(NoRecord)?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, NoRecord> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Result<u64, NoRecord> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, NoRecord> {
        let length = usize::try_from(self.u64()?).map_err(|_| NoRecord)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(NoRecord)?;
        self.0 = rest;
        Ok(bytes.to_vec())
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, NoRecord>) -> Result<Option<T>, NoRecord> {
        match self.u8()? {
            0 => Ok(None),
            _ => read(self).map(Some),
        }
    }

    /// Reads a list. It reserves no memory by the length, which may be wrong.
    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, NoRecord>) -> Result<Vec<T>, NoRecord> {
        let length = self.u64()?;
        let mut values = Vec::new();
        for _ in 0..length {
            values.push(read(self)?);
        }
        Ok(values)
    }

    fn item(&mut self) -> Result<InodeItem, NoRecord> {
        InodeItem::parse(&self.array::<{ InodeItem::SIZE }>()?).map_err(|_| NoRecord)
    }

    fn name(&mut self) -> Result<FileName, NoRecord> {
        Ok(FileName { parent: Ino(self.u64()?), name: self.bytes()?, path: self.bytes()? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    fn change() -> FileChange {
        let name = |path: &str| FileName { parent: Ino(256), name: path.into(), path: path.into() };
        let item = InodeItem { mode: 0o100_644, size: 7, ..InodeItem::default() };
        let xattr = ChangedXattr { name: b"user.x".to_vec(), old: None, new: Some(vec![1, 2]) };
        let content = |old| ChangedContent { range: 4096..8192, old, new: Content::Prealloc };
        FileChange {
            ino: Ino(300),
            what: WhatChanged::Changed,
            file_type: FileType::Regular,
            old: Some(item),
            new: Some(InodeItem { size: 9, ..item }),
            old_names: vec![name("a"), name("b")],
            new_names: vec![name("b")],
            names_removed: vec![name("a")],
            names_added: Vec::new(),
            attributes: vec![ChangedAttribute::Size, ChangedAttribute::CreationTime],
            xattrs: vec![xattr],
            content: vec![content(None), content(Some(Content::Data))],
            subvolumes: vec![ChangedSubvolume { name: b"s".to_vec(), old: Some(TreeId(256)), new: None }],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let mut bytes = encode(&change()).unwrap();
        assert_eq!(length(&bytes), Ok(Some(bytes.len())));
        assert_eq!(decode(&bytes), Ok(change()));
        let end = bytes.len();
        bytes.extend([1; 3]);
        assert_eq!(length(&bytes), Ok(Some(end)));
        assert_eq!(length(&bytes[end..]), Ok(None));
        assert_eq!(length(&bytes[..end - 1]), Ok(None));
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        let record = encode(&change()).unwrap();
        for end in 0..record.len() {
            assert_eq!(decode(&record[..end]), Err(NoRecord), "{end}");
        }
        assert_eq!(length(&[0xff; 4]), Err(NoRecord));
        for place in HEAD..record.len() {
            let mut damaged = record.clone();
            damaged[place] ^= 0xff;
            let _ = decode(&damaged);
        }
    }
}

//! Changes for programs: an array with an object for each.

use std::io::{self, Write};

use serde_json::{Value, json};
use ubtrfs::{ChangedAttribute, Content, FileChange, FileName, WhatChanged};
use ubtrfs_format::items::{FileType, InodeItem, Timespec};

use super::output::Output;
use crate::show::{all_hex as hex, text};

/// Writes an array, element by element.
pub struct Json<W> {
    out: W,
    is_empty: bool,
}

impl<W: Write> Json<W> {
    pub fn new(out: W) -> Self {
        Self { out, is_empty: true }
    }
}

impl<W: Write> Output for Json<W> {
    fn change(&mut self, change: &FileChange) -> io::Result<()> {
        let separator: &[u8] = if std::mem::take(&mut self.is_empty) { b"[\n" } else { b",\n" };
        self.out.write_all(separator)?;
        Ok(serde_json::to_writer(&mut self.out, &described(change))?)
    }

    fn finish(&mut self) -> io::Result<()> {
        let end: &[u8] = if self.is_empty { b"[]\n" } else { b"\n]\n" };
        self.out.write_all(end)?;
        self.out.flush()
    }
}

fn described(change: &FileChange) -> Value {
    let names = |names: &[FileName]| names.iter().map(|name| text(&name.path)).collect::<Vec<_>>();
    let content = change.content.iter().map(|changed| {
        json!({
            "offset": changed.range.start,
            "length": changed.range.end - changed.range.start,
            "old": changed.old.map(content_name),
            "new": content_name(changed.new),
        })
    });
    let xattrs = change.xattrs.iter().map(|xattr| {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map(|value| hex(value));
        json!({ "name": text(&xattr.name), "old_hex": value(&xattr.old), "new_hex": value(&xattr.new) })
    });
    let subvolumes = change.subvolumes.iter().map(|entry| {
        json!({
            "name": text(&entry.name),
            "old": entry.old.map(|id| id.0),
            "new": entry.new.map(|id| id.0),
        })
    });
    json!({
        "inode": change.ino.0,
        "change": match change.what {
            WhatChanged::Made => "made",
            WhatChanged::Removed => "removed",
            WhatChanged::Changed => "changed",
        },
        "type": type_name(change.file_type),
        "old": change.old.as_ref().map(attributes),
        "new": change.new.as_ref().map(attributes),
        "old_paths": names(&change.old_names),
        "new_paths": names(&change.new_names),
        "paths_removed": names(&change.names_removed),
        "paths_added": names(&change.names_added),
        "attributes": change.attributes.iter().copied().map(attribute_name).collect::<Vec<_>>(),
        "xattrs": xattrs.collect::<Vec<_>>(),
        "content": content.collect::<Vec<_>>(),
        "subvolumes": subvolumes.collect::<Vec<_>>(),
    })
}

fn attributes(item: &InodeItem) -> Value {
    let time = |time: Timespec| json!([time.sec.cast_signed(), time.nsec]);
    json!({
        "mode": item.mode & 0o7777,
        "uid": item.uid,
        "gid": item.gid,
        "size": item.size,
        "rdev": item.rdev,
        "flags": item.flags,
        "atime": time(item.atime),
        "mtime": time(item.mtime),
        "ctime": time(item.ctime),
        "btime": time(item.otime),
        "generation": item.generation.0,
        "transid": item.transid.0,
    })
}

fn attribute_name(attribute: ChangedAttribute) -> &'static str {
    match attribute {
        ChangedAttribute::Mode => "mode",
        ChangedAttribute::Owner => "owner",
        ChangedAttribute::Size => "size",
        ChangedAttribute::Device => "rdev",
        ChangedAttribute::Flags => "flags",
        ChangedAttribute::AccessTime => "atime",
        ChangedAttribute::ModificationTime => "mtime",
        ChangedAttribute::ChangeTime => "ctime",
        ChangedAttribute::CreationTime => "btime",
    }
}

fn content_name(content: Content) -> &'static str {
    match content {
        Content::Data => "data",
        Content::Prealloc => "prealloc",
        Content::Hole => "hole",
    }
}

fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "chardev",
        FileType::BlockDevice => "blockdev",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        _ => "unknown",
    }
}

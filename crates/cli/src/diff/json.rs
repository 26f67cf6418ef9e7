//! Changes in JSON: an array with an object for each change.

use std::io::{self, Write};

use serde_json::{Value, json};
use ubtrfs::{Content, FileChange, FileName, WhatChanged};
use ubtrfs_format::items::InodeItem;

use super::output::Output;
use crate::json::{Array, attribute_name, name, time, type_name};
use crate::show::all_hex as hex;

impl<W: Write> Output for Array<W> {
    fn change(&mut self, change: &FileChange) -> io::Result<()> {
        self.push(&described(change))
    }

    fn finish(&mut self) -> io::Result<()> {
        Array::finish(self)
    }
}

fn described(change: &FileChange) -> Value {
    let names = |names: &[FileName]| names.iter().map(|found| name(&found.path)).collect::<Vec<_>>();
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
        json!({ "name": name(&xattr.name), "old_hex": value(&xattr.old), "new_hex": value(&xattr.new) })
    });
    let subvolumes = change.subvolumes.iter().map(|entry| {
        json!({
            "name": name(&entry.name),
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

fn content_name(content: Content) -> &'static str {
    match content {
        Content::Data => "data",
        Content::Prealloc => "prealloc",
        Content::Hole => "hole",
    }
}

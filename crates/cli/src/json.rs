//! The output of `--json`: how values, names and times are written. `docs/json.schema.json`
//! describes the output of all commands.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use ubtrfs::{Attributes, ChangedAttribute};
use ubtrfs_format::items::{FileType, Timespec};
use ubtrfs_server::device_number;

use crate::failure::{Failure, Result};
use crate::{output, show};

/// Prints a value.
pub fn print(what: &impl Serialize) -> Result<()> {
    output::say(&as_json(what)?);
    Ok(())
}

/// Returns the text of a value, as [`print()`] writes it.
pub fn as_json(what: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(what).map(|text| text + "\n").map_err(|error| Failure::of(&error))
}

/// An array that is written element by element.
pub struct Array<W> {
    out: W,
    is_empty: bool,
}

impl<W: Write> Array<W> {
    /// Begins an array. Writes nothing yet.
    pub fn new(out: W) -> Self {
        Self { out, is_empty: true }
    }

    /// Writes the next element.
    pub fn push(&mut self, element: &impl Serialize) -> io::Result<()> {
        let separator: &[u8] = if std::mem::take(&mut self.is_empty) { b"[\n" } else { b",\n" };
        self.out.write_all(separator)?;
        Ok(serde_json::to_writer(&mut self.out, element)?)
    }

    /// Ends the array.
    pub fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(if self.is_empty { b"[]\n" } else { b"\n]\n" })?;
        self.out.flush()
    }
}

/// A name or a path: a string, or an object with its bytes in `hex` if they are not UTF-8.
pub fn name(bytes: &[u8]) -> Value {
    let hex = |_| json!({ "hex": show::all_hex(bytes) });
    std::str::from_utf8(bytes).map_or_else(hex, Value::from)
}

/// A name or a path, as a field of a structure; see [`name()`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(pub Vec<u8>);

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        name(&self.0).serialize(serializer)
    }
}

/// Returns a time in the form of RFC 3339, in UTC with nanoseconds. Years before 0 have a sign, and
/// years after 9999 have more digits.
pub fn time(at: Timespec) -> String {
    show::time(at).replacen(' ', "T", 1).replace(" UTC", "+00:00")
}

/// Returns the time of these seconds since 1970, as [`time()`]; `None` for 0.
pub fn seconds(sec: u64) -> Option<String> {
    (sec > 0).then(|| time(Timespec { sec, nsec: 0 }))
}

/// Serializes seconds since 1970 as [`seconds()`].
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
pub fn serialize_seconds<S: Serializer>(sec: &u64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    seconds(*sec).serialize(serializer)
}

/// Returns the name of a file type.
pub fn type_name(file_type: FileType) -> &'static str {
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

/// Returns the name of the field for an attribute that has changed.
pub fn attribute_name(attribute: ChangedAttribute) -> &'static str {
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

/// Describes a file of a volume: its path, attributes, and the target of a symbolic link.
pub fn file(path: &[u8], of: &Attributes, target: Option<&[u8]>) -> Value {
    let is_device = matches!(of.file_type, FileType::CharDevice | FileType::BlockDevice);
    json!({
        "path": name(path),
        "type": type_name(of.file_type),
        "target": target.map(name),
        "subvolume": of.id.subvolume.0,
        "inode": of.id.ino.0,
        "mode": of.mode & 0o7777,
        "links": of.nlink,
        "uid": of.uid,
        "gid": of.gid,
        "device": is_device.then(|| device(of.rdev)),
        "size": of.size,
        "blocks": of.blocks,
        "flags": of.flags,
        "atime": time(of.atime),
        "mtime": time(of.mtime),
        "ctime": time(of.ctime),
        "btime": time(of.btime),
    })
}

fn device(rdev: u64) -> Value {
    let number = device_number::from_disk(rdev);
    json!({ "major": number >> 8 & 0xfff, "minor": number & 0xff | number >> 12 & 0xf_ff00 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_nanoseconds_and_an_offset() {
        assert_eq!(time(Timespec { sec: 951_782_400, nsec: 1 }), "2000-02-29T00:00:00.000000001+00:00");
        assert_eq!((seconds(0), seconds(1).as_deref()), (None, Some("1970-01-01T00:00:01.000000000+00:00")));
    }

    #[test]
    fn names_that_are_no_text_are_objects() {
        assert_eq!(name("ä\n".as_bytes()), json!("ä\n"));
        assert_eq!(name(b"a\xff"), json!({ "hex": "61ff" }));
    }

    #[test]
    fn arrays_are_whole_also_when_they_are_empty() {
        let mut out = Vec::new();
        Array::new(&mut out).finish().unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), json!([]));
        let mut out = Vec::new();
        let mut array = Array::new(&mut out);
        (0..2).try_for_each(|element| array.push(&element)).and_then(|()| array.finish()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), json!([0, 1]));
    }
}

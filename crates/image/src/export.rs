//! Writes a tree of a volume as a tar archive, in the pax format.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;

use crate::archive::BLOCK;
use tar::{EntryType, Header};
use ubtrfs::Filesystem;
use ubtrfs::format::items::{FileType, Timespec};

use crate::error::{Result, outside};
use crate::inside::{VolumeFile, VolumeFiles};
use crate::job::Job;
use crate::linked_path::{LinkedPath, add_name};
use crate::source::{Description, Source};

/// The largest owner and the largest size that the octal digits of a header hold.
const MAX_ID: u64 = 0o7_777_777;
const MAX_SIZE: u64 = 0o77_777_777_777;

/// Records of a pax header.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut len = rest;
        while len != rest + len.to_string().len() {
            len = rest + len.to_string().len();
        }
        for part in [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"] {
            self.0.extend_from_slice(part);
        }
    }
}

/// Writes the tree at a file as an archive, in which the file itself has this name, or `./` if it
/// is a directory. Returns the paths of sockets, which no archive can have.
pub fn export(
    fs: &Arc<Filesystem>,
    file: VolumeFile,
    name: &[u8],
    out: impl Write,
    job: &mut Job<'_>,
) -> Result<Vec<LinkedPath>> {
    let source = VolumeFiles::new(fs);
    let mut export = Export { source: &source, name, job, out, links: HashMap::new(), skipped: Vec::new() };
    let mut left = vec![file];
    while let Some(file) = left.pop() {
        let description = source.describe(&file)?;
        export.entry(&file, &description)?;
        if description.file_type() == FileType::Directory {
            left.extend(source.named_children(&file)?.into_iter().rev());
        }
    }
    export.write(&[0; 2 * BLOCK as usize])?;
    export.out.flush().map_err(outside("standard output"))?;
    Ok(export.skipped)
}

struct Export<'a, 'b, W> {
    source: &'a VolumeFiles,
    /// The name of the file, if the archive is of one file that is no directory.
    name: &'a [u8],
    job: &'a mut Job<'b>,
    out: W,
    /// The name under which each inode with several names was written.
    links: HashMap<(u64, u64), LinkedPath>,
    skipped: Vec<LinkedPath>,
}

impl<W: Write> Export<'_, '_, W> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(outside("standard output"))
    }

    fn pad(&mut self, len: u64) -> Result<()> {
        self.write(&vec![0; (len.next_multiple_of(BLOCK) - len) as usize])
    }

    /// The name of a file in the archive.
    fn shown(&self, path: &LinkedPath, is_dir: bool) -> Vec<u8> {
        let mut shown = path.below(b".");
        if path.above().is_none() && !is_dir {
            add_name(&mut shown, self.name);
        }
        if is_dir {
            shown.push(b'/');
        }
        shown
    }

    fn entry(&mut self, file: &VolumeFile, of: &Description) -> Result<()> {
        let name = self.shown(file.path(), of.file_type() == FileType::Directory);
        let mut records = Records::default();
        let first = of.identity.as_ref().and_then(|identity| self.links.get(identity));
        let first = first.map(|path| self.shown(path, false));
        let mut header = Header::new_ustar();
        let entry_type = match of.file_type() {
            _ if first.is_some() => EntryType::Link,
            FileType::Regular => EntryType::Regular,
            FileType::Directory => EntryType::Directory,
            FileType::Symlink => EntryType::Symlink,
            FileType::CharDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            FileType::Fifo => EntryType::Fifo,
            _ => {
                self.skipped.push(file.path().clone());
                return Ok(());
            }
        };
        header.set_entry_type(entry_type);
        header.set_mode(of.mode & 0o7777);
        number(&mut records, b"uid", of.uid.into(), MAX_ID, |id| header.set_uid(id));
        number(&mut records, b"gid", of.gid.into(), MAX_ID, |id| header.set_gid(id));
        let seconds = of.mtime.sec as i64;
        header.set_mtime(seconds.clamp(0, MAX_SIZE as i64) as u64);
        records.add(b"mtime", &time(of.mtime));
        records.add(b"atime", &time(of.atime));
        let target = first.as_deref().unwrap_or(&of.target);
        text(&mut records, b"linkpath", target, &mut header.as_mut_bytes()[157..257]);
        if matches!(entry_type, EntryType::Char | EntryType::Block) {
            let (major, minor) = ((of.rdev >> 20) as u32, (of.rdev & 0xf_ffff) as u32);
            let set = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
            set.map_err(outside("standard output"))?;
        }
        for (key, value) in of.xattrs.iter().filter(|_| entry_type != EntryType::Link) {
            records.add(&[b"SCHILY.xattr.", &escaped(key)[..]].concat(), value);
        }
        let ranges =
            if entry_type == EntryType::Regular { self.source.data_ranges(file, of.size)? } else { Vec::new() };
        let data: u64 = ranges.iter().map(|(start, end)| end - start).sum();
        let map =
            if entry_type == EntryType::Regular && data < of.size { map_of(&ranges, of.size) } else { Vec::new() };
        if map.is_empty() {
            text(&mut records, b"path", &name, &mut header.as_mut_bytes()[..100]);
        } else {
            for (key, value) in [("major", "1"), ("minor", "0"), ("realsize", &of.size.to_string())] {
                records.add(format!("GNU.sparse.{key}").as_bytes(), value.as_bytes());
            }
            records.add(b"GNU.sparse.name", &name);
            text(
                &mut Records::default(),
                b"",
                &[b"./GNUSparseFile.0/", &name[2..]].concat(),
                &mut header.as_mut_bytes()[..100],
            );
        }
        let stored = map.len() as u64 + data;
        number(&mut records, b"size", stored, MAX_SIZE, |size| header.set_size(size));
        header.set_cksum();
        self.records(records)?;
        self.write(header.as_bytes())?;
        self.write(&map)?;
        for range in ranges {
            let out = &mut self.out;
            self.source
                .read_range(file, range, &mut |_, data| out.write_all(data).map_err(outside("standard output")))?;
        }
        self.pad(stored)?;
        if let (Some(identity), None) = (of.identity, first) {
            self.links.insert(identity, file.path().clone());
        }
        self.job.add(data);
        self.job.done(of.file_type())
    }

    fn records(&mut self, Records(records): Records) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.as_mut_bytes()[..16].copy_from_slice(b"./PaxHeaders/pax");
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(records.len() as u64);
        header.set_cksum();
        self.write(header.as_bytes())?;
        self.write(&records)?;
        self.pad(records.len() as u64)
    }
}

/// Encodes the name of an attribute as GNU tar does, since an equals sign would end it.
fn escaped(name: &[u8]) -> Vec<u8> {
    let byte = |byte: &u8| match byte {
        b'%' => b"%25".to_vec(),
        b'=' => b"%3D".to_vec(),
        byte => vec![*byte],
    };
    name.iter().flat_map(byte).collect()
}

/// Sets a number as octal digits or, if it has too many, in a record.
fn number(records: &mut Records, key: &[u8], value: u64, most: u64, set: impl FnOnce(u64)) {
    set(value.min(most));
    if value > most {
        records.add(key, value.to_string().as_bytes());
    }
}

/// Sets a text in a field, and also in a record if the field is too small or the text is not ASCII.
fn text(records: &mut Records, key: &[u8], value: &[u8], field: &mut [u8]) {
    let len = value.len().min(field.len());
    field[..len].copy_from_slice(&value[..len]);
    if value.len() > field.len() || !value.is_ascii() {
        records.add(key, value);
    }
}

/// Formats a time as a decimal number of seconds.
fn time(time: Timespec) -> Vec<u8> {
    let (seconds, nanoseconds) = (time.sec as i64, i64::from(time.nsec.min(999_999_999)));
    let whole = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let sign = if whole < 0 { "-" } else { "" };
    let whole = whole.unsigned_abs();
    format!("{sign}{}.{:09}", whole / 1_000_000_000, whole % 1_000_000_000).into_bytes()
}

/// Formats the map of a sparse file, which precedes the data in the format 1.0 of GNU tar.
fn map_of(ranges: &[(u64, u64)], size: u64) -> Vec<u8> {
    let mut map = format!("{}\n", ranges.len() + 1);
    for (start, end) in ranges {
        let _ = writeln!(map, "{start}\n{}", end - start);
    }
    let _ = writeln!(map, "{size}\n0");
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
    map
}

//! `ubtrfs ls`, `stat` and `cat`: they look into a volume without mounting it, and without writing
//! a byte.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use serde_json::{Value, json};
use ubtrfs::{Attributes, Damage, Errno, Filesystem, InodeId, Options};
use ubtrfs_format::DirIndex;
use ubtrfs_format::items::FileType;
use ubtrfs_image::LinkedPath;
use ubtrfs_server::device_number;

use crate::args::{Look, Ls, PathInVolume, Stat};
use crate::device::open_what_can_be_read;
use crate::failure::{Failure, Result};
use crate::json::{self, Array};
use crate::output::{Output, is_lost, say};
use crate::passed_over;
use crate::path::{AtEnd, failure, find};
use crate::place::Place;
use crate::reading::{self, open_engine, passing_over};
use crate::show;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;
/// Entries that are listed at a time.
const BATCH: usize = 1024;

/// A volume opened for reading, and the path in it.
struct Opened {
    fs: Arc<Filesystem>,
    path: Vec<u8>,
    /// What of the volume's trees was skipped, which the end of the program reports.
    damage: Arc<Damage>,
    /// Claims that keep others from writing to the devices.
    _claims: Vec<File>,
}

fn open(place: &PathInVolume) -> Result<Opened> {
    let (devices, path) = match &*place.places {
        [word] => match Place::parse(word.as_os_str()) {
            Place::Image { image, path } => (vec![image], path),
            Place::Mounted(image) => {
                let sentence = format!("{}: a path is needed, as IMAGE:PATH or IMAGE PATH", image.display());
                return Err(Failure::new(sentence).with_status(2));
            }
        },
        [devices @ .., path] => (devices.to_vec(), path.clone()),
        [] => return Err(Failure::new("a device and a path are needed").with_status(2)),
    };
    let devices = [devices, place.devices.clone()].concat();
    let opened = open_what_can_be_read(&devices, place.window)?;
    let damage = Arc::new(Damage::default());
    let options = Options {
        no_log_replay: place.nologreplay,
        subvolume: place.subvol.clone(),
        subvolume_id: place.subvolid,
        no_atime: true,
        background_commits: false,
        ..Options::default()
    };
    let options = passing_over(options, &damage);
    let named = devices.first().cloned().unwrap_or_default();
    let fs = reading::open(&devices, place.window, &opened.devices, |volume| open_engine(&named, &volume, &options))?;
    passed_over::watch(&damage);
    Ok(Opened { fs, path: path.into_os_string().into_vec(), damage, _claims: opened.claims })
}

/// `ubtrfs cat`
pub fn cat(arguments: &Look) -> Result<()> {
    let Opened { fs, path, damage, _claims } = open(&arguments.place)?;
    let path = &*path;
    let id = find(&fs, path, AtEnd::Follow)?;
    let mut out = Output::new();
    let mut offset = 0;
    let before = damage.count();
    loop {
        let data = fs.files().read(id, offset, CHUNK).map_err(|error| failure(path, &error))?;
        if damage.count() != before {
            // Holes would stand in for data.
            let what = format!("from byte {offset} on, its content is unknown; 'ubtrfs restore' copies what is left");
            return Err(Failure::new(format!("{}: {what}", show::bytes(path))));
        }
        if data.is_empty() || is_lost() {
            return Ok(());
        }
        out.write_all(&data).map_err(|error| Failure::output(&error))?;
        offset += data.len() as u64;
    }
}

/// `ubtrfs stat`
pub fn stat(arguments: &Stat) -> Result<()> {
    let Opened { fs, path, _claims, .. } = open(&arguments.place)?;
    let path = &*path;
    let id = find(&fs, path, AtEnd::Stay)?;
    let failed = |error: &ubtrfs::Error| failure(path, error);
    let attributes = fs.inodes().attributes(id).map_err(|error| failed(&error))?;
    if arguments.json {
        return json::print(&described(&fs, path, &attributes).map_err(|error| failed(&error))?);
    }
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<10} {value}");
    };
    line("path", &show::bytes(path));
    line("type", kind_name(attributes.file_type));
    if attributes.file_type == FileType::Symlink {
        line("target", &show::bytes(&fs.files().read_link(id).map_err(|error| failed(&error))?));
    }
    line("subvolume", &id.subvolume.to_string());
    line("inode", &id.ino.to_string());
    line("mode", &format!("{:04o} {}", attributes.mode & 0o7777, show::mode(attributes.mode)));
    line("links", &attributes.nlink.to_string());
    line("owner", &format!("{}:{}", attributes.uid, attributes.gid));
    if matches!(attributes.file_type, FileType::CharDevice | FileType::BlockDevice) {
        line("device", &device(&attributes));
    }
    line("size", &attributes.size.to_string());
    line("blocks", &format!("{} of 512 bytes", attributes.blocks));
    line("flags", &format!("{:#x}", attributes.flags));
    line("accessed", &show::time(attributes.atime));
    line("modified", &show::time(attributes.mtime));
    line("changed", &show::time(attributes.ctime));
    line("born", &show::time(attributes.btime));
    for name in fs.inodes().list_xattrs(id).map_err(|error| failed(&error))? {
        let value = fs.inodes().get_xattr(id, &name).map_err(|error| failed(&error))?;
        line("xattr", &format!("{} = \"{}\"", show::bytes(&name), show::bytes(&value)));
    }
    say(&text);
    Ok(())
}

/// Describes a file with its extended attributes, for programs.
fn described(fs: &Filesystem, path: &[u8], attributes: &Attributes) -> ubtrfs::Result<Value> {
    let is_link = attributes.file_type == FileType::Symlink;
    let target = if is_link { Some(fs.files().read_link(attributes.id)?) } else { None };
    let mut value = json::file(path, attributes, target.as_deref());
    let xattr = |name: &Vec<u8>| {
        let value = fs.inodes().get_xattr(attributes.id, name)?;
        Ok(json!({ "name": json::name(name), "value_hex": show::all_hex(&value) }))
    };
    value["xattrs"] = fs.inodes().list_xattrs(attributes.id)?.iter().map(xattr).collect::<ubtrfs::Result<_>>()?;
    Ok(value)
}

/// `ubtrfs ls`
pub fn ls(arguments: &Ls) -> Result<()> {
    let Opened { fs, path, damage, _claims } = open(&arguments.place)?;
    let path = &*path;
    let id = find(&fs, path, if arguments.long { AtEnd::Stay } else { AtEnd::Follow })?;
    let out = BufWriter::new(Output::new());
    let mut listing = Listing {
        fs: &fs,
        damage: &damage,
        arguments,
        terminal: io::stdout().is_terminal(),
        out: if arguments.json { Out::Json(Array::new(out)) } else { Out::Lines(out) },
        damaged: false,
    };
    let attributes = fs.inodes().attributes(id).map_err(|error| failure(path, &error))?;
    if attributes.file_type == FileType::Directory {
        listing.directories(path, id)?;
    } else {
        listing.row(path, path, id)?;
    }
    listing.out.finish().map_err(|error| Failure::output(&error))?;
    if listing.damaged { Err(Failure::Said(1)) } else { Ok(()) }
}

/// Where files are listed, and in which form.
enum Out {
    Lines(BufWriter<Output>),
    Json(Array<BufWriter<Output>>),
}

impl Out {
    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Lines(out) => out.flush(),
            Self::Json(array) => array.finish(),
        }
    }
}

struct Listing<'a> {
    fs: &'a Filesystem,
    damage: &'a Damage,
    arguments: &'a Ls,
    terminal: bool,
    out: Out,
    /// Something could not be shown.
    damaged: bool,
}

impl Listing<'_> {
    /// Lists a directory, recursively if requested.
    fn directories(&mut self, path: &[u8], id: InodeId) -> Result<()> {
        let mut waiting = vec![(LinkedPath::new(OsStr::from_bytes(path)), id)];
        let mut seen = std::collections::HashSet::new();
        let mut first = true;
        while let Some((linked, id)) = waiting.pop() {
            if is_lost() {
                break;
            }
            // A directory of a damaged volume may contain itself.
            if !seen.insert(id) {
                continue;
            }
            let path = linked.below(path);
            if self.arguments.recursive && !self.arguments.json {
                let separator = if first { "" } else { "\n" };
                let shown = self.shown(&path);
                self.write(separator.as_bytes())?;
                self.write(&shown)?;
                self.write(b":\n")?;
            }
            first = false;
            let below = self.directory(&path, id)?;
            if self.arguments.recursive {
                waiting.extend(below.into_iter().rev().map(|(name, id)| (linked.join(name), id)));
            }
        }
        Ok(())
    }

    /// Lists one directory; returns the names of the directories in it.
    fn directory(&mut self, path: &[u8], id: InodeId) -> Result<Vec<(Vec<u8>, InodeId)>> {
        let mut below = Vec::new();
        if self.arguments.all && !self.arguments.json {
            self.row(path, b".", id)?;
            match self.fs.directories().parent(id) {
                Ok(parent) => self.row(path, b"..", parent)?,
                Err(error) => self.complain(path, &error),
            }
        }
        let mut after = DirIndex(0);
        let last = DirIndex(u64::MAX);
        loop {
            let entries = match self.fs.directories().list(id, after, last, BATCH) {
                Ok(entries) => entries,
                Err(error) => {
                    self.complain(path, &error);
                    return Ok(below);
                }
            };
            for entry in &entries {
                after = entry.index;
                if entry.name.starts_with(b".") && !self.arguments.all {
                    continue;
                }
                let whole = LinkedPath::new(OsStr::from_bytes(path)).join(entry.name.as_slice());
                self.row(whole.path().as_os_str().as_bytes(), &entry.name, entry.inode)?;
                if entry.file_type == FileType::Directory {
                    below.push((entry.name.clone(), entry.inode));
                }
            }
            if entries.len() < BATCH || is_lost() {
                return Ok(below);
            }
        }
    }

    fn row(&mut self, path: &[u8], name: &[u8], id: InodeId) -> Result<()> {
        if let Out::Json(array) = &mut self.out {
            let described = self.fs.inodes().attributes(id).and_then(|attributes| {
                let is_link = attributes.file_type == FileType::Symlink;
                let target = if is_link { Some(self.fs.files().read_link(id)?) } else { None };
                Ok(json::file(path, &attributes, target.as_deref()))
            });
            match described {
                Ok(value) => array.push(&value).map_err(|error| Failure::output(&error))?,
                Err(error) => self.complain(name, &error),
            }
            return Ok(());
        }
        let mut row = Vec::new();
        if self.arguments.long {
            let attributes = match self.fs.inodes().attributes(id) {
                Ok(attributes) => attributes,
                // One bad block has the attributes of many files, and is reported once.
                Err(error) if error.errno() == Errno::IO => {
                    self.damage.note(&error);
                    self.damaged = true;
                    row.extend(
                        format!("{:?<10} {:>3} {:>5} {:>5} {:>12} {:>33} ", "", "?", "?", "?", "?", "?").bytes(),
                    );
                    row.extend(self.shown(name));
                    row.push(b'\n');
                    return self.write(&row);
                }
                Err(error) => {
                    self.complain(name, &error);
                    return Ok(());
                }
            };
            let size = if matches!(attributes.file_type, FileType::CharDevice | FileType::BlockDevice) {
                device(&attributes)
            } else {
                attributes.size.to_string()
            };
            let Attributes { mode, nlink, uid, gid, mtime, .. } = attributes;
            row.extend(
                format!("{} {nlink:>3} {uid:>5} {gid:>5} {size:>12} {} ", show::mode(mode), show::time(mtime)).bytes(),
            );
            row.extend(self.shown(name));
            if attributes.file_type == FileType::Symlink {
                match self.fs.files().read_link(id) {
                    Ok(target) => {
                        row.extend(b" -> ");
                        row.extend(self.shown(&target));
                    }
                    Err(error) => self.complain(name, &error),
                }
            }
        } else {
            row.extend(self.shown(name));
        }
        row.push(b'\n');
        self.write(&row)
    }

    /// A name as it is, or, on a terminal, without what could confuse it.
    fn shown(&self, name: &[u8]) -> Vec<u8> {
        if self.terminal { show::bytes(name).into_bytes() } else { name.to_vec() }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Out::Lines(out) = &mut self.out else { return Ok(()) };
        out.write_all(bytes).map_err(|error| Failure::output(&error))
    }

    /// Reports what can't be shown, and continues.
    fn complain(&mut self, name: &[u8], error: &ubtrfs::Error) {
        self.damaged = true;
        let _ = failure(name, error).report();
    }
}

fn device(attributes: &Attributes) -> String {
    let number = device_number::from_disk(attributes.rdev);
    format!("{}, {}", number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00)
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        _ => "unknown",
    }
}

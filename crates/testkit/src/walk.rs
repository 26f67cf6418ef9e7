//! A description of a directory tree, path by path, made through an ordinary mount.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use crate::content::{BLOCK, Digest, Digester, WHOLE_LIMIT};

/// Files up to this size are read from end to end, holes included. Of larger ones only the data is
/// read.
const READ_HOLES_LIMIT: u64 = 16 << 20;

/// The inode number of the top directory of every btrfs subvolume.
const SUBVOLUME_TOP: u64 = 256;

/// The inode number of the empty directory that a snapshot has in place of a subvolume in its
/// source. It does not exist on disk, so its times mean nothing.
const STUB: u64 = 2;

/// Seconds and nanoseconds since 1970.
pub type Time = (i64, u32);

/// The type of a name's inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

impl Kind {
    fn of(kind: std::fs::FileType) -> Self {
        match kind {
            k if k.is_dir() => Kind::Dir,
            k if k.is_symlink() => Kind::Symlink,
            k if k.is_fifo() => Kind::Fifo,
            k if k.is_socket() => Kind::Socket,
            k if k.is_char_device() => Kind::Char,
            k if k.is_block_device() => Kind::Block,
            _ => Kind::File,
        }
    }
}

/// One path. A value that is `None` is not known, and equals any value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names (1 for a directory of btrfs).
    pub nlink: u64,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last change of content.
    pub mtime: Option<Time>,
    /// Time of the last change of anything.
    pub ctime: Option<Time>,
    /// Time of the last access.
    pub atime: Option<Time>,
    /// Time of birth.
    pub btime: Option<Time>,
    /// Inode number, as the volume has it.
    pub ino: Option<u64>,
    /// Major and minor number of a device node.
    pub rdev: Option<(u32, u32)>,
    /// Where a symbolic link points.
    pub target: Option<Vec<u8>>,
    /// Extended attributes by full name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The ranges (offset, length) that hold data, adjacent ones joined.
    pub data: Option<Vec<(u64, u64)>>,
    /// The content of a file.
    pub digest: Option<Digest>,
    /// Attribute flags (`lsattr`).
    pub flags: Option<u32>,
}

/// A tree of [`Entry`]s by path relative to its top, whose own path is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Every path.
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// The sets of paths, of more than one each, that are names of one inode.
    pub links: BTreeSet<BTreeSet<Vec<u8>>>,
    /// What was wrong with the tree by itself: unreadable inodes, or a listing that contradicts
    /// `stat`.
    pub anomalies: Vec<String>,
}

/// The identity of an inode: its subvolume's top directory, and its number in that.
type Identity = (Vec<u8>, u64);

/// Walks everything below `top`, without going into other mounts.
pub fn walk(top: &Path) -> Tree {
    let mut walker = Walker {
        top: top.to_owned(),
        foreign: crate::scratch::mount_points().into_iter().filter(|point| point != top).collect(),
        tree: Tree::default(),
        names: BTreeMap::new(),
    };
    walker.visit(&[], &[], None);
    let groups = walker.names.into_values().filter(|names| names.len() > 1);
    walker.tree.links = groups.collect();
    walker.tree
}

struct Walker {
    top: PathBuf,
    foreign: BTreeSet<PathBuf>,
    tree: Tree,
    names: BTreeMap<Identity, BTreeSet<Vec<u8>>>,
}

impl Walker {
    fn visit(&mut self, path: &[u8], subvolume: &[u8], listed: Option<(Kind, u64)>) {
        let full = if path.is_empty() { self.top.clone() } else { self.top.join(OsStr::from_bytes(path)) };
        let meta = match std::fs::symlink_metadata(&full) {
            Ok(meta) => meta,
            Err(error) => return self.anomaly(path, &format!("stat: {error}")),
        };
        let mut entry = entry_of(&meta);
        entry.ino = own_number(&full, &meta);
        if entry.kind == Kind::Dir && meta.ino() == STUB {
            (entry.mtime, entry.ctime, entry.atime, entry.btime) = (None, None, None, None);
        }
        if let Some((kind, ino)) = listed {
            // A listing shows the top of a subvolume with the number of its tree, not of its inode.
            let top = matches!(meta.ino(), SUBVOLUME_TOP | STUB);
            if kind != entry.kind || (ino != meta.ino() && !top) {
                let stat = (entry.kind, meta.ino());
                self.anomaly(path, &format!("listed as {kind:?} {ino}, but stat says {stat:?}"));
            }
        }
        match xattrs(&full) {
            Ok(xattrs) => entry.xattrs = xattrs,
            Err(error) => self.anomaly(path, &format!("xattrs: {error}")),
        }
        let mut children = Vec::new();
        let mut subvolume = subvolume.to_vec();
        match entry.kind {
            Kind::Dir => {
                if meta.ino() == SUBVOLUME_TOP {
                    subvolume.clear();
                    subvolume.extend_from_slice(path);
                }
                entry.flags = File::open(&full).ok().and_then(|dir| flags(&dir));
                children = self.list(path, &full);
            }
            Kind::Symlink => match std::fs::read_link(&full) {
                Ok(target) => entry.target = Some(target.into_os_string().into_encoded_bytes()),
                Err(error) => self.anomaly(path, &format!("readlink: {error}")),
            },
            Kind::File => {
                if let Err(error) = read_file(&full, meta.len(), &mut entry) {
                    self.anomaly(path, &format!("read: {error}"));
                }
            }
            Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => {}
        }
        if entry.kind != Kind::Dir && meta.nlink() > 1 {
            let group = self.names.entry((subvolume.clone(), meta.ino())).or_default();
            group.insert(path.to_vec());
        }
        if self.tree.entries.insert(path.to_vec(), entry).is_some() {
            self.anomaly(path, "listed twice");
        }
        for (child, kind, ino) in children {
            self.visit(&child, &subvolume, Some((kind, ino)));
        }
    }

    fn list(&mut self, path: &[u8], full: &Path) -> Vec<(Vec<u8>, Kind, u64)> {
        let mut children = Vec::new();
        let items = match std::fs::read_dir(full) {
            Ok(items) => items,
            Err(error) => {
                self.anomaly(path, &format!("open as a directory: {error}"));
                return children;
            }
        };
        for item in items {
            let read = item.and_then(|item| Ok((item.file_type()?, item)));
            let (kind, item) = match read {
                Ok(read) => read,
                Err(error) => {
                    self.anomaly(path, &format!("list: {error}"));
                    break;
                }
            };
            if self.foreign.contains(&item.path()) {
                continue;
            }
            let name = item.file_name();
            let mut child = path.to_vec();
            if !child.is_empty() {
                child.push(b'/');
            }
            child.extend_from_slice(name.as_bytes());
            children.push((child, Kind::of(kind), item.ino()));
        }
        children
    }

    fn anomaly(&mut self, path: &[u8], what: &str) {
        let path = show(path);
        self.tree.anomalies.push(format!("{path}: {what}"));
    }
}

/// Returns a path for messages: bytes that are not printable ASCII or that would confuse are
/// escaped.
pub fn show(path: &[u8]) -> String {
    if path.is_empty() { "(top)".to_owned() } else { path.escape_ascii().to_string() }
}

/// Returns the number that an inode has in its subvolume, or `None` if it can't be found. A mount
/// of ubtrfs shows other numbers for inodes of nested subvolumes, above all those that tests have;
/// file handles have the subvolume's number and the inode's own.
fn own_number(path: &Path, meta: &Metadata) -> Option<u64> {
    const FIRST_SHOWN: u64 = 1 << 31;
    const INO: u64 = (1 << 40) - 1;
    /// `struct file_handle` with space for the words of a handle.
    #[repr(C)]
    struct Handle {
        bytes: libc::c_uint,
        kind: libc::c_int,
        words: [u32; 32],
    }
    if meta.ino() < FIRST_SHOWN {
        return Some(meta.ino());
    }
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut handle = Handle { bytes: 128, kind: 0, words: [0; 32] };
    let mut mount = 0;
    // SAFETY: `handle` has the room that it says it has, and all pointers last for the call.
    let done =
        unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount, 0) };
    (done == 0).then(|| (u64::from(handle.words[0]) << 32 | u64::from(handle.words[1])) & INO)
}

fn entry_of(meta: &Metadata) -> Entry {
    let kind = Kind::of(meta.file_type());
    let device = matches!(kind, Kind::Char | Kind::Block);
    let rdev = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let birth = meta.created().ok().map(|time| match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        Err(before) => (-(before.duration().as_secs() as i64), 0),
    });
    Entry {
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink(),
        size: Some(meta.len()),
        mtime: Some((meta.mtime(), meta.mtime_nsec() as u32)),
        ctime: Some((meta.ctime(), meta.ctime_nsec() as u32)),
        atime: Some((meta.atime(), meta.atime_nsec() as u32)),
        btime: birth,
        ino: Some(meta.ino()),
        rdev: device.then_some(rdev),
        target: None,
        xattrs: BTreeMap::new(),
        data: None,
        digest: None,
        flags: None,
    }
}

/// Returns all extended attributes of `path`, which is not followed if it is a symbolic link.
pub fn xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65536];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = BTreeMap::new();
    for name in names[..len].split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

fn flags(file: &File) -> Option<u32> {
    rustix::fs::ioctl_getflags(file).ok().map(|flags| flags.bits())
}

fn read_file(path: &Path, size: u64, entry: &mut Entry) -> io::Result<()> {
    let open = |flags: OFlags| std::fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    // Reading must not change what a later walk sees, but only the owner and root may use this
    // flag.
    let file = open(OFlags::NOATIME).or_else(|_| open(OFlags::empty()))?;
    let ranges = data_ranges(&file, size)?;
    let mut digester = Digester::new(size);
    if size <= READ_HOLES_LIMIT {
        feed(&file, &mut digester, 0, size)?;
    } else {
        let mut done = 0;
        for &(offset, length) in &ranges {
            let (mut start, mut end) = (offset, offset + length);
            if size > WHOLE_LIMIT {
                start = start / BLOCK * BLOCK;
                end = (end.div_ceil(BLOCK) * BLOCK).min(size);
            }
            start = start.max(done);
            feed(&file, &mut digester, start, end)?;
            done = end;
        }
    }
    entry.digest = Some(digester.finish());
    entry.data = Some(ranges);
    entry.flags = flags(&file);
    Ok(())
}

fn feed(file: &File, digester: &mut Digester, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        let want = (end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..want], at)?;
        digester.add(at, &buffer[..want]);
        at += want as u64;
    }
    if file.read_at(&mut buffer[..1], end)? != 0 && end == file.metadata()?.len() {
        return Err(io::Error::other("there are bytes beyond the end of the file"));
    }
    Ok(())
}

/// Returns the ranges that `SEEK_DATA` and `SEEK_HOLE` report, adjacent ones joined.
pub fn data_ranges(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        if end <= start || start < at {
            return Err(io::Error::other(format!("SEEK_DATA from {at} says {start}, SEEK_HOLE from there {end}")));
        }
        match ranges.last_mut() {
            Some((offset, length)) if *offset + *length == start => *length += end - start,
            _ => ranges.push((start, end - start)),
        }
        at = end;
    }
    Ok(ranges)
}

//! Files of a tree of the host, by open descriptors (invariant 47).
//!
//! The owner of a directory may replace files in it by symbolic links or other files at any time
//! while root reads it. So each name is looked up once, in the open directory that was listed,
//! without following a symbolic link. Both the description and the content of a file come from the
//! descriptor of that one lookup. A tree may be deeper than a path or the limit of open files
//! allows: only some of its directories are open, and the others are opened again by their names.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, Stat, fstat, openat};
use rustix::io::Errno;

use crate::preloaded;
use crate::selection::{Excluded, MatchedPaths};

/// The length of a block of a file in bytes. A block of zeros may become a hole.
pub(crate) const BLOCK: u64 = 4096;

/// How many directories are open at a time, besides the one where a walk began.
const MAX_OPEN: usize = 256;
/// When directories are opened again on the way to a deep one, how many stay open at the end of the
/// way, and how many are spread over the rest of it, so that the ways to several deep directories
/// stay open at the same time.
const SPREAD: usize = 32;

/// How often a name is looked up again because it refers to a file of another type by now.
const TRIES: u32 = 100;

/// The directories that a walk has open.
#[derive(Debug, Default)]
pub struct HostTree {
    /// The open directories, the oldest first.
    open: RefCell<VecDeque<Weak<HostDirectory>>>,
}

/// A file: a name in a directory of the tree, or the path where a walk begins.
#[derive(Debug)]
pub struct HostFile {
    dir: Option<Rc<HostDirectory>>,
    name: OsString,
    /// The type and inode number in the directory's entry, on which nothing relies.
    listed_as: FileType,
    listed_ino: u64,
    /// `NOFOLLOW`, or empty if a symbolic link is to be followed.
    links: OFlags,
    opened: OnceCell<Box<OpenFile>>,
}

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    fd: Rc<OwnedFd>,
    stat: Stat,
    /// Whether the descriptor only refers to the file (`O_PATH`).
    is_reference: bool,
}

/// A directory whose files are read or made. It is opened when it is needed.
#[derive(Debug)]
pub struct HostDirectory {
    above: Option<Rc<HostDirectory>>,
    name: OsString,
    /// Device number and inode number.
    id: (u64, u64),
    fd: RefCell<Option<Rc<OwnedFd>>>,
    /// How much of each pattern its path has matched, once that is asked for.
    matched: OnceCell<MatchedPaths>,
}

impl Drop for HostDirectory {
    fn drop(&mut self) {
        // The directories above are dropped in a loop, since recursion in a deep tree would exceed
        // the stack.
        let mut above = self.above.take();
        while let Some(mut dir) = above.and_then(Rc::into_inner) {
            above = dir.above.take();
        }
    }
}

impl HostFile {
    /// The file where a walk begins. A symbolic link at the end of the path is followed if `follow`
    /// is set; below, none is.
    pub fn named(path: impl Into<PathBuf>, follow: bool) -> Self {
        let links = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let name = path.into().into_os_string();
        Self { dir: None, name, listed_as: FileType::Unknown, listed_ino: 0, links, opened: OnceCell::new() }
    }

    /// Returns whether a walk begins here.
    pub(crate) fn begins_walk(&self) -> bool {
        self.dir.is_none()
    }

    /// Its name in its directory, or the path of the file where a walk begins.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The inode number in the directory's entry. The inode may have another one.
    pub(crate) fn listed_ino(&self) -> u64 {
        self.listed_ino
    }

    /// How much of each pattern the path of its directory has matched.
    pub(crate) fn matched_above(&self, excluded: &Excluded) -> MatchedPaths {
        match &self.dir {
            Some(dir) if excluded.asks_for_paths() => dir.matched(excluded),
            _ => excluded.top(),
        }
    }

    /// The path that led to it, for messages.
    pub fn path(&self) -> PathBuf {
        let above = std::iter::successors(self.dir.as_deref(), |dir| dir.above.as_deref());
        let mut names: Vec<&OsStr> = above.map(|dir| &*dir.name).collect();
        names.reverse();
        names.push(&self.name);
        names.into_iter().collect()
    }
}

impl HostDirectory {
    /// Returns whether a walk begins here.
    pub fn is_first(&self) -> bool {
        self.above.is_none()
    }

    /// How much of each pattern its path from the beginning of the walk has matched.
    fn matched(&self, excluded: &Excluded) -> MatchedPaths {
        let mut unknown = Vec::new();
        let mut at = Some(self);
        let known = loop {
            let Some(dir) = at else { break None };
            if let Some(matched) = dir.matched.get() {
                break Some(matched.clone());
            }
            unknown.push(dir);
            at = dir.above.as_deref();
        };
        unknown
            .into_iter()
            .rev()
            .fold(known, |above, dir| {
                let matched =
                    above.map_or_else(|| excluded.top(), |above| excluded.step(&above, dir.name.as_bytes()).0);
                Some(dir.matched.get_or_init(|| matched).clone())
            })
            .unwrap_or_default()
    }
}

impl OpenFile {
    /// The bytes of data of a regular file, in whole blocks of 4 KiB, without holes.
    pub fn data_bytes(&self) -> io::Result<u64> {
        let (mut bytes, mut at) = (0, 0);
        while let Some((start, end)) = next_blocks(self, at, self.stat.st_size as u64)? {
            bytes += end.next_multiple_of(BLOCK) - start;
            at = end;
        }
        Ok(bytes)
    }

    /// The status of the file when it was opened.
    pub fn status(&self) -> &Stat {
        &self.stat
    }

    /// Its type.
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Device number and inode number.
    pub fn id(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// A path to the file for calls that don't take an `O_PATH` descriptor; `None` if the
    /// descriptor is a usual one.
    pub(crate) fn reference(&self) -> Option<String> {
        self.is_reference.then(|| format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}

impl AsFd for OpenFile {
    /// Regular files and directories can be read by the descriptor; for other files it may be an
    /// `O_PATH` one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl HostTree {
    /// Opens a file, unless it is open already.
    pub fn open<'a>(&self, file: &'a HostFile) -> io::Result<&'a OpenFile> {
        if let Some(opened) = file.opened.get() {
            return Ok(opened);
        }
        let opened = match &file.dir {
            Some(dir) => open_once(self.descriptor(dir)?.as_fd(), file)?,
            None => open_once(CWD, file)?,
        };
        Ok(file.opened.get_or_init(|| Box::new(opened)))
    }

    /// The status of what a name refers to now, which may be something else when it is opened.
    pub fn glance(&self, file: &HostFile) -> io::Result<Stat> {
        if preloaded::is_loaded() {
            return self.open(file).map(|opened| *opened.status());
        }
        let flags = if file.links.is_empty() { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(match &file.dir {
            Some(dir) => rustix::fs::statat(self.descriptor(dir)?, &file.name, flags)?,
            None => rustix::fs::statat(CWD, &file.name, flags)?,
        })
    }

    /// The files in a directory, in the order of the directory.
    pub fn children(&self, file: &HostFile) -> io::Result<Vec<HostFile>> {
        let opened = self.open(file)?;
        if opened.file_type() != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let (above, name) = (file.dir.clone(), file.name.clone());
        let dir =
            Rc::new(HostDirectory { above, name, id: opened.id(), fd: RefCell::default(), matched: OnceCell::new() });
        self.keep_open(&dir, Rc::clone(&opened.fd));
        // The directory may have been listed before.
        rustix::fs::seek(&opened.fd, SeekFrom::Start(0))?;
        let mut buf = [const { MaybeUninit::uninit() }; 16 << 10];
        let mut entries = RawDir::new(&opened.fd, &mut buf);
        let mut files = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                files.push(HostFile {
                    dir: Some(Rc::clone(&dir)),
                    name: OsString::from_vec(name.to_vec()),
                    listed_as: entry.file_type(),
                    listed_ino: entry.ino(),
                    links: OFlags::NOFOLLOW,
                    opened: OnceCell::new(),
                });
            }
        }
        Ok(files)
    }

    /// Returns the directory where a walk begins, which stays open.
    pub fn begin(dir: OwnedFd) -> io::Result<Rc<HostDirectory>> {
        let found = fstat(&dir)?;
        let (id, fd) = ((found.st_dev, found.st_ino), RefCell::new(Some(Rc::new(dir))));
        Ok(Rc::new(HostDirectory { above: None, name: OsString::new(), id, fd, matched: OnceCell::new() }))
    }

    /// Returns a directory that was opened by its name in another one.
    pub fn enter(&self, above: &Rc<HostDirectory>, name: &[u8], dir: OwnedFd) -> io::Result<Rc<HostDirectory>> {
        let found = fstat(&dir)?;
        let (above, name) = (Some(Rc::clone(above)), OsString::from_vec(name.to_vec()));
        let id = (found.st_dev, found.st_ino);
        let entered = Rc::new(HostDirectory { above, name, id, fd: RefCell::default(), matched: OnceCell::new() });
        self.keep_open(&entered, Rc::new(dir));
        Ok(entered)
    }

    /// The descriptor of a directory, which may have to be opened again.
    pub fn descriptor(&self, dir: &Rc<HostDirectory>) -> io::Result<Rc<OwnedFd>> {
        let (mut closed, mut at) = (Vec::new(), dir);
        let mut fd = loop {
            if let Some(fd) = &*at.fd.borrow() {
                break Rc::clone(fd);
            }
            closed.push(at);
            // The directory where the walk began is always open.
            at = at.above.as_ref().ok_or(Errno::BADF)?;
        };
        // Of the directories that are opened again, the last ones stay open for a walk that goes up
        // from here, and so do some between these and the top, from which the others can be
        // reached.
        let stride = (closed.len() / SPREAD).max(1);
        for (left, dir) in closed.into_iter().enumerate().rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = openat(&fd, &dir.name, flags, Mode::empty())?;
            let found = fstat(&opened)?;
            if (found.st_dev, found.st_ino) != dir.id {
                return Err(io::Error::other("another directory was put in the place of one above it"));
            }
            fd = Rc::new(opened);
            if left < SPREAD || left % stride == 0 {
                self.keep_open(dir, Rc::clone(&fd));
            }
        }
        Ok(fd)
    }

    /// Keeps a directory open, and if there are too many, closes the one that has been open the
    /// longest.
    fn keep_open(&self, dir: &Rc<HostDirectory>, fd: Rc<OwnedFd>) {
        dir.fd.replace(Some(fd));
        if dir.above.is_none() {
            return;
        }
        let mut open = self.open.borrow_mut();
        open.push_back(Rc::downgrade(dir));
        if open.len() > MAX_OPEN {
            // Directories that nobody needs any more are closed already.
            open.retain(|dir| dir.strong_count() > 0);
        }
        if open.len() > MAX_OPEN
            && let Some(oldest) = open.pop_front().and_then(|dir| dir.upgrade())
        {
            oldest.fd.take();
        }
        assert!(open.len() <= MAX_OPEN, "invariant 47: more directories are open than may be");
    }
}

/// The next range of data of a file, or the whole rest if the file system doesn't support
/// `SEEK_DATA`.
pub(crate) fn next_data(file: impl AsFd, from: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if from >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(&file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => from,
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
    Ok((start < end).then_some((start, end)))
}

/// The next range of data in whole blocks, with adjacent blocks joined, so that it does not depend
/// on the block size of the file system. The last block ends at the end of the file.
pub(crate) fn next_blocks(file: impl AsFd, from: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    let whole = |end: u64| end.next_multiple_of(BLOCK).min(size);
    let Some((start, end)) = next_data(&file, from, size)? else { return Ok(None) };
    let mut end = whole(end);
    while let Some((next, its_end)) = next_data(&file, end, size)? {
        if next - next % BLOCK > end {
            break;
        }
        end = whole(its_end);
    }
    Ok(Some((from.max(start - start % BLOCK), end)))
}

/// Opens a file by its name. Only files that were listed as regular ones or directories are opened
/// for reading, and without blocking, in case a FIFO has taken their place. Devices are not opened,
/// since that may have an effect.
fn open_once(dir: BorrowedFd<'_>, file: &HostFile) -> io::Result<OpenFile> {
    let is_read = |file_type| matches!(file_type, FileType::RegularFile | FileType::Directory);
    let mut is_reference = !is_read(file.listed_as);
    for _ in 0..TRIES {
        let how = if is_reference { OFlags::PATH } else { OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY };
        let fd = match openat(dir, Path::new(&file.name), how | file.links | OFlags::CLOEXEC, Mode::empty()) {
            // A symbolic link, a socket or a device has taken its place.
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) if !is_reference => {
                is_reference = true;
                continue;
            }
            fd => fd?,
        };
        let stat = preloaded::status(fd.as_fd())?;
        if is_reference && is_read(FileType::from_raw_mode(stat.st_mode)) {
            is_reference = false;
            continue;
        }
        return Ok(OpenFile { fd: Rc::new(fd), stat, is_reference });
    }
    Err(io::Error::other("it is replaced again and again"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use super::*;

    /// Makes nested directories, each called `d` and with a file beside it.
    fn deep(top: &Path, levels: u32) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(top, flags, Mode::empty()).unwrap();
        for level in 0..levels {
            let file = openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            rustix::io::write(&file, level.to_string().as_bytes()).unwrap();
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn each_level_of_a_deep_tree_is_reached_again_with_few_directories_open() {
        const LEVELS: u32 = 2500;
        let dir = tempfile::tempdir().unwrap();
        deep(dir.path(), LEVELS);
        let tree = HostTree::default();
        let mut left = vec![HostFile::named(dir.path(), false)];
        let (mut found, mut longest) = (Vec::new(), 0);
        // The walk goes down first, and visits the files on the way back up.
        while let Some(file) = left.pop() {
            if tree.open(&file).unwrap().file_type() == FileType::Directory {
                let mut children = tree.children(&file).unwrap();
                children.sort_unstable_by(|one, other| other.name().cmp(one.name()));
                left.extend(children);
            } else {
                let mut buf = [0; 8];
                let read = rustix::io::pread(tree.open(&file).unwrap(), &mut buf, 0).unwrap();
                found.push(std::str::from_utf8(&buf[..read]).unwrap().parse::<u32>().unwrap());
                longest = longest.max(file.path().as_os_str().len());
            }
            assert!(tree.open.borrow().len() <= MAX_OPEN);
        }
        assert_eq!(found, (0..LEVELS).rev().collect::<Vec<_>>());
        assert!(longest > 4096);
        let removed = std::process::Command::new("rm").arg("-rf").arg(dir.path()).status().unwrap();
        assert!(removed.success());
    }

    /// Hard links lead from one deep directory to another.
    #[test]
    fn ways_to_several_deep_directories_stay_open() {
        const LEVELS: u32 = 600;
        let dir = tempfile::tempdir().unwrap();
        let tree = HostTree::default();
        let bottoms = ["one", "two"].map(|name| {
            fs::create_dir(dir.path().join(name)).unwrap();
            deep(&dir.path().join(name), LEVELS);
            let mut at = HostFile::named(dir.path().join(name), false);
            loop {
                let Some(below) = tree.children(&at).unwrap().into_iter().find(|child| child.name() == "d") else {
                    break at.dir.clone().unwrap();
                };
                at = below;
            }
        });
        for dir in bottoms.iter().cycle().take(6) {
            tree.descriptor(dir).unwrap();
        }
        assert!(bottoms.iter().all(|dir| dir.fd.borrow().is_some()), "one is opened again for each turn");
        assert!(tree.open.borrow().len() <= MAX_OPEN);
        let removed = std::process::Command::new("rm").arg("-rf").arg(dir.path()).status().unwrap();
        assert!(removed.success());
    }

    #[test]
    fn a_directory_that_took_the_place_of_one_above_is_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let levels = MAX_OPEN as u32 + 10;
        deep(dir.path(), levels);
        let tree = HostTree::default();
        // The files of each level that are to be looked at later.
        let mut kept = HashMap::new();
        let mut at = HostFile::named(dir.path(), false);
        for level in 0..levels {
            let mut below = None;
            for child in tree.children(&at).unwrap() {
                if child.name() == "d" { below = Some(child) } else { drop(kept.insert(level, child)) }
            }
            at = below.unwrap();
        }
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::create_dir(other.join("d")).unwrap();
        fs::write(other.join("d/file"), "another's").unwrap();
        fs::rename(dir.path().join("d/d"), dir.path().join("was")).unwrap();
        let replacements: [&dyn Fn(); 2] =
            [&|| std::os::unix::fs::symlink(&other, dir.path().join("d/d")).unwrap(), &|| {
                fs::remove_file(dir.path().join("d/d")).unwrap();
                fs::rename(&other, dir.path().join("d/d")).unwrap();
            }];
        for replace in replacements {
            replace();
            // These were open the longest, and are closed by now.
            for level in [2, 3] {
                tree.open(&kept[&level]).unwrap_err();
            }
            // Nothing above these has changed, and open files are still the same.
            for level in [0, levels - 1] {
                tree.glance(&kept[&level]).unwrap();
            }
        }
    }

    #[test]
    fn a_tree_that_is_deeper_than_the_stack_is_let_go() {
        let drop_it = || {
            let mut at: Option<Rc<HostDirectory>> = None;
            for _ in 0..500_000 {
                let (name, fd) = (OsString::new(), RefCell::default());
                at = Some(Rc::new(HostDirectory { above: at, name, id: (0, 0), fd, matched: OnceCell::new() }));
            }
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(drop_it).unwrap().join().unwrap();
    }

    #[test]
    fn nothing_waits_for_what_has_come_in_the_place_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["a", "b", "c", "d"] {
            fs::write(at(name), name).unwrap();
        }
        let tree = HostTree::default();
        let mut files = tree.children(&HostFile::named(dir.path(), false)).unwrap();
        files.sort_by(|one, other| one.name().cmp(other.name()));
        for name in ["a", "b", "c"] {
            fs::remove_file(at(name)).unwrap();
        }
        rustix::fs::mknodat(CWD, at("a"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(at("b")).unwrap();
        fs::create_dir(at("c")).unwrap();
        let found = files.iter().map(|file| tree.open(file).unwrap().file_type());
        let expected = [FileType::Fifo, FileType::Socket, FileType::Directory, FileType::RegularFile];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        drop(socket);
    }
}

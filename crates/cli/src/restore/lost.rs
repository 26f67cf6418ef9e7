//! Copies inodes that no directory refers to, because the entries are lost. They are found by their
//! own items, and copied to the place that their names give, or to `lost+found`.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

use ubtrfs::{Errno, FoundInode, InodeId};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::FileType;
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_image::is_name;

use super::record::Fate;
use super::walk::Walk;
use super::way::Way;
use crate::failure::{Failure, Result};
use crate::host::target::{self, Shown};

/// How many inodes are processed at a time.
const BATCH: usize = 256;
/// How many directories are remembered with their ways.
const MAX_WAYS: usize = 1 << 16;
/// How many names are tried for an inode in `lost+found`.
const MAX_NAMES: u32 = 1000;
const LOST: &[u8] = b"lost+found";

/// The result of copying an inode to a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placed {
    /// It was copied, or the reason why not was noted.
    Yes,
    NameTaken,
    /// A component of its path is something else, such as a symbolic link in place of a directory.
    NoWay,
}

/// The place of an inode by its own items: its directory, if that is known, and its name.
pub struct Home {
    parent: Option<Ino>,
    name: Vec<u8>,
}

impl Home {
    fn of(inode: &FoundInode) -> Self {
        match inode.names.first() {
            // A hostile volume may have names that no file can have.
            Some((parent, name)) if is_name(name) => Self { parent: Some(*parent), name: name.clone() },
            _ => Self::lost(inode.ino),
        }
    }

    fn lost(ino: Ino) -> Self {
        Self { parent: None, name: format!("inode-{ino}").into_bytes() }
    }

    /// Returns the place in `lost+found` for an inode whose first `taken` names are in use.
    fn lost_besides(ino: Ino, taken: u32) -> Self {
        if taken == 0 {
            return Self::lost(ino);
        }
        Self { parent: None, name: format!("inode-{ino}.{taken}").into_bytes() }
    }
}

impl Walk<'_> {
    /// Copies inodes that the walk has not found. They are searched for even if every block was
    /// readable, since a tree with wrong contents may have correct checksums.
    pub fn lost_inodes(&mut self) -> Result<()> {
        // Only those below the root of the copied subvolume, since the location of other subvolumes
        // is unknown.
        let Some(subvolume) = self.subvolumes.first().copied() else { return Ok(()) };
        let mut from = Ino::ROOT_DIR;
        loop {
            let found = match self.source.fs.find_inodes(subvolume, from, BATCH) {
                Ok(found) => found,
                Err(error) => {
                    self.record.general(&format!("lost files can't be looked for: {}", sentence(&error)));
                    return Ok(());
                }
            };
            let Some(last) = found.last() else { return Ok(()) };
            let is_end = found.len() < BATCH;
            from = Ino(last.ino.0 + 1);
            for inode in found {
                self.lost_inode(subvolume, &inode)?;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    /// Returns the place of an inode of an old commit; `None` if it did not exist any more, or is
    /// not wanted.
    pub fn home_of(&mut self, subvolume: TreeId, ino: Ino) -> Result<Option<Home>> {
        let found = self.source.fs.find_inodes(subvolume, ino, 1).map_err(|error| Failure::of(&error))?;
        let Some(inode) = found.into_iter().next().filter(|found| found.ino == ino && found.is_alive) else {
            return Ok(None);
        };
        let home = Home::of(&inode);
        let Some(wanted) = self.arguments.path.as_ref() else { return Ok(Some(home)) };
        // Finds the path without making a directory.
        let way = self.way_to(subvolume, home.parent).map_err(|error| Failure::about("/", &error))?;
        let path = way.path.join(home.name.clone());
        let mut names = path.names().into_iter();
        let mut wanted = wanted.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        Ok(wanted.all(|name| names.next() == Some(name)).then_some(home))
    }

    /// Copies an inode to its place, or to `lost+found` if that is in use.
    pub fn place_at(&mut self, id: InodeId, home: &Home) -> Result<()> {
        self.place_or_lose(id, home, None, "its name is taken by something else")
    }

    fn lost_inode(&mut self, subvolume: TreeId, inode: &FoundInode) -> Result<()> {
        let id = InodeId::new(subvolume, inode.ino);
        if !inode.is_alive || inode.ino == Ino::ROOT_DIR || self.seen.contains(id) {
            return Ok(());
        }
        // A log that came after the commit may have removed the inode.
        if self.source.fs.inodes().attributes(id).is_err_and(|error| error.errno() == Errno::NOENT) {
            return Ok(());
        }
        let why = "no directory refers to it any more";
        self.place_or_lose(id, &Home::of(inode), Some(why), why)
    }

    /// Copies an inode to its place, or to `lost+found` if that is in use. Notes that it was found,
    /// with `placed` in the first case, and with `lost` in the second.
    fn place_or_lose(&mut self, id: InodeId, home: &Home, placed: Option<&str>, lost: &str) -> Result<()> {
        if home.parent.is_some() && self.place(id, home, placed)? == Placed::Yes {
            return Ok(());
        }
        // An earlier restore, from another volume, may have used such names.
        for taken in 0..MAX_NAMES {
            match self.place(id, &Home::lost_besides(id.ino, taken), Some(lost))? {
                Placed::Yes => return Ok(()),
                Placed::NameTaken => {}
                Placed::NoWay => break,
            }
        }
        self.record.general(&format!("inode {} has no place in lost+found: it is not copied", id.ino));
        Ok(())
    }

    /// Copies an inode that the walk has not found, and notes how it was found, if that is given.
    fn place(&mut self, id: InodeId, home: &Home, found: Option<&str>) -> Result<Placed> {
        let name = &home.name;
        let way = match self.way_to(id.subvolume, home.parent) {
            Ok(way) => way,
            Err(error) if target::is_fatal(&error) => return Err(Failure::about(LOST.escape_ascii(), &error)),
            Err(error) => {
                let what = format!("inode {} can't be put where it was: {}", id.ino, sentence(&error));
                self.record.general(&what);
                return Ok(Placed::NoWay);
            }
        };
        let opened = way.at.as_ref().zip(self.target.as_ref()).map(|(at, target)| target.descriptor(at));
        let opened = opened.transpose().map_err(|error| Failure::about(Shown(&way.path), &error))?;
        let times = opened.as_ref().map(|at| target::times(at)).transpose();
        let times = times.map_err(|error| Failure::about(Shown(&way.path), &error))?;
        let there = opened.as_ref().and_then(|at| target::type_of(at, name));
        let path = way.path.join(name.clone());
        if !self.is_wanted(&path) {
            return Ok(Placed::Yes);
        }
        let attributes = self.source.fs.inodes().attributes(id).ok();
        let is_directory = attributes.as_ref().is_some_and(|attributes| attributes.file_type == FileType::Directory);
        let is_there = || {
            let (at, attributes) = (opened.as_ref()?, attributes.as_ref()?);
            Some(self.is_there(at, name, attributes, &path))
        };
        let entered = match there {
            // A directory that was made as the parent of another file is entered.
            Some(rustix::fs::FileType::Directory) if is_directory => self.seen.insert(id),
            Some(_) if is_there() != Some(true) => return Ok(Placed::NameTaken),
            _ => {
                let lost = self.record.fates.lost;
                let entered = self.entry(&way, name, id)?;
                if let Some(why) = found.filter(|_| self.record.fates.lost == lost) {
                    self.record.note(&path, &Fate::Found(why));
                }
                entered
            }
        };
        if entered {
            let to = self.enter(&way, name)?;
            self.below(&to, id)?;
        }
        if let (Some(at), Some(times)) = (&opened, &times) {
            let _ = target::set_times(at, times);
        }
        Ok(Placed::Yes)
    }

    /// Returns the way to a directory, and makes it if it does not exist. If the names of its
    /// parents don't reach the top, or are not known, it is below `lost+found`.
    fn way_to(&mut self, subvolume: TreeId, directory: Option<Ino>) -> std::io::Result<Way> {
        if self.ways.len() > MAX_WAYS {
            self.ways.clear();
        }
        let (mut below, mut met) = (Vec::new(), HashSet::new());
        let mut at = directory;
        let mut way = loop {
            match at {
                None => break self.step(&self.top(), LOST)?,
                Some(Ino::ROOT_DIR) => break self.top(),
                Some(ino) => {
                    if let Some(known) = self.ways.get(&ino) {
                        break known.clone();
                    }
                    let found = self.source.fs.find_inodes(subvolume, ino, 1).unwrap_or_default();
                    let home = found.first().filter(|found| found.ino == ino).map(Home::of);
                    // The directories of a damaged volume may form a loop.
                    let home = home.filter(|_| met.insert(ino)).unwrap_or_else(|| Home::lost(ino));
                    at = home.parent;
                    below.push((ino, home.name));
                }
            }
        };
        for (ino, name) in below.into_iter().rev() {
            way = self.step(&way, &name)?;
            self.ways.insert(ino, way.clone());
        }
        Ok(way)
    }

    /// Returns a directory in another one, and makes it if it does not exist.
    fn step(&self, above: &Way, name: &[u8]) -> std::io::Result<Way> {
        let path = above.path.join(name);
        let Some((at, target)) = above.at.as_ref().zip(self.target.as_ref()) else {
            return Ok(Way { path, at: None });
        };
        let opened = target.descriptor(at)?;
        if target::type_of(&opened, name).is_none() {
            target::make_directory(&opened, name)?;
        }
        Ok(Way { path, at: Some(target.enter(at, name)?) })
    }
}

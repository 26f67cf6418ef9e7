//! Inodes to which no directory refers, because the entries are lost: they are found by their own
//! items, and put where their names say, or under `lost+found`.

use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use ubtrfs::{FoundInode, InodeId};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_image::{HostDirectory, is_name};
use ubtrfs_tree::sentence;

use super::walk::Walk;
use crate::failure::{Failure, Result};
use crate::host::target::{self, joined};

/// Inodes that are processed together.
const BATCH: usize = 256;
/// The greatest number of names in the path to the root; a damaged volume may have a loop.
const MOST_NAMES: usize = 4096;
const LOST: &[u8] = b"lost+found";

impl Walk<'_> {
    /// Copies inodes that the walk has not found. Without damage to the trees there are none.
    pub fn lost_inodes(&mut self) -> Result<()> {
        if self.source.damage.count() == 0 && self.problems.is_empty() {
            return Ok(());
        }
        // Only below the root of the copied subvolume: the location of other subvolumes is unknown.
        let Some(subvolume) = self.subvolumes.first().copied() else { return Ok(()) };
        let mut from = Ino::ROOT_DIR;
        loop {
            let found = match self.source.fs.find_inodes(subvolume, from, BATCH) {
                Ok(found) => found,
                Err(error) => {
                    self.problems.add("/", format!("lost files can't be looked for: {}", sentence(&error)));
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

    /// Where an inode of an old commit was; nothing if it was no longer there, or isn't wanted.
    pub fn path_of(&mut self, subvolume: TreeId, ino: Ino) -> Result<Option<Vec<Vec<u8>>>> {
        let found = match self.source.fs.find_inodes(subvolume, ino, 1) {
            Ok(found) => found,
            Err(error) => return Err(Failure::of(&error)),
        };
        let Some(inode) = found.into_iter().next().filter(|found| found.ino == ino && found.is_alive) else {
            return Ok(None);
        };
        let mut path = match inode.names.into_iter().next() {
            Some((parent, name)) => [self.way_to(subvolume, parent), vec![name]].concat(),
            None => vec![LOST.to_vec(), format!("inode-{ino}").into_bytes()],
        };
        // Hostile images have other names.
        if !path.iter().all(|name| is_name(name)) {
            path = vec![LOST.to_vec(), format!("inode-{ino}").into_bytes()];
        }
        let wanted = self.arguments.path.as_ref().map(|path| path.as_bytes()).unwrap_or_default();
        let mut wanted = wanted.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let mut names = path.iter();
        let is_wanted = wanted.all(|name| names.next().is_some_and(|other| other == name));
        Ok(is_wanted.then_some(path))
    }

    /// Copies an inode to a path, or under `lost+found` if that is taken.
    pub fn place_at(&mut self, id: InodeId, path: &[Vec<u8>]) -> Result<()> {
        let lost = vec![LOST.to_vec(), format!("inode-{}", id.ino).into_bytes()];
        if !self.place(id, path.to_vec())? && path != lost {
            self.problems.add(joined(path), format!("it is under {}", joined(&lost)));
            self.place(id, lost)?;
        }
        Ok(())
    }

    fn lost_inode(&mut self, subvolume: TreeId, inode: &FoundInode) -> Result<()> {
        let id = InodeId::new(subvolume, inode.ino);
        if !inode.is_alive || inode.ino == Ino::ROOT_DIR || self.seen.contains(id) {
            return Ok(());
        }
        let lost = vec![LOST.to_vec(), format!("inode-{}", inode.ino).into_bytes()];
        let path = match inode.names.first() {
            Some((parent, name)) => {
                let mut path = self.way_to(subvolume, *parent);
                path.push(name.clone());
                path
            }
            None => lost.clone(),
        };
        if let Some(odd) = path.iter().find(|name| !is_name(name)) {
            let odd = crate::show::bytes(odd);
            self.problems.add(joined(&path), format!("nothing can have the name '{odd}'"));
            return Ok(());
        }
        self.problems.add(joined(&path), "no directory refers to it any more");
        self.place_at(id, &path)
    }

    /// Copies an inode that the walk has not found to `path`. False if that or a part of it is
    /// taken, for example by a symbolic link in place of a directory.
    fn place(&mut self, id: InodeId, mut path: Vec<Vec<u8>>) -> Result<bool> {
        let Some(name) = path.pop() else { return Ok(false) };
        let (at, times) = match self.make_way(&path) {
            Ok(at) => at,
            Err(error) if target::is_fatal(&error) => return Err(Failure::about(joined(&path), &error)),
            Err(error) => {
                self.problems.add(joined(&path), sentence(&error));
                return Ok(false);
            }
        };
        let opened = at.as_ref().zip(self.target.as_ref()).map(|(at, target)| target.descriptor(at));
        let opened = opened.transpose().map_err(|error| Failure::about(joined(&path), &error))?;
        let there = opened.as_ref().and_then(|at| target::type_of(at, &name));
        let is_directory =
            self.source.fs.attributes(id).is_ok_and(|attributes| attributes.file_type == FileType::Directory);
        let entered = match there {
            // A directory that was made as a parent of another file is entered, not made.
            Some(rustix::fs::FileType::Directory) if is_directory => self.seen.insert(id),
            Some(_) => return Ok(false),
            None => self.entry(at.as_ref(), &path, &name, id)?,
        };
        if entered {
            let to = self.enter(at.as_ref(), &path, &name)?;
            path.push(name);
            self.below(&mut path, to, id)?;
        }
        if let (Some(at), Some(times)) = (&opened, &times) {
            let _ = target::set_times(at, times);
        }
        Ok(true)
    }

    /// The names from the root to a directory; from `lost+found` on if the root can't be reached.
    fn way_to(&self, subvolume: TreeId, directory: Ino) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = directory;
        while at != Ino::ROOT_DIR {
            let found = self.source.fs.find_inodes(subvolume, at, 1).unwrap_or_default();
            let parent = found.first().filter(|found| found.ino == at).and_then(|found| found.names.first());
            let (Some((parent, name)), true) = (parent, names.len() < MOST_NAMES) else {
                names.push(format!("inode-{at}").into_bytes());
                names.push(LOST.to_vec());
                break;
            };
            names.push(name.clone());
            at = *parent;
        }
        names.reverse();
        names
    }

    /// Makes the directories of a path that are not there. Returns the last one, and its times as
    /// they should stay.
    #[allow(clippy::type_complexity, reason = "two things of one directory")]
    fn make_way(
        &self,
        path: &[Vec<u8>],
    ) -> std::io::Result<(Option<Rc<HostDirectory>>, Option<rustix::fs::Timestamps>)> {
        let Some(target) = &self.target else { return Ok((None, None)) };
        let mut at = Rc::clone(target.root());
        for name in path {
            let above = target.descriptor(&at)?;
            if target::type_of(&above, name).is_none() {
                target::make_directory(&above, name)?;
            }
            at = target.enter(&at, name)?;
        }
        let times = target::times(&*target.descriptor(&at)?)?;
        Ok((Some(at), Some(times)))
    }
}

//! Copying a tree of files into a volume.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ubtrfs::format::TreeId;
use ubtrfs::format::items::FileType;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, SetAttributes};

use crate::attributes::{Attributes, give_property};
use crate::content::Target;
use crate::error::{Error, Obstacle, Result, inside, shown};
use crate::inside::lookup;
use crate::job::Job;
use crate::linked_path::add_name;
use crate::source::{Child, Description, Source};

/// Whether a copy within a volume shares extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflink {
    /// Where it can be done.
    #[default]
    Auto,
    /// It is an error where it can't be done.
    Always,
    /// Data is copied.
    Never,
}

/// How files are copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Owners, permissions, times, extended attributes and hard links are as before.
    pub archive: bool,
    /// Directories are copied with all that is in them.
    pub recursive: bool,
    /// Whether extents are shared.
    pub reflink: Reflink,
    /// Data that a file of the same job has already is shared with it.
    pub dedupe: bool,
    /// The owner of what is made, unless `archive` says otherwise.
    pub owner: (u32, u32),
    /// Permissions that what is made does not get, unless `archive` says otherwise.
    pub umask: u32,
}

/// A directory that is being copied.
struct Frame<N> {
    to: InodeId,
    /// What it gets in the end.
    description: Description,
    /// It was not there before.
    is_new: bool,
    /// What is still to be copied, the last one first.
    left: Vec<Child<N>>,
}

/// Copies of one command: hard links among them are kept.
struct Copier<'a, 'b, S: Source> {
    fs: &'a Filesystem,
    job: &'a mut Job<'b>,
    source: &'a S,
    options: CopyOptions,
    /// What was made of an inode with several names, in each subvolume.
    links: HashMap<((u64, u64), TreeId), InodeId>,
}

/// Where a copy goes; `path` is that of what is made, for messages.
#[derive(Clone, Debug)]
pub enum Destination {
    /// Into a directory, under the last name of the path.
    Into(InodeId, PathBuf),
    /// What is copied is a directory, and becomes this one.
    Onto(InodeId, PathBuf),
}

/// Copies several files into a volume. What is there is replaced: a file by a file, and directories
/// are united.
pub fn copy_into<S: Source>(
    fs: &Filesystem,
    source: &S,
    options: CopyOptions,
    files: impl IntoIterator<Item = (S::Node, Destination)>,
    job: &mut Job<'_>,
) -> Result<()> {
    let mut copier = Copier { fs, job, source, options, links: HashMap::new() };
    files.into_iter().try_for_each(|(node, to)| copier.copy(&node, to))
}

impl<S: Source> Copier<'_, '_, S> {
    fn copy(&mut self, node: &S::Node, to: Destination) -> Result<()> {
        let (first, path) = match to {
            Destination::Into(dir, path) => {
                self.refuse_within(node, dir, &path)?;
                (self.one(node, dir, &path)?, path)
            }
            Destination::Onto(dir, path) => (Some(self.onto(node, dir, &path)?), path),
        };
        let mut frames: Vec<_> = first.into_iter().collect();
        // One path for all of them: a tree that is n deep takes no n² bytes.
        let mut path = path.into_os_string().into_vec();
        let mut ends = vec![path.len()];
        while let Some(frame) = frames.last_mut() {
            let end = ends.last().copied().unwrap_or_default();
            path.truncate(end);
            if let Some((name, node)) = frame.left.pop() {
                add_name(&mut path, &name);
                let dir = frame.to;
                if let Some(below) = self.one(&node, dir, as_path(&path))? {
                    frames.push(below);
                    ends.push(path.len());
                }
            } else if let Some(done) = frames.pop() {
                ends.pop();
                self.finish(done.to, as_path(&path), &done.description, done.is_new)?;
                self.fs.references().forget(done.to, 1);
                self.job.done(FileType::Directory)?;
            }
        }
        Ok(())
    }

    /// Copies one file; of a directory, what is in it remains to be copied.
    fn one(&mut self, node: &S::Node, dir: InodeId, path: &Path) -> Result<Option<Frame<S::Node>>> {
        let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
        let description = self.source.describe(node)?;
        let present = lookup(self.fs, dir, &name).map_err(inside(path))?;
        if description.file_type() == FileType::Directory {
            return self.directory(node, dir, (&name, path), description, present).map(Some);
        }
        if let Some((_, FileType::Directory)) = present {
            return Err(refused(path, "is a directory, which no file replaces"));
        }
        if present.is_some_and(|(id, _)| self.source.inode(node) == Some(id)) {
            return Err(refused(path, "is the file that it would be copied from"));
        }
        // No link leads from one subvolume to another: each has an inode of its own.
        let identity = description.identity.filter(|_| self.options.archive).map(|identity| (identity, dir.subvolume));
        let first = identity.and_then(|identity| self.links.get(&identity).copied());
        if first.is_some() && first == present.map(|(id, _)| id) {
            return Ok(None);
        }
        if let Some((id, FileType::Regular)) = present
            && description.file_type() == FileType::Regular
            && !self.options.archive
        {
            let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
            self.fs.inodes().set_attributes(id, &empty).map_err(inside(path))?;
            self.content(node, &description, id, path)?;
            self.job.done(FileType::Regular)?;
            return Ok(None);
        }
        if present.is_some() {
            self.fs.directories().unlink(dir, &name).map_err(inside(path))?;
        }
        if let Some(first) = first {
            self.fs.directories().link(first, dir, &name).map_err(inside(path))?;
            self.job.done(description.file_type())?;
            return Ok(None);
        }
        let new = self.new_inode(dir, &description).map_err(inside(path))?;
        let made = self.fs.directories().create(dir, &name, &new).map_err(inside(path))?;
        if description.file_type() == FileType::Regular {
            self.job.made(self.fs, made, path)?;
            if self.options.archive {
                give_property(self.fs, made, &description.xattrs, path)?;
            }
            self.content(node, &description, made, path)?;
        }
        self.finish(made, path, &description, true)?;
        self.fs.references().forget(made, 1);
        if let Some(identity) = identity {
            self.links.insert(identity, made);
        }
        self.job.done(description.file_type())?;
        Ok(None)
    }

    /// Unites a directory with one that is there.
    fn onto(&self, node: &S::Node, to: InodeId, path: &Path) -> Result<Frame<S::Node>> {
        let description = self.source.describe(node)?;
        if description.file_type() != FileType::Directory {
            return Err(refused(path, "is a directory, which no file replaces"));
        }
        self.refuse_within(node, to, path)?;
        let mut left = self.source.children(node)?;
        left.reverse();
        self.fs.references().reference(to);
        self.job.made(self.fs, to, path)?;
        Ok(Frame { to, description, is_new: false, left })
    }

    fn directory(
        &self,
        node: &S::Node,
        dir: InodeId,
        (name, path): (&[u8], &Path),
        description: Description,
        present: Option<(InodeId, FileType)>,
    ) -> Result<Frame<S::Node>> {
        if !self.options.recursive {
            let what = format!("{} would be a copy of a directory", shown(path));
            return Err(Error::Blocked { what, obstacle: Obstacle::CopyOfDirectory });
        }
        let is_new = present.is_none();
        let (to, mut left) = match present {
            Some((id, FileType::Directory)) => {
                self.fs.references().reference(id);
                (id, self.source.children(node)?)
            }
            Some(_) => return Err(refused(path, "is no directory, and no directory replaces it")),
            None => {
                let left = self.source.children(node)?;
                let new = self.new_inode(dir, &description).map_err(inside(path))?;
                (self.fs.directories().create(dir, name, &new).map_err(inside(path))?, left)
            }
        };
        self.job.made(self.fs, to, path)?;
        left.reverse();
        Ok(Frame { to, description, is_new, left })
    }

    /// Refuses a copy into what is copied. If it begins outside of that, no directory below comes
    /// to be in the one that it is copied from: both are equally deep.
    fn refuse_within(&self, node: &S::Node, to: InodeId, path: &Path) -> Result<()> {
        if self.source.inode(node).is_some_and(|from| self.is_within(to, from)) {
            return Err(refused(path, "is in the directory that it would be copied from"));
        }
        Ok(())
    }

    /// Whether a directory is `above` or below it.
    fn is_within(&self, mut dir: InodeId, above: InodeId) -> bool {
        // The parents of a damaged volume may have no end.
        let mut passed = HashSet::new();
        while passed.insert(dir) && dir != above {
            let Ok(parent) = self.fs.directories().parent(dir) else { return false };
            dir = parent;
        }
        dir == above
    }

    /// As by cp(1): of a file a plain copy keeps no set-id bits and no sticky bit, of a directory
    /// the latter, of others all; and the umask or a default ACL of the directory counts. Of the
    /// umask what keeps others from writing to a directory counts even there.
    fn new_inode(&self, dir: InodeId, of: &Description) -> ubtrfs::Result<NewInode> {
        let CopyOptions { archive, owner, umask, .. } = self.options;
        let (rdev, symlink_target) = (of.rdev, of.target.clone());
        let new = NewInode { mode: of.mode, rdev, symlink_target, ..NewInode::default() };
        if archive {
            return Ok(NewInode { uid: of.uid, gid: of.gid, ..new });
        }
        let dropped = match of.file_type() {
            FileType::Directory => 0o6000 | umask & 0o022,
            FileType::Regular => 0o7000,
            _ => 0,
        };
        let new = NewInode { mode: of.mode & !dropped, uid: owner.0, gid: owner.1, ..new };
        self.fs.inodes().inheriting(dir, new, umask)
    }

    /// Fills an empty file.
    fn content(&mut self, node: &S::Node, description: &Description, to: InodeId, path: &Path) -> Result<()> {
        let size = description.size;
        let shared = match (self.source.inode(node), self.options.reflink) {
            (_, Reflink::Never) | (None, Reflink::Auto) => 0,
            (None, Reflink::Always) => {
                return Err(refused(path, "can share extents only with a file of the same volume"));
            }
            (Some(from), _) if size > 0 => match self.fs.files().clone_range(from, 0, to, 0, size) {
                Ok(shared) => shared,
                Err(error) if error.errno() == Errno::OPNOTSUPP => 0,
                Err(error) => return Err(inside(path)(error)),
            },
            _ => 0,
        };
        self.job.share(shared);
        if shared == size && self.source.inode(node).is_some() {
            return Ok(());
        }
        if self.options.reflink == Reflink::Always {
            let what = format!("{} can't share extents with that file", shown(path));
            return Err(Error::Blocked { what, obstacle: Obstacle::Unshareable });
        }
        let set_size = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.fs.inodes().set_attributes(to, &set_size).map_err(inside(path))?;
        let (job, fs, dedupe) = (&mut *self.job, self.fs, self.options.dedupe);
        let to = Target { id: to, size };
        let found = self.source.read(node, size, &mut |at, data| {
            let skipped = shared.saturating_sub(at).min(data.len() as u64);
            job.write(fs, to, at + skipped, &data[skipped as usize..], dedupe).map_err(inside(path))
        })?;
        if found < size {
            job.note_shrunk(path);
            let set_size = SetAttributes { size: Some(found), ..SetAttributes::default() };
            fs.inodes().set_attributes(to.id, &set_size).map_err(inside(path))?;
        }
        Ok(())
    }

    /// Gives a copy the attributes of what it was copied from.
    fn finish(&self, id: InodeId, path: &Path, of: &Description, is_new: bool) -> Result<()> {
        if !self.options.archive {
            return Ok(());
        }
        if !is_new {
            let names: Vec<_> = of.xattrs.iter().map(|(name, _)| name).collect();
            for old in self.fs.inodes().list_xattrs(id).map_err(inside(path))? {
                if !names.contains(&&old) {
                    self.fs.inodes().drop_xattr(id, &old).map_err(inside(path))?;
                }
            }
        }
        let Description { uid, gid, mode, ref xattrs, atime, mtime, .. } = *of;
        Attributes { owner: (uid, gid), mode, xattrs, atime, mtime, btime: None }.give(self.fs, id, path)
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Refused(format!("{} {why}", shown(path)))
}

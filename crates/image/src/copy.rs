//! Copies a tree of files into a volume.

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
    /// Where that is possible.
    #[default]
    Auto,
    /// Always, or fail where that is impossible.
    Always,
    /// Never: data is copied.
    Never,
}

/// How files are copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Whether to keep owners, permissions, times, extended attributes and hard links.
    pub archive: bool,
    /// Whether to copy directories with all that is in them.
    pub recursive: bool,
    /// Whether extents are shared.
    pub reflink: Reflink,
    /// Whether to share data with a file of the same job that has it already.
    pub dedupe: bool,
    /// The owner of new files, unless `archive` is set.
    pub owner: (u32, u32),
    /// Permissions that new files do not get, unless `archive` is set.
    pub umask: u32,
}

/// A directory that is being copied.
struct Frame<N> {
    to: InodeId,
    /// The attributes that it gets in the end.
    description: Description,
    /// Whether it is new.
    is_new: bool,
    /// What is still to be copied, in reverse order.
    left: Vec<Child<N>>,
}

/// The copies of one command, which keep hard links among them.
struct Copier<'a, 'b, S: Source> {
    fs: &'a Filesystem,
    job: &'a mut Job<'b>,
    source: &'a S,
    options: CopyOptions,
    /// For each inode with several names, its copy in each subvolume.
    links: HashMap<((u64, u64), TreeId), InodeId>,
}

/// The destination of a copy, with its path for messages.
#[derive(Clone, Debug)]
pub enum Destination {
    /// Into a directory, under the last name of the path.
    Into(InodeId, PathBuf),
    /// Onto this directory, if the source is a directory.
    Onto(InodeId, PathBuf),
}

/// Copies several files into a volume. A file replaces a file that exists, and directories are
/// merged.
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
        // All of them share one path, so that a tree of depth n does not take n² bytes.
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

    /// Copies one file. For a directory, returns the frame with what is still to be copied.
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
        // Hard links don't cross subvolumes, so each subvolume gets an inode of its own.
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

    /// Merges a directory into one that exists.
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

    /// Refuses to copy a directory into itself. If the copy begins outside of it, no directory
    /// below can come to be in its own source, since both are equally deep.
    fn refuse_within(&self, node: &S::Node, to: InodeId, path: &Path) -> Result<()> {
        if self.source.inode(node).is_some_and(|from| self.is_within(to, from)) {
            return Err(refused(path, "is in the directory that it would be copied from"));
        }
        Ok(())
    }

    /// Returns whether a directory is `above` or below it.
    fn is_within(&self, mut dir: InodeId, above: InodeId) -> bool {
        // In a damaged volume the parents may form a cycle.
        let mut passed = HashSet::new();
        while passed.insert(dir) && dir != above {
            let Ok(parent) = self.fs.directories().parent(dir) else { return false };
            dir = parent;
        }
        dir == above
    }

    /// The attributes of a new inode, as by cp(1): a plain copy of a regular file keeps no set-id
    /// bits and no sticky bit, one of a directory keeps the sticky bit, and one of other files
    /// keeps all. The umask or a default ACL of the directory applies. For a new directory, the
    /// part of the umask that keeps others from writing to it applies even with a default ACL.
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

    /// Gives a copy the attributes of its source.
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

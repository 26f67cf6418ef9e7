//! Edits files of a volume by their paths.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::format::items::FileType;
use ubtrfs::format::posix::{S_IFDIR, UMASK};
use ubtrfs::xattr_names::{CAPABILITY, PROPERTIES, in_plain_namespace};
use ubtrfs::{Dir, Errno, Filesystem, InodeId, NewInode, SetAttributes, XattrMode};

use crate::content::write_all;
use crate::copy::{CopyOptions, Destination, copy_into};
use crate::error::{Error, Obstacle, Result, inside, outside, shown};
use crate::inside::{VolumeFile, VolumeFiles};
use crate::job::Job;
use crate::mode_change::ModeChange;
use crate::remove::remove;
use crate::source::Source;

/// How many bytes are read at once.
const PIECE: usize = 1 << 20;

/// What to do with a name that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Fail.
    Refuse,
    /// Remove it.
    Replace,
}

/// Edits files of a volume by their paths, which begin at its top level; symbolic links are
/// followed within the volume.
#[derive(Debug)]
pub struct Editor {
    fs: Arc<Filesystem>,
    root: Dir,
    owner: (u32, u32),
}

impl Editor {
    /// Returns an editor of a volume. New files belong to this user and group, unless a call says
    /// otherwise.
    pub fn new(fs: &Arc<Filesystem>, (uid, gid): (u32, u32)) -> Self {
        Self { fs: Arc::clone(fs), root: Dir::root(fs).with_owner(uid, gid), owner: (uid, gid) }
    }

    /// Looks up a path; with `follow`, also follows a symbolic link at its end.
    pub fn find(&self, path: &Path, follow: bool) -> Result<(InodeId, FileType)> {
        let path = rooted(path);
        let found = if follow { self.root.metadata(path) } else { self.root.symlink_metadata(path) };
        found.map(|found| (found.id, found.file_type)).map_err(inside(path))
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.find(path, true).is_ok_and(|(_, file_type)| file_type == FileType::Directory)
    }

    /// The directory and the path of something that need not exist. If the path is that of an
    /// existing directory, it means `name` in it.
    pub fn place(&self, path: &Path, name: Option<&OsStr>) -> Result<(InodeId, PathBuf)> {
        let mut path = rooted(path).to_path_buf();
        if let Some(name) = name
            && self.is_dir(&path)
        {
            path.push(name);
        }
        let is_name = path.file_name().is_some() && !path.as_os_str().as_bytes().ends_with(b"/..");
        if !is_name {
            return Err(Error::Refused(format!("{} is not the name of a file", shown(&path))));
        }
        let above = path.parent().unwrap_or(Path::new("/"));
        let (dir, file_type) = self.find(above, true)?;
        if file_type != FileType::Directory {
            return Err(inside(above)(Errno::NOTDIR.into()));
        }
        Ok((dir, path))
    }

    /// Copies files to a path, or into it if it is a directory. Each file of `from` comes with its
    /// name.
    pub fn copy<S: Source>(
        &self,
        source: &S,
        from: Vec<(S::Node, Option<std::ffi::OsString>)>,
        to: &Path,
        options: CopyOptions,
        job: &mut Job<'_>,
    ) -> Result<()> {
        if from.len() > 1 && !self.is_dir(to) {
            return Err(inside(to)(Errno::NOTDIR.into()));
        }
        let mut files = Vec::new();
        for (node, name) in from {
            match name {
                Some(name) => {
                    let (dir, path) = self.place(to, Some(&name))?;
                    files.push((node, Destination::Into(dir, path)));
                }
                // `DIR/.` and the like.
                None if options.recursive && self.is_dir(to) => {
                    let (dir, _) = self.find(to, true)?;
                    files.push((node, Destination::Onto(dir, rooted(to).to_path_buf())));
                }
                None => {
                    let (dir, path) = self.place(to, None)?;
                    files.push((node, Destination::Into(dir, path)));
                }
            }
        }
        copy_into(&self.fs, source, options, files, job)
    }

    /// Copies files within the volume.
    pub fn copy_within(&self, from: &[PathBuf], to: &Path, options: CopyOptions, job: &mut Job<'_>) -> Result<()> {
        let follow = !options.recursive;
        for path in from {
            let source = VolumeFiles::new(&self.fs);
            let (id, _) = self.find(path, follow)?;
            let node = (VolumeFile::new(id, path), path.file_name().map(OsStr::to_owned));
            if from.len() > 1 && !self.is_dir(to) {
                return Err(inside(to)(Errno::NOTDIR.into()));
            }
            self.copy(&source, vec![node], to, options, job)?;
        }
        Ok(())
    }

    /// Makes a directory. With `parents` also makes those above it, and leaves an existing one as
    /// it is without an error. As by mkdir(1), a change of permissions applies to 0777; permissions
    /// that it does not set come from a default ACL.
    pub fn make_directory(&self, path: &Path, parents: bool, mode: Option<&ModeChange>) -> Result<()> {
        let path = rooted(path);
        let Some(change) = mode else {
            let made = if parents { self.root.create_dir_all(path) } else { self.root.create_dir(path) };
            return made.map_err(inside(path));
        };
        if parents {
            if self.is_dir(path) {
                return Ok(());
            }
            let above = path.parent().unwrap_or(Path::new("/"));
            self.root.create_dir_all(above).map_err(inside(above))?;
        }
        let mode = change.apply(0o777, true);
        let said = change.said(true);
        let made = self.make(path, S_IFDIR | mode & 0o1777, 0, 0)?;
        let is = self.fs.inodes().mode(made).map_err(inside(path))?;
        self.permit(made, is & !said | mode & said, path)
    }

    /// Makes a device node or a FIFO. `kind` is its type in the form of a mode, `rdev` its number
    /// in the form of btrfs. As by mknod(1), a change of permissions applies to 0666, and overrides
    /// a default ACL. It gets `group` even if the directory has set-group-id.
    pub fn make_node(
        &self,
        path: &Path,
        kind: u32,
        mode: Option<&ModeChange>,
        rdev: u64,
        group: Option<u32>,
    ) -> Result<()> {
        let umask = if mode.is_some() { 0 } else { UMASK };
        let made = self.make(path, kind | 0o666, umask, rdev)?;
        if group.is_some() {
            let group = SetAttributes { gid: group, ..SetAttributes::default() };
            self.fs.inodes().set_attributes(made, &group).map_err(inside(path))?;
        }
        mode.map_or(Ok(()), |change| self.permit(made, change.apply(0o666, false), path))
    }

    /// Makes an inode without content, with the attributes that it inherits.
    fn make(&self, path: &Path, mode: u32, umask: u32, rdev: u64) -> Result<InodeId> {
        let (dir, path) = self.place(path, None)?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        let (uid, gid) = self.owner;
        let new = NewInode { mode, uid, gid, rdev, ..NewInode::default() };
        let new = self.fs.inodes().inheriting(dir, new, umask).map_err(inside(&path))?;
        let made = self.fs.directories().create(dir, name, &new).map_err(inside(&path))?;
        self.fs.references().forget(made, 1);
        Ok(made)
    }

    /// Sets permissions as chmod(2) does.
    fn permit(&self, id: InodeId, mode: u32, path: &Path) -> Result<()> {
        let changes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.fs.inodes().put_attributes(id, &changes).map(drop).map_err(inside(path))
    }

    /// Removes a file; with `recursive` also a directory with all that is in it.
    pub fn remove(&self, path: &Path, recursive: bool, force: bool) -> Result<()> {
        let path = rooted(path);
        let file_type = match self.root.symlink_metadata(path) {
            Err(error) if force && matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            found => found.map_err(inside(path))?.file_type,
        };
        let removed = match (file_type, recursive) {
            (FileType::Directory, true) => {
                let (dir, path) = self.place(path, None)?;
                remove(&self.fs, dir, path.file_name().unwrap_or_default().as_bytes(), &path)
            }
            (FileType::Directory, false) => {
                let what = format!("{} is a directory", shown(path));
                return Err(Error::Blocked { what, obstacle: Obstacle::RemovalOfDirectory });
            }
            _ => self.root.remove_file(path).map_err(inside(path)),
        };
        removed.map_err(|error| match error {
            Error::Inside { path, source } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                let what = format!(
                    "{} can't be removed: it is the default subvolume, or has the flag immutable or append-only",
                    shown(&path)
                );
                Error::Blocked { what, obstacle: Obstacle::DefaultSubvolume }
            }
            error => error,
        })
    }

    /// Renames a file to `to`, or into it if that is a directory.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let from = rooted(from);
        let (_, to) = self.place(to, from.file_name())?;
        self.root.rename(from, &to).map_err(|error| match error.errno() {
            Errno::XDEV => Error::Blocked {
                what: format!("{} is in another subvolume than {}", shown(from), shown(&to)),
                obstacle: Obstacle::OtherSubvolume,
            },
            Errno::INVAL if to.starts_with(from) => {
                Error::Refused(format!("{} can't be moved into itself, to {}", shown(from), shown(&to)))
            }
            _ => inside(&to)(error),
        })
    }

    /// Gives a file another name, in `at` if that is a directory.
    pub fn link(&self, file: &Path, at: &Path, existing: Existing) -> Result<()> {
        let file = rooted(file);
        let (_, at) = self.place(at, file.file_name())?;
        self.make_way(&at, existing)?;
        self.root.hard_link(file, &at).map_err(inside(&at))
    }

    /// Makes a symbolic link, in `at` if that is a directory.
    pub fn symlink(&self, target: &Path, at: &Path, existing: Existing) -> Result<()> {
        let (_, at) = self.place(at, target.file_name())?;
        self.make_way(&at, existing)?;
        self.root.symlink(target, &at).map_err(inside(&at))
    }

    fn make_way(&self, path: &Path, existing: Existing) -> Result<()> {
        if existing == Existing::Replace { self.remove(path, false, true) } else { Ok(()) }
    }

    /// Calls `act` for a file, and with `recursive` for all that is below it. Symbolic links below
    /// it are not followed.
    fn each(
        &self,
        path: &Path,
        (recursive, follow): (bool, bool),
        act: &dyn Fn(InodeId) -> ubtrfs::Result<()>,
    ) -> Result<()> {
        let (id, _) = self.find(path, follow)?;
        let source = VolumeFiles::new(&self.fs);
        let mut left = vec![VolumeFile::new(id, rooted(path))];
        while let Some(file) = left.pop() {
            act(file.id).map_err(|error| file.failed(error))?;
            let mode = self.fs.inodes().mode(file.id).map_err(|error| file.failed(error))?;
            if recursive && FileType::from_mode(mode) == FileType::Directory {
                left.extend(source.children(&file)?.into_iter().map(|(_, file)| file));
            }
        }
        Ok(())
    }

    /// Changes permissions, except those of symbolic links, which have none.
    pub fn change_mode(&self, path: &Path, change: &ModeChange, recursive: bool) -> Result<()> {
        self.each(path, (recursive, true), &|id| {
            let mode = self.fs.inodes().mode(id)?;
            let file_type = FileType::from_mode(mode);
            if file_type == FileType::Symlink {
                return Ok(());
            }
            let mode = Some(change.apply(mode, file_type == FileType::Directory));
            self.fs.inodes().put_attributes(id, &SetAttributes { mode, ..SetAttributes::default() }).map(drop)
        })
    }

    /// Changes owner and group. Set-id bits and capabilities stay.
    pub fn change_owner(
        &self,
        path: &Path,
        (uid, gid): (Option<u32>, Option<u32>),
        recursive: bool,
        follow: bool,
    ) -> Result<()> {
        let changes = SetAttributes { uid, gid, ..SetAttributes::default() };
        self.each(path, (recursive, follow), &|id| {
            let capabilities = self.fs.inodes().get_xattr(id, CAPABILITY);
            self.fs.inodes().set_attributes(id, &changes)?;
            match capabilities {
                Ok(value) => self.fs.inodes().set_xattr(id, CAPABILITY, &value, XattrMode::Set),
                Err(error) if error.errno() == Errno::NODATA => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    /// Sets an extended attribute as setxattr(2) does, or removes it if there is no value.
    pub fn set_xattr(&self, path: &Path, name: &[u8], value: Option<&[u8]>, follow: bool) -> Result<()> {
        let (id, _) = self.find(path, follow)?;
        match value {
            Some(value) => self.fs.inodes().put_xattr(id, name, value, XattrMode::Set),
            None => self.fs.inodes().drop_xattr(id, name),
        }
        .map_err(|error| match error.errno() {
            Errno::OPNOTSUPP if !has_namespace(name) => {
                let name = name.escape_ascii();
                Error::Refused(format!("{}: the attribute '{name}' is in no namespace, such as user.", shown(path)))
            }
            _ => inside(path)(error),
        })
    }

    /// Sets the size of a file in bytes. Makes the file if it doesn't exist.
    pub fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        let path = rooted(path);
        let file = ubtrfs::OpenOptions::new().write(true).create(true).open(&self.root, path).map_err(inside(path))?;
        let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.fs.inodes().set_attributes(file.id(), &changes).map(drop).map_err(inside(path))
    }

    /// Replaces the content of a file by what a reader yields.
    pub fn put(&self, path: &Path, mut content: impl Read, mode: Option<&ModeChange>) -> Result<()> {
        let path = rooted(path);
        let file = self.root.create(path).map_err(inside(path))?;
        let (mut buf, mut at) = (vec![0; PIECE], 0);
        loop {
            let read = match content.read(&mut buf) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.map_err(outside("standard input"))?,
            };
            if read == 0 {
                break;
            }
            write_all(&self.fs, file.id(), at, &buf[..read]).map_err(inside(path))?;
            at += read as u64;
        }
        mode.map_or(Ok(()), |mode| self.change_mode(path, mode, false))
    }
}

/// Returns whether an attribute's name begins with an existing namespace, whether or not attributes
/// in it can be set.
fn has_namespace(name: &[u8]) -> bool {
    in_plain_namespace(name).is_some() || name.starts_with(PROPERTIES) || name.starts_with(b"system.")
}

/// Returns the path, or `/`, the top level, for an empty one.
fn rooted(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new("/") } else { path }
}

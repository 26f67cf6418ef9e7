//! Directories, and the operations on paths that begin there.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs_format::items::FileType;
use ubtrfs_format::posix::{S_IFDIR, S_IFLNK, S_IFREG, UMASK};
use ubtrfs_fs::{Attributes, Errno, Filesystem, InodeId, NewInode, RenameFlags, Result, SetAttributes};

use crate::file::File;
use crate::handle::Handle;
use crate::open_options::OpenOptions;
use crate::read_dir::ReadDir;
use crate::resolve::{AtEnd, Place, resolve};

/// A directory of a volume, at which relative paths begin.
///
/// Absolute paths, and absolute targets of symbolic links, begin at the root of the mounted
/// subvolume. No path leads out of it, and no link points to files of the host. At most 40 symbolic
/// links are followed (`ELOOP`).
///
/// Permissions are not checked, but flags (immutable, append-only) and read-only subvolumes apply.
/// New inodes belong to the process's effective user and group, unless [`Self::with_owner`] says
/// otherwise. New files get the permissions 0644 and new directories 0755, whatever the process's
/// umask is, or those of their directory's default ACL.
#[derive(Clone, Debug)]
pub struct Dir {
    inode: Handle,
    owner: (u32, u32),
}

impl Dir {
    /// The root directory of the subvolume that is mounted.
    pub fn root(fs: &Arc<Filesystem>) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { inode: Handle::new(fs, fs.root()), owner }
    }

    /// Returns the same directory, through which new inodes belong to this user and group.
    #[must_use]
    pub fn with_owner(self, uid: u32, gid: u32) -> Self {
        Self { owner: (uid, gid), ..self }
    }

    /// The file system.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        self.inode.fs()
    }

    /// The inode, for operations of [`Filesystem`] that take inodes. It is valid as long as this
    /// value lives.
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// Opens a file for reading.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a file for writing. Makes it if it does not exist, and empties it if it does.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().write(true).create(true).truncate(true))
    }

    /// Opens a file with options. `EISDIR` if it is a directory (see [`Self::open_dir`]), `ENXIO`
    /// if it is a device node, FIFO or socket.
    pub fn open_with(&self, path: impl AsRef<Path>, how: &OpenOptions) -> Result<File> {
        if !how.is_sound() {
            return Err(Errno::INVAL.into());
        }
        let at_end = match (how.create_new, how.create) {
            (true, _) => AtEnd::Name,
            (false, true) => AtEnd::Create,
            (false, false) => AtEnd::Follow,
        };
        loop {
            let place = self.resolve(path.as_ref(), at_end)?;
            if (how.create || how.create_new) && place.ends_with_slash() {
                return Err(Errno::ISDIR.into());
            }
            if how.create_new || (how.create && !place.exists()) {
                let (dir, name) = place.new_entry(FileType::Regular)?;
                match self.make(dir, name, FileType::Regular, how.mode.map_or((0o666, UMASK), |mode| (mode, 0))) {
                    // Another thread has made the file meanwhile.
                    Err(error) if error.errno() == Errno::EXIST && !how.create_new => continue,
                    made => return Ok(File::new(made?, how)),
                }
            }
            return open_found(place.found()?, how);
        }
    }

    /// Opens a directory.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Self> {
        match self.resolve(path.as_ref(), AtEnd::Follow)?.found()? {
            (inode, FileType::Directory) => Ok(Self { inode, owner: self.owner }),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Reads the whole content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open(path)?.read_from(0)
    }

    /// Replaces the content of a file by `content`. Makes the file if it does not exist. As with
    /// [`std::fs::write`], a crash may leave any part of this until the file is fsynced.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_all_at(content.as_ref(), 0)
    }

    /// Makes an empty directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let place = self.resolve(path.as_ref(), AtEnd::Name)?;
        let (dir, name) = place.new_entry(FileType::Directory)?;
        self.make(dir, name, FileType::Directory, (0o777, UMASK)).map(drop)
    }

    /// Makes a directory and missing ones above it. It is no error if it exists.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let make = |path: &Path| match self.create_dir(path) {
            Err(error) if error.errno() == Errno::EXIST && self.open_dir(path).is_ok() => Ok(()),
            made => made,
        };
        // This goes up from the path to the first directory that exists, and down again.
        let mut missing = Vec::new();
        for path in path.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            match make(path) {
                Err(error) if error.errno() == Errno::NOENT => missing.push(path),
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        missing.into_iter().rev().try_for_each(make)
    }

    /// Makes a symbolic link at `path` to `target`, which need not exist.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let place = self.resolve(path.as_ref(), AtEnd::Name)?;
        let (dir, name) = place.new_entry(FileType::Symlink)?;
        let new = NewInode { symlink_target: target.to_vec(), ..self.new_inode(FileType::Symlink, 0o777) };
        let fs = dir.fs();
        fs.directories().create(dir.id(), name, &new).map(|id| drop(Handle::adopt(fs, id)))
    }

    /// Reads the target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let inode = self.find(path.as_ref(), AtEnd::Stay)?;
        Ok(OsString::from_vec(inode.fs().files().read_link(inode.id())?).into())
    }

    /// Gives the inode at `original` another name. A symbolic link there is not followed.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let inode = self.find(original.as_ref(), AtEnd::Stay)?;
        let place = self.resolve(link.as_ref(), AtEnd::Name)?;
        let (dir, name) = place.new_entry(FileType::Regular)?;
        inode.fs().directories().link(inode.id(), dir.id(), name)
    }

    /// Renames an entry. It atomically replaces an entry at `to`: a file replaces a file, a
    /// directory an empty directory.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::default())
    }

    /// Renames an entry with flags.
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, flags: RenameFlags) -> Result<()> {
        let (from, to) = (self.resolve(from.as_ref(), AtEnd::Name)?, self.resolve(to.as_ref(), AtEnd::Name)?);
        let (dir, name, file_type) = from.old_entry()?;
        let (new_dir, new_name) = to.entry()?;
        if to.ends_with_slash() && file_type != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        self.filesystem().directories().rename(dir.id(), name, new_dir.id(), new_name, flags)
    }

    /// Removes a name of an inode other than a directory. The inode is removed with its last name,
    /// once nobody has it open.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let place = self.resolve(path.as_ref(), AtEnd::Name)?;
        let (dir, name, _) = place.old_entry()?;
        dir.fs().directories().unlink(dir.id(), name)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let place = self.resolve(path.as_ref(), AtEnd::Name)?;
        let (dir, name, _) = place.old_entry()?;
        dir.fs().directories().rmdir(dir.id(), name)
    }

    /// Removes a directory with all that is in it, or a symbolic link. Symbolic links are not
    /// followed. If this fails, part of the directory may have been removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let place = self.resolve(path.as_ref(), AtEnd::Name)?;
        let (above, name, file_type) = place.old_entry()?;
        match file_type {
            FileType::Directory => {}
            FileType::Symlink => return above.fs().directories().unlink(above.id(), name),
            _ => return Err(Errno::NOTDIR.into()),
        }
        // The directories from the top down, each with its name in the one before.
        let mut way = vec![(above.lookup(name)?, name.to_vec())];
        let mut on_way = HashSet::from([way[0].0.id()]);
        while let Some((dir, _)) = way.last() {
            if let Some((child, name)) = empty(dir)? {
                // In a damaged volume, a directory may be within itself.
                if !on_way.insert(child.id()) {
                    return Err(Errno::UCLEAN.into());
                }
                way.push((child, name));
                continue;
            }
            let Some((removed, name)) = way.pop() else { break };
            on_way.remove(&removed.id());
            let dir = way.last().map_or(above, |(dir, _)| dir);
            dir.fs().directories().rmdir(dir.id(), &name)?;
        }
        Ok(())
    }

    /// Lists the entries of a directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        ReadDir::new(self.find(path.as_ref(), AtEnd::Follow)?)
    }

    /// The attributes of the inode at a path. A symbolic link is followed.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        let inode = self.find(path.as_ref(), AtEnd::Follow)?;
        inode.fs().inodes().attributes(inode.id())
    }

    /// The attributes of the inode at a path. A symbolic link at the end is not followed.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        let inode = self.find(path.as_ref(), AtEnd::Stay)?;
        inode.fs().inodes().attributes(inode.id())
    }

    /// Changes attributes of the inode at a path, and returns all attributes after that.
    pub fn set_attributes(&self, path: impl AsRef<Path>, changes: &SetAttributes) -> Result<Attributes> {
        let inode = self.find(path.as_ref(), AtEnd::Follow)?;
        inode.fs().inodes().set_attributes(inode.id(), changes)
    }

    /// Returns whether a path refers to an inode.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.resolve(path.as_ref(), AtEnd::Follow) {
            Ok(place) => Ok(place.exists()),
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the inode at a path durable: the content, attributes and names of a file, or the
    /// entries of a directory and the inodes of new entries.
    pub fn fsync(&self, path: impl AsRef<Path>) -> Result<()> {
        let inode = self.find(path.as_ref(), AtEnd::Follow)?;
        inode.fs().durability().fsync(inode.id())
    }

    /// Makes this directory durable in the same way.
    pub fn sync_all(&self) -> Result<()> {
        self.filesystem().durability().fsync(self.id())
    }

    fn resolve(&self, path: &Path, at_end: AtEnd) -> Result<Place> {
        resolve(&self.inode, path.as_os_str().as_bytes(), at_end)
    }

    fn find(&self, path: &Path, at_end: AtEnd) -> Result<Handle> {
        Ok(self.resolve(path, at_end)?.found()?.0)
    }

    fn new_inode(&self, file_type: FileType, mode: u32) -> NewInode {
        let (uid, gid) = self.owner;
        NewInode { mode: type_bits(file_type) | (mode & 0o7777), uid, gid, ..NewInode::default() }
    }

    fn make(&self, dir: &Handle, name: &[u8], file_type: FileType, (mode, umask): (u32, u32)) -> Result<Handle> {
        let new = dir.fs().inodes().inheriting(dir.id(), self.new_inode(file_type, mode), umask)?;
        let id = dir.fs().directories().create(dir.id(), name, &new)?;
        Ok(Handle::adopt(dir.fs(), id))
    }
}

impl OpenOptions {
    /// Opens a file by a path from a directory.
    pub fn open(&self, dir: &Dir, path: impl AsRef<Path>) -> Result<File> {
        dir.open_with(path, self)
    }
}

fn open_found((inode, file_type): (Handle, FileType), how: &OpenOptions) -> Result<File> {
    match file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::ISDIR.into()),
        _ => return Err(Errno::NXIO.into()),
    }
    let file = File::new(inode, how);
    if how.truncate {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Removes entries of a directory up to the first directory in it, and returns that directory with
/// its name.
fn empty(dir: &Handle) -> Result<Option<(Handle, Vec<u8>)>> {
    for entry in ReadDir::new(dir.clone())? {
        let entry = entry?;
        let name = entry.file_name().as_bytes();
        if entry.file_type() == FileType::Directory {
            return Ok(Some((dir.lookup(name)?, name.to_vec())));
        }
        dir.fs().directories().unlink(dir.id(), name)?;
    }
    Ok(None)
}

/// The type bits of a mode.
fn type_bits(file_type: FileType) -> u32 {
    match file_type {
        FileType::Directory => S_IFDIR,
        FileType::Symlink => S_IFLNK,
        _ => S_IFREG,
    }
}

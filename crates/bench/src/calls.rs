//! File system calls to the kernel or straight to the engine, of which the workloads in this
//! process consist.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use ubtrfs::{Filesystem, InodeId, NewInode, RenameFlags, WriteAt};

use crate::failure::Result;
use crate::peers::Mounted;

/// Entries that one listing of the engine returns, which is as many as fit a request of the kernel.
const LISTED: usize = 128;

/// The callee.
#[derive(Clone)]
pub enum Calls {
    /// The kernel, in this directory.
    Kernel(PathBuf),
    /// The engine, at its root.
    Engine(Arc<Filesystem>),
}

/// An open file or directory.
pub enum Handle {
    /// A descriptor.
    File(File),
    /// A reference to an inode; see [`Calls::close`].
    Inode(InodeId),
}

/// A handle can only be used with the calls that made it.
fn mixed() -> std::io::Error {
    std::io::Error::other("a handle of another library")
}

impl Handle {
    /// Returns the descriptor.
    pub(crate) fn file(&self) -> std::io::Result<&File> {
        if let Self::File(file) = self { Ok(file) } else { Err(mixed()) }
    }

    /// Returns the inode.
    pub(crate) fn inode(&self) -> std::io::Result<InodeId> {
        if let Self::Inode(id) = self { Ok(*id) } else { Err(mixed()) }
    }
}

fn regular() -> NewInode {
    NewInode { mode: 0o100_644, ..NewInode::default() }
}

impl Calls {
    /// Returns the calls to a peer.
    pub fn of(mounted: &Mounted) -> Self {
        match mounted.library() {
            Some(engine) => Self::Engine(Arc::clone(engine)),
            None => Self::Kernel(mounted.directory().into()),
        }
    }

    /// Opens the root directory.
    pub fn root(&self) -> Result<Handle> {
        Ok(match self {
            Self::Kernel(path) => Handle::File(File::open(path)?),
            Self::Engine(engine) => {
                engine.references().reference(engine.root());
                Handle::Inode(engine.root())
            }
        })
    }

    /// Makes a directory and opens it.
    pub fn mkdir(&self, dir: &Handle, name: &str) -> Result<Handle> {
        Ok(match self {
            Self::Kernel(_) => {
                rustix::fs::mkdirat(dir.file()?, name, Mode::from_raw_mode(0o755))?;
                self.open_dir(dir, name)?
            }
            Self::Engine(engine) => {
                let new = NewInode { mode: 0o040_755, ..NewInode::default() };
                Handle::Inode(engine.directories().create(dir.inode()?, name.as_bytes(), &new)?)
            }
        })
    }

    /// Opens an existing directory.
    pub fn open_dir(&self, dir: &Handle, name: &str) -> Result<Handle> {
        Ok(match self {
            Self::Kernel(_) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Handle::File(rustix::fs::openat(dir.file()?, name, flags, Mode::empty())?.into())
            }
            Self::Engine(engine) => Handle::Inode(engine.directories().lookup(dir.inode()?, name.as_bytes())?),
        })
    }

    /// Makes a file and opens it.
    pub fn create(&self, dir: &Handle, name: &str) -> Result<Handle> {
        Ok(match self {
            Self::Kernel(_) => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                Handle::File(rustix::fs::openat(dir.file()?, name, flags, Mode::from_raw_mode(0o644))?.into())
            }
            Self::Engine(engine) => {
                Handle::Inode(engine.directories().create(dir.inode()?, name.as_bytes(), &regular())?)
            }
        })
    }

    /// Makes a file without a name and opens it.
    pub fn unnamed(&self, dir: &Handle) -> Result<Handle> {
        Ok(match self {
            Self::Kernel(_) => {
                let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
                Handle::File(rustix::fs::openat(dir.file()?, ".", flags, Mode::from_raw_mode(0o600))?.into())
            }
            Self::Engine(engine) => Handle::Inode(engine.directories().create_unnamed(dir.inode()?, &regular())?),
        })
    }

    /// Closes a handle.
    pub fn close(&self, handle: Handle) {
        if let (Self::Engine(engine), Handle::Inode(id)) = (self, handle) {
            engine.references().forget(id, 1);
        }
    }

    /// Looks a name up and reads the attributes of its inode.
    pub fn stat(&self, dir: &Handle, name: &str) -> Result<()> {
        match self {
            Self::Kernel(_) => {
                rustix::fs::statat(dir.file()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Self::Engine(engine) => {
                let id = engine.directories().lookup(dir.inode()?, name.as_bytes())?;
                let attributes = engine.inodes().attributes(id);
                engine.references().forget(id, 1);
                attributes?;
            }
        }
        Ok(())
    }

    /// Reads the attributes of an open file.
    pub fn attributes(&self, file: &Handle) -> Result<()> {
        match self {
            Self::Kernel(_) => drop(rustix::fs::fstat(file.file()?)?),
            Self::Engine(engine) => drop(engine.inodes().attributes(file.inode()?)?),
        }
        Ok(())
    }

    /// Renames within a directory.
    pub fn rename(&self, dir: &Handle, from: &str, to: &str) -> Result<()> {
        match self {
            Self::Kernel(_) => rustix::fs::renameat(dir.file()?, from, dir.file()?, to)?,
            Self::Engine(engine) => {
                let dir = dir.inode()?;
                engine.directories().rename(dir, from.as_bytes(), dir, to.as_bytes(), RenameFlags::default())?;
            }
        }
        Ok(())
    }

    /// Removes a name of a file.
    pub fn unlink(&self, dir: &Handle, name: &str) -> Result<()> {
        match self {
            Self::Kernel(_) => rustix::fs::unlinkat(dir.file()?, name, AtFlags::empty())?,
            Self::Engine(engine) => engine.directories().unlink(dir.inode()?, name.as_bytes())?,
        }
        Ok(())
    }

    /// Lists a directory. Returns how many names it has.
    pub fn list(&self, dir: &Handle) -> Result<usize> {
        let mut count = 0;
        match self {
            Self::Kernel(_) => {
                for entry in rustix::fs::Dir::read_from(dir.file()?)? {
                    count += usize::from(!matches!(entry?.file_name().to_bytes(), b"." | b".."));
                }
            }
            Self::Engine(engine) => {
                let dir = dir.inode()?;
                let last = engine.directories().last_index(dir)?;
                let mut after = ubtrfs_format::DirIndex(0);
                loop {
                    let entries = engine.directories().list(dir, after, last, LISTED)?;
                    let Some(entry) = entries.last() else { break };
                    after = entry.index;
                    count += entries.len();
                }
            }
        }
        Ok(count)
    }

    /// Writes `data` at `offset`.
    pub fn write(&self, file: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        match self {
            Self::Kernel(_) => file.file()?.write_all_at(data, offset)?,
            Self::Engine(engine) => drop(engine.files().write(file.inode()?, WriteAt::Offset(offset), data, false)?),
        }
        Ok(())
    }

    /// Reads as many bytes as `buffer` has.
    pub fn read(&self, file: &Handle, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match self {
            Self::Kernel(_) => file.file()?.read_exact_at(buffer, offset)?,
            Self::Engine(engine) => {
                let data = engine.files().read(file.inode()?, offset, buffer.len())?;
                buffer[..data.len()].copy_from_slice(&data);
            }
        }
        Ok(())
    }

    /// Allocates space for a range of a file.
    pub fn allocate(&self, file: &Handle, offset: u64, bytes: u64) -> Result<()> {
        match self {
            Self::Kernel(_) => rustix::fs::fallocate(file.file()?, FallocateFlags::empty(), offset, bytes)?,
            Self::Engine(engine) => engine.files().allocate(file.inode()?, offset, bytes, false)?,
        }
        Ok(())
    }

    /// Reads the statistics of the volume's space.
    pub fn statfs(&self, dir: &Handle) -> Result<()> {
        match self {
            Self::Kernel(_) => {
                rustix::fs::fstatvfs(dir.file()?)?;
            }
            Self::Engine(engine) => {
                engine.statfs();
            }
        }
        Ok(())
    }

    /// Makes a file durable.
    pub fn fsync(&self, file: &Handle) -> Result<()> {
        match self {
            Self::Kernel(_) => rustix::fs::fsync(file.file()?)?,
            Self::Engine(engine) => engine.durability().fsync(file.inode()?)?,
        }
        Ok(())
    }
}

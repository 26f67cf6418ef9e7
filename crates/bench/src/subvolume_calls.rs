//! Calls on subvolumes, by the ioctls that the kernel's btrfs and ubtrfs both have, or straight to
//! the engine.

use rustix::ioctl::{Setter, ioctl};
use ubtrfs_format::ioctl::{SNAP_CREATE_V2, SNAP_DESTROY_V2, SUBVOL_CREATE_V2};

use crate::calls::{Calls, Handle};
use crate::failure::{Failure, Result};

/// `struct btrfs_ioctl_vol_args_v2`, and the offset of the name in it.
type Argument = [u8; 4096];
const NAME: usize = 56;

fn argument(source: i64, name: &str) -> Result<Argument> {
    let mut argument = [0; 4096];
    argument[..8].copy_from_slice(&source.to_le_bytes());
    let place = argument[NAME..NAME + 255].get_mut(..name.len());
    place.ok_or_else(|| Failure::new("a name is too long"))?.copy_from_slice(name.as_bytes());
    Ok(argument)
}

impl Calls {
    /// Makes an empty subvolume in `dir` and opens it.
    pub fn create_subvolume(&self, dir: &Handle, name: &str) -> Result<Handle> {
        match self {
            Self::Kernel(_) => {
                let argument = argument(-1, name)?;
                // SAFETY: this command reads an argument of the size that its number encodes, and
                // nothing else.
                unsafe { ioctl(dir.file()?, Setter::<SUBVOL_CREATE_V2, Argument>::new(argument)) }?;
            }
            Self::Engine(engine) => {
                engine.subvolumes().create_subvolume(dir.inode()?, name.as_bytes(), 0o755, (0, 0))?;
            }
        }
        self.open_dir(dir, name)
    }

    /// Makes a writable snapshot in `dir` of the subvolume whose root directory is `source`.
    pub fn snapshot(&self, source: &Handle, dir: &Handle, name: &str) -> Result<()> {
        match self {
            Self::Kernel(_) => {
                let source = std::os::fd::AsRawFd::as_raw_fd(source.file()?);
                let argument = argument(source.into(), name)?;
                // SAFETY: as above; the descriptor in the argument is open.
                unsafe { ioctl(dir.file()?, Setter::<SNAP_CREATE_V2, Argument>::new(argument)) }?;
            }
            Self::Engine(engine) => {
                engine.subvolumes().snapshot(source.inode()?.subvolume, dir.inode()?, name.as_bytes(), false)?;
            }
        }
        Ok(())
    }

    /// Deletes a subvolume; its tree is dropped later.
    pub fn delete_subvolume(&self, dir: &Handle, name: &str) -> Result<()> {
        match self {
            Self::Kernel(_) => {
                let argument = argument(0, name)?;
                // SAFETY: as above.
                unsafe { ioctl(dir.file()?, Setter::<SNAP_DESTROY_V2, Argument>::new(argument)) }?;
            }
            Self::Engine(engine) => {
                engine.subvolumes().delete_subvolume(dir.inode()?, name.as_bytes())?;
            }
        }
        Ok(())
    }
}

//! `ubtrfs label`: what a volume is called.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl};
use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Error as VolumeError, OpenOptions, Volume};

use crate::args;
use crate::device::{about_volume_within, open_for_a_glance, open_for_writing};
use crate::failure::{Failure, Result};
use crate::mount_table::not_on_btrfs;
use crate::output::say;
use crate::show;

const SIZE: usize = 256;
/// `_IOR(0x94, 49, char[256])`.
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
/// `_IOW(0x94, 50, char[256])`.
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;

/// `ubtrfs label`
pub fn run(arguments: &args::Label) -> Result<()> {
    let new = arguments.new.as_ref().map(|label| label.as_bytes());
    if let Some(label) = new
        && (label.len() >= SIZE || label.contains(&b'\n'))
    {
        return Err(Failure::new("a label has at most 255 bytes, and no line break"));
    }
    let is_mounted = arguments.place.is_dir();
    match new {
        None => {
            let label = if is_mounted { of_mount(&arguments.place)? } else { of_device(arguments)? };
            say(&(show::bytes(&label) + "\n"))
        }
        Some(label) if is_mounted => set_of_mount(&arguments.place, label),
        Some(label) => set_of_device(arguments, label),
    }
}

fn of_device(arguments: &args::Label) -> Result<Vec<u8>> {
    let paths = [arguments.place.clone()];
    let devices = open_for_a_glance(&paths, arguments.window)?;
    let superblock = devices.first().and_then(|device| Volume::superblock_of(&**device));
    let superblock = superblock.ok_or_else(|| about_volume_within(&paths, arguments.window, &VolumeError::NotBtrfs))?;
    Ok(superblock.label_bytes().to_vec())
}

/// Sets the label by an ordinary commit, so that a crash leaves the volume with the one or the
/// other.
fn set_of_device(arguments: &args::Label, label: &[u8]) -> Result<()> {
    let paths = [std::slice::from_ref(&arguments.place), &*arguments.devices].concat();
    let writing = open_for_writing(&paths, arguments.window)?;
    let volume = Volume::open(writing.devices, OpenOptions { read_only: false });
    let volume = volume.map_err(|error| about_volume_within(&paths, arguments.window, &error))?;
    let failed = |error: ubtrfs::Error| Failure::about(arguments.place.display(), &error);
    let options = Options { background_commits: false, catches_up_first: true, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).map_err(failed)?;
    fs.set_label(label).map_err(failed)?;
    fs.close().map_err(failed)
}

fn of_mount(directory: &Path) -> Result<Vec<u8>> {
    let failed = |error: io::Error| Failure::about(directory.display(), &error);
    let opened = File::open(directory).map_err(failed)?;
    // SAFETY: this command fills in an array of the size that its number encodes, and nothing else.
    let getter = unsafe { Getter::<FS_IOC_GETFSLABEL, [u8; SIZE]>::new() };
    // SAFETY: the same.
    let label = unsafe { ioctl(&opened, getter) }.map_err(|errno| match errno {
        Errno::NOTTY => not_on_btrfs(&directory.display().to_string()),
        errno => failed(errno.into()),
    })?;
    Ok(label.iter().copied().take_while(|byte| *byte != 0).collect())
}

fn set_of_mount(directory: &Path, label: &[u8]) -> Result<()> {
    let failed = |error: io::Error| Failure::about(directory.display(), &error);
    let opened = File::open(directory).map_err(failed)?;
    let mut argument = [0; SIZE];
    argument[..label.len()].copy_from_slice(label);
    // SAFETY: this command reads an array of the size that its number encodes, and nothing else.
    let setter = unsafe { Setter::<FS_IOC_SETFSLABEL, [u8; SIZE]>::new(argument) };
    // SAFETY: the same.
    unsafe { ioctl(&opened, setter) }.map_err(|errno| match errno {
        Errno::PERM => {
            let shown = directory.display();
            Failure::new(format!("{shown}: only root, or who has mounted it without being root, may label it"))
        }
        Errno::NOTTY => not_on_btrfs(&directory.display().to_string()),
        errno => failed(errno.into()),
    })
}

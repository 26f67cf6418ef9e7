//! `ubtrfs label`: what a volume is called.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Error as VolumeError, OpenOptions, Volume};

use crate::args;
use crate::device::{about_volume_within, open_for_a_glance, open_for_writing};
use crate::failure::{Failure, Result};
use crate::ioctls::{LABEL_SIZE, Mounted, about_mount};
use crate::output::say;
use crate::show;

/// `ubtrfs label`
pub fn run(arguments: &args::Label) -> Result<()> {
    let new = arguments.new.as_ref().map(|label| label.as_bytes());
    if let Some(label) = new
        && (label.len() >= LABEL_SIZE || label.contains(&b'\n'))
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
    Mounted::open(directory)?.label().map_err(|errno| about_mount(directory.display(), errno))
}

fn set_of_mount(directory: &Path, label: &[u8]) -> Result<()> {
    Mounted::open(directory)?.set_label(label).map_err(|errno| match errno {
        Errno::PERM => {
            let shown = directory.display();
            Failure::new(format!("{shown}: only root, or who has mounted it without being root, may label it"))
        }
        errno => about_mount(directory.display(), errno),
    })
}

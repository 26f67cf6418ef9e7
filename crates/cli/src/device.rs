//! Opens devices for the commands that don't mount.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_volume::{Device, DevicePart, OpenMode, open_part_exclusively};

pub use crate::about_volume::{about_volume, about_volume_within};
use crate::args::Window;
use crate::away::{Chosen, LeftOut, all_of, choose, modes_of, open_each};
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::looking::{NotOpened, find_part, look};
pub use crate::looking::{is_block, is_seed, part_of, superblock_on, within};
use crate::members::{check_distinct, with_others};
use crate::other_contents::overwritten;
use crate::remedy::about_device;

/// Claims a block device: it is not mounted, and nobody can mount it while the result lives.
pub fn claim(path: &Path) -> Result<File> {
    ubtrfs_volume::claim(path).map_err(|error| about_device(&error))
}

/// Opens a device so that nobody else can use this part of it.
pub fn open_exclusively(path: &Path, mode: OpenMode, part: DevicePart) -> Result<Arc<dyn Device>> {
    open_part_exclusively(path, mode, part, None).map_err(|error| about_device(&error))
}

/// Devices that were opened.
pub struct Opened {
    /// The devices.
    pub devices: Vec<Arc<dyn Device>>,
    /// Claims on the devices that are not claimed by being open; they are kept as long as the
    /// devices are used.
    pub claims: Vec<File>,
    /// What the devices are among the host's files.
    pub sources: Sources,
}

/// Devices that are only examined.
#[derive(Default)]
pub struct Seen {
    pub paths: Vec<PathBuf>,
    pub devices: Vec<Arc<dyn Device>>,
}

/// Returns the devices that are named, and those of their volume that are found.
pub fn all_of_volume(paths: &[PathBuf], window: Window) -> Result<Vec<PathBuf>> {
    if window.is_whole() { with_others(paths) } else { Ok(paths.to_vec()) }
}

/// Returns the named devices and those of their volume that are found, for a mount with `degraded`.
/// All named devices are returned, since the mount reports those that are away; these don't keep
/// the others from being found.
pub fn all_that_is_there(paths: &[PathBuf], window: Window, timeout: Option<Duration>) -> Result<Vec<PathBuf>> {
    check_distinct(paths)?;
    if !window.is_whole() || !paths.iter().any(|path| is_block(path)) {
        return Ok(paths.to_vec());
    }
    let there = choose(paths, window, OpenMode::ReadOnly, timeout)?.paths;
    let others = with_others(&there)?.split_off(there.len());
    Ok([paths, &others].concat())
}

/// Opens devices for reading only, and refuses those that are mounted. Opens the other devices of
/// their volume that are found, too.
pub fn open_for_reading(paths: &[PathBuf], window: Window) -> Result<Opened> {
    open_all(&all_of_volume(paths, window)?, window, OpenMode::ReadOnly)
}

/// Opens devices as [`open_for_reading`], for a command that reads what is there: without those of
/// several that are away or hold nothing of the volume, which are reported.
pub fn open_what_can_be_read(paths: &[PathBuf], window: Window) -> Result<Opened> {
    check_distinct(paths)?;
    if paths.len() < 2 {
        return open_for_reading(paths, window);
    }
    // If none can be used, the error of the normal way says why.
    let Ok(Chosen { paths: mut chosen, left_out }) = choose(paths, window, OpenMode::ReadOnly, None) else {
        return open_for_reading(paths, window);
    };
    let fsid = chosen.first().and_then(|path| superblock_on(path, window)).map(|found| found.fsid);
    // Any copy of the superblock is enough.
    let is_ours = |one: &LeftOut| superblock_on(&one.path, window).is_some_and(|own| Some(own.fsid) == fsid);
    let (ours, others): (Vec<_>, Vec<_>) = left_out.into_iter().partition(is_ours);
    chosen.extend(ours.into_iter().map(|one| one.path));
    let opened = open_for_reading(&chosen, window)?;
    others.iter().for_each(LeftOut::say);
    Ok(opened)
}

/// Opens devices for writing, and refuses those that are mounted. Opens the other devices of their
/// volume that are found, too.
pub fn open_for_writing(paths: &[PathBuf], window: Window) -> Result<Opened> {
    open_all(&all_of_volume(paths, window)?, window, OpenMode::ReadWrite)
}

/// Opens devices as [`open_for_writing`], but without those that are away or hold nothing of the
/// volume: they are returned, too.
pub fn open_what_is_there(paths: &[PathBuf], window: Window) -> Result<(Opened, Vec<LeftOut>)> {
    check_distinct(paths)?;
    let Chosen { paths, left_out } = choose(paths, window, OpenMode::ReadWrite, None)?;
    open_all(&all_of_volume(&paths, window)?, window, OpenMode::ReadWrite).map(|opened| (opened, left_out))
}

fn open_all(paths: &[PathBuf], window: Window, mode: OpenMode) -> Result<Opened> {
    let sources = Sources::of(paths);
    sources.refuse_as_output()?;
    let opened = open_each(paths, &modes_of(paths, window, mode), |path, mode| {
        let part = find_part(path, window, None)?;
        let device = open_part_exclusively(path, mode, part, None)?;
        // A device that is opened for writing is claimed by that.
        let is_claimed = mode == OpenMode::ReadWrite || !is_block(path);
        let claim = if is_claimed { None } else { Some(claim(path).map_err(NotOpened::Refused)?) };
        Ok((within(path, device, part).map_err(NotOpened::Refused)?, claim))
    });
    let opened = opened.map_err(NotOpened::failure)?;
    let (devices, claims): (_, Vec<_>) = opened.into_iter().unzip();
    Ok(Opened { devices, claims: claims.into_iter().flatten().collect(), sources })
}

/// Opens devices for reading only, mounted or not: their contents may change meanwhile.
pub fn open_for_a_glance(paths: &[PathBuf], window: Window) -> Result<Vec<Arc<dyn Device>>> {
    Sources::of(paths).refuse_as_output()?;
    let modes = vec![OpenMode::ReadOnly; paths.len()];
    open_each(paths, &modes, |path, _| glance(path, window)).map_err(NotOpened::failure)
}

/// Opens devices as [`open_for_a_glance`], but without those that are away. Returns the devices
/// with their paths, and a failure that names those that are away.
///
/// # Errors
///
/// If all of them are away.
pub fn open_what_can_be_seen(paths: &[PathBuf], window: Window) -> Result<(Seen, Option<Failure>)> {
    Sources::of(paths).refuse_as_output()?;
    let (mut seen, mut away) = (Seen::default(), Vec::new());
    for path in paths {
        match glance(path, window) {
            Ok(device) => {
                seen.paths.push(path.clone());
                seen.devices.push(device);
            }
            Err(NotOpened::Away(failure)) => away.push(failure),
            Err(NotOpened::Refused(failure)) => return Err(failure),
        }
    }
    let away = if away.is_empty() { None } else { Some(all_of(&away)) };
    match away {
        Some(failure) if seen.paths.is_empty() => Err(failure),
        away => Ok((seen, away)),
    }
}

fn glance(path: &Path, window: Window) -> std::result::Result<Arc<dyn Device>, NotOpened> {
    within(path, look(path, None)?, find_part(path, window, None)?).map_err(NotOpened::Refused)
}

/// Opens a device that is to be added to a volume. Without `force` it fails if the device holds
/// something that somebody might miss.
pub fn open_new(path: &Path, force: bool) -> Result<Arc<dyn Device>> {
    let device = open_exclusively(path, OpenMode::ReadWrite, DevicePart::WHOLE)?;
    if !force
        && let Some(found) =
            overwritten(path, &*device, DevicePart::WHOLE).map_err(|error| Failure::about(path.display(), &error))?
    {
        return Err(Failure::new(format!("{} holds {found}: -f overwrites it", path.display())));
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    #[test]
    fn loop_devices_of_mounts_are_recognised_by_the_label_that_they_get() {
        assert_eq!(ubtrfs_fuse::mount::SOURCE_LABEL, ubtrfs_volume::SOURCE_LABEL);
    }
}

//! Opening devices for the commands that don't mount.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs_format::Physical;
use ubtrfs_format::items::Timespec;
use ubtrfs_mkfs::existing_signature;
use ubtrfs_volume::{
    Device, DevicePart, Error, Half, OpenMode, OpenOptions as VolumeOptions, PartitionTable, Volume, WindowDevice,
    open_to_look,
};

use ubtrfs_format::{Superblock, SuperblockFlags};

use crate::args::Window;
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::members::with_others;
use crate::other_contents::{instead_of_btrfs, overwritten};
use crate::remedy::{OF_DAMAGE, about_device};
use crate::show;

/// Whether the path is a block device.
pub fn is_block(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Claims a block device: while the result lives, it is not and can't be mounted.
pub fn claim(path: &Path) -> Result<File> {
    ubtrfs_volume::claim(path).map_err(|error| about_device(&error))
}

/// Opens a device so that nobody else has this part of it.
pub fn open_exclusively(path: &Path, mode: OpenMode, part: DevicePart) -> Result<Arc<dyn Device>> {
    ubtrfs_volume::open_part_exclusively(path, mode, part, None).map_err(|error| about_device(&error))
}

/// An error if the kernel has mounted this part of an image file, or that behind a loop device,
/// through any other loop device.
pub fn check_unmounted(path: &Path, mode: OpenMode, part: DevicePart) -> Result<()> {
    ubtrfs_volume::check_unmounted(path, mode, part).map_err(|error| about_device(&error))
}

/// The part of a device that the volume is in; a partition is looked up in the partition table.
pub fn part_of(path: &Path, window: Window) -> Result<DevicePart> {
    let Some(number) = window.partition else {
        return Ok(DevicePart { start: window.offset, size: window.sizelimit.filter(|limit| *limit > 0) });
    };
    let device = open_to_look(path).map_err(|error| about_device(&error))?;
    let failed = |error: Error| Failure::about(path.display(), &error);
    let table = PartitionTable::read(&*device).map_err(failed)?;
    let table = table.ok_or_else(|| Failure::new(format!("{}: there is no partition table", path.display())))?;
    table.part(number).map_err(failed)
}

/// Devices, opened.
pub struct Opened {
    /// The devices.
    pub devices: Vec<Arc<dyn Device>>,
    /// Claims on those that aren't claimed by being open, to be kept as long as they are used.
    pub claims: Vec<File>,
    /// What they are among the host's files.
    pub sources: Sources,
}

/// The devices that are named, and what is found of the rest of their volume.
pub fn all_of_volume(paths: &[PathBuf], window: Window) -> Result<Vec<PathBuf>> {
    if window.is_whole() { with_others(paths) } else { Ok(paths.to_vec()) }
}

/// Opens devices for reading only, and refuses those that are mounted. What is found of the rest of
/// their volume is opened, too.
pub fn open_for_reading(paths: &[PathBuf], window: Window) -> Result<Opened> {
    open_all(paths, window, OpenMode::ReadOnly)
}

/// Opens devices for writing, and refuses those that are mounted; with the rest of their volume.
pub fn open_for_writing(paths: &[PathBuf], window: Window) -> Result<Opened> {
    open_all(paths, window, OpenMode::ReadWrite)
}

/// How each of the devices is opened for this: those of seeds for reading only, if the volume was
/// made from them.
pub fn modes_of(paths: &[PathBuf], window: Window, mode: OpenMode) -> Vec<OpenMode> {
    if mode == OpenMode::ReadOnly || paths.len() < 2 {
        return vec![mode; paths.len()];
    }
    let seeds: Vec<bool> = paths.iter().map(|path| is_of_seed(path, window)).collect();
    let is_made_from_them = seeds.contains(&false);
    seeds.into_iter().map(|is_seed| if is_seed && is_made_from_them { OpenMode::ReadOnly } else { mode }).collect()
}

/// Whether other volumes are made from the one on these devices, so that nothing may write to it.
pub fn is_seed(paths: &[PathBuf], window: Window) -> bool {
    paths.iter().all(|path| is_of_seed(path, window))
}

fn is_of_seed(path: &Path, window: Window) -> bool {
    let is_seed = |superblock: &Superblock| superblock.flags.contains(SuperblockFlags::SEEDING);
    superblock_on(path, window).as_ref().is_some_and(is_seed)
}

/// The superblock of the volume in this part of a device, if it can be read.
pub fn superblock_on(path: &Path, window: Window) -> Option<Superblock> {
    Volume::superblock_of(&*part_to_look_at(path, window)?)
}

fn part_to_look_at(path: &Path, window: Window) -> Option<Arc<dyn Device>> {
    within(path, open_to_look(path).ok()?, part_of(path, window).ok()?).ok()
}

fn open_all(paths: &[PathBuf], window: Window, mode: OpenMode) -> Result<Opened> {
    let paths = all_of_volume(paths, window)?;
    let sources = Sources::of(&paths);
    sources.refuse_as_output()?;
    let mut opened = Opened { devices: Vec::new(), claims: Vec::new(), sources };
    for (path, mode) in paths.iter().zip(modes_of(&paths, window, mode)) {
        let part = part_of(path, window)?;
        let device = open_exclusively(path, mode, part)?;
        // Those that are opened for writing are claimed by that.
        if mode == OpenMode::ReadOnly && is_block(path) {
            opened.claims.push(claim(path)?);
        }
        opened.devices.push(within(path, device, part)?);
    }
    Ok(opened)
}

/// Opens devices for reading only, mounted or not: what is read may be changing.
pub fn open_for_a_glance(paths: &[PathBuf], window: Window) -> Result<Vec<Arc<dyn Device>>> {
    Sources::of(paths).refuse_as_output()?;
    paths
        .iter()
        .map(|path| {
            let device = open_to_look(path).map_err(|error| about_device(&error))?;
            within(path, device, part_of(path, window)?)
        })
        .collect()
}

/// A part of a device.
pub fn within(path: &Path, device: Arc<dyn Device>, part: DevicePart) -> Result<Arc<dyn Device>> {
    if part.is_whole() {
        return Ok(device);
    }
    let part = WindowDevice::new(device, part.start, part.size);
    part.map(|part| Arc::new(part) as _).map_err(|error| Failure::about(path.display(), &error))
}

/// What is on a device that somebody might miss.
pub fn occupied_by(device: &dyn Device) -> io::Result<Option<String>> {
    existing_signature(device.size(), &mut |at, buffer: &mut [u8]| device.read_at(Physical(at), buffer))
}

/// Opens a device that a volume gets, if nothing is on it that somebody might miss, or whatever is
/// on it.
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

/// The volume on these devices, for reading only.
pub fn volume(paths: &[PathBuf], window: Window, devices: Vec<Arc<dyn Device>>) -> Result<Arc<Volume>> {
    let volume = Volume::open(devices, VolumeOptions { read_only: true });
    volume.map(Arc::new).map_err(|error| about_volume_within(paths, window, &error))
}

/// What is wrong with the volume in this part of the devices, and what to do about it.
pub fn about_volume_within(paths: &[PathBuf], window: Window, error: &Error) -> Failure {
    let advice = match (error, paths) {
        (Error::PrimarySuperblock { .. }, _) => Some(format!(
            ": 'ubtrfs rescue super-recover{}' puts it back, and a mount with -o ro,rescue=usebackuproot{} reads the \
             volume as it is",
            window.as_options(),
            window.as_mount_options()
        )),
        // What is at the start of the device says nothing of a part of it.
        (Error::NotBtrfs, [path]) if window.is_whole() => {
            instead_of_btrfs(path, window.of_mount).map(|instead| format!("; {instead}"))
        }
        (Error::NotBtrfs, [_, _, ..]) if window.of_mount => Some(
            "; with -o degraded and without this device the volume is mounted as far as it has all data on the others"
                .into(),
        ),
        (Error::MissingDevices { .. }, _) if window.of_mount => Some(
            "; device=PATH names one, and with -o degraded the volume is mounted without them, as far as it has all data \
             on the others (or ro,degraded)"
                .into(),
        ),
        (Error::MissingDevices { .. }, _) => Some("; 'ubtrfs info' describes what is there".into()),
        (Error::Seed, _) if window.of_mount => Some("; mount it with -o ro".into()),
        (Error::ForeignDevice { .. }, _) => Some(those(paths, window, |_| true)),
        (Error::Apart(halves), _) => Some(about_halves(halves, paths, window)),
        (Error::DuplicateDevice(devid) | Error::WrongDevice(devid) | Error::UnlistedDevice(devid), _) => {
            Some(those(paths, window, |superblock| superblock.dev_item.devid == *devid))
        }
        (Error::Node { .. } | Error::ChunkTree { .. } | Error::ChunkItem { .. } | Error::Unmapped { .. }, _) => {
            Some(OF_DAMAGE.into())
        }
        _ => None,
    };
    let about = match error {
        // Whose superblock it is the error does not say.
        Error::PrimarySuperblock { .. } | Error::Superblock(_) | Error::NotBtrfs => {
            match without_superblock(paths, window) {
                Some(path) => Failure::about(path.display(), error),
                None => about_volume(paths, error),
            }
        }
        _ => about_volume(paths, error),
    };
    about.map_sentence(|sentence| sentence + &advice.unwrap_or_default())
}

/// The first of several devices that has no good primary superblock.
fn without_superblock(paths: &[PathBuf], window: Window) -> Option<&PathBuf> {
    let is_without =
        |path: &&PathBuf| part_to_look_at(path, window).is_some_and(|device| !Volume::has_primary_superblock(&*device));
    paths.iter().find(is_without)
}

/// Where devices are that were written without each other, since when, and the ways out.
fn about_halves(halves: &[Half; 2], paths: &[PathBuf], window: Window) -> String {
    let describe = |half: &Half| {
        let is_it = |path: &&PathBuf| superblock_on(path, window).is_some_and(|own| own.dev_item.devid == half.devid);
        let path = paths.iter().find(is_it).map_or_else(String::new, |path| path.display().to_string());
        let since = half.since.map(|(_, sec)| format!(" since {}", show::seconds(Timespec { sec, nsec: 0 })));
        format!("device {} is {path}{}", half.devid, since.unwrap_or_default())
    };
    let [one, other] = halves;
    format!(
        " ({}; {}); 'ubtrfs mount --discard-device {}' takes what device {} has and makes the other one as it is, \
         --discard-device {} takes what device {} has; -o ro shows the first of them",
        describe(one),
        describe(other),
        other.devid,
        one.devid,
        one.devid,
        other.devid
    )
}

/// The devices whose superblock is meant, and their volumes, as the end of a sentence.
fn those(paths: &[PathBuf], window: Window, is_meant: impl Fn(&Superblock) -> bool) -> String {
    let describe = |path: &PathBuf| {
        let superblock = superblock_on(path, window).filter(|superblock| is_meant(superblock))?;
        Some(format!("{} is of {}", path.display(), superblock.fsid))
    };
    let all: Vec<String> = paths.iter().filter_map(describe).collect();
    format!(" ({})", all.join(", "))
}

/// What is wrong with the volume on these devices.
pub fn about_volume(paths: &[PathBuf], error: &Error) -> Failure {
    match (paths, error) {
        // These name the device themselves.
        (_, Error::Open { .. } | Error::Held { .. } | Error::Attached { .. } | Error::NotADevice { .. }) | ([], _) => {
            about_device(error)
        }
        ([path, ..], _) => Failure::about(path.display(), error),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn loop_devices_of_mounts_are_recognised_by_the_label_that_they_get() {
        assert_eq!(ubtrfs_fuse::mount::SOURCE_LABEL, ubtrfs_volume::SOURCE_LABEL);
    }
}

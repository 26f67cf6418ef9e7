//! `ubtrfs mkfs`: a new volume on a device or in an image file.

mod identity;
mod input;
mod populate;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use ubtrfs::mkfs::make_over;
use ubtrfs_format::{ChecksumType, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_mkfs::{MkfsOptions, Profile, existing_signature, layout};
use ubtrfs_volume::{ALIGNMENT, Buffer, Device, DevicePart, DeviceWrite, OpenMode, is_remote};

use self::identity::Identity;
use self::input::Input;
use self::populate::Population;
use crate::args;
use crate::device::{open_exclusively, part_of, within};
use crate::failure::{Failure, Result};
use crate::output;
use crate::report::Done;
use crate::size::show_size;

/// What was made, for programs.
#[derive(Serialize)]
struct Made<'a> {
    device: std::borrow::Cow<'a, str>,
    id: String,
    bytes: u64,
    /// What it was filled with.
    #[serde(rename = "filled_with", skip_serializing_if = "Option::is_none")]
    done: Option<Done>,
}

/// `ubtrfs mkfs`
pub fn run(arguments: &args::Mkfs) -> Result<()> {
    let [path] = arguments.devices.as_slice() else {
        return Err(Failure::new("volumes of several devices can't be made yet: give one device"));
    };
    // Errors in the options are reported before anything is touched; the size is checked again
    // below.
    let mut options = options(arguments)?;
    if !arguments.window.offset.is_multiple_of(ALIGNMENT as u64) {
        return Err(Failure::new(format!("--offset is no multiple of {ALIGNMENT}")));
    }
    let input = arguments.populate.rootdir.as_deref().map(|from| Input::new(from, path)).transpose()?;
    if arguments.populate.subvol.iter().filter(|subvolume| subvolume.default).count() > 1 {
        return Err(Failure::new("only one subvolume can be the default").with_status(2));
    }
    if let Some(input) = &input {
        input.check_subvolumes(&arguments.populate.subvol)?;
        input.check_flags(&arguments.populate.inode_flags)?;
    }
    let identity = Identity::new(arguments, input.as_ref())?;
    identity.apply(&mut options);
    let size = match (arguments.size, &input) {
        (None, Some(input)) if !is_remote(path) && !path.exists() || is_shrunk_again(path, arguments) => {
            Population::default_size(input, arguments)?
        }
        (size, _) => size,
    };
    let made = prepare(path, arguments, size)?;
    let written = part_of(path, arguments.window).and_then(|part| {
        let fsid = options.fsid;
        let (device, mut bytes) = write(path, arguments, size, part, options)?;
        let mut done = None;
        if let Some(input) = &input {
            let before = bytes;
            let population = Population { input, arguments, identity, size: bytes };
            let counts;
            (bytes, counts) = population.run(Arc::clone(&device)).inspect_err(|_| wipe_superblocks(&*device, 0))?;
            done = Some(counts.into());
            if bytes < before {
                wipe_superblocks(&*device, bytes);
                cut(path, part, before, bytes)?;
            }
        }
        if arguments.json {
            let device = path.to_string_lossy();
            return output::say(&output::as_json(&Made { device, id: fsid.to_string(), bytes, done })?);
        }
        println!("{}: a btrfs of {} with the id {fsid}", path.display(), show_size(bytes));
        Ok(())
    });
    if written.is_err() && made {
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Whether an image file is made again that ends where its volume does, so that its size says
/// nothing.
fn is_shrunk_again(path: &Path, arguments: &args::Mkfs) -> bool {
    arguments.populate.shrink && arguments.force && arguments.window.is_whole() && path.is_file()
}

/// Takes the superblocks away that are not in the first `end` bytes of the device, as well as it
/// can: those of a volume that could not be filled, or behind the end of one that was shrunk.
fn wipe_superblocks(device: &dyn Device, end: u64) {
    let size = SUPERBLOCK_SIZE as u64;
    let goes = |at: &&Physical| at.0 + size > end && at.0 + size <= device.size();
    let zeros = |at: &Physical| DeviceWrite { at: *at, data: Buffer::zeroed(SUPERBLOCK_SIZE).share() };
    let written = device.submit(SUPERBLOCK_COPIES.iter().filter(goes).map(zeros).collect()).wait();
    if let Err(error) = written.map_err(io::Error::from).and_then(|()| device.flush()) {
        tracing::warn!(%error, "superblocks that are of no use stay");
    }
}

/// Ends an image file where its volume ends now, if it ended where the volume ended `before`: else
/// there is something else behind it.
fn cut(path: &Path, part: DevicePart, before: u64, bytes: u64) -> Result<()> {
    if is_remote(path) {
        return Ok(());
    }
    let failed = |error: io::Error| Failure::about(path.display(), &error);
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_file() && found.len() == part.start.saturating_add(before) {
        file.set_len(part.start.saturating_add(bytes)).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(())
}

fn options(arguments: &args::Mkfs) -> Result<MkfsOptions> {
    let size = arguments.size.unwrap_or_default();
    // Offsets in files have a sign.
    if i64::try_from(size).is_err() {
        return Err(Failure::new(format!("{size} bytes are impossible: files and devices are smaller than 8 EiB")));
    }
    let mut options = MkfsOptions::new(size);
    options.label = arguments.label.clone().unwrap_or_default().into_bytes();
    options.checksum = checksum(&arguments.csum)?;
    options.node_size = match arguments.nodesize {
        None => None,
        Some(bytes) => {
            Some(u32::try_from(bytes).map_err(|_| Failure::new(format!("node size {bytes} is impossible")))?)
        }
    };
    options.data_profile = arguments.data.as_deref().map(profile).transpose()?;
    options.metadata_profile = arguments.metadata.as_deref().map(profile).transpose()?;
    options.mixed = arguments.mixed;
    options.block_group_tree = arguments.block_group_tree;
    // An ordinary user's volume is of no use to its maker if only root may make files in it. What
    // it is filled with gives it another owner, and who makes it leaves no trace.
    options.root_owner = match arguments.root_owner {
        Some(owner) => owner,
        None if arguments.populate.rootdir.is_some() => (0, 0),
        None => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    };
    Ok(options)
}

fn checksum(name: &str) -> Result<ChecksumType> {
    match name.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(ChecksumType::Crc32c),
        "xxhash" | "xxhash64" => Ok(ChecksumType::XxHash64),
        "sha256" => Ok(ChecksumType::Sha256),
        "blake2" | "blake2b" => Ok(ChecksumType::Blake2b),
        _ => Err(Failure::new(format!("unknown checksum algorithm '{name}': crc32c, xxhash64, sha256 or blake2b"))),
    }
}

fn profile(name: &str) -> Result<Profile> {
    match name.to_ascii_lowercase().as_str() {
        "single" => Ok(Profile::Single),
        "dup" => Ok(Profile::Dup),
        _ => Err(Failure::new(format!("unknown profile '{name}': single or dup"))),
    }
}

/// Makes the image file if there is none; returns whether it did.
fn prepare(path: &Path, arguments: &args::Mkfs, size: Option<u64>) -> Result<bool> {
    let failed = |error: io::Error| Failure::about(path.display(), &error);
    if is_remote(path) {
        return Ok(false);
    }
    match std::fs::metadata(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(size) = size else {
                return Err(Failure::new(format!("{} does not exist; --size SIZE makes it", path.display())));
            };
            let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
            file.set_len(arguments.window.offset.saturating_add(size)).map_err(|error| {
                let _ = std::fs::remove_file(path);
                failed(error)
            })?;
            Ok(true)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Writes an empty volume. Returns the device, and the bytes of the volume.
fn write(
    path: &Path,
    arguments: &args::Mkfs,
    size: Option<u64>,
    part: DevicePart,
    mut options: MkfsOptions,
) -> Result<(Arc<dyn Device>, u64)> {
    let shown = path.display();
    let failed = |error: io::Error| Failure::about(path.display(), &error);
    let open = || open_exclusively(path, OpenMode::ReadWrite, part);
    let mut device = open()?;
    let rest = device.size().saturating_sub(part.start);
    let room = part.size.map_or(rest, |limit| limit.min(rest));
    if !arguments.force {
        let mut read = |at: u64, buffer: &mut [u8]| device.read_at(Physical(part.start.saturating_add(at)), buffer);
        if let Some(found) = existing_signature(room, &mut read).map_err(failed)? {
            return Err(Failure::new(format!("{shown} holds a {found}: -f overwrites it")));
        }
    }
    let is_fixed = is_remote(path) || std::fs::metadata(path).map_err(failed)?.file_type().is_block_device();
    options.total_bytes = size.unwrap_or(room);
    let end = part.start.saturating_add(options.total_bytes);
    if is_fixed && end > device.size() {
        return Err(Failure::new(format!("{shown} has only {} bytes", device.size())));
    }
    if part.size.is_some_and(|limit| limit < options.total_bytes) {
        let limit = if arguments.window.partition.is_some() { "the partition has" } else { "--sizelimit allows" };
        return Err(Failure::new(format!("--size asks for more than {limit}")));
    }
    // The request must be possible before the file changes.
    layout(&options).map_err(|error| Failure::about(path.display(), &error))?;
    // What a file had would be left in the places that the volume does not use.
    let is_emptied = arguments.populate.rootdir.is_some() && part.is_whole();
    // Behind a part of an image there may be something else.
    if !is_fixed && (is_emptied || end > device.size() || part.is_whole() && end < device.size()) {
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        let emptied = if is_emptied { file.set_len(0) } else { Ok(()) };
        emptied.and_then(|()| file.set_len(end)).map_err(failed)?;
        drop(device);
        device = open()?;
    }
    let device = within(path, device, part)?;
    options.largest_chunk = Population::largest_chunk(arguments, options.total_bytes);
    make_over(&*device, &options).map_err(|error| Failure::about(path.display(), &error))?;
    Ok((device, options.total_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_algorithms_and_profiles_are_known() {
        assert_eq!(checksum("SHA256").unwrap(), ChecksumType::Sha256);
        assert_eq!(checksum("xxhash").unwrap(), ChecksumType::XxHash64);
        assert!(checksum("md5").is_err());
        assert_eq!(profile("DUP").unwrap(), Profile::Dup);
        assert!(profile("raid1").is_err());
    }
}

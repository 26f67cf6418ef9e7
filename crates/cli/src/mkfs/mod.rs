//! `ubtrfs mkfs`: makes a new volume on devices or in image files.

mod features;
mod identity;
mod input;
mod populate;
mod stand_in;
mod summary;
mod target;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use ubtrfs::mkfs::{Error, make_over};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{ChecksumType, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_image::{Counts, Selection};
use ubtrfs_mkfs::{MkfsError, MkfsOptions, NewDevice, Profile, layout, minimum_bytes, random_uuid};
use ubtrfs_volume::{ALIGNMENT, Buffer, DeferredSuperblocks, Device, DeviceWrite};

pub use self::features::offered as offered_features;
use self::identity::Identity;
pub use self::identity::source_date_epoch;
use self::input::Input;
use self::populate::{Populated, Population};
use self::summary::Summary;
use self::target::{OpenTarget, Target};
use crate::args;
use crate::failure::{FAILED, Failure, Result};
use crate::json;
use crate::members::check_distinct;
use crate::output;
use crate::output::note;
use crate::report::{self, Done};
use crate::show;
use crate::size::show_size;

/// The result, for `--json`.
#[derive(Serialize)]
struct Made {
    device: Value,
    /// All devices, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<MadeDevice>,
    id: String,
    /// The bytes of all devices.
    bytes: u64,
    /// The counts of the content.
    #[serde(rename = "filled_with", skip_serializing_if = "Option::is_none")]
    done: Option<Done>,
}

/// One of several devices.
#[derive(Serialize)]
struct MadeDevice {
    id: u64,
    path: Value,
    bytes: u64,
}

/// The program as which a volume is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// `ubtrfs mkfs`, or `mkfs.ubtrfs`.
    Ubtrfs,
    /// `mkfs.btrfs`, with the behaviour that scripts and image builders expect.
    MkfsBtrfs,
}

/// `ubtrfs mkfs`
pub fn run(arguments: &args::Mkfs) -> Result<()> {
    make_as(Program::Ubtrfs, arguments)
}

/// Runs the program as `mkfs.btrfs`.
pub fn main_as_mkfs_btrfs() -> ExitCode {
    let arguments = match stand_in::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            if !error.use_stderr() {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            note!("{}", error.to_string().replacen("error:", "ERROR:", 1).trim_end());
            return ExitCode::FAILURE;
        }
    };
    let made = make_as(Program::MkfsBtrfs, &arguments).map_err(|failure| failure.with_status(FAILED));
    output::end_as("ERROR", made, FAILED)
}

fn make_as(program: Program, arguments: &args::Mkfs) -> Result<()> {
    if features::asks_for_list(&arguments.features) || features::asks_for_list(&arguments.runtime_features) {
        features::list();
        return Ok(());
    }
    if arguments.devices.is_empty() {
        return Err(Failure::new("no DEVICE is given").with_status(2));
    }
    if arguments.populate.reflink {
        return Err(Failure::new("--reflink: ubtrfs copies files' data; without it the volume has the same files"));
    }
    // Errors in the options are reported before anything is changed; the sizes are checked again
    // below.
    let mut options = options(program, arguments)?;
    if !arguments.window.offset.is_multiple_of(ALIGNMENT as u64) {
        return Err(Failure::new(format!("--offset is no multiple of {ALIGNMENT}")));
    }
    let paths = arguments.devices.as_slice();
    let (rootdir, platform) = (arguments.populate.rootdir.as_deref(), arguments.populate.platform.as_ref());
    let input = rootdir.map(|from| Input::new(from, platform, paths)).transpose()?;
    let subvolumes = arguments.populate.subvolumes();
    if subvolumes.iter().filter(|subvolume| subvolume.default).count() > 1 {
        return Err(Failure::new("only one subvolume can be the default").with_status(2));
    }
    let selection = arguments.populate.selection()?;
    if let Some(input) = &input {
        input.check_subvolumes(&subvolumes)?;
        input.check_flags(&arguments.populate.flags())?;
        input.check_selection(&selection)?;
    }
    let identity = Identity::new(arguments, input.as_ref(), &selection)?;
    let input = input.as_ref().map(|input| (input, &selection));
    let mut targets = Vec::new();
    let made = check_distinct(paths).and_then(|()| {
        for path in paths {
            targets.push(Target::prepare(path, arguments, input, minimum_bytes(&options))?);
        }
        make(&targets, arguments, input, identity, &mut options)
    });
    if made.is_err() {
        targets.iter().for_each(Target::undo);
    }
    let volume = made?;
    if !arguments.quiet {
        say(program, arguments, &options, &volume)?;
    }
    report::say_shrunk(&volume.shrunk)
}

/// The type of each chunk, and its bytes.
type Chunks = Vec<(BlockGroupFlags, u64)>;

/// A volume that was made.
struct Volume {
    /// The bytes of its devices.
    sizes: Vec<u64>,
    /// The type of each chunk, and its bytes.
    chunks: Chunks,
    /// The counts of the content.
    done: Option<Counts>,
    /// Files that had shrunk when they were copied.
    shrunk: Vec<PathBuf>,
}

/// Makes the volume and fills it.
fn make(
    targets: &[Target<'_>],
    arguments: &args::Mkfs,
    input: Option<(&Input, &Selection)>,
    identity: Identity,
    options: &mut MkfsOptions,
) -> Result<Volume> {
    let (devices, chunks) = open(targets, arguments, identity, options)?;
    let sizes: Vec<u64> = options.devices().map(|(_, device)| device.total_bytes).collect();
    if !arguments.nodiscard {
        let devices = targets.iter().zip(&devices).zip(&sizes);
        devices.for_each(|((target, device), bytes)| target.discard(&**device, *bytes));
    }
    let Some((input, selection)) = input else {
        write(targets, &devices, options)?;
        return Ok(Volume { sizes, chunks, done: None, shrunk: Vec::new() });
    };
    // The superblocks are written when the volume is filled. If that fails before, the devices hold
    // no volume, nor the old one.
    wipe_all_superblocks(&devices);
    let deferred: Vec<_> =
        devices.iter().map(|device| Arc::new(DeferredSuperblocks::new(Arc::clone(device)))).collect();
    let filled: Vec<_> = deferred.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    write(targets, &filled, options)?;
    for (number, device) in devices.iter().enumerate() {
        // Filling the volume may take long.
        device.protect().map_err(|error| Failure::about(shown(targets, number), &error))?;
    }
    let population = Population { input, arguments, identity, selection, sizes: sizes.clone() };
    let Populated { sizes: now, chunks, counts, shrunk } = population.run(filled.clone())?;
    let sizes = sizes.into_iter().zip(&now);
    let cut = sizes.enumerate().filter(|(_, (before, bytes))| *bytes < before);
    let cut: Vec<_> = cut.map(|(number, (before, bytes))| (number, before, *bytes)).collect();
    for (number, _, bytes) in &cut {
        wipe_superblocks(&*filled[*number], *bytes);
    }
    // The superblocks of the first device come last: without them a device is missing.
    for (number, device) in deferred.iter().enumerate().rev() {
        device.publish().map_err(|error| {
            wipe_all_superblocks(&devices);
            Failure::about(shown(targets, number), &error)
        })?;
    }
    targets.iter().for_each(Target::publish);
    for (number, before, bytes) in cut {
        targets[number].cut(before, bytes)?;
    }
    Ok(Volume { sizes: now, chunks, done: Some(counts), shrunk })
}

/// Reports the result.
fn say(program: Program, arguments: &args::Mkfs, options: &MkfsOptions, volume: &Volume) -> Result<()> {
    let (paths, sizes) = (arguments.devices.as_slice(), volume.sizes.as_slice());
    let (fsid, bytes) = (options.fsid, sizes.iter().sum());
    if arguments.json {
        let is_one = paths.len() == 1;
        let mut devices = Vec::new();
        for ((id, path), bytes) in (1..).zip(paths).zip(sizes).filter(|_| !is_one) {
            devices.push(MadeDevice { id, path: json::name(path.as_os_str().as_bytes()), bytes: *bytes });
        }
        let device = json::name(paths.first().map(|path| path.as_os_str().as_bytes()).unwrap_or_default());
        let done = volume.done.map(Done::from);
        output::say(&json::as_json(&Made { device, devices, id: fsid.to_string(), bytes, done })?);
        return Ok(());
    }
    if program == Program::MkfsBtrfs {
        output::say(&Summary { arguments, options, sizes, chunks: &volume.chunks }.lines());
        return Ok(());
    }
    let shown: Vec<String> = paths.iter().map(|path| show::path(path)).collect();
    let on = if let [_] = paths { String::new() } else { format!(" on {} devices", paths.len()) };
    output::say(&format!("{}: a btrfs of {}{on} with the id {fsid}", shown.join(", "), show_size(bytes)));
    Ok(())
}

fn wipe_all_superblocks(devices: &[Arc<dyn Device>]) {
    for device in devices {
        wipe_superblocks(&**device, 0);
    }
}

/// Removes, as far as possible, the superblocks that are not within the first `end` bytes of the
/// device: those of a volume that could not be filled, or those after the end of one that was
/// shrunk.
fn wipe_superblocks(device: &dyn Device, end: u64) {
    let size = SUPERBLOCK_SIZE as u64;
    let goes = |at: &&Physical| at.0 + size > end && at.0 + size <= device.size();
    let zeros = |at: &Physical| DeviceWrite { at: *at, data: Buffer::zeroed(SUPERBLOCK_SIZE).share() };
    let written = device.submit(SUPERBLOCK_COPIES.iter().filter(goes).map(zeros).collect()).wait();
    if let Err(error) = written.map_err(io::Error::from).and_then(|()| device.flush()) {
        tracing::warn!(error = %sentence(&error), "superblocks that are of no use stay");
    }
}

fn options(program: Program, arguments: &args::Mkfs) -> Result<MkfsOptions> {
    let size = arguments.asked_size().unwrap_or_default();
    // Offsets in files are signed.
    if i64::try_from(size).is_err() {
        return Err(Failure::new(format!("{size} bytes are impossible: files and devices are smaller than 8 EiB")));
    }
    let mut options = MkfsOptions::new(size);
    options.label = arguments.label.clone().unwrap_or_default().into_bytes();
    options.checksum = checksum(&arguments.csum)?;
    let bytes_of = |what: &str, bytes: u64| {
        u32::try_from(bytes).map_err(|_| Failure::new(format!("{what} size {bytes} is impossible")))
    };
    options.node_size = arguments.nodesize.map(|bytes| bytes_of("node", bytes)).transpose()?;
    if let Some(bytes) = arguments.sectorsize {
        options.sector_size = bytes_of("sector", bytes)?;
    }
    options.data_profile = arguments.data.as_deref().map(profile).transpose()?;
    options.metadata_profile = arguments.metadata.as_deref().map(profile).transpose()?;
    options.mixed = arguments.mixed;
    apply_features(program, arguments, &mut options)?;
    if program == Program::MkfsBtrfs && options.mixed {
        // In a mixed volume both profiles must be equal. As in mkfs.btrfs, one that is not given is
        // single, even if the other is not, and two different ones are refused.
        options.data_profile.get_or_insert(Profile::Single);
        options.metadata_profile.get_or_insert(Profile::Single);
    }
    // An ordinary user could not use a volume in which only root may make files, so the user owns
    // it. The input of a filled volume determines its owner instead, and the user who makes it
    // leaves no trace.
    options.root_owner = match arguments.root_owner {
        Some(owner) => owner,
        None if program == Program::MkfsBtrfs || arguments.populate.rootdir.is_some() => (0, 0),
        None => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    };
    Ok(options)
}

/// Turns features on and off. If the features that the block-group tree requires are off, and the
/// user has not requested the tree, it is turned off, too.
fn apply_features(program: Program, arguments: &args::Mkfs, options: &mut MkfsOptions) -> Result<()> {
    let words = [&arguments.runtime_features[..], &arguments.features].concat();
    options.block_group_tree = true;
    features::apply(&words, options)?;
    let is_asked_for = arguments.block_group_tree || features::ask_for(&words, "block-group-tree");
    let is_possible = options.free_space_tree && options.no_holes;
    if options.block_group_tree && !is_asked_for && !is_possible {
        options.block_group_tree = false;
        if program == Program::MkfsBtrfs {
            note!("WARNING: disabling block-group-tree feature due to missing no-holes and free-space-tree features");
        }
    }
    if options.quotas.is_some() && arguments.populate.rootdir.is_some() {
        return Err(Failure::new(
            "quotas of a volume that is filled: ubtrfs does not count them: enable them when the volume is mounted, \
             with btrfs quota enable",
        ));
    }
    Ok(())
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
    Profile::of_name(name).ok_or_else(|| match BlockGroupFlags::profile_of_name(name) {
        Some(parity) => Failure::new(format!(
            "volumes with the profile {} can't be made: ubtrfs writes no parity",
            parity.profile_name()
        )),
        None => {
            Failure::new(format!("unknown profile '{name}': single, dup, raid0, raid1, raid1c3, raid1c4 or raid10"))
        }
    })
}

/// Opens the devices, if the volume is possible, and sets their sizes in the options. Returns the
/// devices, and the chunks of the empty volume.
fn open(
    targets: &[Target<'_>],
    arguments: &args::Mkfs,
    identity: Identity,
    options: &mut MkfsOptions,
) -> Result<(Vec<Arc<dyn Device>>, Chunks)> {
    let mut opened = Vec::new();
    for target in targets {
        opened.push(target.open(arguments)?);
    }
    let sizes: Vec<u64> = opened.iter().map(OpenTarget::total_bytes).collect();
    options.total_bytes = sizes.first().copied().unwrap_or_default();
    let more = sizes.iter().skip(1).map(|total_bytes| NewDevice { total_bytes: *total_bytes, uuid: random_uuid() });
    options.more_devices = more.collect();
    identity.apply(options);
    // The layout is checked before a file changes.
    let chunks = layout(options).map_err(|error| refused(targets, &error))?.chunks;
    let mut devices = Vec::new();
    for device in opened {
        devices.push(device.resized(arguments.populate.rootdir.is_some())?);
    }
    options.largest_chunk = Population::largest_chunk(arguments, sizes.iter().sum());
    Ok((devices, chunks))
}

/// Writes an empty volume. If that fails, its superblocks are removed, since the volume may be
/// larger than its image file. An older volume with the same id stays.
fn write(targets: &[Target<'_>], devices: &[Arc<dyn Device>], options: &MkfsOptions) -> Result<()> {
    let of_volume: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
    let has_id = |device: &Arc<dyn Device>| {
        ubtrfs_volume::Volume::superblock_of(&**device).is_some_and(|superblock| superblock.fsid == options.fsid)
    };
    let others: Vec<_> = devices.iter().filter(|device| !has_id(device)).collect();
    make_over(&of_volume, options).map_err(|error| {
        others.into_iter().filter(|device| has_id(device)).for_each(|device| wipe_superblocks(&**device, 0));
        match &error {
            Error::Options(error) => refused(targets, error),
            _ => Failure::about(shown(targets, 0), &error),
        }
    })
}

/// Returns the failure about a volume that can't be made, and the device that is the reason.
fn refused(targets: &[Target<'_>], error: &MkfsError) -> Failure {
    let number = if let MkfsError::DeviceTooSmall { devid, .. } = error { *devid as usize - 1 } else { 0 };
    Failure::about(shown(targets, number), error)
}

fn shown(targets: &[Target<'_>], number: usize) -> String {
    targets.get(number).map(|target| target.path().display().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_leaves_a_volume_with_the_same_id() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(256 << 20).unwrap();
        let device = ubtrfs_volume::FileDevice::open(
            file.path(),
            ubtrfs_volume::OpenMode::ReadWrite,
            ubtrfs_volume::Exclusive::Yes,
        );
        let devices: [Arc<dyn Device>; 1] = [Arc::new(device.unwrap())];
        let options = MkfsOptions::new(256 << 20);
        write(&[], &devices, &options).unwrap();
        let too_small = MkfsOptions { total_bytes: 1 << 20, ..options.clone() };
        assert!(write(&[], &devices, &too_small).is_err());
        let found = ubtrfs_volume::Volume::superblock_of(&*devices[0]).unwrap();
        assert_eq!((found.fsid, found.total_bytes), (options.fsid, 256 << 20));
    }

    #[test]
    fn names_of_algorithms_and_profiles_are_known() {
        assert_eq!(checksum("SHA256").unwrap(), ChecksumType::Sha256);
        assert_eq!(checksum("xxhash").unwrap(), ChecksumType::XxHash64);
        assert!(checksum("md5").is_err());
        assert_eq!(profile("DUP").unwrap(), Profile::Dup);
        assert_eq!(profile("RAID1C3").unwrap(), Profile::Raid1c3);
        assert!(profile("raid5").is_err() && profile("raid7").is_err());
    }
}

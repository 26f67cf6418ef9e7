//! The usage of a volume's space, as of its last commit: by types of block groups, and on each
//! device.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use ubtrfs_format::items::DevItem;
use ubtrfs_volume::{Device, Error as VolumeError, OpenMode, OpenOptions, Volume};

use crate::args::Window;
use crate::away::{Chosen, LeftOut, choose};
use crate::control;
use crate::device::{about_volume_within, all_of_volume, open_for_a_glance};
use crate::failure::Result;
use crate::info::{Groups, block_groups};
use crate::json::Name;
use crate::mount::window_of_options;
use crate::place::mount_of;
use crate::trees::Trees;
use crate::trust::require_trusted;

/// The text in place of the path of a device that is missing.
pub const MISSING: &str = "missing";

/// The usage of a volume's space.
#[derive(Debug, Serialize)]
pub struct Usage {
    /// The block groups, summed up by type and profile.
    pub groups: Vec<Groups>,
    pub devices: Vec<DeviceUsage>,
}

/// The usage of a device.
#[derive(Debug, Serialize)]
pub struct DeviceUsage {
    pub id: u64,
    /// Empty if it is missing.
    pub path: Name,
    pub total_bytes: u64,
    /// The bytes of the device beyond the size that the volume uses.
    pub slack_bytes: u64,
    /// The bytes of chunks, by their type and profile.
    pub chunks: Vec<DeviceChunks>,
    pub unallocated_bytes: u64,
    /// The device lacks something that the others have.
    pub lags: bool,
}

/// The bytes of a device that chunks of one type and profile take.
#[derive(Debug, Serialize)]
pub struct DeviceChunks {
    pub kind: String,
    pub profile: String,
    pub bytes: u64,
}

/// A volume that is read without the engine, with the paths of its devices by their numbers.
pub struct Glance {
    pub volume: Arc<Volume>,
    lagging: Vec<u64>,
    paths: BTreeMap<u64, (Name, Arc<dyn Device>)>,
    left_out: Vec<LeftOut>,
}

/// How often a mounted volume is read again, until a read meets a single commit.
const TRIES: u32 = 40;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

impl Glance {
    /// Calls `read` on the volume that is on these devices, or that ubtrfs has mounted on the only
    /// directory among them. A mount writes to the devices meanwhile, and adds and removes devices;
    /// so a read of it that fails is repeated.
    pub fn look<T>(places: &[PathBuf], window: Window, read: impl Fn(&Self) -> Result<T>) -> Result<T> {
        let most = if mount_of(places).is_some() { TRIES } else { 1 };
        let look = || Self::new(places, window).and_then(|glance| read(&glance).map(|found| (glance, found)));
        let mut found = look();
        for _ in 1..most {
            if found.is_ok() {
                break;
            }
            std::thread::sleep(PAUSE);
            found = look();
        }
        let (glance, found) = found?;
        glance.left_out.iter().for_each(LeftOut::say);
        Ok(found)
    }

    fn new(places: &[PathBuf], window: Window) -> Result<Self> {
        let mut of_mount = None;
        let (paths, window) = match mount_of(places) {
            Some(directory) => {
                require_trusted(directory)?;
                let report = control::report(directory).map_err(|errno| control::failure(directory, errno))?;
                of_mount = Some(report.lagging_devices);
                (report.devices.iter().map(PathBuf::from).collect(), window_of_options(&report.options)?)
            }
            None => (places.to_vec(), window),
        };
        let Chosen { paths, left_out } = choose(&paths, window, OpenMode::ReadOnly, None)?;
        let paths = all_of_volume(&paths, window)?;
        let devices = open_for_a_glance(&paths, window)?;
        let read_only = || OpenOptions { read_only: true };
        let volume = match Volume::open(devices.clone(), read_only()) {
            Err(VolumeError::MissingDevices { .. }) => Volume::open_degraded(devices.clone(), read_only()),
            opened => opened,
        };
        let volume = volume.map_err(|error| about_volume_within(&paths, window, &error))?;
        let mut by_number = BTreeMap::new();
        for (path, device) in paths.iter().zip(devices) {
            if let Some(superblock) = Volume::superblock_of(&*device) {
                by_number.insert(superblock.dev_item.devid.0, (Name(path.as_os_str().as_bytes().to_vec()), device));
            }
        }
        // While a mount writes superblocks, some of them are newer than others, so the mount's
        // report is preferred.
        let lagging = of_mount.unwrap_or_else(|| volume.devices().lagging().iter().map(|device| device.0).collect());
        Ok(Self { volume: Arc::new(volume), lagging, paths: by_number, left_out })
    }

    /// Returns the path of a device, or [`MISSING`].
    pub fn path(&self, devid: u64) -> Name {
        self.paths.get(&devid).map_or_else(|| Name(MISSING.into()), |(path, _)| path.clone())
    }

    /// Whether a device lacks something that the others have.
    pub fn lags(&self, devid: u64) -> bool {
        self.lagging.contains(&devid)
    }

    /// Returns the usage of the volume.
    pub fn usage(&self) -> Result<Usage> {
        let groups = block_groups(&self.volume, &Trees::new(&self.volume))?;
        Ok(Usage { groups, devices: self.volume.devices().items().iter().map(|item| self.of_device(item)).collect() })
    }

    fn of_device(&self, item: &DevItem) -> DeviceUsage {
        let mut kinds: BTreeMap<(u64, u64), DeviceChunks> = BTreeMap::new();
        for (_, chunk) in self.volume.chunk_map().all() {
            let stripes = chunk.stripes.iter().filter(|stripe| stripe.devid == item.devid).count() as u64;
            let Some(raid) = chunk.flags.raid().filter(|_| stripes > 0) else { continue };
            let (kind, profile) = (chunk.flags.type_name().into(), chunk.flags.profile_name().into());
            let key = (chunk.flags.types().0, chunk.flags.profile().0);
            let all = kinds.entry(key).or_insert(DeviceChunks { kind, profile, bytes: 0 });
            all.bytes += stripes * (chunk.length / raid.data_stripes(chunk.stripes.len()));
        }
        let chunks: Vec<DeviceChunks> = kinds.into_values().collect();
        let allocated = chunks.iter().map(|chunks| chunks.bytes).sum();
        let found = self.paths.get(&item.devid.0);
        DeviceUsage {
            id: item.devid.0,
            path: found.map(|(path, _)| path.clone()).unwrap_or_default(),
            total_bytes: item.total_bytes,
            slack_bytes: found.map_or(0, |(_, device)| device.size().saturating_sub(item.total_bytes)),
            unallocated_bytes: item.total_bytes.saturating_sub(allocated),
            chunks,
            lags: self.lags(item.devid.0),
        }
    }
}

//! The devices of a mount by their paths, and how those are opened that it gets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ubtrfs::{Filesystem, ReplaceOptions};
use ubtrfs_format::DeviceId;
use ubtrfs_fuse::Errno;
use ubtrfs_volume::Device;

/// Opens a device so that nobody else has it, if nothing is on it that somebody might miss.
pub type Opener = dyn Fn(&Path) -> Result<Arc<dyn Device>, Errno> + Send + Sync;

/// The devices of a mount.
#[derive(Default)]
pub(crate) struct Devices {
    /// The paths, as they were given.
    paths: Mutex<Vec<String>>,
    by_number: Mutex<BTreeMap<u64, String>>,
    pub(crate) opener: OnceLock<Box<Opener>>,
}

impl Devices {
    pub(crate) fn new(paths: Vec<String>, by_number: BTreeMap<u64, String>) -> Self {
        Self { paths: Mutex::new(paths), by_number: Mutex::new(by_number), opener: OnceLock::new() }
    }

    /// The paths, as they were given.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.paths.lock().clone()
    }

    /// The paths by the devices' numbers.
    pub(crate) fn by_number(&self) -> BTreeMap<u64, String> {
        self.by_number.lock().clone()
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Device>, Errno> {
        self.opener.get().ok_or(Errno::OPNOTSUPP)?(Path::new(path))
    }

    /// Makes a device one of the volume's.
    pub(crate) fn add(&self, engine: &Filesystem, path: &str) -> Result<(), Errno> {
        let device = self.open(path)?;
        let number = engine.add_device(device).map_err(|error| error.errno())?;
        self.by_number.lock().insert(number.0, path.to_owned());
        self.paths.lock().push(path.to_owned());
        Ok(())
    }

    /// The number of a device: it is given, or it is that of the path.
    pub(crate) fn number_of(&self, number: u64, path: &str) -> Result<DeviceId, Errno> {
        if number != 0 {
            return Ok(DeviceId(number));
        }
        let by_number = self.by_number.lock();
        let found = by_number.iter().find(|(_, known)| *known == path);
        found.map(|(number, _)| DeviceId(*number)).ok_or(Errno::NODEV)
    }

    /// Replaces a device, and returns when that is done or has failed.
    pub(crate) fn replace(
        &self,
        engine: &Filesystem,
        source: DeviceId,
        target: &str,
        options: ReplaceOptions,
    ) -> Result<(), Errno> {
        if !engine.volume().devices().iter().any(|item| item.devid == source) {
            return Err(Errno::NODEV);
        }
        let device = self.open(target)?;
        let failed = |error: ubtrfs::Error| error.errno();
        engine.begin_replacement(source, device, options).map_err(failed)?;
        self.by_number.lock().insert(0, target.to_owned());
        let done = engine.continue_replacement(&mut |_| true).map_err(failed);
        let mut by_number = self.by_number.lock();
        by_number.remove(&0);
        if done.is_ok() {
            let old = by_number.insert(source.0, target.to_owned());
            let mut paths = self.paths.lock();
            paths.retain(|path| Some(path) != old.as_ref());
            paths.push(target.to_owned());
        }
        done
    }
}

//! The devices of a mount by their paths, and the opening of devices that are added.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Filesystem, ReplaceOptions, ReplaceState, VacateProgress};
use ubtrfs_format::DeviceId;
use ubtrfs_fuse::Errno;
use ubtrfs_threads::{Mutex, OnceLock, Rank};
use ubtrfs_volume::{Device, TARGET};

/// Opens a device exclusively, unless there is something on it that somebody might miss.
pub type Opener = dyn Fn(&Path) -> Result<Arc<dyn Device>, Errno> + Send + Sync;

/// The devices of a mount.
pub(crate) struct Devices {
    /// The paths, as they were given.
    paths: Mutex<Vec<String>>,
    by_number: Mutex<BTreeMap<u64, String>>,
    pub(crate) opener: OnceLock<Box<Opener>>,
}

impl Default for Devices {
    fn default() -> Self {
        Self::new(Vec::new(), BTreeMap::new())
    }
}

impl Devices {
    pub(crate) fn new(paths: Vec<String>, by_number: BTreeMap<u64, String>) -> Self {
        Self {
            paths: Mutex::new(Rank::DevicePaths, paths),
            by_number: Mutex::new(Rank::DeviceNumbers, by_number),
            opener: OnceLock::new(),
        }
    }

    /// The paths, as they were given.
    pub(crate) fn paths(&self, engine: &Filesystem) -> Vec<String> {
        self.note_replaced(engine);
        self.paths.lock().clone()
    }

    /// The paths by the devices' numbers.
    pub(crate) fn by_number(&self, engine: &Filesystem) -> BTreeMap<u64, String> {
        self.note_replaced(engine);
        self.by_number.lock().clone()
    }

    /// Updates the paths if the target of a replacement has taken the place of the source by now,
    /// or is no device of the volume any more.
    fn note_replaced(&self, engine: &Filesystem) {
        let mut by_number = self.by_number.lock();
        if !by_number.contains_key(&TARGET.0) || engine.volume().replacement().state().is_some() {
            return;
        }
        let (ended, path) = (engine.replacer().progress(), by_number.remove(&TARGET.0));
        let (ReplaceState::Finished, Some(path)) = (ended.state, path) else { return };
        let old = by_number.insert(ended.source.0, path.clone());
        let mut paths = self.paths.lock();
        paths.retain(|known| Some(known) != old.as_ref() && *known != path);
        paths.push(path);
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Device>, Errno> {
        self.opener.get().ok_or(Errno::OPNOTSUPP)?(Path::new(path))
    }

    /// Adds a device to the volume.
    pub(crate) fn add(&self, engine: &Filesystem, path: &str) -> Result<(), Errno> {
        let device = self.open(path)?;
        let number = engine.add_device(device).map_err(|error| error.errno())?;
        self.by_number.lock().insert(number.0, path.to_owned());
        self.paths.lock().push(path.to_owned());
        Ok(())
    }

    /// Removes a device from the volume.
    pub(crate) fn remove(
        &self,
        engine: &Filesystem,
        number: DeviceId,
        goes_on: &dyn Fn(&VacateProgress) -> bool,
    ) -> Result<(), Errno> {
        let path = self.by_number.lock().get(&number.0).cloned();
        engine.relocator().remove_device(number, goes_on).map_err(|error| error.errno())?;
        let mut by_number = self.by_number.lock();
        // A new device may have got the number by now.
        if by_number.get(&number.0) == path.as_ref() {
            by_number.remove(&number.0);
        }
        drop(by_number);
        self.paths.lock().retain(|known| Some(known) != path.as_ref());
        Ok(())
    }

    /// The number of a device: `number`, or if that is 0, the number of the device at `path`.
    pub(crate) fn number_of(&self, engine: &Filesystem, number: u64, path: &str) -> Result<DeviceId, Errno> {
        if number != 0 {
            return Ok(DeviceId(number));
        }
        self.note_replaced(engine);
        let by_number = self.by_number.lock();
        let found = by_number.iter().find(|(_, known)| *known == path);
        found.map(|(number, _)| DeviceId(*number)).ok_or(Errno::NODEV)
    }

    /// Replaces a device. Returns when that is done or has failed, or at once if it is done in the
    /// background.
    pub(crate) fn replace(
        &self,
        engine: &Filesystem,
        source: DeviceId,
        target: &str,
        options: ReplaceOptions,
        in_background: bool,
    ) -> Result<(), Errno> {
        if !engine.volume().devices().items().iter().any(|item| item.devid == source) {
            return Err(Errno::NODEV);
        }
        let device = self.open(target)?;
        let failed = |error: ubtrfs::Error| error.errno();
        engine.replacer().begin(source, device, options).map_err(failed)?;
        self.by_number.lock().insert(TARGET.0, target.to_owned());
        if in_background {
            return engine.replace_in_background().map_err(failed);
        }
        let done = engine.replacer().run(&mut |_| true).map_err(failed);
        self.note_replaced(engine);
        done
    }
}

//! Opens volumes and mounts them.

use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, Volume};

/// Devices with the same content as these, each with pages of its own for what is written.
pub(crate) fn forks(devices: &[OverlayDevice]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::new(device.fork()) as _).collect()
}

/// Opens the volume on these devices, though some of its devices may be missing.
pub fn open_volume(devices: Vec<Arc<dyn Device>>, read_only: bool) -> Result<Arc<Volume>, String> {
    let volume = Volume::open_degraded(devices, OpenOptions { read_only });
    volume.map(Arc::new).map_err(|error| format!("the volume does not open: {error}"))
}

/// Opens the engine on a volume.
pub fn mount(volume: Arc<Volume>, options: Options) -> Result<Arc<Filesystem>, String> {
    Filesystem::open(volume, options).map_err(|error| format!("the volume does not mount: {error}"))
}

/// Opens the engine on devices.
pub fn open(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Arc<Filesystem>, String> {
    mount(open_volume(devices, options.read_only)?, options)
}

/// Whether inodes are freed in steps that histories are large enough for.
pub(crate) fn frees_in_steps(options: &Options) -> bool {
    options.freeing.per_transaction < 1000
}

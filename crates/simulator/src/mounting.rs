//! Opens volumes and mounts them.

use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Device, OpenOptions, Volume};

/// Opens the volume on a device.
pub(crate) fn open_volume(device: Arc<dyn Device>, read_only: bool) -> Result<Arc<Volume>, String> {
    let volume = Volume::open(vec![device], OpenOptions { read_only });
    volume.map(Arc::new).map_err(|error| format!("the volume does not open: {error}"))
}

/// Opens the engine on a volume.
pub(crate) fn mount(volume: Arc<Volume>, options: Options) -> Result<Arc<Filesystem>, String> {
    Filesystem::open(volume, options).map_err(|error| format!("the volume does not mount: {error}"))
}

/// Opens the engine on a device.
pub(crate) fn open(device: Arc<dyn Device>, options: Options) -> Result<Arc<Filesystem>, String> {
    mount(open_volume(device, options.read_only)?, options)
}

/// Whether inodes are freed in steps that histories are large enough for.
pub(crate) fn frees_in_steps(options: &Options) -> bool {
    options.freeing.per_transaction < 1000
}

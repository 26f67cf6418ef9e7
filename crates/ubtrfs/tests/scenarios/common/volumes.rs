//! Volumes of several devices in memory.

use std::sync::Arc;

use ubtrfs::mkfs::{MkfsOptions, NewDevice, Profile, make};
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Filesystem, InodeId, NewInode, Options, WriteAt};
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_volume::{Device, OpenOptions, Volume};

use super::pattern;

/// Bytes of a device.
pub const SIZE: u64 = 224 << 20;

pub fn blank() -> OverlayDevice {
    OverlayDevice::zeroed(SIZE)
}

pub fn volume(devices: usize, data: Profile, metadata: Profile) -> Vec<OverlayDevice> {
    let blank: Vec<OverlayDevice> = (0..devices).map(|_| blank()).collect();
    let options = MkfsOptions {
        more_devices: (1..devices).map(|_| NewDevice { total_bytes: SIZE, uuid: ubtrfs_mkfs::random_uuid() }).collect(),
        data_profile: Some(data),
        metadata_profile: Some(metadata),
        ..MkfsOptions::new(SIZE)
    };
    make(&blank.iter().map(|device| device as &dyn Device).collect::<Vec<_>>(), &options).unwrap();
    blank
}

/// Opens a volume with one device of a mirror alone.
pub fn alone(device: &Arc<OverlayDevice>) -> Arc<Filesystem> {
    let volume = Volume::open_degraded(vec![device.clone()], OpenOptions::default()).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..Options::default() }).unwrap()
}

pub fn open(devices: Vec<Arc<dyn Device>>) -> ubtrfs::Result<Arc<Filesystem>> {
    let volume = Volume::open(devices, OpenOptions::default())?;
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..Options::default() })
}

pub fn root() -> InodeId {
    InodeId::new(TreeId::FS, Ino::ROOT_DIR)
}

pub fn write(fs: &Filesystem, name: &str, seed: u64, len: usize) -> ubtrfs::Result<InodeId> {
    let file =
        fs.directories().create(root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() })?;
    fs.files().write(file, WriteAt::Offset(0), &pattern(seed, len), false)?;
    Ok(file)
}

pub fn assert_holds(fs: &Filesystem, name: &str, seed: u64, len: usize) {
    let file = fs.directories().lookup(root(), name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert!(fs.files().read(file, 0, len + 1).unwrap() == pattern(seed, len), "{name}");
    fs.references().forget(file, 1);
}

pub fn assert_clean(devices: &[Arc<dyn Device>], what: &str) {
    let report = ubtrfs_check::check(devices, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{what}: {:#?}", report.faults);
}

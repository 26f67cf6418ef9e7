//! The volume at the beginning of a history.

use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ubtrfs_format::{ChecksumType, Physical, Uuid};
use ubtrfs_mkfs::{Medium, MkfsOptions, NewDevice, Profile, layout};
use ubtrfs_volume::{Device, DeviceWrite, OverlayDevice, SharedBuffer};

use crate::Random;

/// The kind of volume at the beginning of a history.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// The options for mkfs.
    pub options: MkfsOptions,
    /// The history begins by filling it.
    pub tight: bool,
}

impl VolumePlan {
    /// Returns one of many kinds.
    pub fn random(random: &mut Random) -> Self {
        let mut options = MkfsOptions::new(0);
        let mut uuid = || {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&random.number().to_le_bytes());
            bytes[8..].copy_from_slice(&random.number().to_le_bytes());
            Uuid(bytes)
        };
        options.fsid = uuid();
        options.device_uuid = uuid();
        options.chunk_tree_uuid = uuid();
        options.subvolume_uuid = uuid();
        options.now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let types = [ChecksumType::Crc32c, ChecksumType::XxHash64, ChecksumType::Sha256, ChecksumType::Blake2b];
        options.checksum = if random.one_in(2) { ChecksumType::Crc32c } else { random.one_of(types) };
        options.node_size = Some(random.one_of([4096, 4096, 16384, 16384, 65536]));
        match random.below(6) {
            0 => {
                options.mixed = true;
                options.node_size = Some(4096);
                options.total_bytes = (17 + random.below(16)) << 20;
            }
            1 => options.total_bytes = (115 + random.below(40)) << 20,
            _ => {
                options.metadata_profile = Some(Profile::Single);
                options.total_bytes = (46 + random.below(30)) << 20;
            }
        }
        match random.below(6) {
            0 => options.block_group_tree = true,
            1 => options.free_space_tree = false,
            2 | 3 => options.no_holes = false,
            _ => {}
        }
        let tight = if options.mixed { random.one_in(2) } else { random.one_in(12) };
        if tight {
            // Full volumes have much data, which is read again and again.
            options.checksum = ChecksumType::Crc32c;
            options.total_bytes = options.total_bytes.min(if options.mixed { 17 << 20 } else { 120 << 20 });
        }
        options.sector_size = sector_size(&options);
        Self { options, tight }
    }
}

/// Returns the bytes of a sector: larger than a page in one of four volumes with large nodes. It
/// depends on the volume's id, which is random already: a further random number would change all
/// later ones of a history.
fn sector_size(options: &MkfsOptions) -> u32 {
    let largest = options.node_size.unwrap_or_default();
    match options.fsid.0[0] % 8 {
        0 if largest > 4096 => 8192,
        1 if largest > 4096 => largest,
        _ => 4096,
    }
}

/// The number of a volume's devices, and the profiles of data and metadata on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profiles {
    /// The number of devices.
    pub devices: u64,
    /// The profile of data.
    pub data: Profile,
    /// The profile of metadata.
    pub metadata: Profile,
}

impl Profiles {
    /// The profiles on which histories are tried.
    pub const ALL: [Self; 7] = [
        Self::on(2, Profile::Raid1, Profile::Raid1),
        Self::on(3, Profile::Raid1, Profile::Raid1),
        Self::on(3, Profile::Raid1c3, Profile::Raid1c3),
        Self::on(4, Profile::Raid10, Profile::Raid10),
        Self::on(2, Profile::Single, Profile::Raid1),
        Self::on(2, Profile::Raid0, Profile::Raid0),
        Self::on(1, Profile::Single, Profile::Dup),
    ];

    const fn on(devices: u64, data: Profile, metadata: Profile) -> Self {
        Self { devices, data, metadata }
    }

    /// Returns whether each device has everything.
    pub fn are_on_each_device(&self) -> bool {
        self.are_redundant() && [self.data, self.metadata].iter().all(|profile| profile.copies() == self.devices)
    }

    /// Returns whether any one device can be lost.
    pub fn are_redundant(&self) -> bool {
        let is_kept = |profile: Profile| profile != Profile::Dup && profile.copies() > 1;
        is_kept(self.data) && is_kept(self.metadata)
    }
}

impl VolumePlan {
    /// Returns the volume on so many devices, with these profiles.
    #[must_use]
    pub fn with_profiles(mut self, profiles: Profiles) -> Self {
        let mut random = Random::new(u64::from_le_bytes(std::array::from_fn(|at| self.options.fsid.0[at])));
        let size = if profiles.devices == 1 { 110 } else { 64 };
        let mut bytes = || (size + random.below(16)) << 20;
        self.tight = false;
        self.options.mixed = false;
        // The first chunk of metadata has no space for larger nodes, and on few devices there may
        // be no second chunk.
        self.options.node_size = self.options.node_size.map(|size| size.min(16384));
        self.options.total_bytes = bytes();
        self.options.data_profile = Some(profiles.data);
        self.options.metadata_profile = Some(profiles.metadata);
        self.options.more_devices = (1..profiles.devices)
            .map(|number| {
                let mut uuid = self.options.device_uuid;
                uuid.0[15] ^= number as u8;
                NewDevice { total_bytes: bytes(), uuid }
            })
            .collect();
        self
    }
}

struct Memory(OverlayDevice);

impl Medium for Memory {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        // A new device has zeros already, and every copy of the device would have to copy them.
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let written = self.0.submit(vec![DeviceWrite { at, data: SharedBuffer::from(bytes.to_vec()) }]).wait();
        written.map_err(|error| error.source)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the bytes of a new volume on one device.
///
/// # Panics
/// If mkfs can't make one of these options.
pub fn make_volume(options: &MkfsOptions) -> Arc<[u8]> {
    make_devices(options).swap_remove(0).to_bytes().into()
}

/// Returns the devices of a new volume.
///
/// # Panics
/// If mkfs can't make one of these options.
pub fn make_devices(options: &MkfsOptions) -> Vec<OverlayDevice> {
    let mut media: Vec<Memory> =
        options.devices().map(|(_, device)| Memory(OverlayDevice::zeroed(device.total_bytes))).collect();
    layout(options)
        .unwrap_or_else(|error| panic!("mkfs {options:?}: {error:?}"))
        .write(&mut media.iter_mut().map(|medium| medium as _).collect::<Vec<_>>())
        .unwrap_or_else(|error| panic!("mkfs {options:?}: {error:?}"));
    media.into_iter().map(|medium| medium.0).collect()
}

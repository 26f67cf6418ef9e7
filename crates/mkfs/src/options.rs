//! The options of a new volume.

use std::time::SystemTime;

use ubtrfs_format::items::{BlockGroupFlags, RaidProfile};
use ubtrfs_format::{ChecksumType, DeviceId, Uuid};

use crate::{MkfsError, Result};

const DEFAULT_NODE_SIZE: u32 = 16384;
const DEFAULT_SECTOR_SIZE: u32 = 4096;
/// The sizes that sectors and nodes of the format have.
const SIZES: std::ops::RangeInclusive<u32> = 4096..=65536;
const LABEL_MAX: usize = 255;

/// How chunks are spread over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One copy on one device.
    Single,
    /// Two copies on one device.
    Dup,
    /// One copy, striped over all devices.
    Raid0,
    /// A copy on each of two devices.
    Raid1,
    /// A copy on each of three devices.
    Raid1c3,
    /// A copy on each of four devices.
    Raid1c4,
    /// Copies on pairs of devices, striped over all pairs.
    Raid10,
}

impl Profile {
    const ALL: [Self; 7] =
        [Self::Single, Self::Dup, Self::Raid0, Self::Raid1, Self::Raid1c3, Self::Raid1c4, Self::Raid10];

    /// Returns the profile of this name, ignoring case.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name().eq_ignore_ascii_case(name))
    }

    /// Returns its name, as `mkfs.btrfs -d` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "dup",
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid1c3 => "raid1c3",
            Self::Raid1c4 => "raid1c4",
            Self::Raid10 => "raid10",
        }
    }

    /// Returns how many copies of all data it makes.
    pub fn copies(self) -> u64 {
        self.raid().copies
    }

    /// Returns its flag in chunks and block groups.
    pub fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags(0),
            Self::Dup => BlockGroupFlags::DUP,
            Self::Raid0 => BlockGroupFlags::RAID0,
            Self::Raid1 => BlockGroupFlags::RAID1,
            Self::Raid1c3 => BlockGroupFlags::RAID1C3,
            Self::Raid1c4 => BlockGroupFlags::RAID1C4,
            Self::Raid10 => BlockGroupFlags::RAID10,
        }
    }

    pub(crate) fn raid(self) -> RaidProfile {
        self.flag().raid().unwrap_or(RaidProfile::SINGLE)
    }
}

/// A device of a volume with several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// The bytes of the device. An incomplete last sector stays unused.
    pub total_bytes: u64,
    /// The device's id.
    pub uuid: Uuid,
}

/// The kind of quotas that a new volume has enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quotas {
    /// Qgroups: they count shared and exclusive extents of subvolumes.
    Qgroups,
    /// Simple quotas: an extent counts for the subvolume that allocates it.
    Simple,
}

/// The options of a new volume. [`MkfsOptions::new`] has the defaults of mkfs.btrfs 7.3, except for
/// the block-group tree, which kernels before 6.1 do not mount.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a feature of its own, on or off")]
pub struct MkfsOptions {
    /// The bytes of the first device. An incomplete last sector stays unused.
    pub total_bytes: u64,
    /// The devices that follow it, with the numbers 2 and up.
    pub more_devices: Vec<NewDevice>,
    /// The label: at most 255 bytes, without zero bytes and line breaks.
    pub label: Vec<u8>,
    /// Checksum algorithm of metadata and data.
    pub checksum: ChecksumType,
    /// Bytes of a tree block; `None` is 16384, or a sector if that is larger, and with mixed groups
    /// always a sector.
    pub node_size: Option<u32>,
    /// Bytes of a sector: 4096 to 65536, and not more than a tree block has.
    pub sector_size: u32,
    /// The profile of data; `None` is single.
    pub data_profile: Option<Profile>,
    /// The profile of metadata; `None` is DUP, RAID1 on several devices, and with mixed groups that
    /// of data.
    pub metadata_profile: Option<Profile>,
    /// Data and metadata share block groups: for very small devices.
    pub mixed: bool,
    /// Block groups get a tree of their own.
    pub block_group_tree: bool,
    /// Free space is kept in a tree.
    pub free_space_tree: bool,
    /// Holes in files need no item.
    pub no_holes: bool,
    /// Inodes may have more names than fit one item.
    pub extended_iref: bool,
    /// Extent items of tree blocks have no first key.
    pub skinny_metadata: bool,
    /// The superblock has the flag of RAID5 and RAID6 chunks, though a new volume has none.
    pub raid56: bool,
    /// The superblock has the flag of RAID1C3 and RAID1C4 chunks. It also has the flag without this
    /// option if there are such chunks.
    pub raid1c34: bool,
    /// Quotas are enabled, and count the only subvolume.
    pub quotas: Option<Quotas>,
    /// The most bytes of a first chunk, without its copies; `None` leaves it to the size of the
    /// device.
    pub largest_chunk: Option<u64>,
    /// The volume's id.
    pub fsid: Uuid,
    /// The first device's id.
    pub device_uuid: Uuid,
    /// The chunk tree's id.
    pub chunk_tree_uuid: Uuid,
    /// The top-level subvolume's id.
    pub subvolume_uuid: Uuid,
    /// The time that the first inodes show.
    pub now: SystemTime,
    /// User and group that the root directory belongs to.
    pub root_owner: (u32, u32),
}

impl MkfsOptions {
    /// The defaults for a device of this size in bytes, with fresh random ids and the current time.
    pub fn new(total_bytes: u64) -> Self {
        Self {
            total_bytes,
            more_devices: Vec::new(),
            label: Vec::new(),
            checksum: ChecksumType::Crc32c,
            node_size: None,
            sector_size: DEFAULT_SECTOR_SIZE,
            data_profile: None,
            metadata_profile: None,
            mixed: false,
            block_group_tree: false,
            free_space_tree: true,
            no_holes: true,
            extended_iref: true,
            skinny_metadata: true,
            raid56: false,
            raid1c34: false,
            quotas: None,
            largest_chunk: None,
            fsid: random_uuid(),
            device_uuid: random_uuid(),
            chunk_tree_uuid: random_uuid(),
            subvolume_uuid: random_uuid(),
            now: SystemTime::now(),
            root_owner: (0, 0),
        }
    }

    /// Returns the size of a tree block in bytes.
    pub fn node_size(&self) -> u32 {
        let default = if self.mixed { self.sector_size } else { DEFAULT_NODE_SIZE.max(self.sector_size) };
        self.node_size.unwrap_or(default)
    }

    /// Returns the profile that data has.
    pub fn data_profile(&self) -> Profile {
        let mixed_with = if self.mixed { self.metadata_profile } else { None };
        self.data_profile.or(mixed_with).unwrap_or(Profile::Single)
    }

    /// Returns the profile that metadata has.
    pub fn metadata_profile(&self) -> Profile {
        let default = if self.more_devices.is_empty() { Profile::Dup } else { Profile::Raid1 };
        self.metadata_profile.unwrap_or(if self.mixed { self.data_profile() } else { default })
    }

    /// Returns all devices of the volume, with their numbers.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, NewDevice)> {
        let first = NewDevice { total_bytes: self.total_bytes, uuid: self.device_uuid };
        let devices = std::iter::once(first).chain(self.more_devices.iter().copied());
        (1..).map(DeviceId).zip(devices)
    }

    /// Returns how many bytes of a device the volume uses.
    pub(crate) fn whole_sectors(&self, bytes: u64) -> u64 {
        bytes - bytes % u64::from(self.sector_size)
    }

    /// Returns how many bytes of all devices the volume uses.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.devices().fold(0, |sum, (_, device)| sum.saturating_add(self.whole_sectors(device.total_bytes)))
    }

    /// Refuses invalid options. Does not check the sizes of devices.
    pub(crate) fn check(&self) -> Result<()> {
        let node_size = self.node_size();
        if !self.sector_size.is_power_of_two() || !SIZES.contains(&self.sector_size) {
            return Err(MkfsError::SectorSize(self.sector_size));
        }
        if !node_size.is_power_of_two() || !SIZES.contains(&node_size) {
            return Err(MkfsError::NodeSize(node_size));
        }
        if node_size < self.sector_size {
            return Err(MkfsError::NodeBelowSector { node_size, sector_size: self.sector_size });
        }
        if self.mixed && node_size != self.sector_size {
            return Err(MkfsError::MixedNodeSize { node_size, sector_size: self.sector_size });
        }
        if self.mixed && self.data_profile() != self.metadata_profile() {
            return Err(MkfsError::MixedProfiles);
        }
        let devices = self.more_devices.len() + 1;
        for profile in [self.data_profile(), self.metadata_profile()] {
            let least = profile.raid().least_devices;
            if devices < least {
                return Err(MkfsError::TooFewDevices { profile: profile.name(), devices, least });
            }
        }
        if self.block_group_tree && !(self.free_space_tree && self.no_holes) {
            return Err(MkfsError::BlockGroupTree);
        }
        if self.label.len() > LABEL_MAX {
            return Err(MkfsError::LabelTooLong(self.label.len()));
        }
        if self.label.iter().any(|byte| matches!(byte, 0 | b'\n')) {
            return Err(MkfsError::LabelByte);
        }
        Ok(())
    }
}

/// Returns a fresh random UUID (version 4).
pub fn random_uuid() -> Uuid {
    Uuid(uuid::Uuid::new_v4().into_bytes())
}

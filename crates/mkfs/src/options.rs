//! The options of a new volume.

use std::time::SystemTime;

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{ChecksumType, Uuid};

use crate::{MkfsError, Result};

const DEFAULT_NODE_SIZE: u32 = 16384;
const SECTOR_SIZE: u32 = 4096;
const LABEL_MAX: usize = 255;

/// How many copies a single device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One.
    Single,
    /// Two.
    Dup,
}

impl Profile {
    /// Copies on the device.
    pub fn copies(self) -> u64 {
        match self {
            Self::Single => 1,
            Self::Dup => 2,
        }
    }

    /// The bit of chunks and block groups.
    pub fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags(0),
            Self::Dup => BlockGroupFlags::DUP,
        }
    }
}

/// The options of a new volume. [`MkfsOptions::new`] has the defaults of mkfs.btrfs 6.2.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a feature of its own, on or off")]
pub struct MkfsOptions {
    /// Bytes of the device; a last partial sector stays unused.
    pub total_bytes: u64,
    /// The label: at most 255 bytes, without zero bytes and line breaks.
    pub label: Vec<u8>,
    /// Checksum algorithm of metadata and data.
    pub checksum: ChecksumType,
    /// Bytes of a tree block; `None` is 16384, and with mixed groups the sector size.
    pub node_size: Option<u32>,
    /// Bytes of a sector; only 4096 so far.
    pub sector_size: u32,
    /// Copies of data; `None` is single.
    pub data_profile: Option<Profile>,
    /// Copies of metadata; `None` is DUP, and with mixed groups that of data.
    pub metadata_profile: Option<Profile>,
    /// Data and metadata share block groups: for very small devices.
    pub mixed: bool,
    /// Block groups get a tree of their own.
    pub block_group_tree: bool,
    /// Free space is kept in a tree.
    pub free_space_tree: bool,
    /// Holes in files need no item.
    pub no_holes: bool,
    /// The most bytes of a first chunk, without its copies; `None` leaves it to the size of the
    /// device.
    pub largest_chunk: Option<u64>,
    /// The volume's id.
    pub fsid: Uuid,
    /// The device's id.
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
    /// The defaults for a device of this size, with fresh random ids and the time of now.
    pub fn new(total_bytes: u64) -> Self {
        Self {
            total_bytes,
            label: Vec::new(),
            checksum: ChecksumType::Crc32c,
            node_size: None,
            sector_size: SECTOR_SIZE,
            data_profile: None,
            metadata_profile: None,
            mixed: false,
            block_group_tree: false,
            free_space_tree: true,
            no_holes: true,
            largest_chunk: None,
            fsid: random_uuid(),
            device_uuid: random_uuid(),
            chunk_tree_uuid: random_uuid(),
            subvolume_uuid: random_uuid(),
            now: SystemTime::now(),
            root_owner: (0, 0),
        }
    }

    pub(crate) fn node_size(&self) -> u32 {
        self.node_size.unwrap_or(if self.mixed { self.sector_size } else { DEFAULT_NODE_SIZE })
    }

    pub(crate) fn data_profile(&self) -> Profile {
        let mixed_with = if self.mixed { self.metadata_profile } else { None };
        self.data_profile.or(mixed_with).unwrap_or(Profile::Single)
    }

    pub(crate) fn metadata_profile(&self) -> Profile {
        self.metadata_profile.unwrap_or(if self.mixed { self.data_profile() } else { Profile::Dup })
    }

    /// Bytes of the device that the volume uses.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.total_bytes - self.total_bytes % u64::from(self.sector_size)
    }

    /// Refuses what can't be, but for the size of the device.
    pub(crate) fn check(&self) -> Result<()> {
        let node_size = self.node_size();
        if self.sector_size != SECTOR_SIZE {
            return Err(MkfsError::SectorSize(self.sector_size));
        }
        if !node_size.is_power_of_two() || !(4096..=65536).contains(&node_size) {
            return Err(MkfsError::NodeSize(node_size));
        }
        if self.mixed && node_size != self.sector_size {
            return Err(MkfsError::MixedNodeSize { node_size, sector_size: self.sector_size });
        }
        if self.mixed && self.data_profile() != self.metadata_profile() {
            return Err(MkfsError::MixedProfiles);
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

/// A fresh random UUID (version 4).
pub fn random_uuid() -> Uuid {
    Uuid(uuid::Uuid::new_v4().into_bytes())
}

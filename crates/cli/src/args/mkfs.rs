//! Arguments of `ubtrfs mkfs`, which are also those of `mkfs.btrfs`.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser};

use super::owner::parse_owner;
use super::{Populate, Window};
use crate::size::parse_size;

/// Make a volume on a device or in an image file.
#[derive(Debug, Args)]
#[command(version, disable_version_flag = true, args_override_self = true)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Mkfs {
    /// Bytes of the volume (8G, 512M, …), or of each device if there are several; image files are
    /// made with this size, or resized to it.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// The same as --size, but a larger image file keeps its size unless --shrink ends it, and a
    /// smaller one is an error without --rootdir.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "size")]
    pub byte_count: Option<u64>,
    /// The volume's label, at most 255 bytes.
    #[arg(short = 'L', long, value_name = "LABEL")]
    pub label: Option<String>,
    /// Checksum algorithm: crc32c, xxhash64, sha256 or blake2b.
    #[arg(long, visible_alias = "checksum", value_name = "ALGORITHM", default_value = "crc32c")]
    pub csum: String,
    /// Bytes of a tree block: 4k to 64k, a power of two [default: 16k, or the sector size if that
    /// is larger; with --mixed the sector size].
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub nodesize: Option<u64>,
    /// Bytes of a sector, the unit of data: 4k to 64k [default: 4k, which every kernel mounts].
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub sectorsize: Option<u64>,
    /// Profile of data: single, dup, raid0, raid1, raid1c3, raid1c4 or raid10 [default: single].
    #[arg(short, long, value_name = "PROFILE")]
    pub data: Option<String>,
    /// Profile of metadata [default: dup, on several devices raid1, with --mixed that of data].
    #[arg(short, long, value_name = "PROFILE")]
    pub metadata: Option<String>,
    /// Keep data and metadata in the same block groups, for very small volumes.
    #[arg(short = 'M', long)]
    pub mixed: bool,
    /// Features to turn on, separated by commas; ^FEATURE turns one off, list-all lists them.
    #[arg(short = 'O', long, value_name = "LIST", value_delimiter = ',')]
    pub features: Vec<String>,
    /// The same as -O; mkfs.btrfs before 6.3 had this option for some of the features.
    #[arg(short = 'R', long, value_name = "LIST", value_delimiter = ',')]
    pub runtime_features: Vec<String>,
    /// The same as -O block-group-tree, which is the default.
    #[arg(long, hide = true)]
    pub block_group_tree: bool,
    /// The volume's UUID [default: a random one].
    #[arg(short = 'U', long, value_name = "UUID")]
    pub uuid: Option<uuid::Uuid>,
    /// The device's UUID, for a volume of one device [default: a random one].
    #[arg(long, value_name = "UUID")]
    pub device_uuid: Option<uuid::Uuid>,
    /// Owner and group of the root directory, by their numbers [default: those that --rootdir has,
    /// or the user who makes the volume].
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub root_owner: Option<(u32, u32)>,
    /// Do not discard the content of block devices.
    #[arg(short = 'K', long)]
    pub nodiscard: bool,
    /// Overwrite what is on the device.
    #[arg(short, long)]
    pub force: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    pub quiet: bool,
    /// Accepted: what was made is printed in any case.
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Print the version.
    #[arg(short = 'V', long, action = ArgAction::Version)]
    pub version: Option<bool>,
    /// Print JSON, for programs: what was made.
    #[arg(long)]
    pub json: bool,
    /// The device or image file, or all devices of a volume of several.
    #[arg(required_unless_present_any = ["features", "runtime_features"], value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub populate: Populate,
    #[command(flatten)]
    pub window: Window,
}

impl Mkfs {
    /// Bytes of the volume on each device, if they are asked for.
    pub fn asked_size(&self) -> Option<u64> {
        self.size.or(self.byte_count)
    }
}

/// Make a btrfs volume on a device or in an image file.
#[derive(Debug, Parser)]
#[command(name = "mkfs.ubtrfs", version)]
pub struct MkfsAlone {
    #[command(flatten)]
    pub mkfs: Mkfs,
}

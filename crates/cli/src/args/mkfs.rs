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
    /// Bytes of the volume (8G, 512M, …), of several devices those of each; image files are made or
    /// resized to it.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// The same, but an image file that is larger keeps its size, and a smaller one is an error
    /// without --rootdir.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "size")]
    pub byte_count: Option<u64>,
    /// The volume's label, at most 255 bytes.
    #[arg(short = 'L', long, value_name = "LABEL")]
    pub label: Option<String>,
    /// Checksum algorithm: crc32c, xxhash64, sha256 or blake2b.
    #[arg(long, visible_alias = "checksum", value_name = "ALGORITHM", default_value = "crc32c")]
    pub csum: String,
    /// Bytes of a tree block: 4k to 64k, a power of two [default: 16k].
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub nodesize: Option<u64>,
    /// Bytes of a sector, the unit of data: 4k to 64k [default: 4k, which every kernel mounts].
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    pub sectorsize: Option<u64>,
    /// Profile of data: single, dup, raid0, raid1, raid1c3, raid1c4 or raid10 [default: single].
    #[arg(short, long, value_name = "PROFILE")]
    pub data: Option<String>,
    /// Profile of metadata [default: dup, on several devices raid1].
    #[arg(short, long, value_name = "PROFILE")]
    pub metadata: Option<String>,
    /// Let data and metadata share block groups, for very small volumes.
    #[arg(short = 'M', long)]
    pub mixed: bool,
    /// Features of the format, separated by commas; ^FEATURE turns one off, list-all lists them.
    #[arg(short = 'O', long, value_name = "LIST", value_delimiter = ',')]
    pub features: Vec<String>,
    /// The same, as mkfs.btrfs before 6.3 had it for some of them.
    #[arg(short = 'R', long, value_name = "LIST", value_delimiter = ',')]
    pub runtime_features: Vec<String>,
    /// As -O block-group-tree, which is the default.
    #[arg(long, hide = true)]
    pub block_group_tree: bool,
    /// The volume's id [default: a random one].
    #[arg(short = 'U', long, value_name = "UUID")]
    pub uuid: Option<uuid::Uuid>,
    /// The device's id, of a volume of one device [default: a random one].
    #[arg(long, value_name = "UUID")]
    pub device_uuid: Option<uuid::Uuid>,
    /// User and group of the root directory, by their numbers [default: those of --rootdir's, or
    /// the user who makes the volume].
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub root_owner: Option<(u32, u32)>,
    /// Don't discard what is on a block device.
    #[arg(short = 'K', long)]
    pub nodiscard: bool,
    /// Overwrite what is on the device.
    #[arg(short, long)]
    pub force: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub quiet: bool,
    /// Accepted: what was made is always said.
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Print the version.
    #[arg(short = 'V', long, action = ArgAction::Version)]
    pub version: Option<bool>,
    /// Print what was made, for programs.
    #[arg(long)]
    pub json: bool,
    /// The device or image file, or all of a volume of several.
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

/// The program as `mkfs.ubtrfs`, which mkfs(8) calls, or as `mkfs.btrfs`.
#[derive(Debug, Parser)]
#[command(name = "mkfs.ubtrfs", version)]
pub struct MkfsAlone {
    #[command(flatten)]
    pub mkfs: Mkfs,
}

//! Arguments of `ubtrfs device`, and of the commands that show the usage of a volume.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Window;
use super::subvolume::InImage;
use crate::size::parse_size;

/// Show, add, remove and replace devices of a volume, mounted or not.
#[derive(Debug, Args)]
pub struct DeviceArguments {
    #[command(subcommand)]
    pub what: DeviceCommand,
}

#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Show how each device is used.
    Usage(VolumePlace),
    Stats(DeviceStats),
    Add(DeviceAdd),
    #[command(visible_alias = "delete")]
    Remove(DeviceRemove),
    Replace(ReplaceArguments),
}

/// Add devices to a volume.
///
/// New data goes to the new devices, too. Data on the other devices stays where it is.
#[derive(Debug, Args)]
pub struct DeviceAdd {
    /// Overwrite what is on the devices.
    #[arg(short, long)]
    pub force: bool,
    /// Another device of a volume that is not mounted; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub more: Vec<PathBuf>,
    /// The new devices, then a directory of the mounted volume, or a device of one that is not
    /// mounted.
    #[arg(required = true, num_args = 2.., value_names = ["NEW", "DIR|DEVICE"])]
    pub places: Vec<PathBuf>,
}

/// Remove devices from a volume.
///
/// The content of each device is first moved to the others, while files can be used; then its
/// superblocks are wiped. A missing device can be removed if the others have everything that it
/// had.
#[derive(Debug, Args)]
pub struct DeviceRemove {
    /// Move at most this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub image: InImage,
    /// The devices to remove, by path or number, or missing, which is the first missing device;
    /// then a directory of the mounted volume, or a device of one that is not mounted. cancel as
    /// the only OLD ends the removal that another process has begun on a mount.
    #[arg(required = true, num_args = 2.., value_names = ["OLD", "DIR|DEVICE"])]
    pub places: Vec<PathBuf>,
}

/// Replace a device of a volume by a new one.
#[derive(Debug, Args)]
pub struct ReplaceArguments {
    #[command(subcommand)]
    pub what: ReplaceCommand,
}

#[derive(Debug, Subcommand)]
pub enum ReplaceCommand {
    Start(ReplaceStart),
    /// Continue a replacement on a volume that is not mounted; mounts do that by themselves.
    Resume(ReplaceResume),
    Status(ReplaceStatus),
    /// End a replacement: the volume keeps the old device.
    Cancel(ReplaceCancel),
}

/// Copy the content of a device to a new one that is at least as large, and put the new one in its
/// place.
///
/// If the old device is missing or fails, the content is read from the other devices. Files can be
/// used meanwhile. A replacement that has begun continues even if this command is killed; if the
/// mount ends, the next mount continues the replacement.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct ReplaceStart {
    /// Read the old device only for data that no other device has.
    #[arg(short = 'r', long)]
    pub avoid_source: bool,
    /// Overwrite what is on the new device.
    #[arg(short, long)]
    pub force: bool,
    /// Copy at most this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Accepted: the command always stays in the foreground.
    #[arg(short = 'B', hide = true)]
    pub foreground: bool,
    /// The old device, by path or number, or missing, which is the first missing device.
    #[arg(value_name = "OLD")]
    pub source: String,
    /// The new device.
    #[arg(value_name = "NEW")]
    pub target: PathBuf,
    /// A directory of the mounted volume, or all devices of one that is not mounted.
    #[arg(required = true, value_name = "DIR|DEVICE")]
    pub places: Vec<PathBuf>,
}

/// A volume of which a device is being replaced.
#[derive(Debug, Args)]
pub struct ReplaceResume {
    /// Copy at most this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// All devices of the volume, and the new one.
    #[arg(required = true, value_name = "DEVICE")]
    pub places: Vec<PathBuf>,
}

/// Show the progress of the replacement of a device, or how the last one ended.
#[derive(Debug, Args)]
pub struct ReplaceStatus {
    /// Accepted: the progress is always shown once.
    #[arg(short = '1', hide = true)]
    pub once: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// A directory of the mounted volume.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// A volume of which a device is being replaced.
#[derive(Debug, Args)]
pub struct ReplaceCancel {
    /// A directory of the mounted volume, or all devices of one that is not mounted.
    #[arg(required = true, value_name = "DIR|DEVICE")]
    pub places: Vec<PathBuf>,
}

/// Show how often each device failed.
///
/// The counters are of writes, reads and flushes that failed, of blocks whose checksum or structure
/// was wrong, and of blocks of another generation than expected.
#[derive(Debug, Args)]
pub struct DeviceStats {
    /// Set the counters to zero after they are shown.
    #[arg(short = 'z', long)]
    pub reset: bool,
    /// Exit with the status 64 if a counter is not zero.
    #[arg(short, long)]
    pub check: bool,
    #[command(flatten)]
    pub place: VolumePlace,
}

/// A volume, mounted or not.
#[derive(Debug, Args)]
pub struct VolumePlace {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// A directory of a mounted volume, or all devices of one that is not mounted.
    #[arg(required = true, value_name = "DIR|DEVICE")]
    pub places: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

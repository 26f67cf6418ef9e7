//! Arguments of `ubtrfs device`, and of the commands that show the usage of a volume.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Window;
use super::subvolume::InImage;
use crate::size::parse_size;

/// Look at the devices of a volume, mounted or not, and change which it has.
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

/// Make devices part of a volume.
///
/// New data goes to them as well; what is on the others stays where it is.
#[derive(Debug, Args)]
pub struct DeviceAdd {
    /// Overwrite what is on the devices.
    #[arg(short, long)]
    pub force: bool,
    /// More devices of a volume that is not mounted.
    #[arg(long = "device", value_name = "DEVICE")]
    pub more: Vec<PathBuf>,
    /// The new devices, then a directory of the mounted volume, or a device of one that is not
    /// mounted.
    #[arg(required = true, num_args = 2.., value_names = ["NEW", "DIR|DEVICE"])]
    pub places: Vec<PathBuf>,
}

/// Take devices out of a volume.
///
/// What is on them is moved to the others before, while files can be used; then nothing of the
/// volume is found on them. A device that is not there can be removed if the others have all that
/// it had.
#[derive(Debug, Args)]
pub struct DeviceRemove {
    /// Move at most this many bytes in a second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub image: InImage,
    /// The devices or their numbers, or missing: the first one that is not there; then a directory
    /// of the mounted volume, or a device of one that is not mounted. cancel: end what another
    /// process has begun on a mount.
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
    /// Go on with a replacement of a volume that is not mounted; mounts do that by themselves.
    Resume(ReplaceResume),
    Status(ReplaceStatus),
    /// Give a replacement up: the volume keeps the old device.
    Cancel(ReplaceCancel),
}

/// Copy what a device has to a new one that is at least as large, and put that into its place.
///
/// The old device may be missing, or fail: then the other devices give what they have. Files can be
/// used meanwhile. Once it is begun a replacement goes on, whatever becomes of this command: a
/// mount that ends leaves it to the next one.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct ReplaceStart {
    /// Read the old device only where no other has the same.
    #[arg(short = 'r', long)]
    pub avoid_source: bool,
    /// Overwrite what is on the new device.
    #[arg(short, long)]
    pub force: bool,
    /// Copy at most this many bytes in a second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// Stay in the foreground, as it always does.
    #[arg(short = 'B', hide = true)]
    pub foreground: bool,
    /// The old device or its number, or missing: the first one that is not there.
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
    /// Copy at most this many bytes in a second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// All devices of the volume, and the new one.
    #[arg(required = true, value_name = "DEVICE")]
    pub places: Vec<PathBuf>,
}

/// Show how far the replacement of a device is, or how the last one ended.
#[derive(Debug, Args)]
pub struct ReplaceStatus {
    /// Show it once, as it always does.
    #[arg(short = '1', hide = true)]
    pub once: bool,
    /// For programs.
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
/// The counters are writes, reads and flushes that failed, blocks whose checksum or structure was
/// wrong, and blocks of another generation than expected.
#[derive(Debug, Args)]
pub struct DeviceStats {
    /// Set the counters to zero after they are shown.
    #[arg(short = 'z', long)]
    pub reset: bool,
    /// End with the status 64 if a counter is not zero.
    #[arg(short, long)]
    pub check: bool,
    #[command(flatten)]
    pub place: VolumePlace,
}

/// A volume, mounted or not.
#[derive(Debug, Args)]
pub struct VolumePlace {
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// A directory of a mounted volume, or all devices of one that is not mounted.
    #[arg(required = true, value_name = "DIR|DEVICE")]
    pub places: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

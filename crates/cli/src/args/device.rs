//! Arguments of `ubtrfs device`, and of what shows how a volume is used.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Window;

/// Look at the devices of a volume, mounted or not.
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

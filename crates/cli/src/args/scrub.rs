//! Arguments of `ubtrfs scrub`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Window;
use crate::size::parse_size;

/// Compare all copies of all that is allocated with their checksums, and rewrite those that are
/// wrong.
#[derive(Debug, Args)]
pub struct ScrubArguments {
    #[command(subcommand)]
    pub what: ScrubCommand,
}

#[derive(Debug, Subcommand)]
pub enum ScrubCommand {
    Start(ScrubStart),
    /// Go on where the last scrub of the mount was cancelled.
    Resume(ScrubStart),
    Status(ScrubStatus),
    Cancel(ScrubOn),
}

/// Scrub a mounted volume, or one that is not mounted by naming its devices.
///
/// Exit status: 0 if all copies are right or could be rewritten, 3 if some could not, 4 if a device
/// is missing.
#[derive(Debug, Args)]
pub struct ScrubStart {
    /// Rewrite nothing.
    #[arg(short = 'r', long)]
    pub readonly: bool,
    /// Read at most this many bytes in a second from each device.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// Stay in the foreground, as it always does.
    #[arg(short = 'B', hide = true)]
    pub foreground: bool,
    #[command(flatten)]
    pub window: Window,
    /// A directory of a mounted volume, or all devices of one that is not mounted.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<PathBuf>,
}

/// A mounted volume whose scrub is to be shown.
#[derive(Debug, Args)]
pub struct ScrubStatus {
    #[command(flatten)]
    pub on: ScrubOn,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// A mounted volume.
#[derive(Debug, Args)]
pub struct ScrubOn {
    /// A directory of the mounted volume.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

//! Arguments of `ubtrfs scrub`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Window;
use crate::size::parse_size;

/// Compare all copies of everything that is allocated with their checksums, and rewrite wrong
/// copies.
#[derive(Debug, Args)]
pub struct ScrubArguments {
    #[command(subcommand)]
    pub what: ScrubCommand,
}

#[derive(Debug, Subcommand)]
pub enum ScrubCommand {
    Start(ScrubStart),
    /// Continue from where the last scrub of the mount was cancelled.
    Resume(ScrubStart),
    Status(ScrubStatus),
    /// End the scrub of a mounted volume.
    Cancel(ScrubOn),
}

/// Scrub a volume, mounted or not, and return when that is done.
///
/// Exit status: 0 all copies are right or could be rewritten, 3 some copies are wrong and could not
/// be rewritten, 4 a device is missing.
#[derive(Debug, Args)]
pub struct ScrubStart {
    /// Only read: do not rewrite wrong copies.
    #[arg(short = 'r', long)]
    pub readonly: bool,
    /// Read at most this many bytes per second from each device.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub limit: Option<u64>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Accepted: the command always stays in the foreground.
    #[arg(short = 'B', hide = true)]
    pub foreground: bool,
    #[command(flatten)]
    pub window: Window,
    /// A directory of a mounted volume, or all devices of one that is not mounted.
    #[arg(required = true, value_name = "PLACE")]
    pub places: Vec<PathBuf>,
}

/// Show the progress of a scrub, or the result of the last one.
#[derive(Debug, Args)]
pub struct ScrubStatus {
    #[command(flatten)]
    pub on: ScrubOn,
    /// Print JSON, for programs.
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

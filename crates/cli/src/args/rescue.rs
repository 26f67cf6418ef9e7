//! Arguments of the commands for damaged volumes and old commits.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use regex::bytes::Regex;

use super::window::Window;

/// Repair what prevents a volume from being mounted. Shows what will be lost, and asks.
#[derive(Debug, Args)]
pub struct Rescue {
    #[command(subcommand)]
    pub what: RescueCommand,
}

#[derive(Debug, Subcommand)]
pub enum RescueCommand {
    ZeroLog(ZeroLog),
    SuperRecover(SuperRecover),
    Undo(Undo),
}

/// Put back what 'ubtrfs check --repair --undo FILE' has overwritten. The volume must not have been
/// changed since.
#[derive(Debug, Args)]
pub struct Undo {
    /// Don't ask.
    #[arg(short, long)]
    pub yes: bool,
    /// The file that the repair has made.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// All devices of the volume.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Restore a primary superblock that is damaged or missing, from the copy at 64 MiB or 256 GiB.
#[derive(Debug, Args)]
pub struct SuperRecover {
    /// Don't ask.
    #[arg(short, long)]
    pub yes: bool,
    /// All devices of the volume.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Discard a log that can't be replayed: the volume returns to its last commit.
#[derive(Debug, Args)]
pub struct ZeroLog {
    /// Don't ask.
    #[arg(short, long)]
    pub yes: bool,
    /// All devices of the volume.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Copy what can be read of a damaged volume into a directory. Nothing is written to the volume.
///
/// Exit status: 0 everything was copied, 1 something was lost, and is listed.
#[derive(Clone, Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
pub struct Restore {
    /// Only show what would be copied. DIR may be left out.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Only list the commits that superblocks and their backup roots refer to. DIR may be left out.
    #[arg(short, long)]
    pub list_commits: bool,
    /// The commit to copy, by its number; `ubtrfs history` lists the commits [default: the newest
    /// one that can be opened].
    #[arg(long, visible_alias = "generation", value_name = "NUMBER")]
    pub commit: Option<u64>,
    /// Copy files of older commits that were removed or changed since, into a directory for each
    /// commit; with --commit only files of that commit.
    #[arg(long, conflicts_with_all = ["list_commits", "snapshots"])]
    pub undelete: bool,
    /// Copy only this directory or file.
    #[arg(long, value_name = "PATH")]
    pub path: Option<OsString>,
    /// Copy only files whose path, such as /home/me/letter, matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub path_regex: Option<Regex>,
    /// Go on in a directory that is not empty, such as that of a restore that was interrupted, or
    /// that lacked a device: what is there as the volume has it is left out, and files that were
    /// saved in part are completed. Nothing that differs is replaced.
    #[arg(short = 'o', long = "continue")]
    pub go_on: bool,
    /// With -o: replace files that differ from those of the volume.
    #[arg(long, requires = "go_on")]
    pub overwrite: bool,
    /// The subvolume to copy, by its path [default: the default subvolume].
    #[arg(long, value_name = "PATH", conflicts_with = "subvolid")]
    pub subvol: Option<String>,
    /// The subvolume to copy, by its number.
    #[arg(long, value_name = "ID")]
    pub subvolid: Option<u64>,
    /// Copy snapshots as well, each in full.
    #[arg(long)]
    pub snapshots: bool,
    /// Copy data even if its checksum is wrong.
    #[arg(long)]
    pub ignore_checksums: bool,
    /// Ignore the log of the volume: copy the last commit.
    #[arg(long)]
    pub nologreplay: bool,
    /// List everything that is copied.
    #[arg(short, long)]
    pub verbose: bool,
    /// Print JSON, for programs: what was copied and what was lost.
    #[arg(long, conflicts_with_all = ["verbose", "undelete", "list_commits"])]
    pub json: bool,
    /// All devices of the volume, then the directory to copy to, which is made or, without -o, must
    /// be empty. IMAGE:PATH in place of the device is the same as IMAGE with --path PATH.
    #[arg(required = true, num_args = 1.., value_names = ["DEVICE", "DIR"])]
    pub places: Vec<PathBuf>,
    #[command(flatten)]
    pub window: Window,
}

/// Show the commits of a volume that can still be read, or size, time and inode of a file in each
/// of them. Nothing is written to the volume.
///
/// A commit does not overwrite the blocks of the commit before it, so they can be read until their
/// space is reused.
#[derive(Debug, Args)]
pub struct History {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// The subvolume that PATH begins in, by its path [default: the default subvolume].
    #[arg(long, value_name = "PATH", conflicts_with = "subvolid")]
    pub subvol: Option<String>,
    /// The subvolume that PATH begins in, by its number.
    #[arg(long, value_name = "ID")]
    pub subvolid: Option<u64>,
    /// Another device of the volume; may be given several times.
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// The device or image, or the file in it as IMAGE:PATH.
    #[arg(value_name = "IMAGE[:PATH]")]
    pub image: PathBuf,
    /// The file, by its path in the volume.
    #[arg(value_name = "PATH")]
    pub path: Option<OsString>,
    #[command(flatten)]
    pub window: Window,
}

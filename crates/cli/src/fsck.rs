//! The program as `fsck.ubtrfs`, which fsck(8) calls at boot and people call by hand: the flags and
//! exit statuses are those of fsck(8).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use ubtrfs_format::items::RootItem;
use ubtrfs_format::{ItemType, Key, TreeId};
use ubtrfs_volume::{Error as VolumeError, OpenOptions, Volume};

use crate::args::{Check, CheckScope, Window};
use crate::check;
use crate::check_status::FAULTY;
use crate::device::{about_volume_within, open_for_reading};
use crate::failure::{Failure, Result};
use crate::output;
use crate::trees::{Trees, name};

/// Exit statuses of fsck(8): faults were corrected; faults are left; the check failed; wrong usage.
const CORRECTED: u8 = 1;
const LEFT: u8 = 4;
const FAILED: u8 = 8;
const WRONG_CALL: u8 = 16;

/// What fsck(8) calls a checker with.
#[derive(Debug, Parser)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command are independent")]
#[command(
    name = "fsck.ubtrfs",
    version,
    about = "Checks a btrfs volume, for fsck(8).",
    after_help = "Exit status: 0 no fault, 1 faults were corrected, 4 faults are left, 8 not checked, 16 invalid call."
)]
struct Arguments {
    /// Check what is checked at boot: only the superblock, the chunk tree and the root of each
    /// tree. Change nothing, since a mount recovers from a crash.
    #[arg(short = 'a', short_alias = 'p')]
    automatic: bool,
    /// Correct, without asking, what `ubtrfs check --repair --yes` corrects.
    #[arg(short = 'y')]
    yes: bool,
    /// Change nothing.
    #[arg(short = 'n', conflicts_with = "yes")]
    no: bool,
    /// With -a: check everything.
    #[arg(short = 'f')]
    force: bool,
    /// Ignored: the descriptor for progress reports to fsck(8).
    #[arg(short = 'C', value_name = "DESCRIPTOR")]
    progress: Option<String>,
    /// Accepted: what is found is printed in any case.
    #[arg(short = 'v')]
    verbose: bool,
    #[command(flatten)]
    window: Window,
    /// All devices of the volume.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

/// Returns the command line of this program, for its manual page.
pub fn command_line() -> clap::Command {
    Arguments::command()
}

/// Runs the program as a checker.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { WRONG_CALL.into() } else { ExitCode::SUCCESS };
        }
    };
    let checked = if arguments.automatic && !arguments.force { quick(&arguments) } else { full(&arguments) };
    match checked {
        Ok(0) => output::end(Ok(()), FAILED),
        Ok(status) => output::end(Err(Failure::Said(status)), FAILED),
        Err(failure) => output::end(Err(failure), FAILED),
    }
}

/// Checks whether what a mount needs first can be read: the superblock, the chunk tree, and the
/// root of each tree. Returns the exit status.
fn quick(arguments: &Arguments) -> Result<u8> {
    let paths = &arguments.devices;
    let reading = open_for_reading(paths, arguments.window).map_err(|failure| failure.with_status(FAILED))?;
    let opened = Volume::open(reading.devices, OpenOptions { read_only: true });
    let volume = opened.map_err(|error| {
        let status = if matches!(error, VolumeError::MissingDevices { .. }) { FAILED } else { LEFT };
        about_volume_within(paths, arguments.window, &error).with_status(status)
    })?;
    let trees = Trees::new(&std::sync::Arc::new(volume));
    let shown = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
    let failed = |id: TreeId, error: &(dyn std::error::Error + 'static)| {
        Failure::about(format_args!("{shown}: the {}", name(id)), error).with_status(LEFT)
    };
    let mut count = 0;
    for item in trees.root_tree().range(Key::MIN..=Key::MAX) {
        let item = item.map_err(|error| failed(TreeId::ROOT, &error))?;
        if item.key.item_type != ItemType::ROOT_ITEM {
            continue;
        }
        let id = TreeId(item.key.objectid);
        let root = RootItem::parse(&item).map_err(|error| failed(id, &error))?;
        // A tree that is being deleted may have lost its root.
        if root.refs > 0 {
            trees.described(id, &root).get(&Key::MIN).map_err(|error| failed(id, &error))?;
            count += 1;
        }
    }
    output::say(&format!("{shown}: the superblock and the roots of {count} trees are good (-f checks everything)"));
    Ok(0)
}

fn full(arguments: &Arguments) -> Result<u8> {
    let mut check = Check {
        json: false,
        no_data: false,
        repair: false,
        dry_run: false,
        yes: false,
        lose_content: false,
        recompute_checksums: false,
        undo: None,
        scope: CheckScope::default(),
        devices: arguments.devices.clone(),
        window: arguments.window,
    };
    match check::run(&check) {
        Ok(()) => return Ok(0),
        // The faults were listed.
        Err(Failure::Said(FAULTY)) => {}
        Err(failure) => return Err(failure.with_status(FAILED)),
    }
    if !arguments.yes || arguments.no {
        return Ok(LEFT);
    }
    check.repair = true;
    check.yes = true;
    match check::run(&check) {
        Ok(()) => Ok(CORRECTED),
        Err(failure) => Err(failure.with_status(LEFT)),
    }
}

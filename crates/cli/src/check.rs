//! `ubtrfs check`: checks all structures and data of a volume that is not mounted.

mod text;

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ubtrfs_check::{Options, Progress, Report, Start, check};
use ubtrfs_format::{Logical, SUPERBLOCK_COPIES, Superblock, TreeId};
use ubtrfs_volume::{Error as VolumeError, Volume};

use crate::args;
use crate::check_status::{FAULTY, NOT_CHECKED};
use crate::device::{about_volume_within, open_for_reading};
use crate::failure::{Failure, Result};
use crate::json;
use crate::output;
use crate::repair;

use text::as_text;

/// `ubtrfs check`
pub fn run(arguments: &args::Check) -> Result<()> {
    if arguments.repair {
        if arguments.scope.starts_elsewhere() {
            let failure = Failure::new(
                "--repair begins with the roots of the newest superblock, so it goes with none of -s, -b, -r and --chunk-root",
            );
            return Err(failure.with_status(NOT_CHECKED));
        }
        let bar = Bar::new();
        return repair::run(arguments, &bar, || bar.clear());
    }
    let checked = report_on(arguments, Options::default().keep)?;
    show(arguments, &checked)
}

/// What was found, and whether a copy of the superblock can replace a primary that is bad.
struct Checked {
    report: Report,
    has_only_copies: bool,
}

/// Checks the volume, and keeps up to `keep` faults.
fn report_on(arguments: &args::Check, keep: usize) -> Result<Checked> {
    let reading =
        open_for_reading(&arguments.devices, arguments.window).map_err(|failure| failure.with_status(NOT_CHECKED))?;
    // If one of the named devices has no superblock and another one has, the volume is known, and
    // the device without one is an error.
    let is_without =
        |index: usize| reading.devices.get(index).is_some_and(|device| Volume::is_without_superblock(&**device));
    let named = 0..arguments.devices.len();
    if let Some(other) = named.clone().find(|index| is_without(*index))
        && !named.into_iter().all(is_without)
    {
        let failure = about_volume_within(&arguments.devices[other..=other], arguments.window, &VolumeError::NotBtrfs);
        return Err(failure.with_status(NOT_CHECKED));
    }
    let bar = Bar::new();
    let scope = &arguments.scope;
    let start = Start {
        superblock: scope.superblock,
        backup: scope.backup,
        root: scope.tree_root.map(Logical),
        chunk_root: scope.chunk_root.map(Logical),
    };
    let options = Options {
        data_checksums: !arguments.no_data,
        progress: Some(&bar),
        keep,
        qgroups: scope.qgroup_report,
        extents_of: scope.subvol_extents.map(TreeId),
        threads: true,
        start,
    };
    let checked = check(&reading.devices, &options);
    bar.clear();
    let superblocks = Volume::superblocks_of(&reading.devices);
    let is_copy = |superblock: &Superblock| superblock.bytenr != SUPERBLOCK_COPIES[0];
    let has_only_copies = superblocks.iter().flatten().any(is_copy);
    let report = checked.map_err(|error| {
        let is_other = superblocks.iter().all(Option::is_none);
        let failure = if is_other {
            about_volume_within(&arguments.devices, arguments.window, &VolumeError::NotBtrfs)
        } else {
            let device = arguments.devices.first().map(|path| path.display().to_string()).unwrap_or_default();
            Failure::about(device, &error)
        };
        failure.with_status(NOT_CHECKED)
    })?;
    Ok(Checked { report, has_only_copies })
}

/// Prints what was found.
fn show(arguments: &args::Check, Checked { report, has_only_copies }: &Checked) -> Result<()> {
    let mut text = if arguments.json {
        as_json(report)?
    } else {
        as_text(report, arguments.scope.subvol_extents, arguments.scope.qgroup_report)
    };
    if *has_only_copies && !arguments.json {
        let part = arguments.window.as_options();
        let _ = writeln!(text, "'ubtrfs rescue super-recover{part}' puts the primary superblock back from a copy");
    }
    output::say(&text);
    if report.is_clean() { Ok(()) } else { Err(Failure::Said(FAULTY)) }
}

fn as_json(report: &Report) -> Result<String> {
    let mut value = serde_json::to_value(report).map_err(|error| Failure::of(&error))?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("clean".into(), report.is_clean().into());
    }
    json::as_json(&value)
}

/// A progress bar, where there is a terminal to show it.
struct Bar {
    bar: ProgressBar,
    phase: Mutex<&'static str>,
}

impl Bar {
    fn new() -> Self {
        let target =
            if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{msg:<24} {wide_bar} {percent:>3} % {eta:>4}") {
            bar.set_style(style);
        }
        Self { bar, phase: Mutex::new("") }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn report(&self, phase: &'static str, done: u64, total: u64) {
        if let Ok(mut last) = self.phase.lock()
            && *last != phase
        {
            *last = phase;
            self.bar.set_message(phase);
        }
        self.bar.set_length(total.max(done).max(1));
        self.bar.set_position(done);
    }
}

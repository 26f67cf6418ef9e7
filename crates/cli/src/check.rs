//! `ubtrfs check`: checks all structures and data of a volume that is not mounted.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::mem::{Discriminant, discriminant};
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ubtrfs_check::{Fault, FaultKind, Options, Progress, Report, check};
use ubtrfs_format::{SUPERBLOCK_COPIES, Superblock};
use ubtrfs_volume::{Error as VolumeError, Volume};

use crate::args;
use crate::device::{about_volume_within, open_for_reading};
use crate::failure::{Failure, Result};
use crate::json;
use crate::output;
use crate::repair::RepairPlan;
use crate::size::show_size;

/// The exit status of a check that found faults.
pub const FAULTY: u8 = 1;
/// The exit status of a check that could not be made.
pub const NOT_CHECKED: u8 = 2;
/// How many faults of one kind the text shows.
const MAX_OF_A_KIND: usize = 10;
/// How many faults are kept for a repair, which must know all faults before it changes anything.
const KEPT_TO_REPAIR: usize = 100_000;

/// `ubtrfs check`
pub fn run(arguments: &args::Check) -> Result<()> {
    if arguments.repair {
        return repair(arguments);
    }
    let checked = report_on(arguments, Options::default().keep)?;
    show(arguments, &checked)
}

fn repair(arguments: &args::Check) -> Result<()> {
    let checked = report_on(arguments, KEPT_TO_REPAIR)?;
    let before = &checked.report;
    let is_harmless = |warning: &Fault| arguments.devices.len() > 1 && is_left_by_mkfs(&warning);
    let harmless = before.warnings.iter().filter(|warning| is_harmless(warning)).count();
    if before.is_clean() && before.warning_count == harmless as u64 {
        return show(arguments, &checked);
    }
    let plan = RepairPlan::of(before);
    output::say(&plan.as_text());
    plan.carry_out(arguments)?;
    let after = report_on(arguments, Options::default().keep)?;
    show(arguments, &after)
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
    let options = Options { data_checksums: !arguments.no_data, progress: Some(&bar), keep };
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
    let mut text = if arguments.json { as_json(report)? } else { as_text(report) };
    if *has_only_copies && !arguments.json {
        let part = arguments.window.as_options();
        let _ = writeln!(text, "'ubtrfs rescue super-recover{part}' puts the primary superblock back from a copy");
    }
    output::say(&text);
    if report.is_clean() { Ok(()) } else { Err(Failure::Said(FAULTY)) }
}

/// Whether a warning is about stale free space. `mkfs.btrfs` leaves such remains on sound volumes
/// of several devices.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "a filter of references")]
fn is_left_by_mkfs(warning: &&Fault) -> bool {
    matches!(warning.kind, FaultKind::FreeSpaceStale)
}

fn as_json(report: &Report) -> Result<String> {
    let mut value = serde_json::to_value(report).map_err(|error| Failure::of(&error))?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("clean".into(), report.is_clean().into());
    }
    json::as_json(&value)
}

fn as_text(report: &Report) -> String {
    let mut lines = Vec::new();
    lines.extend(shown(report.faults.iter(), "fault"));
    let more = |count: u64, kept: usize, what: &str| {
        (count > kept as u64).then(|| format!("… and {} more {what}", count - kept as u64))
    };
    lines.extend(more(report.fault_count, report.faults.len(), "faults"));
    // The text omits these warnings; programs get them by `--json`.
    let reported = report.warnings.iter().filter(|warning| !is_left_by_mkfs(warning));
    lines.extend(shown(reported, "warning"));
    lines.extend(more(report.warning_count, report.warnings.len(), "warnings"));
    lines.extend(report.not_compared.iter().map(|what| format!("not compared, because of the faults: {what}")));
    let stats = &report.stats;
    lines.push(format!(
        "{} trees, {} blocks, {} extents, {} subvolumes, {} inodes, {} names, {} of data compared",
        stats.trees,
        stats.blocks,
        stats.extents,
        stats.subvolumes,
        stats.inodes,
        stats.entries,
        show_size(stats.data_bytes)
    ));
    if stats.has_log {
        let log = &stats.log;
        lines.push(format!(
            "the volume holds a log, which the next mount replays: {} blocks, {} subvolumes, {} inodes, {} names, {} extents, {} of data",
            log.blocks,
            log.subvolumes,
            log.inodes,
            log.entries,
            log.extents,
            show_size(log.data_bytes)
        ));
    }
    lines.push(match report.fault_count {
        0 => "no fault found".into(),
        1 => "1 fault found".into(),
        count => format!("{count} faults found"),
    });
    lines.join("\n") + "\n"
}

/// Returns a line for each fault, but for no more than [`MAX_OF_A_KIND`] of one kind, and one line
/// for the rest of the kind: faults of one kind mostly have one cause.
fn shown<'a>(faults: impl Iterator<Item = &'a Fault>, what: &str) -> Vec<String> {
    let mut kinds: Vec<(Discriminant<FaultKind>, Vec<&Fault>)> = Vec::new();
    for fault in faults {
        let kind = discriminant(&fault.kind);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, faults)) => faults.push(fault),
            None => kinds.push((kind, vec![fault])),
        }
    }
    let mut lines = Vec::new();
    for (_, faults) in kinds {
        let (first, others) = faults.split_at(faults.len().min(MAX_OF_A_KIND));
        lines.extend(first.iter().map(|fault| format!("{what}: {fault}")));
        let addresses = || others.iter().filter_map(|fault| fault.place.address);
        let range = addresses().min().zip(addresses().max());
        let range = range.map_or_else(String::new, |(first, last)| format!(", at addresses from {first} to {last}"));
        if !others.is_empty() {
            lines.push(format!("… and {} more {what}s of this kind{range}", others.len()));
        }
    }
    lines
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
        if let Ok(style) = ProgressStyle::with_template("{msg:<24} {wide_bar} {percent:>3} %") {
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

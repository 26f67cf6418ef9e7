//! `ubtrfs check --repair`: shows what a repair would change and what it would mean, and writes it.

use std::fmt::Write as _;

use serde::Serialize;
use ubtrfs_check::{Fault, Progress};
use ubtrfs_repair::{Change, Level, Options, RepairPlan};

use crate::args;
use crate::check_status::{FAULTY, NOT_CHECKED};
use crate::confirm::confirm;
use crate::device::{Opened, open_for_reading, open_for_writing};
use crate::failure::{Failure, Result};
use crate::{json, output};

/// Lines of each part that are shown.
const SHOWN: usize = 50;

/// Repairs a volume, or shows how it would be repaired.
pub fn run(arguments: &args::Check, progress: &dyn Progress, done: impl FnOnce()) -> Result<()> {
    let opened = open(arguments)?;
    let options = Options {
        data_checksums: !arguments.no_data,
        recompute_checksums: arguments.recompute_checksums,
        progress: Some(progress),
    };
    let plan = RepairPlan::of(opened.devices.clone(), &options);
    done();
    let plan = plan.map_err(|error| about(arguments, &error))?;
    if arguments.json {
        output::say(&json::as_json(&Shown::of(&plan))?);
    } else {
        output::say(&as_text(&plan));
    }
    if !plan.is_empty() {
        if arguments.dry_run {
            if !arguments.json {
                output::say("nothing was changed\n");
            }
            return Err(Failure::Said(FAULTY));
        }
        write(arguments, &plan)?;
    }
    if plan.after.is_clean() { Ok(()) } else { Err(Failure::Said(FAULTY)) }
}

fn open(arguments: &args::Check) -> Result<Opened> {
    let paths = &arguments.devices;
    let opened = if arguments.dry_run {
        open_for_reading(paths, arguments.window)
    } else {
        open_for_writing(paths, arguments.window)
    };
    opened.map_err(|failure| failure.with_status(NOT_CHECKED))
}

/// Writes the repair, after a confirmation.
fn write(arguments: &args::Check, plan: &RepairPlan) -> Result<()> {
    let refuse = |why: &str| Err(Failure::new(format!("nothing was changed: {why}")).with_status(FAULTY));
    if !plan.helps() {
        return refuse("the volume would not have fewer faults; 'ubtrfs restore' copies what can be read");
    }
    if plan.loses_content() && !arguments.lose_content {
        return refuse(
            "content would be given up, as shown above. 'ubtrfs restore' copies what can be read; then \
             --lose-content allows this",
        );
    }
    if !arguments.yes {
        let mut command = "ubtrfs check --repair --yes".to_owned();
        if arguments.lose_content {
            command += " --lose-content";
        }
        if arguments.recompute_checksums {
            command += " --recompute-checksums";
        }
        if let Some(file) = &arguments.undo {
            let _ = write!(command, " --undo {}", file.display());
        }
        confirm("Write this?", &command, &arguments.devices, arguments.window)?;
    }
    plan.apply(arguments.undo.as_deref()).map_err(|error| about(arguments, &error))
}

fn about(arguments: &args::Check, error: &ubtrfs_repair::Error) -> Failure {
    let device = arguments.devices.first().map(|path| path.display().to_string()).unwrap_or_default();
    if matches!(error, ubtrfs_repair::Error::HasLog) {
        let advice = "mount it, which replays the log, or give the log up with 'ubtrfs rescue zero-log'";
        return Failure::new(format!("{device}: it holds a log: {advice}")).with_status(FAULTY);
    }
    let status = if matches!(error, ubtrfs_repair::Error::Check(_)) { NOT_CHECKED } else { FAULTY };
    Failure::about(device, error).with_status(status)
}

/// A plan as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    faults_before: u64,
    faults_after: u64,
    changes: &'a [Change],
    left: &'a [Fault],
}

impl<'a> Shown<'a> {
    fn of(plan: &'a RepairPlan) -> Self {
        Self {
            faults_before: plan.before.fault_count,
            faults_after: plan.after.fault_count,
            changes: &plan.changes,
            left: &plan.after.faults,
        }
    }
}

fn as_text(plan: &RepairPlan) -> String {
    let mut text = String::new();
    let parts = [
        (Level::Space, "to be put right, without a difference in any file:"),
        (Level::Names, "to be put right in names and attributes:"),
        (Level::Content, "to be given up, since nothing says what it was:"),
    ];
    for (level, title) in parts {
        let lines: Vec<String> =
            plan.changes.iter().filter(|change| change.level == level).map(ToString::to_string).collect();
        list(&mut text, title, &lines);
    }
    let left: Vec<String> = plan.after.faults.iter().map(ToString::to_string).collect();
    let (before, after) = (plan.before.fault_count, plan.after.fault_count);
    if before == 0 {
        text += "no fault found\n";
    } else if after == 0 {
        let _ = writeln!(text, "{}, and no fault found after the repair", counted(before));
    } else {
        list(&mut text, "left as it is:", &left);
        let _ = writeln!(text, "{}, and {after} after the repair", counted(before));
    }
    text
}

fn counted(faults: u64) -> String {
    if faults == 1 { "1 fault before".into() } else { format!("{faults} faults before") }
}

fn list(text: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}");
    for line in lines.iter().take(SHOWN) {
        let _ = writeln!(text, "  {line}");
    }
    if lines.len() > SHOWN {
        let _ = writeln!(text, "  … and {} more", lines.len() - SHOWN);
    }
}

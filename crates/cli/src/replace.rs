//! `ubtrfs replace`: replaces an old device of a volume, mounted or not, by a new one.

use serde::Serialize;
use ubtrfs::ReplaceState;
use ubtrfs_format::items::Timespec;

use crate::args::Window;
use crate::args::device::{ReplaceArguments, ReplaceCommand, ReplaceStart};
use crate::failure::{Failure, Result};
use crate::json::{self, as_json};
use crate::output::say;
use crate::report::Progress;
use crate::show;
use crate::volume_at::devices::{Replaced, WantedReplacement, devices, replacement_on};

/// The progress of a replacement.
#[derive(Debug, Serialize)]
struct Shown {
    /// The number of the old device; 0 if that is not known.
    device: u64,
    state: &'static str,
    /// The progress in thousandths.
    progress: u64,
    done_bytes: u64,
    total_bytes: u64,
    /// The times in seconds since 1970; 0 if that has not happened.
    #[serde(serialize_with = "json::serialize_seconds")]
    started: u64,
    #[serde(serialize_with = "json::serialize_seconds")]
    stopped: u64,
    write_errors: u64,
    /// The number of blocks and sectors that could not be read from any device.
    unreadable: u64,
}

/// `ubtrfs replace`
pub fn run(arguments: &ReplaceArguments) -> Result<()> {
    let volume = |places: &[_]| devices(places, Window::default());
    match &arguments.what {
        ReplaceCommand::Start(arguments) => start(arguments),
        ReplaceCommand::Resume(arguments) => {
            let found = with_progress(|show| volume(&arguments.places).resume_replacement(arguments.limit, show))?;
            say_replaced(&found, arguments.json)
        }
        ReplaceCommand::Status(arguments) => say_replaced(&replacement_on(&arguments.directory)?, arguments.json),
        ReplaceCommand::Cancel(arguments) => volume(&arguments.places).cancel_replacement(),
    }
}

fn start(arguments: &ReplaceStart) -> Result<()> {
    let volume = devices(&arguments.places, Window::default());
    let wanted = WantedReplacement {
        source: &arguments.source,
        target: &arguments.target,
        force: arguments.force,
        avoid_source: arguments.avoid_source,
        limit: arguments.limit,
    };
    let found = with_progress(|show| volume.replace(&wanted, show))?;
    say_replaced(&found, arguments.json)?;
    match found.progress.state {
        ReplaceState::Finished => Ok(()),
        ReplaceState::Canceled if found.progress.write_errors > 0 => {
            Err(Failure::new("the new device failed: the volume has the devices that it had"))
        }
        _ => Err(volume.not_replaced()),
    }
}

/// Calls `run` with a function that shows the progress of a replacement.
fn with_progress(run: impl FnOnce(&dyn Fn(&Replaced)) -> Result<Replaced>) -> Result<Replaced> {
    let progress = Progress::new();
    run(&|found| progress.say(Shown::of(found).as_text().trim_end()))
}

fn say_replaced(found: &Replaced, json: bool) -> Result<()> {
    let shown = Shown::of(found);
    say(&if json { as_json(&shown)? } else { shown.as_text() });
    Ok(())
}

impl Shown {
    fn of(Replaced { progress, thousandths }: &Replaced) -> Self {
        Self {
            device: progress.source.0,
            state: match progress.state {
                ReplaceState::Never => "never started",
                ReplaceState::Started => "started",
                ReplaceState::Finished => "finished",
                ReplaceState::Canceled => "cancelled",
                ReplaceState::Suspended => "suspended",
            },
            progress: if progress.state == ReplaceState::Never { 0 } else { *thousandths },
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
            started: progress.started,
            stopped: progress.stopped,
            write_errors: progress.write_errors,
            unreadable: progress.unreadable,
        }
    }

    fn as_text(&self) -> String {
        let time = |seconds| show::seconds(Timespec { sec: seconds, nsec: 0 });
        let percent = format!("{}.{}%", self.progress / 10, self.progress % 10);
        let errors = format!("{} write errors, {} unreadable", self.write_errors, self.unreadable);
        let began = time(self.started);
        match self.state {
            "never started" => "no device has been replaced\n".into(),
            "finished" => format!("started {began}, finished {}, {errors}\n", time(self.stopped)),
            "cancelled" => format!("started {began}, cancelled {} at {percent}, {errors}\n", time(self.stopped)),
            "suspended" => format!("started {began}, suspended at {percent}, {errors}\n"),
            _ => format!("{percent} done, {errors}\n"),
        }
    }
}

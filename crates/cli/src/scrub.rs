//! `ubtrfs scrub`.

use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{DeviceId, Uuid};
use ubtrfs_server::scrub::extent;

use crate::args::scrub::{ScrubArguments, ScrubCommand, ScrubStart, ScrubStatus};
use crate::failure::{Failure, Result};
use crate::ioctls::Mounted;
use crate::json;
use crate::output;
use crate::scrub_found::{Found, hours};
use crate::scrub_record::{Record, ScrubState};
use crate::show;
use crate::volume_at::devices::{WantedScrub, about_scrub, device_ids, devices, running};

/// The exit status if there are errors that were not corrected, as of `btrfs scrub`.
const UNCORRECTABLE: u8 = 3;
/// The exit status if all that was compared is correct, but a device is missing.
const INCOMPLETE: u8 = 4;

/// How often to check whether a cancelled scrub has ended.
const CANCELLING: Duration = Duration::from_millis(20);

/// What `scrub status --json` shows of a device.
#[derive(Debug, Serialize)]
struct Shown {
    /// The state of the scrub: it runs, or how the last one has ended.
    state: &'static str,
    /// When the scrub began; unknown of one that runs and was begun by another process.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    #[serde(flatten)]
    found: Found,
}

/// `ubtrfs scrub`
pub fn run(arguments: &ScrubArguments) -> Result<()> {
    match &arguments.what {
        ScrubCommand::Start(start) => run_one(start, false),
        ScrubCommand::Resume(start) => run_one(start, true),
        ScrubCommand::Status(of) => status(of),
        ScrubCommand::Cancel(on) => {
            cancel(&Mounted::open(&on.directory)?).map_err(|errno| about_scrub(&on.directory, errno))
        }
    }
}

/// Cancels all scrubs of a mount, and waits until they have ended.
fn cancel(mounted: &Mounted) -> std::result::Result<(), Errno> {
    let age = |device| extent(&mounted.scrub_progress(DeviceId(device)).ok()?).map(|(_, millis)| millis);
    let devices = mounted.device_numbers()?;
    let running: Vec<_> = devices.into_iter().filter_map(|device| Some((device, age(device)?))).collect();
    mounted.cancel_scrub()?;
    for (device, began) in running {
        // A scrub that has run for a shorter time is a new one.
        while age(device).is_some_and(|now| now >= began) {
            std::thread::sleep(CANCELLING);
        }
    }
    Ok(())
}

fn run_one(arguments: &ScrubStart, resume: bool) -> Result<()> {
    let wanted = WantedScrub { read_only: arguments.readonly, limit: arguments.limit, resume };
    let found = devices(&arguments.places, arguments.window).scrub(&wanted)?;
    if arguments.json {
        output::say(&json::as_json(&found)?);
    } else {
        for found in &found {
            output::say(&found.as_text());
        }
    }
    let copies: u64 = found.iter().map(|found| found.uncorrectable).sum();
    if copies > 0 {
        let words = if arguments.readonly { "are wrong" } else { "are wrong and could not be rewritten" };
        return Err(Failure::new(format!("{copies} copies of blocks or sectors {words}")).with_status(UNCORRECTABLE));
    }
    let missing = found.iter().filter(|found| found.missing).filter_map(|found| found.device);
    let missing: Vec<String> = missing.map(|device| device.to_string()).collect();
    let sentence = match &*missing {
        [] => return Ok(()),
        [device] => format!("device {device} is missing: nothing of it was compared"),
        devices => format!("devices {} are missing: nothing of them was compared", devices.join(", ")),
    };
    Err(Failure::new(sentence).with_status(INCOMPLETE))
}

fn status(arguments: &ScrubStatus) -> Result<()> {
    let directory = &arguments.on.directory;
    let mounted = Mounted::open(directory)?;
    let failed = |errno| about_scrub(directory, errno);
    let devices = device_ids(&mounted).map_err(failed)?;
    let running = running(&mounted, &devices).map_err(failed)?;
    let record = Record::of(Uuid(mounted.volume_id().map_err(failed)?));
    if !running.is_empty() {
        let started = record.filter(|record| record.state == ScrubState::Running).map(|record| record.started);
        if arguments.json {
            let started = started.and_then(json::seconds);
            let shown = |found| Shown { state: "running", started: started.clone(), ended: None, found };
            output::say(&json::as_json(&running.into_iter().map(shown).collect::<Vec<_>>())?);
            return Ok(());
        }
        for found in &running {
            output::say(&format!("{} so far", found.as_text()));
        }
        return Ok(());
    }
    let Some(Record { state, started, ended, devices }) = record else {
        let none: [Shown; 0] = [];
        let text = "no scrub is running, and none is known";
        output::say(&if arguments.json { json::as_json(&none)? } else { text.to_owned() });
        return Ok(());
    };
    let state = match state {
        ScrubState::Running => "interrupted",
        ScrubState::Finished => "finished",
        ScrubState::Cancelled => "cancelled",
        ScrubState::Failed => "failed",
    };
    if arguments.json {
        let (started, ended) = (json::seconds(started), ended.and_then(json::seconds));
        let shown = |found| Shown { state, started: started.clone(), ended: ended.clone(), found };
        output::say(&json::as_json(&devices.into_iter().map(shown).collect::<Vec<_>>())?);
        return Ok(());
    }
    let time = |seconds| show::seconds(Timespec { sec: seconds, nsec: 0 });
    let after = ended.map(|ended| Duration::from_secs(ended.saturating_sub(started)).as_secs());
    let after = after.map_or_else(String::new, |seconds| format!(" after {}", hours(seconds)));
    output::say(&format!("no scrub is running; the last one began {} and {}{after}", time(started), as_verb(state)));
    for found in &devices {
        output::say(&found.as_text());
    }
    Ok(())
}

/// Returns the verb for how a scrub ended.
fn as_verb(state: &str) -> &str {
    match state {
        "finished" => "was done",
        "cancelled" => "was cancelled",
        "failed" => "failed",
        _ => "was interrupted",
    }
}

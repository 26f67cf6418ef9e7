//! `ubtrfs balance`.

use serde::Serialize;
use ubtrfs::BalanceProgress;
use ubtrfs_format::items::{BalanceFlags, BalanceItem};

use crate::args::balance::{BalanceArguments, BalanceCommand, BalancePlace, Filters, How, Start, Status};
use crate::failure::Result;
use crate::json::as_json;
use crate::output::say;
use crate::place::Opening;
use crate::report::Progress;
use crate::volume_at::{VolumeAt, open};

/// How far a balance has come.
#[derive(Debug, Serialize)]
struct Shown {
    state: &'static str,
    /// Chunks that were chosen when it began.
    expected: u64,
    /// Chunks that were looked at.
    considered: u64,
    /// Chunks that were emptied.
    completed: u64,
}

/// `ubtrfs balance`
pub fn run(arguments: &BalanceArguments) -> Result<()> {
    match &arguments.what {
        BalanceCommand::Start(start) => run_one(&start.place, &wanted(start), start.how),
        BalanceCommand::Resume(resume) => {
            let balance = BalanceItem { flags: BalanceFlags::RESUME, ..BalanceItem::default() };
            run_one(&resume.place, &balance, resume.how)
        }
        BalanceCommand::Pause(place) => on(place, |volume| volume.pause_balance()),
        BalanceCommand::Cancel(place) => on(place, |volume| volume.cancel_balance()),
        BalanceCommand::Status(arguments) => status(arguments),
    }
}

/// Begins a balance or resumes one, and shows how far it has come until it is done.
fn run_one(place: &BalancePlace, balance: &BalanceItem, how: How) -> Result<()> {
    let line = Progress::new();
    let show = |progress: BalanceProgress| line.say(Shown::of("running", progress).as_text().trim_end());
    let progress = on(place, |volume| volume.balance(balance, how.limit, &show));
    drop(line);
    let shown = Shown::of("finished", progress?);
    say(&if how.json { as_json(&shown)? } else { shown.as_text() });
    Ok(())
}

impl Shown {
    fn of(state: &'static str, BalanceProgress { expected, considered, completed }: BalanceProgress) -> Self {
        Self { state, expected, considered, completed }
    }

    fn as_text(&self) -> String {
        let Self { expected, considered, completed, .. } = self;
        match self.state {
            "none" => "no balance\n".into(),
            "paused" => "a balance is paused\n".into(),
            "running" => {
                format!("a balance is under way: {completed} of {expected} chunks emptied, {considered} looked at\n")
            }
            _ => format!("{completed} of {expected} chunks emptied\n"),
        }
    }
}

/// Returns the balance that the arguments describe.
fn wanted(start: &Start) -> BalanceItem {
    let all = start.data.is_none() && start.metadata.is_none() && start.system.is_none();
    let with = |filters: Option<Filters>| if all { Some(Filters::default()) } else { filters };
    let (data, metadata) = (with(start.data), with(start.metadata));
    let system = with(start.system).or(metadata);
    let flag = |filters: Option<Filters>, bit| if filters.is_some() { bit } else { 0 };
    let args = |filters: Option<Filters>| filters.unwrap_or_default().0;
    BalanceItem {
        flags: flag(data, BalanceFlags::DATA)
            | flag(metadata, BalanceFlags::METADATA)
            | flag(system, BalanceFlags::SYSTEM)
            | if start.force { BalanceFlags::FORCE } else { 0 },
        data: args(data),
        metadata: args(metadata),
        system: args(system),
    }
}

/// Opens the volume, for changes in the background, and calls `act` on it.
fn on<T>(place: &BalancePlace, act: impl FnOnce(&dyn VolumeAt) -> Result<T>) -> Result<T> {
    let named = open(&place.place, &place.image, Opening::WRITING_IN_BACKGROUND)?;
    named.change_in_steps(|volume, _| act(volume))
}

fn status(arguments: &Status) -> Result<()> {
    let BalancePlace { place, image } = &arguments.place;
    let shown = match open(place, image, Opening::READING)?.volume.balance_status()? {
        None => Shown::of("none", BalanceProgress::default()),
        Some((false, progress)) => Shown::of("paused", progress),
        Some((true, progress)) => Shown::of("running", progress),
    };
    say(&if arguments.json { as_json(&shown)? } else { shown.as_text() });
    Ok(())
}

//! `ubtrfs balance`: on a mount by ioctls, in an image by the engine.

use std::path::Path;

use rustix::io::Errno;
use serde::Serialize;
use ubtrfs::BalanceProgress;
use ubtrfs_format::items::{BalanceFlags, BalanceItem};
use ubtrfs_server::balance::{CANCEL, PAUSE, Run, progress_in};

use crate::args::balance::{BalanceArguments, BalanceCommand, BalancePlace, Filters, How, Start, Status};
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::output::{as_json, say};
use crate::place::{Image, Place};
use crate::report::{Progress, meanwhile};
use crate::signals::Signals;

/// How far a balance is.
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
        BalanceCommand::Pause(place) => {
            on(place, |mounted| mounted.control_balance(PAUSE), |image| image.fs.balancer().pause())
        }
        BalanceCommand::Cancel(place) => {
            on(place, |mounted| mounted.control_balance(CANCEL), |image| image.fs.balancer().cancel())
        }
        BalanceCommand::Status(arguments) => status(arguments),
    }
}

/// Begins or goes on, and shows how far it is until it is done.
fn run_one(place: &BalancePlace, balance: &BalanceItem, how: How) -> Result<()> {
    let line = Progress::new();
    let show = |progress: BalanceProgress| line.say(Shown::of("running", progress).as_text().trim_end());
    let on_mount = |mounted: &Mounted| {
        if how.limit.is_some() && mounted.is_of_the_kernel()? {
            return Err(Errno::NOTSUP);
        }
        let run = Run { balance: *balance, bytes_per_second: how.limit.unwrap_or(0) };
        let look = || {
            if let Ok((true, progress)) = mounted.balance_progress().map(|answer| progress_in(&answer)) {
                show(progress);
            }
        };
        meanwhile(|| mounted.balance(&run), look)
    };
    let in_image = |image: &Image| {
        image.fs.relocator().limit(how.limit);
        let signals = Signals::listen().ok();
        let goes_on = |progress: &BalanceProgress| {
            show(*progress);
            !signals.as_ref().is_some_and(Signals::has_come)
        };
        if balance.flags & BalanceFlags::RESUME == 0 {
            image.fs.balancer().start(balance, &goes_on)
        } else {
            image.fs.balancer().resume(&goes_on)
        }
    };
    let progress = on(place, on_mount, in_image);
    drop(line);
    let shown = Shown::of("finished", progress?);
    say(&if how.json { as_json(&shown)? } else { shown.as_text() })
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

/// The balance that the arguments describe.
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

fn on<T>(
    place: &BalancePlace,
    on_mount: impl FnOnce(&Mounted) -> std::result::Result<T, Errno>,
    in_image: impl FnOnce(&Image) -> ubtrfs::Result<T>,
) -> Result<T> {
    match Place::of_volume(&place.place) {
        Place::Mounted(path) => on_mount(&Mounted::open(&path)?).map_err(|errno| about(&path, errno)),
        Place::Image { image: path, .. } => {
            let image = Image::open(&path, &place.image, true, true)?;
            let done = in_image(&image).map_err(|error| match error.errno() {
                errno @ (Errno::NOTCONN | Errno::INPROGRESS | Errno::CANCELED | Errno::INVAL | Errno::NOSPC) => {
                    about(&path, errno)
                }
                _ => image.failed(&error),
            });
            let closed = image.close();
            done.and_then(|done| closed.map(|()| done))
        }
    }
}

fn about(path: &Path, errno: Errno) -> Failure {
    let what = match errno {
        Errno::NOTCONN => "there is no balance that this could be about",
        Errno::INPROGRESS => {
            "a balance or a change of devices is under way, or a balance is paused ('ubtrfs balance status', 'resume' \
             and 'cancel')"
        }
        Errno::CANCELED => "the balance was paused or cancelled",
        Errno::INVAL => {
            "the volume can't have chunks like that; where a conversion leaves fewer copies of metadata, --force says \
             that this is wanted; where data and metadata share chunks, -d and -m have to be the same"
        }
        Errno::NOSPC => "there was no room to empty some of the chunks",
        Errno::INTR => "a signal has ended the balance",
        Errno::NOTSUP => "it is a mount of the kernel's: --limit is for mounts of ubtrfs",
        Errno::NOTTY => "the volume is not mounted by ubtrfs, or by one that can't balance",
        Errno::PERM => "only root, or the user who has mounted it, may balance a mounted volume",
        errno => return about_mount(path.display(), errno),
    };
    Failure::new(format!("{}: {what}", path.display()))
}

fn status(arguments: &Status) -> Result<()> {
    let found = match Place::of_volume(&arguments.place.place) {
        Place::Mounted(path) => match Mounted::open(&path)?.balance_progress() {
            Err(Errno::NOTCONN) => None,
            Err(errno) => return Err(about(&path, errno)),
            Ok(answer) => Some(progress_in(&answer)),
        },
        Place::Image { image: path, .. } => {
            let image = Image::open(&path, &arguments.place.image, false, false)?;
            image.fs.balancer().status().map(|status| (status.running, status.progress))
        }
    };
    let shown = match found {
        None => Shown::of("none", BalanceProgress::default()),
        Some((false, progress)) => Shown::of("paused", progress),
        Some((true, progress)) => Shown::of("running", progress),
    };
    say(&if arguments.json { as_json(&shown)? } else { shown.as_text() })
}

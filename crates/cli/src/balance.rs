//! `ubtrfs balance`: on a mount by ioctls, in an image by the engine.

use std::path::Path;

use rustix::io::Errno;
use ubtrfs_format::items::{BalanceFlags, BalanceItem};
use ubtrfs_server::balance::{CANCEL, PAUSE, encode, progress_in};

use crate::args::balance::{BalanceArguments, BalanceCommand, BalancePlace, Filters, Start};
use crate::failure::{Failure, Result};
use crate::ioctls::Mounted;
use crate::output::say;
use crate::place::{Image, Place};

/// `ubtrfs balance`
pub fn run(arguments: &BalanceArguments) -> Result<()> {
    match &arguments.what {
        BalanceCommand::Start(start) => {
            let balance = wanted(start);
            on(&start.place, |mounted| mounted.balance(&balance), |image| image.fs.start_balance(&balance))
        }
        BalanceCommand::Resume(place) => {
            let resume = BalanceItem { flags: BalanceFlags::RESUME, ..BalanceItem::default() };
            on(place, |mounted| mounted.balance(&resume), |image| image.fs.resume_balance())
        }
        BalanceCommand::Pause(place) => {
            on(place, |mounted| mounted.control_balance(PAUSE), |image| image.fs.pause_balance())
        }
        BalanceCommand::Cancel(place) => {
            on(place, |mounted| mounted.control_balance(CANCEL), |image| image.fs.cancel_balance())
        }
        BalanceCommand::Status(place) => status(place),
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

fn on(
    place: &BalancePlace,
    on_mount: impl FnOnce(&Mounted) -> std::result::Result<(), Errno>,
    in_image: impl FnOnce(&Image) -> ubtrfs::Result<()>,
) -> Result<()> {
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
            done.and(image.close())
        }
    }
}

fn about(path: &Path, errno: Errno) -> Failure {
    let what = match errno {
        Errno::NOTCONN => "there is no balance that this could be about",
        Errno::INPROGRESS => "there is a balance already, under way or paused: 'ubtrfs balance resume' or 'cancel'",
        Errno::CANCELED => "the balance was paused or cancelled",
        Errno::INVAL => {
            "the volume can't have chunks like that; where a conversion leaves fewer copies of metadata, --force says \
             that this is wanted"
        }
        Errno::NOSPC => "there was no room to empty some of the chunks",
        Errno::NOTTY => "the volume is not mounted by ubtrfs, or by one that can't balance",
        errno => return Failure::about(path.display(), &errno),
    };
    Failure::new(format!("{}: {what}", path.display()))
}

fn status(place: &BalancePlace) -> Result<()> {
    let line = match Place::of_volume(&place.place) {
        Place::Mounted(path) => match Mounted::open(&path)?.balance_progress() {
            Err(Errno::NOTCONN) => None,
            Err(errno) => return Err(about(&path, errno)),
            Ok(answer) => Some(progress_in(&answer)),
        },
        Place::Image { image: path, .. } => {
            let image = Image::open(&path, &place.image, false, false)?;
            let found = image.fs.balance_status();
            found.map(|status| progress_in(&encode(&status.balance, Some(&status))))
        }
    };
    say(&match line {
        None => "no balance\n".to_owned(),
        Some((false, _)) => "a balance is paused\n".to_owned(),
        Some((true, [expected, considered, completed])) => {
            format!("a balance is under way: {completed} of {expected} chunks emptied, {considered} looked at\n")
        }
    })
}

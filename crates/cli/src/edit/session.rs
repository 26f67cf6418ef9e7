//! The commits of an edit, and the reports of its failures.

use std::io;
use std::path::Path;

use ubtrfs::{Options, Reproducible};
use ubtrfs_format::items::Timespec;
use ubtrfs_image::{Error, Job, Session};
use ubtrfs_mkfs::random_uuid;

use crate::args::edit::{How, MEMORY};
use crate::args::{Compression, Window};
use crate::device::open_for_writing;
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::mkfs::source_date_epoch;
use crate::place::unless_mounted;
use crate::report::{self, Progress};

/// The state of the image after an edit that failed.
const NOTHING: &str = "the image is as it was";
/// The state of the image if a part of the edit was committed before.
const PARTLY: &str = "the image has what was committed before";
/// The number of bytes that a file counts for, besides its data.
const FILE: u64 = 4096;

/// Opens an image for an edit.
fn open(image: &Path, window: Window, how: How) -> Result<(Session, Sources)> {
    let opened =
        open_for_writing(&[image.to_owned()], window).map_err(|failure| unless_mounted(image, window, failure))?;
    opened.sources.refuse_as_input()?;
    // The seed would determine the ids of new subvolumes, but no edit makes any.
    let at_time = |sec| Reproducible { time: Timespec { sec, nsec: 0 }, seed: random_uuid() };
    let options = Options {
        memory: how.memory.unwrap_or(MEMORY),
        compression: how.compress.and_then(Compression::mode),
        reproducible: source_date_epoch()?.map(at_time),
        ..Options::default()
    };
    let session =
        Session::open_with(opened.devices, options).map_err(|error| Failure::about(image.display(), &error))?;
    Ok((session, opened.sources))
}

/// An image that is being edited, and the files of the host that it is in.
pub struct Edited<'a> {
    pub session: &'a Session,
    pub image: &'a Sources,
}

/// Edits an image, and commits the edit if it succeeds.
pub fn edit(
    image: &Path,
    window: Window,
    how: How,
    act: impl FnOnce(&Edited<'_>, &mut Job<'_>) -> Result<()>,
) -> Result<()> {
    let (session, sources) = open(image, window, how)?;
    let (progress, mut committed) = (Progress::new(), 0);
    let mut job = Job::new(Box::new(|counts| {
        progress.show(counts);
        let now = counts.bytes.saturating_add(FILE.saturating_mul(counts.files + counts.directories));
        if how.commit_every.is_some_and(|every| now - committed >= every) {
            session.checkpoint()?;
            committed = now;
        }
        Ok(())
    }));
    let done = act(&Edited { session: &session, image: &sources }, &mut job);
    let (counts, shrunk) = (job.counts(), job.take_shrunk());
    drop(job);
    let done = match done {
        Ok(()) => session.publish().map_err(|error| about(&error)),
        Err(failure) => {
            session.abandon();
            Err(failure)
        }
    };
    drop(progress);
    done.map_err(|failure| if committed > 0 { after_commits(failure) } else { failure })?;
    report::print(counts, how.json)?;
    report::say_shrunk(&shrunk)
}

/// Corrects the failure of an edit of which a part has been committed.
fn after_commits(failure: Failure) -> Failure {
    failure.map_sentence(|sentence| {
        if sentence.contains(NOTHING) { sentence.replace(NOTHING, PARTLY) } else { format!("{sentence}; {PARTLY}") }
    })
}

/// Describes an error, and what to do about it.
pub fn about(error: &Error) -> Failure {
    let remedy = format!(
        "; {NOTHING}. An edit keeps what it replaces until its end, so smaller ones may fit; or make a larger image"
    );
    Failure::of(error).map_sentence(|sentence| match error {
        _ if error.is_full() => sentence + &remedy,
        Error::Superblocks(_) => sentence,
        _ if is_host_full(error) => {
            format!("{sentence}: the file system that the image is on has no room for it; {NOTHING}")
        }
        _ => sentence,
    })
}

/// Whether a write to a device failed because the file system that holds it is full.
fn is_host_full(error: &Error) -> bool {
    let is_full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let errors = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    !matches!(error, Error::Outside { .. })
        && errors.into_iter().any(|error| error.downcast_ref::<io::Error>().is_some_and(|error| is_full(error.kind())))
}

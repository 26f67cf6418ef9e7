//! Opens a volume for the commands that only read, as far as the devices and blocks at hand allow:
//! without devices that are missing, by another superblock, by what is left of the chunk tree, or
//! by an older root. A sentence on the standard error stream says what is missing and what that
//! costs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ubtrfs::{Damage, Filesystem, Options, Refusal, Rescue};
use ubtrfs_errors::sentence;
use ubtrfs_volume::{Candidate, Device, Error as VolumeError, OpenOptions, Volume};

use crate::about_volume::{about_volume_within, what_is_missing};
use crate::args::Window;
use crate::failure::{Failure, Result};
use crate::output::note;
use crate::show;

/// Why a state of a volume was not opened.
pub enum Unopened {
    /// It is damaged, or what it needs is away: an older state may be readable.
    Damaged(Failure),
    /// The user has to decide something, or the volume can't be read at all.
    Refused(Failure),
}

impl Unopened {
    /// Classifies the failure for an error of the volume on these devices.
    fn of_volume(paths: &[PathBuf], window: Window, error: &VolumeError) -> Self {
        let failure = about_volume_within(paths, window, error);
        match error {
            VolumeError::NoDevice
            | VolumeError::NotBtrfs
            | VolumeError::ForeignDevice { .. }
            | VolumeError::DuplicateDevice(_)
            | VolumeError::WrongDevice(_) => Self::Refused(failure),
            _ => Self::Damaged(failure),
        }
    }

    /// Returns the failure.
    pub fn failure(self) -> Failure {
        let (Self::Damaged(failure) | Self::Refused(failure)) = self;
        failure
    }
}

/// Opens the newest state of the volume on these devices, without those that are missing.
pub fn newest(paths: &[PathBuf], window: Window, devices: &[Arc<dyn Device>]) -> std::result::Result<Volume, Unopened> {
    let read_only = OpenOptions { read_only: true };
    match Volume::open(devices.to_vec(), read_only) {
        Err(missing @ VolumeError::MissingDevices { .. }) => Volume::open_degraded(devices.to_vec(), read_only)
            // The missing devices explain the other error.
            .map_err(|_| Unopened::of_volume(paths, window, &missing)),
        opened => opened.map_err(|error| Unopened::of_volume(paths, window, &error)),
    }
}

/// Opens a state of the volume, as far as devices and blocks are there. Returns the description of
/// the state.
pub fn state(devices: &[Arc<dyn Device>], candidate: &Candidate) -> std::result::Result<(Volume, String), String> {
    let (volume, chunk_tree) = Volume::open_what_is_left(devices, candidate).map_err(|error| sentence(&error))?;
    let what = match chunk_tree {
        None => candidate.to_string(),
        Some(error) => format!(
            "{candidate}, with the chunks that were found though the chunk tree can't be read ({})",
            sentence(&error)
        ),
    };
    Ok((volume, what))
}

/// Opens the newest state of the volume on these devices that can be opened, and says what is
/// missing. `use_it` may refuse a state that is damaged, in favour of an older one.
pub fn open<T>(
    paths: &[PathBuf],
    window: Window,
    devices: &[Arc<dyn Device>],
    use_it: impl Fn(Arc<Volume>) -> std::result::Result<T, Unopened>,
) -> Result<T> {
    let subject = paths.first().map(|path| show::path(path)).unwrap_or_default();
    let first = match newest(paths, window, devices).and_then(|volume| used(&subject, volume, &use_it)) {
        Ok(used) => return Ok(used),
        Err(Unopened::Refused(failure)) => return Err(failure),
        Err(Unopened::Damaged(failure)) => failure,
    };
    for candidate in Volume::candidates(devices) {
        let Ok((volume, what)) = state(devices, &candidate) else { continue };
        if let Ok(used) = used(&subject, volume, &use_it) {
            note!("ubtrfs: {}", show::harmless(first.sentence()));
            note!("ubtrfs: {subject}: reading {}", show::harmless(&what));
            return Ok(used);
        }
    }
    Err(first)
}

fn used<T>(
    subject: &str,
    volume: Volume,
    use_it: &impl Fn(Arc<Volume>) -> std::result::Result<T, Unopened>,
) -> std::result::Result<T, Unopened> {
    let volume = Arc::new(volume);
    match use_it(Arc::clone(&volume)) {
        Ok(used) => {
            say_what_is_missing(subject, &volume);
            Ok(used)
        }
        // What can't be read may be on a device that is missing.
        Err(Unopened::Damaged(failure)) => Err(Unopened::Damaged(match what_is_missing(&volume) {
            Some(what) => failure.map_sentence(|sentence| format!("{sentence}; {what}")),
            None => failure,
        })),
        refused => refused,
    }
}

/// Says which devices are missing, and what that costs; once, however many states of the volume are
/// opened.
pub fn say_what_is_missing(subject: &str, volume: &Volume) {
    static SAID: OnceLock<()> = OnceLock::new();
    if let Some(what) = what_is_missing(volume)
        && SAID.set(()).is_ok()
    {
        note!("ubtrfs: {subject}: {what}");
    }
}

/// Opens the newest state of the volume alone, without its file system.
pub fn open_volume(paths: &[PathBuf], window: Window, devices: &[Arc<dyn Device>]) -> Result<Arc<Volume>> {
    open(paths, window, devices, Ok)
}

/// Opens the file system of a volume with these options, and without its log if that can't be
/// replayed. `what` names the volume in messages.
pub fn open_engine(
    what: &Path,
    volume: &Arc<Volume>,
    options: &Options,
) -> std::result::Result<Arc<Filesystem>, Unopened> {
    let refused = |error: &ubtrfs::Error| {
        let failure = Failure::about(what.display(), error);
        match error {
            ubtrfs::Error::Refused(_) => Unopened::Refused(failure),
            _ => Unopened::Damaged(failure),
        }
    };
    match Filesystem::open(Arc::clone(volume), options.clone()) {
        Err(error @ ubtrfs::Error::Refused(Refusal::BadLog(_) | Refusal::LogOfUnknownFeatures(_))) => {
            let options = Options { no_log_replay: true, ..options.clone() };
            let opened = Filesystem::open(Arc::clone(volume), options).map_err(|error| refused(&error))?;
            note!("ubtrfs: {}: going on without the log: {}", what.display(), show::harmless(&sentence(&error)));
            Ok(opened)
        }
        opened => opened.map_err(|error| refused(&error)),
    }
}

/// Returns options with which what can't be read is skipped, and noted in `damage`.
pub fn passing_over(options: Options, damage: &Arc<Damage>) -> Options {
    let rescue = Rescue { pass_over: Some(Arc::clone(damage)), ..options.rescue };
    Options { read_only: true, rescue, ..options }
}

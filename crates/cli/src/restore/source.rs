//! The volume that is copied: opened by the newest usable superblock or backup root.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::{Damage, Filesystem, Options, Rescue};
use ubtrfs_errors::sentence;
use ubtrfs_volume::{Candidate, Device, Error as VolumeError, Origin, Volume};

use crate::args;
use crate::commits;
use crate::device::about_volume_within;
use crate::failure::{Failure, Result};
use crate::output::note;
use crate::reading::{self, Unopened};
use crate::show::harmless;

/// A damaged volume, opened for reading.
pub struct Source {
    pub volume: Arc<Volume>,
    pub fs: Arc<Filesystem>,
    /// The parts of its trees that could not be read so far.
    pub damage: Arc<Damage>,
    /// A description of the state that was opened.
    pub what: String,
}

/// Lists the states that can be selected.
pub fn list(devices: &[Arc<dyn Device>]) -> Result<String> {
    let candidates = Volume::candidates(devices);
    if candidates.is_empty() {
        return Err(Failure::new("no copy of the superblock is good"));
    }
    let mut text = String::new();
    for candidate in &candidates {
        let state = match Volume::open_what_is_left(devices, candidate) {
            Ok((_, None)) => String::from("the chunk tree can be read"),
            Ok((_, Some(error))) => format!("parts of the chunk tree can't be read: {}", sentence(&error)),
            Err(error) => sentence(&error),
        };
        let log = if candidate.superblock.log_root.0 == 0 { "" } else { ", with a log" };
        let _ = writeln!(text, "{candidate}{log}: {state}");
    }
    Ok(text)
}

/// Returns the failure about a commit of which nothing is left.
pub fn no_commit(device: &str, commit: u64) -> Failure {
    Failure::new(format!(
        "{device}: no superblock refers to commit {commit}, and its root is gone; 'ubtrfs history' lists those that are left"
    ))
}

impl Source {
    /// Opens the newest state that can be opened, or the selected one; reports those that can't.
    pub fn open(paths: &[PathBuf], devices: &[Arc<dyn Device>], arguments: &args::Restore) -> Result<Self> {
        let device = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
        let mut failure = None;
        if arguments.commit.is_none() {
            let opened = reading::newest(paths, arguments.window, devices).and_then(|volume| {
                let superblock = volume.superblocks().current();
                let newest = Candidate { copy: superblock.bytenr, superblock, origin: Origin::Superblock };
                Self::with_engine(paths, volume, newest.to_string(), arguments)
            });
            match opened {
                Ok(source) => return Ok(source),
                // The candidates say more.
                Err(error) => failure = Some(error.failure().sentence().to_owned()),
            }
        }
        let candidates = match arguments.commit {
            Some(commit) => commits::with_generation(devices, commit),
            None => Volume::candidates(devices),
        };
        match &failure {
            Some(error) if !candidates.is_empty() => note!("ubtrfs: {}", harmless(error)),
            _ => failure = None,
        }
        for candidate in candidates {
            match Self::open_candidate(devices, &candidate, arguments) {
                Ok(source) => return Ok(source),
                Err(error) => {
                    note!("ubtrfs: {candidate}: {error}");
                    failure = Some(error);
                }
            }
        }
        match (failure, arguments.commit) {
            (Some(_), _) => Err(Failure::new(format!("{device}: no state of the volume can be opened"))),
            (None, Some(commit)) => Err(no_commit(&device, commit)),
            (None, None) => Err(about_volume_within(paths, arguments.window, &VolumeError::NotBtrfs)),
        }
    }

    /// Opens one state.
    pub fn open_candidate(
        devices: &[Arc<dyn Device>],
        candidate: &Candidate,
        arguments: &args::Restore,
    ) -> std::result::Result<Self, String> {
        let (volume, what) = reading::state(devices, candidate)?;
        Self::with_engine(&[], volume, what, arguments).map_err(|error| error.failure().sentence().to_owned())
    }

    fn with_engine(
        paths: &[PathBuf],
        volume: Volume,
        what: String,
        arguments: &args::Restore,
    ) -> std::result::Result<Self, Unopened> {
        let volume = Arc::new(volume);
        let damage = Arc::new(Damage::default());
        let options = Options {
            no_log_replay: arguments.nologreplay,
            subvolume: arguments.subvol.clone(),
            subvolume_id: arguments.subvolid,
            no_atime: true,
            background_commits: false,
            rescue: Rescue { ignore_data_checksums: arguments.ignore_checksums, ..Rescue::default() },
            ..Options::default()
        };
        let shown = paths.first().map_or(Path::new("the volume"), PathBuf::as_path);
        let fs = reading::open_engine(shown, &volume, &reading::passing_over(options, &damage))?;
        reading::say_what_is_missing(&shown.display().to_string(), &volume);
        Ok(Self { volume, fs, damage, what })
    }
}

//! The volume that is copied: opened by the newest usable superblock or backup root.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use ubtrfs::{Damage, Filesystem, Options, Refusal, Rescue};
use ubtrfs_errors::sentence;
use ubtrfs_volume::{Candidate, Device, Error as VolumeError, Volume};

use crate::args;
use crate::commits;
use crate::device::about_volume_within;
use crate::failure::{Failure, Result};
use crate::output::note;

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
        let state = match Volume::open_candidate(devices.to_vec(), candidate) {
            Ok(_) => String::from("the chunk tree can be read"),
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
        let mut failure = None;
        let candidates = match arguments.commit {
            Some(commit) => commits::with_generation(devices, commit),
            None => Volume::candidates(devices),
        };
        for candidate in candidates {
            match Self::open_candidate(devices, &candidate, arguments) {
                Ok(source) => return Ok(source),
                Err(error) => {
                    note!("ubtrfs: {candidate}: {error}");
                    failure = Some(error);
                }
            }
        }
        let device = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
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
        let volume = Volume::open_candidate(devices.to_vec(), candidate).map_err(|error| sentence(&error))?;
        let volume = Arc::new(volume);
        let open = |no_log_replay| {
            let damage = Arc::new(Damage::default());
            let options = Options {
                read_only: true,
                no_log_replay,
                subvolume: arguments.subvol.clone(),
                subvolume_id: arguments.subvolid,
                no_atime: true,
                background_commits: false,
                rescue: Rescue {
                    pass_over: Some(Arc::clone(&damage)),
                    ignore_data_checksums: arguments.ignore_checksums,
                    ..Rescue::default()
                },
                ..Options::default()
            };
            Filesystem::open(Arc::clone(&volume), options).map(|fs| (fs, damage))
        };
        let (fs, damage) = match open(arguments.nologreplay) {
            Err(error @ ubtrfs::Error::Refused(Refusal::BadLog(_) | Refusal::LogOfUnknownFeatures(_))) => {
                note!("ubtrfs: going on without the log: {}", sentence(&error));
                open(true)
            }
            opened => opened,
        }
        .map_err(|error| sentence(&error))?;
        Ok(Self { volume, fs, damage, what: candidate.to_string() })
    }
}

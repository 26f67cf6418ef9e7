//! The volume that is copied: by the newest superblock or backup root that leads anywhere.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use ubtrfs::{Damage, Filesystem, Options, Refusal, Rescue};
use ubtrfs_tree::sentence;
use ubtrfs_volume::{Candidate, Device, Error as VolumeError, Volume};

use crate::args;
use crate::device::about_volume_within;
use crate::failure::{Failure, Result};

/// A damaged volume, opened for reading.
pub struct Source {
    pub volume: Arc<Volume>,
    pub fs: Arc<Filesystem>,
    /// What of its trees could not be read so far.
    pub damage: Arc<Damage>,
    /// Which of its states it is.
    pub what: String,
}

/// The states that can be selected.
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

impl Source {
    /// Opens the newest state that can be opened, or the selected one; reports those that can't.
    pub fn open(paths: &[PathBuf], devices: &[Arc<dyn Device>], arguments: &args::Restore) -> Result<Self> {
        let mut failure = None;
        for candidate in Volume::candidates(devices) {
            if arguments.commit.is_some_and(|commit| commit != candidate.superblock.generation.0) {
                continue;
            }
            match Self::open_candidate(devices, &candidate, arguments) {
                Ok(source) => return Ok(source),
                Err(error) => {
                    eprintln!("ubtrfs: {candidate}: {error}");
                    failure = Some(error);
                }
            }
        }
        let device = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
        match (failure, arguments.commit) {
            (Some(_), _) => Err(Failure::new(format!("{device}: no state of the volume can be opened"))),
            (None, Some(commit)) => {
                Err(Failure::new(format!("{device}: no superblock refers to commit {commit}; see --list-commits")))
            }
            (None, None) => Err(about_volume_within(paths, arguments.window, &VolumeError::NotBtrfs)),
        }
    }

    fn open_candidate(
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
                },
                ..Options::default()
            };
            Filesystem::open(Arc::clone(&volume), options).map(|fs| (fs, damage))
        };
        let (fs, damage) = match open(arguments.nologreplay) {
            Err(error @ ubtrfs::Error::Refused(Refusal::BadLog(_) | Refusal::LogOfUnknownFeatures(_))) => {
                eprintln!("ubtrfs: going on without the log: {}", sentence(&error));
                open(true)
            }
            opened => opened,
        }
        .map_err(|error| sentence(&error))?;
        Ok(Self { volume, fs, damage, what: candidate.to_string() })
    }
}

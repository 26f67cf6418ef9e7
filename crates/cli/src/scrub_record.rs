//! Keeps the findings of the last scrub of each volume: in a file for each volume, which outlives
//! mounts and restarts of this machine. If the user can't have such a file, nothing is kept.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use ubtrfs_format::Uuid;

use crate::scrub_found::Found;

/// The directory of root's records.
const OF_ROOT: &str = "/var/lib/ubtrfs";

/// How a scrub has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubState {
    /// The scrub has not ended: it runs, or was killed.
    #[default]
    Running,
    Finished,
    Cancelled,
    Failed,
}

/// A scrub.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Record {
    pub state: ScrubState,
    /// When it began, and when it ended, in seconds since 1970.
    pub started: u64,
    pub ended: Option<u64>,
    /// The findings on each device.
    pub devices: Vec<Found>,
}

impl Record {
    /// Returns the record of a scrub that begins now.
    pub fn new() -> Self {
        Self { started: now(), ..Self::default() }
    }

    /// Returns the record of a scrub that has ended now.
    pub fn ended(self, state: ScrubState, devices: Vec<Found>) -> Self {
        Self { state, ended: Some(now()), devices, ..self }
    }

    /// Returns the record of the last scrub of a volume, if there is one.
    pub fn of(volume: Uuid) -> Option<Self> {
        serde_json::from_slice(&fs::read(file_of(&directory()?, volume)).ok()?).ok()
    }

    /// Stores the record. If that fails, reports it and goes on.
    pub fn keep(&self, volume: Uuid) {
        let Some(directory) = directory() else { return };
        if let Err(error) = self.write(&directory, volume) {
            let directory = directory.display();
            let _ = writeln!(io::stderr(), "ubtrfs: what the scrub found can't be kept in {directory}: {error}");
        }
    }

    fn write(&self, directory: &Path, volume: Uuid) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        // The rename leaves either the whole new record or the old one.
        let new = directory.join(format!("scrub-{volume}.{}", std::process::id()));
        fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&new, file_of(directory, volume))
    }
}

fn file_of(directory: &Path, volume: Uuid) -> PathBuf {
    directory.join(format!("scrub-{volume}.json"))
}

/// Returns the directory that systemd has made for a unit, or else root's, or the user's own.
fn directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = variable("STATE_DIRECTORY") {
        return Some(given);
    }
    if rustix::process::geteuid().is_root() {
        return Some(OF_ROOT.into());
    }
    let home = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    home.map(|home| home.join("ubtrfs"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

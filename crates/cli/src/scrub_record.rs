//! What the last scrub of each volume has found: a file for each volume, which outlives mounts and
//! this machine's restarts. A user who can't have one does without it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use ubtrfs_format::Uuid;

use crate::scrub_found::Found;

/// Where root's are.
const OF_ROOT: &str = "/var/lib/ubtrfs";

/// How a scrub has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubState {
    /// It has not: it runs, or was killed.
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
    /// When it began, and ended, in seconds since 1970.
    pub started: u64,
    pub ended: Option<u64>,
    /// What it has found of each device.
    pub devices: Vec<Found>,
}

impl Record {
    /// One that begins now.
    pub fn new() -> Self {
        Self { started: now(), ..Self::default() }
    }

    /// The same when it has ended.
    pub fn ended(self, state: ScrubState, devices: Vec<Found>) -> Self {
        Self { state, ended: Some(now()), devices, ..self }
    }

    /// The last one of a volume, if there is one.
    pub fn of(volume: Uuid) -> Option<Self> {
        serde_json::from_slice(&fs::read(file_of(&directory()?, volume)).ok()?).ok()
    }

    /// Keeps it. That it can't be kept is said, and nothing else comes of it.
    pub fn keep(&self, volume: Uuid) {
        let Some(directory) = directory() else { return };
        if let Err(error) = self.write(&directory, volume) {
            let directory = directory.display();
            let _ = writeln!(io::stderr(), "ubtrfs: what the scrub found can't be kept in {directory}: {error}");
        }
    }

    fn write(&self, directory: &Path, volume: Uuid) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        // Whole, or as it was.
        let new = directory.join(format!("scrub-{volume}.{}", std::process::id()));
        fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&new, file_of(directory, volume))
    }
}

fn file_of(directory: &Path, volume: Uuid) -> PathBuf {
    directory.join(format!("scrub-{volume}.json"))
}

/// The directory that systemd has made for a unit, root's, or the user's own.
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

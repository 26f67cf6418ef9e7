//! One state that a crash left: is it clean, and is it what was promised?

use std::sync::Arc;

use ubtrfs::Options;
use ubtrfs_check::FaultKind;
use ubtrfs_volume::{Device, OverlayDevice, RecordingDevice};

use crate::session::open;
use crate::{Compare, Model, Promise, compare};

/// Judges states by what was promised.
#[derive(Clone, Debug)]
pub struct Judge {
    /// What the commits promised, oldest first.
    pub promises: Vec<Promise>,
    /// How volumes are mounted.
    pub options: Options,
    /// Inodes of an empty volume that are no program's.
    pub own_inodes: u64,
}

/// The faults of a volume, as a sentence; and how many inodes it has.
pub(crate) fn check(device: &OverlayDevice) -> Result<u64, String> {
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device.fork())];
    let options = ubtrfs_check::Options { keep: 6, ..ubtrfs_check::Options::default() };
    let report = ubtrfs_check::check(&devices, &options).map_err(|error| format!("check could not check: {error}"))?;
    // Copies of the superblock differ after a crash between their writes; every other oddity is ours.
    let odd = report.warnings.iter().filter(|fault| !matches!(fault.kind, FaultKind::SuperblockCopyStale { .. }));
    let told: Vec<String> = report.faults.iter().chain(odd).map(ToString::to_string).collect();
    if told.is_empty() && report.is_clean() {
        return Ok(report.stats.inodes);
    }
    Err(format!("check found {} faults:\n  {}", report.fault_count, told.join("\n  ")))
}

impl Judge {
    /// A judge without promises for a history on this empty volume.
    pub fn new(options: Options, fresh: &RecordingDevice) -> Result<Self, String> {
        let inodes = check(&fresh.current())?;
        Ok(Self { promises: Vec::new(), options, own_inodes: inodes - 1 })
    }

    /// The commits of which a crash after `event` events may leave any: from the last that had returned to the
    /// last that had begun.
    pub fn allowed(&self, event: usize) -> Vec<&Promise> {
        let returned = |promise: &Promise| promise.returned.is_some_and(|returned| returned <= event);
        let oldest = self.promises.iter().rposition(returned).unwrap_or(0);
        self.promises.iter().skip(oldest).filter(|promise| promise.began <= event).collect()
    }
}

/// Judges a state that a crash after `event` events left. Returns what the volume holds, orphans included; a sentence
/// if that is not what was promised.
pub fn examine(judge: &Judge, device: &OverlayDevice, event: usize) -> Result<Model, String> {
    let inodes = check(device)?;
    let options = Options { read_only: true, ..judge.options.clone() };
    let fs = open(Arc::new(device.fork()), options)?;
    let generation = fs.generation().0;
    let allowed = judge.allowed(event);
    let Some(promise) = allowed.iter().find(|promise| promise.generation == generation) else {
        let allowed: Vec<u64> = allowed.iter().map(|promise| promise.generation).collect();
        return Err(format!("the volume is at commit {generation}; promised is one of {allowed:?}"));
    };
    let mut first = None;
    for state in &promise.states {
        let same = compare(&fs, state, Compare { times: true, nameless: true }).and_then(|()| {
            let wanted = state.nodes.len() as u64 + judge.own_inodes;
            if inodes == wanted { Ok(()) } else { Err(format!("{inodes} inodes are there, not {wanted}")) }
        });
        match same {
            Ok(()) => return Ok(state.clone()),
            Err(what) => first = first.or(Some(what)),
        }
    }
    Err(format!("commit {generation} is not as promised: {}", first.unwrap_or_default()))
}

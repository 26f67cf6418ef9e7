//! Examines a state that a crash left: whether it is clean, and whether it is as promised.

use std::slice;
use std::sync::Arc;

use ubtrfs::{InactivationStats, Options};
use ubtrfs_check::FaultKind;
use ubtrfs_errors::sentence;
use ubtrfs_volume::{OverlayDevice, RecordingDevice};

use crate::compare::compare_nameless;
use crate::mounting::{forks, frees_in_steps, members, mount, open, open_volume};
use crate::trace::{Commit, Trace};
use crate::window::Window;
use crate::{Model, look};

/// Judges states by what was promised.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The operations, and their promises.
    pub trace: Trace,
    /// The options of mounts.
    pub options: Options,
    /// Inodes of an empty volume that belong to no program.
    pub own_inodes: u64,
    /// There may be inodes without names that belong to no program: the history begins with some
    /// that a crash left, or with a log, which leaves unknown ones; or large inodes are freed in
    /// steps. Later commits of the next mount free them.
    pub unknown_orphans: bool,
}

/// Checks a volume. Returns its faults as a sentence, or how many inodes it has.
pub fn check(devices: &[OverlayDevice]) -> Result<u64, String> {
    let options = ubtrfs_check::Options { keep: 6, ..ubtrfs_check::Options::default() };
    let report = ubtrfs_check::check(&forks(devices), &options)
        .map_err(|error| format!("check could not check: {}", sentence(&error)))?;
    // Copies of the superblock differ after a crash between their writes; every other warning
    // counts as a fault of ours.
    let odd = report.warnings.iter().filter(|fault| !matches!(fault.kind, FaultKind::SuperblockCopyStale { .. }));
    let listed: Vec<String> = report.faults.iter().chain(odd).map(ToString::to_string).collect();
    if listed.is_empty() && report.is_clean() {
        return Ok(report.stats.inodes);
    }
    Err(format!("check found {} faults:\n  {}", report.fault_count, listed.join("\n  ")))
}

impl Judge {
    /// Makes a judge without promises, for a history on this empty volume.
    pub fn new(options: Options, fresh: &RecordingDevice) -> Result<Self, String> {
        let inodes = check(&members(&fresh.all_current())?)?;
        let unknown_orphans = frees_in_steps(&options);
        Ok(Self { trace: Trace::default(), options, own_inodes: inodes - 1, unknown_orphans })
    }

    /// Returns the commit of this generation, if it is one of those that a crash after `event`
    /// events may leave.
    fn commit(&self, generation: u64, event: usize) -> Result<&Commit, String> {
        self.trace.allowed(event).find(|commit| commit.generation == generation).ok_or_else(|| {
            let allowed: Vec<u64> = self.trace.allowed(event).map(|commit| commit.generation).collect();
            format!("the volume is at commit {generation}; promised is one of {allowed:?}")
        })
    }

    /// Judges what was found after a crash that left the commit of version `base`.
    pub fn judge(&self, found: &Model, base: usize, event: usize) -> Result<(), String> {
        let complaints = Window::new(&self.trace, base, event).complaints(found);
        if complaints.is_empty() { Ok(()) } else { Err(format!("not as promised:\n  {}", complaints.join("\n  "))) }
    }
}

/// What was found after a crash.
#[derive(Clone, Debug)]
pub struct Found {
    /// The content of the volume, with orphans if they are known.
    pub model: Model,
    /// The version of the last commit.
    pub base: usize,
    /// Whether there is more than the last commit, which is a log.
    pub has_log: bool,
}

/// Judges a state that a crash after `event` events left. Returns what was found, or a sentence if
/// that is not as promised.
///
/// Without a log, the volume has the whole state of a commit. With a log, it has for each inode and
/// name a state that the promises allow.
pub fn examine(judge: &Judge, device: &OverlayDevice, event: usize) -> Result<Found, String> {
    examine_devices(judge, slice::from_ref(device), event)
}

/// Judges a state of a volume on several devices.
pub fn examine_devices(judge: &Judge, devices: &[OverlayDevice], event: usize) -> Result<Found, String> {
    let inodes = check(devices)?;
    examine_as_it_is(judge, devices, event, Some(inodes))
}

/// Judges a state of devices that may lack data. The number of inodes is known if the volume has
/// been checked.
pub(crate) fn examine_as_it_is(
    judge: &Judge,
    devices: &[OverlayDevice],
    event: usize,
    inodes: Option<u64>,
) -> Result<Found, String> {
    let volume = open_volume(forks(devices), true)?;
    let superblock = volume.superblocks().current();
    // The check counted the inodes of the newest commit. After a crash between the superblocks of
    // several devices, the commit before it may count.
    let inodes = inodes.filter(|_| devices.len() == 1 || !volume.superblocks().may_have_copy_ahead());
    let has_log = superblock.log_root.0 != 0;
    let commit = judge.commit(superblock.generation.0, event)?;
    let base = commit.versions.start;
    let fs = mount(volume, Options { read_only: true, ..judge.options.clone() })?;
    let model = look(&fs)?;
    judge.judge(&model, base, event)?;
    if has_log {
        if inodes.is_some() {
            recovers(judge, devices, &model)?;
        }
        return Ok(Found { model, base, has_log });
    }
    let mut first = None;
    for version in &judge.trace.versions[commit.versions.clone()] {
        let wanted = version.model.nodes.len() as u64 + judge.own_inodes;
        let same = match model.difference_except_nodatacow(&version.model) {
            Some(difference) => Err(difference),
            None if judge.unknown_orphans && inodes.is_some() => recovers(judge, devices, &model),
            None if judge.unknown_orphans => Ok(()),
            None if inodes.is_some_and(|inodes| inodes != wanted) => {
                Err(format!("{} inodes are there, not {wanted}", inodes.unwrap_or_default()))
            }
            None => compare_nameless(&fs, &version.model),
        };
        match same {
            Ok(()) => return Ok(Found { model: version.model.with_nodatacow_data_of(&model), base, has_log }),
            Err(what) => first = first.or(Some(what)),
        }
    }
    Err(format!("commit {} is not as promised (found and promised): {}", commit.generation, first.unwrap_or_default()))
}

/// Mounts a volume with a log for writing: it shows the same as before, and is clean after the log
/// has been committed.
fn recovers(judge: &Judge, devices: &[OverlayDevice], found: &Model) -> Result<(), String> {
    match found.difference(&shown_when_mounted(judge, devices)?) {
        Some(difference) => Err(format!("a mount for writing shows something else than one for reading: {difference}")),
        None => Ok(()),
    }
}

/// Returns what a mount for writing shows, on a volume that is clean before and after it. The
/// devices are not changed.
pub(crate) fn shown_when_mounted(judge: &Judge, devices: &[OverlayDevice]) -> Result<Model, String> {
    check(devices)?;
    let devices: Vec<Arc<OverlayDevice>> = devices.iter().map(|device| Arc::new(device.fork())).collect();
    let is_clean = || check(&devices.iter().map(|device| device.fork()).collect::<Vec<_>>());
    let fs = open(devices.iter().map(|device| Arc::clone(device) as _).collect(), judge.options.clone())?;
    let shown = look(&fs)?;
    let has_orphans = |stats: &InactivationStats| stats.orphans_left || stats.inodes > 0;
    while has_orphans(&fs.stats().inactivation) || !fs.subvolumes().deleted_subvolumes().is_empty() {
        fs.durability().sync().map_err(|error| format!("freeing orphans failed: {}", error.chain()))?;
        is_clean()?;
    }
    fs.close().map_err(|error| format!("unmounting after a crash failed: {}", error.chain()))?;
    drop(fs);
    let (inodes, wanted) = (is_clean()?, shown.nodes.len() as u64 + judge.own_inodes);
    if inodes == wanted { Ok(shown) } else { Err(format!("after a mount {inodes} inodes are there, not {wanted}")) }
}

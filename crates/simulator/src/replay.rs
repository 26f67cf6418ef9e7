//! A second crash while a crashed volume is being mounted.

use std::slice;
use std::sync::Arc;

use ubtrfs_volume::{OverlayDevice, RecordingDevice};

use crate::examine::shown_when_mounted;
use crate::mounting::open;
use crate::{Crashes, Judge, Model, look};

/// Mounts a state that a crash left for writing, and unmounts. If a crash interrupts that at any
/// point, the next mount must show the same as the first. Returns the number of states that were
/// examined, at most about `budget`.
pub fn crash_in_replay(
    judge: &Judge,
    device: &OverlayDevice,
    found: &Model,
    seed: u64,
    budget: usize,
) -> Result<usize, String> {
    let recording = Arc::new(RecordingDevice::on(device));
    let fs = open(vec![recording.clone()], judge.options.clone())?;
    if let Some(difference) = found.difference(&look(&fs)?) {
        return Err(format!("a mount for writing shows something else than one for reading: {difference}"));
    }
    fs.close().map_err(|error| format!("unmounting failed: {}", error.chain()))?;
    let mut states = 0;
    for (point, device) in Crashes::new(&recording, seed, budget) {
        let same =
            shown_when_mounted(judge, slice::from_ref(&device)).and_then(|shown| match found.difference(&shown) {
                Some(difference) => Err(format!("the next mount shows something else: {difference}")),
                None => Ok(()),
            });
        same.map_err(|what| format!("second crash at {point:?}, while it was mounted: {what}"))?;
        states += 1;
    }
    Ok(states)
}

//! When to compare the superblocks on the devices with ours again (invariants 12 and 34).

use std::time::Duration;

use ubtrfs_threads::time::Instant;

/// Log writes check for a foreign writer only this often, since a read costs as much as the write
/// itself.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// For this long after a device has lost superblocks, log writes always check, so that none
/// overwrites what the device loses meanwhile without our noticing.
const SUSPECT_FOR: Duration = Duration::from_secs(60);

/// When the superblocks were compared.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    last: Option<Instant>,
    /// When a superblock was found to be lost.
    lost: Option<Instant>,
}

impl Looks {
    /// Notes that the superblocks are being compared now.
    pub(crate) fn note_look(&mut self) {
        self.last = Some(Instant::now());
    }

    /// Notes that a superblock is lost.
    pub(crate) fn note_lost(&mut self) {
        self.lost = Some(Instant::now());
    }

    /// Returns whether a log write has to compare the superblocks first.
    pub(crate) fn is_due(&self) -> bool {
        let is_suspect = self.lost.is_some_and(|lost| lost.elapsed() < SUSPECT_FOR);
        is_suspect || self.last.is_none_or(|look| look.elapsed() >= LOOK_INTERVAL)
    }
}

//! When the superblocks on the devices are compared with ours again (of invariants 12 and 34).

use std::time::Duration;

use ubtrfs_threads::time::Instant;

/// Log writes check for a foreign writer only this often, since a read costs as much as the write
/// itself.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// So long after a device has lost superblocks log writes always check: what it loses meanwhile is
/// not to be written over unseen.
const SUSPECT_FOR: Duration = Duration::from_secs(60);

/// When they were compared.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    last: Option<Instant>,
    /// When one was found to be lost.
    lost: Option<Instant>,
}

impl Looks {
    /// They are compared now.
    pub(crate) fn note_look(&mut self) {
        self.last = Some(Instant::now());
    }

    /// One is lost.
    pub(crate) fn note_lost(&mut self) {
        self.lost = Some(Instant::now());
    }

    /// Whether a log write is to compare them first.
    pub(crate) fn is_due(&self) -> bool {
        let is_suspect = self.lost.is_some_and(|lost| lost.elapsed() < SUSPECT_FOR);
        is_suspect || self.last.is_none_or(|look| look.elapsed() >= LOOK_INTERVAL)
    }
}

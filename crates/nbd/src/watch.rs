//! Watches whether bytes move over a connection, to distinguish a slow server from one that is
//! away.

use std::sync::Arc;

use ubtrfs_threads::time::Instant;

use crate::channel::{Channel, Moved};

/// Notices when a server last gave or took bytes.
pub(crate) struct Watch {
    channel: Arc<Channel>,
    seen: Moved,
    heard: Instant,
}

impl Watch {
    pub(crate) fn new(channel: Arc<Channel>) -> Self {
        Self { seen: channel.moved(), channel, heard: Instant::now() }
    }

    /// How many bytes the server gave or took.
    pub(crate) fn passed(&self) -> u64 {
        let Moved { received, sent, waiting } = self.channel.moved();
        received + sent.saturating_sub(waiting)
    }

    /// How many bytes the server gave, took or will take.
    pub(crate) fn exchanged(&self) -> u64 {
        self.channel.exchanged()
    }

    /// Checks the connection. Returns when it was last heard from.
    pub(crate) fn look(&mut self) -> Instant {
        let now = self.channel.moved();
        if has_moved(self.seen, now) {
            self.hear();
        }
        self.seen = now;
        self.heard
    }

    /// Notes that the connection is heard from, or gets a request after having none.
    pub(crate) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    /// Ends the connection.
    pub(crate) fn end(&self) {
        self.channel.end();
    }
}

/// Returns whether the server gave bytes, or took some that were waiting for it already. That its
/// machine accepts a short message does not show that the server doesn't hang.
fn has_moved(before: Moved, now: Moved) -> bool {
    let taken = |moved: Moved| moved.sent as i64 - moved.waiting as i64;
    now.received != before.received || before.waiting > 0 && taken(now) > taken(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(received: u64, sent: u64, waiting: u64) -> Moved {
        Moved { received, sent, waiting }
    }

    #[test]
    fn what_a_server_gives_or_takes_is_heard() {
        assert!(has_moved(moved(1, 10, 0), moved(2, 10, 0)), "a byte has come");
        assert!(has_moved(moved(1, 90, 50), moved(1, 90, 40)), "some of what waited was taken");
        assert!(has_moved(moved(1, 90, 50), moved(1, 110, 50)), "and as much was added");
    }

    #[test]
    fn what_is_sent_to_a_server_that_hangs_is_not_heard() {
        assert!(!has_moved(moved(1, 90, 50), moved(1, 90, 50)));
        assert!(!has_moved(moved(1, 90, 50), moved(1, 110, 70)), "a message that joins those that wait");
        assert!(!has_moved(moved(1, 90, 50), moved(1, 110, 90)), "the kernel needs more for it than its bytes");
        assert!(!has_moved(moved(1, 90, 0), moved(1, 118, 0)), "a message that its machine took at once");
    }
}

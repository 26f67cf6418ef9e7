//! Limits how many bytes are under way to a server to as many as it answers soon. A slow server
//! gets little at a time, so that its answers come often enough to show that it is there.

use std::time::Duration;

use ubtrfs_threads::time::Instant;

/// The bytes under way at first …
const FIRST: usize = 1 << 20;
/// … at the least …
const MIN: usize = 256 << 10;
/// … and at the most.
const MAX: usize = 32 << 20;

/// The limit, which grows by the bytes of answers that come soon, and is halved when an answer
/// comes late.
#[derive(Debug)]
pub(crate) struct Window {
    bytes: usize,
    late: Duration,
    /// When it was last halved. Answers to requests that were sent before don't count.
    halved: Option<Instant>,
}

impl Window {
    /// Returns a window for which an answer is late if it takes longer than `late`.
    pub(crate) fn new(late: Duration) -> Self {
        Self { bytes: FIRST, late, halved: None }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes the answer at `now` to a request of so many bytes that was sent at `sent`.
    pub(crate) fn answered(&mut self, bytes: usize, sent: Instant, now: Instant) {
        if now.saturating_duration_since(sent) <= self.late {
            self.bytes = MAX.min(self.bytes + bytes);
        } else if self.halved.is_none_or(|halved| halved <= sent) {
            self.bytes = MIN.max(self.bytes / 2);
            self.halved = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_by_quick_answers_and_is_halved_once_by_late_ones() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut window = Window::new(Duration::from_secs(10));
        window.answered(1 << 20, start, after(10));
        assert_eq!(window.bytes(), 2 << 20);
        for _ in 0..100 {
            window.answered(1 << 20, start, after(1));
        }
        assert_eq!(window.bytes(), MAX);
        window.answered(1 << 20, start, after(20));
        window.answered(1 << 20, after(1), after(21));
        assert_eq!(window.bytes(), MAX / 2, "both were sent before it was known");
        for round in 2..20 {
            window.answered(1 << 20, after(round * 20), after(round * 20 + 15));
        }
        assert_eq!(window.bytes(), MIN);
    }
}

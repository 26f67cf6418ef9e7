//! Clocks that show the run's time.

use std::ops::{Add, AddAssign, Sub};
use std::time::SystemTime;

pub use std::time::Duration;

use super::clock;

/// The wall-clock time at which every run begins.
const BEGINNING: Duration = Duration::from_secs(1_700_000_000);

/// A time of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The time now.
    pub fn now() -> Self {
        Self(clock::now())
    }

    /// Returns the time since then.
    pub fn elapsed(&self) -> Duration {
        clock::now().saturating_sub(self.0)
    }

    /// Returns the time since an earlier time.
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time since an earlier time, or zero if that is later.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns a later time, if it can be expressed.
    pub fn checked_add(&self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// Returns the time since the run began.
    pub(super) fn since_beginning(self) -> Duration {
        self.0
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

/// Returns the time of the wall clock.
pub fn wall_clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + BEGINNING + clock::now()
}

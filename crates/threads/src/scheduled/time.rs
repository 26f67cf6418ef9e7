//! Clocks that show the run's time.

use std::ops::{Add, AddAssign, Sub};
use std::time::SystemTime;

pub use std::time::Duration;

use super::clock;

/// When runs begin: the same time in all of them.
const BEGINNING: Duration = Duration::from_secs(1_700_000_000);

/// A time of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The time now.
    pub fn now() -> Self {
        Self(clock::now())
    }

    /// The time since then.
    pub fn elapsed(&self) -> Duration {
        clock::now().saturating_sub(self.0)
    }

    /// The time since an earlier time.
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The same.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// A later time, if it can be expressed.
    pub fn checked_add(&self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// The time since the run began.
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

/// The time of the wall clock.
pub fn wall_clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + BEGINNING + clock::now()
}

//! A condition variable for the mutexes of this crate.

use std::time::Duration;

use crate::lock::MutexGuard;
use crate::time::Instant;
use crate::unranked;

pub use unranked::WaitTimeoutResult;

/// What threads that hold a mutex wait for until it is notified.
#[derive(Debug, Default)]
pub struct Condvar(unranked::Condvar);

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self(unranked::Condvar::new())
    }

    /// Lets go of the mutex and waits.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// The same while a condition is met.
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, condition: impl FnMut(&mut T) -> bool) {
        self.0.wait_while(&mut guard.guard, condition);
    }

    /// The same for a limited time.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        self.0.wait_for(&mut guard.guard, time)
    }

    /// The same until a point in time.
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.0.wait_until(&mut guard.guard, until)
    }

    /// Wakes one who waits; returns whether anybody waited.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    /// Wakes all who wait; returns how many.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}

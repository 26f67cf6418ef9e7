//! A condition variable for the mutexes of this crate.

use std::time::Duration;

use crate::lock::MutexGuard;
use crate::time::Instant;
use crate::unranked;

pub use unranked::WaitTimeoutResult;

/// A condition variable. Threads that hold a mutex wait for it until it is notified.
#[derive(Debug, Default)]
pub struct Condvar(unranked::Condvar);

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Self {
        Self(unranked::Condvar::new())
    }

    /// Releases the mutex and waits.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// As [`Self::wait`], repeatedly, while a condition is met.
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, condition: impl FnMut(&mut T) -> bool) {
        self.0.wait_while(&mut guard.guard, condition);
    }

    /// As [`Self::wait`], for a limited time.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        self.0.wait_for(&mut guard.guard, time)
    }

    /// As [`Self::wait`], until a point in time.
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.0.wait_until(&mut guard.guard, until)
    }

    /// Wakes one waiter, and returns whether there was one.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    /// Wakes all waiters, and returns how many there were.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}

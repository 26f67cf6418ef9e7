//! A condition variable, which the wrapper of `parking_lot` lacks, on the run's time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Plain, PoisonError};
use std::time::Duration;

use shuttle::current::TaskId;
use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
use shuttle_parking_lot::MutexGuard;

use super::clock;
use super::time::Instant;

/// A task that waits.
#[derive(Debug)]
struct Waiter {
    task: Option<TaskId>,
    is_notified: AtomicBool,
    /// Given when it is notified, to those that wait without a limit.
    permit: BatchSemaphore,
}

impl Waiter {
    fn notify(&self) {
        self.is_notified.store(true, Ordering::Relaxed);
        if let Some(task) = self.task {
            clock::wake(task);
        }
        self.permit.release(1);
    }

    fn is_notified(&self) -> bool {
        self.is_notified.load(Ordering::Relaxed)
    }
}

/// What waiting for a limited time came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// What tasks that hold a mutex wait for until it is notified. Who waits longest is woken first,
/// and nobody without having been notified.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Never waited for: all tasks are one thread, which does not change tasks meanwhile.
    waiters: Plain<VecDeque<Arc<Waiter>>>,
}

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self { waiters: Plain::new(VecDeque::new()) }
    }

    fn waiters(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Waiter>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter {
            task: clock::this_task(),
            is_notified: AtomicBool::new(false),
            permit: BatchSemaphore::new(0, Fairness::StrictlyFair),
        });
        self.waiters().push_back(Arc::clone(&waiter));
        waiter
    }

    /// Lets go of the mutex and waits.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        let waiter = self.enter();
        MutexGuard::unlocked(guard, || {
            let _ = waiter.permit.acquire_blocking(1);
        });
    }

    /// The same while a condition is met.
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(&mut **guard) {
            self.wait(guard);
        }
    }

    /// The same for a limited time.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        self.wait_until(guard, Instant::now() + time)
    }

    /// The same until a point in time.
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        let (waiter, until) = (self.enter(), until.since_beginning());
        MutexGuard::unlocked(guard, || {
            while !waiter.is_notified() && clock::now() < until {
                clock::sleep_until(until);
            }
            // From here on it would be notified in vain.
            self.waiters().retain(|other| !Arc::ptr_eq(other, &waiter));
        });
        WaitTimeoutResult(!waiter.is_notified())
    }

    /// Wakes who waits longest; returns whether anybody waited.
    pub fn notify_one(&self) -> bool {
        super::thread::pass();
        let first = self.waiters().pop_front();
        first.inspect(|waiter| waiter.notify()).is_some()
    }

    /// Wakes all who wait; returns how many.
    pub fn notify_all(&self) -> usize {
        super::thread::pass();
        let all = std::mem::take(&mut *self.waiters());
        for waiter in &all {
            waiter.notify();
        }
        all.len()
    }
}

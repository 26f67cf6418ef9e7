//! A condition variable on the run's time. The wrapper of `parking_lot` lacks one.

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
    /// Released when the waiter is notified, for waits without a limit.
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

/// The result of waiting for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns whether the time was over.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable. Tasks that hold a mutex wait for it until it is notified. The task that
/// waits longest is woken first, and no task is woken without a notification.
#[derive(Debug, Default)]
pub struct Condvar {
    /// This lock is never contended: all tasks are on one thread, which does not switch tasks while
    /// it is held.
    waiters: Plain<VecDeque<Arc<Waiter>>>,
}

impl Condvar {
    /// A condition variable without waiters.
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

    /// Releases the mutex and waits.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        let waiter = self.enter();
        MutexGuard::unlocked(guard, || {
            let _ = waiter.permit.acquire_blocking(1);
        });
    }

    /// As [`Self::wait`], repeatedly, while a condition is met.
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(&mut **guard) {
            self.wait(guard);
        }
    }

    /// As [`Self::wait`], for a limited time.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        self.wait_until(guard, Instant::now() + time)
    }

    /// As [`Self::wait`], until a point in time.
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        let (waiter, until) = (self.enter(), until.since_beginning());
        MutexGuard::unlocked(guard, || {
            while !waiter.is_notified() && clock::now() < until {
                clock::sleep_until(until);
            }
            // A notification of this waiter would be lost from here on.
            self.waiters().retain(|other| !Arc::ptr_eq(other, &waiter));
        });
        WaitTimeoutResult(!waiter.is_notified())
    }

    /// Wakes the task that waits longest, and returns whether there was one.
    pub fn notify_one(&self) -> bool {
        super::thread::pass();
        let first = self.waiters().pop_front();
        first.inspect(|waiter| waiter.notify()).is_some()
    }

    /// Wakes all waiters, and returns how many there were.
    pub fn notify_all(&self) -> usize {
        super::thread::pass();
        let all = std::mem::take(&mut *self.waiters());
        for waiter in &all {
            waiter.notify();
        }
        all.len()
    }
}

//! Time in a run, and who sleeps until when. All tasks of a run are one thread: what is here is
//! that thread's, and nobody is interrupted in it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use shuttle::current::{TaskId, try_get_current_task};
use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

#[derive(Default)]
struct Clock {
    now: Duration,
    asleep: BTreeMap<TaskId, Duration>,
    /// Nothing will ever happen again but that sleepers wake.
    stopped: bool,
}

std::thread_local! {
    static CLOCK: RefCell<Clock> = RefCell::default();
}

/// The time since the run began.
pub(super) fn now() -> Duration {
    CLOCK.with_borrow(|clock| clock.now)
}

/// Lets time pass, which wakes who slept until then.
pub(super) fn advance(to: Duration) {
    CLOCK.with_borrow_mut(|clock| {
        clock.now = clock.now.max(to);
        let now = clock.now;
        clock.asleep.retain(|_, until| *until > now);
    });
}

/// Until when somebody sleeps, of all sleepers the `number`th to wake.
pub(super) fn waking(number: usize) -> Option<Duration> {
    CLOCK.with_borrow(|clock| {
        let mut times: Vec<_> = clock.asleep.values().copied().collect();
        times.sort_unstable();
        times.get(number).copied()
    })
}

/// Whether a task is not to go on yet.
pub(super) fn is_asleep(task: TaskId) -> bool {
    CLOCK.with_borrow(|clock| clock.asleep.contains_key(&task))
}

/// The task that runs.
pub(super) fn this_task() -> Option<TaskId> {
    try_get_current_task()
}

/// Lets this task sleep until a time, or until it is woken.
pub(super) fn sleep_until(until: Duration) {
    let Some(task) = this_task() else { return };
    CLOCK.with_borrow_mut(|clock| {
        if until > clock.now && !clock.stopped {
            clock.asleep.insert(task, until);
        }
    });
    loop {
        shuttle::thread::yield_now();
        if CLOCK.with_borrow(|clock| clock.stopped) {
            // So that all tasks are blocked, which the library reports with all of them.
            let _ = BatchSemaphore::new(0, Fairness::StrictlyFair).acquire_blocking(1);
        }
        if !is_asleep(task) {
            return;
        }
    }
}

/// Wakes a task that may be asleep.
pub(super) fn wake(task: TaskId) {
    CLOCK.with_borrow_mut(|clock| clock.asleep.remove(&task));
}

/// A task that sleeps now, or later, never wakes.
pub(super) fn stop() {
    CLOCK.with_borrow_mut(|clock| {
        clock.stopped = true;
        clock.asleep.clear();
    });
}

//! Time in a run, and the tasks that sleep. All tasks of a run are on one thread, and this state is
//! that thread's, so no access to it is interrupted.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use shuttle::current::{TaskId, try_get_current_task};
use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

#[derive(Default)]
struct Clock {
    now: Duration,
    asleep: BTreeMap<TaskId, Duration>,
    /// Nothing but the waking of sleepers would ever happen again.
    stopped: bool,
}

std::thread_local! {
    static CLOCK: RefCell<Clock> = RefCell::default();
}

/// Returns the time since the run began.
pub(super) fn now() -> Duration {
    CLOCK.with_borrow(|clock| clock.now)
}

/// Advances the time, and wakes the tasks that slept until then.
pub(super) fn advance(to: Duration) {
    CLOCK.with_borrow_mut(|clock| {
        clock.now = clock.now.max(to);
        let now = clock.now;
        clock.asleep.retain(|_, until| *until > now);
    });
}

/// Returns when the `number`th sleeper will wake.
pub(super) fn waking(number: usize) -> Option<Duration> {
    CLOCK.with_borrow(|clock| {
        let mut times: Vec<_> = clock.asleep.values().copied().collect();
        times.sort_unstable();
        times.get(number).copied()
    })
}

/// Returns whether a task is asleep.
pub(super) fn is_asleep(task: TaskId) -> bool {
    CLOCK.with_borrow(|clock| clock.asleep.contains_key(&task))
}

/// Returns the task that runs.
pub(super) fn this_task() -> Option<TaskId> {
    try_get_current_task()
}

/// Has this task sleep until a time, or until it is woken.
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
            // This blocks all tasks, which the library reports with all of them.
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

/// Stops the clock: a task that sleeps now or later never wakes.
pub(super) fn stop() {
    CLOCK.with_borrow_mut(|clock| {
        clock.stopped = true;
        clock.asleep.clear();
    });
}

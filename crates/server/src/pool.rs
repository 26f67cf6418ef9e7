//! Threads for slow requests: a request that waits for a commit must not delay others.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use ubtrfs_threads::{Condvar, Mutex, Rank, assert_none_held, thread};

type Job = Box<dyn FnOnce() + Send>;

/// A few threads, which are started when they are needed and kept from then on. When the pool is
/// dropped, they finish the queued jobs.
pub struct Pool {
    inner: Arc<Inner>,
    most: usize,
    start: Start,
}

/// The scheduling that a thread gets at its start. Otherwise it would inherit that of the thread
/// that starts it, which may be pinned to a processor and have a higher priority.
#[derive(Clone, Copy)]
struct Start {
    processors: Option<CpuSet>,
    niceness: Option<i32>,
}

impl Start {
    fn of_this_thread() -> Self {
        let (processors, niceness) = (sched_getaffinity(None).ok(), getpriority_process(None).ok());
        Self { processors, niceness }
    }

    fn apply(self) {
        let applied = self.processors.map_or(Ok(()), |processors| sched_setaffinity(None, &processors));
        let applied = applied.and(self.niceness.map_or(Ok(()), |niceness| setpriority_process(None, niceness)));
        if let Err(error) = applied {
            tracing::debug!(%error, "a thread for slow requests is scheduled like the one that started it");
        }
    }
}

struct Inner {
    state: Mutex<State>,
    wakes: Condvar,
    given: Arc<AtomicU64>,
}

impl Default for Inner {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::Pool), wakes: Condvar::new(), given: Arc::default() }
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    stopping: bool,
}

impl Pool {
    /// Returns a pool of at most so many threads, which are scheduled like the calling one.
    pub fn new(most: usize) -> Self {
        Self::counting(most, Arc::default())
    }

    /// Returns such a pool that counts its jobs in `given`.
    pub fn counting(most: usize, given: Arc<AtomicU64>) -> Self {
        let inner = Arc::new(Inner { given, ..Inner::default() });
        Self { inner, most: most.max(1), start: Start::of_this_thread() }
    }

    /// Runs `job` in one of the threads, after the jobs that were queued before it.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.inner.given.fetch_add(1, Relaxed);
        let mut state = self.inner.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle < state.jobs.len() && state.threads < self.most {
            let (inner, start) = (Arc::clone(&self.inner), self.start);
            let work = move || {
                start.apply();
                inner.work();
            };
            match thread::Builder::new().name("slow".into()).spawn(work) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    tracing::warn!(%error, "no thread for slow requests: serving one on the spot");
                    let job = state.jobs.pop_back();
                    drop(state);
                    if let Some(job) = job {
                        job();
                    }
                    return;
                }
                Err(error) => tracing::warn!(%error, "fewer threads for slow requests than wanted"),
            }
        }
        drop(state);
        self.inner.wakes.notify_one();
    }
}

impl Pool {
    /// Returns whether there are jobs that are not done.
    pub fn is_busy(&self) -> bool {
        let state = self.inner.state.lock();
        state.threads > state.idle || !state.jobs.is_empty()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.inner.state.lock().stopping = true;
        self.inner.wakes.notify_all();
    }
}

impl Inner {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a slow request panicked");
                }
                assert_none_held("after a job");
                state = self.state.lock();
            } else if state.stopping {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                self.wakes.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn as_many_jobs_run_at_once_as_there_may_be_threads() {
        let given = Arc::new(AtomicU64::new(0));
        let pool = Pool::counting(3, Arc::clone(&given));
        let barrier = Arc::new(Barrier::new(3));
        let (done, all) = channel();
        for _ in 0..3 {
            let (barrier, done) = (Arc::clone(&barrier), done.clone());
            pool.run(move || {
                barrier.wait();
                done.send(()).unwrap();
            });
        }
        for _ in 0..3 {
            all.recv_timeout(TIMEOUT).unwrap();
        }
        assert_eq!(given.load(Relaxed), 3);
    }

    #[test]
    fn threads_run_where_the_pool_was_made_not_where_they_are_started() {
        let all = sched_getaffinity(None).unwrap();
        let pool = Pool::new(1);
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            pool.run(move || sender.send(sched_getaffinity(None).unwrap()).unwrap());
        });
        assert_eq!(receiver.recv_timeout(TIMEOUT).unwrap(), all);
    }

    #[test]
    fn a_panic_costs_no_thread_and_a_dropped_pool_finishes() {
        let pool = Pool::new(1);
        let (done, all) = channel();
        pool.run(|| panic!("on purpose"));
        for number in 0..10 {
            let done = done.clone();
            pool.run(move || done.send(number).unwrap());
        }
        drop(pool);
        let order: Vec<i32> = (0..10).map(|_| all.recv_timeout(TIMEOUT).unwrap()).collect();
        assert_eq!(order, (0..10).collect::<Vec<_>>());
    }
}

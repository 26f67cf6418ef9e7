//! Threads, which are tasks.

use std::io;
use std::time::Duration;

pub use shuttle::thread::{JoinHandle, Scope, ScopedJoinHandle, ThreadId, current, panicking, scope, spawn, yield_now};

use super::clock;

/// Lets other tasks continue before the next operation.
pub(super) fn pass() {
    if clock::this_task().is_some() {
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// Sleeps for a time of the run.
pub fn sleep(time: Duration) {
    clock::sleep_until(clock::now().saturating_add(time));
}

/// The settings of a new thread.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
}

impl Builder {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets its name, for reports of failures.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self { name: Some(name) }
    }

    /// Starts the thread.
    pub fn spawn<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        let builder = shuttle::thread::Builder::new();
        match self.name {
            Some(name) => builder.name(name),
            None => builder,
        }
        .spawn(work)
    }

    /// Starts the thread in a scope.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        Ok(scope.spawn(work))
    }
}

//! Whether a thread has panicked while it changed what others rely on (invariant 72). A lock does
//! not tell: it is given to the next thread as if nothing had happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The panics of threads within something.
#[derive(Clone, Debug, Default)]
pub struct Panics(Arc<AtomicBool>);

/// A thread that is within it. If it panics before this is dropped, that is noted.
#[derive(Debug)]
#[must_use = "a panic is noted only while this lives"]
pub struct WatchPanics<'a>(&'a AtomicBool);

impl Panics {
    /// A thread begins to change what others rely on.
    pub fn watch(&self) -> WatchPanics<'_> {
        WatchPanics(&self.0)
    }

    /// Whether one has panicked.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for WatchPanics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_noted_by_whom_it_passes() {
        let (inside, outside) = (Panics::default(), Panics::default());
        drop(outside.watch());
        let panicked = std::panic::catch_unwind(|| {
            let _watch = inside.watch();
            panic!("on purpose");
        });
        assert!(panicked.is_err() && inside.any() && !outside.any());
    }
}

//! Recording whether a thread has panicked while it changed what others rely on (invariant 56). A
//! lock does not show that: the next thread gets it as if nothing had happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a thread has panicked within a guarded section.
#[derive(Clone, Debug, Default)]
pub struct Panics(Arc<AtomicBool>);

/// The presence of a thread within the section. If it panics before this is dropped, that is
/// recorded.
#[derive(Debug)]
#[must_use = "a panic is noted only while this lives"]
pub struct WatchPanics<'a>(Option<&'a AtomicBool>);

impl Panics {
    /// Marks the beginning of a section in which this thread changes what others rely on. A thread
    /// that is already panicking is not watched: it only releases what it holds, and its panic
    /// occurred where nothing was half done.
    pub fn watch(&self) -> WatchPanics<'_> {
        WatchPanics(if std::thread::panicking() { None } else { Some(&self.0) })
    }

    /// Returns whether a thread has panicked within the section.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for WatchPanics<'_> {
    fn drop(&mut self) {
        if let Some(panicked) = self.0.filter(|_| std::thread::panicking()) {
            panicked.store(true, Ordering::Release);
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

    #[test]
    fn what_is_given_back_during_a_panic_is_not_half_done() {
        struct GivesBack<'a>(&'a Panics);

        impl Drop for GivesBack<'_> {
            fn drop(&mut self) {
                drop(self.0.watch());
            }
        }

        let panics = Panics::default();
        let panicked = std::panic::catch_unwind(|| {
            let _held = GivesBack(&panics);
            panic!("on purpose");
        });
        assert!(panicked.is_err() && !panics.any());
    }
}

//! `arc_swap` with a point before each operation at which another task may continue. The operations
//! themselves are opaque to the scheduler.

use std::sync::Arc;

use ::arc_swap::{Guard, RefCnt};

/// A shared pointer that can be replaced while others read it.
pub struct ArcSwapAny<T: RefCnt>(::arc_swap::ArcSwapAny<T>);

/// A pointer to a value.
pub type ArcSwap<T> = ArcSwapAny<Arc<T>>;

/// A pointer to a value or nothing.
pub type ArcSwapOption<T> = ArcSwapAny<Option<Arc<T>>>;

impl<T: RefCnt> ArcSwapAny<T> {
    /// A pointer to `value`.
    pub fn new(value: T) -> Self {
        Self(::arc_swap::ArcSwapAny::new(value))
    }

    /// Returns what it points to, for a short time.
    pub fn load(&self) -> Guard<T> {
        super::thread::pass();
        self.0.load()
    }

    /// Returns what it points to.
    pub fn load_full(&self) -> T {
        super::thread::pass();
        self.0.load_full()
    }

    /// Replaces the value.
    pub fn store(&self, value: T) {
        super::thread::pass();
        self.0.store(value);
    }

    /// Replaces the value, and returns the old one.
    pub fn swap(&self, value: T) -> T {
        super::thread::pass();
        self.0.swap(value)
    }

    /// Replaces the value by the result of `change`, which may be called repeatedly.
    pub fn rcu<R: Into<T>>(&self, mut change: impl FnMut(&T) -> R) -> T {
        loop {
            super::thread::pass();
            let before = self.0.load();
            let after = change(&before).into();
            super::thread::pass();
            let found = self.0.compare_and_swap(&*before, after);
            if T::as_ptr(&*found) == T::as_ptr(&*before) {
                return Guard::into_inner(found);
            }
        }
    }
}

impl<T> ArcSwapAny<Arc<T>> {
    /// A pointer to this value.
    pub fn from_pointee(value: T) -> Self {
        Self::new(Arc::new(value))
    }
}

impl<T> ArcSwapAny<Option<Arc<T>>> {
    /// A pointer to nothing.
    pub fn empty() -> Self {
        Self::new(None)
    }
}

impl<T: RefCnt + Default> Default for ArcSwapAny<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: RefCnt + std::fmt::Debug> std::fmt::Debug for ArcSwapAny<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.load().fmt(f)
    }
}

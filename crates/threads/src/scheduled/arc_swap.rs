//! `arc_swap` with a point before each operation where another task may go on. The operations
//! themselves are opaque: what they do inside is the other crate's affair.

use std::sync::Arc;

use ::arc_swap::{Guard, RefCnt};

/// A shared pointer that can be replaced while others read it.
pub struct ArcSwapAny<T: RefCnt>(::arc_swap::ArcSwapAny<T>);

/// One to a value.
pub type ArcSwap<T> = ArcSwapAny<Arc<T>>;

/// One to a value or nothing.
pub type ArcSwapOption<T> = ArcSwapAny<Option<Arc<T>>>;

impl<T: RefCnt> ArcSwapAny<T> {
    /// A pointer to this.
    pub fn new(value: T) -> Self {
        Self(::arc_swap::ArcSwapAny::new(value))
    }

    /// What it points to, for a moment.
    pub fn load(&self) -> Guard<T> {
        super::thread::pass();
        self.0.load()
    }

    /// What it points to.
    pub fn load_full(&self) -> T {
        super::thread::pass();
        self.0.load_full()
    }

    /// Replaces it.
    pub fn store(&self, value: T) {
        super::thread::pass();
        self.0.store(value);
    }

    /// Replaces it, and returns what it was.
    pub fn swap(&self, value: T) -> T {
        super::thread::pass();
        self.0.swap(value)
    }

    /// Replaces it by what `change` makes of it, which may be called repeatedly.
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
    /// One to nothing.
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

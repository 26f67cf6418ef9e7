//! A cell that is written once. The one of `std` would block the thread of all tasks.

use shuttle_parking_lot::Mutex;

/// A cell that is written once.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    writing: Mutex<()>,
}

impl<T> OnceLock<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), writing: shuttle_parking_lot::const_mutex(()) }
    }

    /// Returns the value, if there is one.
    pub fn get(&self) -> Option<&T> {
        super::thread::pass();
        self.value.get()
    }

    /// Sets the value, or returns it as an error if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _writing = self.writing.lock();
        self.value.set(value)
    }

    /// Returns the value, after `make` has made it if the cell was empty.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _writing = self.writing.lock();
        if let Some(value) = self.value.get() {
            return value;
        }
        let made = make();
        self.value.get_or_init(|| made)
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        let copy = Self::new();
        if let Some(value) = self.value.get() {
            let _ = copy.value.set(value.clone());
        }
        copy
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let cell = Self::new();
        let _ = cell.value.set(value);
        cell
    }
}

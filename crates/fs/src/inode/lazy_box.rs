//! Rare fields: values that most inodes do not need most of the time.

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

/// The value of a [`LazyBox`] before its first change.
pub(crate) trait Empty: Default + Sync + 'static {
    /// Returns the instance that all unchanged boxes share.
    fn empty() -> &'static LazyLock<Self>;
}

/// A value that takes no memory of its own until it is changed.
pub(crate) struct LazyBox<T>(Option<Box<T>>);

impl<T: Empty> LazyBox<T> {
    /// Returns the value itself.
    pub(crate) fn into_inner(self) -> T {
        self.0.map_or_else(T::default, |value| *value)
    }
}

impl<T> Default for LazyBox<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<T> for LazyBox<T> {
    fn from(value: T) -> Self {
        Self(Some(Box::new(value)))
    }
}

impl<T: Empty> Deref for LazyBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::empty())
    }
}

impl<T: Empty> DerefMut for LazyBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

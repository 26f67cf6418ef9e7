//! Locks with ranks: what this crate has in place of those of `parking_lot`.
//!
//! A lock costs no more than the real one where debug assertions are off.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::held::{Class, Held};
use crate::rank::Rank;
use crate::unranked;

/// A mutual exclusion of threads.
pub struct Mutex<T: ?Sized> {
    class: Class,
    lock: unranked::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A mutex of a rank, which nobody has.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::in_order(rank, [0; 2], value)
    }

    /// The same, which may be taken beside others of its rank that come before it in this order.
    pub const fn in_order(rank: Rank, order: [u64; 2], value: T) -> Self {
        Self { class: Class::new(rank, order), lock: unranked::Mutex::new(value) }
    }

    /// The same around what its type has as default.
    pub fn with_default(rank: Rank) -> Self
    where
        T: Default,
    {
        Self::new(rank, T::default())
    }

    /// What it protects.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes it.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it or a lock that comes after it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.class.assert_order();
        let guard = self.lock.lock();
        MutexGuard { guard, held: self.class.hold() }
    }

    /// Takes it unless somebody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(MutexGuard { guard, held: self.class.hold() })
    }

    /// Asserts in debug builds that this thread may wait for it.
    pub fn assert_order(&self) {
        self.class.assert_order();
    }

    /// What it protects, by the only reference to it.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

/// A taken [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    /// The real one, for condition variables.
    pub(crate) guard: unranked::MutexGuard<'a, T>,
    held: Held,
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Does something without the lock, and takes it again.
    pub fn unlocked<R>(this: &mut Self, something: impl FnOnce() -> R) -> R {
        let Self { guard, held } = this;
        held.without(|| unranked::MutexGuard::unlocked(guard, something))
    }
}

/// A lock that many may have for reading, or one for a change.
pub struct RwLock<T: ?Sized> {
    class: Class,
    lock: unranked::RwLock<T>,
}

impl<T> RwLock<T> {
    /// A lock of a rank, which nobody has.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::in_order(rank, [0; 2], value)
    }

    /// The same, which may be taken beside others of its rank that come before it in this order.
    pub const fn in_order(rank: Rank, order: [u64; 2], value: T) -> Self {
        Self { class: Class::new(rank, order), lock: unranked::RwLock::new(value) }
    }

    /// The same around what its type has as default.
    pub fn with_default(rank: Rank) -> Self
    where
        T: Default,
    {
        Self::new(rank, T::default())
    }

    /// What it protects.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes it for reading, beside other readers. Who has it must not take it again: between the
    /// two a writer may begin to wait.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it or a lock that comes after it.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.class.assert_order();
        let guard = self.lock.read();
        RwLockReadGuard { guard, _held: self.class.hold() }
    }

    /// Takes it alone.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it or a lock that comes after it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.class.assert_order();
        let guard = self.lock.write();
        RwLockWriteGuard { guard, _held: self.class.hold() }
    }

    /// Takes it for reading unless that meant to wait.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let guard = self.lock.try_read()?;
        Some(RwLockReadGuard { guard, _held: self.class.hold() })
    }

    /// Takes it alone unless somebody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        Some(RwLockWriteGuard { guard, _held: self.class.hold() })
    }

    /// Asserts in debug builds that this thread may wait for it.
    pub fn assert_order(&self) {
        self.class.assert_order();
    }

    /// What it protects, by the only reference to it.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

/// An [`RwLock`] that is taken for reading.
pub struct RwLockReadGuard<'a, T: ?Sized> {
    guard: unranked::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// An [`RwLock`] that is taken for a change.
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    guard: unranked::RwLockWriteGuard<'a, T>,
    _held: Held,
}

macro_rules! guards {
    ($($guard:ident),*) => {$(
        impl<T: ?Sized> Deref for $guard<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.guard
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $guard<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    )*};
}

guards!(MutexGuard, RwLockReadGuard, RwLockWriteGuard);

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

//! Locks with ranks, which wrap those of `parking_lot`.
//!
//! Without debug assertions a lock costs no more than the wrapped one.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::held::{Class, Held};
use crate::rank::Rank;
use crate::unranked;

/// A mutex with a rank.
pub struct Mutex<T: ?Sized> {
    class: Class,
    lock: unranked::Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::in_order(rank, [0; 2], value)
    }

    /// As [`Self::new`], but it may be taken while locks of its rank are held that come before it
    /// in this order.
    pub const fn in_order(rank: Rank, order: [u64; 2], value: T) -> Self {
        Self { class: Class::new(rank, order), lock: unranked::Mutex::new(value) }
    }

    /// As [`Self::new`], around the default value of the type.
    pub fn with_default(rank: Rank) -> Self
    where
        T: Default,
    {
        Self::new(rank, T::default())
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it or a lock that comes after it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.class.assert_order();
        let guard = self.lock.lock();
        MutexGuard { guard, held: self.class.hold() }
    }

    /// Locks the mutex, or returns `None` if it is locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(MutexGuard { guard, held: self.class.hold() })
    }

    /// Asserts in debug builds that this thread may wait for it.
    pub fn assert_order(&self) {
        self.class.assert_order();
    }

    /// Returns the value by the only reference to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

/// The guard of a locked [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    /// The wrapped guard, for condition variables.
    pub(crate) guard: unranked::MutexGuard<'a, T>,
    held: Held,
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Releases the lock, calls `something`, and takes the lock again.
    pub fn unlocked<R>(this: &mut Self, something: impl FnOnce() -> R) -> R {
        let Self { guard, held } = this;
        held.without(|| unranked::MutexGuard::unlocked(guard, something))
    }
}

/// A read-write lock with a rank: many threads may hold it for reading, or one for writing.
pub struct RwLock<T: ?Sized> {
    class: Class,
    lock: unranked::RwLock<T>,
}

impl<T> RwLock<T> {
    /// An unlocked lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::in_order(rank, [0; 2], value)
    }

    /// As [`Self::new`], but it may be taken while locks of its rank are held that come before it
    /// in this order.
    pub const fn in_order(rank: Rank, order: [u64; 2], value: T) -> Self {
        Self { class: Class::new(rank, order), lock: unranked::RwLock::new(value) }
    }

    /// As [`Self::new`], around the default value of the type.
    pub fn with_default(rank: Rank) -> Self
    where
        T: Default,
    {
        Self::new(rank, T::default())
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes the lock for reading, shared with other readers. A thread that holds it must not take
    /// it again, since a writer may begin to wait in between.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it or a lock that comes after it.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.class.assert_order();
        let guard = self.lock.read();
        RwLockReadGuard { guard, _held: self.class.hold() }
    }

    /// Takes the lock exclusively.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds it or a lock that comes after it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.class.assert_order();
        let guard = self.lock.write();
        RwLockWriteGuard { guard, _held: self.class.hold() }
    }

    /// Takes the lock for reading, or returns `None` if that would have to wait.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let guard = self.lock.try_read()?;
        Some(RwLockReadGuard { guard, _held: self.class.hold() })
    }

    /// Takes the lock exclusively, or returns `None` if another thread holds it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        Some(RwLockWriteGuard { guard, _held: self.class.hold() })
    }

    /// Asserts in debug builds that this thread may wait for it.
    pub fn assert_order(&self) {
        self.class.assert_order();
    }

    /// Returns the value by the only reference to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

/// The guard of an [`RwLock`] that is held for reading.
pub struct RwLockReadGuard<'a, T: ?Sized> {
    guard: unranked::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// The guard of an [`RwLock`] that is held exclusively.
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

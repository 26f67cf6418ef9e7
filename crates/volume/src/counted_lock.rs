//! Locks that count how often they were taken, and how often a thread had to wait for them. The
//! counters show whether a lock that all requests share limits how many processors they can use.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ubtrfs_threads::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How often a lock was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounters {
    /// All acquisitions.
    pub acquisitions: u64,
    /// Acquisitions that found the lock taken and waited.
    pub contended: u64,
}

impl std::ops::AddAssign for LockCounters {
    fn add_assign(&mut self, other: Self) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
    }
}

impl std::iter::Sum for LockCounters {
    fn sum<I: Iterator<Item = Self>>(counters: I) -> Self {
        counters.fold(Self::default(), |mut sum, more| {
            sum += more;
            sum
        })
    }
}

/// The counters of one lock. They lie beside the lock, so that counting touches no memory that
/// locking does not touch anyway.
#[derive(Debug, Default)]
struct Counts {
    acquisitions: AtomicU64,
    contended: AtomicU64,
}

impl Counts {
    const fn new() -> Self {
        Self { acquisitions: AtomicU64::new(0), contended: AtomicU64::new(0) }
    }

    /// Tries to take the lock; if another thread has it, counts that and waits.
    fn take<G>(&self, attempt: impl FnOnce() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        attempt().unwrap_or_else(|| {
            self.contended.fetch_add(1, Relaxed);
            wait()
        })
    }

    /// Counts an acquisition of the only holder. No other thread counts meanwhile, so the addition
    /// need not be atomic.
    fn count_alone(&self) {
        self.acquisitions.store(self.acquisitions.load(Relaxed) + 1, Relaxed);
    }

    fn get(&self) -> LockCounters {
        LockCounters { acquisitions: self.acquisitions.load(Relaxed), contended: self.contended.load(Relaxed) }
    }
}

/// A [`Mutex`] that counts.
#[derive(Debug)]
pub struct CountedMutex<T> {
    counts: Counts,
    lock: Mutex<T>,
}

impl<T> CountedMutex<T> {
    /// An unlocked mutex of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::in_order(rank, [0; 2], value)
    }

    /// As [`Self::new`], but the mutex may be taken while others of its rank are held that come
    /// before it in this order.
    pub const fn in_order(rank: Rank, order: [u64; 2], value: T) -> Self {
        Self { counts: Counts::new(), lock: Mutex::in_order(rank, order, value) }
    }

    /// As [`Self::new`], around the default value of the type.
    pub fn with_default(rank: Rank) -> Self
    where
        T: Default,
    {
        Self::new(rank, T::default())
    }

    /// Locks the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock.assert_order();
        let guard = self.counts.take(|| self.lock.try_lock(), || self.lock.lock());
        self.counts.count_alone();
        guard
    }

    /// Locks the mutex, or returns `None` if it is locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        self.counts.count_alone();
        Some(guard)
    }

    /// Returns how often the mutex was locked.
    pub fn counters(&self) -> LockCounters {
        self.counts.get()
    }
}

/// An [`RwLock`] that counts the acquisitions of readers and writers together.
#[derive(Debug)]
pub struct CountedRwLock<T> {
    counts: Counts,
    lock: RwLock<T>,
}

impl<T> CountedRwLock<T> {
    /// An unlocked lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { counts: Counts::new(), lock: RwLock::new(rank, value) }
    }

    /// As [`Self::new`], around the default value of the type.
    pub fn with_default(rank: Rank) -> Self
    where
        T: Default,
    {
        Self::new(rank, T::default())
    }

    /// Takes the lock for reading, shared with other readers.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.lock.assert_order();
        let guard = self.counts.take(|| self.lock.try_read(), || self.lock.read());
        self.counts.acquisitions.fetch_add(1, Relaxed);
        guard
    }

    /// Takes the lock exclusively.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.lock.assert_order();
        let guard = self.counts.take(|| self.lock.try_write(), || self.lock.write());
        self.counts.count_alone();
        guard
    }

    /// Returns how often the lock was taken either way.
    pub fn counters(&self) -> LockCounters {
        self.counts.get()
    }

    /// Returns the lock itself, whose acquisitions are not counted.
    pub fn uncounted(&self) -> &RwLock<T> {
        &self.lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_acquisition_counts_and_so_does_waiting() {
        let mutex = CountedMutex::new(Rank::Space, 0);
        *mutex.lock() += 1;
        let held = mutex.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| *mutex.lock() += 1);
            while mutex.counters().contended == 0 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(mutex.counters(), LockCounters { acquisitions: 3, contended: 1 });

        let lock = CountedRwLock::new(Rank::Gate, 0);
        let reader = lock.read();
        std::thread::scope(|scope| {
            scope.spawn(|| *lock.write() += 1);
            while lock.counters().contended == 0 {
                std::thread::yield_now();
            }
            drop(reader);
        });
        assert_eq!(*lock.read(), 1);
        assert_eq!(lock.counters(), LockCounters { acquisitions: 3, contended: 1 });
    }
}

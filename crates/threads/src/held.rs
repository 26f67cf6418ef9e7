//! The locks that a thread holds, recorded in debug builds and under the scheduler. A thread that
//! would wait for a lock out of the order of ranks panics (invariant 7), whether or not the lock is
//! taken just then.

use crate::rank::Rank;

/// What is known of a lock, where the order is checked: its rank, and its place in the order in
/// which several locks of that rank may be held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    #[cfg(any(debug_assertions, feature = "shuttle"))]
    place: (Rank, [u64; 2]),
}

/// The record that this thread holds a lock. It lives as long as the lock's guard.
#[derive(Debug)]
pub(crate) struct Held {
    #[cfg(any(debug_assertions, feature = "shuttle"))]
    place: (Rank, [u64; 2]),
}

/// Returns whether this thread holds a lock of this rank, for assertions. Where ranks are not
/// checked, this is not known, and the result is `false`.
pub fn is_held(rank: Rank) -> bool {
    #[cfg(any(debug_assertions, feature = "shuttle"))]
    return checked::is_held(rank);
    #[cfg(not(any(debug_assertions, feature = "shuttle")))]
    {
        let _ = rank;
        false
    }
}

/// Asserts, where ranks are checked, that this thread holds no lock: before it waits for threads of
/// a pool, and between two jobs.
///
/// # Panics
///
/// If it holds one.
pub fn assert_none_held(before: &str) {
    #[cfg(any(debug_assertions, feature = "shuttle"))]
    checked::assert_none_held(before);
    #[cfg(not(any(debug_assertions, feature = "shuttle")))]
    let _ = before;
}

#[cfg(not(any(debug_assertions, feature = "shuttle")))]
impl Class {
    pub(crate) const fn new(_: Rank, _: [u64; 2]) -> Self {
        Self {}
    }

    #[inline]
    pub(crate) fn assert_order(self) {}

    #[inline]
    pub(crate) fn hold(self) -> Held {
        Held {}
    }
}

#[cfg(not(any(debug_assertions, feature = "shuttle")))]
impl Held {
    #[inline]
    pub(crate) fn without<R>(&mut self, something: impl FnOnce() -> R) -> R {
        something()
    }
}

#[cfg(any(debug_assertions, feature = "shuttle"))]
mod checked {
    use std::cell::RefCell;

    use super::{Class, Held};
    use crate::rank::Rank;

    crate::thread_local! {
        /// Places of the locks that this thread holds, in the order in which it took them.
        static HELD: RefCell<Vec<(Rank, [u64; 2])>> = const { RefCell::new(Vec::new()) };
    }

    /// Calls a function with the places of this thread. Does nothing while the thread's local
    /// storage is dropped.
    fn with_held<R>(something: impl FnOnce(&mut Vec<(Rank, [u64; 2])>) -> R) -> Option<R> {
        HELD.try_with(|held| something(&mut held.borrow_mut())).ok()
    }

    pub(super) fn is_held(rank: Rank) -> bool {
        with_held(|held| held.iter().any(|place| place.0 == rank)).unwrap_or(false)
    }

    pub(super) fn assert_none_held(before: &str) {
        let held: Vec<Rank> = with_held(|held| held.iter().map(|place| place.0).collect()).unwrap_or_default();
        assert!(held.is_empty() || is_unwinding(), "invariant 7: {before}, a thread holds {held:?}");
    }

    /// Returns whether the thread is panicking. It should report only its first reason.
    fn is_unwinding() -> bool {
        std::thread::panicking()
    }

    impl Class {
        pub(crate) const fn new(rank: Rank, order: [u64; 2]) -> Self {
            Self { place: (rank, order) }
        }

        pub(crate) fn assert_order(self) {
            let Self { place } = self;
            // The same lock may not be taken again either, since a writer may wait between two
            // readers.
            let after = with_held(|held| held.iter().copied().find(|held| *held >= place)).flatten();
            if let Some((after, number)) = after {
                let ((rank, order), is_same) = (place, after == place.0);
                let numbers = if is_same { format!(" ({number:?} and {order:?})") } else { String::new() };
                assert!(is_unwinding(), "invariant 7: a thread that holds {after:?} waits for {rank:?}{numbers}");
            }
        }

        pub(crate) fn hold(self) -> Held {
            with_held(|held| held.push(self.place));
            Held { place: self.place }
        }
    }

    impl Held {
        fn let_go(&self) {
            with_held(|held| {
                if let Some(at) = held.iter().rposition(|place| *place == self.place) {
                    held.remove(at);
                }
            });
        }

        pub(crate) fn without<R>(&mut self, something: impl FnOnce() -> R) -> R {
            self.let_go();
            let result = something();
            with_held(|held| held.push(self.place));
            result
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            self.let_go();
        }
    }
}

#[cfg(all(test, debug_assertions, not(feature = "shuttle")))]
mod tests {
    use crate::{Mutex, MutexGuard, Rank, RwLock, assert_none_held, is_held};

    /// Of invariant 7: a thread that keeps to the order does not panic, in whatever order it
    /// releases locks.
    #[test]
    fn locks_are_taken_in_order_again_and_again() {
        let (gate, space) = (RwLock::new(Rank::Gate, ()), Mutex::new(Rank::Space, ()));
        for _ in 0..2 {
            let outer = gate.read();
            let inner = space.lock();
            assert!(is_held(Rank::Gate) && is_held(Rank::Space));
            drop(outer);
            drop(inner);
            assert_none_held("a test's end");
        }
    }

    #[test]
    fn who_does_not_wait_may_take_any() {
        let (gate, space) = (RwLock::new(Rank::Gate, ()), Mutex::new(Rank::Space, ()));
        let _space = space.lock();
        assert!(gate.try_read().is_some());
        assert!(gate.try_write().is_some());
    }

    fn inodes() -> [RwLock<()>; 2] {
        [7, 8].map(|order| RwLock::in_order(Rank::Inode, [5, order], ()))
    }

    #[test]
    fn inodes_are_locked_beside_inodes_that_come_before() {
        let inodes = inodes();
        let _both = inodes.each_ref().map(RwLock::write);
    }

    #[test]
    #[should_panic(expected = "invariant 7: a thread that holds Inode waits for Inode ([5, 8] and [5, 7])")]
    fn no_inode_is_locked_beside_a_later_one() {
        let [first, second] = inodes();
        let _second = second.read();
        let _first = first.write();
    }

    /// A writer that comes between the two reads would wait for the first one, and the second one
    /// for the writer.
    #[test]
    #[should_panic(expected = "invariant 7: a thread that holds Inode waits for Inode ([5, 7] and [5, 7])")]
    fn no_inode_is_locked_twice_for_reading() {
        let [first, _] = inodes();
        let _sizes = (*first.read(), *first.read());
    }

    #[test]
    fn a_lock_is_not_held_while_it_is_given_up() {
        let (gate, space) = (RwLock::new(Rank::Gate, ()), Mutex::new(Rank::Space, ()));
        let mut guard = space.lock();
        MutexGuard::unlocked(&mut guard, || drop(gate.write()));
        assert!(is_held(Rank::Space));
    }

    #[test]
    #[should_panic(expected = "invariant 7: a thread that holds Space waits for Gate")]
    fn the_gate_is_not_entered_under_the_lock_of_space() {
        let (gate, space) = (RwLock::new(Rank::Gate, ()), Mutex::new(Rank::Space, ()));
        let _space = space.lock();
        let _gate = gate.read();
    }

    #[test]
    #[should_panic(expected = "invariant 7: a thread that holds Gate waits for Gate")]
    fn the_gate_is_not_entered_twice() {
        let gate = RwLock::new(Rank::Gate, ());
        let _first = gate.read();
        let _second = gate.read();
    }

    #[test]
    #[should_panic(expected = "invariant 7: after a job, a thread holds [Space]")]
    fn no_lock_outlives_a_job() {
        let space = Mutex::new(Rank::Space, ());
        let _space = space.lock();
        assert_none_held("after a job");
    }
}

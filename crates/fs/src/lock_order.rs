//! The order of locks that threads keep (invariant 7), checked in debug builds.
//!
//! A thread enters the gate once at a time, and never while it holds the lock of space: a second
//! passage, or one from below, waits for a commit that waits for the first.

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// A lock whose position in the order is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordered {
    /// The gate, shared or exclusively.
    Gate,
    /// The state of space.
    Space,
}

#[cfg(debug_assertions)]
ubtrfs_threads::thread_local! {
    /// Whether this thread holds the gate and the lock of space.
    static HELD: [Cell<bool>; 2] = const { [Cell::new(false), Cell::new(false)] };
}

/// Whether this thread holds a lock, for assertions: where these are off nobody knows.
pub(crate) fn is_held(lock: Ordered) -> bool {
    #[cfg(debug_assertions)]
    return HELD.with(|[gate, space]| match lock {
        Ordered::Gate => gate.get(),
        Ordered::Space => space.get(),
    });
    #[cfg(not(debug_assertions))]
    {
        let _ = lock;
        false
    }
}

/// A guard with the note that its thread holds the lock.
pub(crate) struct Noted<G> {
    guard: G,
    _note: Note,
}

impl<G> Noted<G> {
    /// Takes a lock by `take`.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds a lock that comes after it, or the lock itself.
    pub(crate) fn take(lock: Ordered, take: impl FnOnce() -> G) -> Self {
        let note = Note::new(lock);
        Self { guard: take(), _note: note }
    }
}

impl<G: Deref> Deref for Noted<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Noted<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// The note itself. It stays in the thread that made it, as the guards of locks do.
struct Note {
    #[cfg(debug_assertions)]
    lock: Ordered,
}

impl Note {
    #[cfg(debug_assertions)]
    fn new(lock: Ordered) -> Self {
        HELD.with(|held| {
            let [gate, space] = held;
            match lock {
                Ordered::Gate => {
                    assert!(!space.get(), "invariant 7: the gate is entered before space is locked");
                    assert!(!gate.replace(true), "invariant 7: a thread passes the gate once at a time");
                }
                Ordered::Space => assert!(!space.replace(true), "invariant 7: space is locked once"),
            }
        });
        Self { lock }
    }

    #[cfg(not(debug_assertions))]
    fn new(_: Ordered) -> Self {
        Self {}
    }
}

#[cfg(debug_assertions)]
impl Drop for Note {
    fn drop(&mut self) {
        HELD.with(|[gate, space]| match self.lock {
            Ordered::Gate => gate.set(false),
            Ordered::Space => space.set(false),
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn hold(lock: Ordered) -> Noted<Box<u8>> {
        Noted::take(lock, || Box::new(0))
    }

    /// Of invariant 7: who keeps to the order is let alone.
    #[test]
    fn locks_are_taken_in_order_again_and_again() {
        for _ in 0..2 {
            let gate = hold(Ordered::Gate);
            let space = hold(Ordered::Space);
            drop((gate, space));
        }
    }

    #[test]
    #[should_panic(expected = "invariant 7: the gate is entered before space is locked")]
    fn the_gate_is_not_entered_under_the_lock_of_space() {
        let _space = hold(Ordered::Space);
        let _gate = hold(Ordered::Gate);
    }

    #[test]
    #[should_panic(expected = "invariant 7: a thread passes the gate once at a time")]
    fn the_gate_is_not_entered_twice() {
        let _first = hold(Ordered::Gate);
        let _second = hold(Ordered::Gate);
    }
}

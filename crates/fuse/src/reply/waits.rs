//! Requests whose answers wait for other requests.
//!
//! The kernel writes dirty pages before it invalidates them, so an answer that waits for an
//! invalidation waits for WRITEs. Over rings each request takes an entry of its queue until it is
//! answered: if requests that wait take all entries of a queue, the WRITEs that they wait for can't
//! arrive. So only some requests of a queue may wait (invariant 28). If a queue has got further
//! entries for requests that take long, ioctls may wait in all of these. Since the number of such
//! ioctls of one user is limited, those of other users can wait beside them (invariant 49).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The kinds of requests that may have to wait for others. Each kind has its own room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiter {
    Lseek,
    Directory,
    Ioctl,
}

/// The number of kinds of requests that may wait.
const WAITERS: usize = 3;
/// For each kind, one of so many entries of a queue may wait. Since this is one more than there are
/// kinds, a part of the entries is always left.
const ENTRIES_FOR_ONE: usize = WAITERS + 1;

/// How many requests of a queue wait for others.
#[derive(Debug)]
pub(crate) struct Waits {
    most: usize,
    /// How many more ioctls may wait, in the further entries.
    further: AtomicUsize,
    counts: [AtomicUsize; WAITERS],
}

impl Waits {
    /// The counts of a queue with so many entries.
    pub fn new(entries: usize) -> Self {
        Self { most: entries / ENTRIES_FOR_ONE, further: AtomicUsize::new(0), counts: Default::default() }
    }

    /// Notes that the queue has so many entries more than at first.
    pub fn has_further(&self, entries: usize) {
        self.further.store(entries, Relaxed);
    }

    /// Counts one more waiting request. Returns `None` if so many wait already that this one must
    /// not.
    pub fn begin(self: &Arc<Self>, who: Waiter) -> Option<Waiting> {
        let further = self.further.load(Relaxed);
        let most = if who == Waiter::Ioctl { self.most + further } else { self.most };
        let more = |count| (count < most).then_some(count + 1);
        self.count(who).fetch_update(Relaxed, Relaxed, more).ok()?;
        let waiting = self.counts.iter().map(|count| count.load(Relaxed)).sum::<usize>();
        debug_assert!(
            waiting <= WAITERS * self.most + further,
            "invariant 28: {waiting} requests wait, and none has room to come"
        );
        Some(Waiting { waits: Arc::clone(self), who })
    }

    fn count(&self, who: Waiter) -> &AtomicUsize {
        let [lseek, directory, ioctl] = &self.counts;
        match who {
            Waiter::Lseek => lseek,
            Waiter::Directory => directory,
            Waiter::Ioctl => ioctl,
        }
    }
}

/// A request that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    who: Waiter,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.count(self.who).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Waiter; WAITERS] = [Waiter::Lseek, Waiter::Directory, Waiter::Ioctl];

    /// Of invariants 28 and 49.
    #[test]
    fn ioctls_have_the_entries_that_are_added() {
        let waits = Arc::new(Waits::new(32));
        let begin = |who| std::iter::from_fn(|| waits.begin(who)).collect::<Vec<_>>();
        assert_eq!(begin(Waiter::Ioctl).len(), 8);
        waits.has_further(64);
        let ioctls = begin(Waiter::Ioctl);
        assert_eq!((ioctls.len(), begin(Waiter::Lseek).len()), (8 + 64, 8));
    }

    /// Of invariant 28.
    #[test]
    fn each_kind_has_its_room_and_all_together_leave_some() {
        for entries in [4, 8, 11, 32] {
            let waits = Arc::new(Waits::new(entries));
            let kinds = ALL.map(|who| {
                let waiting: Vec<Waiting> = std::iter::from_fn(|| waits.begin(who)).collect();
                assert!(!waiting.is_empty(), "{who:?} of {entries}");
                waiting
            });
            let all = kinds.iter().map(Vec::len).sum::<usize>();
            assert!(all < entries, "invariant 28: none is left of {entries}");
            drop(kinds);
            assert!(ALL.iter().all(|who| waits.begin(*who).is_some()));
        }
    }
}

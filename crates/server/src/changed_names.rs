//! Invalidates names in the kernel that have been made or removed, so that it looks them up again.
//!
//! For that the kernel takes the lock of the directory. A process that lists the directory holds
//! that lock while names are copied into its memory. That memory may be a mapped file of a server
//! that never answers, and then the lock is held forever. So no request waits for it for long, and
//! only one thread waits for each directory. The thread counts for the user who asked first
//! (invariant 49). A name that could not be invalidated yet stays in the queue, and until then the
//! kernel may show what it has cached. A user who has too many names in queues gets `EBUSY` before
//! anything is changed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ubtrfs_fuse::Errno;
use ubtrfs_threads::time::{Duration, Instant};
use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::users_pool::{User, UsersPool};

/// How many directories threads wait for at a time for one user.
const EACH: usize = 8;
/// How many names of one user may wait.
const MAX_NAMES: usize = 256;
/// How long a request waits for a directory's lock.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The function that invalidates a name.
type Invalidate = Box<dyn FnOnce() + Send>;

struct Waiting {
    user: User,
    invalidate: Invalidate,
    done: Arc<Done>,
}

/// Whether a name is invalidated.
struct Done {
    is_done: Mutex<bool>,
    changed: Condvar,
}

impl Default for Done {
    fn default() -> Self {
        Self { is_done: Mutex::with_default(Rank::NameIsDone), changed: Condvar::new() }
    }
}

impl Done {
    fn set(&self) {
        *self.is_done.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until the name is invalidated, at most for `most`; returns whether it is.
    fn wait(&self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        let mut is_done = self.is_done.lock();
        while !*is_done && !self.changed.wait_until(&mut is_done, deadline).timed_out() {}
        *is_done
    }
}

#[derive(Default)]
struct Directory {
    names: VecDeque<Waiting>,
    /// Since when a thread has been invalidating one of them, if one does.
    busy: Option<Instant>,
}

#[derive(Default)]
struct State {
    directories: HashMap<u64, Directory>,
    /// How many names wait for each user.
    names: HashMap<User, usize>,
}

/// The queues of all directories.
pub(crate) struct ChangedNames {
    state: Arc<Mutex<State>>,
    threads: UsersPool,
}

impl ChangedNames {
    pub(crate) fn new() -> Self {
        Self { state: Arc::new(Mutex::with_default(Rank::ChangedNames)), threads: UsersPool::new(EACH) }
    }

    /// Returns `EBUSY` if so many names of a user wait that he may not change another.
    pub(crate) fn check(&self, user: User) -> Result<(), Errno> {
        let waiting = self.state.lock().names.get(&user).copied().unwrap_or(0);
        if user != User::Root && waiting >= MAX_NAMES { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// Has `invalidate` called for a name of a directory, for a user, after the earlier names of
    /// this directory. If `waits` is set, waits for that, but at most for [`MAX_WAIT`].
    pub(crate) fn add(&self, user: User, dir: u64, waits: bool, invalidate: impl FnOnce() + Send + 'static) {
        let done = Arc::new(Done::default());
        let is_done = Arc::clone(&done);
        let longest = {
            let mut state = self.state.lock();
            *state.names.entry(user).or_default() += 1;
            let directory = state.directories.entry(dir).or_default();
            directory.names.push_back(Waiting { user, invalidate: Box::new(invalidate), done });
            // A directory that is known to hang is not waited for again.
            directory.busy.map_or(MAX_WAIT, |since| MAX_WAIT.saturating_sub(since.elapsed()))
        };
        // If a thread is busy with the directory, this job finds nothing to do.
        let shared = Arc::clone(&self.state);
        self.threads.run(user, move || work(&shared, dir));
        if waits && !is_done.wait(longest) {
            tracing::debug!(dir, "a process keeps a directory locked: the kernel may show an old name");
        }
    }
}

/// Invalidates the waiting names of a directory, unless another thread does so.
fn work(state: &Mutex<State>, dir: u64) {
    loop {
        let next = {
            let mut state = state.lock();
            let Some(directory) = state.directories.get_mut(&dir) else { return };
            if directory.busy.is_some() {
                return;
            }
            let Some(next) = directory.names.pop_front() else {
                state.directories.remove(&dir);
                return;
            };
            directory.busy = Some(Instant::now());
            next
        };
        (next.invalidate)();
        next.done.set();
        let mut state = state.lock();
        if let Some(directory) = state.directories.get_mut(&dir) {
            directory.busy = None;
        }
        if let Some(waiting) = state.names.get_mut(&next.user) {
            *waiting -= 1;
            if *waiting == 0 {
                state.names.remove(&next.user);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use ubtrfs_threads::atomic::{AtomicUsize, Ordering};
    use ubtrfs_threads::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Adds an invalidation in each directory that hangs until the result is dropped.
    fn hang(names: &ChangedNames, user: User, dirs: std::ops::Range<u64>) -> Vec<Sender<()>> {
        let hanging = |dir| {
            let (sender, receiver): (_, Receiver<()>) = channel();
            names.add(user, dir, false, move || {
                let _ = receiver.recv();
            });
            sender
        };
        dirs.map(hanging).collect()
    }

    /// Adds an invalidation that does not hang by itself, and returns how long that took and
    /// whether it is done.
    fn add(names: &ChangedNames, user: User, dir: u64) -> (Duration, bool) {
        let (began, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&done);
        names.add(user, dir, true, move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        (began.elapsed(), done.load(Ordering::SeqCst) == 1)
    }

    /// Invariant 49.
    #[test]
    fn directories_that_are_held_delay_none_of_other_users() {
        let names = ChangedNames::new();
        let held = hang(&names, User::From(1000), 1..40);
        for dir in 100..110 {
            let (took, is_done) = add(&names, User::Root, dir);
            assert!(is_done && took < MAX_WAIT, "{took:?}");
        }
        // In a directory that hangs, the first invalidation waits a moment, and later ones don't
        // wait.
        let (took, is_done) = add(&names, User::Root, 1);
        assert!(!is_done && took <= 2 * MAX_WAIT, "{took:?}");
        ubtrfs_threads::thread::sleep(MAX_WAIT);
        let (took, is_done) = add(&names, User::From(1001), 1);
        assert!(!is_done && took < MAX_WAIT, "{took:?}");
        drop(held);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !names.state.lock().names.is_empty() {
            assert!(Instant::now() < deadline, "what waited is not done when it could be");
            ubtrfs_threads::thread::sleep(Duration::from_millis(5));
        }
        assert!(add(&names, User::From(1000), 1).1);
    }

    #[test]
    fn who_has_too_many_names_waiting_gets_no_more() {
        let names = ChangedNames::new();
        let held = hang(&names, User::From(1000), 1..1 + MAX_NAMES as u64);
        assert_eq!(names.check(User::From(1000)), Err(Errno::BUSY));
        assert_eq!(names.check(User::From(1001)), Ok(()));
        assert_eq!(names.check(User::Root), Ok(()));
        drop(held);
    }
}

//! Threads for work that users ask for, and that they can prolong or hold up (invariant 49).
//!
//! Only a few jobs of each user run at a time, and his other jobs wait for these. So whatever he
//! does, the work of other users goes on. Root has threads that nobody else gets.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ubtrfs_fuse::abi::UNKNOWN_ID;
use ubtrfs_fuse::{Caller, Errno, MAX_LONG};
use ubtrfs_threads::{Mutex, Rank};

use crate::pool::Pool;
use crate::privileges;

/// How many jobs of all users but root run at a time.
const MAX: usize = 64;
/// How many jobs of root run at a time.
const ROOTS: usize = 16;
/// How many unfinished jobs a user may have. Each holds a request, and rings have room for so many.
const QUEUED: usize = MAX_LONG;

/// The user for whom a job counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum User {
    Root,
    /// A user, or a whole range of subordinate ids, given by its first id, since the range belongs
    /// to one user.
    From(u32),
    /// An unknown user, in another pid namespace.
    Unknown,
}

impl User {
    /// The user of a request.
    pub(crate) fn of(caller: &Caller<'_>) -> Self {
        let known = Some(caller.uid).filter(|uid| *uid != UNKNOWN_ID);
        known.or_else(|| privileges::user_of(caller.pid)).map_or(Self::Unknown, Self::of_id)
    }

    /// The user with an id.
    pub(crate) fn of_id(id: u32) -> Self {
        /// The first subordinate id that useradd(8) assigns, and the size of the ranges.
        const SUBORDINATE: (u32, u32) = (100_000, 65_536);
        let (first, size) = SUBORDINATE;
        match id.checked_sub(first) {
            Some(offset) => Self::From(first + offset / size * size),
            None if id == 0 => Self::Root,
            None => Self::From(id),
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A pool that divides its threads among users. When it is dropped, it finishes the queued jobs.
pub(crate) struct UsersPool {
    threads: Pool,
    shares: Arc<Shares>,
}

struct Shares {
    state: Mutex<State>,
    /// How many jobs of one user run at a time.
    each: usize,
}

#[derive(Default)]
struct State {
    users: HashMap<User, Jobs>,
    /// How many jobs of users other than root are running.
    running: usize,
    /// The users with a job that only [`MAX`] keeps from running, in the order of their turns.
    turns: VecDeque<User>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    running: usize,
}

impl UsersPool {
    /// A pool that runs at most `each` jobs of a user at a time.
    pub(crate) fn new(each: usize) -> Self {
        Self {
            threads: Pool::new(MAX + ROOTS),
            shares: Arc::new(Shares { state: Mutex::with_default(Rank::UsersPool), each }),
        }
    }

    /// Runs `job` in one of the threads, after the earlier jobs of this user.
    pub(crate) fn run(&self, user: User, job: impl FnOnce() + Send + 'static) {
        let next = {
            let mut state = self.shares.state.lock();
            state.users.entry(user).or_default().waiting.push_back(Box::new(job));
            state.turns.push_back(user);
            state.next(self.shares.each)
        };
        if let Some((user, job)) = next {
            let shares = Arc::clone(&self.shares);
            self.threads.run(move || shares.work(user, job));
        }
    }

    /// Returns `EAGAIN` if a user has so many unfinished jobs that he may not add another. Root
    /// always may.
    pub(crate) fn check(&self, user: User) -> Result<(), Errno> {
        if user == User::Root || self.jobs_of(user) < QUEUED { Ok(()) } else { Err(Errno::AGAIN) }
    }

    fn jobs_of(&self, user: User) -> usize {
        self.shares.state.lock().users.get(&user).map_or(0, |jobs| jobs.running + jobs.waiting.len())
    }

    /// Returns whether there are jobs that are not done.
    pub(crate) fn is_busy(&self) -> bool {
        !self.shares.state.lock().users.is_empty()
    }
}

impl State {
    /// Takes the next job that may run.
    fn next(&mut self, each: usize) -> Option<(User, Job)> {
        for _ in 0..self.turns.len() {
            let user = self.turns.pop_front()?;
            let Some(jobs) = self.users.get_mut(&user).filter(|jobs| !jobs.waiting.is_empty()) else { continue };
            let is_root = user == User::Root;
            let share = if is_root { ROOTS } else { each };
            if jobs.running >= share {
                // The user gets a turn again when one of his jobs ends.
                continue;
            }
            if !is_root && self.running >= MAX {
                self.turns.push_back(user);
                continue;
            }
            let job = jobs.waiting.pop_front()?;
            jobs.running += 1;
            assert!(jobs.running <= share, "invariant 49: the threads of a user are more than his share");
            self.running += usize::from(!is_root);
            return Some((user, job));
        }
        None
    }

    /// Notes that a job of a user has ended.
    fn end(&mut self, user: User) {
        self.running -= usize::from(user != User::Root);
        let Some(jobs) = self.users.get_mut(&user) else { return };
        jobs.running -= 1;
        if !jobs.waiting.is_empty() {
            self.turns.push_back(user);
        } else if jobs.running == 0 {
            self.users.remove(&user);
        }
    }
}

/// Notes the end of a job when this is dropped, also if the job panics.
struct Running<'a> {
    shares: &'a Shares,
    user: User,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shares.state.lock().end(self.user);
    }
}

impl Shares {
    fn work(&self, user: User, job: Job) {
        let mut next = Some((user, job));
        while let Some((user, job)) = next {
            let running = Running { shares: self, user };
            let run = std::panic::AssertUnwindSafe(job);
            if std::panic::catch_unwind(run).is_err() {
                tracing::error!("a request panicked");
            }
            drop(running);
            next = self.state.lock().next(self.each);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use ubtrfs_threads::mpsc::{Sender, channel};
    use ubtrfs_threads::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const EACH: usize = 3;

    /// Adds jobs of a user that hang until the result is dropped.
    fn hang(pool: &UsersPool, user: User, count: usize) -> Vec<Sender<()>> {
        let hanging = || {
            let (sender, receiver) = channel::<()>();
            pool.run(user, move || {
                let _ = receiver.recv();
            });
            sender
        };
        (0..count).map(|_| hanging()).collect()
    }

    #[test]
    fn jobs_of_a_user_are_counted_while_they_wait_and_run() {
        let pool = UsersPool::new(EACH);
        let hanging = hang(&pool, User::From(7), EACH + 4);
        let root = hang(&pool, User::Root, 1);
        assert_eq!(
            (pool.jobs_of(User::From(7)), pool.jobs_of(User::Root), pool.jobs_of(User::From(8))),
            (EACH + 4, 1, 0)
        );
        drop((hanging, root));
        let deadline = ubtrfs_threads::time::Instant::now() + TIMEOUT;
        while pool.jobs_of(User::From(7)) > 0 {
            assert!(ubtrfs_threads::time::Instant::now() < deadline);
            ubtrfs_threads::thread::yield_now();
        }
    }

    #[test]
    fn a_user_may_not_queue_without_end() {
        let pool = UsersPool::new(EACH);
        let held: Vec<_> = [User::Root, User::From(7)].iter().map(|user| hang(&pool, *user, QUEUED)).collect();
        let checked = [User::Root, User::From(7), User::From(8)].map(|user| pool.check(user));
        assert_eq!(checked, [Ok(()), Err(Errno::AGAIN), Ok(())]);
        drop(held);
        while pool.check(User::From(7)).is_err() {
            ubtrfs_threads::thread::yield_now();
        }
    }

    fn runs(pool: &UsersPool, user: User) -> bool {
        let (sender, receiver) = channel();
        pool.run(user, move || {
            let _ = sender.send(());
        });
        receiver.recv_timeout(Duration::from_millis(300)).is_ok()
    }

    /// Invariant 49.
    #[test]
    fn users_whose_jobs_hang_keep_nobody_else_from_theirs() {
        let pool = UsersPool::new(EACH);
        let held = hang(&pool, User::From(1000), 200);
        assert!(!runs(&pool, User::From(1000)));
        for other in [User::Root, User::From(1001), User::Unknown] {
            assert!((0..50).all(|_| runs(&pool, other)), "{other:?} waits");
        }
        assert!(pool.is_busy());
        drop(held);
        assert!(runs(&pool, User::From(1000)));
    }

    #[test]
    fn root_has_threads_that_nobody_else_gets() {
        let pool = UsersPool::new(EACH);
        let held: Vec<_> = (1..=1 + MAX as u32).flat_map(|id| hang(&pool, User::From(id), EACH)).collect();
        assert!(!runs(&pool, User::From(5000)));
        assert!(runs(&pool, User::Root));
        drop(held);
        assert!(runs(&pool, User::From(5000)));
    }

    #[test]
    fn all_jobs_run_and_a_panic_costs_no_share() {
        let pool = UsersPool::new(EACH);
        for _ in 0..2 * EACH {
            pool.run(User::From(1000), || panic!("on purpose"));
        }
        let (sender, receiver) = channel();
        for number in 0..1000 {
            let sender = sender.clone();
            pool.run(User::of_id(1000 + number % 70), move || {
                let _ = sender.send(number);
            });
        }
        let mut seen: Vec<u32> = (0..1000).map(|_| receiver.recv_timeout(TIMEOUT).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn subordinate_ids_are_one_users() {
        assert_eq!(User::of_id(0), User::Root);
        assert_eq!(User::of_id(1000), User::From(1000));
        assert_eq!(User::of_id(100_000), User::of_id(165_535));
        assert_ne!(User::of_id(165_535), User::of_id(165_536));
    }
}

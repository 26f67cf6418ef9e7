//! Distributes the WRITEs of `/dev/fuse` among threads.
//!
//! A WRITE waits while too much data is dirty, which takes as long as a commit, and writeback of
//! one writer's data may send any number of WRITEs. So only half of the threads that read requests
//! serve WRITEs, and the others serve all other requests (invariant 49): a thread that reads one
//! more WRITE leaves it to those that serve WRITEs, and reads on. There is room for all WRITEs that
//! the kernel sends in the background, and for some that programs wait for themselves, as with
//! `O_DIRECT`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::device::Device;
use crate::negotiate::MAX_IN_BACKGROUND;

/// How many WRITEs may wait for a thread.
const ROOM: usize = 2 * MAX_IN_BACKGROUND as usize;

/// A WRITE that waits for a thread.
#[derive(Debug)]
pub struct Waiting {
    number: u64,
    /// The message as it was read.
    pub message: Vec<u8>,
    /// The queue on which it was read, and has to be answered.
    pub device: Arc<Device>,
}

/// The WRITEs that are being served, and those that wait.
#[derive(Debug)]
pub struct Writes {
    state: Mutex<State>,
    served: Condvar,
}

#[derive(Debug)]
struct State {
    /// Threads that serve WRITEs, and how many may.
    serving: usize,
    most: usize,
    waiting: VecDeque<Waiting>,
    /// How many WRITEs have waited so far.
    numbers: u64,
    /// The numbers of those that are not served yet.
    unserved: BTreeSet<u64>,
}

impl Writes {
    /// Returns the state for this many threads that read requests.
    pub fn new(threads: usize) -> Self {
        let state =
            State { serving: 0, most: threads / 2, waiting: VecDeque::new(), numbers: 0, unserved: BTreeSet::new() };
        Self { state: Mutex::new(Rank::SessionWrites, state), served: Condvar::new() }
    }

    /// Returns whether the thread that has read this WRITE is to serve it; [`next`](Self::next)
    /// then says which WRITEs it serves after that. If not, another thread serves it.
    pub fn is_own(&self, message: &[u8], device: &Arc<Device>) -> bool {
        let mut state = self.state.lock();
        // WRITEs may only wait if a thread that serves one will go on with them.
        if state.serving < state.most.max(1) || state.waiting.len() >= ROOM {
            state.serving += 1;
            return true;
        }
        let number = state.numbers;
        state.numbers += 1;
        state.unserved.insert(number);
        state.waiting.push_back(Waiting { number, message: message.to_vec(), device: Arc::clone(device) });
        false
    }

    /// Takes the WRITE that a thread serves next after it has served one: its own, or `served`.
    /// `None` if the thread is to read on.
    pub fn next(&self, served: Option<&Waiting>) -> Option<Waiting> {
        let mut state = self.state.lock();
        if let Some(Waiting { number, .. }) = served {
            state.unserved.remove(number);
            self.served.notify_all();
        }
        // More threads than that serve WRITEs while there is no room for WRITEs that wait.
        let next = if state.serving > state.most.max(1) { None } else { state.waiting.pop_front() };
        if next.is_none() {
            state.serving -= 1;
        }
        next
    }

    /// How many WRITEs wait, or have waited and are not served yet.
    pub fn unserved(&self) -> u64 {
        self.state.lock().unserved.len() as u64
    }

    /// Makes all other calls wait.
    #[cfg(test)]
    pub fn lock(&self) -> impl Sized + '_ {
        self.state.lock()
    }

    /// Waits until all WRITEs that wait for a thread now are served.
    pub fn settle(&self) {
        let mut state = self.state.lock();
        let numbers = state.numbers;
        while state.unserved.first().is_some_and(|first| *first < numbers) {
            self.served.wait(&mut state);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Of invariant 49.
    #[test]
    fn half_of_the_threads_serve_writes_in_the_order_of_their_arrival() {
        let (writes, device) = (Writes::new(4), Device::unconnected());
        let is_own: Vec<_> = (0..6_u8).map(|number| writes.is_own(&[number], &device)).collect();
        assert_eq!(is_own, [true, true, false, false, false, false], "invariant 49");
        let mut next = writes.next(None);
        let mut order = Vec::new();
        while let Some(waiting) = next {
            order.push(waiting.message[0]);
            next = writes.next(Some(&waiting));
        }
        assert_eq!((order, writes.unserved()), (vec![2, 3, 4, 5], 0));
        assert!(writes.is_own(&[6], &device));
        assert!(!writes.is_own(&[7], &device), "the other thread still serves its own");
    }

    /// WRITEs that waited would wait forever.
    #[test]
    fn a_thread_that_is_alone_serves_all() {
        for threads in [0, 1] {
            let (writes, device) = (Writes::new(threads), Device::unconnected());
            assert!((0..3).all(|_| writes.is_own(&[], &device) && writes.next(None).is_none()));
        }
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let (writes, device) = (Writes::new(4), Device::unconnected());
        let own = (0..2 + ROOM + 3).filter(|_| writes.is_own(&[], &device)).count();
        assert_eq!((own, writes.unserved()), (2 + 3, ROOM as u64));
        // The surplus threads go back to reading.
        assert!((0..3).all(|_| writes.next(None).is_none()));
        assert!(writes.next(None).is_some());
    }

    #[test]
    fn what_waits_is_waited_for_and_what_comes_later_is_not() {
        let (writes, device) = (Arc::new(Writes::new(2)), Device::unconnected());
        let (settles, has_settled) = channel();
        assert!(writes.is_own(&[0], &device) && !writes.is_own(&[1], &device));
        let settling = Arc::clone(&writes);
        let waiter = thread::spawn(move || {
            settling.settle();
            settles.send(()).unwrap();
        });
        let next = writes.next(None).unwrap();
        assert!(has_settled.recv_timeout(Duration::from_millis(50)).is_err());
        assert!(!writes.is_own(&[2], &device));
        let next = writes.next(Some(&next)).unwrap();
        has_settled.recv_timeout(Duration::from_secs(20)).unwrap();
        waiter.join().unwrap();
        assert_eq!((next.message[0], writes.unserved()), (2, 1));
    }
}

//! Which threads serve a WRITE of `/dev/fuse`, so that one can wait for all that the kernel has
//! queued.
//!
//! Before Linux 6.16 the kernel takes a dirty page for written as soon as it has queued its WRITE:
//! who syncs waits for no answer. So a commit that a sync wants must wait for these WRITEs here.
//! The kernel gives requests out in the order in which it queued them. Once a marker that it was
//! asked to queue has arrived, all that was queued before has been taken by a thread. What such a
//! thread has taken shows when it begins to serve it; until then it is neither asleep in read(2)
//! nor has it gone on. A thread that serves anything else is not waited for: what it waits for may
//! be this very sync, as in the last request of a mount.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::device::Device;
use crate::writes::{Waiting, Writes};

/// The pause between two looks at a thread.
const PAUSE: Duration = Duration::from_micros(200);
/// How long a marker is waited for before the end of the session is looked for.
const TIMEOUT: Duration = Duration::from_millis(100);
/// More rounds than the kernel's queue for the background can need: each takes what it may have
/// under way at a time.
const MAX_ROUNDS: u32 = 1 << 14;

/// The threads of a session, and the markers that have arrived.
#[derive(Debug)]
pub struct Arrivals {
    threads: Mutex<Vec<Arc<Reader>>>,
    /// Requests that threads have begun to serve.
    begun: AtomicU64,
    sent: AtomicU64,
    /// A regular file that the kernel knew some time ago; zero if none is remembered.
    file: AtomicU64,
    arrived: Mutex<u64>,
    changed: Condvar,
    ended: AtomicBool,
    writes: Writes,
}

/// A thread that reads requests and serves them.
#[derive(Debug)]
pub struct Reader {
    thread: AtomicI32,
    /// Grows with each request. Its remainder by [`DOINGS`] is what the thread does.
    rounds: AtomicU64,
}

/// How many things a thread can do: it reads, serves a WRITE, or serves another request.
const DOINGS: u64 = 3;
const READS: u64 = 0;
const SERVES_A_WRITE: u64 = 1;

impl Arrivals {
    /// For so many threads.
    pub fn new(threads: usize) -> Self {
        Self {
            threads: Mutex::with_default(Rank::SessionThreads),
            begun: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            file: AtomicU64::new(0),
            arrived: Mutex::with_default(Rank::Arrivals),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
            writes: Writes::new(threads),
        }
    }

    /// Enters this thread.
    pub fn enter(self: &Arc<Self>) -> Entered {
        let thread = AtomicI32::new(rustix::thread::gettid().as_raw_nonzero().get());
        let reader = Arc::new(Reader { thread, rounds: AtomicU64::new(0) });
        self.threads.lock().push(Arc::clone(&reader));
        Entered { all: Arc::clone(self), reader }
    }

    /// Remembers a regular file that the kernel knows.
    pub fn remember(&self, node: u64) {
        self.file.store(node, SeqCst);
    }

    /// The file that was remembered last.
    pub fn remembered(&self) -> Option<u64> {
        Some(self.file.load(SeqCst)).filter(|node| *node != 0)
    }

    /// A marker has arrived.
    pub fn marker(&self, number: u64) {
        let mut arrived = self.arrived.lock();
        *arrived = number.max(*arrived);
        self.changed.notify_all();
    }

    /// The session ends: no marker arrives any more.
    pub fn end(&self) {
        self.ended.store(true, SeqCst);
        let _arrived = self.arrived.lock();
        self.changed.notify_all();
    }

    /// Waits until every WRITE that the kernel had queued when this was called is served.
    /// `send` has the kernel queue a marker of that number, or says that there is no file that it
    /// could have a page of. Of requests in the background, as these
    /// WRITEs are, the kernel has `most` under way at a time.
    pub fn settle(&self, most: u64, send: impl Fn(u64) -> Result<bool, Errno>) -> Result<(), Errno> {
        for _ in 0..MAX_ROUNDS {
            let before = self.begun.load(SeqCst);
            // What waits for a thread has begun before.
            let waiting = self.writes.unserved();
            let number = self.sent.fetch_add(1, SeqCst) + 1;
            if !send(number)? {
                self.wait_for_writes();
                return Ok(());
            }
            self.wait_for(number)?;
            self.wait_for_writes();
            let threads = self.threads.lock().len() as u64;
            if self.begun.load(SeqCst) - before + threads + waiting < most {
                // Fewer were under way than might be, so none waited behind the marker.
                return Ok(());
            }
        }
        Err(Errno::BUSY)
    }

    fn wait_for(&self, number: u64) -> Result<(), Errno> {
        let mut arrived = self.arrived.lock();
        while *arrived < number {
            if self.ended.load(SeqCst) {
                return Err(Errno::NOTCONN);
            }
            self.changed.wait_for(&mut arrived, TIMEOUT);
        }
        Ok(())
    }

    /// Waits until no other thread serves a WRITE that one has taken before this was called.
    pub fn wait_for_writes(&self) {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let threads = self.threads.lock().clone();
        let others = threads.iter().filter(|reader| reader.thread.load(SeqCst) != own);
        let seen: Vec<_> = others.map(|reader| (reader, reader.rounds.load(SeqCst))).collect();
        for (reader, rounds) in seen {
            while reader.rounds.load(SeqCst) == rounds && !reader.has_no_write(rounds) {
                thread::sleep(PAUSE);
            }
        }
        // Only now they have left to others what they don't serve themselves.
        self.writes.settle();
    }
}

impl Reader {
    /// Whether the thread has no WRITE in this round: it serves another request, or is seen asleep
    /// before one.
    fn has_no_write(&self, rounds: u64) -> bool {
        let thread = self.thread.load(SeqCst);
        match rounds % DOINGS {
            SERVES_A_WRITE => false,
            READS => (thread == 0 || is_asleep(thread).unwrap_or(true)) && self.rounds.load(SeqCst) == rounds,
            _ => true,
        }
    }
}

/// Whether a thread of this process sleeps and can be interrupted, as in a read(2) of `/dev/fuse`.
fn is_asleep(thread: i32) -> io::Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?;
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    Ok(state == Some('S'))
}

/// This thread, as long as it serves.
#[derive(Debug)]
pub struct Entered {
    all: Arc<Arrivals>,
    reader: Arc<Reader>,
}

impl Entered {
    /// Serves a request that has been read, which is no WRITE.
    pub fn serving(&self, serve: impl FnOnce()) {
        self.all.begun.fetch_add(1, SeqCst);
        self.doing(SERVES_A_WRITE + 1, serve);
    }

    /// Whether this thread serves a WRITE that it has read, by [`Self::serving_writes`]. If not,
    /// another does, and this one reads on.
    pub fn is_own_write(&self, message: &[u8], device: &Arc<Device>) -> bool {
        self.all.begun.fetch_add(1, SeqCst);
        // Before it waits for a lock: it would be taken for asleep before a request.
        self.reader.rounds.fetch_add(SERVES_A_WRITE, SeqCst);
        let is_own = self.all.writes.is_own(message, device);
        if !is_own {
            self.reader.rounds.fetch_add(DOINGS - SERVES_A_WRITE, SeqCst);
        }
        is_own
    }

    /// Serves the WRITE that this thread has read, and after it those that others have read and
    /// left, while it is its turn to do so.
    pub fn serving_writes(&self, own: impl FnOnce(), other: impl Fn(&Waiting)) {
        own();
        self.reader.rounds.fetch_add(DOINGS - SERVES_A_WRITE, SeqCst);
        let mut next = self.all.writes.next(None);
        while let Some(waiting) = next {
            self.doing(SERVES_A_WRITE, || other(&waiting));
            next = self.all.writes.next(Some(&waiting));
        }
    }

    fn doing(&self, doing: u64, serve: impl FnOnce()) {
        self.reader.rounds.fetch_add(doing, SeqCst);
        serve();
        self.reader.rounds.fetch_add(DOINGS - doing, SeqCst);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.reader.thread.store(0, SeqCst);
        self.all.threads.lock().retain(|reader| !Arc::ptr_eq(reader, &self.reader));
        if self.all.threads.lock().is_empty() {
            self.all.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_write_in_progress_is_waited_for_and_other_requests_are_not() {
        let arrivals = Arc::new(Arrivals::new(2));
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let other = Arc::clone(&arrivals);
        let thread = thread::spawn(move || {
            let entered = other.enter();
            for is_write in [false, true] {
                let serve = || {
                    begun.send(is_write).unwrap();
                    may_go_on.recv().unwrap();
                };
                if is_write {
                    assert!(entered.is_own_write(&[], &Device::unconnected()));
                    entered.serving_writes(serve, |_| unreachable!("it is alone"));
                } else {
                    entered.serving(serve);
                }
            }
        });
        assert!(!has_begun.recv().unwrap());
        arrivals.wait_for_writes();
        go_on.send(()).unwrap();
        assert!(has_begun.recv().unwrap());
        let (waiting, done) = (Arc::clone(&arrivals), Arc::new(AtomicBool::new(false)));
        let is_done = Arc::clone(&done);
        let waiter = thread::spawn(move || {
            waiting.wait_for_writes();
            done.store(true, SeqCst);
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!is_done.load(SeqCst));
        go_on.send(()).unwrap();
        waiter.join().unwrap();
        thread.join().unwrap();
    }

    /// Its thread sleeps then, as one does that has nothing.
    #[test]
    fn a_write_is_waited_for_whose_thread_waits_for_the_lock_of_writes() {
        let arrivals = Arc::new(Arrivals::new(2));
        let held = arrivals.writes.lock();
        let (go_on, may_go_on) = channel::<()>();
        let (enters, has_entered) = channel();
        let other = Arc::clone(&arrivals);
        let thread = thread::spawn(move || {
            let entered = other.enter();
            enters.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            assert!(entered.is_own_write(&[], &Device::unconnected()));
            entered.serving_writes(|| may_go_on.recv().unwrap(), |_| unreachable!("it is alone"));
        });
        let reader = has_entered.recv().unwrap();
        while arrivals.begun.load(SeqCst) == 0 || !is_asleep(reader).unwrap() {
            thread::sleep(PAUSE);
        }
        let (waiting, (done, is_done)) = (Arc::clone(&arrivals), channel());
        let waiter = thread::spawn(move || {
            waiting.wait_for_writes();
            done.send(()).unwrap();
        });
        // It looks at the thread, and may wait for the lock as well.
        thread::sleep(Duration::from_millis(50));
        drop(held);
        assert!(is_done.recv_timeout(Duration::from_millis(100)).is_err(), "the WRITE is still served");
        go_on.send(()).unwrap();
        waiter.join().unwrap();
        thread.join().unwrap();
    }

    /// Such as the last one, which may itself wait for the sync that waits for WRITEs.
    #[test]
    fn a_thread_that_serves_something_else_is_not_looked_at() {
        let arrivals = Arc::new(Arrivals::new(2));
        let (other, stop) = (Arc::clone(&arrivals), Arc::new(AtomicBool::new(false)));
        let (stops, (begun, has_begun)) = (Arc::clone(&stop), channel());
        let busy = thread::spawn(move || {
            other.enter().serving(|| {
                begun.send(()).unwrap();
                // It never sleeps.
                while !stops.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
        });
        has_begun.recv().unwrap();
        let (waiting, (done, is_done)) = (Arc::clone(&arrivals), channel());
        thread::spawn(move || {
            waiting.wait_for_writes();
            done.send(()).unwrap();
        });
        let waited = is_done.recv_timeout(Duration::from_secs(20));
        stop.store(true, SeqCst);
        assert!(waited.is_ok());
        busy.join().unwrap();
    }

    #[test]
    fn rounds_are_repeated_while_more_may_wait_behind_the_marker() {
        let arrivals = Arrivals::new(2);
        let rounds = AtomicU64::new(0);
        let send = |number| {
            // As if 300 requests were served until the first two markers arrive.
            if rounds.fetch_add(1, SeqCst) < 2 {
                arrivals.begun.fetch_add(300, SeqCst);
            }
            arrivals.marker(number);
            Ok(true)
        };
        assert_eq!(arrivals.settle(256, send), Ok(()));
        assert_eq!(rounds.load(SeqCst), 3);
        arrivals.end();
        assert_eq!(arrivals.settle(256, |_| Ok(true)), Err(Errno::NOTCONN));
    }
}

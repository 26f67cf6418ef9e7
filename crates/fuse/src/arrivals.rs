//! Keeps track of which threads serve a WRITE of `/dev/fuse`, so that a sync can wait for all
//! WRITEs that the kernel has queued.
//!
//! Before Linux 6.16 the kernel takes a dirty page for written as soon as it has queued its WRITE,
//! so a process that syncs does not wait for the answer. A commit that a sync wants must therefore
//! wait for these WRITEs here.
//!
//! The kernel delivers requests in the order in which it queued them. To find out whether all
//! queued requests have been delivered, the server asks the kernel to queue a marker: once the
//! marker has arrived, a thread has taken every request that was queued before it. What such a
//! thread has taken shows only when it begins to serve the request; until then it has not begun
//! another round, and is not asleep in read(2). A thread that serves anything but a WRITE is not
//! waited for, since that request may itself wait for this sync, as the last request of a mount
//! does.

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
/// How long [`Arrivals::settle`] waits for a marker before it checks whether the session has ended.
const TIMEOUT: Duration = Duration::from_millis(100);
/// More rounds than it takes to empty the kernel's queue of background requests: each round takes
/// as many as the kernel may have under way at a time.
const MAX_ROUNDS: u32 = 1 << 14;

/// The threads of a session, and the markers that have arrived.
#[derive(Debug)]
pub struct Arrivals {
    threads: Mutex<Vec<Arc<Reader>>>,
    /// How many requests threads have begun to serve.
    begun: AtomicU64,
    sent: AtomicU64,
    /// The node of a regular file that the kernel knew some time ago; zero if none is remembered.
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
    /// Grows with each request. Its remainder modulo [`DOINGS`] says what the thread does.
    rounds: AtomicU64,
}

/// How many things a thread can do: it reads, serves a WRITE, or serves another request.
const DOINGS: u64 = 3;
const READS: u64 = 0;
const SERVES_A_WRITE: u64 = 1;

impl Arrivals {
    /// Returns the state for this many threads that read requests.
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

    /// Registers the calling thread as one that reads requests.
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

    /// Notes that the marker of this number has arrived.
    pub fn marker(&self, number: u64) {
        let mut arrived = self.arrived.lock();
        *arrived = number.max(*arrived);
        self.changed.notify_all();
    }

    /// Notes that the session ends, so that nobody waits for a marker any more.
    pub fn end(&self) {
        self.ended.store(true, SeqCst);
        let _arrived = self.arrived.lock();
        self.changed.notify_all();
    }

    /// Waits until every WRITE that the kernel had queued at the time of the call is served. `send`
    /// has the kernel queue a marker of that number, and returns false if the kernel knows no file
    /// that could have a dirty page. The kernel has at most `most` background requests, such as
    /// these WRITEs, under way at a time. Returns `EBUSY` if this takes more than [`MAX_ROUNDS`]
    /// rounds.
    pub fn settle(&self, most: u64, send: impl Fn(u64) -> Result<bool, Errno>) -> Result<(), Errno> {
        for _ in 0..MAX_ROUNDS {
            let before = self.begun.load(SeqCst);
            // WRITEs that wait for a thread are counted as begun already.
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
                // Fewer requests were under way than the kernel allows, so none was left in its
                // queue when it sent the marker.
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

    /// Waits until every WRITE that another thread had taken before this call is served.
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
        // Only now have these threads queued the WRITEs that they leave to others.
        self.writes.settle();
    }
}

impl Reader {
    /// Returns whether the thread has no WRITE in this round: it serves another request, or sleeps
    /// in read(2) before it has one.
    fn has_no_write(&self, rounds: u64) -> bool {
        let thread = self.thread.load(SeqCst);
        match rounds % DOINGS {
            SERVES_A_WRITE => false,
            READS => (thread == 0 || is_asleep(thread).unwrap_or(true)) && self.rounds.load(SeqCst) == rounds,
            _ => true,
        }
    }
}

/// Returns whether a thread of this process sleeps and can be interrupted, as in a read(2) of
/// `/dev/fuse`.
fn is_asleep(thread: i32) -> io::Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?;
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    Ok(state == Some('S'))
}

/// The registration of a thread that reads requests, until this is dropped.
#[derive(Debug)]
pub struct Entered {
    all: Arc<Arrivals>,
    reader: Arc<Reader>,
}

impl Entered {
    /// Serves a request that this thread has read and that is no WRITE.
    pub fn serving(&self, serve: impl FnOnce()) {
        self.all.begun.fetch_add(1, SeqCst);
        self.doing(SERVES_A_WRITE + 1, serve);
    }

    /// Returns whether this thread is to serve a WRITE that it has read, by
    /// [`Self::serving_writes`]. If not, another thread serves it, and this one reads on.
    pub fn is_own_write(&self, message: &[u8], device: &Arc<Device>) -> bool {
        self.all.begun.fetch_add(1, SeqCst);
        // This precedes the wait for a lock, in which the thread would else be taken for one that
        // sleeps before a request.
        self.reader.rounds.fetch_add(SERVES_A_WRITE, SeqCst);
        let is_own = self.all.writes.is_own(message, device);
        if !is_own {
            self.reader.rounds.fetch_add(DOINGS - SERVES_A_WRITE, SeqCst);
        }
        is_own
    }

    /// Serves the WRITE that this thread has read, and then WRITEs that other threads have read and
    /// left, as long as [`Writes::next`] returns one.
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

    /// A thread that waits for that lock sleeps, as does one that has no request.
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

    /// Such a request is the last one of a mount, which may itself wait for the sync that waits for
    /// WRITEs.
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
            // This acts as if 300 requests were served before each of the first two markers
            // arrives.
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

//! Returns answered entries to the thread of their ring.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use rustix::event::EventfdFlags;
use ubtrfs_threads::{Mutex, MutexGuard, Rank};

use super::hops::{Counts, count};
use super::memory::Held;

/// Entries that are answered. Only the thread of their ring may submit them, so a thread that
/// answers puts them here, and wakes the ring's thread if that sleeps in the kernel.
pub struct Mailbox {
    inner: Mutex<Inner>,
    wakes: OwnedFd,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Inner {
    answered: Vec<Held>,
    asleep: bool,
    /// The ring's thread.
    owner: Option<ThreadId>,
    stop: bool,
}

impl Mailbox {
    pub fn new() -> io::Result<Self> {
        let wakes = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { inner: Mutex::with_default(Rank::Mailbox), wakes, counts: Arc::default() })
    }

    /// The eventfd that becomes readable to wake the thread. Nobody reads it, since each write
    /// counts as an event.
    pub fn wakes(&self) -> &OwnedFd {
        &self.wakes
    }

    /// Counts how requests of this ring went from thread to thread.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Puts an answered entry in.
    pub fn put(&self, held: Held) {
        let mut inner = self.inner.lock();
        if inner.asleep {
            count(&self.counts.woken);
        } else if inner.owner != Some(thread::current().id()) {
            count(&self.counts.answered_elsewhere);
        }
        inner.answered.push(held);
        self.wake(inner);
    }

    /// Stops the thread.
    pub fn stop(&self) {
        let mut inner = self.inner.lock();
        inner.stop = true;
        self.wake(inner);
    }

    /// Swaps the contents with `empty`, and counts the thread as asleep from now on. Returns false
    /// if the thread must stop.
    pub fn fall_asleep(&self, empty: &mut Vec<Held>) -> bool {
        let mut inner = self.inner.lock();
        std::mem::swap(&mut inner.answered, empty);
        inner.asleep = true;
        inner.owner.get_or_insert_with(|| thread::current().id());
        !inner.stop
    }

    /// Notes that the thread is awake, and will check the mailbox again before it sleeps.
    pub fn awake(&self) {
        self.inner.lock().asleep = false;
    }

    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let was_asleep = std::mem::take(&mut inner.asleep);
        drop(inner);
        if was_asleep {
            // This fails only if the counter is full, and then the event is pending anyway.
            let _ = rustix::io::write(&self.wakes, &1_u64.to_ne_bytes());
        }
    }
}

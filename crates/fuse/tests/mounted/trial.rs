//! Which requests a [`MemFs`](crate::memfs::MemFs) serves at once, where they arrive over rings:
//! some are left, some are tried and found to have to wait, the rest is served.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use ubtrfs_fuse::reply::{ReplyAttr, ReplyEntry};
use ubtrfs_fuse::{Errno, Operation, Request};

thread_local! {
    static POSTPONING: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub struct Trial {
    requests: AtomicU32,
    pub postponed: AtomicU32,
}

/// A reply whose request can be postponed.
pub trait Again {
    fn again(self);
}

impl Again for ReplyEntry {
    fn again(self) {
        self.error(Errno::AGAIN);
    }
}

impl Again for ReplyAttr {
    fn again(self) {
        self.error(Errno::AGAIN);
    }
}

impl Trial {
    pub fn try_nonblocking(&self, request: &Request<'_>, serve: &mut dyn FnMut() -> bool) {
        if matches!(request.op, Operation::SyncFs | Operation::Destroy) {
            return;
        }
        match self.requests.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => {}
            1 => assert!(serve()),
            _ => {
                POSTPONING.set(true);
                let before = self.postponed.load(Ordering::Relaxed);
                let postponed = !serve();
                assert!(!postponed || self.postponed.load(Ordering::Relaxed) > before);
                POSTPONING.set(false);
            }
        }
    }

    /// Gives `reply` back unless the request has to come again.
    pub fn unless_postponed<R: Again>(&self, reply: R) -> Option<R> {
        if POSTPONING.get() {
            self.postponed.fetch_add(1, Ordering::Relaxed);
            reply.again();
            return None;
        }
        Some(reply)
    }
}

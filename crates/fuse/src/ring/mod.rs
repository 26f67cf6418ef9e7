//! The transport over `io_uring`: requests arrive as completions, answers leave with the next
//! submission.
//!
//! The kernel has one queue for each processor that there may ever be, and delivers a request to
//! the queue of the processor that its caller runs on. Each queue has a ring with a thread that
//! stays on that processor, and a number of *entries*: room for one request and its answer. A
//! ring's thread takes all requests that have arrived, serves them, and submits all answers with
//! the system call in which it sleeps.
//!
//! That thread must not block: every request of its processor would wait with it. It serves what
//! the filesystem can answer [without blocking](crate::Filesystem::try_nonblocking), and puts all
//! other requests into a [backlog](workers), which other threads serve. The thread that answers a
//! request writes into the entry's own memory and puts the entry into the [`mailbox`] of its ring.
//!
//! | file | what it does |
//! |---|---|
//! | `available` | whether there can be rings |
//! | `memory` | the memory of entries: types express whether kernel or server owns it |
//! | `entry` | the way of one request to its answer |
//! | `mailbox` | passes answers to the thread that may submit them |
//! | `hops` | counts how requests and answers go from thread to thread |
//! | `queue` | the ring of one processor |
//! | `spread` | how many entries a ring needs so that long requests leave room for others |
//! | `workers` | requests that may wait |
//! | `serve` | all threads together |
//!
//! A request that waits for other requests takes an entry that these may need, so each queue lets
//! only some of its requests wait this way ([`may_wait`](crate::reply::ReplyLseek::may_wait)).
//!
//! FORGET and INTERRUPT still come over `/dev/fuse`, except for the FORGET of a listing's entry
//! that the kernel can't use.

mod available;
mod entry;
mod hops;
mod mailbox;
mod memory;
mod queue;
mod serve;
mod spread;
mod workers;

use std::sync::Arc;

use crate::abi::ring::MIN_PAYLOAD;
use crate::device::Device;
pub use available::NoRing;
pub use hops::{HopCounters, Hops};
use queue::Queue;
pub(crate) use serve::{Handler, serve};
pub use spread::MAX_LONG;

/// The number of entries of a ring, where there are few processors.
const DEPTH: usize = 32;
/// The number of entries of all rings, where there are many processors, but never fewer than
/// [`MIN_DEPTH`] each. The limit is there because payloads may take memory.
const ENTRIES: usize = 256;
const MIN_DEPTH: usize = 8;
/// The number of entries of a processor that is not online, but might be some day. One is left if
/// one request of each kind waits for others.
const OFFLINE_DEPTH: usize = 4;

/// The rings of a mount, ready to be registered.
pub(crate) struct Rings {
    queues: Vec<Queue>,
}

impl Rings {
    /// Makes a ring for each processor, for requests of up to `max_write` bytes. All that may fail
    /// is done here, since the kernel accepts no other transport once it knows that there are
    /// rings.
    pub fn prepare(device: &Arc<Device>, max_write: usize) -> Result<Self, NoRing> {
        let processors = available::processors()?;
        let online = processors.iter().filter(|online| **online).count().max(1);
        let depth = (ENTRIES / online).clamp(MIN_DEPTH, DEPTH);
        let queue = |(number, online): (usize, &bool)| {
            let depth = if *online { depth } else { OFFLINE_DEPTH };
            Queue::new(number as u16, depth as u16, max_write.max(MIN_PAYLOAD), Arc::clone(device))
        };
        let queues = processors.iter().enumerate().map(queue).collect::<Result<_, _>>()?;
        Ok(Self { queues })
    }

    /// The counters of how requests go from thread to thread.
    pub fn hops(&self) -> HopCounters {
        HopCounters::new(self.queues.iter().map(|queue| Arc::clone(queue.mailbox().counts())).collect())
    }

    /// The number of rings.
    pub fn count(&self) -> usize {
        self.queues.len()
    }
}

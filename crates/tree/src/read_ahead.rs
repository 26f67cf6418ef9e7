//! Reading nodes before they are needed, several at a time, if each read takes long.
//!
//! A few threads read nodes into the cache. They start when there is something to read, and end
//! when there has been nothing for some time, or when the cache is gone.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::NodeRef;
use crate::node_id::NodeId;

/// How long a thread waits for something to read before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// How many nodes may wait for each thread. Further ones are left to the threads that need them.
const WAITING_FOR_EACH: usize = 16;

/// The nodes that are being read ahead, or wait for that.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    state: Mutex<State>,
    /// Notified when there is something to read.
    wanted: Condvar,
    /// Notified when a node has been read, or could not be.
    read: Condvar,
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::NodeReadAhead), wanted: Condvar::new(), read: Condvar::new() }
    }
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<NodeRef>,
    /// The nodes that are in the queue or being read.
    under_way: HashSet<NodeId>,
    threads: usize,
    idle: usize,
}

impl ReadAhead {
    /// Waits while this node is being read ahead. A node whose read has not begun is removed from
    /// the queue and left to the caller.
    pub(crate) fn wait_for(&self, id: NodeId) {
        let mut state = self.state.lock();
        if !state.under_way.contains(&id) {
            return;
        }
        if let Some(at) = state.queue.iter().position(|node| NodeId::of(node) == id) {
            state.queue.remove(at);
            state.under_way.remove(&id);
            return;
        }
        while state.under_way.contains(&id) {
            self.read.wait(&mut state);
        }
    }

    /// Has these nodes read by at most `threads` threads. `read` returns whether the cache still
    /// exists.
    pub(crate) fn read(
        self: &Arc<Self>,
        nodes: impl Iterator<Item = NodeRef>,
        threads: usize,
        read: impl Fn(&NodeRef) -> bool + Clone + Send + 'static,
    ) {
        let mut state = self.state.lock();
        for node in nodes {
            let id = NodeId::of(&node);
            if state.queue.len() >= threads * WAITING_FOR_EACH || !state.under_way.insert(id) {
                continue;
            }
            state.queue.push_back(node);
            if state.idle > 0 {
                self.wanted.notify_one();
            }
            if state.idle < state.queue.len() && state.threads < threads && self.begin(read.clone()) {
                state.threads += 1;
            }
        }
        // Without a thread nobody would read the queue.
        if state.threads == 0 {
            state.queue.clear();
            state.under_way.clear();
        }
    }

    /// Returns the next node to read, or `None` if there was none for some time.
    fn next(&self) -> Option<NodeRef> {
        let mut state = self.state.lock();
        loop {
            if let Some(node) = state.queue.pop_front() {
                return Some(node);
            }
            state.idle += 1;
            let timed_out = self.wanted.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                return None;
            }
        }
    }

    /// Starts a thread. Returns false if none can be started.
    fn begin(self: &Arc<Self>, read: impl Fn(&NodeRef) -> bool + Send + 'static) -> bool {
        let this = Arc::clone(self);
        let work = move || {
            let thread = Thread(&this);
            while let Some(node) = this.next() {
                let reading = Reading { read_ahead: thread.0, id: NodeId::of(&node) };
                let is_there_a_cache = read(&node);
                drop(reading);
                if !is_there_a_cache {
                    return;
                }
            }
        };
        ubtrfs_threads::thread::Builder::new().name("read-ahead".into()).spawn(work).is_ok()
    }
}

/// A node that is being read. However that ends, dropping this ends the wait for the node.
struct Reading<'a> {
    read_ahead: &'a ReadAhead,
    id: NodeId,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.read_ahead.state.lock().under_way.remove(&self.id);
        self.read_ahead.read.notify_all();
    }
}

/// A thread that reads ahead. When the last one ends, the nodes in the queue are left to the
/// threads that need them.
struct Thread<'a>(&'a ReadAhead);

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            state.queue.clear();
            state.under_way.clear();
        }
    }
}

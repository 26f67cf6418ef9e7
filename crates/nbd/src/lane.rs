//! One connection of a session: the queue of messages, and the watch for progress.
//!
//! Callers put messages into the queue, which takes no time whatever the server does. A thread of
//! the connection sends them, or a caller that waits for an answer anyway.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use crate::abi::{CMD_DISC, request};
use crate::channel::Channel;
use crate::lease::Lease;
use crate::watch::Watch;

/// How long sending the last message may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// More bytes than the headers of all requests under way and other small messages take.
const OVERHEAD: u64 = 16 << 10;

/// A connection.
pub(crate) struct Lane {
    pub(crate) line: Arc<Line>,
    /// How many requests it has not answered.
    pub(crate) outstanding: usize,
    /// How many of these are discards, whose answers may take any time.
    pub(crate) advice: usize,
    /// How many bytes these read or write.
    pub(crate) outstanding_bytes: u64,
    pub(crate) watch: Watch,
}

/// The sending side of a connection.
pub(crate) struct Line {
    channel: Arc<Channel>,
    lease: Option<Arc<Lease>>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    is_sending: bool,
    is_over: bool,
}

/// A request in the form in which it is sent.
pub(crate) struct Message {
    pub(crate) header: [u8; 28],
    pub(crate) parts: Vec<Bytes>,
}

impl Lane {
    /// The most bytes that will have gone over the connection when all its outstanding requests are
    /// answered.
    pub(crate) fn passed_then(&self) -> u64 {
        self.watch.exchanged() + self.outstanding_bytes + OVERHEAD
    }

    pub(crate) fn new(channel: &Arc<Channel>, lease: Option<&Arc<Lease>>) -> Self {
        let line = Line {
            channel: Arc::clone(channel),
            lease: lease.cloned(),
            queue: Mutex::with_default(Rank::NbdLane),
            changed: Condvar::new(),
        };
        Self {
            line: Arc::new(line),
            outstanding: 0,
            advice: 0,
            outstanding_bytes: 0,
            watch: Watch::new(Arc::clone(channel)),
        }
    }
}

impl Line {
    /// Queues a message, which [`Self::wake`] or [`Self::send_queued`] has sent.
    pub(crate) fn push(&self, message: Message) {
        self.queue.lock().messages.push_back(message);
    }

    /// Has the connection's thread send the queued messages.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Sends the queued messages, unless another thread does so. Leaves messages that are queued
    /// meanwhile to the connection's thread.
    pub(crate) fn send_queued(&self) -> io::Result<()> {
        let mut queue = self.queue.lock();
        let most = queue.messages.len();
        self.send(&mut queue, most)
    }

    /// Sends queued messages until the connection ends.
    pub(crate) fn run(&self) -> io::Result<()> {
        let mut queue = self.queue.lock();
        while !queue.is_over {
            if queue.is_sending || queue.messages.is_empty() {
                self.changed.wait(&mut queue);
            } else {
                self.send(&mut queue, usize::MAX)?;
            }
        }
        Ok(())
    }

    fn send(&self, queue: &mut MutexGuard<'_, Queue>, most: usize) -> io::Result<()> {
        if queue.is_sending {
            return Ok(());
        }
        queue.is_sending = true;
        let mut result = Ok(());
        for _ in 0..most {
            let Some(message) = queue.messages.pop_front() else { break };
            result = MutexGuard::unlocked(queue, || {
                let mut parts: Vec<&[u8]> = vec![&message.header];
                parts.extend(message.parts.iter().map(|part| &**part));
                self.channel.send(&parts, self.lease.as_deref())
            });
            if result.is_err() {
                break;
            }
        }
        queue.is_sending = false;
        if !queue.messages.is_empty() {
            self.wake();
        }
        result
    }

    /// Ends the connection, with a goodbye if `says_goodbye` is set.
    pub(crate) fn end(&self, says_goodbye: bool) {
        let mut queue = self.queue.lock();
        queue.is_over = true;
        queue.messages.clear();
        // A thread that is sending is in the middle of a request. Besides, a server that hangs
        // takes nothing.
        let may_send = !queue.is_sending;
        drop(queue);
        if says_goodbye && may_send && self.channel.limit(Some(GOODBYE)).is_ok() {
            self.channel.is_polite();
            let _ = self.channel.send(&[&request(0, CMD_DISC, 0, 0, 0)], None);
        }
        self.channel.end();
        self.changed.notify_all();
    }
}

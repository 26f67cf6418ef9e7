//! Requests without an answer: those that are under way, and those that wait for room.
//!
//! Nobody waits for room here: threads that begin writes serve cached reads, too. What bounds the
//! memory is what the callers have in flight.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use bytes::Bytes;
use ubtrfs_threads::time::Instant;

use crate::abi::{CMD_FLAG_FUA, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES};
use crate::lane::Message;

/// Requests that are under way, at most.
const MOST_REQUESTS: usize = 128;

/// What is called with the result of a request; it must not wait.
pub(crate) type Done = Box<dyn FnOnce(io::Result<Vec<u8>>) + Send>;

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Read,
    Write {
        parts: Vec<Bytes>,
        /// It is durable when it is answered.
        fua: bool,
    },
    /// Nothing but zeros.
    Zero,
    /// What was answered up to this answer becomes durable.
    Flush {
        covers: u64,
        is_own: bool,
    },
    Trim,
}

impl Command {
    pub(crate) fn changes(&self) -> bool {
        !matches!(self, Self::Read)
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zero)
    }
}

/// A request.
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) at: u64,
    pub(crate) len: u32,
    /// Over which connection it was sent, and when, if it was.
    pub(crate) sent: Option<(usize, Instant)>,
    pub(crate) done: Done,
}

impl Request {
    pub(crate) fn message(&self, cookie: u64) -> Message {
        let (command, parts) = match &self.command {
            Command::Read => (CMD_READ, Vec::new()),
            Command::Write { parts, .. } => (CMD_WRITE, parts.clone()),
            Command::Zero => (CMD_WRITE_ZEROES, Vec::new()),
            Command::Flush { .. } => (CMD_FLUSH, Vec::new()),
            Command::Trim => (CMD_TRIM, Vec::new()),
        };
        let flags = if matches!(self.command, Command::Write { fua: true, .. }) { CMD_FLAG_FUA } else { 0 };
        Message { header: crate::abi::request(flags, command, cookie, self.at, self.len), parts }
    }
}

/// All requests without an answer.
#[derive(Default)]
pub(crate) struct Requests {
    all: BTreeMap<u64, Request>,
    last_cookie: u64,
    /// Those that are not sent, in the order in which they came: flushes and durable writes, which
    /// others wait for and which take hardly any room, …
    urgent: VecDeque<u64>,
    /// … reads, …
    reads: VecDeque<u64>,
    /// … and changes. Each of both has its turn.
    changes: VecDeque<u64>,
    is_turn_of_changes: bool,
    under_way: usize,
    bytes_under_way: usize,
}

impl Requests {
    /// The cookie of the next request.
    pub(crate) fn next_cookie(&mut self) -> u64 {
        self.last_cookie += 1;
        self.last_cookie
    }

    /// A new request, which waits for room.
    pub(crate) fn add(&mut self, cookie: u64, request: Request) {
        self.queue_of(&request.command).push_back(cookie);
        self.all.insert(cookie, request);
    }

    fn queue_of(&mut self, command: &Command) -> &mut VecDeque<u64> {
        match command {
            Command::Read => &mut self.reads,
            Command::Flush { .. } | Command::Write { fua: true, .. } => &mut self.urgent,
            _ => &mut self.changes,
        }
    }

    /// Takes the request that is to be sent next, if there is room for it among so many bytes.
    pub(crate) fn take_next(&mut self, window: usize, may_change: bool) -> Option<u64> {
        if let Some(cookie) = self.urgent.pop_front() {
            return Some(cookie);
        }
        let (reads, changes) = (&mut self.reads, &mut self.changes);
        let has_changes = may_change && !changes.is_empty();
        let takes_change = has_changes && (self.is_turn_of_changes || reads.is_empty());
        let queue = if takes_change { changes } else { reads };
        let len = self.all.get(queue.front()?)?.len as usize;
        let has_room =
            self.under_way < MOST_REQUESTS && (self.bytes_under_way + len <= window || self.bytes_under_way == 0);
        if !has_room {
            return None;
        }
        self.is_turn_of_changes = !takes_change;
        queue.pop_front()
    }

    /// A request goes over this connection.
    pub(crate) fn send(&mut self, cookie: u64, lane: usize) -> Option<Message> {
        let request = self.all.get_mut(&cookie)?;
        request.sent = Some((lane, Instant::now()));
        self.under_way += 1;
        self.bytes_under_way += request.len as usize;
        Some(request.message(cookie))
    }

    /// The request with this cookie, if it was sent over this connection.
    pub(crate) fn sent_over(&self, cookie: u64, lane: usize) -> Option<&Request> {
        self.all.get(&cookie).filter(|request| request.sent.is_some_and(|(over, _)| over == lane))
    }

    /// Has zeros written as bytes: the server takes them no other way any more.
    pub(crate) fn write_zeros(&mut self) {
        let zeros = self.all.values_mut().filter(|request| matches!(request.command, Command::Zero));
        let mut longest = Bytes::new();
        for request in zeros {
            let len = request.len as usize;
            if longest.len() < len {
                longest = vec![0; len].into();
            }
            request.command = Command::Write { parts: vec![longest.slice(..len)], fua: false };
        }
    }

    /// A request that was sent is over.
    pub(crate) fn remove(&mut self, cookie: u64) -> Option<Request> {
        let request = self.all.remove(&cookie)?;
        self.under_way -= 1;
        self.bytes_under_way -= request.len as usize;
        Some(request)
    }

    /// Everything is to be sent again, in the order in which it came.
    pub(crate) fn wait_again(&mut self) {
        let all = std::mem::take(&mut self.all);
        *self = Self { last_cookie: self.last_cookie, ..Self::default() };
        for (cookie, request) in all {
            self.add(cookie, Request { sent: None, ..request });
        }
    }

    /// All of them, of which none is left.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Request> + use<> {
        let all = std::mem::take(&mut self.all);
        *self = Self { last_cookie: self.last_cookie, ..Self::default() };
        all.into_values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether any would change something.
    pub(crate) fn has_changes(&self) -> bool {
        self.all.values().any(|request| request.command.changes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(requests: &mut Requests, command: Command, len: u32) -> u64 {
        let cookie = requests.next_cookie();
        requests.add(cookie, Request { command, at: 0, len, sent: None, done: Box::new(|_| ()) });
        cookie
    }

    fn sent(requests: &mut Requests, window: usize, may_change: bool) -> Vec<u64> {
        let next = || {
            let cookie = requests.take_next(window, may_change)?;
            requests.send(cookie, 0).map(|_| cookie)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn reads_do_not_wait_for_all_changes_nor_flushes_for_anything() {
        let mut requests = Requests::default();
        let zeros: Vec<u64> = (0..10).map(|_| add(&mut requests, Command::Zero, 10)).collect();
        assert_eq!(sent(&mut requests, 20, true), zeros[..2]);
        let reads: Vec<u64> = (0..3).map(|_| add(&mut requests, Command::Read, 10)).collect();
        let flush = add(&mut requests, Command::Flush { covers: 0, is_own: false }, 0);
        assert_eq!(sent(&mut requests, 20, true), [flush], "it takes no room");
        requests.remove(zeros[0]).unwrap();
        requests.remove(zeros[1]).unwrap();
        assert_eq!(sent(&mut requests, 40, true), [reads[0], zeros[2], reads[1], zeros[3]]);
        requests.remove(reads[0]).unwrap();
        requests.remove(zeros[2]).unwrap();
        assert_eq!(sent(&mut requests, 40, false), [reads[2]]);
        assert!(sent(&mut requests, 100, false).is_empty(), "changes wait for a flush");
    }

    #[test]
    fn what_is_larger_than_the_room_goes_alone() {
        let mut requests = Requests::default();
        let both: Vec<u64> = (0..2).map(|_| add(&mut requests, Command::Zero, 50)).collect();
        assert_eq!(sent(&mut requests, 20, true), both[..1]);
        requests.remove(both[0]).unwrap();
        assert_eq!(sent(&mut requests, 20, true), both[1..]);
    }

    #[test]
    fn everything_without_an_answer_is_sent_again() {
        let mut requests = Requests::default();
        let all: Vec<u64> = (0..4).map(|_| add(&mut requests, Command::Zero, 10)).collect();
        assert_eq!(sent(&mut requests, 30, true), all[..3]);
        requests.remove(all[1]).unwrap();
        requests.wait_again();
        assert!(requests.sent_over(all[0], 0).is_none());
        assert_eq!(sent(&mut requests, 30, true), [all[0], all[2], all[3]]);
    }
}

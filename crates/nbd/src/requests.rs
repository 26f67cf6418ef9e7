//! The requests without an answer: those that are under way, and those that wait for room.
//!
//! No caller waits for room here, since threads that begin writes also serve cached reads. The
//! memory is bounded by what the callers have in flight.
//!
//! A server that comes back may accept only smaller requests than the one before. A longer request
//! is then divided into pieces, which are requests of their own until the last of them is answered.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use ubtrfs_errors::sentence;
use ubtrfs_threads::time::Instant;

use crate::abi::{CMD_FLAG_FUA, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES};
use crate::lane::Message;
use crate::reply::Refusal;

/// How many requests may be under way.
const MAX_REQUESTS: usize = 128;

/// The number of tries after which a request without an answer fails, although others are answered.
const MANY_TRIES: u32 = 5;

/// The function that is called with the result of a request. It must not wait.
pub(crate) type Done = Box<dyn FnOnce(io::Result<Vec<u8>>) + Send>;

/// The command of a request.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Read,
    Write {
        parts: Vec<Bytes>,
        /// The write must be durable when it is answered.
        fua: bool,
        /// The write does not wait for other requests.
        is_urgent: bool,
    },
    /// A write of zeros.
    Zero,
    /// A flush of all writes up to the answer of number `covers`.
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

    fn is_flush(&self) -> bool {
        matches!(self, Self::Flush { .. })
    }

    /// Returns whether the server may ignore the command.
    pub(crate) fn is_advice(&self) -> bool {
        matches!(self, Self::Trim)
    }
}

/// A request.
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) at: u64,
    pub(crate) len: u32,
    /// The connection over which it was sent and the time, if it was sent.
    pub(crate) sent: Option<(usize, Instant)>,
    /// When it was first sent, over any number of connections.
    since: Option<Instant>,
    /// How often it was sent.
    tries: u32,
    /// How many bytes have gone over its connection when it should have an answer.
    due: u64,
    /// Whether it gets no answer, and is to fail.
    is_given_up: bool,
    /// The request of which it is a piece.
    pub(crate) of: Option<u64>,
    pub(crate) done: Done,
}

/// A request that was divided, and whose pieces are under way or wait.
struct Whole {
    request: Request,
    /// How many pieces have no answer.
    left: usize,
    result: Result<Vec<u8>, Refusal>,
}

impl Request {
    pub(crate) fn new(command: Command, at: u64, len: u32, done: Done) -> Self {
        Self { command, at, len, sent: None, since: None, tries: 0, due: 0, is_given_up: false, of: None, done }
    }

    /// How many bytes go over the connection for it, without headers.
    pub(crate) fn bytes(&self) -> u64 {
        if matches!(self.command, Command::Read | Command::Write { .. }) { u64::from(self.len) } else { 0 }
    }

    /// How many bytes it takes of the room for requests under way.
    fn weight(&self) -> usize {
        if self.command.is_advice() { 0 } else { self.len as usize }
    }

    /// Returns whether so many bytes have gone over its connection since it was sent that later
    /// requests must have got their answers.
    fn is_overtaken(&self, passed: &[u64]) -> bool {
        self.sent.is_some_and(|(lane, _)| passed.get(lane).is_some_and(|passed| *passed >= self.due))
    }

    /// Returns whether it has had no answer for so long, or for half of that although later
    /// requests must have got theirs. A discard, which is only advice, may take any time.
    fn is_unanswered(&self, limit: Duration, passed: &[u64]) -> bool {
        let waits = |time| self.sent.is_some_and(|(_, sent)| sent.elapsed() >= time);
        !self.command.is_advice() && (waits(limit) || waits(limit / 2) && self.is_overtaken(passed))
    }

    /// Returns whether it gets no answer although it was sent again.
    fn is_hopeless(&self, limit: Duration, passed: &[u64]) -> bool {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= limit);
        is_old && (self.tries >= MANY_TRIES || self.tries > 1 && self.is_unanswered(limit, passed))
    }

    /// Joins a later flush to this one.
    fn join(&mut self, later: Self) {
        let (Command::Flush { covers, is_own }, Command::Flush { covers: more, is_own: or_own }) =
            (&mut self.command, later.command)
        else {
            return;
        };
        *covers = more.max(*covers);
        *is_own |= or_own;
        let first = std::mem::replace(&mut self.done, Box::new(drop));
        self.done = Box::new(move |result| {
            let same = match &result {
                Ok(_) => Ok(Vec::new()),
                Err(error) => Err(io::Error::new(error.kind(), sentence(error))),
            };
            first(result);
            (later.done)(same);
        });
    }

    /// The request in the form in which it is sent, with FUA if it is wanted and supported.
    pub(crate) fn message(&self, cookie: u64, has_fua: bool) -> Message {
        let (command, parts) = match &self.command {
            Command::Read => (CMD_READ, Vec::new()),
            Command::Write { parts, .. } => (CMD_WRITE, parts.clone()),
            Command::Zero => (CMD_WRITE_ZEROES, Vec::new()),
            Command::Flush { .. } => (CMD_FLUSH, Vec::new()),
            Command::Trim => (CMD_TRIM, Vec::new()),
        };
        let is_fua = has_fua && matches!(self.command, Command::Write { fua: true, .. });
        let flags = if is_fua { CMD_FLAG_FUA } else { 0 };
        Message { header: crate::abi::request(flags, command, cookie, self.at, self.len), parts }
    }
}

/// All requests without an answer.
#[derive(Default)]
pub(crate) struct Requests {
    all: BTreeMap<u64, Request>,
    last_cookie: u64,
    /// Flushes that are not sent. Only one is under way at a time, and the next one serves all that
    /// came meanwhile: with two at once, a server may fail one and let the other succeed.
    flushes: VecDeque<u64>,
    flushes_under_way: usize,
    /// Other requests that are not sent, in the order of arrival: urgent writes, which others wait
    /// for and which take hardly any room, …
    urgent: VecDeque<u64>,
    /// … reads, …
    reads: VecDeque<u64>,
    /// … and changes. Reads and changes take turns.
    changes: VecDeque<u64>,
    is_turn_of_changes: bool,
    wholes: BTreeMap<u64, Whole>,
    under_way: usize,
    bytes_under_way: usize,
    /// How many of these belong to requests that were overtaken by others. They take no room from
    /// others.
    overtaken_bytes: usize,
    /// Discards whose connections ended before they were answered.
    abandoned: Vec<Request>,
}

impl Requests {
    /// The cookie of the next request.
    pub(crate) fn next_cookie(&mut self) -> u64 {
        self.last_cookie += 1;
        self.last_cookie
    }

    /// Adds a new request, which waits for room.
    pub(crate) fn add(&mut self, cookie: u64, request: Request) {
        self.queue_of(&request.command).push_back(cookie);
        self.all.insert(cookie, request);
    }

    fn queue_of(&mut self, command: &Command) -> &mut VecDeque<u64> {
        match command {
            Command::Read => &mut self.reads,
            Command::Flush { .. } => &mut self.flushes,
            Command::Write { fua: true, .. } | Command::Write { is_urgent: true, .. } => &mut self.urgent,
            _ => &mut self.changes,
        }
    }

    /// Takes the request that is to be sent next, or a piece of it of at most `largest` bytes, if
    /// fewer than `window` bytes are under way.
    pub(crate) fn take_next(&mut self, window: usize, may_change: bool, largest: u32) -> Option<u64> {
        if self.flushes_under_way == 0
            && let Some(flush) = self.join_flushes()
        {
            return Some(flush);
        }
        if let Some(first) = self.urgent.front().copied() {
            self.split(first, largest);
            return self.urgent.pop_front();
        }
        let has_changes = may_change && !self.changes.is_empty();
        let takes_change = has_changes && (self.is_turn_of_changes || self.reads.is_empty());
        let first = *if takes_change { &self.changes } else { &self.reads }.front()?;
        self.split(first, largest);
        let queue = if takes_change { &mut self.changes } else { &mut self.reads };
        // The last request may exceed the room. Otherwise a large request would wait for all small
        // ones.
        let bytes_under_way = self.bytes_under_way.saturating_sub(self.overtaken_bytes);
        if self.under_way >= MAX_REQUESTS || bytes_under_way >= window {
            return None;
        }
        self.is_turn_of_changes = !takes_change;
        queue.pop_front()
    }

    /// Makes one flush of all that wait, in the place of the first.
    fn join_flushes(&mut self) -> Option<u64> {
        let first = self.flushes.pop_front()?;
        for next in std::mem::take(&mut self.flushes) {
            let Some(next) = self.all.remove(&next) else { continue };
            if let Some(flush) = self.all.get_mut(&first) {
                flush.join(next);
            }
        }
        Some(first)
    }

    /// Replaces the first request of a queue by pieces, if it has too many bytes.
    fn split(&mut self, cookie: u64, largest: u32) {
        let is_long = |request: &Request| {
            request.len > largest && matches!(request.command, Command::Read | Command::Write { .. })
        };
        if !self.all.get(&cookie).is_some_and(is_long) {
            return;
        }
        let Some(request) = self.all.remove(&cookie) else { return };
        self.queue_of(&request.command).pop_front();
        let mut cookies = Vec::new();
        for (at, len) in pieces(request.at, u64::from(request.len), largest) {
            let mut command = request.command.clone();
            if let Command::Write { parts, .. } = &mut command {
                *parts = cut(parts, (at - request.at) as usize, len as usize);
            }
            let (since, tries) = (request.since, request.tries);
            let piece = Request { of: Some(cookie), since, tries, ..Request::new(command, at, len, Box::new(drop)) };
            cookies.push(self.next_cookie());
            self.all.insert(self.last_cookie, piece);
        }
        let bytes = if matches!(request.command, Command::Read) { request.len as usize } else { 0 };
        let left = cookies.len();
        let queue = self.queue_of(&request.command);
        cookies.into_iter().rev().for_each(|cookie| queue.push_front(cookie));
        self.wholes.insert(cookie, Whole { request, left, result: Ok(vec![0; bytes]) });
    }

    /// Notes the answer to a piece. If it was the last one, returns the whole request and its
    /// result.
    pub(crate) fn gather(
        &mut self,
        of: u64,
        piece: &Request,
        result: Result<Vec<u8>, Refusal>,
    ) -> Option<(Request, Result<Vec<u8>, Refusal>)> {
        let whole = self.wholes.get_mut(&of)?;
        let start = (piece.at - whole.request.at) as usize;
        match (&mut whole.result, result) {
            (Ok(all), Ok(bytes)) => {
                if let Some(place) = all.get_mut(start..start + bytes.len()) {
                    place.copy_from_slice(&bytes);
                }
            }
            (Ok(_), Err(refusal)) => whole.result = Err(refusal),
            (Err(_), _) => {}
        }
        whole.left -= 1;
        if whole.left > 0 {
            return None;
        }
        self.wholes.remove(&of).map(|whole| (whole.request, whole.result))
    }

    /// Notes that a request is sent over this connection. Before its answer come those to others,
    /// after which `others` bytes have gone over the connection.
    pub(crate) fn send(&mut self, cookie: u64, (lane, others): (usize, u64), has_fua: bool) -> Option<(Message, u64)> {
        let request = self.all.get_mut(&cookie)?;
        request.due = others + request.bytes();
        let now = Instant::now();
        request.sent = Some((lane, now));
        request.since.get_or_insert(now);
        request.tries += 1;
        self.under_way += 1;
        self.flushes_under_way += usize::from(request.command.is_flush());
        self.bytes_under_way += request.weight();
        Some((request.message(cookie, has_fua), request.bytes()))
    }

    /// Returns whether the request with this cookie is a discard.
    pub(crate) fn is_advice(&self, cookie: u64) -> bool {
        self.all.get(&cookie).is_some_and(|request| request.command.is_advice())
    }

    /// The request with this cookie, if it was sent over this connection.
    pub(crate) fn sent_over(&self, cookie: u64, lane: usize) -> Option<&Request> {
        self.all.get(&cookie).filter(|request| request.sent.is_some_and(|(over, _)| over == lane))
    }

    /// Turns writes of zeros into writes of bytes, since the server does not support `WRITE_ZEROES`
    /// any more.
    pub(crate) fn write_zeros(&mut self) {
        let zeros = self.all.values_mut().filter(|request| matches!(request.command, Command::Zero));
        let mut longest = Bytes::new();
        for request in zeros {
            let len = request.len as usize;
            if longest.len() < len {
                longest = vec![0; len].into();
            }
            request.command = Command::Write { parts: vec![longest.slice(..len)], fua: false, is_urgent: false };
        }
    }

    /// Takes the writes within `at..end` that were not sent, since another write takes their place.
    pub(crate) fn supersede(&mut self, at: u64, end: u64) -> Vec<Request> {
        let is_inside = |request: &Request| {
            let is_write = matches!(request.command, Command::Write { .. }) && request.sent.is_none();
            is_write && request.of.is_none() && at <= request.at && request.at + u64::from(request.len) <= end
        };
        let inside: Vec<u64> =
            self.all.iter().filter(|(_, request)| is_inside(request)).map(|(cookie, _)| *cookie).collect();
        let superseded = inside.iter().filter_map(|cookie| self.all.remove(cookie)).collect();
        for queue in [&mut self.urgent, &mut self.changes] {
            queue.retain(|cookie| self.all.contains_key(cookie));
        }
        superseded
    }

    /// Removes a request that was sent.
    pub(crate) fn remove(&mut self, cookie: u64) -> Option<Request> {
        let request = self.all.remove(&cookie)?;
        self.under_way -= 1;
        self.flushes_under_way -= usize::from(request.command.is_flush());
        self.bytes_under_way -= request.weight();
        Some(request)
    }

    /// Has all requests sent again in the order of arrival, except for discards that were sent: the
    /// server may still execute these, whatever is sent after them.
    pub(crate) fn wait_again(&mut self) {
        let mut abandoned = std::mem::take(&mut self.abandoned);
        for (cookie, request) in self.take_whole() {
            if request.command.is_advice() && request.sent.is_some() {
                abandoned.push(request);
            } else {
                self.add(cookie, Request { sent: None, ..request });
            }
        }
        self.abandoned = abandoned;
    }

    /// Takes the discards that nobody waits for any longer: those whose connections have ended, and
    /// those that were sent so long ago. The server may execute them at any time.
    pub(crate) fn take_late_discards(&mut self, limit: Duration) -> Vec<Done> {
        let is_late = |request: &&mut Request| {
            let is_old = request.sent.is_some_and(|(_, sent)| sent.elapsed() >= limit);
            request.command.is_advice() && is_old && !request.is_given_up
        };
        let mut late: Vec<Done> = std::mem::take(&mut self.abandoned)
            .into_iter()
            .filter(|request| !request.is_given_up)
            .map(|request| request.done)
            .collect();
        for request in self.all.values_mut().filter(is_late) {
            request.is_given_up = true;
            late.push(std::mem::replace(&mut request.done, Box::new(drop)));
        }
        late
    }

    /// Notes the requests that were sent so long ago and were overtaken by others. Returns whether
    /// others have more room now.
    pub(crate) fn note_overtaken(&mut self, late: Duration, passed: &[u64]) -> bool {
        let is_slow = |request: &&Request| {
            request.sent.is_some_and(|(_, sent)| sent.elapsed() >= late) && request.is_overtaken(passed)
        };
        let bytes = self.all.values().filter(is_slow).map(Request::weight).sum();
        std::mem::replace(&mut self.overtaken_bytes, bytes) < bytes
    }

    /// Takes all requests: discards that were sent, which the server may execute at any time, and
    /// the others.
    pub(crate) fn take_all(&mut self) -> (Vec<Done>, Vec<Done>) {
        let abandoned = std::mem::take(&mut self.abandoned);
        let all = self.take_whole().into_values().chain(abandoned);
        let (sent, others): (Vec<_>, Vec<_>) = all.partition(|it| it.command.is_advice() && it.sent.is_some());
        let done = |requests: Vec<Request>| requests.into_iter().map(|request| request.done).collect();
        (done(sent), done(others))
    }

    /// Takes all requests as they came, with pieces joined again.
    fn take_whole(&mut self) -> BTreeMap<u64, Request> {
        let (mut all, mut wholes) = (std::mem::take(&mut self.all), std::mem::take(&mut self.wholes));
        for piece in all.values() {
            if let Some(whole) = piece.of.and_then(|of| wholes.get_mut(&of)) {
                let earlier = whole.request.since.into_iter().chain(piece.since).min();
                (whole.request.since, whole.request.tries) = (earlier, whole.request.tries.max(piece.tries));
                whole.request.is_given_up |= piece.is_given_up;
            }
        }
        all.retain(|_, request| request.of.is_none());
        all.extend(wholes.into_iter().map(|(cookie, whole)| (cookie, whole.request)));
        *self = Self { last_cookie: self.last_cookie, ..Self::default() };
        all
    }

    /// When the oldest request under way was sent.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.all.values().filter_map(|request| request.sent.map(|(_, sent)| sent)).min()
    }

    /// When the request that has waited longest, over any number of connections, was first sent.
    /// Discards don't count, since nobody depends on them.
    pub(crate) fn first_sent(&self) -> Option<Instant> {
        self.all.values().filter(|request| !request.command.is_advice()).filter_map(|request| request.since).min()
    }

    /// Returns whether a discard that nobody waits for any longer may still be answered.
    pub(crate) fn has_late_discard(&self) -> bool {
        self.all.values().any(|request| request.is_given_up && request.command.is_advice())
    }

    /// Returns whether a request under way gets no answer, given how many bytes have gone over each
    /// connection.
    pub(crate) fn has_unanswered(&self, limit: Duration, passed: &[u64]) -> bool {
        self.all.values().any(|request| request.is_unanswered(limit, passed))
    }

    /// Gives up requests that get no answer although they were sent again. Returns whether there
    /// are any.
    pub(crate) fn give_up(&mut self, limit: Duration, passed: &[u64]) -> bool {
        let mut hopeless = self.all.values_mut().filter(|request| request.is_hopeless(limit, passed)).peekable();
        let are_any = hopeless.peek().is_some();
        hopeless.for_each(|request| request.is_given_up = true);
        are_any
    }

    /// Takes the requests that were given up, when all connections have ended.
    pub(crate) fn take_given_up(&mut self) -> BTreeMap<u64, Request> {
        let abandoned = std::mem::take(&mut self.abandoned);
        let (given_up, rest): (BTreeMap<_, _>, _) =
            self.take_whole().into_iter().partition(|(_, request)| request.is_given_up);
        self.abandoned = abandoned;
        for (cookie, request) in rest {
            self.add(cookie, request);
        }
        given_up
    }

    /// The most connections over which a request without an answer was sent.
    pub(crate) fn most_tries(&self) -> u32 {
        self.all.values().map(|request| request.tries).max().unwrap_or(0)
    }

    /// Has the time of all requests count from now on.
    pub(crate) fn begin_to_wait(&mut self, now: Instant) {
        for request in self.all.values_mut() {
            request.since = request.since.map(|_| now);
            request.sent = request.sent.map(|(lane, _)| (lane, now));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether a request would change data that is needed.
    pub(crate) fn has_changes(&self) -> bool {
        self.all.values().any(|request| request.command.changes() && !request.command.is_advice())
    }
}

/// Divides a range into pieces of at most `largest` bytes.
pub(crate) fn pieces(at: u64, len: u64, largest: u32) -> impl Iterator<Item = (u64, u32)> {
    let end = at + len;
    let next = move |start: u64| (start + u64::from(largest) < end).then(|| start + u64::from(largest));
    std::iter::successors((len > 0).then_some(at), move |start| next(*start))
        .map(move |start| (start, (end - start).min(u64::from(largest)) as u32))
}

/// Returns `len` bytes of these parts from the offset `from` on.
pub(crate) fn cut(parts: &[Bytes], from: usize, len: usize) -> Vec<Bytes> {
    let (mut skip, mut left) = (from, len);
    let mut taken = Vec::new();
    for part in parts {
        let start = skip.min(part.len());
        skip -= start;
        let end = part.len().min(start + left);
        left -= end - start;
        if start < end {
            taken.push(part.slice(start..end));
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 1 << 20;

    fn add(requests: &mut Requests, command: Command, len: u32) -> u64 {
        let cookie = requests.next_cookie();
        requests.add(cookie, Request::new(command, 0, len, Box::new(drop)));
        cookie
    }

    #[test]
    fn ranges_are_cut_into_pieces() {
        let all = |at, len, largest| pieces(at, len, largest).collect::<Vec<_>>();
        assert_eq!(all(10, 0, 4), []);
        assert_eq!(all(10, 4, 4), [(10, 4)]);
        assert_eq!(all(10, 9, 4), [(10, 4), (14, 4), (18, 1)]);
        let parts = [Bytes::from_static(b"abc"), Bytes::from_static(b"defg")];
        assert_eq!(cut(&parts, 2, 3), [Bytes::from_static(b"c"), Bytes::from_static(b"de")]);
        assert_eq!(cut(&parts, 3, 4), [Bytes::from_static(b"defg")]);
    }

    #[test]
    fn what_is_too_long_goes_in_pieces_and_is_whole_again_when_a_connection_breaks() {
        let mut requests = Requests::default();
        let read = add(&mut requests, Command::Read, 10);
        let after = add(&mut requests, Command::Read, 4);
        let piece = |requests: &mut Requests| {
            let cookie = requests.take_next(100, true, 4)?;
            requests.send(cookie, (0, 0), true).map(|_| cookie)
        };
        let first = piece(&mut requests).unwrap();
        assert!(requests.all[&first].of == Some(read) && !requests.all.contains_key(&read));
        requests.wait_again();
        assert_eq!(requests.all.keys().copied().collect::<Vec<_>>(), [read, after]);
        let sent: Vec<u64> = std::iter::from_fn(|| piece(&mut requests)).collect();
        assert!(sent.len() == 4 && sent[3] == after, "in the order in which they came: {sent:?}");
        let mut whole = None;
        for cookie in [sent[2], sent[0], sent[1]] {
            assert!(whole.is_none());
            let piece = requests.remove(cookie).unwrap();
            let bytes = (piece.at..piece.at + u64::from(piece.len)).map(|byte| byte as u8).collect();
            whole = requests.gather(read, &piece, Ok(bytes));
        }
        let (request, bytes) = whole.unwrap();
        assert_eq!((request.len, bytes), (10, Ok((0..10).collect())));
        requests.remove(after).unwrap();
        assert!(requests.is_empty() && requests.take_all().1.is_empty());
    }

    fn sent(requests: &mut Requests, window: usize, may_change: bool) -> Vec<u64> {
        let next = || {
            let cookie = requests.take_next(window, may_change, MAX)?;
            requests.send(cookie, (0, 0), true).map(|_| cookie)
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
    fn a_flush_waits_for_the_one_under_way_and_takes_others_along() {
        let mut requests = Requests::default();
        let (sender, results) = std::sync::mpsc::channel();
        let flush = |requests: &mut Requests, covers, is_own| {
            let (cookie, sender) = (requests.next_cookie(), sender.clone());
            let done = Box::new(move |result: io::Result<_>| sender.send((cookie, result.is_ok())).unwrap());
            requests.add(cookie, Request::new(Command::Flush { covers, is_own }, 0, 0, done));
            cookie
        };
        let first = flush(&mut requests, 1, false);
        assert_eq!(sent(&mut requests, 100, true), [first]);
        let later = [flush(&mut requests, 2, false), flush(&mut requests, 3, true), flush(&mut requests, 4, false)];
        assert!(sent(&mut requests, 100, true).is_empty());
        (requests.remove(first).unwrap().done)(Ok(Vec::new()));
        assert_eq!(sent(&mut requests, 100, true), later[..1]);
        requests.wait_again();
        let after = flush(&mut requests, 5, false);
        assert_eq!(sent(&mut requests, 100, true), later[..1], "all are under way again, as one");
        let joined = requests.remove(later[0]).unwrap();
        assert!(matches!(joined.command, Command::Flush { covers: 5, is_own: true }));
        (joined.done)(Err(io::Error::other("no")));
        let answers: Vec<_> = results.try_iter().collect();
        assert_eq!(answers, [(first, true), (later[0], false), (later[1], false), (later[2], false), (after, false)]);
        assert!(requests.is_empty());
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

//! The requests of an export, over connections that may break.
//!
//! ```text
//!           install: verified, written again, all that has no answer is sent again
//!      ┌───────────────────────────────────────────────────────────────┐
//!      ▼                                                               │
//!     up ── break_link: the connection ends, or nothing is answered ──▶ away
//!                                                                      │ └─ expire ─▶ away, and nobody
//!                                  refuse: another export than before  │              waits any more
//!                                                                      ▼
//!                                                                   refused, for good
//! ```
//!
//! A request is in `outstanding` from when it is submitted until it is answered. A write is in
//! `kept` besides, until a flush is answered that was asked for after its answer (`kept`, invariant
//! 32), or until its own answer if that says that it is durable. So after any number of crashes of
//! the server all that was acknowledged and not flushed is there again before the next request is
//! answered.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::abi::{
    CMD_DISC, CMD_FLAG_FUA, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, ESHUTDOWN, SEND_WRITE_ZEROES,
    has, request,
};
use crate::channel::Channel;
use crate::connect::Link;
use crate::kept::Kept;
use crate::negotiate::Export;
use crate::reply::{Answer, Expected};
use crate::uri::Uri;
use crate::witness::Witness;

/// Requests that have no answer yet, at most …
const MOST_REQUESTS: usize = 128;
/// … and their bytes.
const MOST_BYTES: usize = 32 << 20;
/// Of more than this a flush is asked for, without waiting for it …
const MUCH_KEPT: usize = 32 << 20;
/// … and beyond this writers wait for it.
const MOST_KEPT: usize = 64 << 20;
/// From how many bytes on zeros are not sent.
const MANY_ZEROS: usize = 64 << 10;

/// How long the last message may take.
const GOODBYE: Duration = Duration::from_secs(1);

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
    fn changes(&self) -> bool {
        !matches!(self, Self::Read)
    }
}

struct Request {
    command: Command,
    at: u64,
    len: u32,
    /// Over which connection it was sent, if it was.
    lane: Option<usize>,
    done: Done,
}

/// One connection.
struct Lane {
    line: Arc<Line>,
    outstanding: usize,
    /// When it was last heard from, or began to have something to answer.
    heard: Instant,
}

/// Where requests are sent, one at a time.
pub(crate) struct Line {
    channel: Arc<Channel>,
    sending: Mutex<()>,
}

/// How things are with the server.
pub(crate) enum Phase {
    Up,
    Away { since: Instant, why: String, is_expired: bool },
    Refused(String),
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Changes whenever connections end: what comes over older ones is not listened to.
    epoch: u64,
    lanes: Vec<Lane>,
    outstanding: BTreeMap<u64, Request>,
    outstanding_bytes: usize,
    next_cookie: u64,
    /// Answered writes.
    answers: u64,
    pub(crate) kept: Kept,
    pub(crate) witnesses: Vec<Witness>,
    /// A flush of our own is on its way.
    flushes_itself: bool,
    /// Since when nothing has been answered, over any number of connections.
    trouble: Option<Instant>,
    /// Acknowledged writes are lost: nothing is written any more.
    lost: Option<String>,
    pub(crate) is_connecting: bool,
    pub(crate) is_closing: bool,
}

/// An export, its requests, and its connections.
pub(crate) struct Session {
    pub(crate) uri: Uri,
    pub(crate) export: Export,
    pub(crate) connections: usize,
    pub(crate) timeout: Duration,
    pub(crate) state: Mutex<State>,
    /// Something of the state has changed.
    pub(crate) changed: Condvar,
}

/// What is sent after the state was unlocked.
struct Message {
    line: Arc<Line>,
    epoch: u64,
    header: [u8; 28],
    parts: Vec<Bytes>,
}

impl Session {
    pub(crate) fn new(
        uri: Uri,
        export: Export,
        connections: usize,
        timeout: Duration,
        witnesses: Vec<Witness>,
    ) -> Self {
        let state = State {
            phase: Phase::Away { since: Instant::now(), why: String::new(), is_expired: false },
            epoch: 0,
            lanes: Vec::new(),
            outstanding: BTreeMap::new(),
            outstanding_bytes: 0,
            next_cookie: 1,
            answers: 0,
            kept: Kept::default(),
            witnesses,
            flushes_itself: false,
            trouble: None,
            lost: None,
            is_connecting: false,
            is_closing: false,
        };
        Self { uri, export, connections, timeout, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sends a request, or keeps it for when the server is back. Waits while too much is under way.
    pub(crate) fn submit(&self, command: Command, at: u64, len: u32, done: Done) {
        let mut state = self.state.lock();
        loop {
            if let Some(why) = state.refusal(&command) {
                drop(state);
                return done(Err(self.failure(&why)));
            }
            let is_flush = matches!(command, Command::Flush { .. });
            if is_flush || state.has_room(&command, len as usize) {
                break;
            }
            if state.needs_flush(MOST_KEPT) {
                self.flush_itself(&mut state);
            } else {
                self.changed.wait(&mut state);
            }
        }
        let message = self.add(&mut state, command, at, len, done);
        if state.needs_flush(MUCH_KEPT) {
            self.flush_itself(&mut state);
        }
        drop(state);
        if let Some(message) = message {
            self.send(&message);
        }
    }

    /// Makes a request known, and gives it to a connection.
    fn add(&self, state: &mut State, mut command: Command, at: u64, len: u32, done: Done) -> Option<Message> {
        let cookie = state.next_cookie;
        state.next_cookie += 1;
        let end = at + u64::from(len);
        match &mut command {
            Command::Write { parts, fua } => {
                state.kept.write(at, parts, cookie);
                state.witnesses.iter_mut().for_each(|witness| witness.write(at, parts, cookie));
                let is_zero = || parts.iter().all(|part| part.iter().all(|byte| *byte == 0));
                if !*fua && len as usize >= MANY_ZEROS && has(self.export.flags, SEND_WRITE_ZEROES) && is_zero() {
                    command = Command::Zero;
                }
            }
            Command::Trim => {
                state.kept.forget(at, end);
                state.witnesses.iter_mut().for_each(|witness| witness.forget(at, end));
            }
            Command::Flush { covers, .. } => *covers = state.answers,
            Command::Read | Command::Zero => {}
        }
        state.outstanding_bytes += len as usize;
        state.outstanding.insert(cookie, Request { command, at, len, lane: None, done });
        matches!(state.phase, Phase::Up).then(|| state.assign(cookie)).flatten()
    }

    /// Asks for a flush that nobody waits for.
    fn flush_itself(&self, state: &mut MutexGuard<'_, State>) {
        state.flushes_itself = true;
        let command = Command::Flush { covers: 0, is_own: true };
        if let Some(message) = self.add(state, command, 0, 0, Box::new(|_| ())) {
            MutexGuard::unlocked(state, || self.send(&message));
        }
    }

    fn send(&self, message: &Message) {
        let mut parts: Vec<&[u8]> = vec![&message.header];
        parts.extend(message.parts.iter().map(|part| &**part));
        let turn = message.line.sending.lock();
        let sent = message.line.channel.send(&parts);
        drop(turn);
        if let Err(error) = sent {
            self.break_link(message.epoch, &error.to_string());
        }
    }

    /// What a reply with this cookie may answer.
    pub(crate) fn expected(&self, epoch: u64, lane: usize, cookie: u64) -> Option<Expected> {
        let state = self.state.lock();
        let request =
            state.outstanding.get(&cookie).filter(|request| state.epoch == epoch && request.lane == Some(lane))?;
        let reads = matches!(request.command, Command::Read).then_some(request.len);
        Some(Expected { at: request.at, reads })
    }

    /// A part of a reply has come.
    pub(crate) fn heard(&self, epoch: u64, lane: usize) {
        let mut state = self.state.lock();
        if state.epoch == epoch {
            state.lanes[lane].heard = Instant::now();
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self, epoch: u64, lane: usize, answer: Answer) {
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return;
        }
        if answer.result.as_ref().is_err_and(|refusal| refusal.errno == ESHUTDOWN) {
            drop(state);
            return self.break_link(epoch, "the server is being shut down");
        }
        let Some(request) = state.outstanding.remove(&answer.cookie) else { return };
        state.outstanding_bytes -= request.len as usize;
        state.trouble = None;
        state.lanes[lane].outstanding -= 1;
        state.lanes[lane].heard = Instant::now();
        let end = request.at + u64::from(request.len);
        match (&request.command, &answer.result) {
            (Command::Write { .. } | Command::Zero, Ok(_)) => {
                state.answers += 1;
                let answers = state.answers;
                state.kept.answered(request.at, end, answer.cookie, answers);
                state.witnesses.iter_mut().for_each(|witness| witness.answered(answer.cookie, answers));
                if matches!(request.command, Command::Write { fua: true, .. }) {
                    state.kept.is_over(request.at, end, answer.cookie);
                    state.witnesses.iter_mut().for_each(|witness| witness.durable(answer.cookie));
                }
            }
            (Command::Write { .. } | Command::Zero, Err(_)) => state.kept.is_over(request.at, end, answer.cookie),
            (Command::Flush { covers, .. }, Ok(_)) => {
                state.kept.flushed(*covers);
                state.witnesses.iter_mut().for_each(|witness| witness.flushed(*covers));
            }
            (Command::Flush { .. }, Err(refusal)) => {
                // The server may have dropped what it could not write: the next flush says nothing.
                state.lost.get_or_insert(format!("a flush failed: {}", refusal.to_io()));
            }
            (Command::Read | Command::Trim, _) => {}
        }
        if matches!(request.command, Command::Flush { is_own: true, .. }) {
            state.flushes_itself = false;
        }
        self.changed.notify_all();
        drop(state);
        (request.done)(answer.result.map_err(|refusal| {
            let error = refusal.to_io();
            io::Error::new(error.kind(), format!("{}: {error}", self.uri))
        }));
    }

    /// The connections of an epoch are of no use any more.
    pub(crate) fn break_link(&self, epoch: u64, why: &str) {
        let mut state = self.state.lock();
        if state.epoch == epoch && matches!(state.phase, Phase::Up) {
            self.leave(&mut state, Instant::now(), why);
        }
    }

    fn leave(&self, state: &mut State, since: Instant, why: &str) {
        tracing::warn!("{}: the connection is made again: {why}", self.uri);
        state.epoch += 1;
        let since = *state.trouble.get_or_insert(since);
        state.phase = Phase::Away { since, why: why.into(), is_expired: false };
        for lane in state.lanes.drain(..) {
            lane.line.channel.end();
        }
        state.outstanding.values_mut().for_each(|request| request.lane = None);
        self.changed.notify_all();
    }

    /// Ends connections over which nothing has come for too long.
    pub(crate) fn look_for_silence(&self, state: &mut State) {
        let limit = self.timeout / 2;
        let silent = state.lanes.iter().filter(|lane| lane.outstanding > 0).map(|lane| lane.heard).min();
        if let Some(heard) = silent.filter(|heard| heard.elapsed() > limit) {
            self.leave(state, heard, &format!("no answer for {} seconds", heard.elapsed().as_secs()));
        }
    }

    /// Nobody waits for the server any more.
    pub(crate) fn expire(&self, state: &mut MutexGuard<'_, State>) {
        let Phase::Away { why, is_expired, .. } = &mut state.phase else { return };
        *is_expired = true;
        let why = format!("the server has been away for {} seconds ({why})", self.timeout.as_secs());
        let is_lost = !state.kept.is_empty() || state.outstanding.values().any(|request| request.command.changes());
        if is_lost {
            state.lost.get_or_insert(format!("{why}, and what was written meanwhile is lost"));
        }
        tracing::error!("{}: {why}", self.uri);
        self.fail_all(state, &why);
    }

    /// The export is not what it was: nothing is read or written any more.
    pub(crate) fn refuse(&self, why: &str) {
        let mut state = self.state.lock();
        tracing::error!("{}: {why}", self.uri);
        state.phase = Phase::Refused(why.into());
        self.fail_all(&mut state, why);
    }

    fn fail_all(&self, state: &mut MutexGuard<'_, State>, why: &str) {
        state.kept.clear();
        state.outstanding_bytes = 0;
        state.flushes_itself = false;
        let failed = std::mem::take(&mut state.outstanding);
        self.changed.notify_all();
        MutexGuard::unlocked(state, || {
            for request in failed.into_values() {
                (request.done)(Err(self.failure(why)));
            }
        });
    }

    /// Takes connections to the verified export: what is submitted from now on is sent at once, and
    /// what was before is to be [sent again](Self::send_again). Returns the new epoch, and the
    /// cookie at which the former begins.
    pub(crate) fn install(&self, links: &[Link]) -> io::Result<(u64, u64)> {
        for link in links {
            link.channel.limit(None)?;
        }
        let mut state = self.state.lock();
        if state.is_closing {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.epoch += 1;
        let heard = Instant::now();
        let line = |link: &Link| Arc::new(Line { channel: Arc::clone(&link.channel), sending: Mutex::new(()) });
        state.lanes = links.iter().map(|link| Lane { line: line(link), outstanding: 0, heard }).collect();
        state.phase = Phase::Up;
        if state.outstanding.is_empty() {
            state.trouble = None;
        }
        Ok((state.epoch, state.next_cookie))
    }

    /// Sends everything up to that cookie that has no answer, in the order of submission.
    pub(crate) fn send_again(&self, before: u64) {
        let mut after = 0;
        loop {
            let mut state = self.state.lock();
            let next = state.outstanding.range(after..before).next().map(|(cookie, _)| *cookie);
            let (Phase::Up, Some(cookie)) = (&state.phase, next) else { return };
            after = cookie + 1;
            let message = state.assign(cookie);
            drop(state);
            if let Some(message) = message {
                self.send(&message);
            }
        }
    }

    /// Says goodbye to the server.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closing = true;
        for lane in state.lanes.drain(..) {
            // Who is sending is in the middle of a request; and a server that hangs takes nothing.
            if let Some(_turn) = lane.line.sending.try_lock()
                && lane.line.channel.limit(Some(GOODBYE)).is_ok()
            {
                let _ = lane.line.channel.send(&[&request(0, CMD_DISC, 0, 0, 0)]);
            }
            lane.line.channel.end();
        }
        state.epoch += 1;
        self.fail_all(&mut state, "the device is closed");
    }

    pub(crate) fn failure(&self, why: &str) -> io::Error {
        io::Error::other(format!("{}: {why}", self.uri))
    }
}

impl State {
    /// This process was stopped for a while, or its machine: that says nothing of the server.
    pub(crate) fn wake_up(&mut self) {
        let now = Instant::now();
        self.lanes.iter_mut().for_each(|lane| lane.heard = now);
        self.trouble = self.trouble.map(|_| now);
        if let Phase::Away { since, .. } = &mut self.phase {
            *since = now;
        }
    }

    /// Acknowledged writes are lost.
    pub(crate) fn lose(&mut self, why: String) {
        self.lost.get_or_insert(why);
    }

    /// Why a request can't be served.
    fn refusal(&self, command: &Command) -> Option<String> {
        match &self.phase {
            _ if self.is_closing => Some("the device is closed".into()),
            Phase::Refused(why) => Some(why.clone()),
            Phase::Away { why, is_expired: true, .. } => Some(format!("the server is away ({why})")),
            _ => self.lost.clone().filter(|_| command.changes()),
        }
    }

    fn has_room(&self, command: &Command, len: usize) -> bool {
        let is_write = matches!(command, Command::Write { .. });
        let is_kept_full = self.kept.bytes() >= MOST_KEPT || self.witnesses.iter().any(Witness::is_full);
        let is_full = self.outstanding.len() >= MOST_REQUESTS || self.outstanding_bytes + len > MOST_BYTES;
        !(is_write && is_kept_full) && (!is_full || self.outstanding.is_empty())
    }

    /// Whether so much is kept that a flush of our own is wanted, and there is none.
    fn needs_flush(&self, limit: usize) -> bool {
        let is_full = self.kept.bytes() >= limit || self.witnesses.iter().any(Witness::is_full);
        is_full && !self.flushes_itself
    }

    /// Gives a request to the connection that has the least to do.
    fn assign(&mut self, cookie: u64) -> Option<Message> {
        let lane = (0..self.lanes.len()).min_by_key(|lane| self.lanes[*lane].outstanding)?;
        let request = self.outstanding.get_mut(&cookie)?;
        request.lane = Some(lane);
        let lane = &mut self.lanes[lane];
        if lane.outstanding == 0 {
            lane.heard = Instant::now();
        }
        lane.outstanding += 1;
        let (command, parts) = match &request.command {
            Command::Read => (CMD_READ, Vec::new()),
            Command::Write { parts, .. } => (CMD_WRITE, parts.clone()),
            Command::Zero => (CMD_WRITE_ZEROES, Vec::new()),
            Command::Flush { .. } => (CMD_FLUSH, Vec::new()),
            Command::Trim => (CMD_TRIM, Vec::new()),
        };
        let flags = if matches!(request.command, Command::Write { fua: true, .. }) { CMD_FLAG_FUA } else { 0 };
        let header = crate::abi::request(flags, command, cookie, request.at, request.len);
        Some(Message { line: Arc::clone(&lane.line), epoch: self.epoch, header, parts })
    }
}

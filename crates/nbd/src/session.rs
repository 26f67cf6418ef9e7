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
//! A request is in `requests` from its submission until its answer. A write is also in `kept`,
//! until the answer to a flush that was requested after the write's answer (`kept`, invariant 32),
//! or until its own answer if that says that it is durable. So after any number of crashes of the
//! server, all writes that were acknowledged and not flushed are written again before the next
//! request is answered.
//!
//! If a writer has a lease, its connections end before the lease does (`lease`, invariant 55).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ubtrfs_errors::sentence;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use crate::abi::{EIO, ESHUTDOWN, MAX_REQUEST, SEND_FUA, SEND_WRITE_ZEROES, has};
use crate::connect::Link;
use crate::kept::Kept;
use crate::lane::{Lane, Line};
use crate::lease::Lease;
use crate::negotiate::Export;
use crate::reply::{Answer, Expected, Refusal};
use crate::requests::{Command, Done, Request, Requests};
use crate::uri::Uri;
use crate::watch::Watch;
use crate::window::Window;
use crate::witness::Witness;

/// The unit of addresses and lengths of writes.
pub(crate) const BLOCK: u32 = 4096;
/// If more bytes than this are kept, a flush is requested, without waiting for it …
const MUCH_KEPT: usize = 32 << 20;
/// … and beyond this, changes wait for it.
const MAX_KEPT: usize = 64 << 20;
/// From how many bytes on zeros are sent as `WRITE_ZEROES`.
const MANY_ZEROS: usize = 64 << 10;
/// The time within which requests must be answered if there is a lease, since extending it takes
/// two of them.
const LATE: Duration = Duration::from_secs(2);

/// The pause before the next connection, if a request was sent over several connections in vain.
/// Each further one doubles it, up to 64 times.
const FIRST_REST: Duration = Duration::from_millis(25);
/// How long requests still wait for a server when nobody waits for them any more.
const UNAWAITED: Duration = Duration::from_secs(5);

/// The state of the connection to the server.
pub(crate) enum Phase {
    Up,
    Away { since: Instant, why: String, is_expired: bool },
    Refused(String),
}

pub(crate) struct SessionState {
    pub(crate) phase: Phase,
    /// Changes whenever connections end; what comes over older ones is ignored.
    epoch: u64,
    lanes: Vec<Lane>,
    /// The flags that the servers of all connections offer, among those of the first one.
    flags: u16,
    /// The most bytes of a request that all of them accept.
    largest_request: u32,
    requests: Requests,
    window: Window,
    /// The number of answered writes.
    pub(crate) answers: u64,
    pub(crate) kept: Kept,
    pub(crate) witnesses: Vec<Witness>,
    /// Whether a flush of our own is under way.
    flushes_itself: bool,
    /// Since when no request has been answered, over any number of connections.
    trouble: Option<Instant>,
    /// Since when nobody waits for a server that is away.
    unawaited: Option<Instant>,
    /// The connection over which lost writes are written again, and the deadline for that.
    pub(crate) writing_again: Option<(Watch, Instant)>,
    /// Set if acknowledged writes are lost. Nothing is written any more then.
    lost: Option<Loss>,
    pub(crate) is_connecting: bool,
    pub(crate) is_closing: bool,
}

/// Why acknowledged writes are lost.
struct Loss {
    why: String,
    /// Whether what the server may have dropped is still in `kept`, since only a flush has failed.
    is_kept: bool,
}

/// An export, its requests, and its connections.
pub(crate) struct Session {
    pub(crate) uri: Uri,
    pub(crate) export: Export,
    pub(crate) connections: usize,
    pub(crate) timeout: Duration,
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) state: Mutex<SessionState>,
    /// Signals that the state has changed.
    pub(crate) changed: Condvar,
}

impl Session {
    pub(crate) fn new(
        uri: Uri,
        export: Export,
        connections: usize,
        timeout: Duration,
        witnesses: Vec<Witness>,
        lease: Option<Arc<Lease>>,
    ) -> Self {
        let state = SessionState {
            phase: Phase::Away { since: Instant::now(), why: String::new(), is_expired: false },
            epoch: 0,
            lanes: Vec::new(),
            flags: export.flags,
            largest_request: export.largest_request.min(MAX_REQUEST),
            requests: Requests::default(),
            window: Window::new(late(timeout, lease.as_deref())),
            answers: 0,
            kept: Kept::default(),
            witnesses,
            flushes_itself: false,
            trouble: None,
            unawaited: None,
            writing_again: None,
            lost: None,
            is_connecting: false,
            is_closing: false,
        };
        let state = Mutex::new(Rank::NbdSession, state);
        Self { uri, export, connections, timeout, lease, state, changed: Condvar::new() }
    }

    /// Submits a request. It is sent when there is room for it and the server is there. The caller
    /// does not wait for other requests, unless it waits for the answer of this one anyway.
    pub(crate) fn submit(&self, mut command: Command, at: u64, len: u32, done: Done) {
        let is_waited_for = !command.is_write();
        let mut state = self.state.lock();
        if let Some(why) = state.refusal(&command) {
            drop(state);
            return done(Err(self.failure(&why)));
        }
        if command.is_advice() && state.requests.has_late_discard() {
            drop(state);
            // The discard is not sent, so its range may be reused.
            return done(Err(self.failure("an earlier discard has no answer yet")));
        }
        let cookie = state.requests.next_cookie();
        let end = at + u64::from(len);
        match &mut command {
            Command::Write { parts, fua, .. } => {
                state.kept.write(at, parts, cookie);
                state.witnesses.iter_mut().for_each(|witness| witness.write(at, parts, cookie));
                let is_zero = || parts.iter().all(|part| part.iter().all(|byte| *byte == 0));
                if !*fua && len as usize >= MANY_ZEROS && has(state.flags, SEND_WRITE_ZEROES) && is_zero() {
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
        state.requests.add(cookie, Request::new(command, at, len, done));
        let own = state.dispatch(is_waited_for.then_some(cookie));
        let epoch = state.epoch;
        drop(state);
        if let Some(line) = own
            && let Err(error) = line.send_queued()
        {
            self.break_link(epoch, &sentence(&error));
        }
    }

    /// Returns whether the present or last server supports these requests.
    pub(crate) fn offers(&self, flag: u16) -> bool {
        has(self.state.lock().flags, flag)
    }

    /// The most bytes that one request should have. A slow server gets smaller requests, so that
    /// answers come often enough.
    pub(crate) fn largest_request(&self) -> u32 {
        let state = self.state.lock();
        state.largest_request.min(state.window.bytes() as u32)
    }

    /// The request that a reply with this cookie may answer.
    pub(crate) fn expected(&self, epoch: u64, lane: usize, cookie: u64) -> Option<Expected> {
        let state = self.state.lock();
        let request = state.requests.sent_over(cookie, lane).filter(|_| state.epoch == epoch)?;
        let reads = matches!(request.command, Command::Read).then_some(request.len);
        Some(Expected { at: request.at, reads })
    }

    /// Processes the answer to a request.
    pub(crate) fn answered(&self, epoch: u64, lane: usize, answer: Answer) {
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return;
        }
        if answer.result.as_ref().is_err_and(|refusal| refusal.errno == ESHUTDOWN) {
            drop(state);
            return self.break_link(epoch, "the server is being shut down");
        }
        let Some(request) = state.requests.remove(answer.cookie) else { return };
        state.trouble = None;
        // The time of a discard says nothing about other requests.
        let is_advice = request.command.is_advice();
        state.lanes[lane].outstanding -= 1;
        state.lanes[lane].advice -= usize::from(is_advice);
        state.lanes[lane].outstanding_bytes -= request.bytes();
        state.lanes[lane].watch.hear();
        if let Some((_, sent)) = request.sent.filter(|_| !is_advice) {
            state.window.answered(request.len as usize, sent, Instant::now());
        }
        let (request, cookie, mut result) = match request.of {
            None => (request, answer.cookie, answer.result),
            Some(of) => {
                let Some((request, result)) = state.requests.gather(of, &request, answer.result) else {
                    state.dispatch(None);
                    return;
                };
                (request, of, result)
            }
        };
        let end = request.at + u64::from(request.len);
        match (&request.command, &result) {
            (Command::Write { .. } | Command::Zero, Ok(_)) => {
                state.answers += 1;
                let answers = state.answers;
                state.kept.answered(request.at, end, cookie, answers);
                state.witnesses.iter_mut().for_each(|witness| witness.answered(cookie, answers));
                if matches!(request.command, Command::Write { fua: true, .. }) {
                    if !has(state.flags, SEND_FUA) {
                        // The server does not support FUA any more, so a flush has to follow.
                        let cookie = state.requests.next_cookie();
                        let flush = Command::Flush { covers: answers, is_own: false };
                        state.requests.add(cookie, Request::new(flush, 0, 0, request.done));
                        state.dispatch(None);
                        return;
                    }
                    state.kept.is_over(request.at, end, cookie);
                    state.witnesses.iter_mut().for_each(|witness| witness.durable(cookie));
                }
            }
            (Command::Write { .. } | Command::Zero, Err(_)) => state.kept.is_over(request.at, end, cookie),
            (Command::Flush { .. }, Ok(_)) if state.lost.is_some() => {
                // A successful flush says nothing about writes that a failed flush was for.
                result = Err(Refusal { errno: EIO, said: "a flush before it has failed".into() });
            }
            (Command::Flush { covers, .. }, Ok(_)) => {
                state.kept.flushed(*covers);
                state.witnesses.iter_mut().for_each(|witness| witness.flushed(*covers));
            }
            (Command::Flush { .. }, Err(refusal)) => {
                // The server may have dropped what it could not write, so a later successful flush
                // would prove nothing.
                state.fail_flush(&refusal.to_io());
            }
            (Command::Read | Command::Trim, _) => {}
        }
        if matches!(request.command, Command::Flush { is_own: true, .. }) {
            state.flushes_itself = false;
        }
        state.dispatch(None);
        drop(state);
        (request.done)(result.map_err(|refusal| {
            let error = refusal.to_io();
            io::Error::new(error.kind(), format!("{}: {}", self.uri, sentence(&error)))
        }));
    }

    /// Ends the connections of an epoch, which are of no use any more.
    pub(crate) fn break_link(&self, epoch: u64, why: &str) {
        let mut state = self.state.lock();
        if state.epoch == epoch && matches!(state.phase, Phase::Up) {
            self.leave(&mut state, Instant::now(), why);
        }
    }

    fn leave(&self, state: &mut SessionState, since: Instant, why: &str) {
        tracing::warn!("{}: the connection is made again: {why}", self.uri);
        state.epoch += 1;
        let since = *state.trouble.get_or_insert(since);
        state.phase = Phase::Away { since, why: why.into(), is_expired: false };
        for lane in state.lanes.drain(..) {
            lane.line.end(false);
        }
        state.requests.wait_again();
        self.changed.notify_all();
    }

    /// Ends the connections if nothing has come over one of them for too long.
    pub(crate) fn look_for_silence(&self, state: &mut SessionState) {
        let limit = self.timeout / 2;
        if let Some(heard) = state.silent_since().filter(|heard| heard.elapsed() > limit) {
            self.leave(state, heard, &format!("no answer for {} seconds", heard.elapsed().as_secs()));
        }
    }

    /// Ends the connections if the server answers other requests, but not a certain one. That
    /// request is sent once more, and fails if it gets no answer then either.
    pub(crate) fn look_for_unanswered(&self, state: &mut MutexGuard<'_, SessionState>) {
        let limit = self.timeout;
        let passed: Vec<u64> = state.lanes.iter().map(|lane| lane.watch.passed()).collect();
        if state.requests.note_overtaken(late(self.timeout, self.lease.as_deref()), &passed) {
            state.dispatch(None);
        }
        let discards = state.requests.take_late_discards(limit);
        if !discards.is_empty() {
            MutexGuard::unlocked(state, || {
                for done in discards {
                    done(Err(self.no_answer_to_discard()));
                }
            });
        }
        let is_hopeless = state.requests.give_up(limit, &passed);
        let is_unanswered = is_hopeless || state.requests.has_unanswered(limit, &passed);
        if is_unanswered && matches!(state.phase, Phase::Up) {
            let waited = state.requests.oldest().map_or(0, |sent| sent.elapsed().as_secs());
            self.leave(state, Instant::now(), &format!("no answer to one request for {waited} seconds"));
        }
        if !is_hopeless {
            return;
        }
        let why = format!("no answer to this request for {} seconds", limit.as_secs());
        let failed = state.requests.take_given_up();
        for (cookie, request) in &failed {
            tracing::error!("{}: {why}, though others are answered", self.uri);
            match request.command {
                Command::Write { .. } | Command::Zero => {
                    state.kept.is_over(request.at, request.at + u64::from(request.len), *cookie);
                }
                Command::Flush { is_own, .. } => {
                    state.fail_flush(&io::Error::other(why.as_str()));
                    state.flushes_itself &= !is_own;
                }
                Command::Read | Command::Trim => {}
            }
        }
        MutexGuard::unlocked(state, || {
            for request in failed.into_values() {
                (request.done)(Err(self.failure(&why)));
            }
        });
    }

    /// The pause before the next connection, so that a request by which a server ends every
    /// connection is not sent again and again without a pause.
    pub(crate) fn rest(&self) -> Duration {
        let tries = self.state.lock().requests.most_tries();
        FIRST_REST.saturating_mul(1 << tries.saturating_sub(2).min(6)) * u32::from(tries > 2)
    }

    /// Ends the connections if the lease is about to end.
    pub(crate) fn look_at_lease(&self, state: &mut SessionState, soon: Duration) {
        if self.lease.as_ref().is_some_and(|lease| !lease.lasts(soon)) {
            self.leave(state, Instant::now(), "it is not certain any more that nobody else writes");
        }
    }

    /// Watches the writing of what the server may have lost, during which the server does not count
    /// as away.
    pub(crate) fn look_at_writing_again(&self, state: &mut SessionState) {
        let Some((watch, until)) = &mut state.writing_again else { return };
        let heard = watch.look();
        let is_over = state.unawaited.is_some_and(|since| since.elapsed() > 2 * UNAWAITED) || Instant::now() > *until;
        if is_over || heard.elapsed() > self.timeout / 2 {
            watch.end();
        }
        if is_over {
            return;
        }
        if let Phase::Away { since, is_expired: false, .. } = &mut state.phase
            && *since < heard
        {
            *since = heard;
            state.trouble = Some(heard);
        }
    }

    /// Notes that nobody waits any more for a server that is away.
    pub(crate) fn stop_waiting(&self) {
        self.state.lock().unawaited.get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    /// Lets writes through again. If they fail since a flush has failed, first writes what was not
    /// durable then once more, over another connection: that the server still returns it is no
    /// proof that it is written. If a server is back that had been away for too long, goes on
    /// without what was not durable then, which the caller knows.
    pub(crate) fn write_again(&self) {
        let mut state = self.state.lock();
        let is_up = matches!(state.phase, Phase::Up);
        let Some(lost) = state.lost.take_if(|lost| lost.is_kept || is_up) else { return };
        if lost.is_kept && is_up {
            self.leave(&mut state, Instant::now(), "a flush failed, and what it was for is written again");
        }
    }

    /// Makes requests fail that have waited long enough for a server that is away.
    pub(crate) fn look_for_the_end(&self, state: &mut MutexGuard<'_, SessionState>) {
        if let Some(unawaited) = state.unawaited
            && unawaited.elapsed() >= UNAWAITED
        {
            if let Some(heard) = state.silent_since().filter(|heard| heard.elapsed() >= UNAWAITED) {
                self.leave(state, heard, "no answer, and nobody waits any more");
            }
            // Such a server answers other requests, gives a byte now and then, or ends all
            // connections.
            let is_unanswered = state.requests.first_sent().is_some_and(|sent| sent.elapsed() >= 2 * UNAWAITED);
            if is_unanswered && matches!(state.phase, Phase::Up) {
                self.leave(state, Instant::now(), "no answer to one request, and nobody waits any more");
            }
            let is_away = |since: Instant| is_unanswered || since.elapsed() >= UNAWAITED;
            if matches!(state.phase, Phase::Away { is_expired: false, since, .. } if is_away(since)) {
                self.expire(state);
            }
        }
        if matches!(state.phase, Phase::Away { is_expired: false, since, .. } if since.elapsed() >= self.timeout) {
            self.expire(state);
        }
    }

    /// Has all requests fail, since none waits for the server any more.
    fn expire(&self, state: &mut MutexGuard<'_, SessionState>) {
        let Phase::Away { since, why, is_expired } = &mut state.phase else { return };
        *is_expired = true;
        let why = format!("the server has been away for {} seconds ({why})", since.elapsed().as_secs());
        let is_lost = !state.kept.is_empty() || state.requests.has_changes();
        if is_lost {
            state.lose(format!("{why}, and what was written meanwhile is lost"));
        }
        tracing::error!("{}: {why}", self.uri);
        self.fail_all(state, &why);
    }

    /// Ends the use of the export, which is not the same any more: nothing is read or written from
    /// now on.
    pub(crate) fn refuse(&self, why: &str) {
        let mut state = self.state.lock();
        tracing::error!("{}: {why}", self.uri);
        state.phase = Phase::Refused(why.into());
        self.fail_all(&mut state, why);
    }

    fn fail_all(&self, state: &mut MutexGuard<'_, SessionState>, why: &str) {
        state.kept.clear();
        state.flushes_itself = false;
        let (discards, failed) = state.requests.take_all();
        self.changed.notify_all();
        MutexGuard::unlocked(state, || {
            for done in discards {
                done(Err(self.no_answer_to_discard()));
            }
            for done in failed {
                done(Err(self.failure(why)));
            }
        });
    }

    /// Takes connections to the verified export, and sends all requests that have no answer.
    /// Returns the new epoch and the sending side of each connection.
    pub(crate) fn install(&self, links: &[Link]) -> io::Result<(u64, Vec<Arc<Line>>)> {
        for link in links {
            link.channel.limit(None)?;
        }
        let mut state = self.state.lock();
        if state.is_closing {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state.epoch += 1;
        state.lanes = links.iter().map(|link| Lane::new(&link.channel, self.lease.as_ref())).collect();
        state.flags = links.iter().fold(self.export.flags, |flags, link| flags & link.export.flags);
        let largest = links.iter().map(|link| link.export.largest_request).fold(MAX_REQUEST, u32::min);
        state.largest_request = largest;
        if !has(state.flags, SEND_WRITE_ZEROES) {
            state.requests.write_zeros();
        }
        state.window = Window::new(late(self.timeout, self.lease.as_deref()));
        state.phase = Phase::Up;
        if state.requests.is_empty() {
            state.trouble = None;
        }
        state.dispatch(None);
        Ok((state.epoch, state.lanes.iter().map(|lane| Arc::clone(&lane.line)).collect()))
    }

    /// Closes the session with a goodbye to the server.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closing = true;
        for lane in state.lanes.drain(..) {
            // A connection with unanswered requests ends without a goodbye.
            lane.line.end(lane.outstanding == 0);
        }
        if let Some((watch, _)) = state.writing_again.take() {
            watch.end();
        }
        state.epoch += 1;
        self.fail_all(&mut state, "the device is closed");
    }

    /// The error of a discard that was sent, and has no answer.
    fn no_answer_to_discard(&self) -> io::Error {
        let why = format!("{}: no answer to a discard: the server may carry it out at any time", self.uri);
        io::Error::new(io::ErrorKind::TimedOut, why)
    }

    pub(crate) fn failure(&self, why: &str) -> io::Error {
        io::Error::other(format!("{}: {why}", self.uri))
    }
}

impl SessionState {
    /// Notes that this process or its machine was stopped for a while, so that the silence says
    /// nothing about the server.
    pub(crate) fn wake_up(&mut self) {
        let now = Instant::now();
        self.lanes.iter_mut().for_each(|lane| lane.watch.hear());
        if let Some((watch, _)) = &mut self.writing_again {
            watch.hear();
        }
        self.trouble = self.trouble.map(|_| now);
        self.requests.begin_to_wait(now);
        if let Phase::Away { since, .. } = &mut self.phase {
            *since = now;
        }
    }

    /// When the connection that has been silent longest, among those that have to answer, was last
    /// heard from.
    fn silent_since(&mut self) -> Option<Instant> {
        self.lanes.iter_mut().filter(|lane| lane.outstanding > lane.advice).map(|lane| lane.watch.look()).min()
    }

    /// Notes a write of our own to a place by which the export is recognised, and returns its
    /// cookie.
    pub(crate) fn new_content(&mut self, at: u64, data: &Bytes) -> u64 {
        let cookie = self.requests.next_cookie();
        let parts = std::slice::from_ref(data);
        self.witnesses.iter_mut().for_each(|witness| witness.write(at, parts, cookie));
        cookie
    }

    /// Takes the unsent writes that must not come after one of our own.
    pub(crate) fn supersede(&mut self, at: u64, end: u64) -> Vec<Request> {
        self.requests.supersede(at, end)
    }

    /// Notes that such a write of our own is durable.
    pub(crate) fn is_durable(&mut self, cookie: u64) {
        self.answers += 1;
        let answers = self.answers;
        for witness in &mut self.witnesses {
            witness.answered(cookie, answers);
            witness.durable(cookie);
        }
    }

    /// Notes that acknowledged writes are lost.
    pub(crate) fn lose(&mut self, why: String) {
        let lost = self.lost.get_or_insert(Loss { why, is_kept: false });
        lost.is_kept = false;
    }

    /// Notes that a flush has failed, by which acknowledged writes may be lost.
    pub(crate) fn fail_flush(&mut self, error: &io::Error) {
        self.lost.get_or_insert(Loss { why: format!("a flush failed: {}", sentence(error)), is_kept: true });
    }

    /// Why a request can't be served.
    fn refusal(&self, command: &Command) -> Option<String> {
        match &self.phase {
            _ if self.is_closing => Some("the device is closed".into()),
            Phase::Refused(why) => Some(why.clone()),
            Phase::Away { why, is_expired: true, .. } => Some(format!("the server is away ({why})")),
            _ => self.lost.as_ref().filter(|_| command.changes()).map(|lost| lost.why.clone()),
        }
    }

    /// Queues the requests that there is room for. Returns the connection that got the caller's own
    /// request, so that the caller can send it.
    fn dispatch(&mut self, own: Option<u64>) -> Option<Arc<Line>> {
        let mut to_send = None;
        while matches!(self.phase, Phase::Up) {
            if !self.flushes_itself && self.is_much_kept(MUCH_KEPT) {
                self.flush_itself();
            }
            let may_change = !self.is_much_kept(MAX_KEPT);
            // Pieces are multiples of the server's blocks.
            let largest = self.largest_request - self.largest_request % BLOCK;
            let Some(cookie) = self.requests.take_next(self.window.bytes(), may_change, largest) else { break };
            let Some(lane) = (0..self.lanes.len()).min_by_key(|lane| self.lanes[*lane].outstanding) else { break };
            let has_fua = has(self.flags, SEND_FUA);
            let others = self.lanes[lane].passed_then();
            let is_advice = self.requests.is_advice(cookie);
            let Some((message, bytes)) = self.requests.send(cookie, (lane, others), has_fua) else { continue };
            let lane = &mut self.lanes[lane];
            lane.outstanding_bytes += bytes;
            if lane.outstanding == lane.advice {
                lane.watch.hear();
            }
            lane.outstanding += 1;
            lane.advice += usize::from(is_advice);
            lane.line.push(message);
            if own == Some(cookie) {
                to_send = Some(Arc::clone(&lane.line));
            } else {
                lane.line.wake();
            }
        }
        to_send
    }

    /// Requests a flush that nobody waits for.
    fn flush_itself(&mut self) {
        self.flushes_itself = true;
        let cookie = self.requests.next_cookie();
        let command = Command::Flush { covers: self.answers, is_own: true };
        self.requests.add(cookie, Request::new(command, 0, 0, Box::new(drop)));
    }

    fn is_much_kept(&self, limit: usize) -> bool {
        self.kept.answered_bytes() >= limit || self.witnesses.iter().any(Witness::is_full)
    }
}

/// How long an answer may take before less is sent at a time. (A server that answers nothing for
/// half of `timeout` counts as silent.)
fn late(timeout: Duration, lease: Option<&Lease>) -> Duration {
    let late = timeout / 16;
    if lease.is_some() { late.min(LATE) } else { late }
}

//! The client of an export, as programs use it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::abi::{CAN_MULTI_CONN, READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_TRIM, has};
use crate::connect::{Call, connect, connect_more};
use crate::error::Error;
use crate::lease::Lease;
use crate::requests::{Command, cut, pieces};
use crate::session::{BLOCK, Session};
use crate::supervisor::{spawn, supervise, take_over};
use crate::uri::Uri;
use crate::witness::Witness;

/// How long the first connection may take.
const PATIENT: Duration = Duration::from_secs(10);

/// The options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether nothing is written.
    pub read_only: bool,
    /// How long requests wait for a server that is away. Half of that time without any answer
    /// counts as away.
    pub timeout: Duration,
    /// How many connections are made, if the server allows several for one export.
    pub connections: usize,
    /// The addresses of ranges of 4096 bytes each by which the export is recognised after the
    /// server was away.
    pub witnesses: Vec<u64>,
    /// The lease until whose end something may be sent, if there is one.
    pub lease: Option<Arc<Lease>>,
}

/// A client of an export. All methods may be called by many threads at once.
pub struct Client {
    session: Arc<Session>,
    read_only: bool,
}

impl Client {
    /// Connects to an export.
    pub fn open(uri: Uri, options: &Options) -> Result<Self, Error> {
        let mut link = connect(&uri, options.lease.is_some(), PATIENT.min(options.timeout))?;
        let export = link.export;
        let is_read_only = has(export.flags, READ_ONLY);
        if export.smallest_block > BLOCK {
            let what = format!(
                "the export has blocks of {} bytes: {BLOCK} is the most that can be used",
                export.smallest_block
            );
            return Err(Error::Unusable(what));
        }
        if export.largest_request < BLOCK {
            let largest = export.largest_request;
            return Err(Error::Unusable(format!("the server takes {largest} bytes at a time: {BLOCK} is the least")));
        }
        if !options.read_only && is_read_only {
            return Err(Error::ReadOnly);
        }
        if !options.read_only && !has(export.flags, SEND_FLUSH) {
            let what = "the server offers no FLUSH, so nothing that is written would be certain to be durable: it can be used \
                        for reading only";
            return Err(Error::Unusable(what.into()));
        }
        let block = u64::from(BLOCK);
        let is_inside = |at: &u64| at.is_multiple_of(block) && at.saturating_add(block) <= export.size;
        let places: Vec<u64> = options.witnesses.iter().copied().filter(is_inside).collect();
        let reads: Vec<Call> = places.iter().map(|at| Call::Read { at: *at, len: BLOCK }).collect();
        let found = link.call(&reads, None)?.into_iter().zip(places);
        let witnesses = found.filter_map(|(found, at)| Some(Witness::new(at, found.ok()?.into()))).collect();
        let connections = if has(export.flags, CAN_MULTI_CONN) { options.connections.max(1) } else { 1 };
        let mut links = vec![link];
        let more = connect_more(&uri, options.lease.is_some(), connections - 1);
        links.extend(more.into_iter().filter(|link| link.export == export));
        let lease = options.lease.clone();
        let session = Arc::new(Session::new(uri, export, connections, options.timeout, witnesses, lease));
        take_over(&session, links)?;
        let supervised = Arc::clone(&session);
        spawn("ubtrfs-nbd", move || supervise(&supervised))?;
        Ok(Self { session, read_only: options.read_only || is_read_only })
    }

    /// The URI of the export.
    pub fn uri(&self) -> &Uri {
        &self.session.uri
    }

    /// The size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.session.export.size
    }

    /// Returns whether nothing can be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether the server takes discards.
    pub fn can_trim(&self) -> bool {
        self.session.offers(SEND_TRIM)
    }

    /// Returns whether single writes can be made durable (FUA).
    pub fn has_fua(&self) -> bool {
        has(self.session.export.flags, SEND_FUA)
    }

    /// Reads bytes from an address. All of them must be within the export.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let unit = u64::from(self.session.export.smallest_block);
        let start = at - at % unit;
        let end = (at + buf.len() as u64).next_multiple_of(unit).min(self.size());
        let pieces = pieces(start, end - start, self.largest());
        let waiting: Vec<_> = pieces
            .map(|(start, len)| {
                let slot = Arc::new(Slot::default());
                let filled = Arc::clone(&slot);
                self.session.submit(Command::Read, start, len, Box::new(move |result| filled.fill(result)));
                (start, slot)
            })
            .collect();
        let mut result = Ok(());
        for (start, slot) in waiting {
            match slot.wait() {
                Ok(bytes) => {
                    let skip = at.saturating_sub(start) as usize;
                    let place = &mut buf[(start.saturating_sub(at)) as usize..];
                    let len = place.len().min(bytes.len().saturating_sub(skip));
                    place[..len].copy_from_slice(&bytes[skip..skip + len]);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Writes these parts in order from an address on. Address and length are multiples of 4096.
    /// `done` is called once, perhaps by another thread, and must not wait for anything.
    pub fn write(&self, at: u64, parts: &[Bytes], done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.submit_write(at, parts, (false, false), done);
    }

    /// The same with FUA: the write is durable when `done` is called. Only if [`Self::has_fua`].
    pub fn write_fua(&self, at: u64, parts: &[Bytes], done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.submit_write(at, parts, (true, false), done);
    }

    /// The same as [`Self::write`], but sent before all requests that wait.
    pub fn write_urgently(&self, at: u64, parts: &[Bytes], done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.submit_write(at, parts, (false, true), done);
    }

    fn submit_write(
        &self,
        at: u64,
        parts: &[Bytes],
        (fua, is_urgent): (bool, bool),
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        let len: usize = parts.iter().map(Bytes::len).sum();
        let ranges: Vec<_> = pieces(at, len as u64, self.largest()).collect();
        let all = Arc::new(All { state: Mutex::new(Rank::NbdRequests, (ranges.len(), Ok(()), Some(done))) });
        if ranges.is_empty() {
            return all.count_down(0, Ok(()));
        }
        for (start, len) in ranges {
            let parts = cut(parts, (start - at) as usize, len as usize);
            let all = Arc::clone(&all);
            let done = Box::new(move |result: io::Result<Vec<u8>>| all.count_down(1, result.map(drop)));
            self.session.submit(Command::Write { parts, fua, is_urgent }, start, len, done);
        }
    }

    /// Waits until all writes that were answered before the call are durable.
    pub fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.wait_for(Command::Flush { covers: 0, is_own: false }, 0, 0)
    }

    /// Lets writes through again after all have failed. If they fail because a flush did, this
    /// first writes again what was not durable then; until that is done, it counts as lost. If they
    /// fail because the server was away for too long, and it is back, what was not durable then
    /// stays lost.
    pub fn write_again(&self) {
        self.session.write_again();
    }

    /// Notes that nobody waits any more for a server that is away or hangs: after a few seconds
    /// without it all requests fail.
    pub fn stop_waiting(&self) {
        self.session.stop_waiting();
    }

    /// Tells the server that a range is not needed any more.
    pub fn trim(&self, at: u64, len: u64) -> io::Result<()> {
        pieces(at, len, 1 << 30).try_for_each(|(at, len)| self.wait_for(Command::Trim, at, len))
    }

    fn wait_for(&self, command: Command, at: u64, len: u32) -> io::Result<()> {
        let slot = Arc::new(Slot::default());
        let filled = Arc::clone(&slot);
        self.session.submit(command, at, len, Box::new(move |result| filled.fill(result)));
        slot.wait().map(drop)
    }

    fn largest(&self) -> u32 {
        // A slow server gets smaller requests, so that answers come often enough.
        let largest = self.session.largest_request();
        (largest - largest % BLOCK).max(self.session.export.smallest_block)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("uri", &self.session.uri)
            .field("export", &self.session.export)
            .finish_non_exhaustive()
    }
}

/// The slot in which a thread waits for the result of a request.
struct Slot {
    result: Mutex<Option<io::Result<Vec<u8>>>>,
    filled: Condvar,
}

impl Default for Slot {
    fn default() -> Self {
        Self { result: Mutex::new(Rank::NbdAnswer, None), filled: Condvar::new() }
    }
}

impl Slot {
    fn fill(&self, result: io::Result<Vec<u8>>) {
        *self.result.lock() = Some(result);
        self.filled.notify_all();
    }

    fn wait(&self) -> io::Result<Vec<u8>> {
        let mut result = self.result.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            self.filled.wait(&mut result);
        }
    }
}

/// The pieces of a write, of which the last one to be answered calls `done`.
struct All<F> {
    state: Mutex<(usize, io::Result<()>, Option<F>)>,
}

impl<F: FnOnce(io::Result<()>)> All<F> {
    fn count_down(&self, by: usize, result: io::Result<()>) {
        let mut state = self.state.lock();
        state.0 -= by;
        if state.1.is_ok() {
            state.1 = result;
        }
        let done = if state.0 == 0 { state.2.take() } else { None };
        let result = std::mem::replace(&mut state.1, Ok(()));
        if let Some(done) = done {
            drop(state);
            done(result);
        } else {
            state.1 = result;
        }
    }
}

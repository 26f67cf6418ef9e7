//! The state of an entry from the request that arrives in it to the answer that leaves in it.

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;
use ubtrfs_threads::{Mutex, Rank};

use super::mailbox::Mailbox;
use super::memory::Held;
use crate::reply::{FileReads, Responder, Waits};

/// Who has an entry's memory while there is a request in it.
enum State {
    /// The kernel or the thread that serves the entry has it, or it is being submitted.
    Elsewhere,
    /// This state has it, so that the answer can be written.
    Here(Held),
    /// The thread that serves the request has it, since it reads the request in place. An answer
    /// has to wait until that ends.
    Read(Option<Answer>),
}

/// An answer that waits.
struct Answer {
    unique: u64,
    error: i32,
    bytes: Vec<u8>,
}

struct Progress {
    state: State,
    /// A thread tries to serve the request without waiting. EAGAIN says that this is impossible,
    /// and is no answer.
    trying: bool,
    /// The attempt has ended with EAGAIN.
    postponed: bool,
    /// What has to be read from files before the request is answered.
    reading: Option<Reading>,
}

/// A request whose answer still lacks data that must be read from files.
pub struct Reading {
    pub held: Held,
    pub unique: u64,
    pub files: FileReads,
}

/// How an attempt to serve a request without blocking ended.
pub enum Tried {
    /// The request is answered, or will be.
    Answered,
    /// The request must be served again: it was postponed, or not even begun.
    Postponed(Held),
    /// Files are to be read.
    Reading(Reading),
}

/// One entry of a queue, as replies know it.
pub struct Entry {
    progress: Mutex<Progress>,
    mailbox: Arc<Mailbox>,
    waits: Arc<Waits>,
}

impl Entry {
    pub fn new(mailbox: Arc<Mailbox>, waits: Arc<Waits>) -> Self {
        let progress = Progress { state: State::Elsewhere, trying: false, postponed: false, reading: None };
        Self { progress: Mutex::new(Rank::RingEntry, progress), mailbox, waits }
    }

    /// Begins to serve a request that has been copied, so that it may be answered at any time.
    pub fn begin(&self, held: Held, trying: bool) {
        *self.progress.lock() = Progress { state: State::Here(held), trying, postponed: false, reading: None };
    }

    /// Begins to serve a request that is read in place.
    pub fn begin_in_place(&self, trying: bool) {
        *self.progress.lock() = Progress { state: State::Read(None), trying, postponed: false, reading: None };
    }

    /// Takes the memory back after the request was read in place, and sends the answer if there is
    /// one.
    pub fn end_in_place(&self, mut held: Held) {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut progress.state, State::Elsewhere) {
            State::Read(Some(answer)) => {
                drop(progress);
                finish(&mut held, answer.unique, answer.error, std::iter::once(&answer.bytes[..]));
                self.mailbox.put(held);
            }
            _ => progress.state = State::Here(held),
        }
    }

    /// Returns whether an attempt has found that the request has to wait.
    pub fn is_postponed(&self) -> bool {
        self.progress.lock().postponed
    }

    /// Ends a non-blocking attempt.
    pub fn end_trial(&self, begun: bool) -> Tried {
        let mut progress = self.progress.lock();
        progress.trying = false;
        if let Some(reading) = progress.reading.take() {
            return Tried::Reading(reading);
        }
        if begun && !progress.postponed {
            return Tried::Answered;
        }
        match std::mem::replace(&mut progress.state, State::Elsewhere) {
            State::Here(held) => Tried::Postponed(held),
            other => {
                progress.state = other;
                Tried::Answered
            }
        }
    }

    /// Answers a request for which there is no reply object with an error.
    pub fn fail(&self, mut held: Held, unique: u64, errno: Errno) {
        held.answer(unique, -errno.raw_os_error(), 0);
        self.mailbox.put(held);
    }
}

/// Writes an answer into the entry that the request came in.
fn finish<'a>(held: &mut Held, unique: u64, error: i32, parts: impl Iterator<Item = &'a [u8]>) {
    if let Some(length) = held.put(parts) {
        held.answer(unique, error, length);
    } else {
        tracing::error!(request = unique, "an answer is longer than the kernel can have asked for");
        held.answer(unique, -Errno::IO.raw_os_error(), 0);
    }
}

impl Responder for Entry {
    fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) {
        let mut progress = self.progress.lock();
        if progress.trying && error == -Errno::AGAIN.raw_os_error() {
            progress.postponed = true;
            return;
        }
        match std::mem::replace(&mut progress.state, State::Elsewhere) {
            State::Here(mut held) => {
                drop(progress);
                finish(&mut held, unique, error, parts.iter().map(|part| &**part));
                self.mailbox.put(held);
            }
            State::Read(_) => {
                let bytes = parts.iter().flat_map(|part| part.iter().copied()).collect();
                progress.state = State::Read(Some(Answer { unique, error, bytes }));
            }
            State::Elsewhere => tracing::error!(request = unique, "answered twice"),
        }
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        Some(&self.waits)
    }

    fn can_read_files(&self) -> bool {
        let progress = self.progress.lock();
        progress.trying && matches!(progress.state, State::Here(_))
    }

    fn read_files(&self, unique: u64, size: usize, begin: &mut dyn FnMut(&mut [u8]) -> Result<FileReads, Errno>) {
        let mut files = None;
        self.fill(unique, size, &mut |buffer| {
            let begun = begin(buffer)?;
            if begun.reads.is_empty() {
                return Ok(begun.length);
            }
            files = Some(begun);
            // This error postpones the request, so the entry's memory stays here.
            Err(Errno::AGAIN)
        });
        let Some(files) = files else { return };
        let mut progress = self.progress.lock();
        if let State::Here(held) = std::mem::replace(&mut progress.state, State::Elsewhere) {
            progress.postponed = false;
            progress.reading = Some(Reading { held, unique, files });
        }
    }

    /// Lends the payload of the entry itself.
    fn fill(&self, unique: u64, size: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>) {
        let taken = std::mem::replace(&mut self.progress.lock().state, State::Elsewhere);
        let State::Here(held) = taken else {
            // Requests that read bytes bring no data along, so they are not read in place.
            self.progress.lock().state = taken;
            return self.send(unique, -Errno::IO.raw_os_error(), &[]);
        };
        let mut lent = Lent { entry: self, held: Some(held) };
        let Some(held) = &mut lent.held else { return };
        let room = held.payload_mut();
        let most = size.min(room.len());
        let filled = fill(&mut room[..most]);
        match filled {
            Ok(length) => {
                held.answer(unique, 0, length.min(most));
                if let Some(held) = lent.held.take() {
                    self.mailbox.put(held);
                }
            }
            Err(errno) => {
                drop(lent);
                self.send(unique, -errno.raw_os_error(), &[]);
            }
        }
    }
}

/// A payload that is being filled. If that panics, the entry gets its memory back for the error's
/// answer.
struct Lent<'a> {
    entry: &'a Entry,
    held: Option<Held>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.entry.progress.lock().state = State::Here(held);
        }
    }
}

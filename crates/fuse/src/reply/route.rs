//! The route from a reply back to the kernel, the same for each transport.

use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;

use super::file_reads::FileReads;
use super::waits::{Waiter, Waiting, Waits};

/// What a transport does with replies. Any thread may call it.
pub(crate) trait Responder: Send + Sync {
    /// Answers request `unique`. `error` is zero or a negative errno; the parts follow the header
    /// in order.
    fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]);

    /// Lends a buffer of `size` bytes to `fill`, and sends as many bytes as it returns, or its
    /// error. A transport that has a buffer of its own for the reply overrides this.
    fn fill(&self, unique: u64, size: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>) {
        /// Devices can read without copies into memory that is aligned to so many bytes.
        const ALIGNMENT: usize = 4096;
        let mut buffer = BUFFER.take();
        if buffer.len() < size + ALIGNMENT {
            buffer.resize(size + ALIGNMENT, 0);
        }
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        let room = buffer.get_mut(start..start.saturating_add(size)).unwrap_or_default();
        match fill(room) {
            Ok(length) => {
                let length = length.min(room.len());
                self.send(unique, 0, &[IoSlice::new(room.get(..length).unwrap_or_default())]);
            }
            Err(errno) => self.send(unique, -errno.raw_os_error(), &[]),
        }
        BUFFER.set(buffer);
    }

    /// Returns whether [`read_files`](Self::read_files) can be called now.
    fn can_read_files(&self) -> bool {
        false
    }

    /// As [`fill`](Self::fill), but reads from files what `begin` has left out, and then sends the
    /// answer.
    fn read_files(&self, unique: u64, size: usize, begin: &mut dyn FnMut(&mut [u8]) -> Result<FileReads, Errno>) {
        let _ = (size, begin);
        self.send(unique, -Errno::IO.raw_os_error(), &[]);
    }

    /// The count of waiting requests among those that share the room for requests. `None` if any
    /// number of requests may wait, since they take no room from others.
    fn waits(&self) -> Option<&Arc<Waits>> {
        None
    }
}

thread_local! {
    /// The buffer in which a thread builds the answers to READs.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The duty to answer one request, once.
pub(crate) struct Reply {
    unique: u64,
    responder: Option<Arc<dyn Responder>>,
    /// The mark that the request waits for others, until it is answered.
    waiting: Option<Waiting>,
}

impl Reply {
    pub fn new(unique: u64, responder: Arc<dyn Responder>) -> Self {
        Self { unique, responder: Some(responder), waiting: None }
    }

    /// Returns whether the answer may wait for other requests to be answered.
    pub fn may_wait(&mut self, who: Waiter) -> bool {
        let Some(waits) = self.responder.as_ref().and_then(|responder| responder.waits()) else { return true };
        if self.waiting.is_none() {
            self.waiting = waits.begin(who);
        }
        self.waiting.is_some()
    }

    pub fn send(self, parts: &[&[u8]]) {
        match *parts {
            [] => self.send_slices(&[]),
            [one] => self.send_slices(&[IoSlice::new(one)]),
            [one, two] => self.send_slices(&[IoSlice::new(one), IoSlice::new(two)]),
            _ => self.send_slices(&parts.iter().map(|part| IoSlice::new(part)).collect::<Vec<_>>()),
        }
    }

    pub fn send_slices(mut self, parts: &[IoSlice<'_>]) {
        if let Some(responder) = self.responder.take() {
            responder.send(self.unique, 0, parts);
        }
    }

    pub fn error(mut self, errno: Errno) {
        if let Some(responder) = self.responder.take() {
            responder.send(self.unique, -errno.raw_os_error(), &[]);
        }
    }

    pub fn fill(self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let mut reply = self;
        let Some(responder) = reply.responder.clone() else { return };
        responder.fill(reply.unique, size, &mut once(fill));
        // This comes only now: if `fill` panics, the drop still answers the caller.
        reply.responder = None;
    }

    pub fn can_read_files(&self) -> bool {
        self.responder.as_ref().is_some_and(|responder| responder.can_read_files())
    }

    pub fn read_files(self, size: usize, begin: impl FnOnce(&mut [u8]) -> Result<FileReads, Errno>) {
        let mut reply = self;
        let Some(responder) = reply.responder.clone() else { return };
        responder.read_files(reply.unique, size, &mut once(begin));
        // This comes only now, for the same reason as above.
        reply.responder = None;
    }
}

/// Turns a function that can be called once into one of the type that transports take. A second
/// call returns `EIO`.
fn once<T>(work: impl FnOnce(&mut [u8]) -> Result<T, Errno>) -> impl FnMut(&mut [u8]) -> Result<T, Errno> {
    let mut work = Some(work);
    move |buffer| work.take().map_or(Err(Errno::IO), |work| work(buffer))
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(responder) = self.responder.take() {
            tracing::error!(request = self.unique, "dropped without a reply; answered EIO");
            responder.send(self.unique, -Errno::IO.raw_os_error(), &[]);
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Reply({})", self.unique)
    }
}

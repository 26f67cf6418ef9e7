//! The route from a reply back to the kernel, the same for each transport.

use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;

use super::file_reads::FileReads;
use super::waits::{Waiter, Waiting, Waits};

/// What a transport does with replies. Any thread may call it.
pub(crate) trait Responder: Send + Sync {
    /// Answers request `unique`: `error` is zero or a negative errno; the parts follow each other
    /// after the header.
    fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]);

    /// Lends a buffer of `size` bytes to `fill` and sends what it says, a count of bytes or an
    /// error. A transport that has a buffer of its own for the reply overrides this.
    fn fill(&self, unique: u64, size: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>) {
        /// Devices read without copies into memory that begins at such an address.
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

    /// Whether [`read_files`](Self::read_files) can be called now.
    fn can_read_files(&self) -> bool {
        false
    }

    /// As [`fill`](Self::fill), but what `begin` leaves is read from files, and then the answer is
    /// sent.
    fn read_files(&self, unique: u64, size: usize, begin: &mut dyn FnMut(&mut [u8]) -> Result<FileReads, Errno>) {
        let _ = (size, begin);
        self.send(unique, -Errno::IO.raw_os_error(), &[]);
    }

    /// How many of the requests wait that share what there is of room for requests. `None`: any
    /// number may, for none takes room from others.
    fn waits(&self) -> Option<&Arc<Waits>> {
        None
    }
}

thread_local! {
    /// Where a thread that answers READs builds them.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The duty to answer one request, once.
pub(crate) struct Reply {
    unique: u64,
    responder: Option<Arc<dyn Responder>>,
    /// It waits, until it is answered.
    waiting: Option<Waiting>,
}

impl Reply {
    pub fn new(unique: u64, responder: Arc<dyn Responder>) -> Self {
        Self { unique, responder: Some(responder), waiting: None }
    }

    /// Whether the answer may wait for other requests to be answered.
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
        // Not before: if `fill` panics, the caller is still answered.
        reply.responder = None;
    }

    pub fn can_read_files(&self) -> bool {
        self.responder.as_ref().is_some_and(|responder| responder.can_read_files())
    }

    pub fn read_files(self, size: usize, begin: impl FnOnce(&mut [u8]) -> Result<FileReads, Errno>) {
        let mut reply = self;
        let Some(responder) = reply.responder.clone() else { return };
        responder.read_files(reply.unique, size, &mut once(begin));
        // Not before: as above.
        reply.responder = None;
    }
}

/// What a transport calls once, as often as its type allows: the next time it fails.
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

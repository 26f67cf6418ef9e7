//! The trait of a device: positioned reads, batches of writes, a barrier.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ubtrfs_format::Physical;

use crate::buffer::{ALIGNMENT, SharedBuffer};
use crate::error::WriteError;

/// A device. All methods may be called by many threads at once.
///
/// The comments here say what each method promises, and `conformance` (feature `testing`) tests
/// exactly that: a test of each implementor runs it. A device that is away, or that has failed,
/// keeps its size and fails requests with errors of its own instead.
pub trait Device: Send + Sync + Debug {
    /// Returns the size of the device in bytes, as far as it is known: [`Self::find_size`] may find
    /// that it has changed.
    fn size(&self) -> u64;

    /// Finds out how large the device is by now, in bytes, and returns that; from then on it is the
    /// device's size. On an error the size stays as it was.
    fn find_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }

    /// Returns whether the device refuses writes and discards, with `ReadOnlyFilesystem`. This
    /// never changes.
    fn is_read_only(&self) -> bool;

    /// Fills `buf` from the physical address `at`. Any address and length will do. A read returns
    /// what a write has written that was waited for. It fails with `UnexpectedEof` if the range
    /// reaches beyond the device's end, also where the device has shrunk since its size was found.
    /// An empty read within the device succeeds.
    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()>;

    /// Starts writes, in no particular order, and returns without waiting for them (though it may
    /// wait while the device's queue is full). Addresses and lengths are multiples of 4096 bytes,
    /// else the error is `InvalidInput`; for a write beyond the device's end it is `UnexpectedEof`.
    /// After these two errors nothing of the batch is written. Where several writes of the batch
    /// overlap, each 4096 bytes are as one of them wrote them. The ticket reports errors, with the
    /// address and the length of the write, or of the neighbours that were written together with
    /// it. A batch without writes, or with empty ones, succeeds.
    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket;

    /// As [`Device::submit`], but each write is durable as it completes (FUA). It may be called
    /// only if [`Device::has_fua`] returns true.
    fn submit_fua(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit(writes)
    }

    /// As [`Device::submit`], but the writes go before all that wait in the device's queue.
    fn submit_urgently(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit(writes)
    }

    /// Returns whether the device supports [`Device::submit_fua`], which saves a barrier.
    fn has_fua(&self) -> bool {
        false
    }

    /// Returns how many reads are best in flight at a time before what they read is needed, or 0 if
    /// a read takes little time.
    fn reads_ahead(&self) -> usize {
        0
    }

    /// Issues a barrier: makes all writes durable that had completed when it was called. If it
    /// fails, whatever was not durable may be lost.
    fn flush(&self) -> io::Result<()>;

    /// Keeps out others that would write to the device. It is called when the device has just
    /// become a volume's and what was on it is wiped, since the protection needs a place that only
    /// a volume's device has.
    fn protect(&self) -> io::Result<()> {
        Ok(())
    }

    /// Gives the device up for writing: others may use it from now on, though the caller may still
    /// read it. A second call does nothing.
    fn release(&self) {}

    /// Has a device take writes again that has refused them since a flush failed. By this call the
    /// caller confirms that it knows that whatever was not durable then may be lost, and that it
    /// compares or rewrites it.
    fn take_writes_again(&self) {}

    /// Begins a comparison of what is on the device with what should be there. Until each such call
    /// has been followed by one of [`Device::end_comparing`], reads return only what was read from
    /// the device since then, and nothing that was kept of earlier reads or of writes.
    fn begin_comparing(&self) {}

    /// Ends one comparison; others may go on.
    fn end_comparing(&self) {}

    /// Has requests fail soon, instead of waiting, if the device is away. A device that is there
    /// answers as before.
    fn stop_waiting(&self) {}

    /// Discards a range of multiples of 4096 bytes: its content is no longer needed, and reads of
    /// it may return anything afterwards. Everything around it stays as it is. A range that reaches
    /// beyond the device's end fails with `UnexpectedEof`; an empty one within it succeeds. The
    /// error is `Unsupported` if the device can't discard; then nothing changes.
    fn discard(&self, at: Physical, len: u64) -> io::Result<()>;

    /// Returns the ranges of the device that take space on the host, in order and apart from each
    /// other. The rest are holes, which read as zeros. Returns `None` if that is not known.
    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        Ok(None)
    }

    /// Returns a file from which the caller can read the range at this address by itself, and
    /// counts the read. Address, length and memory have to be aligned to 4096 bytes. Returns `None`
    /// if only [`Device::read_at`] can read the range, as always if it is not aligned or not within
    /// the device.
    fn file_to_read(&self, _at: Physical, _len: usize) -> Option<Arc<File>> {
        None
    }

    /// Returns how much the device has done so far. The counters only grow. They include all writes
    /// that were waited for.
    fn counters(&self) -> DeviceCounters;
}

/// One write.
#[derive(Clone, Debug)]
pub struct DeviceWrite {
    /// The physical address in bytes.
    pub at: Physical,
    /// The content.
    pub data: SharedBuffer,
}

/// Writes in flight. They complete whether or not they are waited for, but only
/// [`DeviceTicket::wait`] reports errors.
#[must_use = "only `wait` reports whether the writes succeeded"]
#[derive(Debug)]
pub struct DeviceTicket(Box<dyn PendingWrites>);

/// A device's side of a [`DeviceTicket`].
pub trait PendingWrites: Send + Debug {
    /// Waits for all writes of the ticket, and returns the first error if any failed.
    fn wait(self: Box<Self>) -> Result<(), WriteError>;
    /// Returns whether `wait` would return at once.
    fn is_done(&self) -> bool;
}

impl DeviceTicket {
    /// A ticket for writes in flight.
    pub fn new(pending: impl PendingWrites + 'static) -> Self {
        Self(Box::new(pending))
    }

    /// A ticket for writes that have ended.
    pub fn done(result: Result<(), WriteError>) -> Self {
        Self::new(Done(result))
    }

    /// Waits for all writes of the ticket, and returns the first error if any failed.
    pub fn wait(self) -> Result<(), WriteError> {
        self.0.wait()
    }

    /// Returns whether `wait` would return at once.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

#[derive(Debug)]
struct Done(Result<(), WriteError>);

impl PendingWrites for Done {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        self.0
    }
    fn is_done(&self) -> bool {
        true
    }
}

/// How much a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes as they were sent to the device, with neighbours joined.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Barriers.
    pub flushes: u64,
    /// Discarded ranges.
    pub discards: u64,
}

impl DeviceCounters {
    /// The sum of two devices' counters.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
            writes: self.writes + other.writes,
            written_bytes: self.written_bytes + other.written_bytes,
            flushes: self.flushes + other.flushes,
            discards: self.discards + other.discards,
        }
    }
}

/// Counters that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct CounterCells {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
}

impl CounterCells {
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn write(&self, bytes: usize) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    pub(crate) fn discard(&self) {
        self.discards.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self) -> DeviceCounters {
        DeviceCounters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
        }
    }
}

/// Returns the error of a read or write that reaches beyond the device's end.
pub(crate) fn beyond_end(at: Physical, len: usize, size: u64) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("{len} bytes at {at} reach beyond the device's end at {size}"))
}

/// Checks that the `len` bytes at `at` are within a device of `size` bytes.
pub(crate) fn check_range(at: Physical, len: usize, size: u64) -> io::Result<()> {
    match at.0.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(beyond_end(at, len, size)),
    }
}

/// Checks that all writes keep the rules of [`Device::submit`] on a device of `size` bytes. Returns
/// the error of the first write that does not.
pub fn check_writes(writes: &[DeviceWrite], size: u64) -> Result<(), WriteError> {
    for write in writes {
        let failed = |source| WriteError { at: write.at, len: write.data.len(), source };
        if !write.at.0.is_multiple_of(ALIGNMENT as u64) || !write.data.len().is_multiple_of(ALIGNMENT) {
            let what = format!("a write of {} bytes at {} is not aligned", write.data.len(), write.at);
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        check_range(write.at, write.data.len(), size).map_err(failed)?;
    }
    Ok(())
}

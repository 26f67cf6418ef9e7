//! What a device is: positioned reads, batches of writes, a barrier.

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
/// What each method promises is said here, and `conformance` (feature `testing`) tests exactly
/// that: a test of each implementor runs it. A device that is away, or that has failed, keeps its
/// size and fails requests with errors of its own instead.
pub trait Device: Send + Sync + Debug {
    /// Bytes of the device, as far as it is known: [`Self::find_size`] may find that there are
    /// others by now.
    fn size(&self) -> u64;

    /// Looks how large the device is by now, and returns that, which is its size from then on. One
    /// that can't be looked at keeps its size.
    fn find_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }

    /// Whether writes and discards are refused, with `ReadOnlyFilesystem`. It stays as it is.
    fn is_read_only(&self) -> bool;

    /// Fills `buf` from `at`. Any address and length will do. What a write that was waited for has
    /// written is shown. A range that reaches beyond the device's end is `UnexpectedEof`, also
    /// where the device has shrunk since its size was found; an empty one within the device is
    /// read.
    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()>;

    /// Starts writes, in no particular order, and returns without waiting for them (though it may
    /// wait while the device's queue is full). Addresses and lengths are multiples of 4096, else
    /// the error is `InvalidInput`; beyond the device's end it is `UnexpectedEof`. Then nothing of
    /// the batch is written. Each 4096 bytes that several writes of the batch have in common are
    /// those of one of them. Errors are reported by the ticket, with the address and the length of
    /// the write, or of neighbours that were written together with it. No writes, or empty ones,
    /// succeed.
    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket;

    /// As [`Device::submit`], but each write is durable as it completes (FUA). Only where
    /// [`Device::has_fua`].
    fn submit_fua(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit(writes)
    }

    /// As [`Device::submit`], but before all that waits.
    fn submit_urgently(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit(writes)
    }

    /// Whether [`Device::submit_fua`] saves a barrier.
    fn has_fua(&self) -> bool {
        false
    }

    /// How many reads are best under way at a time, before what they read is needed; 0 where a read
    /// takes little time.
    fn reads_ahead(&self) -> usize {
        0
    }

    /// A barrier: when it returns, all writes that had completed when it was called are durable. If
    /// it fails, what was not durable may be lost.
    fn flush(&self) -> io::Result<()>;

    /// The device has just become a volume's, and nothing is left of what was on it: others that
    /// would write to it are kept out by what is only possible on a volume's device.
    fn protect(&self) -> io::Result<()> {
        Ok(())
    }

    /// Nothing is written to the device any more: others may have it, though it may still be read.
    /// The second time it does nothing.
    fn release(&self) {}

    /// The caller knows that what was not durable when a flush failed may be lost, and compares or
    /// writes it again: if the device takes no writes since then, it takes them again.
    fn take_writes_again(&self) {}

    /// What is on the device is compared with what should be there, until as many calls of
    /// [`Device::end_comparing`] as of this one: reads show what was read from it since then, and
    /// nothing that was kept of reads or writes.
    fn begin_comparing(&self) {}

    /// One comparison has ended; there may be others.
    fn end_comparing(&self) {}

    /// Nobody waits any more for what is asked of the device: if it is away, requests fail soon.
    /// One that is there answers as before.
    fn stop_waiting(&self) {}

    /// Discards a range of whole 4096 bytes: its content is no longer needed, and it reads as
    /// anything afterwards. All around it stays as it is. A range that reaches beyond the device's
    /// end is `UnexpectedEof`; an empty one within it succeeds. `Unsupported` where the device
    /// can't discard; then nothing changes.
    fn discard(&self, at: Physical, len: u64) -> io::Result<()>;

    /// What of the device takes space of the host, in order and apart from each other. The rest are
    /// holes, which read as zeros. `None` where that is not known.
    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        Ok(None)
    }

    /// The file that the range can be read from at this address without this device's help, all of
    /// it aligned to 4096 bytes, as memory has to be; counts the read. `None`: only
    /// [`Device::read_at`] reads it, as always where the range is not aligned or not within the
    /// device.
    fn file_to_read(&self, _at: Physical, _len: usize) -> Option<Arc<File>> {
        None
    }

    /// What the device has done so far; all of them only grow. Writes that were waited for are in
    /// it.
    fn counters(&self) -> DeviceCounters;
}

/// One write.
#[derive(Clone, Debug)]
pub struct DeviceWrite {
    /// Where.
    pub at: Physical,
    /// What.
    pub data: SharedBuffer,
}

/// Writes in flight. They complete whether or not they are waited for; but only
/// [`DeviceTicket::wait`] reports errors.
#[must_use = "only `wait` reports whether the writes succeeded"]
#[derive(Debug)]
pub struct DeviceTicket(Box<dyn PendingWrites>);

/// A device's side of a [`DeviceTicket`].
pub trait PendingWrites: Send + Debug {
    /// Waits for all writes of the ticket; the first error, if any failed.
    fn wait(self: Box<Self>) -> Result<(), WriteError>;
    /// Whether `wait` would return at once.
    fn is_done(&self) -> bool;
}

impl DeviceTicket {
    /// A ticket for writes in flight.
    pub fn new(pending: impl PendingWrites + 'static) -> Self {
        Self(Box::new(pending))
    }

    /// A ticket for writes that are over.
    pub fn done(result: Result<(), WriteError>) -> Self {
        Self::new(Done(result))
    }

    /// Waits for all writes of the ticket; the first error, if any failed.
    pub fn wait(self) -> Result<(), WriteError> {
        self.0.wait()
    }

    /// Whether `wait` would return at once.
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
    /// Writes as they went to the device, neighbours joined.
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

/// The error of a read or write that reaches beyond the device.
pub(crate) fn beyond_end(at: Physical, len: usize, size: u64) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("{len} bytes at {at} reach beyond the device's end at {size}"))
}

/// The range of `len` bytes at `at`, if it is within a device of `size` bytes.
pub(crate) fn check_range(at: Physical, len: usize, size: u64) -> io::Result<()> {
    match at.0.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(beyond_end(at, len, size)),
    }
}

/// Whether all writes keep the rules of [`Device::submit`] on a device of `size` bytes; else the
/// error of the first that doesn't.
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

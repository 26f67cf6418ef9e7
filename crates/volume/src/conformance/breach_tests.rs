//! The suite finds each promise that a device breaks.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ubtrfs_format::Physical;
use ubtrfs_threads::{Mutex, Rank};

use super::{Promise, Subject, broken_promises};
use crate::{
    Device, DeviceCounters, DeviceTicket, DeviceWrite, Fate, PendingWrites, RecordingDevice, WriteError, check_writes,
};

const SIZE: u64 = 2 << 20;
const SECTOR: usize = 4096;

/// How a device breaks a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breach {
    /// It breaks none.
    Nothing,
    /// `find_size` finds another size, which `size` does not return afterwards.
    SizeForgotten,
    /// The last byte of an unaligned read is not filled.
    ShortReads,
    /// Reads beyond the end show zeros.
    ReadsBeyondEnd,
    /// An empty read fails.
    NoEmptyReads,
    /// Of two neighbours in one batch the second is lost.
    LostNeighbour,
    /// Tickets are done before the writes are.
    DoneTooEarly,
    /// Urgent writes are lost.
    UrgentLost,
    /// Writes of a batch that keep the rules are made, though others of the batch do not keep them.
    HalfBatches,
    /// Writes that are not aligned are made.
    AnyAlignment,
    /// Writes beyond the end are dropped without an error.
    SilentBeyondEnd,
    /// Overlapping writes of one batch are mixed within a sector.
    MixedOverlap,
    /// Writes are made only when their ticket is waited for.
    LazyWrites,
    /// Barriers do nothing.
    NoBarrier,
    /// Writes with FUA are as durable as others.
    NoFua,
    /// A discard also discards what is beside its range.
    WideDiscard,
    /// Discards beyond the end are dropped without an error.
    SilentDiscard,
    /// A hole is reported where there is data.
    WrongHole,
    /// The ranges of data are out of order.
    UnorderedRanges,
    /// A file with other content is offered.
    OtherFile,
    /// Writes of several sectors at once are mixed up where another thread reads.
    TornByReaders,
    /// What was read is kept, and comparisons read it, too.
    KeptReads,
    /// Writes are not counted.
    Uncounted,
    /// A read-only device writes.
    WritableReadOnly,
    /// A read-only device discards.
    DiscardingReadOnly,
    /// Once the device has shrunk, reads of the lost part return zeros.
    ReadsWhatIsGone,
    /// A write that fails is reported as done.
    SwallowedError,
    /// A flush that fails is reported as done.
    SwallowedFlush,
    /// A device that has failed takes no more writes.
    NeverHealed,
    /// A device can't be read once it is released.
    GoneWhenReleased,
}

/// A device that keeps all promises but one.
#[derive(Debug)]
struct Broken {
    breach: Breach,
    inner: Arc<RecordingDevice>,
    size: AtomicU64,
    real_size: Arc<AtomicU64>,
    has_failed: AtomicBool,
    is_failing: Arc<AtomicBool>,
    is_released: AtomicBool,
    kept: Mutex<Option<(Range<u64>, Vec<u8>)>>,
    reads: AtomicU64,
    file: Option<Arc<File>>,
}

#[derive(Debug)]
struct Lazy(Arc<RecordingDevice>, Vec<DeviceWrite>, bool);

impl PendingWrites for Lazy {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        self.0.submit(self.1).wait()
    }

    fn is_done(&self) -> bool {
        self.2
    }
}

impl Broken {
    fn is(&self, breach: Breach) -> bool {
        self.breach == breach
    }

    fn size_now(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    fn require_health(&self) -> io::Result<()> {
        let is_failing = self.is_failing.load(Ordering::SeqCst);
        self.has_failed.fetch_or(is_failing, Ordering::SeqCst);
        if is_failing || self.is(Breach::NeverHealed) && self.has_failed.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::Other.into());
        }
        Ok(())
    }

    /// Returns which writes of a batch are made by a device with this breach.
    fn changed(&self, mut writes: Vec<DeviceWrite>) -> Vec<DeviceWrite> {
        match self.breach {
            Breach::LostNeighbour => {
                let lost = writes.windows(2).position(|two| two[0].at.0 + two[0].data.len() as u64 == two[1].at.0);
                lost.map(|index| writes.remove(index + 1));
            }
            Breach::HalfBatches | Breach::AnyAlignment | Breach::SilentBeyondEnd => {
                writes.retain(|write| check_writes(std::slice::from_ref(write), self.size_now()).is_ok());
            }
            Breach::MixedOverlap if writes.len() == 2 && writes[0].at == writes[1].at && !writes[0].data.is_empty() => {
                let mut mixed = writes[0].data.to_vec();
                mixed[..SECTOR / 2].copy_from_slice(&writes[1].data[..SECTOR / 2]);
                writes = vec![DeviceWrite { at: writes[0].at, data: mixed.into() }];
            }
            Breach::TornByReaders if self.reads.load(Ordering::SeqCst) > 0 => {
                writes.truncate(writes.len() - writes.len() / 2);
            }
            _ => {}
        }
        writes
    }
}

impl Device for Broken {
    fn size(&self) -> u64 {
        self.size_now()
    }

    fn find_size(&self) -> io::Result<u64> {
        let size = self.real_size.load(Ordering::SeqCst);
        if self.is(Breach::SizeForgotten) {
            return Ok(size + 4096);
        }
        self.size.store(size, Ordering::SeqCst);
        Ok(size)
    }

    fn is_read_only(&self) -> bool {
        matches!(self.breach, Breach::WritableReadOnly | Breach::DiscardingReadOnly)
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        if self.is(Breach::GoneWhenReleased) && self.is_released.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if self.is(Breach::NoEmptyReads) && buf.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let end = at.0.saturating_add(buf.len() as u64);
        let known = if self.is(Breach::ReadsWhatIsGone) { u64::MAX } else { self.real_size.load(Ordering::SeqCst) };
        if end > self.size_now().min(known) || at.0.checked_add(buf.len() as u64).is_none() {
            if self.is(Breach::ReadsBeyondEnd) {
                buf.fill(0);
                return Ok(());
            }
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        let short = usize::from(self.is(Breach::ShortReads) && !buf.len().is_multiple_of(SECTOR) && !buf.is_empty());
        let len = buf.len() - short;
        if let Some((range, bytes)) = &*self.kept.lock()
            && range.contains(&at.0)
            && end <= range.end
        {
            let skip = (at.0 - range.start) as usize;
            buf.copy_from_slice(&bytes[skip..skip + len]);
            self.reads.fetch_sub(1, Ordering::SeqCst);
            return Ok(());
        }
        let done = self.inner.read_at(at, &mut buf[..len]);
        if self.is(Breach::KeptReads) {
            *self.kept.lock() = Some((at.0..end, buf.to_vec()));
        }
        if self.is(Breach::TornByReaders) {
            std::thread::yield_now();
        }
        self.reads.fetch_sub(1, Ordering::SeqCst);
        done
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if self.is(Breach::DiscardingReadOnly) {
            let source = io::ErrorKind::ReadOnlyFilesystem.into();
            return DeviceTicket::done(Err(WriteError { at: Physical(0), len: 0, source }));
        }
        if let Err(error) = check_writes(&writes, self.size_now()) {
            let silent = match self.breach {
                Breach::AnyAlignment => error.source.kind() == io::ErrorKind::InvalidInput,
                Breach::SilentBeyondEnd => error.source.kind() == io::ErrorKind::UnexpectedEof,
                _ => false,
            };
            if self.is(Breach::HalfBatches) {
                let _ = self.inner.submit(self.changed(writes)).wait();
                return DeviceTicket::done(Err(error));
            }
            if !silent {
                return DeviceTicket::done(Err(error));
            }
        }
        if let Err(source) = self.require_health() {
            let failed = writes.first().map(|write| WriteError { at: write.at, len: write.data.len(), source });
            return DeviceTicket::done(if self.is(Breach::SwallowedError) {
                Ok(())
            } else {
                failed.map_or(Ok(()), Err)
            });
        }
        *self.kept.lock() = None;
        let writes = self.changed(writes);
        match self.breach {
            Breach::LazyWrites => DeviceTicket::new(Lazy(self.inner.clone(), writes, false)),
            Breach::DoneTooEarly => DeviceTicket::new(Lazy(self.inner.clone(), writes, true)),
            _ => self.inner.submit(writes),
        }
    }

    fn submit_urgently(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if self.is(Breach::UrgentLost) { DeviceTicket::done(Ok(())) } else { self.submit(writes) }
    }

    fn submit_fua(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        let done = self.submit(writes).wait();
        if !self.is(Breach::NoFua) {
            let _ = self.inner.flush();
        }
        DeviceTicket::done(done)
    }

    fn has_fua(&self) -> bool {
        true
    }

    fn flush(&self) -> io::Result<()> {
        if let Err(error) = self.require_health() {
            return if self.is(Breach::SwallowedFlush) { Ok(()) } else { Err(error) };
        }
        if self.is(Breach::NoBarrier) { Ok(()) } else { self.inner.flush() }
    }

    fn release(&self) {
        self.is_released.store(true, Ordering::SeqCst);
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        if self.is(Breach::WritableReadOnly) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        *self.kept.lock() = None;
        let end = at.0.checked_add(len).filter(|end| *end <= self.size_now());
        let Some(end) = end else {
            return if self.is(Breach::SilentDiscard) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        };
        let wider = if self.is(Breach::WideDiscard) { (end + 4096).min(self.size_now()) } else { end };
        self.inner.discard(at, wider - at.0)
    }

    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        Ok(match self.breach {
            Breach::WrongHole => Some(Vec::new()),
            Breach::UnorderedRanges => Some(vec![4096..self.size_now(), 0..4096]),
            _ => Some(Vec::from([0..self.size_now(); 1])),
        })
    }

    fn file_to_read(&self, at: Physical, len: usize) -> Option<Arc<File>> {
        let is_possible = at.0.is_multiple_of(4096) && len.is_multiple_of(4096);
        let is_within = at.0.checked_add(len as u64).is_some_and(|end| end <= self.size_now());
        self.file.clone().filter(|_| is_possible && is_within)
    }

    fn counters(&self) -> DeviceCounters {
        if self.is(Breach::Uncounted) { DeviceCounters::default() } else { self.inner.counters() }
    }
}

/// Returns the promises that the suite finds broken.
fn found(breach: Breach) -> Vec<Promise> {
    let inner = Arc::new(RecordingDevice::new(vec![0; SIZE as usize + (1 << 20)].into()));
    let (is_failing, real_size) = (Arc::<AtomicBool>::default(), Arc::new(AtomicU64::new(SIZE)));
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let device = Broken {
        breach,
        inner: inner.clone(),
        size: AtomicU64::new(SIZE),
        real_size: real_size.clone(),
        has_failed: AtomicBool::new(false),
        is_failing: is_failing.clone(),
        is_released: AtomicBool::new(false),
        kept: Mutex::new(Rank::TestGate, None),
        reads: AtomicU64::new(0),
        file: (breach == Breach::OtherFile).then(|| Arc::new(file)),
    };
    let (recording, heals) = (inner.clone(), is_failing.clone());
    let subject = Subject::new(Arc::new(device))
        .after_crash(move || Arc::new(recording.crash_state(recording.len(), &mut |_| Fate::Lost)))
        .set_size(move |size| real_size.store(size, Ordering::SeqCst))
        .fail(move || is_failing.store(true, Ordering::SeqCst))
        .heal(move || heals.store(false, Ordering::SeqCst))
        .behind(inner)
        .timeout(Duration::from_millis(200));
    broken_promises(subject).iter().map(|broken| broken.promise).collect()
}

#[test]
fn each_broken_promise_is_found() {
    let breaches = [
        (Breach::SizeForgotten, Promise::Size),
        (Breach::ShortReads, Promise::Reads),
        (Breach::ReadsBeyondEnd, Promise::ReadBounds),
        (Breach::NoEmptyReads, Promise::ReadBounds),
        (Breach::LostNeighbour, Promise::Writes),
        (Breach::DoneTooEarly, Promise::Writes),
        (Breach::UrgentLost, Promise::Writes),
        (Breach::HalfBatches, Promise::WriteRules),
        (Breach::AnyAlignment, Promise::WriteRules),
        (Breach::SilentBeyondEnd, Promise::WriteRules),
        (Breach::MixedOverlap, Promise::Overlaps),
        (Breach::LazyWrites, Promise::DroppedTickets),
        (Breach::NoBarrier, Promise::Flush),
        (Breach::NoFua, Promise::Fua),
        (Breach::WideDiscard, Promise::Discards),
        (Breach::SilentDiscard, Promise::Discards),
        (Breach::WrongHole, Promise::DataRanges),
        (Breach::UnorderedRanges, Promise::DataRanges),
        (Breach::OtherFile, Promise::FileToRead),
        (Breach::TornByReaders, Promise::Threads),
        (Breach::KeptReads, Promise::Comparing),
        (Breach::Uncounted, Promise::Counters),
        (Breach::WritableReadOnly, Promise::ReadOnly),
        (Breach::DiscardingReadOnly, Promise::ReadOnly),
        (Breach::ReadsWhatIsGone, Promise::Resizes),
        (Breach::SwallowedError, Promise::Failures),
        (Breach::SwallowedFlush, Promise::Failures),
        (Breach::NeverHealed, Promise::Failures),
        (Breach::GoneWhenReleased, Promise::Release),
    ];
    for (breach, promise) in breaches {
        let found = found(breach);
        assert!(found.contains(&promise), "{breach:?}: {found:?}");
    }
}

/// What the suite finds of the other devices is therefore due to their breaches.
#[test]
fn nothing_is_found_of_a_device_that_keeps_all() {
    assert_eq!(found(Breach::Nothing), []);
}

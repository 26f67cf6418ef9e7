//! Multiple mount protection: only one of the writers that open an export writes to it.
//!
//! An export has no lock, and its clients may be on different machines. So the writer of a volume
//! on an export leaves a [mark](WriterMark) there, renews it while it lives, and removes it at the
//! end. A writer that finds another's mark looks for that writer's process if it would be on this
//! machine. Otherwise it watches the mark for longer than a living writer would leave it unchanged.
//! Once the mark is another's, nothing is written any more (invariant 12).
//!
//! An NBD client sends nothing without a lease (`writer_lease`, invariant 55). For other devices
//! the lease is checked when a write is submitted.
//!
//! Only volumes are protected. A device without a superblock of btrfs, or with other data in the
//! place of the mark, is written to without a mark until it is wiped to become a volume's.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use ubtrfs_errors::sentence;
use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_MAGIC, SUPERBLOCK_MAGIC_AT, SUPERBLOCK_SIZE};
use ubtrfs_nbd::{Access, BootTime, Clock, Holder, Lease, Lost};
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::{Condvar, Mutex, OnceLock, Rank};

use crate::buffer::{Buffer, SharedBuffer};
use crate::deferred_writes::{DeferredWrites, Submit, failed};
use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite};
use crate::writer_lease::{Refusal, Timing, WriterLease, taken_over};
use crate::writer_mark::{MARK_SIZE, WriterMark};

/// A device to which nobody else writes as long as this one lives.
#[derive(Debug)]
pub(crate) struct ProtectedDevice {
    shared: Arc<Shared>,
    /// Renews the mark.
    renewing: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    device: Arc<dyn Device>,
    writer: WriterLease,
    /// The address at which a volume on it begins.
    start: u64,
    /// The address of the mark, if there is one.
    place: OnceLock<Physical>,
    state: Mutex<State>,
    ending: Condvar,
}

#[derive(Debug)]
struct State {
    /// Writes that wait until the mark has been read.
    waiting: Vec<DeferredWrites>,
    is_ending: bool,
}

impl ProtectedDevice {
    /// Marks the volume that begins at `start` as ours, once it is certain that nobody else has it.
    /// The lease is that of the device's client, if it has one.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        start: u64,
        timing: Timing,
        lease: Option<Arc<Lease>>,
    ) -> Result<Self, Refusal> {
        Self::with_mark(device, start, timing, (Arc::new(BootTime), lease), WriterMark::new())
    }

    /// As [`Self::new`], with another clock and another mark.
    pub(crate) fn with_mark(
        device: Arc<dyn Device>,
        start: u64,
        timing: Timing,
        by: (Arc<dyn Clock>, Option<Arc<Lease>>),
        mark: WriterMark,
    ) -> Result<Self, Refusal> {
        let place = place_of_mark(&*device, start, false)?;
        let state = State { waiting: Vec::new(), is_ending: false };
        let shared = Arc::new(Shared {
            device,
            writer: WriterLease::new(mark, timing, by),
            start,
            place: OnceLock::new(),
            state: Mutex::new(Rank::ProtectedDevice, state),
            ending: Condvar::new(),
        });
        let holder: Weak<dyn Holder> = Arc::<Shared>::downgrade(&shared);
        shared.writer.is_held_by(holder);
        let protected = Self { shared, renewing: Mutex::new(Rank::ProtectedDevice, None) };
        if let Some(place) = place {
            protected.mark(place)?;
        }
        Ok(protected)
    }

    /// Marks the device as ours, and starts the thread that renews the mark.
    fn mark(&self, place: Physical) -> Result<(), Refusal> {
        self.shared.writer.take(&mut ByDevice(&*self.shared.device), place)?;
        let _ = self.shared.place.set(place);
        let renewer = Arc::clone(&self.shared);
        let thread = ubtrfs_threads::thread::Builder::new().name("ubtrfs-mark".into());
        *self.renewing.lock() = Some(thread.spawn(move || renewer.renew_until_the_end(place))?);
        Ok(())
    }

    /// Submits writes, except where the mark is. It does not wait for a server that is away, since
    /// the submitting thread serves others, too.
    fn submit_by(&self, writes: Vec<DeviceWrite>, how: Submit) -> DeviceTicket {
        let device = &*self.shared.device;
        let Some(mark) = self.shared.range() else { return how.submit(device, writes) };
        let writes = Self::around_mark(&mark, writes);
        match self.shared.writer.may_submit() {
            Ok(true) => how.submit(device, writes),
            Ok(false) => self.shared.defer(writes, how),
            Err(source) => failed(&writes, source),
        }
    }

    fn around_mark(mark: &Range<u64>, writes: Vec<DeviceWrite>) -> Vec<DeviceWrite> {
        let split = |write: DeviceWrite| {
            let (start, len) = (write.at.0, write.data.len() as u64);
            let end = start.saturating_add(len);
            // A write elsewhere is passed on unchanged; the device may refuse it.
            if end <= mark.start || mark.end <= start {
                return vec![write];
            }
            let parts = around(mark, start..end).map(|part| DeviceWrite {
                at: Physical(part.start),
                data: write.data.slice((part.start - start) as usize..(part.end - start) as usize),
            });
            parts.collect()
        };
        writes.into_iter().flat_map(split).collect()
    }
}

impl Drop for ProtectedDevice {
    fn drop(&mut self) {
        self.release();
    }
}

impl Shared {
    fn range(&self) -> Option<Range<u64>> {
        self.place.get().map(|place| place.0..place.0 + MARK_SIZE as u64)
    }

    /// Renews the mark. This need not be durable, since after a crash of the server an older mark
    /// serves as well.
    fn renew(&self, place: Physical) -> io::Result<()> {
        let begun = self.writer.now();
        let mark = self.writer.next_mark();
        let data = SharedBuffer::from(Buffer::from(&mark.to_bytes()[..]));
        self.device.submit_urgently(vec![DeviceWrite { at: place, data }]).wait()?;
        self.writer.count(begun, mark.sequence);
        Ok(())
    }

    /// Reads the mark, and fails if it is not ours.
    fn look(&self, place: Physical) -> io::Result<()> {
        self.writer.look(&mut ByDevice(&*self.device), place)
    }

    /// Defers writes to the thread that reads the mark.
    fn defer(&self, writes: Vec<DeviceWrite>, how: Submit) -> DeviceTicket {
        let mut state = self.state.lock();
        if let Some(who) = self.writer.lost() {
            return failed(&writes, taken_over(&who));
        }
        let (deferred, ticket) = DeferredWrites::new(writes, how);
        state.waiting.push(deferred);
        self.ending.notify_all();
        ticket
    }

    /// Submits the deferred writes with this result of reading the mark.
    fn submit_waiting(&self, looked: &io::Result<()>) {
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        for deferred in waiting {
            deferred.submit(&*self.device, looked);
        }
    }

    /// Fails if another writer has the device. Reads the mark if there is no lease.
    fn require_ours(&self) -> io::Result<()> {
        let Some(place) = self.place.get().copied() else { return Ok(()) };
        if self.writer.may_submit()? { Ok(()) } else { self.look(place) }
    }

    /// Checks the mark and renews it.
    fn keep(&self, place: Physical) -> io::Result<()> {
        if self.writer.has_lease()? {
            self.look(place)?;
            return self.renew(place);
        }
        if self.writer.has_client() {
            // The device's client gets a new lease before it answers anything (`Holder`).
            return self.look(place);
        }
        self.writer.extend(&mut ByDevice(&*self.device), place).map_err(|refusal| match refusal {
            Refusal::Held(who) => taken_over(&who),
            Refusal::Failed(error) => error,
        })
    }

    fn renew_until_the_end(&self, place: Physical) {
        let mut renewed = self.writer.now();
        loop {
            let rest = self.writer.timing.renewal.saturating_sub(self.writer.now().saturating_sub(renewed));
            let mut state = self.state.lock();
            if !state.is_ending && state.waiting.is_empty() {
                self.ending.wait_for(&mut state, rest);
            }
            let is_over = state.is_ending || self.writer.lost().is_some();
            drop(state);
            renewed = self.writer.now();
            let kept = if is_over { Err(io::Error::other("the device is closed")) } else { self.keep(place) };
            self.submit_waiting(&kept);
            if is_over {
                return;
            }
            // The users of the device get its errors, too.
            if let Err(error) = kept {
                tracing::debug!(error = %sentence(&error), "the mark of the writer could not be renewed");
            }
        }
    }

    /// Removes the mark, if it is ours.
    fn release(&self) {
        let Some(place) = self.place.get().copied() else { return };
        if self.writer.lost().is_none() {
            let nothing = DeviceWrite { at: place, data: SharedBuffer::from(vec![0; MARK_SIZE]) };
            let released = self.look(place).and_then(|()| Ok(self.device.submit_urgently(vec![nothing]).wait()?));
            if released.is_ok() {
                // The lease ends before the flush, which may take longer.
                self.writer.is_over();
            }
            if let Err(error) = released.and_then(|()| self.device.flush()) {
                tracing::debug!(error = %sentence(&error), "the mark of the writer stays");
            }
        }
    }
}

impl Holder for Shared {
    fn hold(&self, export: &mut dyn Access) -> Result<(), Lost> {
        if let Some(who) = self.writer.lost() {
            return Err(Lost::To(who));
        }
        let Some(place) = self.place.get().copied() else {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        };
        self.writer.extend(export, place).map_err(|refusal| match refusal {
            Refusal::Held(who) => Lost::To(who),
            Refusal::Failed(error) => Lost::Unknown(error),
        })
    }
}

/// Access to a mark through a device.
struct ByDevice<'a>(&'a dyn Device);

impl Access for ByDevice<'_> {
    fn read(&mut self, at: u64, len: u32) -> io::Result<Vec<u8>> {
        let mut bytes = Buffer::for_reading(len as usize);
        self.0.read_at(Physical(at), &mut bytes)?;
        Ok(bytes.to_vec())
    }

    fn write(&mut self, at: u64, data: Vec<u8>) -> io::Result<()> {
        let write = vec![DeviceWrite { at: Physical(at), data: SharedBuffer::from(Buffer::from(&data[..])) }];
        if self.0.has_fua() {
            return Ok(self.0.submit_fua(write).wait()?);
        }
        self.0.submit(write).wait()?;
        self.0.flush()
    }
}

impl Device for ProtectedDevice {
    fn size(&self) -> u64 {
        self.shared.device.size()
    }

    fn is_read_only(&self) -> bool {
        self.shared.device.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.shared.device.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, Submit::Usual)
    }

    fn submit_fua(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.submit_by(writes, Submit::Fua)
    }

    fn has_fua(&self) -> bool {
        self.shared.device.has_fua()
    }

    fn reads_ahead(&self) -> usize {
        self.shared.device.reads_ahead()
    }

    fn flush(&self) -> io::Result<()> {
        self.shared.device.flush()
    }

    fn protect(&self) -> io::Result<()> {
        let shared = &*self.shared;
        if shared.place.get().is_some() {
            return Ok(());
        }
        let Some(place) = place_of_mark(&*shared.device, shared.start, true)? else { return Ok(()) };
        self.mark(place).map_err(|refusal| match refusal {
            Refusal::Held(who) => taken_over(&who),
            Refusal::Failed(error) => error,
        })
    }

    fn release(&self) {
        self.shared.state.lock().is_ending = true;
        self.shared.ending.notify_all();
        // Only the first call finds the thread.
        let thread = self.renewing.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
            self.shared.release();
        }
    }

    fn take_writes_again(&self) {
        self.shared.device.take_writes_again();
    }

    fn begin_comparing(&self) {
        self.shared.device.begin_comparing();
    }

    fn end_comparing(&self) {
        self.shared.device.end_comparing();
    }

    fn stop_waiting(&self) {
        self.shared.device.stop_waiting();
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.shared.require_ours()?;
        let range = at.0..at.0.saturating_add(len);
        let mark = self.shared.range().unwrap_or(0..0);
        around(&mark, range)
            .try_for_each(|part| self.shared.device.discard(Physical(part.start), part.end - part.start))
    }

    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        self.shared.device.data_ranges()
    }

    fn counters(&self) -> DeviceCounters {
        self.shared.device.counters()
    }
}

/// Returns the parts of a range outside of another one.
fn around(hole: &Range<u64>, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (before, after) = if hole.start < range.end && range.start < hole.end {
        (range.start..hole.start, hole.end..range.end)
    } else {
        (range, 0..0)
    };
    [before, after].into_iter().filter(|part| part.start < part.end)
}

/// Returns the address of a volume's mark, or `None` if there is no volume and none is to be made,
/// or if other data is there.
fn place_of_mark(device: &dyn Device, start: u64, is_to_be: bool) -> io::Result<Option<Physical>> {
    let place = Physical(start.saturating_add(SUPERBLOCK_COPIES[0].0 + SUPERBLOCK_SIZE as u64));
    if place.0.saturating_add(MARK_SIZE as u64) > device.size() {
        return Ok(None);
    }
    let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE + MARK_SIZE);
    device.read_at(Physical(start + SUPERBLOCK_COPIES[0].0), &mut bytes)?;
    let (superblock, mark) = bytes.split_at(SUPERBLOCK_SIZE);
    let is_volume = is_to_be || superblock[SUPERBLOCK_MAGIC_AT..].starts_with(&SUPERBLOCK_MAGIC);
    let is_free = mark.iter().all(|byte| *byte == 0) || WriterMark::parse(mark).is_some();
    Ok((is_volume && is_free).then_some(place))
}

#[cfg(test)]
#[path = "protected_device_tests.rs"]
mod tests;

//! Multiple mount protection: of those who would write to an export, only one does.
//!
//! An export has no lock, and its clients may be on different machines. Who writes to a volume on
//! it leaves a [mark](WriterMark) there, which it renews while it lives and takes away in the end.
//! Who finds the mark of another looks for its process, if that would be on this machine; else it
//! watches the mark for longer than any living writer would leave it as it is. Before a write that
//! comes long after the last look at the mark, as after the machine slept, the mark is read: if it
//! is another's by now, nothing is written any more (invariant 12).
//!
//! Only volumes are protected: a device without a superblock of btrfs, or with something else where
//! the mark would be, is written to without one, until it is wiped to become a volume's.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_MAGIC, SUPERBLOCK_SIZE};
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::{Condvar, Mutex, OnceLock, Rank};

use crate::buffer::{Buffer, SharedBuffer};
use crate::deferred_writes::{DeferredWrites, Submit, failed};
use crate::device::{Device, DeviceCounters, DeviceTicket, DeviceWrite};
use crate::writer_mark::{Life, MARK_SIZE, WriterMark};

/// Where a superblock says what it is, by the on-disk format of btrfs.
const MAGIC_OFFSET: usize = 0x40;

/// How often what happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// A mark is renewed.
    pub renewal: Duration,
    /// A mark that stayed the same for so long is that of a writer that ended.
    pub silence: Duration,
    /// Nothing is written if the last look at the mark is older.
    pub lease: Duration,
    /// Who finds no mark has its own written within this time, or lets two renewals pass; and who
    /// has written one looks at it again when this time has passed.
    pub settling: Duration,
}

impl Timing {
    /// For exports of servers.
    pub(crate) const USUAL: Self = Self {
        renewal: Duration::from_secs(5),
        silence: Duration::from_secs(30),
        lease: Duration::from_secs(15),
        settling: Duration::from_millis(250),
    };
}

/// A device that nobody else writes to as long as this one lives.
#[derive(Debug)]
pub(crate) struct ProtectedDevice {
    shared: Arc<Shared>,
    /// Renews the mark.
    renewing: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    device: Arc<dyn Device>,
    timing: Timing,
    /// Where a volume on it begins.
    start: u64,
    /// Where the mark is, if there is one.
    place: OnceLock<Physical>,
    state: Mutex<State>,
    ending: Condvar,
}

#[derive(Debug)]
struct State {
    mark: WriterMark,
    /// When the mark was seen to be ours, by the clock that goes on while the machine sleeps.
    seen: Option<Duration>,
    /// Who has taken the device over.
    lost: Option<String>,
    /// Writes that wait for a look at the mark.
    waiting: Vec<DeferredWrites>,
    is_ending: bool,
}

/// Why a device can't be had.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// This writer has it.
    Held(String),
    /// It can't be asked.
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl ProtectedDevice {
    /// Marks the volume that begins at `start` as ours, once it is certain that nobody else has it.
    pub(crate) fn new(device: Arc<dyn Device>, start: u64, timing: Timing) -> Result<Self, Refusal> {
        let place = place_of_mark(&*device, start, false)?;
        let state = State { mark: WriterMark::new(), seen: None, lost: None, waiting: Vec::new(), is_ending: false };
        let shared = Arc::new(Shared {
            device,
            timing,
            start,
            place: OnceLock::new(),
            state: Mutex::new(Rank::ProtectedDevice, state),
            ending: Condvar::new(),
        });
        let protected = Self { shared, renewing: Mutex::new(Rank::ProtectedDevice, None) };
        if let Some(place) = place {
            protected.mark(place)?;
        }
        Ok(protected)
    }

    /// Marks the device as ours, and has that renewed.
    fn mark(&self, place: Physical) -> Result<(), Refusal> {
        self.shared.take(place)?;
        let _ = self.shared.place.set(place);
        let renewer = Arc::clone(&self.shared);
        let thread = ubtrfs_threads::thread::Builder::new().name("ubtrfs-mark".into());
        *self.renewing.lock() = Some(thread.spawn(move || renewer.renew_until_the_end(place))?);
        Ok(())
    }

    /// Writes, but not where the mark is. A server that is away keeps nobody here: who submits
    /// serves others, too.
    fn submit_by(&self, writes: Vec<DeviceWrite>, how: Submit) -> DeviceTicket {
        let device = &*self.shared.device;
        let Some(mark) = self.shared.range() else { return how.submit(device, writes) };
        let writes = Self::around_mark(&mark, writes);
        match self.shared.has_lease() {
            Ok(true) => how.submit(device, writes),
            Ok(false) => self.shared.defer(writes, how),
            Err(source) => failed(&writes, source),
        }
    }

    fn around_mark(mark: &Range<u64>, writes: Vec<DeviceWrite>) -> Vec<DeviceWrite> {
        let split = |write: DeviceWrite| {
            let (start, len) = (write.at.0, write.data.len() as u64);
            let parts = around(mark, start..start.saturating_add(len));
            parts.map(move |part| DeviceWrite {
                at: Physical(part.start),
                data: write.data.slice((part.start - start) as usize..(part.end - start) as usize),
            })
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
    /// Marks the device as ours. Of several that find no mark at the same time the last one to
    /// write its own has the device. The others see that, since they let the time pass in which
    /// each has its mark written, and look again; one that took longer for that waits until those
    /// that have looked already look once more.
    fn take(&self, place: Physical) -> Result<(), Refusal> {
        let found_none = self.wait_for_others(place)?;
        self.renew(place)?;
        let is_late = now().saturating_sub(found_none) > self.timing.settling;
        let pause = if is_late { self.timing.silence.min(2 * self.timing.renewal) } else { self.timing.settling };
        ubtrfs_threads::thread::sleep(pause);
        let looked = now();
        let found = self.read(place)?;
        self.compare(found.as_ref()).map_err(Refusal::Held)?;
        self.state.lock().seen = Some(looked);
        Ok(())
    }

    /// Returns when nobody else has the device: the time before this was found out.
    fn wait_for_others(&self, place: Physical) -> Result<Duration, Refusal> {
        let looked = now();
        let Some(found) = self.read(place)? else { return Ok(looked) };
        match found.process.life() {
            Life::Ended => return Ok(looked),
            Life::Alive => return Err(Refusal::Held(found.who())),
            Life::Unknown => {}
        }
        let (who, seconds) = (found.who(), self.timing.silence.as_secs());
        tracing::warn!("{who} wrote here and did not say that it ended: it is watched for {seconds} s");
        let begun = now();
        let mut looked = begun;
        while looked.saturating_sub(begun) < self.timing.silence {
            ubtrfs_threads::thread::sleep(self.timing.silence / 30);
            looked = now();
            match self.read(place)? {
                None => return Ok(looked),
                Some(next) if next != found => return Err(Refusal::Held(next.who())),
                Some(_) => {}
            }
        }
        Ok(looked)
    }

    fn range(&self) -> Option<Range<u64>> {
        self.place.get().map(|place| place.0..place.0 + MARK_SIZE as u64)
    }

    fn read(&self, place: Physical) -> io::Result<Option<WriterMark>> {
        let mut bytes = Buffer::for_reading(MARK_SIZE);
        self.device.read_at(place, &mut bytes)?;
        Ok(WriterMark::parse(&bytes))
    }

    fn write(&self, place: Physical, bytes: &[u8]) -> io::Result<()> {
        let write = vec![DeviceWrite { at: place, data: SharedBuffer::from(Buffer::from(bytes)) }];
        let has_fua = self.device.has_fua();
        let ticket = if has_fua { self.device.submit_fua(write) } else { self.device.submit(write) };
        Ok(ticket.wait()?)
    }

    /// Writes the mark, with a new number.
    fn renew(&self, place: Physical) -> io::Result<()> {
        let mark = {
            let mut state = self.state.lock();
            state.mark.sequence += 1;
            state.mark.clone()
        };
        self.write(place, &mark.to_bytes())
    }

    /// Notes what is there instead of our mark: then the device is another's.
    fn compare(&self, found: Option<&WriterMark>) -> Result<(), String> {
        let mut state = self.state.lock();
        if found.is_some_and(|found| found.writer == state.mark.writer) {
            return Ok(());
        }
        let who = found.map_or_else(|| "another writer, which has ended".into(), WriterMark::who);
        tracing::error!("{who} has taken the volume over: nothing is written to it any more");
        state.lost = Some(who.clone());
        Err(who)
    }

    /// Reads the mark; an error if it is not ours.
    fn look(&self, place: Physical) -> io::Result<()> {
        let begun = now();
        let found = self.read(place)?;
        self.compare(found.as_ref()).map_err(|who| taken_over(&who))?;
        self.state.lock().seen = Some(begun);
        Ok(())
    }

    /// Whether the last look at the mark is not too long ago; an error if another writer has the
    /// device.
    fn has_lease(&self) -> io::Result<bool> {
        let state = self.state.lock();
        if let Some(who) = &state.lost {
            return Err(taken_over(who));
        }
        Ok(state.seen.is_some_and(|seen| now().saturating_sub(seen) < self.timing.lease))
    }

    /// Leaves writes to the thread that looks at the mark.
    fn defer(&self, writes: Vec<DeviceWrite>, how: Submit) -> DeviceTicket {
        let mut state = self.state.lock();
        if let Some(who) = &state.lost {
            return failed(&writes, taken_over(who));
        }
        let (deferred, ticket) = DeferredWrites::new(writes, how);
        state.waiting.push(deferred);
        self.ending.notify_all();
        ticket
    }

    /// Submits what has waited for this look.
    fn submit_waiting(&self, looked: &io::Result<()>) {
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        for deferred in waiting {
            deferred.submit(&*self.device, looked);
        }
    }

    /// An error if another writer has the device. Looks if the last look was too long ago.
    fn require_ours(&self) -> io::Result<()> {
        let Some(place) = self.place.get().copied() else { return Ok(()) };
        if self.has_lease()? { Ok(()) } else { self.look(place) }
    }

    fn renew_until_the_end(&self, place: Physical) {
        let mut renewed = now();
        loop {
            let rest = self.timing.renewal.saturating_sub(now().saturating_sub(renewed));
            let mut state = self.state.lock();
            if !state.is_ending && state.waiting.is_empty() {
                self.ending.wait_for(&mut state, rest);
            }
            let is_over = state.is_ending || state.lost.is_some();
            drop(state);
            let looked = if is_over { Err(io::Error::other("the device is closed")) } else { self.look(place) };
            self.submit_waiting(&looked);
            if is_over {
                return;
            }
            if now().saturating_sub(renewed) < self.timing.renewal {
                continue;
            }
            renewed = now();
            // A device that fails says so to those who use it, too.
            if let Err(error) = looked.and_then(|()| self.renew(place)) {
                tracing::debug!(%error, "the mark of the writer could not be renewed");
            }
        }
    }

    /// Takes the mark away, if it is ours.
    fn release(&self) {
        let Some(place) = self.place.get().copied() else { return };
        if self.state.lock().lost.is_none() {
            let released = self.look(place).and_then(|()| self.write(place, &[0; MARK_SIZE]));
            if let Err(error) = released.and_then(|()| self.device.flush()) {
                tracing::debug!(%error, "the mark of the writer stays");
            }
        }
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
        // The first time only.
        let thread = self.renewing.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
            self.shared.release();
        }
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

    fn counters(&self) -> DeviceCounters {
        self.shared.device.counters()
    }
}

/// The parts of a range outside of another one.
fn around(hole: &Range<u64>, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (before, after) = if hole.start < range.end && range.start < hole.end {
        (range.start..hole.start, hole.end..range.end)
    } else {
        (range, 0..0)
    };
    [before, after].into_iter().filter(|part| part.start < part.end)
}

/// Where the mark of a volume is; `None` if there is no volume and none is to be, or something else
/// is there.
fn place_of_mark(device: &dyn Device, start: u64, is_to_be: bool) -> io::Result<Option<Physical>> {
    let place = Physical(start.saturating_add(SUPERBLOCK_COPIES[0].0 + SUPERBLOCK_SIZE as u64));
    if place.0.saturating_add(MARK_SIZE as u64) > device.size() {
        return Ok(None);
    }
    let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE + MARK_SIZE);
    device.read_at(Physical(start + SUPERBLOCK_COPIES[0].0), &mut bytes)?;
    let (superblock, mark) = bytes.split_at(SUPERBLOCK_SIZE);
    let is_volume = is_to_be || superblock[MAGIC_OFFSET..].starts_with(&SUPERBLOCK_MAGIC);
    let is_free = mark.iter().all(|byte| *byte == 0) || WriterMark::parse(mark).is_some();
    Ok((is_volume && is_free).then_some(place))
}

fn taken_over(who: &str) -> io::Error {
    io::Error::other(format!("{who} has taken the volume over"))
}

/// Time that goes on while the machine sleeps.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
#[path = "protected_device_tests.rs"]
mod tests;

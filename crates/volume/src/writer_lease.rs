//! How a writer of an export acquires and keeps it: by its mark, which other writers read.
//!
//! Renewing the mark gives the writer a lease, which counts from the beginning of the renewal.
//! Other writers watch a mark for at least twice as long, so nobody acquires the export before the
//! lease has ended and everything that was sent under it has arrived. A writer without a lease, as
//! after the machine slept, starts like a new one: it reads the mark, writes it, waits as long as
//! others need to see it, and reads it again. Before that nothing else is written (invariants 12
//! and 55).

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ubtrfs_format::Physical;
use ubtrfs_nbd::{Access, Clock, Holder, Lease};
use ubtrfs_threads::{Mutex, Rank};

use crate::writer_mark::{Life, MARK_SIZE, WriterMark};

/// A mark is watched longer by this many times the slowest read: a slow server may still have to
/// carry out what its writer sent.
const SLOWNESS: u32 = 8;

/// The intervals of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The interval between renewals of a mark.
    pub renewal: Duration,
    /// A mark that has not changed for this long is that of a writer that has ended.
    pub silence: Duration,
    /// Nothing is written if the last renewal began longer ago than this. It is at most half of
    /// `silence`, so that everything in flight arrives before others acquire the export.
    pub lease: Duration,
    /// A writer that finds no mark has to have its own written within this time, or else waits
    /// until leases have ended. After it has written its mark, it waits this long before it reads
    /// it again.
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

/// A writer, and what it knows of its mark.
#[derive(Debug)]
pub(crate) struct WriterLease {
    pub(crate) timing: Timing,
    clock: Arc<dyn Clock>,
    /// The lease under which the client of the device sends.
    lease: Option<Arc<Lease>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mark: WriterMark,
    /// When the renewal that gives the lease began, and its number.
    renewed: Option<(Duration, u64)>,
    /// The writer that has taken the device over.
    lost: Option<String>,
}

/// Why a device can't be acquired.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// This writer has it.
    Held(String),
    /// The device can't be read or written.
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl WriterLease {
    pub(crate) fn new(mark: WriterMark, timing: Timing, (clock, lease): (Arc<dyn Clock>, Option<Arc<Lease>>)) -> Self {
        let state = Mutex::new(Rank::WriterLease, State { mark, renewed: None, lost: None });
        Self { timing, clock, lease, state }
    }

    /// Sets whom the client of the device asks for a new lease when the lease has ended.
    pub(crate) fn is_held_by(&self, holder: Weak<dyn Holder>) {
        if let Some(lease) = &self.lease {
            lease.is_held_by(holder);
        }
    }

    /// Ends the lease: nothing is written any more.
    pub(crate) fn is_over(&self) {
        if let Some(lease) = self.lease.as_ref().filter(|_| self.lost().is_none()) {
            lease.is_over();
        }
    }

    /// Returns the writer that has taken the device over.
    pub(crate) fn lost(&self) -> Option<String> {
        self.state.lock().lost.clone()
    }

    /// Marks the device as ours.
    pub(crate) fn take(&self, export: &mut dyn Access, place: Physical) -> Result<(), Refusal> {
        let found_none = self.wait_for_others(export, place)?;
        self.settle(export, place, found_none)
    }

    /// Marks the device as ours after the mark of nobody else was found. Of several writers that do
    /// so at the same time, the last one to write its mark gets the device. The others see that,
    /// since they wait as long as each writer may take to write its mark, and read it again. A
    /// writer that took longer waits until those that have already read the mark have no lease any
    /// more, unless they find its mark.
    fn settle(&self, export: &mut dyn Access, place: Physical, looked: Duration) -> Result<(), Refusal> {
        let mut looked = Some(looked);
        let Timing { renewal, silence, lease, settling } = self.timing;
        loop {
            let begun = self.now();
            let number = self.write_mark(export, place)?;
            let is_quick = looked.take().is_some_and(|looked| self.now().saturating_sub(looked) <= settling);
            let pause = if is_quick { settling } else { lease.max(2 * renewal).min(silence / 2) };
            ubtrfs_threads::thread::sleep(pause);
            let found = self.compare(read_mark(export, place)?.as_ref()).map_err(Refusal::Held)?;
            // A late write of ours may have overwritten another's mark.
            let is_ours = found == number;
            if is_ours && is_quick {
                self.count(begun, number);
                return Ok(());
            }
            if is_ours {
                let renewed = self.now();
                let number = self.write_mark(export, place)?;
                if self.now().saturating_sub(begun) < silence {
                    self.count(renewed, number);
                    return Ok(());
                }
            }
        }
    }

    /// Extends the lease, or acquires a new one.
    pub(crate) fn extend(&self, export: &mut dyn Access, place: Physical) -> Result<(), Refusal> {
        let looked = self.now();
        let found = self.compare(read_mark(export, place)?.as_ref()).map_err(Refusal::Held)?;
        let last = self.state.lock().renewed;
        let begun = self.now();
        if last.is_some_and(|(renewed, _)| begun.saturating_sub(renewed) < self.timing.lease) {
            let number = self.write_mark(export, place)?;
            self.count(begun, number);
            return Ok(());
        }
        // If the mark has another number than the last one, a late write may have put it over
        // another's mark.
        let is_as_it_was = last.is_some_and(|(_, number)| number == found);
        let long_ago = looked.saturating_sub(2 * self.timing.settling + Duration::from_nanos(1));
        self.settle(export, place, if is_as_it_was { looked } else { long_ago })
    }

    /// Counts a renewal that began at this time: from then on nobody else acquires the export for a
    /// while.
    pub(crate) fn count(&self, begun: Duration, number: u64) {
        let mut state = self.state.lock();
        // The client's own connection may have renewed the mark in between.
        let (begun, number) =
            state.renewed.map_or((begun, number), |(renewed, last)| (renewed.max(begun), last.max(number)));
        state.renewed = Some((begun, number));
        if let Some(lease) = self.lease.as_ref().filter(|_| state.lost.is_none()) {
            lease.end_at(begun + self.timing.lease);
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Waits until nobody else has the device. Returns the time just before that was found out.
    fn wait_for_others(&self, export: &mut dyn Access, place: Physical) -> Result<Duration, Refusal> {
        let mut looked = self.now();
        let Some(found) = read_mark(export, place)? else { return Ok(looked) };
        let mut slowest = self.now().saturating_sub(looked);
        match found.process.life() {
            Life::Ended => {
                ubtrfs_threads::thread::sleep(SLOWNESS * slowest);
                looked = self.now();
                return match read_mark(export, place)? {
                    Some(next) if next != found => Err(Refusal::Held(next.who())),
                    _ => Ok(looked),
                };
            }
            Life::Alive => return Err(Refusal::Held(found.who())),
            Life::Unknown => {}
        }
        let (who, seconds) = (found.who(), self.timing.silence.as_secs());
        tracing::warn!("{who} wrote here and did not say that it ended: it is watched for {seconds} s");
        let begun = self.now();
        looked = begun;
        while looked.saturating_sub(begun) < self.timing.silence + SLOWNESS * slowest {
            ubtrfs_threads::thread::sleep(self.timing.silence / 30);
            looked = self.now();
            match read_mark(export, place)? {
                None => return Ok(looked),
                Some(next) if next != found => return Err(Refusal::Held(next.who())),
                Some(_) => {}
            }
            slowest = slowest.max(self.now().saturating_sub(looked));
        }
        Ok(looked)
    }

    /// Writes the mark with a new number, and returns the number. The mark is durable, since a
    /// server that crashes must not show later that nobody is there.
    fn write_mark(&self, export: &mut dyn Access, place: Physical) -> io::Result<u64> {
        let mark = self.next_mark();
        export.write(place.0, mark.to_bytes().to_vec())?;
        Ok(mark.sequence)
    }

    /// Returns the mark with a new number.
    pub(crate) fn next_mark(&self) -> WriterMark {
        let mut state = self.state.lock();
        state.mark.sequence += 1;
        state.mark.clone()
    }

    /// Returns the number of the mark if it is ours. Otherwise the device is another's, which this
    /// notes.
    fn compare(&self, found: Option<&WriterMark>) -> Result<u64, String> {
        let mut state = self.state.lock();
        if let Some(found) = found.filter(|found| found.writer == state.mark.writer) {
            return Ok(found.sequence);
        }
        let who = found.map_or_else(|| "another writer, which has ended".into(), WriterMark::who);
        tracing::error!("{who} has taken the volume over: nothing is written to it any more");
        state.lost = Some(who.clone());
        if let Some(lease) = &self.lease {
            lease.end_at(Duration::ZERO);
        }
        Err(who)
    }

    /// Reads the mark, and fails if it is not ours.
    pub(crate) fn look(&self, export: &mut dyn Access, place: Physical) -> io::Result<()> {
        let found = read_mark(export, place)?;
        self.compare(found.as_ref()).map_err(|who| taken_over(&who))?;
        Ok(())
    }

    /// Returns whether writes may be submitted. Fails if another writer has the device. A client
    /// that knows the lease delays writes by itself.
    pub(crate) fn may_submit(&self) -> io::Result<bool> {
        Ok(self.has_lease()? || self.lease.is_some())
    }

    /// Returns whether the last renewal of the mark began recently enough. Fails if another writer
    /// has the device.
    pub(crate) fn has_lease(&self) -> io::Result<bool> {
        let state = self.state.lock();
        if let Some(who) = &state.lost {
            return Err(taken_over(who));
        }
        Ok(state.renewed.is_some_and(|(renewed, _)| self.now().saturating_sub(renewed) < self.timing.lease))
    }

    /// Returns whether the client of the device knows the lease.
    pub(crate) fn has_client(&self) -> bool {
        self.lease.is_some()
    }
}

fn read_mark(export: &mut dyn Access, place: Physical) -> io::Result<Option<WriterMark>> {
    Ok(WriterMark::parse(&export.read(place.0, MARK_SIZE as u32)?))
}

pub(crate) fn taken_over(who: &str) -> io::Error {
    io::Error::other(format!("{who} has taken the volume over"))
}

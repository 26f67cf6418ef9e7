//! How a writer of an export gets and keeps it: by its mark, which others look at.
//!
//! A mark that was renewed gives its writer a lease, from when the renewal was begun. Others watch
//! a mark for twice as long at least, so nobody has the export before the lease is over and what
//! was sent under it has arrived. Without a lease, as after the machine slept, the writer comes
//! like a new one: it looks at the mark, has it written, lets the time pass in which others would
//! have seen that, and looks again. Before that nothing else is written (invariants 12 and 71).

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ubtrfs_format::Physical;
use ubtrfs_nbd::{Access, Clock, Holder, Lease};
use ubtrfs_threads::{Mutex, Rank};

use crate::writer_mark::{Life, MARK_SIZE, WriterMark};

/// How many times as long as the slowest look a mark is watched besides: a server that is slow may
/// still have to carry out what its writer sent.
const SLOWNESS: u32 = 8;

/// How often what happens.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A mark is renewed.
    pub renewal: Duration,
    /// A mark that stayed the same for so long is that of a writer that ended.
    pub silence: Duration,
    /// Nothing is written if the last renewal of the mark was begun before that: at most half of
    /// `silence`, so that what is under way arrives before others come.
    pub lease: Duration,
    /// Who finds no mark has its own written within this time, or lets leases pass; and who has
    /// written one looks at it again when this time has passed.
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
    /// What the client of the device sends by.
    lease: Option<Arc<Lease>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mark: WriterMark,
    /// When the renewal was begun that gives the lease, and its number.
    renewed: Option<(Duration, u64)>,
    /// Who has taken the device over.
    lost: Option<String>,
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

impl WriterLease {
    pub(crate) fn new(mark: WriterMark, timing: Timing, (clock, lease): (Arc<dyn Clock>, Option<Arc<Lease>>)) -> Self {
        let state = Mutex::new(Rank::WriterLease, State { mark, renewed: None, lost: None });
        Self { timing, clock, lease, state }
    }

    /// Whom the client of the device asks when the lease has ended.
    pub(crate) fn is_held_by(&self, holder: Weak<dyn Holder>) {
        if let Some(lease) = &self.lease {
            lease.is_held_by(holder);
        }
    }

    /// Nothing is written any more.
    pub(crate) fn is_over(&self) {
        if let Some(lease) = self.lease.as_ref().filter(|_| self.lost().is_none()) {
            lease.is_over();
        }
    }

    /// Who has taken the device over.
    pub(crate) fn lost(&self) -> Option<String> {
        self.state.lock().lost.clone()
    }

    /// Marks the device as ours.
    pub(crate) fn take(&self, export: &mut dyn Access, place: Physical) -> Result<(), Refusal> {
        let found_none = self.wait_for_others(export, place)?;
        self.settle(export, place, found_none)
    }

    /// Marks the device as ours after a look that found nobody else. Of several that do so at the
    /// same time the last one to write its own mark has the device. The others see that, since they
    /// let the time pass in which each has its mark written, and look again; one that took longer
    /// for that waits until those that have looked already have no lease any more, unless they find
    /// its mark.
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
            // A write of ours that came late may have been over another's mark.
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

    /// Gets the lease for longer, or a new one.
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
        // Another number than the last one may have come late, over another's mark.
        let is_as_it_was = last.is_some_and(|(_, number)| number == found);
        let long_ago = looked.saturating_sub(2 * self.timing.settling + Duration::from_nanos(1));
        self.settle(export, place, if is_as_it_was { looked } else { long_ago })
    }

    /// From a renewal on that was begun then nobody else comes for a while.
    pub(crate) fn count(&self, begun: Duration, number: u64) {
        let mut state = self.state.lock();
        // Another one may have come in between by the client's own connection.
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

    /// Returns when nobody else has the device: the time before this was found out.
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

    /// Writes the mark, with a new number, which it returns. It is durable: a server that crashes
    /// must not show that nobody is there.
    fn write_mark(&self, export: &mut dyn Access, place: Physical) -> io::Result<u64> {
        let mark = self.next_mark();
        export.write(place.0, mark.to_bytes().to_vec())?;
        Ok(mark.sequence)
    }

    /// The mark with a new number.
    pub(crate) fn next_mark(&self) -> WriterMark {
        let mut state = self.state.lock();
        state.mark.sequence += 1;
        state.mark.clone()
    }

    /// Notes what is there instead of our mark: then the device is another's. Else the number of
    /// the mark.
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

    /// Reads the mark; an error if it is not ours.
    pub(crate) fn look(&self, export: &mut dyn Access, place: Physical) -> io::Result<()> {
        let found = read_mark(export, place)?;
        self.compare(found.as_ref()).map_err(|who| taken_over(&who))?;
        Ok(())
    }

    /// Whether writes may be submitted; an error if another writer has the device. A client that
    /// knows the lease has them wait by itself.
    pub(crate) fn may_submit(&self) -> io::Result<bool> {
        Ok(self.has_lease()? || self.lease.is_some())
    }

    /// Whether the last renewal of the mark was not begun too long ago; an error if another writer
    /// has the device.
    pub(crate) fn has_lease(&self) -> io::Result<bool> {
        let state = self.state.lock();
        if let Some(who) = &state.lost {
            return Err(taken_over(who));
        }
        Ok(state.renewed.is_some_and(|(renewed, _)| self.now().saturating_sub(renewed) < self.timing.lease))
    }

    /// Whether the client of the device knows the lease.
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

//! A lease says until when an export may be written to. Its holder extends it as long as nobody
//! else can have taken the export over.
//!
//! The lease covers every byte that is sent (invariant 55): it is checked just before each system
//! call that gives bytes to the kernel, and none of these calls waits. A connection ends before the
//! lease does, and its queued messages and what the kernel has not sent are dropped with it.
//! Another connection is used only after the holder has extended the lease, or knows that it has
//! lost the export.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use ubtrfs_threads::OnceLock;
use ubtrfs_threads::atomic::{AtomicU64, Ordering::SeqCst};

/// The end of a lease that never ends.
const UNLIMITED: u64 = u64::MAX;

/// The clock of a lease, which goes on while the machine sleeps.
pub trait Clock: Send + Sync + Debug {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The system clock that goes on while the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub struct BootTime;

impl Clock for BootTime {
    fn now(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

/// The holder of an export, which others recognise by what is written at some place of it.
pub trait Holder: Send + Sync {
    /// Extends the lease, or gets a new one if it has ended, over a connection on which nothing
    /// else is sent meanwhile. Returns [`Lost::To`] if another writer has the export.
    fn hold(&self, export: &mut dyn Access) -> Result<(), Lost>;
}

/// Why there is no lease.
#[derive(Debug)]
pub enum Lost {
    /// Another writer has the export.
    To(String),
    /// The export can't be read or written.
    Unknown(io::Error),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Unknown(error)
    }
}

/// Reads and writes of a holder.
pub trait Access {
    /// Reads bytes.
    fn read(&mut self, at: u64, len: u32) -> io::Result<Vec<u8>>;
    /// Writes bytes, which are durable when this returns. This needs no lease.
    fn write(&mut self, at: u64, data: Vec<u8>) -> io::Result<()>;
}

/// The time until which changes of an export may be sent.
#[derive(Debug)]
pub struct Lease {
    clock: Arc<dyn Clock>,
    /// The end, in nanoseconds of the clock.
    until: AtomicU64,
    holder: OnceLock<HolderOf>,
}

struct HolderOf(Weak<dyn Holder>);

impl Debug for HolderOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HolderOf").finish_non_exhaustive()
    }
}

impl Lease {
    /// Returns a lease that never ends, until its end is set for the first time.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, until: AtomicU64::new(UNLIMITED), holder: OnceLock::new() }
    }

    /// The time by its clock.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Sets the holder that is called when the lease has ended. Only the first call has an effect.
    pub fn is_held_by(&self, holder: Weak<dyn Holder>) {
        let _ = self.holder.set(HolderOf(holder));
    }

    /// Sets the end of the lease, from which on nothing is sent.
    pub fn end_at(&self, time: Duration) {
        self.until.store(u64::try_from(time.as_nanos()).unwrap_or(UNLIMITED - 1), SeqCst);
    }

    /// Removes the end of the lease, since nobody writes any more.
    pub fn is_over(&self) {
        self.until.store(UNLIMITED, SeqCst);
    }

    /// Returns whether the lease lasts for so long from now on.
    pub fn lasts(&self, time: Duration) -> bool {
        let now = self.now().saturating_add(time);
        let until = self.until.load(SeqCst);
        until == UNLIMITED || now < Duration::from_nanos(until)
    }

    /// Returns an error if the lease has ended.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.lasts(Duration::ZERO) {
            return Ok(());
        }
        // By invariant 55, since another writer may come soon.
        Err(io::Error::other("the lease of the writer has ended"))
    }

    /// Has the holder extend the lease.
    pub(crate) fn hold(&self, export: &mut dyn Access) -> Result<(), Lost> {
        let holder = self.holder.get().and_then(|HolderOf(holder)| holder.upgrade());
        match holder {
            Some(holder) => holder.hold(export),
            None => self.check().map_err(Lost::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of invariant 55.
    #[test]
    fn a_lease_ends_at_its_time_and_not_before_it_is_needed() {
        let lease = Lease::new(Arc::new(BootTime));
        assert!(lease.check().is_ok() && lease.lasts(Duration::from_secs(1 << 30)));
        lease.end_at(lease.now() + Duration::from_secs(3600));
        assert!(lease.check().is_ok() && !lease.lasts(Duration::from_secs(3601)));
        lease.end_at(lease.now());
        assert!(lease.check().is_err(), "invariant 55");
        lease.is_over();
        assert!(lease.check().is_ok());
    }
}

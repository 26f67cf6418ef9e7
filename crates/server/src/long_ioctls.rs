//! Ioctls whose time grows with the size of a device or a file. They end early by a signal for the
//! process that waits for the answer, or by an ioctl that cancels them.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ubtrfs::Filesystem;
use ubtrfs_fuse::Errno;
use ubtrfs_threads::atomic::{AtomicBool, Ordering};
use ubtrfs_threads::{Mutex, Rank};

/// How many interrupts are remembered whose request is not known. Another thread may still be
/// reading the request; but most interrupts are for requests that are no long ioctls.
const MAX_EARLY: usize = 64;

/// What such an ioctl does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Scrub,
    Balance,
    Remove,
    Resize,
    Defragment,
}

impl Kind {
    /// The name of the kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Scrub => "scrub",
            Self::Balance => "balance",
            Self::Remove => "remove",
            Self::Resize => "resize",
            Self::Defragment => "defragment",
        }
    }
}

/// A long ioctl that is under way.
#[derive(Debug)]
pub(crate) struct LongIoctl {
    kind: Kind,
    is_interrupted: AtomicBool,
    is_cancelled: AtomicBool,
}

impl LongIoctl {
    /// Returns whether nobody wants it to end.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_interrupted.load(Ordering::Acquire) && !self.is_cancelled.load(Ordering::Acquire)
    }

    /// The answer to the ioctl: `EINTR` if a signal has ended it, else `done`.
    pub(crate) fn outcome<T>(&self, done: Result<T, Errno>) -> Result<T, Errno> {
        match done {
            Err(Errno::CANCELED) if self.is_interrupted.load(Ordering::Acquire) => Err(Errno::INTR),
            done => done,
        }
    }
}

/// Limits the rate at which extents are moved, in bytes per second (0 is no limit), and returns a
/// function in place of `goes_on`. The limit applies from the first call of that function: by then
/// the operation has begun, and no other one moves extents.
pub(crate) fn within_limit<'a>(
    engine: &'a Filesystem,
    bytes_per_second: u64,
    goes_on: &'a dyn Fn() -> bool,
) -> impl Fn() -> bool + 'a {
    let has_begun = Cell::new(false);
    move || {
        if !has_begun.replace(true) {
            engine.relocator().limit(Some(bytes_per_second).filter(|limit| *limit > 0));
        }
        goes_on()
    }
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<u64, Arc<LongIoctl>>,
    /// The last requests that were not known when they were interrupted.
    early: VecDeque<u64>,
}

/// The long ioctls of a mount, by the numbers of their requests.
#[derive(Debug)]
pub(crate) struct LongIoctls(Mutex<State>);

impl Default for LongIoctls {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::LongIoctls))
    }
}

impl LongIoctls {
    /// Notes that a long ioctl begins.
    pub(crate) fn begin(&self, request: u64, kind: Kind) -> Arc<LongIoctl> {
        let mut state = self.0.lock();
        let is_interrupted = AtomicBool::new(state.early.contains(&request));
        let ioctl = Arc::new(LongIoctl { kind, is_interrupted, is_cancelled: AtomicBool::new(false) });
        state.running.insert(request, Arc::clone(&ioctl));
        ioctl
    }

    /// Notes that a long ioctl has ended.
    pub(crate) fn end(&self, request: u64) {
        self.0.lock().running.remove(&request);
    }

    /// Notes that a signal came for the process that waits for a request, of whatever kind.
    pub(crate) fn interrupt(&self, request: u64) {
        let mut state = self.0.lock();
        if let Some(ioctl) = state.running.get(&request) {
            return ioctl.is_interrupted.store(true, Ordering::Release);
        }
        if state.early.len() == MAX_EARLY {
            state.early.pop_front();
        }
        state.early.push_back(request);
    }

    /// Has all ioctls of a kind end soon. `ENOTCONN` if there are none.
    pub(crate) fn cancel(&self, kind: Kind) -> Result<(), Errno> {
        let state = self.0.lock();
        let mut found = Err(Errno::NOTCONN);
        for ioctl in state.running.values().filter(|ioctl| ioctl.kind == kind) {
            ioctl.is_cancelled.store(true, Ordering::Release);
            found = Ok(());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_one_ioctl_even_if_it_comes_first() {
        let ioctls = LongIoctls::default();
        let (first, second) = (ioctls.begin(2, Kind::Scrub), ioctls.begin(4, Kind::Scrub));
        assert!(first.goes_on() && second.goes_on());
        ioctls.interrupt(4);
        assert!(first.goes_on() && !second.goes_on());
        assert_eq!(second.outcome::<()>(Err(Errno::CANCELED)), Err(Errno::INTR));
        assert_eq!(second.outcome(Ok(7)), Ok(7), "it was done before");
        assert_eq!(first.outcome::<()>(Err(Errno::CANCELED)), Err(Errno::CANCELED), "somebody else ended it");
        ioctls.interrupt(6);
        assert!(!ioctls.begin(6, Kind::Balance).goes_on());
        (0..MAX_EARLY as u64).for_each(|number| ioctls.interrupt(100 + number));
        assert!(ioctls.begin(6, Kind::Balance).goes_on(), "so many are not remembered");
    }

    #[test]
    fn those_of_a_kind_are_cancelled_while_they_run() {
        let ioctls = LongIoctls::default();
        assert_eq!(ioctls.cancel(Kind::Remove), Err(Errno::NOTCONN));
        let (removal, balance) = (ioctls.begin(2, Kind::Remove), ioctls.begin(4, Kind::Balance));
        assert_eq!(ioctls.cancel(Kind::Remove), Ok(()));
        assert!(!removal.goes_on() && balance.goes_on());
        assert_eq!(removal.outcome::<()>(Err(Errno::CANCELED)), Err(Errno::CANCELED));
        ioctls.end(2);
        assert_eq!(ioctls.cancel(Kind::Remove), Err(Errno::NOTCONN));
    }
}

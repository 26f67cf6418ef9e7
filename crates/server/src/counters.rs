//! Counts how many requests of each kind came, and how long they took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ubtrfs_fuse::Hops;
use ubtrfs_threads::time::Instant;

macro_rules! kinds {
    ($($name:ident $text:literal),+ $(,)?) => {
        /// The kinds of requests that are counted.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Kind { $($name),+ }

        const NAMES: &[&str] = &[$($text),+];
    };
}

kinds! {
    Lookup "lookup", Forget "forget", GetAttr "getattr", Statx "statx", Access "access", SetAttr "setattr",
    ReadLink "readlink", SymLink "symlink", MkNod "mknod", MkDir "mkdir", Unlink "unlink", RmDir "rmdir",
    Rename "rename", Link "link",
    Create "create", TmpFile "tmpfile", Open "open", Read "read", Write "write", StatFs "statfs", Fsync "fsync",
    SyncFs "syncfs", SetXattr "setxattr", GetXattr "getxattr", ListXattr "listxattr", RemoveXattr "removexattr",
    OpenDir "opendir", ReadDir "readdir", ReadDirPlus "readdirplus", FsyncDir "fsyncdir", Ioctl "ioctl",
    Fallocate "fallocate", Lseek "lseek", CopyFileRange "copy_file_range", Postponed "postponed",
}

/// Counters of requests.
#[derive(Debug)]
pub(crate) struct Counters {
    cells: [Cell; NAMES.len()],
    fsyncs: [AtomicU64; STEPS],
    /// The number of jobs that were given to threads for slow requests.
    pub(crate) slow_jobs: Arc<AtomicU64>,
}

/// The number of steps of durations: four for each doubling from a microsecond on. The last step
/// has all longer durations.
const STEPS: usize = 4 * 28;

/// The step of a duration in microseconds.
fn step_of(micros: u64) -> usize {
    (0..STEPS - 1).find(|step| micros <= longest_of(*step)).unwrap_or(STEPS - 1)
}

/// The longest duration of a step, in microseconds.
fn longest_of(step: usize) -> u64 {
    ((4 + step as u64 % 4) << (step / 4)).div_ceil(4)
}

#[derive(Debug, Default)]
struct Cell {
    requests: AtomicU64,
    nanos: AtomicU64,
}

/// The measurement of a request that is being served. It is dropped when the request's method
/// returns, which is mostly after the answer.
#[must_use = "dropped at once it measures nothing"]
pub(crate) struct Timed<'a> {
    cell: Option<&'a Cell>,
    began: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            cell.nanos.fetch_add(self.began.elapsed().as_nanos() as u64, Relaxed);
        }
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            cells: std::array::from_fn(|_| Cell::default()),
            fsyncs: std::array::from_fn(|_| AtomicU64::default()),
            slow_jobs: Arc::default(),
        }
    }

    /// Counts a request that comes now, and measures how long it takes.
    pub(crate) fn count(&self, kind: Kind) -> Timed<'_> {
        let cell = self.cells.get(kind as usize);
        if let Some(cell) = cell {
            cell.requests.fetch_add(1, Relaxed);
        }
        Timed { cell, began: Instant::now() }
    }

    /// The number of requests of each kind that came, by name.
    pub(crate) fn requests(&self) -> BTreeMap<String, u64> {
        self.by_name(|cell| &cell.requests)
    }

    /// The nanoseconds that serving the requests of each kind took, without the work of other
    /// threads for them.
    pub(crate) fn nanos(&self) -> BTreeMap<String, u64> {
        self.by_name(|cell| &cell.nanos)
    }

    /// Notes an fsync that is answered now.
    pub(crate) fn fsync_answered(&self, began: Instant) {
        if let Some(step) = self.fsyncs.get(step_of(began.elapsed().as_micros() as u64)) {
            step.fetch_add(1, Relaxed);
        }
    }

    /// The number of fsyncs by time: for each upper bound in microseconds, how many took no longer
    /// than that, and longer than the bound before.
    pub(crate) fn fsync_micros(&self) -> BTreeMap<u64, u64> {
        let counts = self.fsyncs.iter().map(|step| step.load(Relaxed)).enumerate().filter(|(_, count)| *count > 0);
        // The smallest steps have the same bound, since they differ by less than a microsecond.
        counts.fold(BTreeMap::new(), |mut all, (step, count)| {
            *all.entry(longest_of(step)).or_default() += count;
            all
        })
    }

    /// How often requests and answers went from thread to thread, by name.
    pub(crate) fn hops(&self, of_rings: Hops) -> BTreeMap<String, u64> {
        let Hops { at_once, reading, postponed, not_tried, answered_elsewhere, woken } = of_rings;
        let all = [
            ("at_once", at_once),
            ("reading", reading),
            ("postponed", postponed),
            ("not_tried", not_tried),
            ("answered_elsewhere", answered_elsewhere),
            ("woken", woken),
            ("slow_jobs", self.slow_jobs.load(Relaxed)),
        ];
        all.into_iter().filter(|(_, value)| *value > 0).map(|(name, value)| (name.into(), value)).collect()
    }

    fn by_name(&self, what: impl Fn(&Cell) -> &AtomicU64) -> BTreeMap<String, u64> {
        let values = self.cells.iter().map(|cell| what(cell).load(Relaxed));
        NAMES.iter().zip(values).filter(|(_, value)| *value > 0).map(|(name, value)| ((*name).into(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_durations_hold_what_falls_into_them() {
        for micros in [0, 1, 2, 3, 100, 1000, 123_456, 60_000_000] {
            let step = step_of(micros);
            assert!(longest_of(step) >= micros, "{micros}");
            assert!(step == 0 || longest_of(step - 1) < micros, "{micros}");
        }
        assert_eq!(step_of(u64::MAX), STEPS - 1);
    }

    #[test]
    fn each_kind_has_its_name() {
        let counters = Counters::new();
        for kind in [Kind::Lookup, Kind::Lseek, Kind::Lseek] {
            let _timed = counters.count(kind);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(counters.requests(), BTreeMap::from([("lookup".into(), 1), ("lseek".into(), 2)]));
        assert!(counters.nanos()["lookup"] >= 1_000_000);
    }
}

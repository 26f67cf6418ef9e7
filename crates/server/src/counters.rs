//! How many requests of each kind came, and how long they took.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

macro_rules! kinds {
    ($($name:ident $text:literal),+ $(,)?) => {
        /// The kinds of requests that are counted.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Kind { $($name),+ }

        const NAMES: &[&str] = &[$($text),+];
    };
}

kinds! {
    Lookup "lookup", Forget "forget", GetAttr "getattr", Statx "statx", SetAttr "setattr", ReadLink "readlink",
    SymLink "symlink", MkNod "mknod", MkDir "mkdir", Unlink "unlink", RmDir "rmdir", Rename "rename", Link "link",
    Create "create", TmpFile "tmpfile", Open "open", Read "read", Write "write", StatFs "statfs", Fsync "fsync",
    SyncFs "syncfs", SetXattr "setxattr", GetXattr "getxattr", ListXattr "listxattr", RemoveXattr "removexattr",
    OpenDir "opendir", ReadDir "readdir", ReadDirPlus "readdirplus", FsyncDir "fsyncdir", Ioctl "ioctl",
    Fallocate "fallocate", Lseek "lseek", CopyFileRange "copy_file_range", Postponed "postponed",
}

/// Counters of requests.
#[derive(Debug)]
pub(crate) struct Counters {
    cells: [Cell; NAMES.len()],
}

#[derive(Debug, Default)]
struct Cell {
    requests: AtomicU64,
    nanos: AtomicU64,
}

/// A request that is being served: dropped when its method returns, which is mostly after the answer.
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
        Self { cells: std::array::from_fn(|_| Cell::default()) }
    }

    /// Counts a request that comes now, and measures how long it takes.
    pub(crate) fn count(&self, kind: Kind) -> Timed<'_> {
        let cell = self.cells.get(kind as usize);
        if let Some(cell) = cell {
            cell.requests.fetch_add(1, Relaxed);
        }
        Timed { cell, began: Instant::now() }
    }

    /// Requests of the kinds that came, by name.
    pub(crate) fn requests(&self) -> BTreeMap<String, u64> {
        self.by_name(|cell| &cell.requests)
    }

    /// Nanoseconds that serving them took, but for what other threads did for them.
    pub(crate) fn nanos(&self) -> BTreeMap<String, u64> {
        self.by_name(|cell| &cell.nanos)
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

//! How many requests of each kind came.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    Fallocate "fallocate", Lseek "lseek", Postponed "postponed",
}

/// Counters of requests.
#[derive(Debug)]
pub(crate) struct Counters {
    cells: [AtomicU64; NAMES.len()],
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { cells: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    pub(crate) fn count(&self, kind: Kind) {
        if let Some(cell) = self.cells.get(kind as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Those that are not zero, by name.
    pub(crate) fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.cells.iter().map(|cell| cell.load(Relaxed));
        NAMES.iter().copied().zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_name() {
        let counters = Counters::new();
        counters.count(Kind::Lookup);
        counters.count(Kind::Lseek);
        counters.count(Kind::Lseek);
        assert_eq!(counters.by_name(), BTreeMap::from([("lookup", 1), ("lseek", 2)]));
    }
}

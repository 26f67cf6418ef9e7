//! Open directories and their listings.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use ubtrfs::{DirectoryEntry, InodeId, Result};
use ubtrfs_format::DirIndex;

/// Where a listing stands: the offset that the kernel sends.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;
/// Entries that are fetched at once.
const BATCH: usize = 128;

/// What OPENDIR opened. A listing shows no entry that came after it began, or else one that renames what it reads never
/// ends.
#[derive(Debug, Default)]
pub(crate) struct OpenDirectories {
    next: AtomicU64,
    /// By handle: the number of the last entry to show.
    bounds: RwLock<HashMap<u64, Arc<AtomicU64>>>,
}

impl OpenDirectories {
    /// A new handle.
    pub(crate) fn open(&self, last: DirIndex) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.bounds.write().insert(handle, Arc::new(AtomicU64::new(last.0)));
        handle
    }

    pub(crate) fn close(&self, handle: u64) {
        self.bounds.write().remove(&handle);
    }

    /// The last entry to show. At the beginning (rewinddir(3)) `fresh` says what that is now.
    pub(crate) fn bound(&self, handle: u64, offset: u64, fresh: impl FnOnce() -> Result<DirIndex>) -> Result<DirIndex> {
        let bound = self.bounds.read().get(&handle).cloned();
        match bound {
            Some(bound) if offset == 0 => {
                let last = fresh()?;
                bound.store(last.0, Ordering::Relaxed);
                Ok(last)
            }
            Some(bound) => Ok(DirIndex(bound.load(Ordering::Relaxed))),
            None => fresh(),
        }
    }
}

/// A row of a listing, and the offset at which the listing goes on after it.
pub(crate) enum Row<'a> {
    /// `.` or `..`, and what it leads to.
    Dots { name: &'static [u8], id: InodeId, next: u64 },
    /// Any other.
    Entry { entry: &'a DirectoryEntry, next: u64 },
}

/// Lists a directory from `offset` up to the entry `last`, until `show` says that there is no more room.
pub(crate) fn list(
    engine: &ubtrfs::Filesystem,
    dir: InodeId,
    offset: u64,
    last: DirIndex,
    show: &mut dyn FnMut(Row<'_>) -> Result<bool>,
) -> Result<()> {
    if offset < AFTER_DOT && !show(Row::Dots { name: b".", id: dir, next: AFTER_DOT })? {
        return Ok(());
    }
    if offset < AFTER_DOTS && !show(Row::Dots { name: b"..", id: engine.parent(dir)?, next: AFTER_DOTS })? {
        return Ok(());
    }
    // The entry of number n is followed by offset n + 1: numbers begin at 2, and the first listing goes on at 2, too.
    let mut after = DirIndex(offset.max(AFTER_DOTS) - 1);
    loop {
        let entries = engine.list(dir, after, last, BATCH)?;
        for entry in &entries {
            if !show(Row::Entry { entry, next: entry.index.0.saturating_add(1) })? {
                return Ok(());
            }
            after = entry.index;
        }
        if entries.len() < BATCH {
            return Ok(());
        }
    }
}

//! Listings of directories.

use ubtrfs::{DirectoryEntry, InodeId, Result};
use ubtrfs_format::DirIndex;

/// Where a listing stands: the offset that the kernel sends.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;
/// Entries that are fetched at once.
const BATCH: usize = 128;

/// Where a listing that goes on at `offset` ends. It shows no entry that came after it began, or else one that renames what
/// it reads never ends.
pub(crate) fn end(engine: &ubtrfs::Filesystem, dir: InodeId, offset: u64) -> Result<DirIndex> {
    if offset == 0 { engine.begin_listing(dir) } else { engine.listing_end(dir) }
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

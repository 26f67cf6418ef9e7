//! The pinned extents, by the commits whose readers may see them.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Weak};

use ubtrfs_format::{Generation, Logical};

use crate::free_map::FreeMap;

/// A commit that can be read as long as somebody holds this.
pub type ReadableCommit = Arc<dyn Any + Send + Sync>;

type Readers = Weak<dyn Any + Send + Sync>;

/// Extents that a commit freed and that readers of the commit before it may still be reading.
struct Pinned {
    readers: Readers,
    extents: Vec<(Logical, u64)>,
    /// The extents that no kept commit uses have been removed from it.
    is_sifted: bool,
}

/// A commit that somebody keeps, and the ranges that were allocated since.
struct KeptCommit {
    generation: Generation,
    commit: Readers,
    /// Ranges that the commit does not use. They may have been freed again.
    allocated: FreeMap,
}

impl KeptCommit {
    /// Returns whether somebody still keeps it.
    fn is_read(&self) -> bool {
        self.commit.strong_count() > 0
    }

    /// Returns whether the commit may use a part of a range: not all of it was allocated since.
    fn may_use(&self, start: u64, len: u64) -> bool {
        let mut allocated = self.allocated.overlapping(start, start + len);
        !allocated.next().is_some_and(|(at, size)| at <= start && start + len <= at + size)
    }
}

/// All pinned extents.
#[derive(Default)]
pub(crate) struct Pins {
    /// The extents in the order of the commits that freed them.
    pinned: Vec<Pinned>,
    kept: Vec<KeptCommit>,
}

impl Pins {
    /// Returns whether nothing is pinned.
    pub(crate) fn is_empty(&self) -> bool {
        self.pinned.is_empty()
    }

    /// Notes a range that is allocated now.
    pub(crate) fn note_allocated(&mut self, start: u64, len: u64) {
        for kept in &mut self.kept {
            kept.allocated.remove_any(start, len);
            kept.allocated.insert(start, len);
        }
    }

    /// Returns how many bytes are pinned in a range of addresses.
    pub(crate) fn bytes_in(&self, range: &Range<u64>) -> u64 {
        let extents = self.pinned.iter().flat_map(|pinned| &pinned.extents);
        let part = |(at, len): &(Logical, u64)| (at.0 + len).min(range.end).saturating_sub(at.0.max(range.start));
        extents.map(part).sum()
    }

    /// Pins extents that a commit has freed, until the commit before it has no readers.
    pub(crate) fn pin(&mut self, before: &ReadableCommit, extents: Vec<(Logical, u64)>) {
        self.pinned.push(Pinned { readers: Arc::downgrade(before), extents, is_sifted: false });
    }

    /// Records what is allocated from now on while a commit is kept.
    pub(crate) fn keep(&mut self, generation: Generation, commit: &ReadableCommit) {
        self.kept.retain(KeptCommit::is_read);
        self.kept.push(KeptCommit { generation, commit: Arc::downgrade(commit), allocated: FreeMap::default() });
    }

    /// Returns the newest commit that is kept.
    pub(crate) fn newest_kept(&self) -> Option<Generation> {
        self.kept.iter().filter(|kept| kept.is_read()).map(|kept| kept.generation).max()
    }

    /// Takes the extents that no reader can see any more.
    pub(crate) fn take_unseen(&mut self) -> Vec<(Logical, u64)> {
        // Commits are handled in order: an older commit's readers must have ended first.
        let read = self.pinned.iter().position(|pinned| pinned.readers.strong_count() > 0);
        let ended = self.pinned.drain(..read.unwrap_or(self.pinned.len()));
        let mut unseen: Vec<_> = ended.flat_map(|pinned| pinned.extents).collect();
        self.kept.retain(KeptCommit::is_read);
        if self.kept.is_empty() {
            return unseen;
        }
        for pinned in &mut self.pinned {
            let is_read = pinned.readers.strong_count() > 0;
            if is_read && !self.kept.iter().any(|kept| kept.commit.ptr_eq(&pinned.readers)) {
                // For a commit that is not kept, it is not known what its readers may see.
                break;
            }
            if !std::mem::replace(&mut pinned.is_sifted, true) {
                let is_kept = |(start, len): &(Logical, u64)| self.kept.iter().any(|kept| kept.may_use(start.0, *len));
                let (kept, gone) = std::mem::take(&mut pinned.extents).into_iter().partition::<Vec<_>, _>(is_kept);
                pinned.extents = kept;
                unseen.extend(gone);
            }
        }
        unseen
    }
}

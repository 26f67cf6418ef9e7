//! What commits freed, until nobody can read it any more.
//!
//! Who reads the trees of a commit sees what later ones have freed. So this is given out when the
//! commit before the one that freed it has no reader, nor one of those before it. A commit that is
//! *kept* has a reader for long: it is known what was allocated since, and that needs not wait for
//! it.

use std::sync::Arc;

use ubtrfs_format::{Generation, Logical};
use ubtrfs_volume::Published;

use super::allocator::{Space, SpaceInner};
use super::freed::{KeptSpace, Pinned};
use crate::committed::Committed;

impl Space {
    /// Pins extents that a durable commit has freed until the readers of the commit before it
    /// are gone.
    pub(crate) fn pin(&self, before: &Arc<Committed>, extents: Vec<(Logical, u64)>, published: &Published) {
        assert!(
            before.generation < published.generation(),
            "invariant 3: what a commit freed waits until it is durable"
        );
        let mut inner = self.inner.lock();
        inner.pinned.push(Pinned { readers: Arc::downgrade(before), extents, is_sifted: false });
        inner.unpin();
    }

    /// Unpins space that no reader can see any more.
    pub(crate) fn unpin(&self) {
        self.inner.lock().unpin();
    }

    /// Notes what is allocated from now on, while the last commit is kept for long. No commit is in
    /// progress.
    pub(crate) fn keep(&self, commit: &Arc<Committed>) {
        let mut inner = self.inner.lock();
        inner.kept_commits.retain(KeptSpace::is_read);
        inner.kept_commits.push(KeptSpace::new(commit));
    }
}

impl SpaceInner {
    /// The newest commit that is kept. What later commits refer to may be given out again when yet
    /// later ones have freed it.
    pub(crate) fn newest_kept(&self) -> Option<Generation> {
        self.kept_commits.iter().filter(|kept| kept.is_read()).map(KeptSpace::generation).max()
    }

    pub(super) fn unpin(&mut self) {
        // In order: an older commit's readers must have ended first.
        while let Some(first) = self.pinned.first() {
            if first.readers.strong_count() > 0 {
                break;
            }
            let Pinned { extents, .. } = self.pinned.remove(0);
            self.unpin_extents(extents);
        }
        self.kept_commits.retain(KeptSpace::is_read);
        if self.kept_commits.is_empty() {
            return;
        }
        let mut unseen = Vec::new();
        for pinned in &mut self.pinned {
            let is_read = pinned.readers.strong_count() > 0;
            if is_read && !self.kept_commits.iter().any(|kept| kept.has_readers(&pinned.readers)) {
                // Of another one's readers is not known what they may see.
                break;
            }
            if !std::mem::replace(&mut pinned.is_sifted, true) {
                let is_kept =
                    |(start, len): &(Logical, u64)| self.kept_commits.iter().any(|kept| kept.may_use(start.0, *len));
                let (kept, gone) = std::mem::take(&mut pinned.extents).into_iter().partition::<Vec<_>, _>(is_kept);
                pinned.extents = kept;
                unseen.extend(gone);
            }
        }
        self.unpin_extents(unseen);
    }

    fn unpin_extents(&mut self, extents: Vec<(Logical, u64)>) {
        for (start, len) in extents {
            self.make_available(start, len);
            self.freed.add_extent(start.0, len);
        }
    }
}

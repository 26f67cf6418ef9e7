//! Pinning: space that commits freed is not allocated until no reader can see it any more.
//!
//! A reader of a commit's trees sees extents that later commits have freed. So freed space is
//! allocated again only when neither the commit before the one that freed it nor any older commit
//! has a reader. A commit that is *kept* has a reader for long. For it, everything allocated since
//! is recorded, and need not wait for it.

use ubtrfs_format::{Generation, Logical};
use ubtrfs_volume::Published;

use crate::pins::ReadableCommit;
use crate::space::{Space, SpaceState};

impl Space {
    /// Pins extents that a durable commit has freed, until the commit before it, which is of this
    /// generation, has no readers.
    ///
    /// # Panics
    ///
    /// If the published commit is not a later one.
    pub fn pin(
        &self,
        (generation, before): (Generation, &ReadableCommit),
        extents: Vec<(Logical, u64)>,
        published: &Published,
    ) {
        assert!(generation < published.generation(), "invariant 3: what a commit freed waits until it is durable");
        let mut state = self.lock();
        state.pins.pin(before, extents);
        state.unpin();
    }

    /// Unpins the space that no reader can see any more.
    pub fn unpin(&self) {
        self.lock().unpin();
    }

    /// Records what is allocated from now on, while the last commit, which is of this generation,
    /// is kept for long. No commit is in progress.
    pub fn keep(&self, generation: Generation, commit: &ReadableCommit) {
        self.lock().pins.keep(generation, commit);
    }

    /// Returns the newest commit that is kept. Space that only later commits used may be allocated
    /// again once still later ones have freed it.
    pub fn newest_kept(&self) -> Option<Generation> {
        self.lock().pins.newest_kept()
    }
}

impl SpaceState {
    pub(crate) fn unpin(&mut self) {
        for (start, len) in self.pins.take_unseen() {
            self.make_available(start, len);
            self.discards.add_extent(start.0, len);
        }
    }
}

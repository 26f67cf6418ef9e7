//! What commits freed, until nobody can read it any more.
//!
//! Who reads the trees of a commit sees what later ones have freed. So this is given out when the
//! commit before the one that freed it has no reader, nor one of those before it. A commit that is
//! *kept* has a reader for long: it is known what was allocated since, and that needs not wait for
//! it.

use ubtrfs_format::{Generation, Logical};
use ubtrfs_volume::Published;

use crate::pins::ReadableCommit;
use crate::space::{Space, SpaceState};

impl Space {
    /// Pins extents that a durable commit has freed until the readers of the commit before it,
    /// which is of this generation, are gone.
    ///
    /// # Panics
    ///
    /// If the commit that was published is not a later one.
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

    /// Unpins space that no reader can see any more.
    pub fn unpin(&self) {
        self.lock().unpin();
    }

    /// Notes what is allocated from now on, while the last commit, which is of this generation, is
    /// kept for long. No commit is in progress.
    pub fn keep(&self, generation: Generation, commit: &ReadableCommit) {
        self.lock().pins.keep(generation, commit);
    }

    /// The newest commit that is kept. What later commits refer to may be given out again when yet
    /// later ones have freed it.
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

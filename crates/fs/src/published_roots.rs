//! The trees as readers see them: those of the last commit, and the changes of the commit in
//! progress that readers need.
//!
//! For invariant 2, readers get the roots of a commit when it is durable, by
//! [`PublishedRoots::publish`]. For invariant 6, a commit begins only when the previous one has
//! ended.

use std::sync::Arc;

use ubtrfs_file::{ExtentPiece, MovedExtents};
use ubtrfs_threads::{ArcSwap, ArcSwapOption, Rank, RwLock};
use ubtrfs_volume::Published;

use crate::committed::Committed;
use crate::error::Result;
use crate::transaction::Transaction;

/// The roots of the last commit, and the changes of a commit in progress.
pub(crate) struct PublishedRoots {
    committed: ArcSwap<Committed>,
    /// Held shared while an inode or a subvolume that was loaded is put into its table, so that no
    /// commit is published meanwhile.
    publishing: RwLock<()>,
    /// The transaction that is being committed.
    frozen: ArcSwapOption<Transaction>,
    /// The extents that the commit in progress moves.
    moved: ArcSwapOption<MovedExtents>,
}

impl PublishedRoots {
    /// Starts with a volume as its last commit left it.
    pub(crate) fn new(committed: Committed) -> Self {
        Self {
            committed: ArcSwap::from_pointee(committed),
            publishing: RwLock::with_default(Rank::PublishedRoots),
            frozen: ArcSwapOption::empty(),
            moved: ArcSwapOption::empty(),
        }
    }

    /// Returns the last commit. A reference to it keeps the space of its trees from being reused,
    /// and must be held during lookups in them.
    pub(crate) fn committed(&self) -> Arc<Committed> {
        self.committed.load_full()
    }

    /// Publishes a durable commit, calls `follow` before anything is loaded from it, and returns
    /// the commit before it.
    pub(crate) fn publish(
        &self,
        committed: &Arc<Committed>,
        published: &Published,
        follow: impl FnOnce(),
    ) -> Arc<Committed> {
        assert_eq!(committed.generation, published.generation(), "invariant 2: readers see what is durable");
        let _nothing_is_loaded = self.publishing.write();
        let before = self.committed.swap(Arc::clone(committed));
        follow();
        before
    }

    /// Loads an object from the last commit, and puts it where changes find it. If a commit was
    /// published in between, the object may have changed and been evicted again, so it is loaded
    /// once more. No commit is published before the object is in its place.
    pub(crate) fn load<T, U>(
        &self,
        load: impl Fn(&Arc<Committed>) -> Result<T>,
        put: impl FnOnce(T) -> U,
    ) -> Result<U> {
        loop {
            let committed = self.committed();
            let loaded = load(&committed)?;
            let _none_is_published = self.publishing.read();
            if Arc::ptr_eq(&committed, &self.committed.load()) {
                return Ok(put(loaded));
            }
        }
    }

    /// Returns the transaction that is being committed.
    pub(crate) fn frozen(&self) -> Option<Arc<Transaction>> {
        self.frozen.load_full()
    }

    /// Whether a commit is in progress.
    pub(crate) fn has_frozen(&self) -> bool {
        self.frozen.load().is_some()
    }

    /// Returns the memory in bytes that dirty data of the transaction in commit takes. Each write
    /// calls this, so it does not touch a reference count that threads share.
    pub(crate) fn frozen_dirty_bytes(&self) -> u64 {
        self.frozen.load().as_ref().map_or(0, |transaction| transaction.memory().dirty())
    }

    /// Begins a commit. No operation is inside the gate.
    pub(crate) fn set_frozen(&self, transaction: Arc<Transaction>) {
        let before = self.frozen.swap(Some(transaction));
        assert!(before.is_none(), "invariant 6: a commit began before the one before it had ended");
    }

    /// Ends a commit, which is durable.
    pub(crate) fn forget_frozen(&self, published: &Published) {
        let ended = self.frozen.swap(None);
        let is_its_own = ended.is_none_or(|transaction| transaction.generation == published.generation());
        assert!(is_its_own, "invariant 6: a commit ends its own transaction");
    }

    /// Returns the extents that the commit in progress moves.
    pub(crate) fn moved(&self) -> Option<Arc<MovedExtents>> {
        self.moved.load_full()
    }

    /// Sets the extents that the next published commit moves. Whatever is put into a map in memory
    /// from now on gets their new addresses.
    pub(crate) fn set_moved(&self, moved: Option<Arc<MovedExtents>>) {
        self.moved.store(moved);
    }

    /// Returns a piece with the present address of its extent.
    pub(crate) fn follow(&self, extent: ExtentPiece) -> ExtentPiece {
        self.moved.load().as_ref().map_or(extent, |moved| moved.follow(extent))
    }
}

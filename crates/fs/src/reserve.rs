//! Reserves what operations need: space on the devices and memory for changes. A shortage of either
//! is cured by new chunks, by freeing unreferenced content, and by commits (invariant 8,
//! invariant 26). An operation that fails for lack of space has changed nothing (invariant 23).
//! Space that a balance or the removal of a device keeps from operations is given back when they
//! need it (invariant 43).

use std::sync::Arc;

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_threads::{MutexGuard, Rank, is_held};

use crate::commit::Committer;
use crate::discard::Discarder;
use crate::error::{Errno, Result};
use crate::fs_info::FsInfo;
use crate::inactivate::{Inactivator, TYPICAL_EXTENT};
use crate::inode::Inode;
use crate::transaction::Joined;
use ubtrfs_space::{Demand, Help, Reservation, Shortage, SpaceState};

/// Reserves the space that operations may need.
pub(crate) struct Reserver {
    info: Arc<FsInfo>,
    committer: Arc<Committer>,
    discards: Arc<Discarder>,
    inactivator: Arc<Inactivator>,
}

impl Reserver {
    pub(crate) fn new(
        info: Arc<FsInfo>,
        committer: Arc<Committer>,
        discards: Arc<Discarder>,
        inactivator: Arc<Inactivator>,
    ) -> Self {
        Self { info, committer, discards, inactivator }
    }

    /// Makes all earlier changes durable. Returns at once if there are none.
    pub(crate) fn commit(&self) -> Result<()> {
        if !self.info.options.background_commits {
            // No other thread does this work.
            self.inactivator.free_some()?;
            self.committer.commit()?;
            return self.discards.discard_freed();
        }
        self.committer.commit()
    }

    /// Runs an operation with a reservation, and releases the reserved metadata if it fails, since
    /// it has changed nothing then. Called like [`Self::reserve`].
    pub(crate) fn with_reserved<T>(&self, demand: Demand, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let _reservation = self.reserve(demand)?;
        let joined = Joined::by_now();
        operation().inspect_err(|_| {
            debug_assert!(
                joined.is_all() || self.info.writability.abort_reason().is_some(),
                "invariant 23: an operation fails that has changed something"
            );
            self.info.space.lock().unreserve_metadata(demand);
        })
    }

    /// Reserves what an operation may need. Must be called before any inode is locked: a shortage
    /// is cured by a new chunk, by freeing inodes that wait for that, or by commits, which free
    /// pinned space.
    pub(crate) fn reserve(&self, demand: Demand) -> Result<Reservation<'_>> {
        self.reserve_by(demand, true)
    }

    /// Does the same for the emptying of a group, which gets no space from groups that are being
    /// emptied.
    pub(crate) fn reserve_to_move(&self, demand: Demand) -> Result<Reservation<'_>> {
        self.reserve_by(demand, false)
    }

    fn reserve_by(&self, demand: Demand, may_ask_back: bool) -> Result<Reservation<'_>> {
        const COMMITS: usize = 2;
        // What is freed may be shared by snapshots, so that no space comes back, or other
        // operations may take it. No operation waits until all of a long queue has been freed.
        const MAX_FRUITLESS: usize = 32;
        // Other operations may take the space that groups give back.
        const MAX_ASKED: usize = 8;
        debug_assert!(!is_held(Rank::Gate), "invariant 7: space is reserved before the gate is entered");
        let mut commits = 0;
        self.limit_changes()?;
        // While these waits last, no group begins to be emptied.
        let mut waits = Vec::new();
        let mut asked = 0;
        let mut without_discards = None;
        let mut fruitless = 0;
        loop {
            let shortage = {
                let mut space = self.info.space.lock();
                match space.reserve(demand) {
                    Ok(()) => return Ok(Reservation::of(&self.info.space, &mut space, demand)),
                    Err(shortage) => {
                        if self.grow(&mut space, shortage)? {
                            continue;
                        }
                        space.want_empty_groups(shortage);
                        shortage
                    }
                }
            };
            ubtrfs_tree::ensure_may_block()?;
            tracing::debug!(?shortage, commits, "space is short");
            if without_discards.is_none() {
                // The space that is being discarded is excluded from allocation.
                without_discards = Some(self.discards.hold_off());
                continue;
            }
            let before = self.info.space.lock().available_bytes();
            if fruitless >= MAX_FRUITLESS || !self.inactivator.free_some()?.freed {
                if commits == COMMITS {
                    let may_ask_back = may_ask_back && asked < MAX_ASKED;
                    let help = if may_ask_back { self.info.space.lock().ask_back(demand) } else { Help::No };
                    asked += 1;
                    match help {
                        Help::No => return Err(Errno::NOSPC.into()),
                        Help::Given => {}
                        Help::Soon => {
                            without_discards = None;
                            waits.push(self.info.space.wait_for_groups());
                        }
                    }
                    continue;
                }
                commits += 1;
            }
            self.committer.commit()?;
            self.info.space.unpin();
            let is_more = self.info.space.lock().available_bytes() > before;
            fruitless = if is_more { 0 } else { fruitless + 1 };
        }
    }

    /// Reserves metadata if this needs a new chunk at most. Waits for nothing, not even for a
    /// commit.
    pub(crate) fn reserve_at_once(&self, demand: Demand) -> Option<Reservation<'_>> {
        debug_assert_eq!(demand.data, 0, "only metadata may be short");
        self.info.try_reserve(demand).or_else(|| {
            let has_grown = self.grow(&mut self.info.space.lock(), Shortage::Metadata);
            if has_grown.unwrap_or(false) { self.info.try_reserve(demand) } else { None }
        })
    }

    /// Waits for discards in progress. No other discard begins while the result lives.
    pub(crate) fn hold_off_discards(&self) -> MutexGuard<'_, ()> {
        self.discards.hold_off()
    }

    /// Allocates a chunk of this kind, if there is space for one. Returns whether it did.
    pub(crate) fn add_chunk(&self, kind: BlockGroupFlags) -> Result<bool> {
        let mut space = self.info.space.lock();
        Ok(space.add_chunk(kind, &self.info.volume)?.is_some())
    }

    /// Allocates a chunk for what is short, if there is space for one. Returns whether it did.
    fn grow(&self, space: &mut SpaceState, shortage: Shortage) -> Result<bool> {
        let kind = match shortage {
            Shortage::Data if !space.metadata_comes_first() => BlockGroupFlags::DATA,
            Shortage::Data | Shortage::Metadata => BlockGroupFlags::METADATA,
        };
        if space.add_chunk(kind, &self.info.volume)?.is_some() {
            return Ok(true);
        }
        // The space may suffice for a data chunk with only one copy.
        let other = shortage == Shortage::Data && kind != BlockGroupFlags::DATA;
        Ok(other && space.add_chunk(BlockGroupFlags::DATA, &self.info.volume)?.is_some())
    }

    /// Throttles operations when the open transaction exceeds the memory budget.
    pub(crate) fn limit_changes(&self) -> Result<()> {
        let budget = self.info.most_changes();
        let changes = self.info.changes();
        if changes > budget + budget / 2 {
            ubtrfs_tree::ensure_may_block()?;
            return self.commit();
        }
        if changes > budget {
            self.info.commit_request.ask();
        }
        Ok(())
    }

    /// Reserves for an operation that may free all of a file's extents, each of which may touch a
    /// leaf of its own. If there is no space for that, `least` must suffice: operations that free
    /// space may use the global reserve.
    pub(crate) fn reserve_to_free(&self, inode: &Inode, least: Demand) -> Result<Reservation<'_>> {
        let extents = inode.read().item.nbytes / TYPICAL_EXTENT;
        let most = Demand { edits: least.edits + extents, ..least };
        // Emptied groups are not asked to give space back for the larger demand.
        self.reserve_by(most, false).or_else(|_| self.reserve(least))
    }
}

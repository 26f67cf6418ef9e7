//! Room for operations: space on the devices and memory for changes, and what cures a shortage of
//! either: chunks, freeing what nobody refers to, commits (invariant 8, invariant 26). What fails
//! for want of it has changed nothing (invariant 23). What a balance or the removal of a device
//! holds aside is given to operations first (invariant 58).

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

/// Reserves what operations may need.
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
            // There is no other thread that does it.
            self.inactivator.free_some()?;
            self.committer.commit()?;
            return self.discards.discard_freed();
        }
        self.committer.commit()
    }

    /// Runs an operation with a reservation; releases the metadata if it fails, since it changed
    /// nothing then. Called as [`Self::reserve`] is.
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

    /// Reserves what an operation may need. Called before any inode is locked: a shortage is cured
    /// by a new chunk, by freeing what waits for that, or by commits, which free what is pinned.
    pub(crate) fn reserve(&self, demand: Demand) -> Result<Reservation<'_>> {
        self.reserve_by(demand, true)
    }

    /// The same for what empties a group: groups that are emptied do not give their space to it.
    pub(crate) fn reserve_to_move(&self, demand: Demand) -> Result<Reservation<'_>> {
        self.reserve_by(demand, false)
    }

    fn reserve_by(&self, demand: Demand, may_ask_back: bool) -> Result<Reservation<'_>> {
        const COMMITS: usize = 2;
        // Others may take what groups give.
        const MAX_ASKED: usize = 8;
        debug_assert!(!is_held(Rank::Gate), "invariant 7: space is reserved before the gate is entered");
        let mut commits = 0;
        self.limit_changes()?;
        // Until these end no group begins to be emptied.
        let mut waits = Vec::new();
        let mut asked = 0;
        let mut without_discards = None;
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
                // What is being discarded is excluded.
                without_discards = Some(self.discards.hold_off());
                continue;
            }
            if !self.inactivator.free_some()?.freed {
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
        }
    }

    /// Reserves metadata where at most a new chunk is needed for it: waits for nothing, not even
    /// for a commit.
    pub(crate) fn reserve_at_once(&self, demand: Demand) -> Option<Reservation<'_>> {
        debug_assert_eq!(demand.data, 0, "only metadata may be short");
        self.info.try_reserve(demand).or_else(|| {
            let has_grown = self.grow(&mut self.info.space.lock(), Shortage::Metadata);
            if has_grown.unwrap_or(false) { self.info.try_reserve(demand) } else { None }
        })
    }

    /// Waits for discards that are under way; no other begins while the result lives.
    pub(crate) fn hold_off_discards(&self) -> MutexGuard<'_, ()> {
        self.discards.hold_off()
    }

    /// Makes a chunk of this kind, if there is room for one.
    pub(crate) fn add_chunk(&self, kind: BlockGroupFlags) -> Result<bool> {
        let mut space = self.info.space.lock();
        Ok(space.add_chunk(kind, &self.info.volume)?.is_some())
    }

    /// Makes a chunk for what is short, if there is room for one.
    fn grow(&self, space: &mut SpaceState, shortage: Shortage) -> Result<bool> {
        let kind = match shortage {
            Shortage::Data if !space.metadata_comes_first() => BlockGroupFlags::DATA,
            Shortage::Data | Shortage::Metadata => BlockGroupFlags::METADATA,
        };
        if space.add_chunk(kind, &self.info.volume)?.is_some() {
            return Ok(true);
        }
        // The room may do for a chunk of data that has one copy.
        let other = shortage == Shortage::Data && kind != BlockGroupFlags::DATA;
        Ok(other && space.add_chunk(BlockGroupFlags::DATA, &self.info.volume)?.is_some())
    }

    /// Holds operations back when the open transaction has grown too large for the memory budget.
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

    /// Reserves for an operation that may free all of a file's extents, each of which may touch
    /// leaves of its own. Where there is no room for that, `least` must suffice: operations that
    /// free space have a reserve.
    pub(crate) fn reserve_to_free(&self, inode: &Inode, least: Demand) -> Result<Reservation<'_>> {
        let extents = inode.read().item.nbytes / TYPICAL_EXTENT;
        let most = Demand { edits: least.edits + extents, ..least };
        // None is asked for more than that.
        self.reserve_by(most, false).or_else(|_| self.reserve(least))
    }
}

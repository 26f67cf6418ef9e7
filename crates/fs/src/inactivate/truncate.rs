//! Chooses how much of an inode is freed in one transaction.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::{FileExtent, FileExtentKind};
use ubtrfs_format::{Generation, ItemType, Key};

use super::Inactivator;
use super::queue::Waiting;
use crate::error::{Error, Result};
use crate::inode::Inode;
use ubtrfs_space::{Demand, Reservation, UseOfGlobalReserve};

/// So few extents are freed even if no space can be reserved for that: the global reserve is used.
const FEW: u64 = 16;

/// Items of an inode itself that a truncation may change.
const EDITS_OF_INODE: u64 = 4;

/// The part at the end of a file that is truncated.
#[derive(Debug, Default)]
pub(crate) struct Truncation {
    /// The transaction in which it was planned and in which its space is reserved.
    pub(crate) generation: Generation,
    /// The offset at which it starts.
    pub(crate) from: u64,
    /// Number of extents in it.
    pub(crate) extents: u64,
    /// Bytes of the file in them.
    bytes: u64,
    /// Their places on disk: address and length, in bytes.
    places: Vec<(u64, u64)>,
    /// Whether nothing before it has to be freed.
    pub(crate) is_rest: bool,
}

impl Truncation {
    /// Returns the reservation for freeing a few extents.
    pub(crate) fn least_demand() -> Demand {
        Demand { edits: EDITS_OF_INODE + 2 * (1 + FEW), global_reserve: UseOfGlobalReserve::All, ..Demand::default() }
    }

    /// Returns the reservation for freeing it. Extents that are adjacent on disk are also adjacent
    /// in the trees, and share leaves.
    fn demand(&mut self) -> Demand {
        self.places.sort_unstable();
        let runs = 1 + self.places.windows(2).filter(|pair| pair[0].0 + pair[0].1 != pair[1].0).count() as u64;
        Demand {
            edits: EDITS_OF_INODE + 2 * runs + self.extents / 25 + (self.bytes >> 23),
            global_reserve: UseOfGlobalReserve::All,
            ..Demand::default()
        }
    }
}

impl Inactivator {
    /// Frees the end of the first inode in the queue, at most `most` extents. If `may_commit` is
    /// set, commits may make space for that. Returns the number of extents, plus one for the inode
    /// itself, or `None` if no space can be reserved for it and what it takes of the global reserve
    /// would not come back.
    pub(super) fn free_step(&self, waiting: &Waiting, most: u64, may_commit: bool) -> Result<Option<u64>> {
        if self.info.deleted.is_released(waiting.inode.id.subvolume) {
            // The inode is dropped with the tree.
            self.info.inodes.remove(waiting.inode.id);
            self.queue.advance(None, 0);
            return Ok(Some(1));
        }
        let truncation = loop {
            let reserved = self.reserve_truncation(&waiting.inode, 0..waiting.reached, most, may_commit)?;
            let Some((truncation, _reservation)) = reserved else { return Ok(None) };
            let mut state = waiting.inode.write();
            let transaction = self.info.gate.enter();
            if transaction.generation != truncation.generation {
                // The reservation ended with the previous transaction.
                continue;
            }
            if truncation.is_rest {
                self.end_inode(&waiting.inode, &mut state, &transaction);
            } else {
                state.join(&waiting.inode, &transaction);
                state.pending.layout.truncate(truncation.from);
                state.item.size = state.item.size.min(truncation.from);
            }
            break truncation;
        };
        self.count_step(truncation.extents);
        self.queue.advance((!truncation.is_rest).then_some(truncation.from), truncation.bytes);
        Ok(Some(truncation.extents + 1))
    }

    pub(crate) fn count_step(&self, extents: u64) {
        self.queue.steps.fetch_add(1, Ordering::Relaxed);
        self.queue.extents.fetch_add(extents, Ordering::Relaxed);
    }

    /// Chooses the part of an inode to truncate, as much as space can be reserved for. If
    /// `may_commit` is set, commits may make space. A few extents need no reservation if what their
    /// transaction takes of the global reserve comes back; otherwise the result is `None`.
    pub(crate) fn reserve_truncation(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mut most: u64,
        may_commit: bool,
    ) -> Result<Option<(Truncation, Option<Reservation<'_>>)>> {
        let mut tried = !may_commit;
        loop {
            let mut truncation = self.plan_truncation(inode, range.clone(), most)?;
            let reservation = self.info.try_reserve(truncation.demand());
            if reservation.is_some() {
                return Ok(Some((truncation, reservation)));
            }
            if tried && most <= FEW {
                return Ok(self.use_kept().then_some((truncation, None)));
            }
            if tried {
                most = (most / 4).max(FEW);
            }
            tried = true;
            if may_commit {
                // The space that earlier steps freed may be enough.
                self.committer.commit()?;
                self.info.space.unpin();
            }
        }
    }

    /// Finds the last extents of an inode that begin in `range`: `most` of them, or all if there
    /// are fewer.
    fn plan_truncation(&self, inode: &Arc<Inode>, range: Range<u64>, most: u64) -> Result<Truncation> {
        let (state, generation) = loop {
            let mut state = inode.write();
            let generation = self.info.gate.freeze_older(&mut *state);
            if state.frozen.is_none() {
                break (state, generation);
            }
            // The extents that the commit in flight adds are not in the trees yet.
            drop(state);
            self.committer.wait();
            if let Some(error) = self.info.aborted() {
                return Err(Error::Aborted(error));
            }
        };
        let mut truncation = Truncation { generation, from: range.end, ..Truncation::default() };
        if !state.committed || range.is_empty() {
            return Ok(Truncation { is_rest: true, ..truncation });
        }
        let key = |offset| Key::new(inode.id.ino.0, ItemType::EXTENT_DATA, offset);
        for item in self.info.committed().tree(inode.id.subvolume)?.range_rev(key(range.start)..=key(range.end - 1)) {
            if truncation.extents == most {
                return Ok(truncation);
            }
            let item = item?;
            truncation.from = item.key.offset;
            truncation.extents += 1;
            if let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, num_bytes, .. } =
                FileExtent::parse(&item)?.kind
                && disk_bytenr.0 != 0
            {
                truncation.bytes += num_bytes;
                truncation.places.push((disk_bytenr.0, disk_num_bytes));
            }
        }
        Ok(Truncation { is_rest: true, ..truncation })
    }
}

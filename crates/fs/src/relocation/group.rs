//! Empties one block group.

use std::cell::Cell;
use std::sync::Arc;

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{ItemType, Key, Logical, TreeId};

use super::Relocator;
use super::batch::MAX_EXTENTS;
use super::pace::Pace;
use crate::commit::RelocationStep;
use crate::committed::Committed;
use crate::error::{Errno, Error, Result};
use ubtrfs_space::SpaceState;

/// How often a step is repeated because trees have grown too much in the meantime.
const TRIES: u32 = 10;

/// The result of emptying a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// The group is empty. Its chunk is removed, unless a reader still has an earlier commit.
    All,
    /// The caller stopped it after some steps.
    Stopped,
}

/// A group in which no space is allocated until this is dropped.
struct Closed<'a> {
    relocator: &'a Relocator,
    start: Logical,
    is_empty: bool,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let space = &self.relocator.info.space;
        if self.is_empty {
            space.emptying_ends(self.start);
        } else {
            space.leave(self.start);
        }
    }
}

impl Relocator {
    /// Moves everything in the block group at `start` elsewhere, in steps, each of which is
    /// durable; calls `go_on` before each. Then the block group is removed. Returns whether it was
    /// emptied completely.
    pub fn empty_block_group(&self, start: Logical, go_on: &dyn Fn() -> bool) -> Result<bool> {
        Ok(self.empty_one(start, go_on)? == Emptied::All)
    }

    /// Moves everything in the block group at `start` elsewhere, at this pace. Calls `goes_on`
    /// before each step. `ENOENT` if there is no such group. `ENOSPC` if there is no space
    /// elsewhere, if it is the only group of its type and no other can be made, or if an operation
    /// needs the free space that this keeps from allocation.
    pub(crate) fn empty_group(&self, start: Logical, pace: &Pace<'_>, goes_on: &dyn Fn() -> bool) -> Result<Emptied> {
        ubtrfs_tree::ensure_may_block()?;
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let chunk = self.info.volume.chunk_map().get(start).ok_or(Errno::NOENT)?;
        let mut closed = self.close(start, chunk.flags)?;
        // After this commit, no write to the group is in flight.
        self.committer.commit()?;
        let end = start.plus(chunk.length);
        let (mut last, mut tries, mut most_extents) = (None, 0, MAX_EXTENTS);
        loop {
            let is_asked_back = || self.info.space.lock().is_asked_back(start);
            if !pace.may_go_on(&|| !is_asked_back() && goes_on()) {
                return if is_asked_back() { Err(Errno::NOSPC.into()) } else { Ok(Emptied::Stopped) };
            }
            let committed = self.info.committed();
            let Some(first) = first_extent(&committed, start, end)? else { break };
            if tries == 0 && last.replace(first) == Some(first) {
                let what = "the extent can't be moved";
                return Err(Error::Inconsistent { tree: TreeId::EXTENT, key: first, what });
            }
            let batch = self.choose(&committed, (start, end), most_extents)?;
            drop(committed);
            let extents = batch.extents();
            let uncommitted = self.info.uncommitted_copies.read();
            let step = match self.prepare(batch) {
                // There may be space for fewer extents at a time: extents that many snapshots refer
                // to have many nodes.
                Err(error) if error.errno() == Errno::NOSPC && extents > 1 => {
                    (last, most_extents) = (None, extents / 2);
                    continue;
                }
                // Each attempt has fewer extents.
                Err(error) if error.errno() == Errno::AGAIN => {
                    last = None;
                    continue;
                }
                prepared => prepared?,
            };
            let reserved = step.reserved;
            let data: u64 = step.data.iter().map(|target| target.length).sum();
            let bytes = data + step.nodes.len() as u64 * self.info.space.node_size();
            let moved = self.committer.relocate(RelocationStep {
                data: step.data,
                nodes: step.nodes,
                written: step.written,
                most_nodes: step.most_nodes,
            });
            drop(uncommitted);
            self.info.space.lock().unreserve_relocation(reserved);
            tries = match moved? {
                Ok(()) => {
                    self.rate.count(bytes);
                    0
                }
                Err(error) if error.errno() == Errno::AGAIN && tries < TRIES => {
                    most_extents = (extents / 2).max(1);
                    tries + 1
                }
                Err(error) => return Err(error),
            };
        }
        closed.is_empty = true;
        self.give_back(start)?;
        Ok(Emptied::All)
    }

    /// Does the same at the mount's pace.
    pub(crate) fn empty_one(&self, start: Logical, goes_on: &dyn Fn() -> bool) -> Result<Emptied> {
        self.empty_group(start, &self.rate.begin(), goes_on)
    }

    /// Ends the allocation of space in the group.
    fn close(&self, start: Logical, flags: BlockGroupFlags) -> Result<Closed<'_>> {
        let kind = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA, BlockGroupFlags::SYSTEM];
        let kind = kind.into_iter().find(|kind| flags.contains(*kind)).ok_or(Errno::NOENT)?;
        // An empty group may be removed meanwhile. A new chunk does not help if operations wait for
        // groups.
        let is_off = |space: &SpaceState| space.in_use(start).is_none() || space.is_waited_for();
        let has_begun = Cell::new(false);
        self.take_room(kind, |space| {
            has_begun.set(!is_off(space) && space.begin_emptying(start));
            has_begun.get() || is_off(space)
        })?;
        if !has_begun.get() {
            let is_gone = self.info.space.lock().in_use(start).is_none();
            return Err(if is_gone { Errno::NOENT } else { Errno::NOSPC }.into());
        }
        Ok(Closed { relocator: self, start, is_empty: false })
    }

    /// Lets commits remove the group, which is empty.
    fn give_back(&self, start: Logical) -> Result<()> {
        const COMMITS: usize = 3;
        for _ in 0..COMMITS {
            self.info.space.unpin();
            self.committer.commit()?;
            if self.info.space.lock().in_use(start).is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the key of the first extent in a range according to the trees.
fn first_extent(committed: &Arc<Committed>, start: Logical, end: Logical) -> Result<Option<Key>> {
    let extent_tree = committed.tree(TreeId::EXTENT)?;
    let range = Key::new(start.0, ItemType::EXTENT_ITEM, 0)..=Key::new(end.0 - 1, ItemType::METADATA_ITEM, u64::MAX);
    for item in extent_tree.range(range) {
        let key = item?.key;
        if [ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM].contains(&key.item_type) {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

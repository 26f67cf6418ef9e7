//! Subvolumes whose entries were removed.
//!
//! ```text
//! alive ── add ──▶ deleted ── release ──▶ released ── commits drop its tree ──▶ gone
//! ```
//!
//! A deleted subvolume has no name. On disk it has an orphan item, by which the next mount drops it
//! after a crash. Programs that have files of it open go on using them: its inodes are read,
//! changed, and committed into its tree. When the last reference to one of its inodes is dropped,
//! it is *released*. From then on nothing of it is accessible, and nothing is merged into its tree
//! after the transaction that was open then: a commit either merges into a tree or drops it
//! (invariant 50).
//!
//! The ids of subvolumes that are gone are kept as runs. Between two runs there is a subvolume that
//! is not gone, so a mount in which many are created and deleted has no more runs than subvolumes.

use std::collections::{BTreeMap, HashSet};

use ubtrfs_format::{Generation, TreeId};
use ubtrfs_threads::atomic::{AtomicBool, Ordering};
use ubtrfs_threads::{Rank, RwLock};

use crate::committed::Committed;

/// The state of a deleted subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// A program may have a file of it open.
    #[default]
    Deleted,
    /// No program has a file of it open any more. This transaction was open when it was released.
    Released(Generation),
}

impl State {
    fn released(self) -> Option<Generation> {
        match self {
            Self::Deleted => None,
            Self::Released(open) => Some(open),
        }
    }
}

/// Deleted subvolumes by id.
#[derive(Debug, Default)]
struct States {
    /// Those that still have a tree.
    left: BTreeMap<TreeId, State>,
    /// Those without a tree: the first and the last id of each run.
    gone: BTreeMap<u64, u64>,
}

impl States {
    fn is_gone(&self, id: TreeId) -> bool {
        self.gone.range(..=id.0).next_back().is_some_and(|(_, last)| id.0 <= *last)
    }

    fn get(&self, id: TreeId) -> Option<State> {
        let gone = || self.is_gone(id).then_some(State::Released(Generation(0)));
        self.left.get(&id).copied().or_else(gone)
    }

    fn set_gone(&mut self, id: TreeId) {
        if self.left.remove(&id).is_none() {
            return;
        }
        let last = self.gone.remove(&(id.0 + 1)).unwrap_or(id.0);
        match self.gone.range_mut(..id.0).next_back() {
            Some((_, before)) if *before + 1 == id.0 => *before = last,
            _ => drop(self.gone.insert(id.0, last)),
        }
    }
}

/// Deleted subvolumes of a mount.
#[derive(Debug)]
pub(crate) struct DeletedSubvolumes {
    states: RwLock<States>,
    /// Whether there are deleted subvolumes.
    any: AtomicBool,
    /// Those whose trees can't be read completely. The next mount tries again.
    undropped: RwLock<HashSet<TreeId>>,
}

impl DeletedSubvolumes {
    /// Starts with the subvolumes that earlier mounts have deleted, of which no file is open.
    pub(crate) fn found(committed: &Committed) -> Self {
        let released = State::Released(Generation(0));
        let left: BTreeMap<_, _> = committed.trees.deleted_subvolumes().map(|id| (id, released)).collect();
        Self::new(States { left, ..States::default() })
    }

    fn new(states: States) -> Self {
        let any = AtomicBool::new(!states.left.is_empty());
        let states = RwLock::new(Rank::DeletedSubvolumes, states);
        Self { states, any, undropped: RwLock::with_default(Rank::UndroppedSubvolumes) }
    }

    /// Records that the entry of a subvolume is removed.
    pub(crate) fn add(&self, id: TreeId) {
        self.states.write().left.entry(id).or_default();
        self.any.store(true, Ordering::Release);
    }

    fn state(&self, id: TreeId) -> Option<State> {
        // Each access to an inode asks this. Most mounts delete no subvolume, and take no lock
        // here.
        if self.any.load(Ordering::Acquire) { self.states.read().get(id) } else { None }
    }

    /// Whether a subvolume has no name any more.
    pub(crate) fn is_deleted(&self, id: TreeId) -> bool {
        self.state(id).is_some()
    }

    /// Whether it is released, so that nothing of it is accessible or changed any more.
    pub(crate) fn is_released(&self, id: TreeId) -> bool {
        self.state(id).and_then(State::released).is_some()
    }

    /// Records that nothing refers to inodes of a deleted subvolume any more. `open` is the
    /// transaction that is open, and stays open during the call. Returns whether the subvolume was
    /// not released before.
    pub(crate) fn release(&self, id: TreeId, open: Generation) -> bool {
        match self.states.write().left.get_mut(&id) {
            Some(state @ State::Deleted) => {
                *state = State::Released(open);
                true
            }
            _ => false,
        }
    }

    /// Whether the commit of a transaction drops the subvolume and merges nothing into its tree.
    /// `committed` is the commit before it.
    pub(crate) fn is_dropped_by(&self, id: TreeId, transaction: Generation, committed: &Committed) -> bool {
        let is_released = self.state(id).and_then(State::released).is_some_and(|open| open < transaction);
        is_released && !committed.has_subvolume(id)
    }

    /// Returns the subvolumes that the commit of a transaction may drop.
    pub(crate) fn to_drop(&self, committed: &Committed, transaction: Generation) -> Vec<TreeId> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let undropped = self.undropped.read();
        let may_drop = |(id, state): (&TreeId, &State)| {
            let is_released = state.released().is_some_and(|open| open < transaction);
            let may_drop = is_released && committed.has_tree(*id) && !committed.has_subvolume(*id);
            (may_drop && !undropped.contains(id)).then_some(*id)
        };
        self.states.read().left.iter().filter_map(may_drop).collect()
    }

    /// Whether there are subvolumes that the commit of a transaction may not drop, but later
    /// commits may.
    pub(crate) fn has_later_ones(&self, committed: &Committed, transaction: Generation) -> bool {
        let is_later = |(id, state): (&TreeId, &State)| {
            let may_not = |open| open >= transaction || committed.has_subvolume(*id);
            state.released().is_some_and(may_not) && committed.has_tree(*id)
        };
        self.any.load(Ordering::Acquire) && self.states.read().left.iter().any(is_later)
    }

    /// Records that released subvolumes are gone if `committed`, which has been published, contains
    /// no tree of them.
    pub(crate) fn dropped(&self, committed: &Committed) {
        let mut states = self.states.write();
        let is_gone =
            |(id, state): (&TreeId, &State)| (state.released().is_some() && !committed.has_tree(*id)).then_some(*id);
        let gone: Vec<_> = states.left.iter().filter_map(is_gone).collect();
        for id in gone {
            states.set_gone(id);
        }
    }

    /// Stops dropping the tree of a released subvolume in this mount.
    pub(crate) fn leave(&self, id: TreeId) {
        self.undropped.write().insert(id);
    }

    /// Returns the number of released subvolumes that this mount does not drop further.
    pub(crate) fn undropped(&self) -> usize {
        self.undropped.read().len()
    }

    /// Returns the highest id.
    pub(crate) fn last(&self) -> Option<TreeId> {
        let states = self.states.read();
        let gone = states.gone.last_key_value().map(|(_, last)| TreeId(*last));
        states.left.last_key_value().map(|(id, _)| *id).max(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TreeId = TreeId(256);

    #[test]
    fn a_subvolume_is_released_once_and_after_its_deletion() {
        let deleted = DeletedSubvolumes::new(States::default());
        assert!(!deleted.release(ID, Generation(7)) && !deleted.is_deleted(ID));
        deleted.add(ID);
        assert!(deleted.is_deleted(ID) && !deleted.is_released(ID));
        assert!(deleted.release(ID, Generation(8)) && deleted.is_released(ID));
        deleted.add(ID);
        assert!(!deleted.release(ID, Generation(9)) && deleted.is_released(ID));
        assert_eq!(deleted.last(), Some(ID));
    }

    #[test]
    fn what_is_gone_takes_no_more_memory_than_what_is_left() {
        let mut states = States::default();
        let kept = [300, 301, 555];
        for id in (256..1000).rev().step_by(2).chain((256..1000).step_by(2)) {
            states.left.insert(TreeId(id), State::Released(Generation(7)));
            if !kept.contains(&id) {
                states.set_gone(TreeId(id));
            }
            assert_eq!(states.is_gone(TreeId(id)), !kept.contains(&id));
        }
        assert_eq!(states.gone, BTreeMap::from([(256, 299), (302, 554), (556, 999)]));
        assert_eq!(states.left.keys().map(|id| id.0).collect::<Vec<_>>(), kept);
        for id in 0..2000 {
            assert_eq!(states.get(TreeId(id)).is_some(), (256..1000).contains(&id));
        }
    }
}

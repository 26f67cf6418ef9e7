//! Decides when a commit is cheaper than going on with the log.
//!
//! In a log that has grown, an fsync writes a leaf for nearly each of its items, since they are far
//! from each other. After a commit the log is empty, and the items of the next fsyncs share a leaf.
//! So the log sums up by how much each of its writes exceeds what its items would take in an empty
//! log, and asks for a commit once the sum would have paid for the last commit. In the worst case
//! this writes twice as much as an algorithm that knows the future.

use std::collections::BTreeMap;

use ubtrfs_format::TreeId;
use ubtrfs_tree::EditBatch;

/// What the first commit of a mount is assumed to write, in bytes.
const FIRST_COMMIT: u64 = 4 << 20;
/// The fewest bytes that a commit is counted with, since its barriers cost something, too.
const MIN_COMMIT: u64 = 1 << 20;

/// By how much the writes of one log exceeded what their items would take in an empty log.
#[derive(Debug, Default)]
pub(super) struct Excess {
    bytes: u64,
    has_asked: bool,
}

impl Excess {
    /// Counts a write of the log of `written` bytes, for items that would take `least` bytes in an
    /// empty log. Returns whether a commit becomes worth it now, for the first time. The commit
    /// would also write `dirty` bytes of data, some of which might be overwritten or freed before
    /// they have to be written.
    pub(super) fn add(&mut self, written: u64, least: u64, last_commit: u64, dirty: u64) -> bool {
        self.bytes += written.saturating_sub(least);
        let commit = if last_commit == 0 { FIRST_COMMIT } else { last_commit.max(MIN_COMMIT) };
        let is_worth = self.bytes > commit + dirty && !self.has_asked;
        self.has_asked |= is_worth;
        is_worth
    }
}

/// Returns the bytes of nodes that these items of log trees would take in an empty log.
pub(super) fn least_bytes(edits: &BTreeMap<TreeId, EditBatch>, node_size: u64) -> u64 {
    // The tree of log trees has a leaf, and a tree of several leaves has a node above them.
    let of_tree = |edits: &EditBatch| match (edits.bytes() as u64).div_ceil(node_size) {
        0 | 1 => 1,
        leaves => leaves + 1,
    };
    (1 + edits.values().map(of_tree).sum::<u64>()) * node_size
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_commit_is_asked_for_once_and_when_the_last_one_is_paid_for() {
        let mut excess = Excess::default();
        assert!(!excess.add(3 * MIB, MIB, 2 * MIB, 0));
        assert!(excess.add(2 * MIB, MIB, 2 * MIB, 0));
        assert!(!excess.add(100 * MIB, MIB, 2 * MIB, 0));
    }

    #[test]
    fn writes_that_an_empty_log_would_take_ask_for_nothing() {
        let mut excess = Excess::default();
        assert!((0..1000).all(|_| !excess.add(MIB, MIB, 2 * MIB, 0)));
    }

    #[test]
    fn data_that_a_commit_would_write_counts_as_its_price() {
        let mut excess = Excess::default();
        assert!(!excess.add(8 * MIB, MIB, 2 * MIB, 5 * MIB));
        assert!(excess.add(2 * MIB, MIB, 2 * MIB, 5 * MIB));
    }

    #[test]
    fn the_first_commit_and_small_ones_are_assumed_to_cost_something() {
        assert!(!Excess::default().add(FIRST_COMMIT, 0, 0, 0));
        assert!(Excess::default().add(FIRST_COMMIT + 1, 0, 0, 0));
        assert!(!Excess::default().add(MIN_COMMIT, 0, 16384, 0));
    }
}

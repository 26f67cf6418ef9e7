//! Questions before a write for capabilities that are to be removed, which were answered such that
//! the write fails. When the kernel removes them it may be that the file can be changed by now.

use std::collections::VecDeque;

use ubtrfs_threads::{Mutex, Rank};

/// Questions that are remembered: more writes than that do not begin at the same time.
const MAX_REFUSALS: usize = 1024;

/// Nodes that were shown to have capabilities, so that the kernel fails to remove them.
#[derive(Debug)]
pub(crate) struct Refusals(Mutex<VecDeque<u64>>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::Refusals))
    }
}

impl Refusals {
    /// The kernel was shown them.
    pub(crate) fn note(&self, node: u64) {
        let mut nodes = self.0.lock();
        if nodes.len() == MAX_REFUSALS {
            nodes.pop_front();
        }
        nodes.push_back(node);
    }

    /// The kernel removes what it was shown. Returns whether that is so.
    pub(crate) fn take(&self, node: u64) -> bool {
        let mut nodes = self.0.lock();
        let place = nodes.iter().position(|noted| *noted == node);
        place.is_some_and(|place| nodes.remove(place).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_is_remembered_once_and_only_the_last_ones() {
        let refusals = Refusals::default();
        refusals.note(7);
        refusals.note(7);
        assert!(refusals.take(7) && refusals.take(7) && !refusals.take(7));
        (0..=MAX_REFUSALS as u64).for_each(|node| refusals.note(node));
        assert!(!refusals.take(0) && refusals.take(1));
    }
}

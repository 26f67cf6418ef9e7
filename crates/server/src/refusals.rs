//! Remembers files of which the server reported to the kernel, before a write, that they have
//! capabilities, so that their removal and thus the write fails. When the kernel removes them, the
//! file may have become writable.

use std::collections::VecDeque;

use ubtrfs_threads::{Mutex, Rank};

/// How many such answers are remembered: more writes than that do not begin at the same time.
const MAX_REFUSALS: usize = 1024;

/// The nodes of which the server reported that they have capabilities.
#[derive(Debug)]
pub(crate) struct Refusals(Mutex<VecDeque<u64>>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::Refusals))
    }
}

impl Refusals {
    /// Notes that the server reported that a node has capabilities.
    pub(crate) fn note(&self, node: u64) {
        let mut nodes = self.0.lock();
        if nodes.len() == MAX_REFUSALS {
            nodes.pop_front();
        }
        nodes.push_back(node);
    }

    /// Returns whether the server reported that a node has capabilities, and forgets one such
    /// answer.
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

//! The part of a batch that concerns one node.

use ubtrfs_format::Key;

use crate::block::NodeRef;
use crate::edit::Edit;

/// Edits and deleted ranges, both in order and consumed from the left.
#[derive(Clone, Copy)]
pub(super) struct Changes<'a> {
    pub(super) edits: &'a [(Key, &'a Edit)],
    /// First and last keys. They may reach beyond the node.
    pub(super) ranges: &'a [(Key, Key)],
}

impl Changes<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.ranges.is_empty()
    }

    /// Takes the changes for `child`, the next node in order. Edits below its first key belong to
    /// it as well, since those for earlier nodes have been taken.
    pub(super) fn take_for(&mut self, child: &NodeRef) -> Self {
        let below = |key: &Key| child.upper.is_none_or(|upper| *key < upper);
        let first = child.first_key.unwrap_or(Key::MIN);
        let count = match self.edits.first() {
            Some((key, _)) if below(key) => self.edits.partition_point(|(key, _)| below(key)),
            _ => 0,
        };
        let edits;
        (edits, self.edits) = self.edits.split_at(count);
        let passed = self.ranges.iter().take_while(|(_, last)| *last < first).count();
        self.ranges = &self.ranges[passed..];
        let reaching = match self.ranges.first() {
            Some((start, _)) if below(start) => self.ranges.partition_point(|(start, _)| below(start)),
            _ => 0,
        };
        Self { edits, ranges: &self.ranges[..reaching] }
    }

    /// Returns the first key that an edit or range is about.
    pub(super) fn first_key(&self) -> Option<Key> {
        let (edit, range) = (self.edits.first().map(|(key, _)| *key), self.ranges.first().map(|(first, _)| *first));
        edit.into_iter().chain(range).min()
    }

    /// Returns whether a range deletes `key`. Keys must come in ascending order.
    pub(super) fn deletes(&mut self, key: &Key) -> bool {
        while let Some(((_, last), rest)) = self.ranges.split_first()
            && last < key
        {
            self.ranges = rest;
        }
        self.ranges.first().is_some_and(|(first, _)| first <= key)
    }
}

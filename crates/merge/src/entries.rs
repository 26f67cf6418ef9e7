//! Entries of directories that a side has changed.

use std::collections::BTreeMap;

use ubtrfs_format::{Ino, TreeId};

/// An inode, identified across the three subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Node {
    /// An inode of the base.
    Base(Ino),
    /// An inode that the changed subvolume has made.
    Changed(Ino),
    /// An inode that the target has made.
    Target(Ino),
    /// A subvolume that has an entry.
    Subvolume(TreeId),
}

/// An entry: its directory and its name there.
pub(crate) type Entry = (Node, Vec<u8>);

/// Entries with the nodes that they refer to, and their paths.
#[derive(Clone, Default)]
pub(crate) struct Entries(BTreeMap<Entry, (Option<Node>, Vec<u8>)>);

impl Entries {
    /// Notes an entry, or that it was removed. An entry that was removed and made again exists.
    pub(crate) fn note(&mut self, entry: Entry, node: Option<Node>, path: &[u8]) {
        let noted = self.0.entry(entry).or_insert_with(|| (None, path.to_vec()));
        if node.is_some() {
            *noted = (node, path.to_vec());
        }
    }

    /// The node that an entry refers to: `before`, unless it was changed.
    pub(crate) fn after(&self, entry: &Entry, before: Option<Node>) -> Option<Node> {
        self.0.get(entry).map_or(before, |(node, _)| *node)
    }

    /// Returns whether an entry was changed.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.0.contains_key(entry)
    }

    /// The path of an entry that was changed.
    pub(crate) fn path(&self, entry: &Entry) -> Option<&[u8]> {
        self.0.get(entry).map(|(_, path)| &**path)
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Entry, Option<Node>)> {
        self.0.iter().map(|(entry, (node, _))| (entry, *node))
    }

    /// The entries in a directory.
    pub(crate) fn within(&self, dir: Node) -> impl Iterator<Item = (&Entry, Option<Node>)> {
        let from = self.0.range((dir, Vec::new())..);
        from.take_while(move |(entry, _)| entry.0 == dir).map(|(entry, (node, _))| (entry, *node))
    }

    /// Removes the entries for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Entry, Option<Node>) -> bool) {
        self.0.retain(|entry, (node, _)| keep(entry, *node));
    }

    /// Returns the entries with other nodes.
    pub(crate) fn renamed(&self, to: impl Fn(Node) -> Node) -> Self {
        let entries =
            self.0.iter().map(|((dir, name), (node, path))| ((to(*dir), name.clone()), (node.map(&to), path.clone())));
        Self(entries.collect())
    }
}

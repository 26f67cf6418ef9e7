//! Entries of directories that a side has changed.

use std::collections::BTreeMap;

use ubtrfs_format::{Ino, TreeId};

/// An inode, whichever side has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Node {
    /// One of the base.
    Base(Ino),
    /// One that the changed subvolume has made.
    Changed(Ino),
    /// One that the target has made.
    Target(Ino),
    /// A subvolume that has an entry.
    Subvolume(TreeId),
}

/// An entry: its directory and its name there.
pub(crate) type Entry = (Node, Vec<u8>);

/// What entries refer to, each with a path.
#[derive(Clone, Default)]
pub(crate) struct Entries(BTreeMap<Entry, (Option<Node>, Vec<u8>)>);

impl Entries {
    /// Notes an entry, or that it is no more. One that was removed and made again is there.
    pub(crate) fn note(&mut self, entry: Entry, node: Option<Node>, path: &[u8]) {
        let noted = self.0.entry(entry).or_insert_with(|| (None, path.to_vec()));
        if node.is_some() {
            *noted = (node, path.to_vec());
        }
    }

    /// What an entry refers to, which was `before` unless it was changed.
    pub(crate) fn after(&self, entry: &Entry, before: Option<Node>) -> Option<Node> {
        self.0.get(entry).map_or(before, |(node, _)| *node)
    }

    /// Whether an entry was changed.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.0.contains_key(entry)
    }

    /// The path of an entry that was changed.
    pub(crate) fn path(&self, entry: &Entry) -> Option<&[u8]> {
        self.0.get(entry).map(|(_, path)| &**path)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Entry, Option<Node>)> {
        self.0.iter().map(|(entry, (node, _))| (entry, *node))
    }

    /// The entries in a directory.
    pub(crate) fn within(&self, dir: Node) -> impl Iterator<Item = (&Entry, Option<Node>)> {
        let from = self.0.range((dir, Vec::new())..);
        from.take_while(move |(entry, _)| entry.0 == dir).map(|(entry, (node, _))| (entry, *node))
    }

    /// Leaves out those for which this is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Entry, Option<Node>) -> bool) {
        self.0.retain(|entry, (node, _)| keep(entry, *node));
    }

    /// The same with other nodes.
    pub(crate) fn renamed(&self, to: impl Fn(Node) -> Node) -> Self {
        let entries =
            self.0.iter().map(|((dir, name), (node, path))| ((to(*dir), name.clone()), (node.map(&to), path.clone())));
        Self(entries.collect())
    }
}

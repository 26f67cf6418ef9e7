//! The changes of one thing from version to version of the volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs::InodeId;

use crate::model::Dentry;
use crate::version::Version;
use crate::{Body, Node};

/// A value's changes, each with the first version that has it; the oldest first, never empty.
#[derive(Clone, Debug)]
pub(crate) struct Timeline<T>(Vec<(usize, T)>);

impl<T> Timeline<T> {
    fn new(version: usize, value: T) -> Self {
        Self(vec![(version, value)])
    }

    fn change(&mut self, version: usize, value: T) {
        self.0.push((version, value));
    }

    /// Returns the value in a version.
    pub fn at(&self, version: usize) -> &T {
        let after = self.0.partition_point(|(first, _)| *first <= version);
        &self.0[after.saturating_sub(1)].1
    }

    /// Returns the value in a version, and all its later values.
    pub fn since(&self, version: usize) -> impl Iterator<Item = &T> {
        self.spans_since(version).map(|(_, value)| value)
    }

    /// Returns the value in a version and all its later values, each with the first version that
    /// has it.
    pub fn spans_since(&self, version: usize) -> impl Iterator<Item = (usize, &T)> {
        let after = self.0.partition_point(|(first, _)| *first <= version);
        self.0[after.saturating_sub(1)..].iter().map(|(first, value)| (*first, value))
    }

    /// Returns each change: the version that made it, the value before, and the value after.
    pub fn changes(&self) -> impl Iterator<Item = (usize, &T, &T)> {
        self.0.windows(2).map(|pair| (pair[1].0, &pair[0].1, &pair[1].1))
    }
}

/// Everything that changed in some versions.
#[derive(Debug)]
pub(crate) struct Timelines<'a> {
    /// The nodes that existed in any of them.
    pub nodes: BTreeMap<InodeId, Timeline<Option<&'a Arc<Node>>>>,
    /// The names that existed in any of them.
    pub names: BTreeMap<Dentry, Timeline<Option<InodeId>>>,
}

impl<'a> Timelines<'a> {
    /// Returns the changes from version `base` to version `last`.
    pub fn new(versions: &'a [Version], base: usize, last: usize) -> Self {
        let mut lines = Self { nodes: BTreeMap::new(), names: BTreeMap::new() };
        for (id, node) in &versions[base].model.nodes {
            lines.nodes.insert(*id, Timeline::new(base, Some(node)));
            for (name, target) in entries(Some(node)) {
                lines.names.insert(Dentry { dir: *id, name: name.clone() }, Timeline::new(base, Some(*target)));
            }
        }
        for version in base + 1..=last {
            let (before, now) = (&versions[version - 1].model.nodes, &versions[version].model.nodes);
            for (id, node) in now {
                let old = before.get(id);
                if old.is_none_or(|old| !Arc::ptr_eq(old, node)) {
                    lines.step(base, version, *id, old, Some(node));
                }
            }
            for (id, node) in before {
                if !now.contains_key(id) {
                    lines.step(base, version, *id, Some(node), None);
                }
            }
        }
        lines
    }

    fn step(
        &mut self,
        base: usize,
        version: usize,
        id: InodeId,
        old: Option<&'a Arc<Node>>,
        new: Option<&'a Arc<Node>>,
    ) {
        self.nodes.entry(id).or_insert_with(|| Timeline::new(base, None)).change(version, new);
        let (before, now) = (entries(old), entries(new));
        for name in before.keys().chain(now.keys().filter(|name| !before.contains_key(*name))) {
            let target = now.get(name).copied();
            if before.get(name).copied() != target {
                let place = Dentry { dir: id, name: name.clone() };
                self.names.entry(place).or_insert_with(|| Timeline::new(base, None)).change(version, target);
            }
        }
    }
}

static NOTHING: BTreeMap<Vec<u8>, InodeId> = BTreeMap::new();

fn entries(node: Option<&Arc<Node>>) -> &BTreeMap<Vec<u8>, InodeId> {
    match node.map(|node| &node.body) {
        Some(Body::Directory { entries, .. }) => entries,
        _ => &NOTHING,
    }
}

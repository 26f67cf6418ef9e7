//! What changed of one inode's xattrs in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::Name;
use crate::transaction::XATTR;

/// A value; `None` of an xattr that was removed.
type Value = Option<Arc<[u8]>>;

/// The changes, by name.
#[derive(Default)]
pub(crate) struct XattrChanges {
    changes: BTreeMap<Name, Value>,
    /// Memory that they take, in bytes.
    bytes: usize,
}

fn bytes_of(name: &Name, value: &Value) -> usize {
    XATTR + name.len() + value.as_ref().map_or(0, |value| value.len())
}

impl XattrChanges {
    /// An xattr gets a value or, with none, goes.
    pub(crate) fn insert(&mut self, name: Name, value: Option<Arc<[u8]>>) {
        self.bytes += bytes_of(&name, &value);
        if let Some(old) = self.changes.get(&name) {
            self.bytes -= bytes_of(&name, old);
        }
        self.changes.insert(name, value);
    }

    /// What happened to an xattr, if anything.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Option<Arc<[u8]>>> {
        self.changes.get(name)
    }

    /// All of them, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Option<Arc<[u8]>>)> {
        self.changes.iter()
    }

    /// Whether no xattr changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Memory that they take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_the_place_of_another_counts_alone() {
        let mut changes = XattrChanges::default();
        changes.insert(b"user.a".as_slice().into(), Some(vec![1; 4000].into()));
        changes.insert(b"user.b".as_slice().into(), Some(vec![1; 10].into()));
        changes.insert(b"user.a".as_slice().into(), Some(vec![1; 100].into()));
        assert_eq!(changes.bytes(), 2 * (XATTR + 6) + 110);
        changes.insert(b"user.a".as_slice().into(), None);
        assert_eq!(changes.bytes(), 2 * (XATTR + 6) + 10);
        let summed: usize = changes.iter().map(|(name, value)| bytes_of(name, value)).sum();
        assert_eq!(changes.bytes(), summed);
    }
}

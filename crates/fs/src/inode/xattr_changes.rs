//! Changes of one inode's xattrs in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_file::change_memory::XATTR;
use ubtrfs_format::name_hash;

use super::changes::Name;

/// The new value of an xattr, or `None` if it was removed.
pub(crate) type Value = Option<Arc<[u8]>>;

/// The changes by the hash of the name, since xattrs of the same hash share an item.
#[derive(Default)]
pub(crate) struct XattrChanges {
    changes: BTreeMap<u64, Vec<(Name, Value)>>,
    /// Memory that they take, in bytes.
    bytes: usize,
}

fn bytes_of(name: &Name, value: &Value) -> usize {
    XATTR + name.len() + value.as_ref().map_or(0, |value| value.len())
}

impl XattrChanges {
    /// Records that an xattr gets a value or, with `None`, is removed.
    pub(crate) fn insert(&mut self, name: Name, value: Value) {
        self.bytes += bytes_of(&name, &value);
        let with_hash = self.changes.entry(name_hash(&name)).or_default();
        if let Some((_, old)) = with_hash.iter_mut().find(|(other, _)| *other == name) {
            self.bytes -= bytes_of(&name, old);
            *old = value;
        } else {
            with_hash.reserve_exact(1);
            with_hash.push((name, value));
        }
    }

    /// Returns the change of an xattr, if there is one.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Value> {
        self.with_hash(name_hash(name)).find(|(other, _)| &***other == name).map(|(_, value)| value)
    }

    /// The changes of the xattrs whose names have this hash.
    pub(crate) fn with_hash(&self, hash: u64) -> impl Iterator<Item = (&Name, &Value)> {
        self.changes.get(&hash).into_iter().flatten().map(|(name, value)| (name, value))
    }

    /// Returns all changes, in the order of the hashes of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Name, &Value)> {
        self.changes.values().flatten().map(|(name, value)| (name, value))
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
        assert_eq!(changes.get(b"user.a"), Some(&None));
        assert_eq!((changes.get(b"user.c"), changes.iter().count()), (None, 2));
        let summed: usize = changes.iter().map(|(name, value)| bytes_of(name, value)).sum();
        assert_eq!(changes.bytes(), summed);
    }
}

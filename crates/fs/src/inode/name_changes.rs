//! Changes of one inode's names in one transaction.

use std::collections::{BTreeMap, HashMap};

use ubtrfs_file::change_memory::REFERENCE;
use ubtrfs_format::items::EXTREF_HEADER;
use ubtrfs_format::{Ino, extref_hash};

use super::changes::{Name, RefChange};

/// Up to this many changes are kept in a vector of exact size: nearly all inodes have one name, or
/// lose one and get one, and the smallest node of a map would be ten times as large.
const FEW: usize = 4;

/// The changes, in the order of directory and name.
#[derive(Default)]
pub(crate) struct NameChanges {
    changes: Changes,
    /// Memory that they take, in bytes.
    bytes: usize,
}

/// Memory that the change of a name takes.
fn bytes_of((_, name): &(Ino, Name)) -> usize {
    REFERENCE + name.len()
}

enum Changes {
    /// Sorted by directory and name.
    Few(Vec<((Ino, Name), RefChange)>),
    Many(Box<Many>),
}

#[derive(Default)]
struct Many {
    changes: BTreeMap<(Ino, Name), RefChange>,
    /// Bytes that added names would take in the extended references of their hashes.
    hash_bytes: HashMap<u64, usize>,
}

impl Many {
    fn put(&mut self, (parent, name): (Ino, Name), change: RefChange) {
        let counted = counted_in(parent, &name);
        let before = self.changes.insert((parent, name), change).and_then(|before| before.now);
        match (before, change.now) {
            (None, Some(_)) => *self.hash_bytes.entry(counted.0).or_default() += counted.1,
            (Some(_), None) => self.uncount(counted),
            _ => {}
        }
    }

    fn remove(&mut self, name: &(Ino, Name)) {
        if self.changes.remove(name).is_some_and(|before| before.now.is_some()) {
            self.uncount(counted_in(name.0, &name.1));
        }
    }

    fn uncount(&mut self, (hash, bytes): (u64, usize)) {
        if let Some(sum) = self.hash_bytes.get_mut(&hash) {
            *sum = sum.saturating_sub(bytes);
            if *sum == 0 {
                self.hash_bytes.remove(&hash);
            }
        }
    }
}

/// Returns the hash of the extended reference item that may get a name, and the bytes that the name
/// takes there.
fn counted_in(parent: Ino, name: &[u8]) -> (u64, usize) {
    (extref_hash(parent, name), EXTREF_HEADER + name.len())
}

impl Default for Changes {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl NameChanges {
    /// Returns all changes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(Ino, Name), &RefChange)> {
        let (few, many) = match &self.changes {
            Changes::Few(few) => (few.as_slice(), None),
            Changes::Many(many) => (&[][..], Some(&many.changes)),
        };
        few.iter().map(|(name, change)| (name, change)).chain(many.into_iter().flatten())
    }

    /// Memory that they take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether no name changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns the change of a name.
    pub(super) fn get(&self, name: &(Ino, Name)) -> Option<&RefChange> {
        match &self.changes {
            Changes::Few(few) => few.iter().find(|(other, _)| other == name).map(|(_, change)| change),
            Changes::Many(many) => many.changes.get(name),
        }
    }

    /// Bytes that added names would take in the extended reference item of a hash.
    pub(crate) fn bytes_of_hash(&self, hash: u64) -> usize {
        match &self.changes {
            Changes::Few(few) => {
                let came = few.iter().filter(|(_, change)| change.now.is_some());
                let counted = came.map(|((parent, name), _)| counted_in(*parent, name));
                counted.filter(|(other, _)| *other == hash).map(|(_, bytes)| bytes).sum()
            }
            Changes::Many(many) => many.hash_bytes.get(&hash).copied().unwrap_or(0),
        }
    }

    /// Records the change of a name, and replaces an earlier record.
    pub(super) fn put(&mut self, name: (Ino, Name), change: RefChange) {
        if self.get(&name).is_none() {
            self.bytes += bytes_of(&name);
        }
        if let Changes::Few(few) = &mut self.changes
            && few.len() == FEW
            && few.iter().all(|(other, _)| *other != name)
        {
            let mut many = Box::<Many>::default();
            for (name, change) in std::mem::take(few) {
                many.put(name, change);
            }
            self.changes = Changes::Many(many);
        }
        match &mut self.changes {
            Changes::Few(few) => match few.binary_search_by(|(other, _)| other.cmp(&name)) {
                Ok(at) => few[at].1 = change,
                Err(at) => {
                    few.reserve_exact(1);
                    few.insert(at, (name, change));
                }
            },
            Changes::Many(many) => many.put(name, change),
        }
    }

    /// Deletes the record of a name that is unchanged after all.
    pub(super) fn remove(&mut self, name: &(Ino, Name)) {
        if self.get(name).is_some() {
            self.bytes -= bytes_of(name);
        }
        match &mut self.changes {
            Changes::Few(few) => few.retain(|(other, _)| other != name),
            Changes::Many(many) => many.remove(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ubtrfs_format::DirIndex;

    use super::*;

    proptest! {
        #[test]
        fn few_changes_and_many_are_those_of_a_map(steps in prop::collection::vec((0..3_u64, 0..4_u8, any::<bool>()), 0..60)) {
            let (mut changes, mut model) = (NameChanges::default(), BTreeMap::new());
            for (number, (dir, letter, comes)) in steps.into_iter().enumerate() {
                let name: (Ino, Name) = (Ino(256 + dir), [b'a' + letter].as_slice().into());
                let new = RefChange { base: None, now: Some(DirIndex(number as u64)) };
                if comes {
                    let new = if number % 3 == 0 { RefChange { base: new.now, now: None } } else { new };
                    changes.put(name.clone(), new);
                    model.insert(name.clone(), new);
                } else {
                    changes.remove(&name);
                    model.remove(&name);
                }
                prop_assert_eq!(changes.get(&name), model.get(&name));
                prop_assert_eq!(changes.is_empty(), model.is_empty());
                prop_assert!(changes.iter().eq(model.iter()));
                prop_assert_eq!(changes.bytes(), model.keys().map(bytes_of).sum::<usize>());
                let (hash, _) = counted_in(name.0, &name.1);
                let came = model.iter().filter(|(_, change)| change.now.is_some());
                let counted = came.map(|((parent, name), _)| counted_in(*parent, name)).filter(|(other, _)| *other == hash);
                prop_assert_eq!(changes.bytes_of_hash(hash), counted.map(|(_, bytes)| bytes).sum::<usize>());
            }
        }
    }
}

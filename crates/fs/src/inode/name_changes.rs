//! What changed of one inode's names in one transaction.

use std::collections::BTreeMap;

use ubtrfs_format::Ino;

use super::batch::{Name, RefChange};
use crate::transaction::REFERENCE;

/// As many changes lie in one piece of memory that is just large enough: nearly all inodes have one name, or lose one and get one, and
/// the smallest node of a map would be ten times as large.
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
    /// In order.
    Few(Vec<((Ino, Name), RefChange)>),
    Many(BTreeMap<(Ino, Name), RefChange>),
}

impl Default for Changes {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl NameChanges {
    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(Ino, Name), &RefChange)> {
        let (few, many) = match &self.changes {
            Changes::Few(few) => (few.as_slice(), None),
            Changes::Many(many) => (&[][..], Some(many)),
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

    /// What happened to a name.
    pub(super) fn get(&self, name: &(Ino, Name)) -> Option<&RefChange> {
        match &self.changes {
            Changes::Few(few) => few.iter().find(|(other, _)| other == name).map(|(_, change)| change),
            Changes::Many(many) => many.get(name),
        }
    }

    /// The change of a name: `new` if there was none.
    pub(super) fn get_or_insert(&mut self, name: (Ino, Name), new: RefChange) -> &mut RefChange {
        if self.get(&name).is_none() {
            self.bytes += bytes_of(&name);
        }
        if let Changes::Few(few) = &mut self.changes
            && few.len() == FEW
            && few.iter().all(|(other, _)| *other != name)
        {
            self.changes = Changes::Many(std::mem::take(few).into_iter().collect());
        }
        match &mut self.changes {
            Changes::Few(few) => {
                let at = match few.binary_search_by(|(other, _)| other.cmp(&name)) {
                    Ok(at) => at,
                    Err(at) => {
                        few.reserve_exact(1);
                        few.insert(at, (name, new));
                        at
                    }
                };
                &mut few[at].1
            }
            Changes::Many(many) => many.entry(name).or_insert(new),
        }
    }

    /// Nothing happened to a name after all.
    pub(super) fn remove(&mut self, name: &(Ino, Name)) {
        if self.get(name).is_some() {
            self.bytes -= bytes_of(name);
        }
        match &mut self.changes {
            Changes::Few(few) => few.retain(|(other, _)| other != name),
            Changes::Many(many) => drop(many.remove(name)),
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
                    prop_assert_eq!(*changes.get_or_insert(name.clone(), new), *model.entry(name.clone()).or_insert(new));
                } else {
                    changes.remove(&name);
                    model.remove(&name);
                }
                prop_assert_eq!(changes.get(&name), model.get(&name));
                prop_assert_eq!(changes.is_empty(), model.is_empty());
                prop_assert!(changes.iter().eq(model.iter()));
                prop_assert_eq!(changes.bytes(), model.keys().map(bytes_of).sum::<usize>());
            }
        }
    }
}

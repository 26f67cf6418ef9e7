//! Changes of one name inside an item that holds several names.

use ubtrfs_format::items::{
    DirEntry, ExtRef, FileType, InodeRef, MAX_NAME_LEN, dir_entries, encode_dir_entry, encode_extref, encode_inode_ref,
    extrefs, inode_refs,
};
use ubtrfs_format::{DirIndex, Error, Generation, Ino, ItemType, Key, Result};

/// A change of one name in a `DIR_ITEM`, `XATTR_ITEM`, `INODE_REF` or `INODE_EXTREF` item.
///
/// All patches are idempotent. Putting an existing name replaces it; removing a missing one does
/// nothing. An item without names left is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Inserts an entry into a `DIR_ITEM`, or an xattr into an `XATTR_ITEM`.
    PutEntry {
        /// The key that the name points to; zero for xattrs.
        location: Key,
        /// The transaction that makes the entry.
        transid: Generation,
        /// The type of the file that the name points to.
        file_type: FileType,
        /// The name.
        name: Vec<u8>,
        /// The value of an xattr; empty for entries.
        value: Vec<u8>,
    },
    /// Removes an entry or xattr.
    RemoveEntry {
        /// The name.
        name: Vec<u8>,
    },
    /// Inserts a name into an `INODE_REF`.
    PutRef {
        /// The entry's number in the directory of the item's key.
        index: DirIndex,
        /// The name.
        name: Vec<u8>,
    },
    /// Removes a name from an `INODE_REF`.
    RemoveRef {
        /// The name.
        name: Vec<u8>,
    },
    /// Inserts a name into an `INODE_EXTREF`.
    PutExtRef {
        /// The directory.
        parent: Ino,
        /// The entry's number in it.
        index: DirIndex,
        /// The name.
        name: Vec<u8>,
    },
    /// Removes a name from an `INODE_EXTREF`.
    RemoveExtRef {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
    },
}

impl Patch {
    fn name(&self) -> &[u8] {
        match self {
            Self::PutEntry { name, .. }
            | Self::RemoveEntry { name }
            | Self::PutRef { name, .. }
            | Self::RemoveRef { name }
            | Self::PutExtRef { name, .. }
            | Self::RemoveExtRef { name, .. } => name,
        }
    }

    /// Returns whether both are about the same name of their item, so that the later one replaces
    /// the earlier one.
    pub(crate) fn replaces(&self, earlier: &Self) -> bool {
        let parent = |patch: &Self| match patch {
            Self::PutExtRef { parent, .. } | Self::RemoveExtRef { parent, .. } => Some(*parent),
            _ => None,
        };
        self.name() == earlier.name() && parent(self) == parent(earlier)
    }

    /// Returns how many bytes the patch may add to an item.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::PutEntry { name, value, .. } => 30 + name.len() + value.len(),
            Self::PutRef { name, .. } => 10 + name.len(),
            Self::PutExtRef { name, .. } => 18 + name.len(),
            Self::RemoveEntry { .. } | Self::RemoveRef { .. } | Self::RemoveExtRef { .. } => 0,
        }
    }

    /// Fails if an item of this key can't take the patch.
    pub(crate) fn check(&self, key: &Key) -> Result<()> {
        let suits = match self {
            Self::PutEntry { .. } | Self::RemoveEntry { .. } => {
                matches!(key.item_type, ItemType::DIR_ITEM | ItemType::XATTR_ITEM)
            }
            Self::PutRef { .. } | Self::RemoveRef { .. } => key.item_type == ItemType::INODE_REF,
            Self::PutExtRef { .. } | Self::RemoveExtRef { .. } => key.item_type == ItemType::INODE_EXTREF,
        };
        if !suits {
            return Err(Error::UnexpectedItem(key.item_type));
        }
        let length = self.name().len();
        if length == 0 || length > MAX_NAME_LEN {
            return Err(Error::BadValue { what: "name length of a patch", value: length as u64 });
        }
        Ok(())
    }
}

/// Applies `patches`, in order, to the item `key`, whose bytes are `base`. Returns the new bytes,
/// which are empty if no name is left.
pub(crate) fn apply(patches: &[Patch], key: &Key, base: &[u8]) -> Result<Vec<u8>> {
    for patch in patches {
        patch.check(key)?;
    }
    let mut item = Vec::with_capacity(base.len() + patches.iter().map(Patch::bytes).sum::<usize>());
    match key.item_type {
        ItemType::INODE_REF => {
            let mut names = inode_refs(base).collect::<Result<Vec<_>>>()?;
            for patch in patches {
                match patch {
                    Patch::PutRef { index, name } => {
                        put(&mut names, InodeRef { index: *index, name }, |old| old.name == name);
                    }
                    _ => names.retain(|old| old.name != patch.name()),
                }
            }
            for name in names {
                encode_inode_ref(&mut item, name);
            }
        }
        ItemType::INODE_EXTREF => {
            let mut names = extrefs(base).collect::<Result<Vec<_>>>()?;
            for patch in patches {
                match patch {
                    Patch::PutExtRef { parent, index, name } => {
                        let new = ExtRef { parent: *parent, index: *index, name };
                        put(&mut names, new, |old| old.parent == *parent && old.name == name);
                    }
                    Patch::RemoveExtRef { parent, name } => {
                        names.retain(|old| old.parent != *parent || old.name != name);
                    }
                    _ => {}
                }
            }
            for name in names {
                encode_extref(&mut item, name);
            }
        }
        _ => {
            let mut entries = dir_entries(base).collect::<Result<Vec<_>>>()?;
            for patch in patches {
                match patch {
                    Patch::PutEntry { location, transid, file_type, name, value } => {
                        let (location, transid, file_type) = (*location, *transid, *file_type);
                        let new = DirEntry { location, transid, file_type, name, value };
                        put(&mut entries, new, |old| old.name == name);
                    }
                    _ => entries.retain(|old| old.name != patch.name()),
                }
            }
            for entry in &entries {
                encode_dir_entry(&mut item, entry);
            }
        }
    }
    Ok(item)
}

fn put<T>(all: &mut Vec<T>, new: T, same: impl Fn(&T) -> bool) {
    match all.iter_mut().find(|old| same(old)) {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], ino: u64) -> Patch {
        Patch::PutEntry {
            location: Key::new(ino, ItemType::INODE_ITEM, 0),
            transid: Generation(7),
            file_type: FileType::Regular,
            name: name.into(),
            value: Vec::new(),
        }
    }

    #[test]
    fn entries_are_replaced_appended_and_removed() {
        let key = Key::new(256, ItemType::DIR_ITEM, 1);
        let item = apply(&[entry(b"a", 1), entry(b"b", 2), entry(b"a", 3)], &key, &[]).unwrap();
        let names: Vec<_> = dir_entries(&item).map(|entry| entry.map(|e| (e.name, e.location.objectid))).collect();
        assert_eq!(names, [Ok((&b"a"[..], 3)), Ok((&b"b"[..], 2))]);
        assert_eq!(apply(&[entry(b"a", 3)], &key, &item).unwrap(), item, "putting what is there changes nothing");
        let remove = |name: &[u8]| Patch::RemoveEntry { name: name.into() };
        assert_eq!(apply(&[remove(b"c")], &key, &item).unwrap(), item);
        assert_eq!(apply(&[remove(b"a"), remove(b"b")], &key, &item).unwrap(), []);
    }

    #[test]
    fn extended_references_are_distinguished_by_parent_and_name() {
        let key = Key::new(257, ItemType::INODE_EXTREF, 1);
        let put = |parent, index| Patch::PutExtRef { parent: Ino(parent), index: DirIndex(index), name: b"n".into() };
        let item = apply(&[put(1, 2), put(3, 4), put(1, 5)], &key, &[]).unwrap();
        let item = apply(&[Patch::RemoveExtRef { parent: Ino(3), name: b"n".into() }], &key, &item).unwrap();
        let found: Vec<_> = extrefs(&item).collect::<Result<_>>().unwrap();
        assert_eq!(found, [ExtRef { parent: Ino(1), index: DirIndex(5), name: b"n" }]);
    }

    #[test]
    fn references_are_replaced_and_removed() {
        let key = Key::new(257, ItemType::INODE_REF, 256);
        let put = |name: &[u8], index| Patch::PutRef { index: DirIndex(index), name: name.into() };
        let item = apply(&[put(b"x", 2), put(b"y", 3), put(b"x", 4)], &key, &[]).unwrap();
        let item = apply(&[Patch::RemoveRef { name: b"y".into() }], &key, &item).unwrap();
        let found: Vec<_> = inode_refs(&item).collect::<Result<_>>().unwrap();
        assert_eq!(found, [InodeRef { index: DirIndex(4), name: b"x" }]);
    }

    #[test]
    fn malformed_items_and_unfit_patches_are_errors() {
        let key = Key::new(256, ItemType::DIR_ITEM, 1);
        assert!(apply(&[entry(b"a", 1)], &key, b"short").is_err());
        assert_eq!(
            apply(&[entry(b"a", 1)], &Key::new(256, ItemType::INODE_REF, 1), &[]),
            Err(Error::UnexpectedItem(ItemType::INODE_REF))
        );
        assert!(apply(&[entry(b"", 1)], &key, &[]).is_err());
        assert!(apply(&[entry(&[b'x'; 256], 1)], &key, &[]).is_err());
    }
}

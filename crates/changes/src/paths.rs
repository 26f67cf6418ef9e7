//! Finds names and paths of the inodes of a subvolume, by their references to directories.

use std::collections::{HashMap, HashSet};

use ubtrfs_format::items::inode_backrefs;
use ubtrfs_format::{DirIndex, Ino, ItemType, Key};
use ubtrfs_fs::{Errno, Error, Result};
use ubtrfs_tree::Snapshot;

use crate::file::FileName;
use crate::limits::{self, Budget};

/// The most bytes of directories' names that are remembered.
const MAX_CACHED_PATHS: usize = 8 << 20;
/// The most bytes that the directories of one path may take there. This limits memory: paths on a
/// volume may be longer than `PATH_MAX`, since a tree can be made step by step.
const MAX_PATH: usize = 4 << 20;
/// Roughly the bytes that a remembered directory takes besides its name.
const ENTRY: usize = 64;
/// The length in bytes up to which programs can use a path in one call.
const USUAL_PATH: usize = 4096;
/// The most bytes by which all paths together may exceed that length. Without a limit, showing each
/// inode below a few thousand nested directories with its path would never end.
const MAX_UNUSUAL: u64 = 4 << 30;

/// The names in a subvolume.
pub(crate) struct Names {
    tree: Snapshot,
    /// Directories, each with its parent and its name there.
    remembered: HashMap<Ino, (Ino, Box<[u8]>)>,
    /// The bytes that these take.
    bytes: usize,
    /// The directory of the last name, with its path: the next name is often in it, too.
    last: (Ino, Vec<u8>),
    unusual: Budget,
}

/// A reference of an inode to an entry of a directory.
pub(crate) struct Reference {
    pub(crate) parent: Ino,
    pub(crate) index: DirIndex,
    name: Vec<u8>,
}

impl Names {
    pub(crate) fn new(tree: Snapshot) -> Self {
        let last = (Ino::ROOT_DIR, Vec::new());
        Self { tree, remembered: HashMap::new(), bytes: 0, last, unusual: Budget::new(MAX_UNUSUAL) }
    }

    pub(crate) fn tree(&self) -> &Snapshot {
        &self.tree
    }

    /// All names of an inode. `E2BIG` if they take too much memory.
    pub(crate) fn of(&mut self, ino: Ino) -> Result<Vec<FileName>> {
        let mut budget = Budget::new(limits::MAX_NAMES);
        let mut names = Vec::new();
        for reference in self.references(ino)? {
            let name = self.name(reference)?;
            budget.take(limits::name(&name))?;
            names.push(name);
        }
        Ok(names)
    }

    /// A name with its path.
    pub(crate) fn name(&mut self, Reference { parent, name, .. }: Reference) -> Result<FileName> {
        if name.is_empty() {
            return Ok(FileName { parent, name, path: Vec::new() });
        }
        if self.last.0 != parent {
            self.last = (parent, self.directory(parent)?);
        }
        let above = &*self.last.1;
        let separator: &[u8] = if above.is_empty() { b"" } else { b"/" };
        let path = [above, separator, &name].concat();
        self.unusual.take(path.len().saturating_sub(USUAL_PATH))?;
        Ok(FileName { parent, name, path })
    }

    /// The references of an inode to its directories. The reference of the root directory has an
    /// empty name.
    pub(crate) fn references(&self, ino: Ino) -> Result<Vec<Reference>> {
        if ino == Ino::ROOT_DIR {
            return Ok(vec![Reference { parent: ino, index: DirIndex(0), name: Vec::new() }]);
        }
        let mut budget = Budget::new(limits::MAX_NAMES);
        let mut found = Vec::new();
        for item in self.tree.range(reference_keys(ino)) {
            let item = item?;
            for entry in inode_backrefs(&item.key, &item) {
                let entry = entry?;
                budget.take(entry.name.len() + ENTRY)?;
                found.push(Reference { parent: entry.parent, index: entry.index, name: entry.name.to_vec() });
            }
        }
        Ok(found)
    }

    /// The parent of a directory and its name there: its first reference, since a directory has
    /// only one.
    fn place(&mut self, ino: Ino) -> Result<(Ino, Box<[u8]>)> {
        if let Some(place) = self.remembered.get(&ino) {
            return Ok(place.clone());
        }
        let item = self.tree.range(reference_keys(ino)).next().transpose()?;
        let entry = item.as_ref().and_then(|item| inode_backrefs(&item.key, item).next()).transpose()?;
        let entry = entry.ok_or_else(|| self.inconsistent(ino, "the directory has no name"))?;
        let place = (entry.parent, Box::from(entry.name));
        self.bytes += entry.name.len() + ENTRY;
        if self.bytes > MAX_CACHED_PATHS {
            self.bytes = 0;
            self.remembered.clear();
        }
        self.remembered.insert(ino, place.clone());
        Ok(place)
    }

    /// The path of a directory.
    fn directory(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let mut above = Vec::new();
        let mut seen = HashSet::new();
        let (mut at, mut bytes) = (ino, 0);
        while at != Ino::ROOT_DIR {
            if !seen.insert(at) {
                return Err(self.inconsistent(at, "the directory is below itself"));
            }
            let (parent, name) = self.place(at)?;
            bytes += name.len() + ENTRY;
            if bytes > MAX_PATH {
                return Err(Errno::NAMETOOLONG.into());
            }
            above.push(name);
            at = parent;
        }
        let mut path = Vec::with_capacity(bytes - above.len() * (ENTRY - 1));
        for name in above.iter().rev() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    fn inconsistent(&self, ino: Ino, what: &'static str) -> Error {
        let key = Key::new(ino.0, ItemType::INODE_REF, 0);
        Error::Inconsistent { tree: self.tree.root().owner, key, what }
    }
}

/// The keys of an inode's references to its directories.
fn reference_keys(ino: Ino) -> std::ops::RangeInclusive<Key> {
    Key::new(ino.0, ItemType::INODE_REF, 0)..=Key::new(ino.0, ItemType::INODE_EXTREF, u64::MAX)
}

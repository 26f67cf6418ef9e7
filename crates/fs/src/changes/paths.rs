//! Names and paths of the inodes of a subvolume, by their references to directories.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ubtrfs_format::items::inode_backrefs;
use ubtrfs_format::{DirIndex, Ino, ItemType, Key};
use ubtrfs_tree::Snapshot;

use super::file::FileName;
use crate::error::{Errno, Error, Result};

/// Bytes of paths of directories that are remembered.
const MOST_REMEMBERED: usize = 8 << 20;
/// What remembering one takes besides the path, roughly.
const ENTRY: usize = 64;
/// The greatest number of directories that are remembered for one path.
const DEEPEST_REMEMBERED: usize = 64;
/// Bytes of a path: of longer ones only hostile images are full.
const LONGEST_PATH: usize = 1 << 20;

/// The names in a subvolume.
pub(super) struct Names {
    tree: Snapshot,
    /// Paths of directories.
    remembered: HashMap<Ino, Arc<[u8]>>,
    /// Bytes that these take.
    bytes: usize,
}

/// An entry of a directory, as the inode has it.
pub(super) struct Reference {
    pub(super) parent: Ino,
    pub(super) index: DirIndex,
    name: Vec<u8>,
}

impl Names {
    pub(super) fn new(tree: Snapshot) -> Self {
        let root = (Ino::ROOT_DIR, Arc::from(&b""[..]));
        Self { tree, remembered: HashMap::from([root]), bytes: 0 }
    }

    pub(super) fn tree(&self) -> &Snapshot {
        &self.tree
    }

    /// All names of an inode.
    pub(super) fn of(&mut self, ino: Ino) -> Result<Vec<FileName>> {
        self.references(ino)?.into_iter().map(|reference| self.name(reference)).collect()
    }

    /// A name with its path.
    pub(super) fn name(&mut self, Reference { parent, name, .. }: Reference) -> Result<FileName> {
        if name.is_empty() {
            return Ok(FileName { parent, name, path: Vec::new() });
        }
        let path = joined(&self.directory(parent)?, &name);
        Ok(FileName { parent, name, path })
    }

    /// The references of an inode to its directories. That of the root directory has an empty name.
    pub(super) fn references(&self, ino: Ino) -> Result<Vec<Reference>> {
        if ino == Ino::ROOT_DIR {
            return Ok(vec![Reference { parent: ino, index: DirIndex(0), name: Vec::new() }]);
        }
        let first = Key::new(ino.0, ItemType::INODE_REF, 0);
        let last = Key::new(ino.0, ItemType::INODE_EXTREF, u64::MAX);
        let mut found = Vec::new();
        for item in self.tree.range(first..=last) {
            let item = item?;
            for entry in inode_backrefs(&item.key, &item) {
                let entry = entry?;
                found.push(Reference { parent: entry.parent, index: entry.index, name: entry.name.to_vec() });
            }
        }
        Ok(found)
    }

    /// The path of a directory.
    fn directory(&mut self, ino: Ino) -> Result<Arc<[u8]>> {
        let mut below = Vec::new();
        let mut seen = HashSet::new();
        let (mut at, mut len) = (ino, 0);
        let path = loop {
            if let Some(path) = self.remembered.get(&at) {
                break path.clone();
            }
            let key = Key::new(at.0, ItemType::INODE_REF, 0);
            let inconsistent = |what| Error::Inconsistent { tree: self.tree.root().owner, key, what };
            if !seen.insert(at) {
                return Err(inconsistent("the directory is below itself"));
            }
            let reference = self.references(at)?.into_iter().next();
            let reference = reference.ok_or_else(|| inconsistent("the directory has no name"))?;
            len += reference.name.len() + 1;
            if len > LONGEST_PATH {
                return Err(Errno::NAMETOOLONG.into());
            }
            below.push((at, reference.name));
            at = reference.parent;
        };
        // Remembering each directory of a deep path would take the square of its length.
        let remembers_all = below.len() <= DEEPEST_REMEMBERED;
        let mut full = path.to_vec();
        full.reserve(len);
        for (ino, name) in below.into_iter().rev() {
            if !full.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(&name);
            if remembers_all {
                self.remember(ino, full.as_slice().into());
            }
        }
        let path: Arc<[u8]> = full.into();
        self.remember(ino, path.clone());
        Ok(path)
    }

    fn remember(&mut self, ino: Ino, path: Arc<[u8]>) {
        self.bytes += path.len() + ENTRY;
        if self.bytes > MOST_REMEMBERED {
            self.bytes = 0;
            self.remembered.retain(|ino, _| *ino == Ino::ROOT_DIR);
        }
        self.remembered.insert(ino, path);
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    [directory, separator, name].concat()
}

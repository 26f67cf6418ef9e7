//! The entries of a directory through the layers of changes.

use ubtrfs_format::items::{self, FileType};
use ubtrfs_format::{DirIndex, ItemType, Key};

use super::Names;
use crate::error::{Errno, Error, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId, InodeState, Target};

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The index of the entry: a listing continues after it.
    pub index: DirIndex,
    /// The name.
    pub name: Vec<u8>,
    /// The inode that it refers to.
    pub inode: InodeId,
    /// The type of that inode.
    pub file_type: FileType,
}

/// Merges two layers of changes to a directory in the order of their indices. For the same index
/// the newer change takes precedence. Nothing is copied: a listing reads a few entries at a time,
/// and the layers may contain many.
fn newest_of<'a, T>(
    older: impl Iterator<Item = (&'a DirIndex, T)>,
    newer: impl Iterator<Item = (&'a DirIndex, T)>,
) -> impl Iterator<Item = (&'a DirIndex, T)> {
    let (mut older, mut newer) = (older.peekable(), newer.peekable());
    std::iter::from_fn(move || {
        let next = newer.peek().map(|(index, _)| *index);
        if let Some(next) = next {
            if let Some(earlier) = older.next_if(|(index, _)| *index < next) {
                return Some(earlier);
            }
            older.next_if(|(index, _)| *index == next);
            return newer.next();
        }
        older.next()
    })
}

impl Names {
    /// Returns the entries of a locked directory whose index is above `after` and at most `last`,
    /// at most `limit` of them, in the order of their indices.
    pub(crate) fn entries(
        &self,
        dir: InodeId,
        state: &InodeState,
        after: DirIndex,
        last: DirIndex,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let Some(from) = after.0.checked_add(1).map(|from| DirIndex(from).max(DirIndex::FIRST)) else {
            return Ok(Vec::new());
        };
        if from > last || dir.ino == EMPTY_SUBVOLUME_INO {
            return Ok(Vec::new());
        }
        // Newer layers go above older ones. The limit is applied only after removals by newer
        // layers have been taken into account.
        let mut layers = state.batches().map(|batch| batch.entries.by_number.range(from..=last));
        let (newer, older) = (layers.next(), layers.next());
        let mut overlay = newest_of(older.into_iter().flatten(), newer.into_iter().flatten()).peekable();
        let committed = self.info.committed();
        let mut entries = Vec::new();
        let mut push = |index: DirIndex, name: &[u8], target: Target| -> Result<bool> {
            let inode = self.resolve(&committed, dir, name, target)?;
            entries.push(DirectoryEntry { index, name: name.to_vec(), inode, file_type: target.file_type });
            Ok(entries.len() == limit)
        };
        if state.committed {
            let range =
                Key::new(dir.ino.0, ItemType::DIR_INDEX, from.0)..=Key::new(dir.ino.0, ItemType::DIR_INDEX, last.0);
            for item in committed.tree(dir.subvolume)?.range(range) {
                let item = item?;
                let index = DirIndex(item.key.offset);
                while let Some((newer, entry)) = overlay.next_if(|(newer, _)| **newer < index) {
                    if let Some((name, target)) = entry
                        && push(*newer, name, *target)?
                    {
                        return Ok(entries);
                    }
                }
                if let Some((_, entry)) = overlay.next_if(|(newer, _)| **newer == index) {
                    if let Some((name, target)) = entry
                        && push(index, name, *target)?
                    {
                        return Ok(entries);
                    }
                    continue;
                }
                let Some(entry) = items::dir_entries(&item).next() else { continue };
                let pushed = entry.map_err(Error::from).and_then(|entry| {
                    push(index, entry.name, Target { location: entry.location, file_type: entry.file_type })
                });
                match pushed {
                    Ok(true) => return Ok(entries),
                    Ok(false) => {}
                    Err(error) if self.info.passes_over(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for (index, entry) in overlay {
            if let Some((name, target)) = entry
                && push(*index, name, *target)?
            {
                break;
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_layer_takes_precedence() {
        let layer = |numbers: &[u64]| numbers.iter().map(|number| DirIndex(*number)).collect::<Vec<_>>();
        for (older, newer, wanted) in [
            (&[][..], &[][..], &[][..]),
            (&[2, 5], &[], &[(2, "older"), (5, "older")]),
            (&[], &[2, 5], &[(2, "newer"), (5, "newer")]),
            (
                &[2, 4, 6, 9],
                &[3, 4, 9, 11],
                &[(2, "older"), (3, "newer"), (4, "newer"), (6, "older"), (9, "newer"), (11, "newer")],
            ),
        ] {
            let (older, newer) = (layer(older), layer(newer));
            let both =
                newest_of(older.iter().map(|index| (index, "older")), newer.iter().map(|index| (index, "newer")));
            assert_eq!(both.map(|(index, from)| (index.0, from)).collect::<Vec<_>>(), wanted);
        }
    }
}

//! Checks that the subvolumes of a merge have a common origin.
//!
//! A snapshot has the UUID of its source, so the lines of two subvolumes meet in their common
//! origin, whether or not that still exists. A subvolume in between may have been deleted, or have
//! no UUID (the top level that an old mkfs made): then a line is incomplete. The root directories
//! must be the same in any case, since a snapshot has that of its source; if a line is incomplete,
//! they alone decide.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::InodeItem;
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId, Uuid};
use ubtrfs_fs::{Errno, Filesystem, KeptCommit, Result};

use crate::outcome::MergeSides;

/// Returns `EINVAL` if the base and a side have no common origin.
pub(crate) fn check(fs: &Filesystem, sides: MergeSides) -> Result<()> {
    let commit = fs.keep_commit();
    let known: BTreeMap<Uuid, TreeId> =
        commit.subvolumes().map(|(tree, item)| (item.uuid, tree)).filter(|(id, _)| *id != Uuid::NIL).collect();
    let base = Line::of(&commit, &known, sides.base)?;
    for side in [sides.changed, sides.target] {
        if side != sides.base && !base.meets(&Line::of(&commit, &known, side)?) {
            return Err(Errno::INVAL.into());
        }
    }
    Ok(())
}

/// What is known about the origin of a subvolume.
struct Line {
    /// The UUIDs of the subvolume, of the source of which it is a snapshot, and so on.
    ids: BTreeSet<Uuid>,
    /// Whether the last of them is that of a subvolume that is no snapshot.
    is_whole: bool,
    /// The root directory, which distinguishes subvolumes whose root directories were made in
    /// different transactions.
    root: InodeItem,
}

impl Line {
    fn of(commit: &KeptCommit, known: &BTreeMap<Uuid, TreeId>, id: TreeId) -> Result<Self> {
        let root = root_directory(commit, id)?;
        let mut item = commit.root_item(id).ok_or(Errno::NOENT)?;
        let mut ids = BTreeSet::new();
        let is_whole = loop {
            if item.uuid != Uuid::NIL && !ids.insert(item.uuid) {
                break false;
            }
            if item.parent_uuid == Uuid::NIL {
                // A snapshot of a subvolume without a UUID has no parent UUID either, but is
                // younger than its root directory.
                break item.uuid != Uuid::NIL && Generation(item.transids[1]) == root.generation;
            }
            let Some(above) = known.get(&item.parent_uuid).and_then(|above| commit.root_item(*above)) else {
                ids.insert(item.parent_uuid);
                break false;
            };
            item = above;
        };
        Ok(Self { ids, is_whole, root })
    }

    fn meets(&self, other: &Self) -> bool {
        let is_same_root = (self.root.generation, self.root.otime) == (other.root.generation, other.root.otime);
        let is_known = self.is_whole && other.is_whole;
        is_same_root && (!self.ids.is_disjoint(&other.ids) || !is_known)
    }
}

/// The root directory of a subvolume.
fn root_directory(commit: &KeptCommit, id: TreeId) -> Result<InodeItem> {
    let item = commit.subvolume(id)?.get(&Key::new(Ino::ROOT_DIR.0, ItemType::INODE_ITEM, 0))?;
    Ok(InodeItem::parse(&item.ok_or(Errno::INVAL)?)?)
}

//! Whether the subvolumes of a merge come from one.
//!
//! A snapshot has the id of what it was made from, so the lines of two subvolumes meet in the one
//! that both come from, whether that is still there or not. A subvolume between may have been
//! deleted, or have no id (the top level that an old mkfs made): then a line ends before it tells.
//! Only then the root directory decides, which a snapshot has from its source.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::InodeItem;
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId, Uuid};
use ubtrfs_fs::{Errno, Filesystem, KeptCommit, Result};

use crate::outcome::MergeSides;

/// `EINVAL` if the base and a side don't come from one subvolume.
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

/// What is known of where a subvolume comes from.
struct Line {
    /// The ids of the subvolume, of what it is a snapshot of, and so on.
    ids: BTreeSet<Uuid>,
    /// The last of them is of a subvolume that is no snapshot.
    is_whole: bool,
    /// What tells root directories apart that were not made in one transaction.
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
                // A snapshot of what has no id names none either, but is younger than its root
                // directory.
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

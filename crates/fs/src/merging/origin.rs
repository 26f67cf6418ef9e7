//! Whether the subvolumes of a merge come from one.
//!
//! A snapshot has the id of what it was made from, so the lines of two subvolumes meet in the one
//! that both come from, whether that is still there or not. A subvolume between may have been
//! deleted, or have no id (the top level that an old mkfs made): then a line ends before it tells.
//! Only then the root directory decides, which a snapshot has from its source.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::InodeItem;
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId, Uuid};

use super::outcome::MergeSides;
use crate::committed::Committed;
use crate::error::{Errno, Result};
use crate::filesystem::Filesystem;
use crate::tree_roots::TreeRoot;

/// `EINVAL` if the base and a side don't come from one subvolume.
pub(super) fn check(fs: &Filesystem, sides: MergeSides) -> Result<()> {
    let committed = fs.info.committed();
    let known: BTreeMap<Uuid, TreeId> =
        committed.subvolumes().map(|tree| (tree.item.uuid, tree.id())).filter(|(id, _)| *id != Uuid::NIL).collect();
    let base = Line::of(&committed, &known, sides.base)?;
    for side in [sides.changed, sides.target] {
        if side != sides.base && !base.meets(&Line::of(&committed, &known, side)?) {
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
    fn of(committed: &Committed, known: &BTreeMap<Uuid, TreeId>, id: TreeId) -> Result<Self> {
        let mut at = committed.trees.get(id).filter(|_| committed.has_subvolume(id)).ok_or(Errno::NOENT)?;
        let root = root_directory(committed, id)?;
        let mut ids = BTreeSet::new();
        let is_whole = loop {
            let TreeRoot { item, .. } = at;
            if item.uuid != Uuid::NIL && !ids.insert(item.uuid) {
                break false;
            }
            if item.parent_uuid == Uuid::NIL {
                // A snapshot of what has no id names none either, but is younger than its root
                // directory.
                break item.uuid != Uuid::NIL && Generation(item.transids[1]) == root.generation;
            }
            let Some(above) = known.get(&item.parent_uuid).and_then(|above| committed.trees.get(*above)) else {
                ids.insert(item.parent_uuid);
                break false;
            };
            at = above;
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
fn root_directory(committed: &Committed, id: TreeId) -> Result<InodeItem> {
    let item = committed.tree(id)?.get(&Key::new(Ino::ROOT_DIR.0, ItemType::INODE_ITEM, 0))?;
    Ok(InodeItem::parse(&item.ok_or(Errno::INVAL)?)?)
}

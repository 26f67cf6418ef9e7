//! What a round does, in sentences.

use ubtrfs_check::{Fault, FaultKind};
use ubtrfs_tree::NodeRef;

use crate::change::{Change, Level};
use crate::commit::SpaceChanges;

/// Says what becomes of a block that can't be read.
pub fn unreadable(at: &NodeRef) -> Change {
    let tree = at.tree;
    let what = |text: &str| format!("the tree block at {} can't be read: {text}", at.bytenr);
    if tree.is_subvolume() {
        let what = what("what it held is given up, except what can still be read of it");
        return Change { level: Level::Content, tree: Some(tree), inode: None, path: None, what };
    }
    let what = what("its tree is rebuilt from the others");
    Change { level: Level::Space, tree: Some(tree), inode: None, path: None, what }
}

/// Says what the commit has put right of the records of space, if that is what the faults are
/// about.
pub fn describe(space: &SpaceChanges, faults: &[Fault], changes: &mut Vec<Change>) {
    let mut say = |one: &str, many: &str, count: u64, is_about: &dyn Fn(&FaultKind) -> bool| {
        if count > 0 && faults.iter().any(|fault| is_about(&fault.kind)) {
            let what = if count == 1 { one.to_owned() } else { format!("{count} {many}") };
            changes.push(Change::of_space(what));
        }
    };
    let extents = space.extents_changed + space.extents_added + space.extents_removed;
    say(
        "the references to an extent are derived from its uses",
        "extents get references that are derived from their uses",
        extents,
        &is_of_extents,
    );
    say("a block group is counted again", "block groups are counted again", space.groups, &is_of_groups);
    say(
        "a device extent is derived from its chunk",
        "device extents are derived from their chunks",
        space.device_extents,
        &|_| true,
    );
    say("the free-space tree is rebuilt", "", 1, &is_of_free_space);
    say("counters of the devices and the superblocks are put right", "", 1, &is_of_totals);
    say("copies that are bad are written again", "", 1, &is_of_copies);
}

fn is_of_extents(kind: &FaultKind) -> bool {
    use FaultKind as Kind;
    matches!(
        kind,
        Kind::ExtentsOverlap
            | Kind::ExtentOutsideBlockGroup { .. }
            | Kind::MissingExtentItem { .. }
            | Kind::UnusedExtentItem
            | Kind::MissingReference { .. }
            | Kind::SurplusReference { .. }
            | Kind::ReferenceTotal { .. }
            | Kind::ExtentGeneration { .. }
            | Kind::ExtentLevel { .. }
            | Kind::ExtentLength { .. }
            | Kind::ExtentKind
            | Kind::FullBackrefMissing
            | Kind::ReferenceWithoutExtent
            | Kind::BadItem { .. }
    )
}

fn is_of_groups(kind: &FaultKind) -> bool {
    use FaultKind as Kind;
    matches!(
        kind,
        Kind::ChunkWithoutBlockGroup
            | Kind::BlockGroupWithoutChunk
            | Kind::BlockGroupDiffersFromChunk { .. }
            | Kind::BlockGroupUsed { .. }
    )
}

fn is_of_free_space(kind: &FaultKind) -> bool {
    use FaultKind as Kind;
    matches!(
        kind,
        Kind::FreeSpaceInfoMissing
            | Kind::FreeSpaceStale
            | Kind::FreeSpaceCount { .. }
            | Kind::UsedListedFree { .. }
            | Kind::FreeNotListed { .. }
            | Kind::FreeSpaceNotMerged
            | Kind::FreeSpaceWrongKind
            | Kind::FreeSpaceOutside
    )
}

fn is_of_totals(kind: &FaultKind) -> bool {
    matches!(kind, FaultKind::DeviceBytesUsed { .. } | FaultKind::SuperblockField { .. })
}

fn is_of_copies(kind: &FaultKind) -> bool {
    use FaultKind as Kind;
    matches!(
        kind,
        Kind::SuperblockCopyBad { .. }
            | Kind::SuperblockCopyDiffers { .. }
            | Kind::SuperblockCopyStale { .. }
            | Kind::BadCopy { .. }
            | Kind::CopiesDiffer
            | Kind::SystemChunkMissing { .. }
            | Kind::SystemChunkDiffers { .. }
            | Kind::SystemChunkArray { .. }
    )
}

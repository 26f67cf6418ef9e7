//! The records of the result of a merge of subvolumes, which a mount's server sends and `ubtrfs
//! merge` shows.

use serde::{Deserialize, Serialize};
use ubtrfs::{ConflictKind, MergeStep, Merged, MergedPart};

/// A conflict, or a change of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MergeRecord {
    /// Both sides have changed something of this path differently.
    Conflict {
        /// The path.
        path: Vec<u8>,
        /// What both have changed.
        what: String,
    },
    /// A name is made.
    Add {
        /// The path.
        path: Vec<u8>,
    },
    /// A name is removed.
    Remove {
        /// The path.
        path: Vec<u8>,
    },
    /// A name changes.
    Rename {
        /// The old path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
    },
    /// The inode of a name changes.
    Change {
        /// The path.
        path: Vec<u8>,
        /// What changes.
        what: Vec<String>,
    },
}

/// The records of a merge: conflicts, then changes.
pub fn records(merged: &Merged) -> Vec<MergeRecord> {
    let conflicts = merged
        .conflicts
        .iter()
        .map(|conflict| MergeRecord::Conflict { path: conflict.path.clone(), what: kind(conflict.kind).into() });
    let steps = merged.steps.iter().map(|step| match step {
        MergeStep::Add { path } => MergeRecord::Add { path: path.clone() },
        MergeStep::Remove { path } => MergeRecord::Remove { path: path.clone() },
        MergeStep::Rename { from, to } => MergeRecord::Rename { from: from.clone(), to: to.clone() },
        MergeStep::Change { path, what } => {
            MergeRecord::Change { path: path.clone(), what: what.iter().map(|part| part_name(*part).into()).collect() }
        }
    });
    conflicts.chain(steps).collect()
}

fn kind(kind: ConflictKind) -> &'static str {
    match kind {
        ConflictKind::Content => "content",
        ConflictKind::Mode => "mode",
        ConflictKind::Owner => "owner",
        ConflictKind::Flags => "flags",
        ConflictKind::Xattr => "xattr",
        ConflictKind::Name => "another file in TARGET",
        ConflictKind::Renamed => "renamed on both sides",
        ConflictKind::RemovedByTarget => "removed in TARGET",
        ConflictKind::RemovedByChanged => "removed in CHANGED, changed in TARGET",
        ConflictKind::Directory => "in a directory that the other side has removed",
        ConflictKind::Loop => "directories that would be below each other",
    }
}

fn part_name(part: MergedPart) -> &'static str {
    match part {
        MergedPart::Content => "content",
        MergedPart::Mode => "mode",
        MergedPart::Owner => "owner",
        MergedPart::Flags => "flags",
        MergedPart::Xattr => "xattrs",
        MergedPart::ModificationTime => "mtime",
    }
}

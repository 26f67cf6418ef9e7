//! Checks before a merge changes anything, so that it does not end in the middle.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_changes::FileChange;
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_format::{DirIndex, Ino};
use ubtrfs_fs::{Errno, Filesystem, Result};

use crate::entries::{Entry, Node};
use crate::plan::Plan;
use crate::sides::Sides;

/// Flags that forbid changes of an inode.
pub(crate) const FORBIDDING: u64 = InodeFlags::PROTECTING | InodeFlags::RO_VERITY;
/// How many entries are listed at a time.
pub(crate) const LISTED: usize = 1000;

/// Returns `EBUSY` if something that is to be changed is not as it was when the merge was planned,
/// and `ENOTEMPTY` if a directory that is to be removed has an entry that no side knows, which is a
/// subvolume.
pub(crate) fn check_unchanged(fs: &Filesystem, sides: &Sides<'_>, plan: &Plan) -> Result<()> {
    let changing: BTreeSet<&Entry> = plan.entries.iter().map(|(entry, ..)| entry).collect();
    let ours: BTreeSet<Node> = plan.entries.iter().filter_map(|(_, ours, _)| *ours).collect();
    for node in ours {
        if plan.decision.is_there(sides, node) {
            continue;
        }
        let Some(dir) = sides.in_target(node) else { continue };
        if fs.inodes().attributes(dir)?.file_type != FileType::Directory {
            continue;
        }
        let mut after = DirIndex(0);
        loop {
            let listed = fs.directories().list(dir, after, DirIndex(u64::MAX), LISTED)?;
            let Some(last) = listed.last() else { break };
            after = last.index;
            if listed.into_iter().any(|entry| !changing.contains(&(node, entry.name))) {
                return Err(Errno::NOTEMPTY.into());
            }
        }
    }
    for (entry, ours, _) in &plan.entries {
        let Some(dir) = sides.in_target(entry.0) else { continue };
        let found = match fs.directories().lookup(dir, &entry.1) {
            Ok(found) => {
                fs.references().forget(found, 1);
                Some(found)
            }
            Err(error) if error.errno() == Errno::NOENT => None,
            Err(error) => return Err(error),
        };
        let expected = match ours {
            // A subvolume is left to its owner, and stays where it is.
            Some(Node::Subvolume(_)) => return Err(Errno::NOTEMPTY.into()),
            Some(node) => sides.in_target(*node),
            None => None,
        };
        if found != expected {
            return Err(Errno::BUSY.into());
        }
    }
    // These are the inodes that change, and those that lose a name.
    for node in plan.parts.keys().chain(plan.entries.iter().filter_map(|(_, ours, _)| ours.as_ref())) {
        let Some(id) = sides.in_target(*node) else { continue };
        let kept = match node {
            Node::Base(ino) => {
                let ours = sides.target.changed.get(ino).and_then(|change| change.new);
                let old = |side: &BTreeMap<Ino, FileChange>| side.get(ino).and_then(|change| change.old);
                ours.or_else(|| old(&sides.changed.changed)).or_else(|| old(&sides.changed.removed))
            }
            Node::Target(ino) => sides.target.made.get(ino).and_then(|change| change.new),
            _ => None,
        };
        if kept.is_some_and(|kept| fs.inodes().attributes(id).map_or(true, |now| now.ctime != kept.ctime)) {
            return Err(Errno::BUSY.into());
        }
    }
    Ok(())
}

/// Returns `EBUSY` if a file of the other side that is taken is not as it was when the merge was
/// planned, since the planned ranges don't apply then.
pub(crate) fn check_sources(fs: &Filesystem, sides: &Sides<'_>, plan: &Plan) -> Result<()> {
    let decided = plan.entries.iter().filter_map(|(_, _, decided)| decided.as_ref());
    for node in plan.parts.keys().chain(decided) {
        let (Node::Base(ino) | Node::Changed(ino), Some(id)) = (node, sides.in_changed(*node)) else { continue };
        let change = sides.changed.changed.get(ino).or_else(|| sides.changed.made.get(ino));
        let Some(planned) = change.and_then(|change| change.new) else { continue };
        if fs.inodes().attributes(id)?.ctime != planned.ctime {
            return Err(Errno::BUSY.into());
        }
    }
    Ok(())
}

/// Returns `EPERM` if `chattr +i` or `+a` would stop the merge in the middle.
pub(crate) fn check_flags(fs: &Filesystem, sides: &Sides<'_>, plan: &Plan) -> Result<()> {
    let entries = plan.entries.iter();
    let named = entries.flat_map(|((dir, _), ours, decided)| [Some(*dir), *ours, *decided]).flatten();
    let all: BTreeSet<Node> = named.chain(plan.parts.keys().copied()).collect();
    for id in all.into_iter().filter_map(|node| sides.in_target(node)) {
        if fs.inodes().attributes(id)?.flags & FORBIDDING != 0 {
            return Err(Errno::PERM.into());
        }
    }
    Ok(())
}

//! Three-way merges of subvolumes, file by file. A merge takes the changes from a base to one
//! subvolume into another subvolume that has the same base.
//!
//! Both sides' changes come from [`changes`](ubtrfs_changes::changes), so a merge takes time for
//! what changed. `sides` identifies inodes in either subvolume, `plan` decides name by name and
//! attribute by attribute, and `apply` changes the target accordingly. Content is shared by
//! reflinks, not copied.
//!
//! An inode of the base is the same in all three, whatever its name is, so a rename on one side and
//! a change of the content on the other are no conflict. If there are conflicts, nothing is
//! changed, unless the caller chooses a side for them. A merge is many operations: a crash, or a
//! full volume, may end it in the middle, and only a snapshot of the target from before it allows
//! to go back.

mod apply;
mod checks;
mod content;
mod decide;
mod entries;
mod origin;
mod outcome;
mod plan;
mod sides;

pub use outcome::{ConflictKind, MergeConflict, MergeEffect, MergeSides, MergeStep, Merged, MergedPart, Prefer};

use ubtrfs_fs::{Errno, Filesystem, Result};

use plan::Plan;
use sides::Sides;

/// Takes the changes from a base to a subvolume into another subvolume. With `dry_run` nothing is
/// changed. `effect` is called with each change once it is made.
///
/// Commits first. `EINVAL` if the three don't come from one subvolume; `EROFS` if the target is
/// read-only; `E2BIG` for more changes than memory should hold; `ENOTEMPTY` if a directory is to be
/// removed that has a subvolume in it, or a subvolume would have to be removed; `EPERM` if an inode
/// that changes is immutable or append-only; `EBUSY` if the target was changed while the merge was
/// planned. After these errors nothing has changed. `EBUSY` may also say that the other side was
/// changed while it was read; then no name has changed. Other errors may end a merge in the middle;
/// entries that it had moved away and not placed are then in the directory `.ubtrfs-merge-0` of the
/// target.
pub fn merge(
    fs: &Filesystem,
    sides: MergeSides,
    prefer: Prefer,
    dry_run: bool,
    effect: &mut dyn FnMut(MergeEffect),
) -> Result<Merged> {
    merge_while(fs, sides, prefer, dry_run, effect, &|| true)
}

/// Like [`merge`], but fails with `EINTR` as soon as `is_wanted` returns false. `is_wanted` is
/// called often while the merge is planned and new files are made. From the first change of an
/// existing inode of the target on it is not called any more, since the merge then goes on to its
/// end.
pub fn merge_while(
    fs: &Filesystem,
    sides: MergeSides,
    prefer: Prefer,
    dry_run: bool,
    effect: &mut dyn FnMut(MergeEffect),
    is_wanted: &dyn Fn() -> bool,
) -> Result<Merged> {
    let is_read_only = fs.is_read_only() || fs.subvolumes().subvolume_info(sides.target)?.read_only;
    if is_read_only && !dry_run {
        return Err(Errno::ROFS.into());
    }
    let gathered = Sides::gather(fs, sides, is_wanted)?;
    let plan = Plan::make(fs, &gathered, prefer)?;
    let conflicts: Vec<_> = plan.conflicts.iter().cloned().collect();
    if !conflicts.is_empty() && prefer == Prefer::Neither {
        return Ok(Merged { conflicts, steps: Vec::new() });
    }
    if !dry_run {
        apply::apply(fs, &gathered, &plan, effect)?;
    }
    Ok(Merged { conflicts, steps: plan.steps(&gathered) })
}

//! Three-way merges of subvolumes, file by file: what changed from a base to one subvolume is taken
//! into another that has the same base.
//!
//! Both sides' changes come from [`changes`](ubtrfs_changes::changes), so a merge costs what
//! changed. `sides` says who an inode is in either subvolume, `plan` decides name by name and
//! attribute by attribute, `apply` makes the target what was decided. Content is shared, not
//! copied.
//!
//! An inode of the base is the same in all three, whatever its name is, so a rename on one side and
//! a change of the content on the other are no conflict. If there are conflicts, nothing is
//! changed, unless the caller chooses a side for them. A merge is many operations: a crash, or a
//! full volume, may end it in the middle, and a snapshot of the target from before is how to get
//! back.

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

/// Takes into a subvolume what changed from a base to another. With `dry_run` nothing is changed.
/// `effect` is called with each change once it is made.
///
/// Commits first. `EINVAL` if the three don't come from one subvolume; `EROFS` if the target is
/// read-only; `E2BIG` for more changes than memory should hold; `ENOTEMPTY` if a directory is to go
/// that has a subvolume in it, or a subvolume would have to; `EPERM` if something that changes is
/// immutable or may only be appended to; `EBUSY` if the target was changed while the merge was
/// planned. These have changed nothing. `EBUSY` may also say that the other side was changed while
/// it was read: no name has changed then. Other errors may end a merge in the middle; what it had
/// taken away and not put to its place is in the directory `.ubtrfs-merge-0` of the target then.
pub fn merge(
    fs: &Filesystem,
    sides: MergeSides,
    prefer: Prefer,
    dry_run: bool,
    effect: &mut dyn FnMut(MergeEffect),
) -> Result<Merged> {
    merge_while(fs, sides, prefer, dry_run, effect, &|| true)
}

/// As [`merge`], while `is_wanted` says so: `EINTR` as soon as it does not. It is asked often while
/// the merge is planned and new files are made; from the first change of what the target has on it
/// is not asked any more, for the merge goes on to its end then.
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

//! Resets a subvolume to the content of another one: the commit makes a snapshot of the other one,
//! which takes over the entry, and deletes the subvolume that was there.
//!
//! Until the commit is durable, the name refers to the old content, and then to the new one. The
//! old subvolume is a deleted one then, and programs that have files of it open go on. So a lookup
//! finds one or the other as a whole, also after a crash.

use ubtrfs_format::TreeId;

use super::LockedInodes;
use super::checks::{check_mutable, check_removable_from};
use super::entries::name_demand;
use super::operations::SubvolumeOperations;
use crate::error::{Errno, Result};
use crate::faults::CommitFault;
use crate::inode::InodeId;
use crate::subvolume_changes::{NewContent, NewSubvolume};
use crate::subvolume_entries::EntryLocation;
use ubtrfs_space::Demand;

impl SubvolumeOperations {
    /// Puts a writable snapshot of the subvolume `source` in place of the subvolume that the entry
    /// `name` of `dir` refers to, in one step, which is durable when this returns. At any time, and
    /// after any crash, the name refers to the old one or to the new one. References to inodes of
    /// the old one get `ESTALE` from then on, and its space is freed in the background. If the old
    /// one was the default subvolume, the new one becomes it. Returns the id of the new one.
    ///
    /// `EINVAL` if the entry is not a subvolume, or is `source` itself; `EROFS` if the old one is
    /// read-only, `EBUSY` if it is the mounted one (unless [more is
    /// shown](crate::Filesystem::show_whole)), `ENOTEMPTY` if it contains others.
    pub fn reset_subvolume(&self, dir: InodeId, name: &[u8], source: TreeId) -> Result<TreeId> {
        self.reset_expected(dir, name, None, source)
    }

    /// Does the same if the name refers to the subvolume `id`. `EAGAIN` if it refers to another
    /// one.
    pub fn reset_subvolume_if(&self, dir: InodeId, name: &[u8], id: TreeId, source: TreeId) -> Result<TreeId> {
        self.reset_expected(dir, name, Some(id), source)
    }

    /// Puts a writable snapshot of `source` in place of the subvolume `name` of `dir`. This is
    /// durable when the call returns. If the old one was the default subvolume, the new one becomes
    /// it.
    ///
    /// `EINVAL` if the entry is not a subvolume, or is `source` itself; `EROFS` if the old one is
    /// read-only, `EBUSY` if it has to stay, `ENOTEMPTY` if it contains others, `EAGAIN` if it is
    /// not the `expected` one.
    fn reset_expected(&self, dir: InodeId, name: &[u8], expected: Option<TreeId>, source: TreeId) -> Result<TreeId> {
        self.check_subvolume(source)?;
        self.info.check_writable(dir.subvolume)?;
        if self.info.options.faults().in_commit(CommitFault::ResetInTwoSteps) {
            return self.reset_in_two_steps(dir, name, source);
        }
        let (made, removed) = (self.subvolume_demand(name, NewContent::Snapshot(source))?, name_demand(name));
        let demand =
            Demand { edits: made.edits + removed.edits, item_bytes: made.item_bytes + removed.item_bytes, ..made };
        let (id, old, generation) = self.reserver.with_reserved(demand, || {
            // Neither subvolume is deleted meanwhile, and no subvolume is created in the old one or
            // moved there.
            let _no_moves = self.entries.lock_renames()?;
            self.check_subvolume(source)?;
            self.info.check_writable(dir.subvolume)?;
            loop {
                let parent = self.info.inode(dir)?;
                let named = self.entries.find_named(&parent, name)?.ok_or(Errno::NOENT)?;
                let old = named.inode.id.subvolume;
                if !named.is_subvolume() || old == source {
                    return Err(Errno::INVAL.into());
                }
                if expected.is_some_and(|expected| expected != old) {
                    return Err(Errno::AGAIN.into());
                }
                check_removable_from(&parent, &named.inode)?;
                let replaced = self.info.subvolume(old)?;
                if replaced.is_read_only() {
                    return Err(Errno::ROFS.into());
                }
                self.check_replaceable(old)?;
                let is_default = self.becomes_default(old)?;
                let mut locked = LockedInodes::lock(&[&parent]);
                check_mutable(locked.get(dir))?;
                let Some(index) = self.entries.still_named(dir, locked.get(dir), name, &named)? else { continue };
                let id = self.info.new_tree_id()?;
                let entry = EntryLocation { dir, name: name.into(), index };
                let (uuid, content) = (self.info.new_uuid(id), NewContent::Snapshot(source));
                let new = NewSubvolume {
                    id,
                    uuid,
                    entry,
                    replaces: Some(old),
                    content,
                    xattrs: Vec::new(),
                    read_only: false,
                    time: self.info.now(),
                };
                // From here on its entry stays where it is, and no subvolume is added to it.
                replaced.set_replaced();
                let transaction = self.info.gate.enter();
                locked.join(&transaction);
                transaction.forbid_log();
                let mut changes = transaction.subvolumes();
                changes.new.push(new);
                changes.deleted.push(old);
                if is_default {
                    changes.default = Some(id);
                }
                return Ok((id, old, transaction.generation));
            }
        })?;
        self.committer.commit_through(generation)?;
        self.references.release_if_unused(old);
        self.inactivator.free_orphans_of(id);
        Ok(id)
    }

    fn reset_in_two_steps(&self, dir: InodeId, name: &[u8], source: TreeId) -> Result<TreeId> {
        self.delete_expected(dir, name, None)?;
        self.committer.commit()?;
        self.snapshot(source, dir, name, false)
    }
}

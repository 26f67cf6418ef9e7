//! Clears set-id bits and capabilities of files when a process that may not keep them changes the
//! file.
//!
//! Of the kernel driver's conditions for that (invariant 27), requests say only whether the caller
//! lacks the capability to keep set-id bits. Whether set-group-id is cleared on a file that its
//! group may not execute depends on the caller's groups, which the server looks up.

use ubtrfs::xattr_names::CAPABILITY;
use ubtrfs::{InodeId, SetAttributes};
use ubtrfs_format::posix::{S_IFDIR, S_IFMT, S_IFREG, S_ISGID, S_IXGRP, SET_ID};
use ubtrfs_fuse::{Caller, Errno};

use crate::privileges::{Capability, Powers};
use crate::server::Server;
use crate::shared::errno;

/// Returns whether set-group-id without group execution is cleared when a process with these powers
/// changes a file.
fn takes_group_id(attributes: &ubtrfs::Attributes, powers: &Powers) -> bool {
    is_marked(attributes.mode) && !powers.keeps_group_id(attributes.gid)
}

/// Returns whether a file has set-group-id though its group may not execute it.
fn is_marked(mode: u32) -> bool {
    mode & (S_IFMT | S_ISGID | S_IXGRP) == S_IFREG | S_ISGID
}

impl Server {
    /// Returns whether a change that is to clear set-id bits (`kills`) also clears set-group-id of
    /// a file that its group may not execute.
    pub(crate) fn takes_group_id(&self, caller: &Caller<'_>, id: InodeId, kills: bool) -> bool {
        let engine = self.shared().engine();
        kills
            && engine.inodes().mode(id).is_ok_and(is_marked)
            && engine.inodes().attributes(id).is_ok_and(|attributes| takes_group_id(&attributes, &Powers::of(caller)))
    }

    /// Serves a SETATTR without attributes, by which the kernel requests to drop set-id bits:
    /// before a write to a file that has some, and for a chown without owner and group. In the
    /// latter case it has not checked the caller, so only the owner and root may do it. Another
    /// user's WRITE clears the bits by itself.
    pub(crate) fn change_of_nothing(&self, caller: &Caller<'_>, id: InodeId) -> Result<ubtrfs::Attributes, Errno> {
        let engine = self.shared().engine();
        let attributes = engine.inodes().attributes(id).map_err(|error| errno(&error))?;
        let powers = Powers::of(caller);
        let kill_privileges = powers.owns(attributes.uid);
        if !kill_privileges && attributes.mode & S_IFMT != S_IFDIR && attributes.mode & SET_ID != 0 {
            return Ok(attributes);
        }
        let kill_group_id = kill_privileges && takes_group_id(&attributes, &powers);
        let changes = SetAttributes { kill_privileges, kill_group_id, ..SetAttributes::default() };
        engine.inodes().set_attributes(id, &changes).map_err(|error| errno(&error))
    }

    /// Clears set-id bits and capabilities of a file that a process is about to change by a request
    /// which, unlike WRITE, has no flag for that. The kernel has requested it by a SETATTR for root
    /// and the owner only.
    pub(crate) fn drop_privileges(&self, caller: &Caller<'_>, node: u64, id: InodeId) -> Result<(), Errno> {
        let engine = self.shared().engine();
        let attributes = engine.inodes().attributes(id).map_err(|error| errno(&error))?;
        // Most files have neither, and finding out the caller's powers takes long.
        let has_capability = self.shared().xattr(id, CAPABILITY)?.is_some();
        if attributes.mode & SET_ID == 0 && !has_capability {
            return Ok(());
        }
        let powers = Powers::of(caller);
        if powers.owns(attributes.uid) {
            return Ok(());
        }
        if !powers.has(Capability::SetIdBits) {
            let kill_group_id = takes_group_id(&attributes, &powers);
            let changes = SetAttributes { kill_privileges: true, kill_group_id, ..SetAttributes::default() };
            engine.inodes().set_attributes(id, &changes).map_err(|error| errno(&error))?;
            self.shared().attributes_changed(node);
        } else if has_capability {
            engine.inodes().remove_xattr(id, CAPABILITY).map_err(|error| errno(&error))?;
        }
        Ok(())
    }
}

//! Operations on attributes of an inode: mode, owner, times, extended attributes.

use std::os::unix::fs::PermissionsExt;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::{Step, Workload, expect};
use crate::model::{Body, Mtime, Node, NodeId};
use crate::names::{COLLIDING_XATTRS, random_xattr};

/// The maximum length of an extended attribute's value: with the longest name it fits a node of 4
/// KiB.
const MAX_VALUE: u64 = 3000;

impl Workload {
    pub(super) fn chmod(&mut self) -> Step {
        let Some(entry) = self.random_entry(|node| !matches!(node.body, Body::Symlink(_))) else {
            return Ok(());
        };
        let is_dir = self.model.node(entry.node).is_dir();
        let modes: &[u32] = match (self.root, is_dir) {
            (true, true) => &[0o755, 0o700, 0o1777, 0o2775, 0o500, 0],
            (true, false) => &[0o644, 0o600, 0o4755, 0o2755, 0o2644, 0o6711, 0o1644, 0o400, 0],
            (false, true) => &[0o755, 0o700, 0o1777],
            (false, false) => &[0o644, 0o600, 0o755],
        };
        let mode = *self.rng.pick(modes);
        let (path, shown) = self.place(entry.dir, &entry.name);
        self.note(&format!("chmod {mode:o} {shown}"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .map_err(|error| format!("chmod: {error}"))?;
        self.model.node_mut(entry.node).mode = mode;
        Ok(())
    }

    pub(super) fn chown(&mut self) -> Step {
        let Some(entry) = self.random_entry(|_| true).filter(|_| self.root) else {
            return Ok(());
        };
        let uid = (!self.rng.one_in(3)).then(|| self.rng.below(70_000) as u32);
        let gid = (!self.rng.one_in(3)).then(|| self.rng.below(70_000) as u32);
        let (path, shown) = self.place(entry.dir, &entry.name);
        self.note(&format!("chown {uid:?} {gid:?} {shown}"));
        std::os::unix::fs::lchown(&path, uid, gid).map_err(|error| format!("chown: {error}"))?;
        let node = self.model.node_mut(entry.node);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        self.drop_set_id(entry.node);
        Ok(())
    }

    /// Clears set-id bits as a change of owner does, and a write by a user who is not root:
    /// set-user-ID, and set-group-ID if the group may execute (otherwise the bit has another
    /// meaning). Directories keep them.
    pub(super) fn drop_set_id(&mut self, id: NodeId) {
        const SET_USER: u32 = 0o4000;
        const SET_GROUP: u32 = 0o2000;
        const GROUP_EXECUTE: u32 = 0o010;
        let node = self.model.node_mut(id);
        if node.is_dir() {
            return;
        }
        node.mode &= !SET_USER;
        if node.mode & GROUP_EXECUTE != 0 {
            node.mode &= !SET_GROUP;
        }
    }

    pub(super) fn utimens(&mut self) -> Step {
        let Some(entry) = self.random_entry(|_| true) else {
            return Ok(());
        };
        let seconds = match self.rng.below(4) {
            0 => self.rng.below(1 << 31) as i64 - (1 << 31),
            1 => self.rng.below(1 << 34) as i64,
            _ => 1_000_000_000 + self.rng.below(1 << 29) as i64,
        };
        let nanoseconds = self.rng.below(1_000_000_000) as u32;
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        let (path, shown) = self.place(entry.dir, &entry.name);
        self.note(&format!("utimens {seconds}.{nanoseconds:09} {shown}"));
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| format!("utimens: {error}"))?;
        self.model.node_mut(entry.node).mtime = Mtime::Exactly((seconds, nanoseconds));
        Ok(())
    }

    pub(super) fn set_xattr(&mut self) -> Step {
        let Some(entry) = self.random_entry(may_have_xattrs) else {
            return Ok(());
        };
        let name = random_xattr(&mut self.rng, self.root);
        let colliding = COLLIDING_XATTRS.iter().any(|(a, b)| name == a.as_bytes() || name == b.as_bytes());
        let length = match self.rng.below(8) {
            0 => 0,
            // Values of colliding names share an item, which must fit a node.
            1 if !colliding => self.rng.below(MAX_VALUE),
            _ => self.rng.below(200),
        };
        let value = self.rng.bytes(length as usize);
        let flags = match self.rng.below(6) {
            0 => XattrFlags::CREATE,
            1 => XattrFlags::REPLACE,
            _ => XattrFlags::empty(),
        };
        let exists = self.model.node(entry.node).xattrs.contains_key(&name);
        let wanted = if flags == XattrFlags::CREATE && exists {
            Some(Errno::EXIST)
        } else if flags == XattrFlags::REPLACE && !exists {
            Some(Errno::NODATA)
        } else {
            None
        };
        let (path, shown) = self.place(entry.dir, &entry.name);
        self.note(&format!("setxattr {} = {length} bytes {flags:?} of {shown}", name.escape_ascii()));
        let result = rustix::fs::lsetxattr(&path, &name[..], &value, flags);
        expect(result, wanted, "setxattr")?;
        if wanted.is_none() {
            self.model.node_mut(entry.node).xattrs.insert(name, value);
        }
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self) -> Step {
        let Some(entry) = self.random_entry(may_have_xattrs) else {
            return Ok(());
        };
        let existing: Vec<Vec<u8>> = self.model.node(entry.node).xattrs.keys().cloned().collect();
        let name = if existing.is_empty() || self.rng.one_in(6) {
            random_xattr(&mut self.rng, self.root)
        } else {
            self.rng.pick(&existing).clone()
        };
        let wanted = (!existing.contains(&name)).then_some(Errno::NODATA);
        let (path, shown) = self.place(entry.dir, &entry.name);
        self.note(&format!("removexattr {} of {shown}", name.escape_ascii()));
        expect(rustix::fs::lremovexattr(&path, &name[..]), wanted, "removexattr")?;
        self.model.node_mut(entry.node).xattrs.remove(&name);
        Ok(())
    }
}

/// Returns whether an inode may have xattrs: those of the user's namespace exist on files and
/// directories only.
fn may_have_xattrs(node: &Node) -> bool {
    matches!(node.body, Body::File(_) | Body::Dir { .. })
}

//! Applies the planned changes to the target.
//!
//! Steps that may fail for lack of space come first: new inodes with their content are made in a
//! staging directory, which is removed again if that fails. Owners, permissions and xattrs are set
//! before content and names, so that nobody can meanwhile read what he must not. Then entries that
//! change are moved into the staging directory, and from there to their new places, so that no
//! order of renames has to be found. Inodes that are left there in the end have lost their last
//! name. A process that may write to a directory of the target may exchange entries meanwhile, so
//! each rename checks that it moves the right inode, or fails.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::FileType;
use ubtrfs_format::posix::S_IFDIR;
use ubtrfs_format::{DirIndex, Ino};
use ubtrfs_fs::{
    Errno, Error, Filesystem, InodeId, NewInode, Result, SetAttributes, TimeChange, XattrMode, xattr_names::CAPABILITY,
};

use crate::checks::{FORBIDDING, LISTED, check_flags, check_sources, check_unchanged};
use crate::content::{self, Taken};
use crate::entries::Node;
use crate::outcome::MergeEffect;
use crate::plan::{Parts, Plan};
use crate::sides::Sides;

/// Makes the changes.
pub(crate) fn apply(
    fs: &Filesystem,
    sides: &Sides<'_>,
    plan: &Plan,
    effect: &mut dyn FnMut(MergeEffect),
) -> Result<()> {
    if plan.entries.is_empty() && plan.parts.is_empty() {
        return Ok(());
    }
    check_unchanged(fs, sides, plan)?;
    check_flags(fs, sides, plan)?;
    check_sources(fs, sides, plan)?;
    let root = InodeId::root_of(sides.target.subvolume);
    sides.check_wanted()?;
    let (name, staging) = make_staging(fs, root)?;
    effect(MergeEffect::Name(root, name.clone()));
    let mut merge = Applied {
        fs,
        sides,
        plan,
        staging,
        staged: BTreeMap::new(),
        next: 0,
        made: BTreeMap::new(),
        has_taken_away: false,
        effect,
    };
    let prepared = merge.make_inodes().and_then(|()| sides.check_wanted());
    let prepared = prepared.and_then(|()| merge.take_access()).and_then(|()| merge.take_content());
    // This checks that the files of the other side had the planned content while they were read.
    let prepared = prepared.and_then(|()| check_sources(fs, sides, plan));
    let done = prepared.and_then(|()| {
        merge.take_away()?;
        merge.place()?;
        merge.take_attributes()
    });
    // Removing the staging directory would lose inodes that were moved there and not placed.
    if done.is_err() && merge.has_taken_away {
        return done;
    }
    let cleaned = remove_all(fs, staging).and_then(|()| fs.directories().rmdir(root, &name));
    merge.tell_of_removed();
    effect(MergeEffect::Name(root, name));
    done.and(cleaned)
}

/// Makes the staging directory under a free name. Files of all users of the target pass through it,
/// so it belongs to none of them, not even to the owner of the target, but to the user of this
/// process (root on root's mounts), who may examine what a failure leaves there.
fn make_staging(fs: &Filesystem, root: InodeId) -> Result<(Vec<u8>, InodeId)> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let new = NewInode { mode: S_IFDIR | 0o700, uid, gid, ..NewInode::default() };
    for number in 0..u32::MAX {
        let name = format!(".ubtrfs-merge-{number}").into_bytes();
        match fs.directories().create(root, &name, &new) {
            Ok(staging) => {
                fs.references().forget(staging, 1);
                return Ok((name, staging));
            }
            Err(error) if error.errno() == Errno::EXIST => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EXIST.into())
}

/// Removes all that is below a directory.
fn remove_all(fs: &Filesystem, dir: InodeId) -> Result<()> {
    let mut path = vec![(dir, Vec::new())];
    while let Some((dir, _)) = path.last().cloned() {
        let mut is_empty = true;
        for entry in fs.directories().list(dir, DirIndex(0), DirIndex(u64::MAX), LISTED)? {
            is_empty = false;
            if entry.file_type == FileType::Directory && entry.inode.subvolume == dir.subvolume {
                path.push((entry.inode, entry.name));
                break;
            }
            fs.directories().unlink(dir, &entry.name)?;
        }
        if is_empty
            && let Some((_, name)) = path.pop()
            && let Some((above, _)) = path.last()
        {
            fs.directories().rmdir(*above, &name)?;
        }
    }
    Ok(())
}

struct Applied<'a> {
    fs: &'a Filesystem,
    sides: &'a Sides<'a>,
    plan: &'a Plan,
    staging: InodeId,
    /// The names that inodes have in the staging directory.
    staged: BTreeMap<Node, Vec<Vec<u8>>>,
    next: u64,
    /// Inodes that were made in the target.
    made: BTreeMap<Node, InodeId>,
    /// Whether the staging directory has inodes that were elsewhere in the target before.
    has_taken_away: bool,
    effect: &'a mut dyn FnMut(MergeEffect),
}

impl Applied<'_> {
    fn id(&self, node: Node) -> Result<InodeId> {
        let found = self.made.get(&node).copied().or_else(|| self.sides.in_target(node));
        found.ok_or_else(|| Errno::STALE.into())
    }

    fn staged_name(&mut self, node: Node) -> Vec<u8> {
        self.next += 1;
        let name = self.next.to_string().into_bytes();
        self.staged.entry(node).or_default().push(name.clone());
        name
    }

    /// Makes the inodes that the target lacks.
    fn make_inodes(&mut self) -> Result<()> {
        let wanted: BTreeSet<Node> = self.plan.entries.iter().filter_map(|(_, _, decided)| *decided).collect();
        for node in wanted {
            self.sides.check_wanted()?;
            if self.sides.in_target(node).is_some() {
                continue;
            }
            let source = self.sides.in_changed(node).ok_or(Error::Posix(Errno::STALE))?;
            let name = self.staged_name(node);
            let made = self.make(source, &name)?;
            self.made.insert(node, made);
            self.tell(self.staging, &name);
            (self.effect)(MergeEffect::Inode(made));
        }
        Ok(())
    }

    fn make(&self, source: InodeId, name: &[u8]) -> Result<InodeId> {
        let fs = self.fs;
        let is = fs.inodes().attributes(source)?;
        let symlink_target = if is.file_type == FileType::Symlink { fs.files().read_link(source)? } else { Vec::new() };
        let (uid, gid, rdev) = (is.uid, is.gid, is.rdev);
        // Flags that the mount would set by default may exclude these.
        let flags = Some(is.flags & !FORBIDDING);
        let new = NewInode { mode: is.mode, uid, gid, rdev, symlink_target, flags, ..NewInode::default() };
        let made = fs.directories().create(self.staging, name, &new)?;
        fs.references().forget(made, 1);
        if is.file_type == FileType::Regular {
            content::take(fs, (source, made), &Taken::Whole, &|| self.sides.check_wanted())?;
        }
        // A change of the owner clears capabilities, so xattrs are set after it.
        fs.inodes()
            .set_attributes(made, &SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() })?;
        for (name, value) in content::xattrs(fs, source)? {
            fs.inodes().set_xattr(made, &name, &value, XattrMode::Set)?;
        }
        let (atime, mtime) = (Some(TimeChange::To(is.atime)), Some(TimeChange::To(is.mtime)));
        let mode = (is.file_type != FileType::Symlink).then_some(is.mode);
        fs.inodes().set_attributes(made, &SetAttributes { mode, atime, mtime, ..SetAttributes::default() })?;
        Ok(made)
    }

    /// Sets owners, permissions and xattrs of inodes that the target has.
    fn take_access(&mut self) -> Result<()> {
        for (node, parts) in &self.plan.parts {
            let target = self.id(*node)?;
            let done = take_access(self.fs, target, parts);
            (self.effect)(MergeEffect::Inode(target));
            done?;
        }
        Ok(())
    }

    /// Takes the content of files that the target has.
    fn take_content(&mut self) -> Result<()> {
        for (node, parts) in &self.plan.parts {
            if let Some(taken) = &parts.content {
                let (source, target) = (self.source(*node)?, self.id(*node)?);
                let done = drop_privileges_of_others(self.fs, source, target)
                    .and_then(|()| content::take(self.fs, (source, target), taken, &|| Ok(())));
                (self.effect)(MergeEffect::Inode(target));
                done?;
            }
        }
        Ok(())
    }

    /// The inode that a part is taken from.
    fn source(&self, node: Node) -> Result<InodeId> {
        self.sides.in_changed(node).ok_or_else(|| Errno::STALE.into())
    }

    /// Moves entries that change into the staging directory.
    fn take_away(&mut self) -> Result<()> {
        for (entry, ours, _) in &self.plan.entries {
            let Some(node) = ours else { continue };
            let dir = self.id(entry.0)?;
            let name = self.staged_name(*node);
            let id = self.id(*node)?;
            self.fs.directories().rename_inode(id, (dir, &entry.1), (self.staging, &name))?;
            self.has_taken_away = true;
            self.tell(dir, &entry.1);
            self.tell(self.staging, &name);
            (self.effect)(MergeEffect::Attributes(id));
        }
        Ok(())
    }

    /// Moves the entries of the staging directory to their new places.
    fn place(&mut self) -> Result<()> {
        for (entry, _, decided) in &self.plan.entries {
            let Some(node) = decided else { continue };
            let (dir, id) = (self.id(entry.0)?, self.id(*node)?);
            match self.staged.get_mut(node).and_then(Vec::pop) {
                Some(name) => {
                    self.fs.directories().rename_inode(id, (self.staging, &name), (dir, &entry.1))?;
                    self.tell(self.staging, &name);
                }
                None => self.fs.directories().link(id, dir, &entry.1)?,
            }
            self.tell(dir, &entry.1);
            (self.effect)(MergeEffect::Attributes(id));
        }
        Ok(())
    }

    fn tell(&mut self, dir: InodeId, name: &[u8]) {
        (self.effect)(MergeEffect::Name(dir, name.to_vec()));
    }

    /// Reports the effects on inodes that were in the staging directory at the end, which have lost
    /// a name. A process that has listed that directory meanwhile may know them by the names that
    /// they had there.
    fn tell_of_removed(&mut self) {
        for (node, names) in std::mem::take(&mut self.staged) {
            for name in names {
                self.tell(self.staging, &name);
            }
            if let Ok(id) = self.id(node) {
                (self.effect)(MergeEffect::Attributes(id));
            }
        }
    }

    /// Takes the other parts, and attributes that new inodes could not get before.
    fn take_attributes(&mut self) -> Result<()> {
        for (node, parts) in &self.plan.parts {
            let target = self.id(*node)?;
            let done = take_time_and_flags(self.fs, target, parts);
            (self.effect)(MergeEffect::Inode(target));
            done?;
        }
        for (node, made) in &self.made {
            let is = self.fs.inodes().attributes(self.source(*node)?)?;
            if is.flags & FORBIDDING != 0 && made.ino != Ino::ROOT_DIR {
                self.fs.inodes().set_flags(*made, is.flags)?;
            }
            if is.file_type == FileType::Directory {
                // The entries of the directory were made after it got its times.
                let mtime = Some(TimeChange::To(is.mtime));
                self.fs.inodes().set_attributes(*made, &SetAttributes { mtime, ..SetAttributes::default() })?;
            }
            (self.effect)(MergeEffect::Attributes(*made));
        }
        Ok(())
    }
}

fn take_access(fs: &Filesystem, target: InodeId, parts: &Parts) -> Result<()> {
    // A change of the owner clears capabilities and set-id bits, so it comes first.
    let (uid, gid) = (parts.owner.map(|(uid, _)| uid), parts.owner.map(|(_, gid)| gid));
    if parts.owner.is_some() {
        fs.inodes().set_attributes(target, &SetAttributes { uid, gid, ..SetAttributes::default() })?;
    }
    for (name, value) in &parts.xattrs {
        match value {
            Some(value) => fs.inodes().set_xattr(target, name, value, XattrMode::Set)?,
            None => match fs.inodes().remove_xattr(target, name) {
                Err(error) if error.errno() == Errno::NODATA => {}
                removed => removed?,
            },
        }
    }
    if parts.mode.is_some() {
        fs.inodes().set_attributes(target, &SetAttributes { mode: parts.mode, ..SetAttributes::default() })?;
    }
    Ok(())
}

/// Clears set-id bits and capabilities of a file that is to get the content of another, unless the
/// other has the same ones and the same owner. Otherwise one user's program would run with
/// another's rights.
fn drop_privileges_of_others(fs: &Filesystem, source: InodeId, target: InodeId) -> Result<()> {
    let capability = |id| match fs.inodes().get_xattr(id, CAPABILITY) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.errno() == Errno::NODATA => Ok(None),
        Err(error) => Err(error),
    };
    let (of, is) = (fs.inodes().attributes(source)?, fs.inodes().attributes(target)?);
    let (other, own) = (capability(source)?, capability(target)?);
    let set_id = |mode: u32| mode & 0o6000;
    if (set_id(of.mode), of.uid, of.gid, &other) == (set_id(is.mode), is.uid, is.gid, &own) {
        return Ok(());
    }
    if own.is_some() {
        fs.inodes().remove_xattr(target, CAPABILITY)?;
    }
    if set_id(is.mode) != 0 {
        let mode = Some(is.mode & 0o1777);
        fs.inodes().set_attributes(target, &SetAttributes { mode, ..SetAttributes::default() })?;
    }
    Ok(())
}

fn take_time_and_flags(fs: &Filesystem, target: InodeId, parts: &Parts) -> Result<()> {
    let mtime = parts.mtime.map(TimeChange::To);
    if mtime.is_some() {
        fs.inodes().set_attributes(target, &SetAttributes { mtime, ..SetAttributes::default() })?;
    }
    parts.flags.map_or(Ok(()), |flags| fs.inodes().set_flags(target, flags))
}

//! Makes the target what was decided.
//!
//! What may fail for lack of space comes first: new inodes with their content are made in a
//! directory that is removed again if that fails. Then entries that change are moved into that
//! directory, and from there to their new places, so no order of renames has to be found. What is
//! left there in the end has lost its last name.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_format::{DirIndex, Ino};

use super::content::{self, Taken};
use super::entries::{Entry, Node};
use super::outcome::MergeEffect;
use super::plan::{Parts, Plan};
use super::sides::Sides;
use crate::error::{Errno, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeId;
use crate::ops::{NewInode, RenameFlags, SetAttributes, TimeChange, XattrMode};

const S_IFDIR: u32 = 0o040_000;
/// Flags by which the inode itself could not be changed any more: they are set last.
const FORBIDDING: u64 = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
/// Entries that are listed at a time.
const LISTED: usize = 1000;

/// Makes the changes.
pub(super) fn apply(fs: &Filesystem, sides: &Sides, plan: &Plan, effect: &mut dyn FnMut(MergeEffect)) -> Result<()> {
    if plan.entries.is_empty() && plan.parts.is_empty() {
        return Ok(());
    }
    check_unchanged(fs, sides, plan)?;
    let root = InodeId::root_of(sides.target.subvolume);
    let (name, staging) = make_staging(fs, root)?;
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
    let prepared = merge.make_inodes().and_then(|()| merge.take_content());
    let done = prepared.and_then(|()| {
        merge.take_away()?;
        merge.place()?;
        merge.take_attributes()
    });
    // What was taken away and not placed would be lost by that.
    if done.is_err() && merge.has_taken_away {
        return done;
    }
    let cleaned = remove_all(fs, staging).and_then(|()| fs.rmdir(root, &name));
    done.and(cleaned)
}

/// `EBUSY` if what is to be changed is not as it was when the merge was planned, and `ENOTEMPTY` if
/// there is something in a directory that is to go which no side knows: a subvolume.
fn check_unchanged(fs: &Filesystem, sides: &Sides, plan: &Plan) -> Result<()> {
    let changing: BTreeSet<&Entry> = plan.entries.iter().map(|(entry, ..)| entry).collect();
    for (_, ours, _) in &plan.entries {
        let Some(node) = ours.filter(|node| !plan.decision.is_there(sides, *node)) else { continue };
        let Some(dir) = sides.in_target(node) else { continue };
        if fs.attributes(dir)?.file_type != FileType::Directory {
            continue;
        }
        let mut after = DirIndex(0);
        loop {
            let listed = fs.list(dir, after, DirIndex(u64::MAX), LISTED)?;
            let Some(last) = listed.last() else { break };
            after = last.index;
            if listed.into_iter().any(|entry| !changing.contains(&(node, entry.name))) {
                return Err(Errno::NOTEMPTY.into());
            }
        }
    }
    for (entry, ours, _) in &plan.entries {
        let Some(dir) = sides.in_target(entry.0) else { continue };
        let found = match fs.lookup(dir, &entry.1) {
            Ok(found) => {
                fs.forget(found, 1);
                Some(found)
            }
            Err(error) if error.errno() == Errno::NOENT => None,
            Err(error) => return Err(error),
        };
        let expected = match ours {
            Some(Node::Subvolume(id)) => Some(InodeId::root_of(*id)),
            Some(node) => sides.in_target(*node),
            None => None,
        };
        if found != expected {
            return Err(Errno::BUSY.into());
        }
    }
    for node in plan.parts.keys() {
        let (Node::Base(ino), Some(id)) = (node, sides.in_target(*node)) else { continue };
        let ours = sides.target.changed.get(ino).and_then(|change| change.new);
        let kept = ours.or_else(|| sides.changed.changed.get(ino).and_then(|change| change.old));
        if kept.is_some_and(|kept| fs.attributes(id).map_or(true, |now| now.ctime != kept.ctime)) {
            return Err(Errno::BUSY.into());
        }
    }
    Ok(())
}

/// Makes a directory that nobody has.
fn make_staging(fs: &Filesystem, root: InodeId) -> Result<(Vec<u8>, InodeId)> {
    let new = NewInode { mode: S_IFDIR | 0o700, ..NewInode::default() };
    for number in 0..u32::MAX {
        let name = format!(".ubtrfs-merge-{number}").into_bytes();
        match fs.create(root, &name, &new) {
            Ok(staging) => {
                fs.forget(staging, 1);
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
        for entry in fs.list(dir, DirIndex(0), DirIndex(u64::MAX), LISTED)? {
            is_empty = false;
            if entry.file_type == FileType::Directory && entry.inode.subvolume == dir.subvolume {
                path.push((entry.inode, entry.name));
                break;
            }
            fs.unlink(dir, &entry.name)?;
        }
        if is_empty
            && let Some((_, name)) = path.pop()
            && let Some((above, _)) = path.last()
        {
            fs.rmdir(*above, &name)?;
        }
    }
    Ok(())
}

struct Applied<'a> {
    fs: &'a Filesystem,
    sides: &'a Sides,
    plan: &'a Plan,
    staging: InodeId,
    /// The names that inodes have in the staging directory.
    staged: BTreeMap<Node, Vec<Vec<u8>>>,
    next: u64,
    /// Inodes that were made in the target.
    made: BTreeMap<Node, InodeId>,
    /// The staging directory has what was elsewhere before.
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
            if self.sides.in_target(node).is_some() {
                continue;
            }
            let source = self.sides.in_changed(node).ok_or(Error::Posix(Errno::STALE))?;
            let name = self.staged_name(node);
            let made = self.make(source, &name)?;
            self.made.insert(node, made);
        }
        Ok(())
    }

    fn make(&self, source: InodeId, name: &[u8]) -> Result<InodeId> {
        let fs = self.fs;
        let is = fs.attributes(source)?;
        let symlink_target = if is.file_type == FileType::Symlink { fs.read_link(source)? } else { Vec::new() };
        let (uid, gid, rdev) = (is.uid, is.gid, is.rdev);
        let new = NewInode { mode: is.mode, uid, gid, rdev, symlink_target, ..NewInode::default() };
        let made = fs.create(self.staging, name, &new)?;
        fs.forget(made, 1);
        if matches!(is.file_type, FileType::Regular | FileType::Directory) {
            fs.set_flags(made, is.flags & !FORBIDDING)?;
        }
        for (name, value) in content::xattrs(fs, source)? {
            fs.set_xattr(made, &name, &value, XattrMode::Set)?;
        }
        if is.file_type == FileType::Regular {
            content::take(fs, source, made, &Taken::Whole)?;
        }
        let (atime, mtime) = (Some(TimeChange::To(is.atime)), Some(TimeChange::To(is.mtime)));
        let mode = (is.file_type != FileType::Symlink).then_some(is.mode);
        let attributes =
            SetAttributes { mode, uid: Some(uid), gid: Some(gid), atime, mtime, ..SetAttributes::default() };
        fs.set_attributes(made, &attributes)?;
        Ok(made)
    }

    /// The content of files that the target has.
    fn take_content(&mut self) -> Result<()> {
        for (node, parts) in &self.plan.parts {
            if let Some(taken) = &parts.content {
                let (source, target) = (self.source(*node)?, self.id(*node)?);
                let done = content::take(self.fs, source, target, taken);
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
            self.has_taken_away = true;
            self.fs.rename(dir, &entry.1, self.staging, &name, RenameFlags::default())?;
            self.tell(dir, entry);
        }
        Ok(())
    }

    /// Moves what is in the staging directory to where it is to be.
    fn place(&mut self) -> Result<()> {
        for (entry, _, decided) in &self.plan.entries {
            let Some(node) = decided else { continue };
            let (dir, id) = (self.id(entry.0)?, self.id(*node)?);
            match self.staged.get_mut(node).and_then(Vec::pop) {
                Some(name) => self.fs.rename(self.staging, &name, dir, &entry.1, RenameFlags::default())?,
                None => self.fs.link(id, dir, &entry.1)?,
            }
            self.tell(dir, entry);
            (self.effect)(MergeEffect::Inode(id));
        }
        Ok(())
    }

    fn tell(&mut self, dir: InodeId, entry: &Entry) {
        (self.effect)(MergeEffect::Name(dir, entry.1.clone()));
    }

    /// The other parts, and what new inodes could not have before.
    fn take_attributes(&mut self) -> Result<()> {
        for (node, parts) in &self.plan.parts {
            let target = self.id(*node)?;
            let done = take_parts(self.fs, target, parts);
            (self.effect)(MergeEffect::Inode(target));
            done?;
        }
        for (node, made) in &self.made {
            let is = self.fs.attributes(self.source(*node)?)?;
            if is.flags & FORBIDDING != 0 && made.ino != Ino::ROOT_DIR {
                self.fs.set_flags(*made, is.flags)?;
            }
            if is.file_type == FileType::Directory {
                // Its entries came later.
                let mtime = Some(TimeChange::To(is.mtime));
                self.fs.set_attributes(*made, &SetAttributes { mtime, ..SetAttributes::default() })?;
            }
        }
        Ok(())
    }
}

fn take_parts(fs: &Filesystem, target: InodeId, parts: &Parts) -> Result<()> {
    for (name, value) in &parts.xattrs {
        match value {
            Some(value) => fs.set_xattr(target, name, value, XattrMode::Set)?,
            None => match fs.remove_xattr(target, name) {
                Err(error) if error.errno() == Errno::NODATA => {}
                removed => removed?,
            },
        }
    }
    let (uid, gid) = (parts.owner.map(|(uid, _)| uid), parts.owner.map(|(_, gid)| gid));
    let mtime = parts.mtime.map(TimeChange::To);
    fs.set_attributes(target, &SetAttributes { mode: parts.mode, uid, gid, mtime, ..SetAttributes::default() })?;
    parts.flags.map_or(Ok(()), |flags| fs.set_flags(target, flags))
}

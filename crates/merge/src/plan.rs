//! Plans what a merge changes in the target: names, and parts of inodes.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_changes::{ChangedAttribute, ChangedContent, Content, FileChange};
use ubtrfs_format::items::{FileType, Timespec};
use ubtrfs_fs::{Filesystem, Result, SETTABLE_FLAGS};

use crate::content::{self, Taken};
use crate::decide::Decision;
use crate::entries::{Entry, Node};
use crate::outcome::{ConflictKind, MergeConflict, MergeStep, MergedPart, Prefer};
use crate::sides::Sides;

/// What is taken of an inode that the target has.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) content: Option<Taken>,
    pub(crate) mode: Option<u32>,
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) flags: Option<u64>,
    pub(crate) xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(crate) mtime: Option<Timespec>,
    path: Vec<u8>,
}

impl Parts {
    fn what(&self) -> Vec<MergedPart> {
        let all = [
            (MergedPart::Content, self.content.is_some()),
            (MergedPart::Mode, self.mode.is_some()),
            (MergedPart::Owner, self.owner.is_some()),
            (MergedPart::Flags, self.flags.is_some()),
            (MergedPart::Xattr, !self.xattrs.is_empty()),
            (MergedPart::ModificationTime, self.mtime.is_some()),
        ];
        all.into_iter().filter(|(_, is_taken)| *is_taken).map(|(part, _)| part).collect()
    }
}

/// The plan of a merge.
pub(crate) struct Plan {
    pub(crate) conflicts: BTreeSet<MergeConflict>,
    pub(crate) decision: Decision,
    /// Entries of the target that change, each with its present and its new node.
    pub(crate) entries: Vec<(Entry, Option<Node>, Option<Node>)>,
    /// The parts that are taken of inodes that the target has.
    pub(crate) parts: BTreeMap<Node, Parts>,
}

impl Plan {
    pub(crate) fn make(fs: &Filesystem, sides: &Sides<'_>, prefer: Prefer) -> Result<Self> {
        let same = made_alike(fs, sides)?;
        let decision = Decision::make(fs, sides, same.clone(), prefer)?;
        let entries = decision.entries(sides).filter_map(|entry| {
            let (ours, decided) = (Decision::ours(sides, entry), decision.decided(sides, entry));
            (ours != decided).then(|| (entry.clone(), ours, decided))
        });
        let entries = entries.collect();
        let conflicts = decision.conflicts.clone();
        let mut plan = Self { conflicts, decision, entries, parts: BTreeMap::new() };
        let takes_theirs = prefer == Prefer::Theirs;
        for (ino, theirs) in &sides.changed.changed {
            sides.check_wanted()?;
            let node = Node::Base(*ino);
            if sides.in_target(node).is_some() && plan.decision.is_there(sides, node) {
                let parts = plan.compare(fs, sides, theirs, takes_theirs)?;
                plan.take(node, parts);
            }
        }
        for (theirs, ours) in &same {
            sides.check_wanted()?;
            let parts = plan.compare_made(fs, sides, (*theirs, *ours), takes_theirs)?;
            plan.take(*ours, parts);
        }
        Ok(plan)
    }

    fn take(&mut self, node: Node, parts: Parts) {
        if !parts.what().is_empty() {
            self.parts.insert(node, parts);
        }
    }

    /// Returns whether to take a part that the other side has changed. `differs` is `None` if the
    /// target has not changed it, and otherwise says whether the target has changed it differently,
    /// which is a conflict.
    fn takes(&mut self, path: &[u8], kind: ConflictKind, differs: Option<bool>, takes_theirs: bool) -> bool {
        match differs {
            None => true,
            Some(false) => false,
            Some(true) => {
                self.conflicts.insert(MergeConflict { path: path.to_vec(), kind });
                takes_theirs
            }
        }
    }

    /// Compares what both sides did to an inode of the base.
    fn compare(
        &mut self,
        fs: &Filesystem,
        sides: &Sides<'_>,
        theirs: &FileChange,
        takes_theirs: bool,
    ) -> Result<Parts> {
        let ours = sides.target.changed.get(&theirs.ino);
        let (Some(old), Some(new)) = (&theirs.old, &theirs.new) else { return Ok(Parts::default()) };
        let kept = ours.and_then(|ours| ours.new).unwrap_or(*old);
        let path = theirs.new_names.first().map(|name| name.path.clone()).unwrap_or_default();
        let mut parts = Parts { path: path.clone(), ..Parts::default() };

        // `None` if the target has not changed the part, else whether it has changed it
        // differently.
        let differs = |is_changed: bool, is_same: bool| is_changed.then_some(!is_same);
        let mode = |mode: u32| mode & 0o7777;
        if mode(old.mode) != mode(new.mode) {
            let differs = differs(mode(kept.mode) != mode(old.mode), mode(kept.mode) == mode(new.mode));
            parts.mode = self.takes(&path, ConflictKind::Mode, differs, takes_theirs).then_some(mode(new.mode));
        }
        let (old_owner, new_owner, kept_owner) = ((old.uid, old.gid), (new.uid, new.gid), (kept.uid, kept.gid));
        if old_owner != new_owner {
            let differs = differs(kept_owner != old_owner, kept_owner == new_owner);
            parts.owner = self.takes(&path, ConflictKind::Owner, differs, takes_theirs).then_some(new_owner);
        }
        let flags = |flags: u64| flags & SETTABLE_FLAGS;
        if flags(old.flags) != flags(new.flags) {
            let differs = differs(flags(kept.flags) != flags(old.flags), flags(kept.flags) == flags(new.flags));
            parts.flags = self.takes(&path, ConflictKind::Flags, differs, takes_theirs).then_some(flags(new.flags));
        }
        for xattr in &theirs.xattrs {
            // The xattrs are sorted by name.
            let others = ours.map_or(&[][..], |ours| &ours.xattrs);
            let other = others.binary_search_by(|other| other.name.cmp(&xattr.name)).ok().map(|at| &others[at]);
            let differs = other.map(|other| other.new != xattr.new);
            if self.takes(&path, ConflictKind::Xattr, differs, takes_theirs) {
                parts.xattrs.push((xattr.name.clone(), xattr.new.clone()));
            }
        }
        if theirs.file_type == FileType::Regular {
            self.compare_content(fs, sides, theirs, takes_theirs, &mut parts)?;
            let is_time_free = old.mtime == kept.mtime && old.mtime != new.mtime;
            if parts.content.is_some() || is_time_free {
                parts.mtime = Some(new.mtime);
            }
        }
        Ok(parts)
    }

    fn compare_content(
        &mut self,
        fs: &Filesystem,
        sides: &Sides<'_>,
        theirs: &FileChange,
        takes_theirs: bool,
        parts: &mut Parts,
    ) -> Result<()> {
        if !has_new_content(theirs) {
            return Ok(());
        }
        let node = Node::Base(theirs.ino);
        let is_ours = sides.target.changed.get(&theirs.ino).is_some_and(has_new_content);
        let differs = match (is_ours, sides.in_changed(node), sides.in_target(node)) {
            (true, Some(one), Some(other)) => Some(!content::is_equal(fs, sides, one, other)?),
            _ => None,
        };
        if self.takes(&parts.path.clone(), ConflictKind::Content, differs, takes_theirs) {
            parts.content = Some(if is_ours {
                Taken::Whole
            } else {
                Taken::Ranges(new_data(theirs).map(|changed| changed.range.clone()).collect())
            });
        }
        Ok(())
    }

    /// Compares directories that both sides have made.
    fn compare_made(
        &mut self,
        fs: &Filesystem,
        sides: &Sides<'_>,
        (theirs, ours): (Node, Node),
        takes_theirs: bool,
    ) -> Result<Parts> {
        let (Some(theirs), Some(ours)) = (sides.in_changed(theirs), sides.in_target(ours)) else {
            return Ok(Parts::default());
        };
        let (new, kept) = (fs.inodes().attributes(theirs)?, fs.inodes().attributes(ours)?);
        let names = sides.changed.made.get(&theirs.ino).and_then(|change| change.new_names.first());
        let path = names.map(|name| name.path.clone()).unwrap_or_default();
        let mut parts = Parts { path: path.clone(), ..Parts::default() };
        let differs = |differs: bool| Some(differs);
        if self.takes(&path, ConflictKind::Mode, differs(new.mode != kept.mode), takes_theirs) {
            parts.mode = Some(new.mode & 0o7777);
        }
        let is_other_owner = (new.uid, new.gid) != (kept.uid, kept.gid);
        if self.takes(&path, ConflictKind::Owner, differs(is_other_owner), takes_theirs) {
            parts.owner = Some((new.uid, new.gid));
        }
        let flags = |flags: u64| flags & SETTABLE_FLAGS;
        if self.takes(&path, ConflictKind::Flags, differs(flags(new.flags) != flags(kept.flags)), takes_theirs) {
            parts.flags = Some(flags(new.flags));
        }
        let (xattrs, others) = (content::xattrs(fs, theirs)?, content::xattrs(fs, ours)?);
        let names: BTreeSet<_> = xattrs.keys().chain(others.keys()).collect();
        for name in names {
            let is_other = xattrs.get(name) != others.get(name);
            if self.takes(&path, ConflictKind::Xattr, differs(is_other), takes_theirs) {
                parts.xattrs.push((name.clone(), xattrs.get(name).cloned()));
            }
        }
        Ok(parts)
    }

    /// The changes in the form in which they are shown.
    pub(crate) fn steps(&self, sides: &Sides<'_>) -> Vec<MergeStep> {
        let mut gone: BTreeMap<Node, Vec<Vec<u8>>> = BTreeMap::new();
        for (entry, ours, _) in &self.entries {
            if let Some(node) = ours {
                let path = sides.target_entries.path(entry).unwrap_or(&self.decision.path(sides, entry)).to_vec();
                gone.entry(*node).or_default().push(path);
            }
        }
        let mut steps = Vec::new();
        for (entry, _, decided) in &self.entries {
            let Some(node) = decided else { continue };
            let to = self.decision.path(sides, entry);
            steps.push(match gone.get_mut(node).and_then(Vec::pop) {
                Some(from) => MergeStep::Rename { from, to },
                None => MergeStep::Add { path: to },
            });
        }
        steps.extend(gone.into_values().flatten().map(|path| MergeStep::Remove { path }));
        let parts = self.parts.values();
        steps.extend(parts.map(|parts| MergeStep::Change { path: parts.path.clone(), what: parts.what() }));
        steps
    }
}

fn has_new_content(change: &FileChange) -> bool {
    change.file_type == FileType::Regular
        && (new_data(change).next().is_some() || change.attributes.contains(&ChangedAttribute::Size))
}

/// The ranges whose data may have changed. Changes between holes and preallocated space are left
/// out, since both read as zeroes.
fn new_data(change: &FileChange) -> impl Iterator<Item = &ChangedContent> {
    let is_data = |content| content == Content::Data;
    change.content.iter().filter(move |changed| is_data(changed.new) || changed.old.is_none_or(is_data))
}

/// Finds inodes that both sides have made under the same name: directories, which are merged, and
/// other files that are alike. Returns the target's node for each of the other side's.
fn made_alike(fs: &Filesystem, sides: &Sides<'_>) -> Result<BTreeMap<Node, Node>> {
    let mut same = BTreeMap::new();
    let mut waiting: Vec<(Entry, Node)> = Vec::new();
    let made = |(entry, node): (&Entry, Option<Node>)| Some((entry.clone(), node.filter(|node| is_made(*node))?));
    waiting.extend(sides.changed_entries.iter().filter_map(made).filter(|(entry, _)| !is_made(entry.0)));
    while let Some(((dir, name), theirs)) = waiting.pop() {
        sides.check_wanted()?;
        let dir = same.get(&dir).copied().unwrap_or(dir);
        let Some(ours) = sides.target_entries.after(&(dir, name), None) else { continue };
        let (Node::Changed(one), Node::Target(other)) = (theirs, ours) else { continue };
        let (Some(one), Some(other)) = (sides.changed.made.get(&one), sides.target.made.get(&other)) else { continue };
        if one.file_type != other.file_type || same.contains_key(&theirs) {
            continue;
        }
        if one.file_type == FileType::Directory {
            same.insert(theirs, ours);
            waiting.extend(sides.changed_entries.within(theirs).filter_map(made));
        } else if content::is_alike(fs, sides, one, other)? {
            same.insert(theirs, ours);
        }
    }
    Ok(same)
}

fn is_made(node: Node) -> bool {
    matches!(node, Node::Changed(_))
}

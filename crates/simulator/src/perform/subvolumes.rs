//! Operations on subvolumes.

use std::sync::Arc;

use ubtrfs::{Errno, InodeId, SetAttributes};
use ubtrfs_format::{Ino, TreeId};

use super::Worker;
use super::names::{dir_body, new_node};
use crate::model::{IN_PLACE_OF_SUBVOLUMES, Touched, touch};
use crate::{Body, Model, Node, Operation};

impl Worker {
    /// Returns whether an operation would change something immutable: in a read-only subvolume, or
    /// a directory that a snapshot shows in place of a subvolume. Then it is left out, and a change
    /// of the mode is refused instead.
    pub(super) fn may_not_change(&self, operation: &Operation) -> Result<bool, String> {
        let (changed, paths) = operation.changes();
        let mut ids: Vec<InodeId> = changed.into_iter().filter_map(|what| self.find(what)).collect();
        for path in paths {
            ids.extend(self.model.place(path).map(|(dir, _)| dir));
            ids.extend(self.model.resolve(path));
        }
        let is_read_only = |id: &&InodeId| self.model.read_only.contains(&id.subvolume);
        if let Some(id) = ids.iter().find(is_read_only) {
            let change = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
            return match self.fs.inodes().set_attributes(*id, &change) {
                Err(error) if error.errno() == Errno::ROFS => Ok(true),
                Err(error) if self.tolerance.faults && error.errno() == Errno::IO => Ok(true),
                other => Err(format!("a change in a read-only subvolume gave {other:?}")),
            };
        }
        Ok(ids.iter().any(|id| id.ino == IN_PLACE_OF_SUBVOLUMES))
    }

    pub(super) fn create_subvolume(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::CreateSubvolume { path } = operation else { return Ok(()) };
        let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
        let expected = self.model.can_add(dir, name);
        let made = self.fs.subvolumes().create_subvolume(dir, name, 0o755, (0, 0));
        let Some(((), id)) = self.agree(operation, expected, made)? else { return Ok(()) };
        touch(touched, dir, true);
        touch(touched, put_subvolume(&mut self.model, dir, name, id), true);
        Ok(())
    }

    /// Returns whether a snapshot may have inodes without names, which are freed later.
    pub(crate) fn copies_orphans(&self) -> bool {
        let stats = self.fs.stats().inactivation;
        stats.inodes > 0 || stats.orphans_left || !self.model.orphans().is_empty()
    }

    pub(super) fn snapshot(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Snapshot { source, path, read_only } = operation else { return Ok(()) };
        let (Some(source), Some((dir, name))) = (self.model.resolve(source), self.model.place(path)) else {
            return Ok(());
        };
        let source = source.subvolume;
        let expected = self.model.can_add(dir, name);
        let made = self.fs.subvolumes().snapshot(source, dir, name, *read_only);
        let Some(((), copy)) = self.agree(operation, expected, made)? else { return Ok(()) };
        put_snapshot(&mut self.model, (dir, name), source, copy, *read_only);
        touch(touched, dir, true);
        Ok(())
    }

    pub(super) fn delete_subvolume(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::DeleteSubvolume { path } = operation else { return Ok(()) };
        let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
        if self.model.read_only.contains(&dir.subvolume) || dir.ino == IN_PLACE_OF_SUBVOLUMES {
            return Ok(());
        }
        let expected = self.can_delete(dir, name);
        let open = self.open_some(dir, name);
        let Some((gone, _)) = self.agree(operation, expected, self.fs.subvolumes().delete_subvolume(dir, name))? else {
            self.close_some(open.as_ref());
            return Ok(());
        };
        self.keep_open(gone, open)?;
        self.forget_subvolume(dir, name, gone, touched);
        Ok(())
    }

    /// Removes a deleted subvolume from the model.
    pub(super) fn forget_subvolume(&mut self, dir: InodeId, name: &[u8], gone: TreeId, touched: &mut Touched) {
        self.model.remove_entry(dir, name);
        self.model.nodes.retain(|id, _| id.subvolume != gone);
        self.model.read_only.remove(&gone);
        touch(touched, dir, true);
    }

    fn can_delete(&self, dir: InodeId, name: &[u8]) -> Result<TreeId, Errno> {
        let model = &self.model;
        if !model.node(dir).is_dir() {
            return Err(Errno::NOTDIR);
        }
        let id = model.entry(dir, name).ok_or(Errno::NOENT)?;
        if !model.is_subvolume(id) {
            return Err(Errno::INVAL);
        }
        if id.subvolume == model.default {
            return Err(Errno::PERM);
        }
        self.has_none_in_it(id)
    }

    /// Returns the subvolume, if there is no other one in it.
    fn has_none_in_it(&self, id: InodeId) -> Result<TreeId, Errno> {
        let model = &self.model;
        let is_in_it = |(inner, node): (&InodeId, &Arc<Node>)| {
            let Body::Directory { parent, .. } = &node.body else { return false };
            model.is_subvolume(*inner) && parent.subvolume == id.subvolume
        };
        if model.nodes.iter().any(is_in_it) { Err(Errno::NOTEMPTY) } else { Ok(id.subvolume) }
    }

    pub(super) fn reset_subvolume(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::ResetSubvolume { path, source } = operation else { return Ok(()) };
        let (Some(source), Some((dir, name))) = (self.model.resolve(source), self.model.place(path)) else {
            return Ok(());
        };
        if self.model.read_only.contains(&dir.subvolume) || dir.ino == IN_PLACE_OF_SUBVOLUMES {
            return Ok(());
        }
        let source = source.subvolume;
        let expected = self.can_reset(dir, name, source);
        let open = self.open_some(dir, name);
        let made = self.fs.subvolumes().reset_subvolume(dir, name, source);
        let Some((gone, copy)) = self.agree(operation, expected, made)? else {
            self.close_some(open.as_ref());
            return Ok(());
        };
        self.keep_open(gone, open)?;
        reset(&mut self.model, (dir, name), source, gone, copy);
        touch(touched, dir, true);
        Ok(())
    }

    fn can_reset(&self, dir: InodeId, name: &[u8], source: TreeId) -> Result<TreeId, Errno> {
        let model = &self.model;
        if !model.node(dir).is_dir() {
            return Err(Errno::NOTDIR);
        }
        let id = model.entry(dir, name).ok_or(Errno::NOENT)?;
        if !model.is_subvolume(id) || id.subvolume == source {
            return Err(Errno::INVAL);
        }
        if model.read_only.contains(&id.subvolume) {
            return Err(Errno::ROFS);
        }
        self.has_none_in_it(id)
    }

    pub(super) fn set_read_only(&mut self, operation: &Operation) -> Result<(), String> {
        let Operation::SetReadOnly { path, read_only } = operation else { return Ok(()) };
        let Some(id) = self.model.resolve(path).map(|id| id.subvolume) else { return Ok(()) };
        if id == self.model.root.subvolume {
            return Ok(());
        }
        if self.agree(operation, Ok(()), self.fs.subvolumes().set_subvolume_read_only(id, *read_only))?.is_some() {
            if *read_only {
                self.model.read_only.insert(id);
            } else {
                self.model.read_only.remove(&id);
            }
        }
        Ok(())
    }

    pub(super) fn set_default(&mut self, operation: &Operation) -> Result<(), String> {
        let Operation::SetDefault { path } = operation else { return Ok(()) };
        let Some(id) = self.model.resolve(path).map(|id| id.subvolume) else { return Ok(()) };
        if self.agree(operation, Ok(()), self.fs.subvolumes().set_default_subvolume(id))?.is_some() {
            self.model.default = id;
        }
        Ok(())
    }
}

impl Worker {
    /// Returns the state of the volume if an operation that is durable on return has taken effect
    /// though it has failed: its commit may have reached the device. `found` is the state that the
    /// volume shows, by which the new subvolume is known.
    pub(crate) fn done_all_the_same(&self, operation: &Operation, found: &Model) -> Option<Model> {
        let mut model = self.model.clone();
        let is_new = |id: &&InodeId| id.ino == Ino::ROOT_DIR && !model.nodes.contains_key(id);
        let new = found.nodes.keys().find(is_new).map(|id| id.subvolume);
        match operation {
            Operation::CreateSubvolume { path } => {
                let (dir, name) = model.place(path)?;
                let root = put_subvolume(&mut model, dir, name, new?);
                model.forget_times([dir, root]);
            }
            Operation::Snapshot { source, path, .. } => {
                let (source, copy, (dir, name)) = (model.resolve(source)?.subvolume, new?, model.place(path)?);
                put_snapshot(&mut model, (dir, name), source, copy, found.read_only.contains(&copy));
                model.forget_times([dir]);
            }
            Operation::ResetSubvolume { path, source } => {
                let (source, copy, (dir, name)) = (model.resolve(source)?.subvolume, new?, model.place(path)?);
                let gone = model.entry(dir, name)?.subvolume;
                reset(&mut model, (dir, name), source, gone, copy);
                model.forget_times([dir]);
            }
            Operation::SetReadOnly { path, read_only: true } => {
                let id = model.resolve(path)?.subvolume;
                model.read_only.insert(id);
            }
            Operation::SetReadOnly { path, read_only: false } => {
                let id = model.resolve(path)?.subvolume;
                model.read_only.remove(&id);
            }
            Operation::SetDefault { path } => model.default = model.resolve(path)?.subvolume,
            _ => return None,
        }
        Some(model)
    }
}

/// Adds an empty subvolume with an entry. Returns its root directory.
fn put_subvolume(model: &mut Model, dir: InodeId, name: &[u8], id: TreeId) -> InodeId {
    let root = InodeId::new(id, Ino::ROOT_DIR);
    model.add_root(root, new_node(0o040_755, (0, 0), dir_body(dir), 1));
    model.add_entry(dir, name, root);
    root
}

/// Adds a snapshot with an entry.
fn put_snapshot(model: &mut Model, (dir, name): (InodeId, &[u8]), source: TreeId, copy: TreeId, read_only: bool) {
    copy_subvolume(model, source, copy);
    if read_only {
        model.read_only.insert(copy);
    }
    model.add_entry(dir, name, InodeId::new(copy, Ino::ROOT_DIR));
}

/// Puts a snapshot in place of a subvolume.
fn reset(model: &mut Model, (dir, name): (InodeId, &[u8]), source: TreeId, gone: TreeId, copy: TreeId) {
    copy_subvolume(model, source, copy);
    model.remove_entry(dir, name);
    model.nodes.retain(|id, _| id.subvolume != gone);
    model.add_entry(dir, name, InodeId::new(copy, Ino::ROOT_DIR));
    if model.default == gone {
        model.default = copy;
    }
}

/// Copies all nodes of a subvolume; the subvolumes in it become empty directories.
fn copy_subvolume(model: &mut Model, source: TreeId, copy: TreeId) {
    let copied = |id: InodeId| match id.subvolume {
        subvolume if subvolume == source => InodeId::new(copy, id.ino),
        _ => InodeId::new(copy, IN_PLACE_OF_SUBVOLUMES),
    };
    let is_copied = |id: &InodeId, node: &Node| id.subvolume == source && node.nlink > 0;
    let nodes: Vec<_> = model.nodes.iter().filter(|(id, node)| is_copied(id, node)).collect();
    let mut copies = Vec::with_capacity(nodes.len());
    for (id, node) in nodes {
        let mut node = Arc::clone(node);
        if let Body::Directory { entries, parent } = &mut Arc::make_mut(&mut node).body {
            for child in entries.values_mut() {
                *child = copied(*child);
            }
            *parent = copied(*parent);
        }
        copies.push((copied(*id), node));
    }
    if let Some((_, root)) = copies.iter_mut().find(|(id, _)| id.ino == Ino::ROOT_DIR) {
        Arc::make_mut(root).nlink = 1;
    }
    model.nodes.extend(copies);
}

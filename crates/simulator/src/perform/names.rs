//! Operations on names: they make, open, link, rename and remove inodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs::{Errno, InodeId, NewInode};

use super::Worker;
use crate::model::{Touched, is_regular, touch};
use crate::{Body, Content, Node, Operation};

pub(super) fn new_node(mode: u32, (uid, gid): (u32, u32), body: Body, nlink: u32) -> Node {
    Node { mode, uid, gid, nlink, body, xattrs: BTreeMap::new(), times: None }
}

pub(super) fn dir_body(parent: InodeId) -> Body {
    Body::Directory { entries: BTreeMap::new(), parent }
}

impl Worker {
    pub(super) fn create(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Create { path, mode, owner, rdev, target, xattr, open } = operation else { return Ok(()) };
        let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
        let value: Arc<[u8]> = b"born with it".as_slice().into();
        let xattrs = if *xattr { vec![(b"user.born".to_vec(), value.to_vec())] } else { Vec::new() };
        let (symlink_target, rdev, (uid, gid)) = (target.0.clone(), *rdev, *owner);
        let new = NewInode { mode: *mode, uid, gid, rdev, symlink_target, xattrs, flags: None };
        let expected = self.model.can_add(dir, name);
        let made = self.fs.directories().create(dir, name, &new);
        let Some(((), id)) = self.agree(operation, expected, made)? else { return Ok(()) };
        let body = match mode & 0o170_000 {
            0o040_000 => dir_body(dir),
            0o120_000 => Body::Symlink(target.0.clone()),
            _ if is_regular(*mode) => Body::File(Content::default()),
            _ => Body::Special(rdev),
        };
        let mut node = new_node(*mode, *owner, body, 1);
        if *xattr {
            node.xattrs.insert(b"user.born".to_vec(), value);
        }
        self.model.add_node(id, dir, node);
        self.model.add_entry(dir, name, id);
        touch(touched, dir, true);
        touch(touched, id, true);
        if *open {
            self.handles.push(id);
        } else {
            self.fs.references().forget(id, 1);
        }
        Ok(())
    }

    pub(super) fn create_unnamed(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Unnamed { dir, mode } = operation else { return Ok(()) };
        let Some(id) = self.model.resolve(dir) else { return Ok(()) };
        let expected = if self.model.node(id).is_dir() { Ok(()) } else { Err(Errno::NOTDIR) };
        let made = self.fs.directories().create_unnamed(id, &NewInode { mode: *mode, ..NewInode::default() });
        if let Some(((), made)) = self.agree(operation, expected, made)? {
            let node = new_node(*mode, (0, 0), Body::File(Content::default()), 0);
            self.model.add_node(made, id, node);
            self.handles.push(made);
            touch(touched, made, true);
        }
        Ok(())
    }

    pub(super) fn open(&mut self, operation: &Operation) -> Result<(), String> {
        let Operation::Open { path } = operation else { return Ok(()) };
        let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
        let expected = match self.model.node(dir).body {
            Body::Directory { .. } => self.model.entry(dir, name).ok_or(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        };
        if let Some((wanted, found)) = self.agree(operation, expected, self.fs.directories().lookup(dir, name))? {
            if wanted != found {
                return Err(format!("found inode {}, not {}", found.ino, wanted.ino));
            }
            self.handles.push(found);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, operation: &Operation) {
        let Operation::Close { handle } = operation else { return };
        if !self.handles.is_empty() {
            let id = self.handles.remove(handle % self.handles.len());
            self.fs.references().forget(id, 1);
            self.drop_unreferenced(id);
        }
    }

    pub(super) fn link(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Link { what, path } = operation else { return Ok(()) };
        let (Some(id), Some((dir, name))) = (self.find(what), self.model.place(path)) else { return Ok(()) };
        let expected = self.model.can_link(id, dir, name);
        if self.agree(operation, expected, self.fs.directories().link(id, dir, name))?.is_some() {
            self.model.node_mut(id).nlink += 1;
            self.model.add_entry(dir, name, id);
            touch(touched, id, false);
            touch(touched, dir, true);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let (Operation::Unlink { path } | Operation::Rmdir { path }) = operation else { return Ok(()) };
        let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
        let directory = matches!(operation, Operation::Rmdir { .. });
        let expected = self.model.can_remove(dir, name, directory);
        let removed =
            if directory { self.fs.directories().rmdir(dir, name) } else { self.fs.directories().unlink(dir, name) };
        if let Some((id, ())) = self.agree(operation, expected, removed)? {
            if self.model.is_subvolume(id) {
                self.keep_open(id.subvolume, None)?;
                self.forget_subvolume(dir, name, id.subvolume, touched);
                return Ok(());
            }
            self.model.remove(dir, name, id, touched);
            self.drop_unreferenced(id);
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Rename { from, to, flags } = operation else { return Ok(()) };
        let (Some(from), Some(to)) = (self.model.place(from), self.model.place(to)) else { return Ok(()) };
        let expected = self.model.can_rename(from, to, *flags);
        let renamed = self.fs.directories().rename(from.0, from.1, to.0, to.1, *flags);
        let Some((Some(_), ())) = self.agree(operation, expected, renamed)? else { return Ok(()) };
        let target = self.model.entry(to.0, to.1);
        let whiteout = if flags.whiteout {
            let id = self
                .fs
                .directories()
                .lookup(from.0, from.1)
                .map_err(|error| format!("no whiteout: {}", error.chain()))?;
            self.fs.references().forget(id, 1);
            Some(id)
        } else {
            None
        };
        self.model.rename(from, to, flags.exchange, whiteout, touched);
        if let Some(target) = target {
            self.drop_unreferenced(target);
        }
        Ok(())
    }
}

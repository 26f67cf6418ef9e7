//! Operations on the engine and the model at once: both must come to the same result.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use ubtrfs::{Errno, Filesystem, InodeId, ModeAndXattr, NewInode, SetAttributes, TimeChange, WriteAt, XattrMode};
use ubtrfs_format::items::{InodeFlags, Timespec};
use ubtrfs_format::max_item_size;

use crate::model::{Touched, is_regular, touch};
use crate::operation::Name;
use crate::{Body, Compare, Content, Model, Node, Operation, Random, Times, What, compare};

/// Bytes of an xattr's item beside name and value.
const XATTR_HEADER: usize = 30;

/// Errors that an operation may come to though the model sees no reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tolerance {
    /// The volume may be full.
    pub no_space: bool,
    /// The device may fail.
    pub faults: bool,
}

/// A program at work: the engine, and what it must show.
pub struct Worker {
    /// The engine.
    pub fs: Arc<Filesystem>,
    /// What it must show, below the model's root.
    pub model: Model,
    /// Inodes that are held by a reference, one for each time they are listed.
    pub handles: Vec<InodeId>,
    /// Errors that are nobody's fault.
    pub tolerance: Tolerance,
    /// Whether times are compared.
    pub times: bool,
    /// Operations that came to an error that is tolerated.
    pub tolerated: usize,
}

/// What fsync and fdatasync ask the engine for.
pub(crate) fn make_durable(fs: &Filesystem, id: InodeId, data_only: bool) -> ubtrfs::Result<()> {
    if data_only { fs.fdatasync(id) } else { fs.fsync(id) }
}

fn new_node(mode: u32, (uid, gid): (u32, u32), body: Body, nlink: u32) -> Node {
    Node { mode, uid, gid, nlink, body, xattrs: BTreeMap::new(), times: None }
}

fn dir_body(parent: InodeId) -> Body {
    Body::Directory { entries: BTreeMap::new(), parent }
}

impl Worker {
    /// A worker on a mounted volume.
    pub fn new(fs: Arc<Filesystem>, model: Model, tolerance: Tolerance, times: bool) -> Self {
        Self { fs, model, handles: Vec::new(), tolerance, times, tolerated: 0 }
    }

    /// The inode that an operation is done to; `None` if there is no such thing, so that it is left
    /// out.
    pub fn find(&self, what: &What) -> Option<InodeId> {
        match what {
            What::At(path) => self.model.resolve(path),
            What::Handle(_) if self.handles.is_empty() => None,
            What::Handle(number) => self.handles.get(number % self.handles.len()).copied(),
        }
    }

    /// Does an operation. Returns the inodes whose times it changed; a sentence if engine and model
    /// disagree.
    pub fn perform(&mut self, operation: &Operation) -> Result<Touched, String> {
        let mut touched = Touched::new();
        self.apply(operation, &mut touched)?;
        self.learn_times(&touched)?;
        Ok(touched)
    }

    /// Whether engine and model agree that an operation succeeded; `None` if both say that it did
    /// not.
    fn agree<T, U: Debug>(
        &mut self,
        operation: &Operation,
        expected: Result<T, Errno>,
        actual: ubtrfs::Result<U>,
    ) -> Result<Option<(T, U)>, String> {
        match (expected, actual) {
            (Ok(expected), Ok(actual)) => Ok(Some((expected, actual))),
            (Err(errno), Err(error)) if error.errno() == errno => Ok(None),
            (_, Err(error)) if self.tolerates(operation, error.errno()) => {
                self.tolerated += 1;
                Ok(None)
            }
            (Ok(_), Err(error)) => Err(format!("failed: {error} ({:?})", error.errno())),
            (Err(errno), Err(error)) => Err(format!("failed with {error}, not {errno:?}")),
            (Err(errno), Ok(actual)) => Err(format!("gave {actual:?}, not {errno:?}")),
        }
    }

    fn tolerates(&self, operation: &Operation, errno: Errno) -> bool {
        (self.tolerance.no_space && errno == Errno::NOSPC && !operation.frees())
            || (self.tolerance.faults && matches!(errno, Errno::IO | Errno::ROFS | Errno::NOSPC))
    }

    /// Takes over the times that the engine gave, if they can be right.
    fn learn_times(&mut self, touched: &Touched) -> Result<(), String> {
        for (id, content) in touched {
            if !self.model.nodes.contains_key(id) {
                continue;
            }
            let found = match self.fs.attributes(*id) {
                Ok(found) => found,
                Err(error) if self.tolerance.faults && error.errno() == Errno::IO => {
                    self.model.node_mut(*id).times = None;
                    continue;
                }
                Err(error) => return Err(format!("stat of inode {}: {error}", id.ino)),
            };
            let times = Times { mtime: found.mtime, ctime: found.ctime, btime: found.btime };
            let order = |time: Timespec| (time.sec as i64, time.nsec);
            if let Some(old) = self.model.node(*id).times {
                if order(times.ctime) < order(old.ctime) || times.btime != old.btime {
                    return Err(format!("times of inode {} went from {old:?} to {times:?}", id.ino));
                }
                if !content && times.mtime != old.mtime {
                    return Err(format!("inode {} has a new mtime though its content is the old one", id.ino));
                }
            }
            self.model.node_mut(*id).times = Some(times);
        }
        Ok(())
    }

    /// Nodes that neither a name nor a handle leads to are gone.
    fn drop_unreferenced(&mut self, id: InodeId) {
        if self.model.nodes.get(&id).is_some_and(|node| node.nlink == 0) && !self.handles.contains(&id) {
            self.model.nodes.remove(&id);
        }
    }

    /// How many bytes can be shared.
    fn bytes_to_clone(&self, source: InodeId, from: u64, target: InodeId, to: u64, len: u64) -> Result<u64, Errno> {
        const SECTOR: u64 = 4096;
        let size = |id: InodeId| match &self.model.node(id).body {
            Body::File(content) => Ok(content.size()),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        };
        let (source_size, target_size) = (size(source)?, size(target)?);
        let len = len.min(source_size.saturating_sub(from));
        if len == 0 {
            return Ok(0);
        }
        if source == target && from < to + len && to < from + len {
            return Err(Errno::INVAL);
        }
        if self.model.node(source).is_in_place() != self.model.node(target).is_in_place() {
            return Err(Errno::OPNOTSUPP);
        }
        let ends_both = from + len == source_size && to + len >= target_size;
        let len = if ends_both { len } else { len / SECTOR * SECTOR };
        let aligned = from.is_multiple_of(SECTOR) && to.is_multiple_of(SECTOR);
        if aligned && len > 0 { Ok(len) } else { Err(Errno::OPNOTSUPP) }
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each operation")]
    fn apply(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let fs = Arc::clone(&self.fs);
        match operation {
            Operation::Create { path, .. } => {
                let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
                self.create(operation, dir, name, touched)
            }
            Operation::Unnamed { dir, mode } => {
                let Some(id) = self.model.resolve(dir) else { return Ok(()) };
                let expected = if self.model.node(id).is_dir() { Ok(()) } else { Err(Errno::NOTDIR) };
                let made = fs.create_unnamed(id, &NewInode { mode: *mode, ..NewInode::default() });
                if let Some(((), made)) = self.agree(operation, expected, made)? {
                    let node = new_node(*mode, (0, 0), Body::File(Content::default()), 0);
                    self.model.add_node(made, id, node);
                    self.handles.push(made);
                    touch(touched, made, true);
                }
                Ok(())
            }
            Operation::Open { path } => {
                let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
                let expected = match self.model.node(dir).body {
                    Body::Directory { .. } => self.model.entry(dir, name).ok_or(Errno::NOENT),
                    _ => Err(Errno::NOTDIR),
                };
                if let Some((wanted, found)) = self.agree(operation, expected, fs.lookup(dir, name))? {
                    if wanted != found {
                        return Err(format!("found inode {}, not {}", found.ino, wanted.ino));
                    }
                    self.handles.push(found);
                }
                Ok(())
            }
            Operation::Close { handle } => {
                if !self.handles.is_empty() {
                    let id = self.handles.remove(handle % self.handles.len());
                    fs.forget(id, 1);
                    self.drop_unreferenced(id);
                }
                Ok(())
            }
            Operation::Write { what, at, len, fill, kill_privileges } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let node = self.model.node(id);
                let expected = match &node.body {
                    _ if *len == 0 => Ok(0),
                    Body::File(content) => Ok(content.size()),
                    Body::Directory { .. } => Err(Errno::ISDIR),
                    _ => Err(Errno::INVAL),
                };
                let data = Random::noise(*fill, *len);
                let written = fs.write(id, *at, &data, *kill_privileges);
                let Some((size, written)) = self.agree(operation, expected, written)? else { return Ok(()) };
                if written != *len {
                    return Err(format!("wrote {written} bytes, not {len}"));
                }
                if *len > 0 {
                    let offset = match at {
                        WriteAt::Offset(offset) | WriteAt::Appending(offset) => *offset,
                        WriteAt::End => size,
                    };
                    if *kill_privileges {
                        self.model.kill_privileges(id);
                    }
                    if let Body::File(content) = &mut self.model.node_mut(id).body {
                        content.write(offset, &data);
                    }
                    touch(touched, id, true);
                }
                Ok(())
            }
            Operation::Truncate { what, size } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let expected = match &self.model.node(id).body {
                    Body::File(content) => Ok(content.size()),
                    Body::Directory { .. } => Err(Errno::ISDIR),
                    _ => Err(Errno::INVAL),
                };
                let changes = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                if self.agree(operation, expected, fs.set_attributes(id, &changes))?.is_some() {
                    if let Body::File(content) = &mut self.model.node_mut(id).body {
                        content.resize(*size);
                    }
                    // Also if the size stays, as a file opened with O_TRUNC shows.
                    touch(touched, id, true);
                }
                Ok(())
            }
            Operation::Punch { what, offset, len } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let expected = match &self.model.node(id).body {
                    _ if *len == 0 => Err(Errno::INVAL),
                    Body::File(content) => Ok(content.size()),
                    Body::Directory { .. } => Err(Errno::ISDIR),
                    _ => Err(Errno::NODEV),
                };
                let Some((size, ())) = self.agree(operation, expected, fs.punch_hole(id, *offset, *len))? else {
                    return Ok(());
                };
                if let Body::File(content) = &mut self.model.node_mut(id).body
                    && *offset < size
                {
                    content.punch(*offset, *len);
                    touch(touched, id, true);
                }
                Ok(())
            }
            Operation::Allocate { what, offset, len, zero, keep_size } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let expected = match &self.model.node(id).body {
                    _ if *len == 0 => Err(Errno::INVAL),
                    Body::File(_) => Ok(()),
                    Body::Directory { .. } => Err(Errno::ISDIR),
                    _ => Err(Errno::NODEV),
                };
                let done = if *zero {
                    fs.zero_range(id, *offset, *len, *keep_size)
                } else {
                    fs.allocate(id, *offset, *len, *keep_size)
                };
                if self.agree(operation, expected, done)?.is_some() {
                    if let Body::File(content) = &mut self.model.node_mut(id).body {
                        content.reserve(*offset, *len);
                        if *zero && *offset < content.size() {
                            content.punch(*offset, *len);
                        }
                        if !keep_size && offset + len > content.size() {
                            content.resize(offset + len);
                        }
                    }
                    touch(touched, id, true);
                }
                Ok(())
            }
            Operation::Clone { from, from_offset, to, to_offset, len } => {
                let (Some(source), Some(target)) = (self.find(from), self.find(to)) else { return Ok(()) };
                let expected = self.bytes_to_clone(source, *from_offset, target, *to_offset, *len);
                let done = fs.clone_range(source, *from_offset, target, *to_offset, *len);
                let Some((expected, done)) = self.agree(operation, expected, done)? else { return Ok(()) };
                if done != expected && !(self.tolerance.no_space && done < expected) {
                    return Err(format!("shared {done} bytes, not {expected}"));
                }
                let Body::File(content) = &self.model.node(source).body else { return Ok(()) };
                let copy = content.read(*from_offset, done as usize);
                if let Body::File(content) = &mut self.model.node_mut(target).body
                    && done > 0
                {
                    content.write(*to_offset, &copy);
                    touch(touched, target, true);
                }
                Ok(())
            }
            Operation::Attributes { what, mode, uid, gid, mtime } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let mtime = mtime.map(TimeChange::To);
                let changes = SetAttributes { mode: *mode, uid: *uid, gid: *gid, mtime, ..SetAttributes::default() };
                let changed = fs.set_attributes(id, &changes);
                let Some(((), found)) = self.agree(operation, Ok(()), changed)? else { return Ok(()) };
                if mtime.is_some_and(|wanted| wanted != TimeChange::To(found.mtime)) {
                    return Err(format!("the mtime is {:?}", found.mtime));
                }
                let node = self.model.node_mut(id);
                if let Some(mode) = mode {
                    node.mode = node.mode & !0o7777 | mode & 0o7777;
                }
                node.uid = uid.unwrap_or(node.uid);
                node.gid = gid.unwrap_or(node.gid);
                if uid.is_some() || gid.is_some() {
                    node.xattrs.remove(&b"security.capability"[..]);
                }
                touch(touched, id, mtime.is_some());
                Ok(())
            }
            Operation::SetXattr { what, name: Name(name), len, fill, mode } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let exists = self.model.node(id).xattrs.contains_key(name);
                let most = max_item_size(fs.volume().node_size() as usize);
                let expected = match mode {
                    _ if XATTR_HEADER + name.len() + len > most => Err(Errno::NOSPC),
                    XattrMode::Create if exists => Err(Errno::EXIST),
                    XattrMode::Replace if !exists => Err(Errno::NODATA),
                    _ => Ok(()),
                };
                let value = Random::noise(*fill, *len);
                if self.agree(operation, expected, fs.set_xattr(id, name, &value, *mode))?.is_some() {
                    self.model.node_mut(id).xattrs.insert(name.clone(), value.into());
                    touch(touched, id, false);
                }
                Ok(())
            }
            Operation::RemoveXattr { what, name: Name(name) } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let expected = if self.model.node(id).xattrs.contains_key(name) { Ok(()) } else { Err(Errno::NODATA) };
                if self.agree(operation, expected, fs.remove_xattr(id, name))?.is_some() {
                    self.model.node_mut(id).xattrs.remove(name);
                    touch(touched, id, false);
                }
                Ok(())
            }
            Operation::ModeAndXattr { what, mode, name: Name(name), len, fill } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                let most = max_item_size(fs.volume().node_size() as usize);
                let is_too_long = len.is_some_and(|len| XATTR_HEADER + name.len() + len > most);
                let expected = if is_too_long { Err(Errno::NOSPC) } else { Ok(()) };
                let value = len.map(|len| Random::noise(*fill, len));
                let with = |old: u32| old & !0o7777 | mode & 0o7777;
                let plan = |old: u32, _: Option<&[u8]>| Ok((with(old), value.clone()));
                let changed =
                    fs.set_attributes_with(id, &SetAttributes::default(), &ModeAndXattr { name, plan: &plan });
                if self.agree(operation, expected, changed)?.is_some() {
                    let node = self.model.node_mut(id);
                    node.mode = with(node.mode);
                    match value {
                        Some(value) => node.xattrs.insert(name.clone(), value.into()),
                        None => node.xattrs.remove(name),
                    };
                    touch(touched, id, false);
                }
                Ok(())
            }
            Operation::InPlace { what } => {
                let Some(id) = self.find(what).filter(|id| is_regular(self.model.node(*id).mode)) else {
                    return Ok(());
                };
                if self.agree(operation, Ok(()), fs.set_flags(id, InodeFlags::NODATACOW))?.is_some() {
                    if let Body::File(content) = &mut self.model.node_mut(id).body
                        && content.size() == 0
                    {
                        content.set_in_place();
                    }
                    touch(touched, id, false);
                }
                Ok(())
            }
            Operation::Link { what, path } => {
                let (Some(id), Some((dir, name))) = (self.find(what), self.model.place(path)) else { return Ok(()) };
                let expected = self.model.can_link(id, dir, name);
                if self.agree(operation, expected, fs.link(id, dir, name))?.is_some() {
                    self.model.node_mut(id).nlink += 1;
                    self.model.add_entry(dir, name, id);
                    touch(touched, id, false);
                    touch(touched, dir, true);
                }
                Ok(())
            }
            Operation::Unlink { path } | Operation::Rmdir { path } => {
                let Some((dir, name)) = self.model.place(path) else { return Ok(()) };
                let directory = matches!(operation, Operation::Rmdir { .. });
                let expected = self.model.can_remove(dir, name, directory);
                let removed = if directory { fs.rmdir(dir, name) } else { fs.unlink(dir, name) };
                if let Some((id, ())) = self.agree(operation, expected, removed)? {
                    self.model.remove(dir, name, id, touched);
                    self.drop_unreferenced(id);
                }
                Ok(())
            }
            Operation::Rename { from, to, flags } => {
                let (Some(from), Some(to)) = (self.model.place(from), self.model.place(to)) else { return Ok(()) };
                let expected = self.model.can_rename(from, to, *flags);
                let renamed = fs.rename(from.0, from.1, to.0, to.1, *flags);
                let Some((Some(_), ())) = self.agree(operation, expected, renamed)? else { return Ok(()) };
                let target = self.model.entry(to.0, to.1);
                let whiteout = if flags.whiteout {
                    let id = fs.lookup(from.0, from.1).map_err(|error| format!("no whiteout: {error}"))?;
                    fs.forget(id, 1);
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
            Operation::Fsync { what, data_only } => {
                let Some(id) = self.find(what) else { return Ok(()) };
                self.agree(operation, Ok(()), make_durable(&fs, id, *data_only)).map(drop)
            }
            Operation::Sync => self.agree(operation, Ok(()), fs.sync()).map(drop),
            Operation::Look if self.tolerance.faults => Ok(()),
            Operation::Look => compare(&fs, &self.model, Compare { times: self.times, nameless: true }),
            Operation::Remount => Err("a worker can't mount".into()),
        }
    }

    fn create(
        &mut self,
        operation: &Operation,
        dir: InodeId,
        name: &[u8],
        touched: &mut Touched,
    ) -> Result<(), String> {
        let Operation::Create { mode, owner, rdev, target, xattr, open, .. } = operation else { return Ok(()) };
        let value: Arc<[u8]> = b"born with it".as_slice().into();
        let xattrs = if *xattr { vec![(b"user.born".to_vec(), value.to_vec())] } else { Vec::new() };
        let new =
            NewInode { mode: *mode, uid: owner.0, gid: owner.1, rdev: *rdev, symlink_target: target.0.clone(), xattrs };
        let expected = self.model.can_add(dir, name);
        let made = self.fs.create(dir, name, &new);
        let Some(((), id)) = self.agree(operation, expected, made)? else { return Ok(()) };
        let body = match mode & 0o170_000 {
            0o040_000 => dir_body(dir),
            0o120_000 => Body::Symlink(target.0.clone()),
            _ if is_regular(*mode) => Body::File(Content::default()),
            _ => Body::Special(*rdev),
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
            self.fs.forget(id, 1);
        }
        Ok(())
    }
}

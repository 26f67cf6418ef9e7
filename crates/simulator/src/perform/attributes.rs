//! Operations on attributes, xattrs and flags.

use ubtrfs::{Errno, ModeAndXattr, SetAttributes, TimeChange, XattrMode};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::max_item_size;

use super::Worker;
use crate::model::{Touched, is_regular, touch};
use crate::operation::Name;
use crate::{Body, Operation, Random};

/// Bytes of an xattr's item besides name and value.
const XATTR_HEADER: usize = 30;

impl Worker {
    pub(super) fn set_attributes(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Attributes { what, mode, uid, gid, mtime } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let mtime = mtime.map(TimeChange::To);
        let changes = SetAttributes { mode: *mode, uid: *uid, gid: *gid, mtime, ..SetAttributes::default() };
        let changed = self.fs.inodes().set_attributes(id, &changes);
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

    pub(super) fn set_xattr(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::SetXattr { what, name: Name(name), len, fill, mode } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let exists = self.model.node(id).xattrs.contains_key(name);
        let most = max_item_size(self.fs.volume().node_size() as usize);
        let expected = match mode {
            _ if XATTR_HEADER + name.len() + len > most => Err(Errno::NOSPC),
            XattrMode::Create if exists => Err(Errno::EXIST),
            XattrMode::Replace if !exists => Err(Errno::NODATA),
            _ => Ok(()),
        };
        let value = Random::noise(*fill, *len);
        if self.agree(operation, expected, self.fs.inodes().set_xattr(id, name, &value, *mode))?.is_some() {
            self.model.node_mut(id).xattrs.insert(name.clone(), value.into());
            touch(touched, id, false);
        }
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::RemoveXattr { what, name: Name(name) } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let expected = if self.model.node(id).xattrs.contains_key(name) { Ok(()) } else { Err(Errno::NODATA) };
        if self.agree(operation, expected, self.fs.inodes().remove_xattr(id, name))?.is_some() {
            self.model.node_mut(id).xattrs.remove(name);
            touch(touched, id, false);
        }
        Ok(())
    }

    pub(super) fn set_mode_and_xattr(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::ModeAndXattr { what, mode, name: Name(name), len, fill } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let most = max_item_size(self.fs.volume().node_size() as usize);
        let is_too_long = len.is_some_and(|len| XATTR_HEADER + name.len() + len > most);
        let expected = if is_too_long { Err(Errno::NOSPC) } else { Ok(()) };
        let value = len.map(|len| Random::noise(*fill, len));
        let with = |old: u32| old & !0o7777 | mode & 0o7777;
        let plan = |old: u32, _: Option<&[u8]>| Ok((with(old), value.clone()));
        let changed =
            self.fs.inodes().set_attributes_with(id, &SetAttributes::default(), &ModeAndXattr { name, plan: &plan });
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

    pub(super) fn set_nodatacow(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::NoDataCow { what } = operation else { return Ok(()) };
        let Some(id) = self.find(what).filter(|id| is_regular(self.model.node(*id).mode)) else {
            return Ok(());
        };
        let set = self.fs.inodes().set_flags(id, InodeFlags::NODATACOW);
        // A file that did not compress may get the flag for that at any time, and refuses the other
        // flag.
        if set.is_err() && self.fs.inodes().flags(id).is_ok_and(|flags| flags & InodeFlags::NOCOMPRESS != 0) {
            return Ok(());
        }
        if self.agree(operation, Ok(()), set)?.is_some() {
            if let Body::File(content) = &mut self.model.node_mut(id).body
                && content.size() == 0
            {
                content.set_nodatacow();
            }
            touch(touched, id, false);
        }
        Ok(())
    }
}

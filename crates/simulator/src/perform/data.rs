//! Operations on the content of files.

use ubtrfs::{Defragmentation, Errno, InodeId, SetAttributes, WriteAt};

use super::Worker;
use crate::model::{Touched, touch};
use crate::{Body, Operation, Random};

impl Worker {
    pub(super) fn write(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Write { what, at, len, fill, kill_privileges } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let node = self.model.node(id);
        let expected = match &node.body {
            _ if *len == 0 => Ok(0),
            Body::File(content) => Ok(content.size()),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        };
        let data = Random::data(*fill, *len);
        let written = self.fs.files().write(id, *at, &data, *kill_privileges);
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

    pub(super) fn truncate(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Truncate { what, size } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let expected = match &self.model.node(id).body {
            Body::File(content) => Ok(content.size()),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        };
        let changes = SetAttributes { size: Some(*size), ..SetAttributes::default() };
        if self.agree(operation, expected, self.fs.inodes().set_attributes(id, &changes))?.is_some() {
            if let Body::File(content) = &mut self.model.node_mut(id).body {
                content.resize(*size);
            }
            // The times change even if the size stays, as for a file that is opened with O_TRUNC.
            touch(touched, id, true);
        } else if let (true, Ok(found)) = (self.tolerance.faults, self.fs.inodes().attributes(id)) {
            // The truncation may have failed after some of its steps.
            if let Body::File(content) = &mut self.model.node_mut(id).body
                && (*size..content.size()).contains(&found.size)
            {
                content.resize(found.size);
                touch(touched, id, true);
            }
        }
        Ok(())
    }

    pub(super) fn punch(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Punch { what, offset, len } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let expected = match &self.model.node(id).body {
            _ if *len == 0 => Err(Errno::INVAL),
            Body::File(content) => Ok(content.size()),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::NODEV),
        };
        let Some((size, ())) = self.agree(operation, expected, self.fs.files().punch_hole(id, *offset, *len))? else {
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

    pub(super) fn allocate(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Allocate { what, offset, len, zero, keep_size } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let expected = match &self.model.node(id).body {
            _ if *len == 0 => Err(Errno::INVAL),
            Body::File(_) => Ok(()),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::NODEV),
        };
        let done = if *zero {
            self.fs.files().zero_range(id, *offset, *len, *keep_size)
        } else {
            self.fs.files().allocate(id, *offset, *len, *keep_size)
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

    pub(super) fn clone_range(&mut self, operation: &Operation, touched: &mut Touched) -> Result<(), String> {
        let Operation::Clone { from, from_offset, to, to_offset, len } = operation else { return Ok(()) };
        let (Some(source), Some(target)) = (self.find(from), self.find(to)) else { return Ok(()) };
        let expected = self.bytes_to_clone(source, *from_offset, target, *to_offset, *len);
        let done = self.fs.files().clone_range(source, *from_offset, target, *to_offset, *len);
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

    pub(super) fn defragment(&mut self, operation: &Operation) -> Result<(), String> {
        let Operation::Defragment { what, compression, unshare } = operation else { return Ok(()) };
        let Some(id) = self.find(what) else { return Ok(()) };
        let expected = match &self.model.node(id).body {
            Body::File(_) => Ok(()),
            _ => Err(Errno::INVAL),
        };
        let how = Defragmentation { compression: *compression, unshare: *unshare, ..Defragmentation::default() };
        self.agree(operation, expected, self.fs.files().defragment(id, &how)).map(|_| ())
    }

    pub(super) fn empty_block_group(&mut self, operation: &Operation) -> Result<(), String> {
        let Operation::EmptyBlockGroup { number } = operation else { return Ok(()) };
        let chunks = self.fs.volume().chunk_map().all();
        let Some((start, _)) = chunks.get(number % chunks.len().max(1)) else { return Ok(()) };
        let result = self.fs.relocator().empty_block_group(*start, &|| true).map(drop);
        // There may be no space for the content of the group, and an empty group is removed by
        // itself.
        let result = result.or_else(|error| match error.errno() {
            Errno::NOSPC | Errno::NOENT => Ok(()),
            _ => Err(error),
        });
        self.agree(operation, Ok(()), result).map(drop)
    }

    /// Returns how many bytes can be shared.
    fn bytes_to_clone(&self, source: InodeId, from: u64, target: InodeId, to: u64, len: u64) -> Result<u64, Errno> {
        let sector = u64::from(self.fs.volume().sector_size());
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
        if self.model.node(source).is_nodatacow() != self.model.node(target).is_nodatacow() {
            return Err(Errno::OPNOTSUPP);
        }
        let ends_both = from + len == source_size && to + len >= target_size;
        let len = if ends_both { len } else { len / sector * sector };
        let aligned = from.is_multiple_of(sector) && to.is_multiple_of(sector);
        if aligned && len > 0 { Ok(len) } else { Err(Errno::OPNOTSUPP) }
    }
}

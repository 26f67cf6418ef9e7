//! Operations on the bytes of files.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, IFlags, OFlags};
use rustix::io::Errno;

use super::{Step, Workload, errno};
use crate::content::{BLOCK, Content};
use crate::mapped;
use crate::model::{Mtime, NodeId};

/// An offset at which files sometimes continue: many TiB from the beginning.
const FAR: u64 = 6 << 40;

impl Workload {
    /// Returns a file, by one of its names or at times one that is open already.
    fn random_file(&mut self, flags: OFlags) -> Result<Option<(NodeId, File)>, String> {
        if !self.open.is_empty() && flags.is_empty() && self.rng.one_in(6) {
            let index = self.rng.index(self.open.len());
            let (id, file) = &self.open[index];
            let file = file.try_clone().map_err(|error| format!("dup: {error}"))?;
            let id = *id;
            self.note(&format!("the open file {id}:"));
            return Ok(Some((id, file)));
        }
        let Some(entry) = self.random_entry(|node| node.content().is_some()) else {
            return Ok(None);
        };
        let (path, shown) = self.place(entry.dir, &entry.name);
        let opened = File::options().read(true).write(true).custom_flags(flags.bits() as i32).open(&path);
        self.note(&format!("open {shown} {flags:?}"));
        match opened {
            Ok(file) => Ok(Some((entry.node, file))),
            Err(error) if flags.contains(OFlags::DIRECT) && errno(&error) == Errno::INVAL => {
                self.unsupported.insert("O_DIRECT");
                Ok(None)
            }
            Err(error) => Err(format!("open: {error}")),
        }
    }

    fn size(&self, id: NodeId) -> u64 {
        self.model.node(id).content().map_or(0, Content::size)
    }

    /// Returns a length that is small, near the limit of inline data, of whole blocks, or any
    /// other.
    fn random_length(&mut self) -> u64 {
        match self.rng.below(10) {
            0..=2 => 1 + self.rng.below(300),
            3 => 2040 + self.rng.below(16),
            4 => 4094 + self.rng.below(5),
            5 | 6 => BLOCK * (1 + self.rng.below(16)),
            7 | 8 => 1 + self.rng.below(100_000),
            _ => 1 + self.rng.below(1 << 20),
        }
    }

    /// Returns an offset in or after a file of `size` bytes.
    fn random_offset(&mut self, size: u64) -> u64 {
        match self.rng.below(16) {
            0..=2 => 0,
            3..=5 => size,
            6..=9 => self.rng.below(size + 1),
            10..=12 => self.rng.below(size + 1) / BLOCK * BLOCK,
            13 => size + self.rng.below(200_000),
            14 => size / BLOCK * BLOCK + BLOCK * self.rng.below(64),
            _ if self.rng.one_in(4) => FAR + self.rng.below(1 << 30),
            _ => size + self.rng.below(5000),
        }
    }

    pub(super) fn write(&mut self) -> Step {
        match self.rng.below(8) {
            0 => self.write_direct(),
            1 => self.append(),
            _ => {
                let flags = match self.rng.below(30) {
                    0 => OFlags::DSYNC,
                    1 => OFlags::SYNC,
                    2 => OFlags::TRUNC,
                    _ => OFlags::empty(),
                };
                let Some((id, file)) = self.random_file(flags)? else {
                    return Ok(());
                };
                if flags == OFlags::TRUNC {
                    self.model.content_mut(id).truncate(0);
                    self.modified(id);
                }
                for _ in 0..=self.rng.below(3) {
                    self.write_to(id, &file)?;
                }
                if self.rng.one_in(16) {
                    self.note("fsync");
                    file.sync_all().map_err(|error| format!("fsync: {error}"))?;
                }
                Ok(())
            }
        }
    }

    /// Performs one write to an open file.
    pub(super) fn write_to(&mut self, id: NodeId, file: &File) -> Step {
        let offset = {
            let size = self.size(id);
            self.random_offset(size)
        };
        let length = self.random_length();
        let bytes = self.rng.bytes(length as usize);
        self.note(&format!("write {length} bytes at {offset}"));
        file.write_all_at(&bytes, offset).map_err(|error| format!("write: {error}"))?;
        self.model.content_mut(id).write(offset, &bytes);
        self.modified(id);
        Ok(())
    }

    fn append(&mut self) -> Step {
        let Some((id, mut file)) = self.random_file(OFlags::APPEND)? else {
            return Ok(());
        };
        let length = self.random_length();
        let bytes = self.rng.bytes(length as usize);
        self.note(&format!("append {length} bytes"));
        file.write_all(&bytes).map_err(|error| format!("append: {error}"))?;
        let end = self.size(id);
        self.model.content_mut(id).write(end, &bytes);
        self.modified(id);
        Ok(())
    }

    fn write_direct(&mut self) -> Step {
        let Some((id, file)) = self.random_file(OFlags::DIRECT)? else {
            return Ok(());
        };
        let offset = {
            let size = self.size(id);
            self.random_offset(size) / BLOCK * BLOCK
        };
        let length = BLOCK * (1 + self.rng.below(32));
        let bytes = self.rng.bytes(length as usize);
        self.note(&format!("direct write of {length} bytes at {offset}"));
        // The memory of a direct write must have the alignment of its offset in the file.
        let mut memory = vec![0; bytes.len() + BLOCK as usize];
        let start = memory.as_ptr().align_offset(BLOCK as usize);
        let aligned = &mut memory[start..start + bytes.len()];
        aligned.copy_from_slice(&bytes);
        file.write_all_at(aligned, offset).map_err(|error| format!("direct write: {error}"))?;
        self.model.content_mut(id).write(offset, &bytes);
        self.modified(id);
        aligned.fill(0);
        let got = file.read_at(aligned, offset).map_err(|error| format!("direct read: {error}"))?;
        if aligned[..got] != bytes[..] {
            return Err(format!("a direct read of {length} bytes at {offset} gave something else"));
        }
        Ok(())
    }

    pub(super) fn map(&mut self) -> Step {
        let Some((id, file)) = self.random_file(OFlags::empty())? else {
            return Ok(());
        };
        let size = self.size(id);
        if size == 0 {
            return Ok(());
        }
        let offset = self.rng.below(size);
        let length = (1 + self.rng.below(50_000)).min(size - offset);
        let bytes = self.rng.bytes(length as usize);
        self.note(&format!("mapped write of {length} bytes at {offset}"));
        let before = mapped::exchange(&file, offset, &bytes).map_err(|e| format!("map: {e}"))?;
        let content = self.model.content_mut(id);
        if before != content.read(offset, length) {
            return Err("the mapping showed something else before it was written".to_owned());
        }
        content.write(offset, &bytes);
        self.modified(id);
        Ok(())
    }

    pub(super) fn truncate(&mut self) -> Step {
        let Some((id, file)) = self.random_file(OFlags::empty())? else {
            return Ok(());
        };
        let size = self.size(id);
        let new = match self.rng.below(4) {
            0 => 0,
            1 => self.random_offset(size),
            _ => self.rng.below(size + 1),
        };
        self.set_size(id, &file, new)
    }

    /// Truncates a file to nothing, which frees space.
    pub(super) fn shrink(&mut self) -> Step {
        match self.random_file(OFlags::empty())? {
            Some((id, file)) => self.set_size(id, &file, 0),
            None => Ok(()),
        }
    }

    fn set_size(&mut self, id: NodeId, file: &File, size: u64) -> Step {
        self.note(&format!("truncate to {size}"));
        file.set_len(size).map_err(|error| format!("truncate: {error}"))?;
        self.model.content_mut(id).truncate(size);
        // File systems differ in whether truncating a file to its present size changes its time.
        self.model.node_mut(id).mtime = Mtime::Unknown;
        Ok(())
    }

    pub(super) fn fallocate(&mut self) -> Step {
        let Some((id, file)) = self.random_file(OFlags::empty())? else {
            return Ok(());
        };
        let size = self.size(id);
        let offset = self.random_offset(size).min(size + (1 << 20));
        let length = self.random_length();
        let (what, flags) = match self.rng.below(5) {
            0 | 1 => ("punch hole", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            2 => ("zero range", FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            3 => ("preallocate beyond the end", FallocateFlags::KEEP_SIZE),
            _ => ("preallocate", FallocateFlags::empty()),
        };
        self.note(&format!("{what}: {length} bytes at {offset}"));
        let result = rustix::fs::fallocate(&file, flags, offset, length);
        if !self.supported(what, result)? {
            return Ok(());
        }
        let content = self.model.content_mut(id);
        match what {
            "punch hole" | "zero range" => content.zero(offset, length),
            "preallocate" if offset + length > size => content.truncate(offset + length),
            _ => {}
        }
        self.model.node_mut(id).mtime = Mtime::Unknown;
        Ok(())
    }

    /// Copies a range from one file to another, or within a file, by a call that lets the file
    /// system share extents.
    pub(super) fn copy(&mut self) -> Step {
        let (Some((from, source)), Some((to, target))) =
            (self.random_file(OFlags::empty())?, self.random_file(OFlags::empty())?)
        else {
            return Ok(());
        };
        let (size, target_size) = (self.size(from), self.size(to));
        let block = |number: u64| number / BLOCK * BLOCK;
        let aligned = !self.rng.one_in(4);
        let (mut offset, mut to_offset) = (self.rng.below(size.min(1 << 20) + 1), self.random_offset(target_size));
        if aligned {
            (offset, to_offset) = (block(offset), block(to_offset));
        }
        let length = (if aligned { 1 << 20 } else { self.random_length() }).min(size.saturating_sub(offset));
        if from == to && offset < to_offset + length && to_offset < offset + length {
            return Ok(());
        }
        self.note(&format!("copy {length} bytes from {offset} to {to_offset}"));
        let bytes = self.model.node(from).content().map(|content| content.read(offset, length)).unwrap_or_default();
        let place = to_offset;
        let mut left = length as usize;
        while left > 0 {
            let result = rustix::fs::copy_file_range(&source, Some(&mut offset), &target, Some(&mut to_offset), left);
            match result {
                Ok(0) => return Err(format!("copy_file_range: nothing, with {left} bytes left")),
                Ok(copied) => left -= copied,
                Err(error) => return Err(format!("copy_file_range: {error}")),
            }
        }
        if length > 0 {
            self.model.content_mut(to).write(place, &bytes);
            self.modified(to);
        }
        Ok(())
    }

    /// Sets an empty file to be written in place from now on.
    pub(super) fn write_in_place(&mut self, file: &File) -> Step {
        self.note("chattr +C");
        match rustix::fs::ioctl_setflags(file, IFlags::NOCOW) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => {
                self.unsupported.insert("chattr +C");
                Ok(())
            }
            Err(error) => Err(format!("chattr: {error}")),
        }
    }

    /// Reads an open file, whose names may all be removed.
    pub(super) fn use_open(&mut self) -> Step {
        if self.open.is_empty() {
            return Ok(());
        }
        let index = self.rng.index(self.open.len());
        let (id, file) = &self.open[index];
        let (id, file) = (*id, file.try_clone().map_err(|error| format!("dup: {error}"))?);
        self.note(&format!("fstat and write the open file {id}"));
        let meta = file.metadata().map_err(|error| format!("fstat: {error}"))?;
        let node = self.model.node(id);
        let wanted = (node.nlink, self.size(id), node.mode, node.uid);
        let got = (meta.nlink(), meta.len(), meta.mode() & 0o7777, meta.uid());
        if got != wanted {
            return Err(format!("fstat of an open file: {got:?} instead of {wanted:?} (links, size, mode, owner)"));
        }
        self.write_to(id, &file)?;
        if self.rng.one_in(3) {
            self.note("close it");
            drop(file);
            self.close(index);
        }
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Step {
        let dir = self.random_dir();
        let path = self.place(dir, b".").0;
        let file = File::open(&path).map_err(|error| format!("open a directory: {error}"))?;
        if self.rng.one_in(3) {
            self.note("syncfs");
            rustix::fs::syncfs(&file).map_err(|error| format!("syncfs: {error}"))
        } else {
            self.note("fsync a directory");
            file.sync_all().map_err(|error| format!("fsync: {error}"))
        }
    }

    /// Notes that file `id` was written: its time is new, and a writer who is not root clears the
    /// set-id bits.
    fn modified(&mut self, id: NodeId) {
        self.touch(id);
        if !self.root {
            self.drop_set_id(id);
        }
    }
}

//! Operations on contents.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, OFlags};

use super::{MAX_BLOCKS, REQUEST_BLOCKS, Writer};
use crate::promises::blocks::{HEAD, block};
use crate::promises::{BLOCK, Name};

impl Writer<'_> {
    /// Writes `count` blocks from block `first` on. The last one is `last` bytes long, or as long
    /// as the existing one.
    pub(super) fn write(
        &mut self,
        number: u64,
        file: &File,
        first: usize,
        count: usize,
        last: u64,
    ) -> std::io::Result<()> {
        let id = self.promises.inode(number).id;
        let mut done = 0;
        while done < count {
            let (from, piece) = (first + done, (count - done).min(REQUEST_BLOCKS));
            done += piece;
            let state = self.promises.state(number);
            let end = from + piece;
            let there = state.size.saturating_sub((end as u64 - 1) * BLOCK).min(BLOCK);
            let last = if done < count { BLOCK } else { last.clamp(HEAD, BLOCK).max(there) };
            let state = state.clone();
            let versions: Vec<u32> = (0..piece).map(|_| self.promises.new_version()).collect();
            let mut bytes = Vec::with_capacity(piece * BLOCK as usize);
            for (which, version) in (from as u32..).zip(&versions) {
                bytes.extend(block(id, which, *version));
            }
            bytes.truncate((piece as u64 - 1) as usize * BLOCK as usize + last as usize);
            let what = format!("write inode {number}, {} bytes at block {from}: versions {versions:?}", bytes.len());
            let sequence = self.promises.begin(&what);
            self.promises.changing(sequence, number, state.written(from, &versions, last));
            file.write_all_at(&bytes, from as u64 * BLOCK)?;
        }
        Ok(())
    }

    /// Writes a length that is often small enough to be inline.
    pub(super) fn fill(&mut self, number: u64, file: &File) -> std::io::Result<()> {
        let (count, last) = match self.rng.below(4) {
            0 => (1, HEAD + self.rng.below(2000)),
            1 => (1 + self.rng.below(MAX_BLOCKS as u64), BLOCK),
            2 => (1 + self.rng.below(4), self.rng.below(BLOCK)),
            _ => return Ok(()),
        };
        self.write(number, file, 0, count as usize, last)
    }

    pub(super) fn create(&mut self) -> std::io::Result<()> {
        let name = self.some_name();
        if self.promises.holder(&name).is_some() {
            return self.overwrite(false);
        }
        let (number, file) = self.create_at(&name)?;
        self.fill(number, &file)?;
        if self.rng.one_in(3) {
            self.hold(number, file);
        }
        Ok(())
    }

    pub(super) fn create_at(&mut self, name: &Name) -> std::io::Result<(u64, File)> {
        let sequence = self.promises.begin(&format!("create {}", self.shown(name)));
        self.promises.creating(sequence, name);
        let file = File::options().read(true).write(true).create_new(true).open(self.path(name))?;
        let meta = file.metadata()?;
        self.promises.created(sequence, Some(name), meta.ino(), false, meta.mode() & 0o7777);
        Ok((meta.ino(), file))
    }

    pub(super) fn overwrite(&mut self, at_once: bool) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let blocks = self.promises.state(number).versions.len() as u64;
        let first = self.rng.below(blocks);
        let count = 1 + self.rng.below((blocks - first).min(8));
        if at_once && let Some(name) = self.promises.inode(number).names.now().first() {
            let flag = if self.rng.one_in(2) { OFlags::DSYNC } else { OFlags::SYNC };
            let file = File::options().write(true).custom_flags(flag.bits() as i32).open(self.path(name))?;
            let count = count.min(REQUEST_BLOCKS as u64);
            self.write(number, &file, first as usize, count as usize, BLOCK)?;
            self.promises.synced(self.promises.sequence, number);
            return Ok(());
        }
        self.with_file(number, |this, file| this.write(number, file, first as usize, count as usize, BLOCK))
    }

    pub(super) fn append(&mut self) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let state = self.promises.state(number);
        let first = (state.size / BLOCK) as usize;
        let most = if self.rng.one_in(3) { 16 } else { 2 };
        let count = 1 + self.rng.below(most) as usize;
        let last = if self.rng.one_in(2) { BLOCK } else { self.rng.below(BLOCK) };
        if first + count > MAX_BLOCKS {
            return self.truncate();
        }
        self.with_file(number, |this, file| this.write(number, file, first, count, last))
    }

    pub(super) fn truncate(&mut self) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let old = self.promises.state(number).clone();
        let blocks = self.rng.below(old.versions.len() as u64 + 1);
        let grows = old.size.is_multiple_of(BLOCK) && self.rng.one_in(3);
        let size = match self.rng.below(3) {
            _ if grows => (old.size + 1 + self.rng.below(8 * BLOCK)).min(MAX_BLOCKS as u64 * BLOCK),
            0 => 0,
            1 => (blocks * BLOCK).min(old.size),
            _ => (blocks * BLOCK + HEAD + self.rng.below(BLOCK - HEAD)).min(old.size),
        };
        // A last block must be long enough to identify itself.
        let size = if (1..HEAD).contains(&(size % BLOCK)) { size / BLOCK * BLOCK } else { size };
        self.with_file(number, |this, file| {
            let sequence = this.promises.begin(&format!("truncate inode {number} to {size}"));
            this.promises.changing(sequence, number, old.resized(size));
            file.set_len(size)
        })
    }

    pub(super) fn punch(&mut self) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let mut state = self.promises.state(number).clone();
        if state.versions.is_empty() {
            return Ok(());
        }
        let first = self.rng.index(state.versions.len());
        let count = 1 + self.rng.index(state.versions.len() - first);
        state.versions[first..first + count].fill(0);
        self.with_file(number, |this, file| {
            let sequence = this.promises.begin(&format!("punch inode {number}, {count} blocks from block {first} on"));
            this.promises.changing(sequence, number, state);
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(file, mode, first as u64 * BLOCK, count as u64 * BLOCK)?)
        })
    }
}

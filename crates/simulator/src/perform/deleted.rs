//! Files and a directory of a deleted subvolume that stay open for a while: they can be used as
//! before, whatever happens meanwhile (invariant 50). A crash leaves nothing of them, except for
//! what was written in place if the deletion is not durable.

use ubtrfs::{Errno, InodeId, NewInode, WriteAt};
use ubtrfs_format::{Ino, TreeId};

use super::{OpenOfDeleted, Worker, make_durable};
use crate::{Body, Content, Random};

/// How many files of a subvolume stay open.
const FILES: usize = 3;
/// The number of operations during which they stay open at most.
const MAX: u64 = 24;

impl OpenOfDeleted {
    fn inodes(&self) -> impl Iterator<Item = InodeId> {
        self.files.iter().map(|(id, _)| *id).chain(self.dir)
    }
}

impl Worker {
    /// Opens some inodes of the subvolume with this name, if there is one, since it may be about to
    /// be deleted.
    pub(super) fn open_some(&self, dir: InodeId, name: &[u8]) -> Option<OpenOfDeleted> {
        let root = self.model.entry(dir, name).filter(|id| self.model.is_subvolume(*id))?;
        let subvolume = root.subvolume;
        let first = InodeId::new(subvolume, Ino::ROOT_DIR);
        let inside = || self.model.nodes.range(first..).take_while(move |(id, _)| id.subvolume == subvolume);
        let files = inside().filter_map(|(id, node)| match &node.body {
            Body::File(content) if node.nlink > 0 => Some((*id, content.clone())),
            _ => None,
        });
        let dir = inside().find(|(id, node)| node.is_dir() && node.nlink > 0 && **id != root && id.ino.0 > root.ino.0);
        let open = OpenOfDeleted {
            subvolume,
            read_only: self.model.read_only.contains(&subvolume),
            files: files.take(FILES).collect(),
            dir: dir.map(|(id, _)| *id),
            left: 1 + (inside().count() as u64 * 7 + subvolume.0) % MAX,
        };
        open.inodes().for_each(|id| self.fs.references().reference(id));
        Some(open)
    }

    /// Closes what [`Self::open_some`] has opened.
    pub(super) fn close_some(&self, open: Option<&OpenOfDeleted>) {
        open.into_iter().flat_map(OpenOfDeleted::inodes).for_each(|id| self.fs.references().forget(id, 1));
    }

    /// Keeps these inodes of a deleted subvolume open, and closes all others of it.
    pub(super) fn keep_open(&mut self, gone: TreeId, open: Option<OpenOfDeleted>) -> Result<(), String> {
        let open = open.filter(|open| open.subvolume == gone && open.inodes().next().is_some());
        let kept: Vec<_> = open.iter().flat_map(OpenOfDeleted::inodes).collect();
        for id in self.fs.references().referenced().into_iter().filter(|id| id.subvolume == gone && !kept.contains(id))
        {
            self.fs.references().forget(id, u64::MAX);
        }
        match open {
            Some(open) => self.deleted.push(open),
            None => self.is_released(gone)?,
        }
        Ok(())
    }

    /// Returns what was written in place to files of deleted subvolumes since the last call: a
    /// crash before the deletion is durable may leave pages of it.
    pub(crate) fn take_written_in_place(&mut self) -> Vec<(InodeId, Content)> {
        std::mem::take(&mut self.written_in_place)
    }

    /// Uses all open inodes of deleted subvolumes.
    pub(super) fn use_deleted(&mut self) -> Result<(), String> {
        for mut open in std::mem::take(&mut self.deleted) {
            open.left -= 1;
            let subvolume = open.subvolume;
            let used = match self.use_open(&mut open) {
                Ok(used) => used?,
                Err(error) if self.tolerates_any(error.errno()) => false,
                Err(error) => return Err(format!("of the deleted subvolume {subvolume:?}: {}", error.chain())),
            };
            if open.left > 0 && used {
                self.deleted.push(open);
                continue;
            }
            open.inodes().for_each(|id| self.fs.references().forget(id, u64::MAX));
            self.is_released(subvolume)?;
        }
        Ok(())
    }

    fn tolerates_any(&self, errno: Errno) -> bool {
        (self.tolerance.no_space && errno == Errno::NOSPC)
            || (self.tolerance.faults && matches!(errno, Errno::IO | Errno::ROFS | Errno::NOSPC))
    }

    /// Changes and reads the open inodes. Returns whether all of it was done, or a sentence if they
    /// have the wrong content.
    fn use_open(&mut self, open: &mut OpenOfDeleted) -> ubtrfs::Result<Result<bool, String>> {
        let turn = open.left;
        for (number, (id, content)) in open.files.iter_mut().enumerate() {
            if !open.read_only {
                let (offset, len) = ((turn * 7919 + number as u64 * 4096) % 60_000, 1 + (turn * 1031 % 9000) as usize);
                let data = Random::data(turn, len);
                self.fs.files().write(*id, WriteAt::Offset(offset), &data, false)?;
                content.write(offset, &data);
                if content.is_nodatacow() {
                    self.written_in_place.push((*id, content.clone()));
                }
            }
            let size = content.size();
            let found = self.fs.files().read(*id, 0, size as usize + 1)?;
            // A device that fails may lose data that was not durable.
            if found != content.read(0, size as usize) && !self.tolerance.faults {
                return Ok(Err(format!("{id:?} of a deleted subvolume has other content")));
            }
            if turn.is_multiple_of(3) {
                make_durable(&self.fs, *id, turn.is_multiple_of(2))?;
            }
        }
        if let Some(dir) = open.dir.filter(|_| !open.read_only) {
            let name = format!("of {turn}").into_bytes();
            let made =
                self.fs.directories().create(dir, &name, &NewInode { mode: 0o100_600, ..NewInode::default() })?;
            let written = self.fs.files().write(made, WriteAt::Offset(0), &Random::data(turn, 5000), false);
            self.fs.references().forget(made, 1);
            written?;
            if turn.is_multiple_of(2) {
                self.fs.directories().unlink(dir, &name)?;
            } else {
                self.fs.durability().fsync(dir)?;
            }
        }
        Ok(Ok(true))
    }

    /// Checks that a deleted subvolume whose inodes are all closed is not shown any more.
    fn is_released(&self, gone: TreeId) -> Result<(), String> {
        match self.fs.inodes().attributes(InodeId::new(gone, Ino::ROOT_DIR)) {
            Err(error) if error.errno() == Errno::STALE => Ok(()),
            other => Err(format!("of what was deleted there is still {other:?}")),
        }
    }
}

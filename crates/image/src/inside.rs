//! Files of a volume, as what is copied from.

use std::path::PathBuf;
use std::sync::Arc;

use ubtrfs::format::DirIndex;
use ubtrfs::format::items::FileType;
use ubtrfs::{Errno, Filesystem, InodeId};

use crate::error::{Result, inside};
use crate::source::{Child, Description, Source, TakeData};

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// Entries that are listed at once.
const BATCH: usize = 1024;

/// Files of a volume.
#[derive(Clone, Debug)]
pub struct VolumeFiles {
    fs: Arc<Filesystem>,
    /// What errors are about.
    path: PathBuf,
}

impl VolumeFiles {
    /// Files of a volume, the uppermost of them at this path.
    pub fn new(fs: &Arc<Filesystem>, path: impl Into<PathBuf>) -> Self {
        Self { fs: Arc::clone(fs), path: path.into() }
    }

    /// The names in a directory, in their order, and what they refer to.
    pub(crate) fn entries(fs: &Filesystem, dir: InodeId) -> ubtrfs::Result<Vec<Child<InodeId>>> {
        let last = fs.last_index(dir)?;
        let (mut all, mut after) = (Vec::new(), DirIndex(0));
        loop {
            let batch = fs.list(dir, after, last, BATCH)?;
            let Some(end) = batch.last() else { break };
            after = end.index;
            all.extend(batch.into_iter().map(|entry| (entry.name, entry.inode)));
        }
        all.sort();
        Ok(all)
    }

    fn described(&self, id: InodeId) -> ubtrfs::Result<Description> {
        let found = self.fs.attributes(id)?;
        let target = if found.file_type == FileType::Symlink { self.fs.read_link(id)? } else { Vec::new() };
        let mut names = self.fs.list_xattrs(id)?;
        names.sort();
        let mut xattrs = Vec::new();
        for name in names {
            let value = self.fs.get_xattr(id, &name)?;
            xattrs.push((name, value));
        }
        let may_have_names = found.nlink > 1 && found.file_type != FileType::Directory;
        Ok(Description {
            mode: found.mode,
            uid: found.uid,
            gid: found.gid,
            rdev: found.rdev,
            size: if found.file_type == FileType::Regular { found.size } else { 0 },
            atime: found.atime,
            mtime: found.mtime,
            target,
            xattrs,
            identity: may_have_names.then_some((id.subvolume.0, id.ino.0)),
        })
    }

    fn copy_data(&self, id: InodeId, size: u64, take: &mut TakeData<'_>) -> Result<()> {
        let mut at = 0;
        while at < size {
            let start = match self.fs.seek_data(id, at) {
                Ok(start) => start,
                Err(error) if error.errno() == Errno::NXIO => break,
                Err(error) => return Err(inside(&self.path)(error)),
            };
            let end = self.fs.seek_hole(id, start).map_err(inside(&self.path))?.min(size);
            at = start;
            while at < end {
                let data = self.fs.read(id, at, (end - at).min(PIECE) as usize).map_err(inside(&self.path))?;
                if data.is_empty() {
                    return Ok(());
                }
                take(at, &data)?;
                at += data.len() as u64;
            }
            at = at.max(start + 1);
        }
        Ok(())
    }
}

impl Source for VolumeFiles {
    type Node = InodeId;

    fn describe(&self, node: &InodeId) -> Result<Description> {
        self.described(*node).map_err(inside(&self.path))
    }

    fn children(&self, node: &InodeId) -> Result<Vec<Child<InodeId>>> {
        Self::entries(&self.fs, *node).map_err(inside(&self.path))
    }

    fn read(&self, node: &InodeId, size: u64, take: &mut TakeData<'_>) -> Result<()> {
        self.copy_data(*node, size, take)
    }

    fn inode(&self, node: &InodeId) -> Option<InodeId> {
        Some(*node)
    }
}

//! Files of a volume as a source of copies.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ubtrfs::format::DirIndex;
use ubtrfs::format::items::{FileType, MAX_NAME_LEN};
use ubtrfs::{Errno, Filesystem, InodeId};

use crate::error::{Error, Result, shown};
use crate::linked_path::LinkedPath;
use crate::source::{Child, Description, Source, TakeData};

/// How many bytes are read at once.
const PIECE: u64 = 1 << 20;
/// How many entries are listed at once.
const BATCH: usize = 1024;

/// A file of a volume.
#[derive(Clone, Debug)]
pub struct VolumeFile {
    /// Its inode.
    pub id: InodeId,
    pub(crate) path: LinkedPath,
}

impl VolumeFile {
    /// The file where a walk begins.
    pub fn new(id: InodeId, path: impl Into<PathBuf>) -> Self {
        Self { id, path: LinkedPath::new(path) }
    }

    /// The file of this name in this directory.
    pub(crate) fn child(&self, id: InodeId, name: &[u8]) -> Self {
        Self { id, path: self.path.join(name) }
    }

    /// The path that led to it.
    pub fn path(&self) -> &LinkedPath {
        &self.path
    }

    /// An error about the file. Its path is composed only here.
    pub(crate) fn failed(&self, error: ubtrfs::Error) -> Error {
        Error::Inside { path: self.path.path(), source: error.into() }
    }
}

/// Files of a volume, for one walk through a tree of it.
///
/// Volumes are untrusted, and in a damaged one a directory may be within itself. So each directory
/// that has entries is listed only once, and a second time is an error. Thus every walk ends.
#[derive(Debug)]
pub struct VolumeFiles {
    fs: Arc<Filesystem>,
    listed: RefCell<HashSet<InodeId>>,
}

/// Looks up a name in a directory; `None` if it does not exist.
pub(crate) fn lookup(fs: &Filesystem, dir: InodeId, name: &[u8]) -> ubtrfs::Result<Option<(InodeId, FileType)>> {
    match fs.directories().lookup(dir, name) {
        Ok(id) => {
            let mode = fs.inodes().mode(id);
            fs.references().forget(id, 1);
            Ok(Some((id, FileType::from_mode(mode?))))
        }
        Err(error) if error.errno() == Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a file can have this name. Hostile volumes have other names, which would lead
/// elsewhere if files were made by them.
pub fn is_name(name: &[u8]) -> bool {
    let odd = name.is_empty() || name == b"." || name == b".." || name.len() > MAX_NAME_LEN;
    !odd && !name.contains(&b'/') && !name.contains(&0)
}

impl VolumeFiles {
    /// The files in a directory, for callers that write the names elsewhere. An error if one has a
    /// name that no file can have.
    pub(crate) fn named_children(&self, dir: &VolumeFile) -> Result<Vec<VolumeFile>> {
        let children = self.children(dir)?;
        if let Some((name, _)) = children.iter().find(|(name, _)| !is_name(name)) {
            let (name, path) = (name.escape_ascii(), shown(&dir.path.path()));
            return Err(Error::Refused(format!("{path} has the name '{name}' in it, which no file can have")));
        }
        Ok(children.into_iter().map(|(_, file)| file).collect())
    }

    /// Files of a volume.
    pub fn new(fs: &Arc<Filesystem>) -> Self {
        Self { fs: Arc::clone(fs), listed: RefCell::default() }
    }

    /// The names in a directory, in order, with their inodes.
    fn entries(fs: &Filesystem, dir: InodeId) -> ubtrfs::Result<Vec<Child<InodeId>>> {
        let last = fs.directories().last_index(dir)?;
        let (mut all, mut after) = (Vec::new(), DirIndex(0));
        loop {
            let batch = fs.directories().list(dir, after, last, BATCH)?;
            let Some(end) = batch.last() else { break };
            after = end.index;
            all.extend(batch.into_iter().map(|entry| (entry.name, entry.inode)));
        }
        all.sort();
        Ok(all)
    }

    fn described(&self, id: InodeId) -> ubtrfs::Result<Description> {
        let found = self.fs.inodes().attributes(id)?;
        let target = if found.file_type == FileType::Symlink { self.fs.files().read_link(id)? } else { Vec::new() };
        let mut names = self.fs.inodes().list_xattrs(id)?;
        names.sort();
        let mut xattrs = Vec::new();
        for name in names {
            let value = self.fs.inodes().get_xattr(id, &name)?;
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

    /// The ranges of data within the first `size` bytes of a file: start and end in bytes.
    pub(crate) fn data_ranges(&self, file: &VolumeFile, size: u64) -> Result<Vec<(u64, u64)>> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < size {
            let start = match self.fs.files().seek_data(file.id, at) {
                Ok(start) if start < size => start,
                Err(error) if error.errno() != Errno::NXIO => return Err(file.failed(error)),
                _ => break,
            };
            let end =
                self.fs.files().seek_hole(file.id, start).map_err(|error| file.failed(error))?.min(size).max(start + 1);
            found.push((start, end));
            at = end;
        }
        Ok(found)
    }

    /// Reads a range of a file.
    pub(crate) fn read_range(
        &self,
        file: &VolumeFile,
        (start, end): (u64, u64),
        take: &mut TakeData<'_>,
    ) -> Result<()> {
        let mut at = start;
        while at < end {
            let len = (end - at).min(PIECE) as usize;
            let data = self.fs.files().read(file.id, at, len).map_err(|error| file.failed(error))?;
            if data.is_empty() {
                let source = io::ErrorKind::UnexpectedEof.into();
                return Err(Error::Outside { path: file.path.path(), source });
            }
            take(at, &data)?;
            at += data.len() as u64;
        }
        Ok(())
    }
}

impl Source for VolumeFiles {
    type Node = VolumeFile;

    fn describe(&self, node: &VolumeFile) -> Result<Description> {
        self.described(node.id).map_err(|error| node.failed(error))
    }

    fn children(&self, node: &VolumeFile) -> Result<Vec<Child<VolumeFile>>> {
        let entries = Self::entries(&self.fs, node.id).map_err(|error| node.failed(error))?;
        if !entries.is_empty() && !self.listed.borrow_mut().insert(node.id) {
            return Err(Error::has_another_path(&node.path.path()));
        }
        let child = |(name, id): (Vec<u8>, InodeId)| {
            let file = node.child(id, &name);
            (name, file)
        };
        Ok(entries.into_iter().map(child).collect())
    }

    fn read(&self, node: &VolumeFile, size: u64, take: &mut TakeData<'_>) -> Result<u64> {
        self.data_ranges(node, size)?.into_iter().try_for_each(|range| self.read_range(node, range, take))?;
        Ok(size)
    }

    fn inode(&self, node: &VolumeFile) -> Option<InodeId> {
        Some(node.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for odd in [&b""[..], b".", b"..", b"/", b"a/b", b"../x", b"a\0b", &[b'x'; 256]] {
            assert!(!is_name(odd), "{odd:?}");
        }
        for fine in [&b"a"[..], b"...", b"..a", b"\xff\n", &[b'x'; 255]] {
            assert!(is_name(fine), "{fine:?}");
        }
    }
}

//! The names and inodes of one writer, read back from the file system.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Name;
use super::tops::{MARK, TOPS};

/// A file or directory that was found.
#[derive(Debug)]
pub(super) struct ReadBackInode {
    pub is_dir: bool,
    pub links: u64,
    pub mode: u32,
    pub mark: u32,
    pub bytes: Vec<u8>,
    pub names: BTreeSet<Name>,
    /// One of its paths, for messages.
    pub path: String,
}

/// All names and inodes of one writer.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    pub names: BTreeMap<Name, u64>,
    pub inodes: BTreeMap<u64, ReadBackInode>,
}

impl ReadBack {
    /// Reads the entries of the directories [`TOPS`] of `place` whose names begin with `prefix`.
    pub fn read(place: &Path, prefix: &str) -> Result<Self, String> {
        let mut read_back = Self::default();
        for top in TOPS {
            let dir = place.join(top);
            let number = in_context(&dir, std::fs::symlink_metadata(&dir))?.ino();
            read_back.read_dir(&dir, number, prefix)?;
        }
        Ok(read_back)
    }

    fn read_dir(&mut self, dir: &Path, number: u64, prefix: &str) -> Result<(), String> {
        for entry in in_context(dir, std::fs::read_dir(dir))? {
            let entry = in_context(dir, entry)?;
            let base = entry.file_name().to_string_lossy().into_owned();
            if !base.starts_with(prefix) {
                continue;
            }
            let path = entry.path();
            let meta = in_context(&path, std::fs::symlink_metadata(&path))?;
            let name = (number, base);
            self.names.insert(name.clone(), meta.ino());
            if let Some(known) = self.inodes.get_mut(&meta.ino()) {
                known.names.insert(name);
                continue;
            }
            let mut inode = read_inode(&path, &meta)?;
            inode.names.insert(name);
            self.inodes.insert(meta.ino(), inode);
            if meta.is_dir() {
                self.read_dir(&path, meta.ino(), "")?;
            }
        }
        Ok(())
    }
}

fn read_inode(path: &Path, meta: &Metadata) -> Result<ReadBackInode, String> {
    let mut mark = [0; 4];
    let mark = match rustix::fs::lgetxattr(path, MARK, &mut mark) {
        Ok(4) => u32::from_le_bytes(mark),
        Ok(other) => return Err(format!("{}: an attribute of {other} bytes", path.display())),
        Err(rustix::io::Errno::NODATA) => 0,
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let bytes = if meta.is_dir() { Vec::new() } else { in_context(path, std::fs::read(path))? };
    if !meta.is_dir() && bytes.len() as u64 != meta.len() {
        return Err(format!("{}: {} bytes were read of {}", path.display(), bytes.len(), meta.len()));
    }
    Ok(ReadBackInode {
        is_dir: meta.is_dir(),
        links: meta.nlink(),
        mode: meta.mode() & 0o7777,
        mark,
        bytes,
        names: BTreeSet::new(),
        path: path.display().to_string(),
    })
}

fn in_context<T>(path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}

//! Files and directories, in a line.

use ubtrfs::{Errno, Filesystem, InodeId, NewInode, WriteAt};

/// A regular file that all may read.
pub fn new_file() -> NewInode {
    NewInode { mode: 0o100_644, ..NewInode::default() }
}

/// Makes a file, to which there is a reference from then on.
pub fn file(fs: &Filesystem, dir: InodeId, name: &str, content: &[u8]) -> InodeId {
    let id = fs.directories().create(dir, name.as_bytes(), &new_file()).unwrap();
    fs.files().write(id, WriteAt::Offset(0), content, false).unwrap();
    id
}

/// Makes a directory, to which there is a reference from then on.
pub fn mkdir(fs: &Filesystem, dir: InodeId, name: &str) -> InodeId {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode: 0o040_755, ..NewInode::default() }).unwrap()
}

/// Why something fails.
pub fn errno<T: std::fmt::Debug>(result: ubtrfs::Result<T>) -> Errno {
    result.unwrap_err().errno()
}

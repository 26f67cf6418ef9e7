//! Makes files and directories in one line.

use ubtrfs::{Errno, Filesystem, InodeId, NewInode, WriteAt};

/// Returns the attributes of a regular file that all may read.
pub fn new_file() -> NewInode {
    NewInode { mode: 0o100_644, ..NewInode::default() }
}

/// Makes a file, and keeps a reference to it.
pub fn file(fs: &Filesystem, dir: InodeId, name: &str, content: &[u8]) -> InodeId {
    let id = fs.directories().create(dir, name.as_bytes(), &new_file()).unwrap();
    fs.files().write(id, WriteAt::Offset(0), content, false).unwrap();
    id
}

/// Makes a directory, and keeps a reference to it.
pub fn mkdir(fs: &Filesystem, dir: InodeId, name: &str) -> InodeId {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode: 0o040_755, ..NewInode::default() }).unwrap()
}

/// Returns the errno of a result, which must be an error.
pub fn errno<T: std::fmt::Debug>(result: ubtrfs::Result<T>) -> Errno {
    result.unwrap_err().errno()
}

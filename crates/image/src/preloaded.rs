//! Reads files through a library that is loaded before the C library. By such libraries fakeroot(1)
//! and pseudo(1) show files of the building user with other owners, as device nodes, or with
//! capabilities. They intercept calls of the C library only, not the system calls that the rest of
//! the crate makes.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use rustix::fs::{Stat, fstat};

/// Returns whether there is such a library.
pub(crate) fn is_loaded() -> bool {
    static IS_LOADED: OnceLock<bool> = OnceLock::new();
    *IS_LOADED.get_or_init(|| std::env::var_os("LD_PRELOAD").is_some_and(|libraries| !libraries.is_empty()))
}

/// The status of an open file, with the type, owner and device that such a library shows.
pub(crate) fn status(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    let mut stat = fstat(fd)?;
    if is_loaded() {
        let shown = File::from(fd.try_clone_to_owned()?).metadata()?;
        (stat.st_mode, stat.st_rdev) = (shown.mode(), shown.rdev());
        (stat.st_uid, stat.st_gid) = (shown.uid(), shown.gid());
    }
    Ok(stat)
}

/// The names of a file's attributes, each with a zero behind it, as flistxattr(2) writes them.
pub(crate) fn list_xattrs(file: impl AsFd, buf: &mut [u8]) -> rustix::io::Result<usize> {
    // SAFETY: the length is that of the buffer.
    let len = unsafe { libc::flistxattr(file.as_fd().as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) };
    of_call(len)
}

/// The value of an attribute, as fgetxattr(2) writes it.
pub(crate) fn get_xattr(file: impl AsFd, name: &[u8], buf: &mut [u8]) -> rustix::io::Result<usize> {
    let name = CString::new(name).map_err(|_| rustix::io::Errno::INVAL)?;
    // SAFETY: the name ends with a zero, and the length is that of the buffer.
    let len = unsafe { libc::fgetxattr(file.as_fd().as_raw_fd(), name.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) };
    of_call(len)
}

fn of_call(len: libc::ssize_t) -> rustix::io::Result<usize> {
    usize::try_from(len).map_err(|_| {
        let error = io::Error::last_os_error();
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
    })
}

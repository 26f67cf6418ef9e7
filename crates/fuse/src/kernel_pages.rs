//! Has the kernel write back the dirty pages of a file without dropping any.
//!
//! There is no notification for that: the one that writes pages drops them afterwards. So this
//! opens the file by its handle, on a mount of which something is open, and calls
//! `sync_file_range`, which waits for the answers to the WRITEs and takes no lock that a process
//! could hold.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::system::uname;

/// The first kernel in which pages of FUSE files stay under writeback until the WRITE is answered.
/// Older kernels write copies of the pages.
const FIRST: (u32, u32) = (6, 16);

/// `struct file_handle` of a FUSE file.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    node: [u32; 2],
    generation: u32,
}

/// Returns whether the kernel's writeback waits until the WRITEs have been answered.
pub fn waits_for_writeback() -> bool {
    let name = uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map_while(|number| number.parse().ok());
    matches!((numbers.next(), numbers.next()), (Some(major), Some(minor)) if (major, minor) >= FIRST)
}

/// Opens a directory again of which there is an `O_PATH` descriptor, so that files of its mount can
/// be opened by their handles.
pub fn reopen(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Has the kernel write back the dirty pages of the file that it knows as `node`, with the
/// `generation` that its entry had, and waits until they are written. `mount` is an open file or
/// directory of the mount. Fails with `EPERM` in a process that may not open handles.
///
/// The threads that serve the mount must not call this, since the WRITEs, and perhaps other
/// requests, come to them.
pub fn write_back(mount: impl AsFd, node: u64, generation: u64) -> Result<(), Errno> {
    /// `FILEID_INO64_GEN`.
    const KIND: libc::c_int = 0x81;
    const ALL: libc::c_uint =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let mut handle =
        Handle { bytes: 12, kind: KIND, node: [(node >> 32) as u32, node as u32], generation: generation as u32 };
    let error = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    // SAFETY: `handle` is as long as it says, and lasts for the call.
    let opened = unsafe { libc::open_by_handle_at(mount.as_fd().as_raw_fd(), (&raw mut handle).cast(), flags) };
    if opened < 0 {
        return Err(error());
    }
    // SAFETY: it is a new descriptor, and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(opened) };
    // SAFETY: the call takes no memory.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, ALL) } < 0 { Err(error()) } else { Ok(()) }
}

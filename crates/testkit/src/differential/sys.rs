//! Makes system calls by their numbers, without a library in between, so that the answer is what
//! the kernel returned.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::c_long;

/// The value that a call returned, or its errno.
pub type Outcome = Result<i64, i32>;

/// Makes a call. If the call takes an argument for an address, it must be the address of memory
/// that lives until the call has returned, and that is as large as the call assumes.
fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Outcome {
    let mut six = [0; 6];
    six[..N].copy_from_slice(&arguments);
    // SAFETY: the functions of this file pass addresses of buffers that they borrow, and the
    // lengths of these.
    let returned = unsafe { libc::syscall(number, six[0], six[1], six[2], six[3], six[4], six[5]) };
    if returned < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(returned) }
}

/// Makes a call whose arguments are only numbers and descriptors.
pub fn numbers<const N: usize>(number: c_long, arguments: [i64; N]) -> Outcome {
    const WITH_ADDRESSES: [c_long; 4] = [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap];
    assert!(!WITH_ADDRESSES.contains(&number), "a call that takes addresses");
    call(number, arguments.map(|argument| argument as usize))
}

/// Makes a call with a path as its second argument.
pub fn at<const N: usize>(number: c_long, dir: RawFd, path: &CStr, rest: [i64; N]) -> Outcome {
    assert!(N <= 4);
    let mut all = [0; 6];
    all[0] = dir as usize;
    all[1] = path.as_ptr().addr();
    for (place, argument) in all[2..].iter_mut().zip(rest) {
        *place = argument as usize;
    }
    call(number, all)
}

/// Makes a call with two paths, each after a directory.
pub fn at_two(number: c_long, from: (RawFd, &CStr), to: (RawFd, &CStr), flags: i64) -> Outcome {
    let places = [from.0 as usize, from.1.as_ptr().addr(), to.0 as usize, to.1.as_ptr().addr()];
    call(number, [places[0], places[1], places[2], places[3], flags as usize])
}

/// symlinkat(2).
pub fn symlink(target: &CStr, dir: RawFd, path: &CStr) -> Outcome {
    call(libc::SYS_symlinkat, [target.as_ptr().addr(), dir as usize, path.as_ptr().addr()])
}

/// Makes a call on a descriptor with a buffer that the kernel reads or fills, its length, and
/// numbers.
pub fn with_buffer<const N: usize>(number: c_long, file: RawFd, buffer: &mut [u8], rest: [i64; N]) -> Outcome {
    assert!(N <= 3);
    let mut all = [0; 6];
    all[..3].copy_from_slice(&[file as usize, buffer.as_mut_ptr().addr(), buffer.len()]);
    for (place, argument) in all[3..].iter_mut().zip(rest) {
        *place = argument as usize;
    }
    call(number, all)
}

/// readlinkat(2).
pub fn read_link(dir: RawFd, path: &CStr, buffer: &mut [u8]) -> Outcome {
    let to = buffer.as_mut_ptr().addr();
    call(libc::SYS_readlinkat, [dir as usize, path.as_ptr().addr(), to, buffer.len()])
}

/// pwritev2(2) of one buffer.
pub fn write_flagged(file: RawFd, buffer: &mut [u8], offset: i64, flags: u64) -> Outcome {
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let list = (&raw const part).addr();
    // The offset's upper half is for machines with words of 32 bits.
    call(libc::SYS_pwritev2, [file as usize, list, 1, offset as usize, 0, flags as usize])
}

/// `copy_file_range(2)`; a negative offset stands for the file's own.
pub fn copy_range(from: (RawFd, i64), to: (RawFd, i64), length: u32) -> Outcome {
    let (mut at, mut onto) = (from.1, to.1);
    let place = |offset: &mut i64| if *offset < 0 { 0 } else { std::ptr::from_mut(offset).addr() };
    let all = [from.0 as usize, place(&mut at), to.0 as usize, place(&mut onto), length as usize, 0];
    call(libc::SYS_copy_file_range, all)
}

/// sendfile(2).
pub fn send_file(to: RawFd, from: RawFd, mut offset: i64, length: u32) -> Outcome {
    call(libc::SYS_sendfile, [to as usize, from as usize, (&raw mut offset).addr(), length as usize])
}

/// statx(2), for all fields.
pub fn statx(dir: RawFd, path: &CStr, flags: i32) -> Result<libc::statx, i32> {
    const ALL: usize = 0xfff;
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut seen: libc::statx = unsafe { std::mem::zeroed() };
    let to = (&raw mut seen).addr();
    call(libc::SYS_statx, [dir as usize, path.as_ptr().addr(), flags as usize, ALL, to]).map(|_| seen)
}

/// fstatfs(2).
pub fn stat_volume(file: RawFd) -> Result<libc::statfs64, i32> {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut seen: libc::statfs64 = unsafe { std::mem::zeroed() };
    call(libc::SYS_fstatfs, [file as usize, (&raw mut seen).addr()]).map(|_| seen)
}

/// utimensat(2); without a path, of the descriptor itself.
pub fn set_times(dir: RawFd, path: Option<&CStr>, times: [libc::timespec; 2], flags: i32) -> Outcome {
    let path = path.map_or(0, |path| path.as_ptr().addr());
    call(libc::SYS_utimensat, [dir as usize, path, times.as_ptr().addr(), flags as usize])
}

/// The object of an xattr call: a path of the process, or a descriptor.
#[derive(Clone, Copy)]
pub enum XattrOn<'a> {
    /// A path, not followed.
    Path(&'a CStr),
    /// A descriptor.
    File(RawFd),
}

impl XattrOn<'_> {
    fn argument(self) -> usize {
        match self {
            Self::Path(path) => path.as_ptr().addr(),
            Self::File(file) => file as usize,
        }
    }

    fn number(self, of_path: c_long, of_file: c_long) -> c_long {
        if matches!(self, Self::Path(_)) { of_path } else { of_file }
    }
}

/// lsetxattr(2) or fsetxattr(2).
pub fn set_xattr(on: XattrOn<'_>, name: &CStr, value: &[u8], flags: i32) -> Outcome {
    let number = on.number(libc::SYS_lsetxattr, libc::SYS_fsetxattr);
    let value = (value.as_ptr().addr(), value.len());
    call(number, [on.argument(), name.as_ptr().addr(), value.0, value.1, flags as usize])
}

/// lgetxattr(2) or fgetxattr(2).
pub fn get_xattr(on: XattrOn<'_>, name: &CStr, room: &mut [u8]) -> Outcome {
    let number = on.number(libc::SYS_lgetxattr, libc::SYS_fgetxattr);
    call(number, [on.argument(), name.as_ptr().addr(), room.as_mut_ptr().addr(), room.len()])
}

/// llistxattr(2) or flistxattr(2).
pub fn list_xattrs(on: XattrOn<'_>, room: &mut [u8]) -> Outcome {
    let number = on.number(libc::SYS_llistxattr, libc::SYS_flistxattr);
    call(number, [on.argument(), room.as_mut_ptr().addr(), room.len()])
}

/// lremovexattr(2) or fremovexattr(2).
pub fn remove_xattr(on: XattrOn<'_>, name: &CStr) -> Outcome {
    let number = on.number(libc::SYS_lremovexattr, libc::SYS_fremovexattr);
    call(number, [on.argument(), name.as_ptr().addr()])
}

/// ioctl(2) with an argument in memory, which is at least as large as the command's number says.
pub fn ioctl(file: RawFd, command: u32, data: &mut [u8]) -> Outcome {
    let encoded = (command >> 16 & 0x3fff) as usize;
    assert!(data.len() >= encoded, "the argument of ioctl {command:#x}");
    call(libc::SYS_ioctl, [file as usize, command as usize, data.as_mut_ptr().addr()])
}

/// fcntl(2) with a lock.
pub fn lock(file: RawFd, command: i32, kind: i32, start: i64, length: i64) -> (Outcome, libc::flock) {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (start, length);
    let outcome = call(libc::SYS_fcntl, [file as usize, command as usize, (&raw mut lock).addr()]);
    (outcome, lock)
}

/// openat2(2).
pub fn open_resolving(dir: RawFd, path: &CStr, flags: u64, mode: u64, resolve: u64) -> Outcome {
    let how = [flags, mode, resolve];
    call(libc::SYS_openat2, [dir as usize, path.as_ptr().addr(), how.as_ptr().addr(), size_of_val(&how)])
}

/// A file handle, as `name_to_handle_at(2)` returns it: its head, and space for the longest handle.
pub type Handle = [u32; 34];

/// `name_to_handle_at(2)`.
pub fn name_to_handle(dir: RawFd, path: &CStr, flags: i32) -> Result<Box<Handle>, i32> {
    let mut handle: Box<Handle> = Box::new([0; 34]);
    handle[0] = 128;
    let mut mount: i32 = 0;
    let (to, mount) = (handle.as_mut_ptr().addr(), (&raw mut mount).addr());
    call(libc::SYS_name_to_handle_at, [dir as usize, path.as_ptr().addr(), to, mount, flags as usize])?;
    Ok(handle)
}

/// `open_by_handle_at(2)`.
pub fn open_handle(mount: RawFd, handle: &mut Handle, flags: i32) -> Outcome {
    call(libc::SYS_open_by_handle_at, [mount as usize, handle.as_mut_ptr().addr(), flags as usize])
}

/// Returns the descriptor that a call returned, which nothing else owns.
pub fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: the caller passes what open(2) or one of its kind has just returned.
    unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }
}

/// A mapping of a file, which is removed on drop. The program itself reads and writes nothing in
/// it: the kernel copies, and returns `EFAULT` where the program would get `SIGBUS`.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    length: usize,
    file: OwnedFd,
    offset: i64,
}

impl Mapping {
    /// mmap(2).
    pub fn new(file: RawFd, offset: i64, length: usize, writable: bool, shared: bool) -> Result<Self, i32> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let all = [0, length, protection as usize, kind as usize, file as usize, offset as usize];
        // The kernel chooses the address, so no existing mapping is replaced.
        let address = call(libc::SYS_mmap, all)? as usize;
        let again = call(libc::SYS_fcntl, [file as usize, libc::F_DUPFD_CLOEXEC as usize, 0]);
        Ok(Self { address, length, file: owned(again.expect("another descriptor")), offset })
    }

    fn part(&self, offset: u32, length: u32) -> (usize, usize) {
        let offset = (offset as usize).min(self.length);
        (self.address + offset, (length as usize).min(self.length - offset))
    }

    /// Stores the bytes at the beginning of `source`, but none between the end of the file and that
    /// of its last page: the kernel's FUSE does not clear that range when the file grows.
    pub fn store(&self, source: RawFd, offset: u32, length: u32) -> Outcome {
        const PAGE: u64 = 4096;
        let size = statx(self.file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?.stx_size;
        let start = self.offset as u64 + u64::from(offset);
        let length = if start >= size.next_multiple_of(PAGE) {
            length
        } else {
            size.saturating_sub(start).min(length.into()) as u32
        };
        let (to, length) = self.part(offset, length);
        call(libc::SYS_pread64, [source as usize, to, length, 0])
    }

    /// Loads bytes of the mapping to the beginning of `target`.
    pub fn load(&self, target: RawFd, offset: u32, length: u32) -> Outcome {
        let (from, length) = self.part(offset, length);
        call(libc::SYS_pwrite64, [target as usize, from, length, 0])
    }

    /// Calls msync(2) on the whole mapping.
    pub fn sync(&self, flags: i32) -> Outcome {
        call(libc::SYS_msync, [self.address, self.length, flags as usize])
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = call(libc::SYS_munmap, [self.address, self.length]);
    }
}

/// Sets groups, ids and effective capabilities of this thread. All capabilities must be permitted
/// to it, and stay so; its saved user stays 0.
pub fn become_user(user: u32, group: u32, groups: &[u32], capabilities: u64) {
    const UNCHANGED: usize = u32::MAX as usize;
    let must = |outcome: Outcome| {
        outcome.expect("change the credentials");
    };
    let permitted = permitted();
    set_capabilities(permitted, permitted);
    must(call(libc::SYS_setresuid, [UNCHANGED, 0, UNCHANGED]));
    must(call(libc::SYS_setgroups, [groups.len(), groups.as_ptr().addr()]));
    must(call(libc::SYS_setresgid, [group as usize, group as usize, 0]));
    must(call(libc::SYS_setresuid, [user as usize, user as usize, 0]));
    set_capabilities(capabilities & permitted, permitted);
}

/// Version 3 of the structures of capget(2).
const CAPABILITY_VERSION: u32 = 0x2008_0522;

fn permitted() -> u64 {
    let mut head = [CAPABILITY_VERSION, 0];
    let mut data = [0_u32; 6];
    call(libc::SYS_capget, [head.as_mut_ptr().addr(), data.as_mut_ptr().addr()]).expect("capget");
    u64::from(data[1]) | u64::from(data[4]) << 32
}

fn set_capabilities(effective: u64, permitted: u64) {
    let mut head = [CAPABILITY_VERSION, 0];
    let halves = |bits: u64| (bits as u32, (bits >> 32) as u32);
    let ((e, more_e), (p, more_p)) = (halves(effective), halves(permitted));
    let mut data = [e, p, 0, more_e, more_p, 0];
    call(libc::SYS_capset, [head.as_mut_ptr().addr(), data.as_mut_ptr().addr()]).expect("capset");
}

/// `move_mount(2)` of a detached mount to a directory.
pub fn attach_mount(tree: RawFd, place: &CStr) -> Outcome {
    const EMPTY_FROM: usize = 4;
    call(
        libc::SYS_move_mount,
        [tree as usize, c"".as_ptr().addr(), libc::AT_FDCWD as usize, place.as_ptr().addr(), EMPTY_FROM],
    )
}

/// `open_tree(2)`: a detached copy of a mount.
pub fn copy_mount(dir: &CStr) -> Outcome {
    const CLONE: usize = 1;
    let flags = CLONE | libc::O_CLOEXEC as usize;
    call(libc::SYS_open_tree, [libc::AT_FDCWD as usize, dir.as_ptr().addr(), flags])
}

/// `mount_setattr(2)` of a detached mount.
pub fn set_mount(tree: RawFd, attributes: u64, namespace: RawFd) -> Outcome {
    const EMPTY_PATH: usize = 0x1000;
    let what = [attributes, 0, 0, namespace as u64];
    call(
        libc::SYS_mount_setattr,
        [tree as usize, c"".as_ptr().addr(), EMPTY_PATH, what.as_ptr().addr(), size_of_val(&what)],
    )
}

/// A call of the pair `file_getattr(2)` and `file_setattr(2)`, which libraries do not know yet.
pub fn file_attributes(number: i64, dir: RawFd, path: &CStr, data: &mut [u8; 24]) -> Outcome {
    const NO_FOLLOW: usize = 0x100;
    call(number as c_long, [dir as usize, path.as_ptr().addr(), data.as_mut_ptr().addr(), data.len(), NO_FOLLOW])
}

/// truncate(2).
pub fn truncate(path: &CStr, length: i64) -> Outcome {
    call(libc::SYS_truncate, [path.as_ptr().addr(), length as usize])
}

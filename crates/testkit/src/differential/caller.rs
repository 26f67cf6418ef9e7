//! Makes the calls of one side: one process, with the open files, mappings and handles of its
//! current sequence. Each call gives a line with what it returned, without values that differ
//! between any two volumes: inode numbers, ids of trees, UUIDs, and the present time.

mod ioctls;
mod look;

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use super::actors;
use super::call::{Actor, Call, CallStep, On, Syncing, Time, View};
use super::seen::Seen;
use super::sys::{self, Handle, Mapping, Outcome, XattrOn};

/// The number of open files, of mappings and of handles in a sequence.
pub const SLOTS: usize = 4;

const CWD: RawFd = libc::AT_FDCWD;

/// Makes the calls of one side.
#[derive(Debug)]
pub struct Caller {
    /// The mount points, in the order of [`View::ALL`].
    tops: Vec<PathBuf>,
    /// The sequence's directory in each of them.
    dirs: Vec<OwnedFd>,
    slots: [Option<OwnedFd>; SLOTS],
    maps: [Option<Mapping>; SLOTS],
    handles: [Option<Box<Handle>>; SLOTS],
    /// A file in memory to which mappings are loaded, and from which they are stored.
    memory: OwnedFd,
    actor: Option<Actor>,
    seen: Seen,
}

/// Returns the line of an outcome.
fn line(outcome: Outcome) -> String {
    match outcome {
        Ok(0) => "ok".into(),
        Ok(number) => number.to_string(),
        Err(error) => name_of(error),
    }
}

/// Returns the name of an errno.
pub(crate) fn name_of(error: i32) -> String {
    const NAMES: &[(i32, &str)] = &[
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::EINTR, "EINTR"),
        (libc::EIO, "EIO"),
        (libc::ENXIO, "ENXIO"),
        (libc::EBADF, "EBADF"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EFAULT, "EFAULT"),
        (libc::EBUSY, "EBUSY"),
        (libc::EEXIST, "EEXIST"),
        (libc::EXDEV, "EXDEV"),
        (libc::ENODEV, "ENODEV"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EISDIR, "EISDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENOTTY, "ENOTTY"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::EFBIG, "EFBIG"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ESPIPE, "ESPIPE"),
        (libc::EROFS, "EROFS"),
        (libc::EMLINK, "EMLINK"),
        (libc::ERANGE, "ERANGE"),
        (libc::ENAMETOOLONG, "ENAMETOOLONG"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENOTEMPTY, "ENOTEMPTY"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENODATA, "ENODATA"),
        (libc::EOVERFLOW, "EOVERFLOW"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ESTALE, "ESTALE"),
        (libc::EDQUOT, "EDQUOT"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == error);
    known.map_or_else(|| format!("errno {error}"), |(_, name)| (*name).into())
}

/// Returns a path for the kernel. Paths of sequences have no zero byte.
fn text(path: &str) -> CString {
    CString::new(path).unwrap_or_default()
}

/// Returns the bytes of a write. The seed decides whether they are zeros, one repeated byte, or a
/// pattern that does not compress well.
fn content(seed: u8, length: u32) -> Vec<u8> {
    match seed % 4 {
        0 => vec![0; length as usize],
        1 => vec![seed; length as usize],
        _ => (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect(),
    }
}

/// A buffer for a read, at an address that direct I/O accepts.
struct Room {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Room {
    const ALIGNED: usize = 4096;

    fn new(length: u32) -> Self {
        let length = length as usize;
        let bytes = vec![0; length + Self::ALIGNED];
        let start = bytes.as_ptr().align_offset(Self::ALIGNED);
        Self { bytes, start, length }
    }

    fn of(content: &[u8]) -> Self {
        let mut room = Self::new(content.len() as u32);
        room.slice().copy_from_slice(content);
        room
    }

    fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }

    /// Returns the line of a read into this buffer.
    fn line(&mut self, outcome: Outcome) -> String {
        outcome.map_or_else(name_of, |read| {
            let read = read as usize;
            format!("{read} bytes {:08x}", crc32fast::hash(&self.slice()[..read]))
        })
    }
}

impl Caller {
    /// Makes a caller at these mount points.
    pub fn new(tops: Vec<PathBuf>) -> Self {
        let memory = rustix::fs::memfd_create(c"bytes", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
        Self {
            tops,
            dirs: Vec::new(),
            slots: Default::default(),
            maps: Default::default(),
            handles: Default::default(),
            memory,
            actor: None,
            seen: Seen::default(),
        }
    }

    /// Begins a sequence in an existing directory.
    pub fn begin(&mut self, name: &Path) {
        self.end();
        let open = |top: &PathBuf| {
            let path = text(&top.join(name).to_string_lossy());
            let flags = i64::from(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
            sys::owned(sys::at(libc::SYS_openat, CWD, &path, [flags, 0]).expect("the sequence's directory"))
        };
        self.dirs = self.tops.iter().map(open).collect();
        let _ = sys::numbers(libc::SYS_umask, [0o022]);
    }

    /// Ends a sequence, and closes what it has opened.
    pub fn end(&mut self) {
        self.become_actor(Actor::Root);
        self.maps = Default::default();
        self.slots = Default::default();
        self.handles = Default::default();
        self.seen = Seen::default();
        self.dirs.clear();
    }

    /// Makes a call, and returns the line of its answer.
    pub fn make(&mut self, step: &CallStep) -> String {
        self.become_actor(step.actor);
        let dir = self.dirs[View::ALL.iter().position(|view| *view == step.view).unwrap_or(0)].as_raw_fd();
        self.call(dir, &step.call).unwrap_or_else(name_of)
    }

    fn become_actor(&mut self, actor: Actor) {
        if self.actor != Some(actor) {
            actors::become_actor(actor);
            self.actor = Some(actor);
        }
    }

    fn slot(&self, number: u8) -> Result<RawFd, i32> {
        self.slots[number as usize % SLOTS].as_ref().map(AsRawFd::as_raw_fd).ok_or(libc::EBADF)
    }

    fn map(&self, number: u8) -> Result<&Mapping, i32> {
        self.maps[number as usize % SLOTS].as_ref().ok_or(libc::EBADF)
    }

    fn keep(&mut self, slot: u8, outcome: Outcome) -> Result<String, i32> {
        let file = sys::owned(outcome?);
        self.slots[slot as usize % SLOTS] = Some(file);
        Ok("ok".into())
    }

    /// Calls `act` with the descriptor of `on`. A path is opened for reading first.
    fn opened<T>(&self, dir: RawFd, on: &On, act: impl FnOnce(RawFd) -> Result<T, i32>) -> Result<T, i32> {
        match on {
            On::Slot(slot) => act(self.slot(*slot)?),
            On::Path(path) => {
                let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY;
                let file = sys::owned(sys::at(libc::SYS_openat, dir, &text(path), [i64::from(flags), 0])?);
                act(file.as_raw_fd())
            }
        }
    }

    /// Makes one call if `on` is a path, and another one if it is an open file.
    fn either(
        &self,
        on: &On,
        of_path: impl FnOnce(&CString) -> Outcome,
        of_file: impl FnOnce(RawFd) -> Outcome,
    ) -> Outcome {
        match on {
            On::Path(path) => of_path(&text(path)),
            On::Slot(slot) => of_file(self.slot(*slot)?),
        }
    }

    fn xattr<T>(&self, dir: RawFd, on: &On, act: impl FnOnce(XattrOn<'_>) -> Result<T, i32>) -> Result<T, i32> {
        match on {
            On::Slot(slot) => act(XattrOn::File(self.slot(*slot)?)),
            // These calls take no directory descriptor.
            On::Path(path) => act(XattrOn::Path(&text(&format!("/proc/self/fd/{dir}/{path}")))),
        }
    }

    fn call(&mut self, dir: RawFd, call: &Call) -> Result<String, i32> {
        match call {
            Call::Open { slot, path, flags, mode } => {
                let flags = flags.0 | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
                let opened = sys::at(libc::SYS_openat, dir, &text(path), [i64::from(flags), i64::from(mode.0)]);
                self.keep(*slot, opened)
            }
            Call::OpenResolving { slot, path, flags, resolve } => {
                let flags = (flags.0 | libc::O_CLOEXEC | libc::O_NONBLOCK) as u32;
                let mode = if flags & libc::O_CREAT as u32 == 0 { 0 } else { 0o644 };
                self.keep(*slot, sys::open_resolving(dir, &text(path), flags.into(), mode, resolve.0))
            }
            Call::Close { slot } => {
                self.slot(*slot)?;
                self.slots[*slot as usize % SLOTS] = None;
                Ok("ok".into())
            }
            Call::Map { map, slot, offset, pages, writable, shared } => {
                const PAGE: usize = 4096;
                let made = Mapping::new(self.slot(*slot)?, *offset, usize::from(*pages) * PAGE, *writable, *shared)?;
                self.maps[*map as usize % SLOTS] = Some(made);
                Ok("ok".into())
            }
            Call::Unmap { map } => {
                self.map(*map)?;
                self.maps[*map as usize % SLOTS] = None;
                Ok("ok".into())
            }
            Call::NameToHandle { handle, on } => {
                let made = match on {
                    On::Path(path) => sys::name_to_handle(dir, &text(path), 0),
                    On::Slot(slot) => sys::name_to_handle(self.slot(*slot)?, c"", libc::AT_EMPTY_PATH),
                }?;
                self.handles[*handle as usize % SLOTS] = Some(made);
                Ok("ok".into())
            }
            Call::OpenHandle { slot, handle, flags } => {
                let flags = flags.0 | libc::O_CLOEXEC | libc::O_NONBLOCK;
                let handle = self.handles[*handle as usize % SLOTS].as_mut().ok_or(libc::EBADF)?;
                // A directory that is open by O_PATH is refused.
                let mount = sys::owned(sys::at(libc::SYS_openat, dir, c".", [i64::from(libc::O_CLOEXEC), 0])?);
                let opened = sys::open_handle(mount.as_raw_fd(), handle, flags);
                self.keep(*slot, opened)
            }
            _ => self
                .of_data(call)
                .or_else(|| self.of_names(dir, call))
                .or_else(|| self.of_attributes(dir, call))
                .or_else(|| self.look(dir, call))
                .or_else(|| self.ioctl(dir, call))
                .expect("each call belongs somewhere"),
        }
    }

    /// Makes calls that read and write files.
    fn of_data(&mut self, call: &Call) -> Option<Result<String, i32>> {
        let slot = |number: &u8| self.slot(*number);
        let number = |number: libc::c_long, slot: &u8, rest: [i64; 2]| {
            let file = self.slot(*slot)?;
            sys::numbers(number, [i64::from(file), rest[0], rest[1]])
        };
        let read = |slot: &u8, length: &u32, offset: Option<i64>| {
            let (file, mut room) = (self.slot(*slot)?, Room::new(*length));
            let outcome = match offset {
                Some(offset) => sys::with_buffer(libc::SYS_pread64, file, room.slice(), [offset]),
                None => sys::with_buffer(libc::SYS_read, file, room.slice(), []),
            };
            Ok(room.line(outcome))
        };
        let outcome = match call {
            Call::Read { slot, offset, length } => return Some(read(slot, length, Some(*offset))),
            Call::ReadOn { slot, length } => return Some(read(slot, length, None)),
            Call::Write { slot: to, offset, length, seed } => slot(to).and_then(|file| {
                let mut bytes = Room::of(&content(*seed, *length));
                sys::with_buffer(libc::SYS_pwrite64, file, bytes.slice(), [*offset])
            }),
            Call::WriteFlagged { slot: to, offset, length, seed, flags } => slot(to).and_then(|file| {
                let mut bytes = Room::of(&content(*seed, *length));
                sys::write_flagged(file, bytes.slice(), *offset, flags.0)
            }),
            Call::WriteOn { slot: to, length, seed } => slot(to).and_then(|file| {
                let mut bytes = Room::of(&content(*seed, *length));
                sys::with_buffer(libc::SYS_write, file, bytes.slice(), [])
            }),
            Call::Seek { slot, offset, whence } => number(libc::SYS_lseek, slot, [*offset, i64::from(*whence)]),
            Call::Allocate { slot: of, mode, offset, length } => slot(of)
                .and_then(|file| sys::numbers(libc::SYS_fallocate, [i64::from(file), mode.0 as i64, *offset, *length])),
            Call::CopyRange { from, to, from_offset, to_offset, length } => slot(from)
                .and_then(|from| Ok((from, slot(to)?)))
                .and_then(|(from, to)| sys::copy_range((from, *from_offset), (to, *to_offset), *length)),
            Call::SendFile { from, to, offset, length } => slot(from)
                .and_then(|from| Ok((from, slot(to)?)))
                .and_then(|(from, to)| sys::send_file(to, from, *offset, *length)),
            Call::Sync { slot, how } => {
                let call = match how {
                    Syncing::File => libc::SYS_fsync,
                    Syncing::Data => libc::SYS_fdatasync,
                    Syncing::Volume => libc::SYS_syncfs,
                    Syncing::Range => libc::SYS_sync_file_range,
                };
                number(call, slot, [0, 0])
            }
            Call::Advise { slot: of, offset, length, advice } => slot(of).and_then(|file| {
                sys::numbers(libc::SYS_fadvise64, [i64::from(file), *offset, *length, i64::from(*advice)])
            }),
            Call::Store { map, offset, length, seed } => self.map(*map).and_then(|map| {
                let memory = self.memory.as_raw_fd();
                let mut bytes = content(*seed, *length);
                sys::with_buffer(libc::SYS_pwrite64, memory, &mut bytes, [0])?;
                map.store(memory, *offset, *length)
            }),
            Call::Load { map, offset, length } => {
                let loaded = self.map(*map).and_then(|map| {
                    let memory = self.memory.as_raw_fd();
                    let loaded = map.load(memory, *offset, *length)?;
                    let mut room = Room::new(loaded as u32);
                    let outcome = sys::with_buffer(libc::SYS_pread64, memory, room.slice(), [0]);
                    Ok(room.line(outcome))
                });
                return Some(loaded);
            }
            Call::SyncMap { map, flags } => self.map(*map).and_then(|map| map.sync(*flags)),
            Call::Lock { slot: of, how, start, length } => {
                let locked = slot(of).map(|file| {
                    let (outcome, lock) = sys::lock(file, libc::F_OFD_SETLK, *how, *start, *length);
                    let (asked, found) = sys::lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, *start, *length);
                    format!("{} ({}), then {} {}", line(outcome), lock.l_type, line(asked), found.l_type)
                });
                return Some(locked);
            }
            Call::Flock { slot, how } => number(libc::SYS_flock, slot, [i64::from(*how | libc::LOCK_NB), 0]),
            Call::SetFileFlags { slot, flags } => number(libc::SYS_fcntl, slot, [libc::F_SETFL.into(), flags.0.into()]),
            Call::GetFileFlags { slot } => number(libc::SYS_fcntl, slot, [libc::F_GETFL.into(), 0]),
            _ => return None,
        };
        Some(outcome.map(|number| line(Ok(number))))
    }

    /// Makes calls that create, remove and rename names.
    fn of_names(&mut self, dir: RawFd, call: &Call) -> Option<Result<String, i32>> {
        let outcome = match call {
            Call::MakeDirectory { path, mode } => sys::at(libc::SYS_mkdirat, dir, &text(path), [mode.0.into()]),
            Call::MakeNode { path, mode, device } => {
                let device = libc::makedev(device.0, device.1);
                sys::at(libc::SYS_mknodat, dir, &text(path), [mode.0.into(), device as i64])
            }
            Call::RemoveDirectory { path } => {
                sys::at(libc::SYS_unlinkat, dir, &text(path), [libc::AT_REMOVEDIR.into()])
            }
            Call::Unlink { path } => sys::at(libc::SYS_unlinkat, dir, &text(path), [0]),
            Call::Symlink { target, path } => sys::symlink(&text(target), dir, &text(path)),
            Call::Link { from, to, follow } => {
                let flags = if *follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
                sys::at_two(libc::SYS_linkat, (dir, &text(from)), (dir, &text(to)), flags.into())
            }
            Call::LinkSlot { slot, to, by_proc } => self.slot(*slot).and_then(|file| {
                let (from, flags) = if *by_proc {
                    ((CWD, text(&format!("/proc/self/fd/{file}"))), libc::AT_SYMLINK_FOLLOW)
                } else {
                    ((file, text("")), libc::AT_EMPTY_PATH)
                };
                sys::at_two(libc::SYS_linkat, (from.0, &from.1), (dir, &text(to)), flags.into())
            }),
            Call::Rename { from, to, flags } => {
                sys::at_two(libc::SYS_renameat2, (dir, &text(from)), (dir, &text(to)), flags.0 as i64)
            }
            Call::Umask { mask } => sys::numbers(libc::SYS_umask, [mask.0.into()]),
            _ => return None,
        };
        Some(outcome.map(|number| line(Ok(number))))
    }

    /// Makes calls that change attributes.
    fn of_attributes(&mut self, dir: RawFd, call: &Call) -> Option<Result<String, i32>> {
        const NO_FOLLOW: i64 = libc::AT_SYMLINK_NOFOLLOW as i64;
        /// The number of fchmodat2(2), which libraries do not know yet.
        const FCHMODAT2: libc::c_long = 452;
        let outcome = match call {
            Call::Truncate { on, length } => self.either(
                on,
                |path| {
                    // truncate(2) takes no directory descriptor.
                    let path = format!("/proc/self/fd/{dir}/{}", path.to_string_lossy());
                    sys::truncate(&text(&path), *length)
                },
                |file| sys::numbers(libc::SYS_ftruncate, [file.into(), *length]),
            ),
            Call::Chmod { on, mode } => self.either(
                on,
                |path| sys::at(FCHMODAT2, dir, path, [mode.0.into(), NO_FOLLOW]),
                |file| sys::numbers(libc::SYS_fchmod, [file.into(), mode.0.into()]),
            ),
            Call::Chown { on, user, group } => {
                let id = |id: &Option<u32>| i64::from(id.unwrap_or(u32::MAX));
                let (user, group) = (id(user), id(group));
                self.either(
                    on,
                    |path| sys::at(libc::SYS_fchownat, dir, path, [user, group, NO_FOLLOW]),
                    |file| sys::numbers(libc::SYS_fchown, [file.into(), user, group]),
                )
            }
            Call::Times { on, access, modification } => {
                let time = |time: &Time| match time {
                    Time::At(seconds) => libc::timespec { tv_sec: *seconds, tv_nsec: 123_456_789 },
                    Time::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
                    Time::Omit => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
                };
                let times = [time(access), time(modification)];
                self.either(
                    on,
                    |path| sys::set_times(dir, Some(path), times, libc::AT_SYMLINK_NOFOLLOW),
                    |file| sys::set_times(file, None, times, 0),
                )
            }
            Call::SetXattr { on, name, value, flags } => {
                self.xattr(dir, on, |on| sys::set_xattr(on, &text(name), &value.0, *flags))
            }
            Call::RemoveXattr { on, name } => self.xattr(dir, on, |on| sys::remove_xattr(on, &text(name))),
            _ => return None,
        };
        Some(outcome.map(|number| line(Ok(number))))
    }
}

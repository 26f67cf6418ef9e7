//! The ioctls of a mounted volume, those of ubtrfs and those of the kernel's driver.

use std::ffi::{OsStr, c_void};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, Updater, ioctl};
use ubtrfs::{BalanceProgress, Defragmentation};
use ubtrfs_format::ioctl::{
    ADD_DEVICE, BALANCE, BALANCE_CONTROL, BALANCE_PROGRESS, CHANGES, CHANGES_SINCE, CONTROL_SYNC, DEFAULT_SUBVOL,
    DEFRAG_RANGE, DEV_INFO, EXTENT_MAP, FIEMAP, FORCE, FS_INFO, GET_DEV_STATS, GET_LABEL, GET_SUBVOL_INFO, INO_LOOKUP,
    KEEP, MERGE, NEXT, REMOUNT, REMOVE_DEVICE_V2, REPLACE, RESET_SUBVOLUME, RESIZE, SCRUB, SCRUB_CANCEL,
    SCRUB_PROGRESS, SET_LABEL, SNAP_CREATE_V2, SNAP_DESTROY_V2, SUBVOL_CREATE_V2, SUBVOL_GETFLAGS, SUBVOL_SETFLAGS,
    SYNC, TREE_SEARCH, size_of,
};
use ubtrfs_format::{DeviceId, Generation, ItemType, Key, TreeId};
use ubtrfs_server::balance;
use ubtrfs_server::control::Question;
use ubtrfs_server::control_ioctls::{
    NEXT_SIZE, QUESTION_SIZE, REMOUNT_SIZE, encode_next, encode_question, encode_remount,
};
use ubtrfs_server::defragment::{self, ARGUMENT_SIZE};
use ubtrfs_server::device_ioctls::{ADD_SIZE, REPLACE_SIZE, encode_added};
use ubtrfs_server::extent_map::{self, ExtentMap};
use ubtrfs_server::merge_ioctl::Merge;
use ubtrfs_server::scrub::{ARGUMENT_SIZE as SCRUB_SIZE, Request};
use ubtrfs_server::vacate_ioctls::{Which, encode_removed, encode_resized};

use crate::failure::{Failure, Result};
use crate::mount_table::not_on_btrfs;
use crate::place::not_a_subvolume;
use crate::remedy::about_dead_mount;
use crate::show;

const FS_INFO_SIZE: usize = size_of(FS_INFO);
const DEV_STATS_SIZE: usize = size_of(GET_DEV_STATS);
/// The size of a label in bytes, with a terminating zero.
pub const LABEL_SIZE: usize = size_of(GET_LABEL);

const READ_ONLY: u64 = 1 << 1;
/// The file system type of the kernel's btrfs in statfs(2).
const KERNEL_MAGIC: i64 = 0x9123_683e;
const BY_ID: u64 = 1 << 4;

/// The highest device number that is accepted: numbers are given consecutively.
const MAX_DEVICES: u64 = 1 << 20;

/// The size of most arguments, in bytes.
const SIZE: usize = size_of(SNAP_CREATE_V2);
type Argument = [u8; SIZE];
/// The size of `struct btrfs_ioctl_get_subvol_info_args`, in bytes.
pub const INFO_SIZE: usize = size_of(GET_SUBVOL_INFO);
/// The offset of the name in arguments of version 2, and its greatest length, in bytes.
const NAME: usize = 56;
const MAX_NAME: usize = 255;

/// An open file or directory of a mounted volume.
pub struct Mounted(File);

/// An item of a tree.
pub struct Item {
    pub key: Key,
    pub data: Vec<u8>,
}

type Done<T> = std::result::Result<T, Errno>;

impl Mounted {
    /// Opens a file or directory.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_file(path).map_err(|errno| about_opening(path, &errno.into()))
    }

    /// Opens a file or directory, and returns the error as it is, for callers that describe it
    /// themselves.
    pub fn open_file(path: &Path) -> Done<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map(|fd| Self(fd.into()))
    }

    /// Returns its path, as the kernel reports it.
    pub fn path(&self) -> PathBuf {
        let link = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        std::fs::read_link(&link).unwrap_or_else(|_| link.into())
    }

    /// Duplicates the descriptor of an open file of a tree.
    pub fn of(file: &ubtrfs_image::OpenFile) -> std::io::Result<Self> {
        Ok(Self(file.as_fd().try_clone_to_owned()?.into()))
    }

    /// Replaces `ENOTCONN` by `ECONNABORTED` if the server has died: then `ENOTCONN` is not the
    /// server's answer to the request.
    fn answered<T>(&self, done: Done<T>) -> Done<T> {
        let is_dead = || rustix::fs::fstatfs(&self.0).is_err_and(|errno| errno == Errno::NOTCONN);
        done.map_err(|errno| if errno == Errno::NOTCONN && is_dead() { Errno::CONNABORTED } else { errno })
    }

    /// Returns the device number of the mount.
    pub fn device(&self) -> Done<u64> {
        rustix::fs::fstat(&self.0).map(|found| found.st_dev)
    }

    /// Has the kernel write its dirty pages back.
    pub fn write_back(&self) -> Done<()> {
        rustix::fs::syncfs(&self.0)
    }

    /// Makes an empty subvolume in this directory.
    pub fn create(&self, name: &OsStr) -> Done<()> {
        let argument = named(-1, 0, name)?;
        // SAFETY: this command reads an argument of the size that its number encodes, and nothing
        // else.
        unsafe { ioctl(&self.0, Setter::<SUBVOL_CREATE_V2, Argument>::new(argument)) }
    }

    /// Makes a snapshot in this directory.
    pub fn snapshot(&self, source: &Self, name: &OsStr, read_only: bool) -> Done<()> {
        let argument = named(i64::from(source.0.as_raw_fd()), if read_only { READ_ONLY } else { 0 }, name)?;
        // SAFETY: the same.
        unsafe { ioctl(&self.0, Setter::<SNAP_CREATE_V2, Argument>::new(argument)) }
    }

    /// Deletes a subvolume by its name in this directory.
    pub fn delete(&self, name: &OsStr) -> Done<()> {
        self.destroy(&named(-1, 0, name)?)
    }

    /// Deletes a subvolume by its number.
    pub fn delete_by_id(&self, id: u64) -> Done<()> {
        let mut argument = named(-1, BY_ID, OsStr::new(""))?;
        argument[NAME..NAME + 8].copy_from_slice(&id.to_le_bytes());
        self.destroy(&argument)
    }

    /// Puts a snapshot in place of a subvolume in this directory. `ENOTTY` on a mount that is not
    /// of ubtrfs.
    pub fn reset(&self, name: &OsStr, source: &Self) -> Done<()> {
        let argument = named(i64::from(source.0.as_raw_fd()), 0, name)?;
        // SAFETY: the same.
        unsafe { ioctl(&self.0, Setter::<RESET_SUBVOLUME, Argument>::new(argument)) }
    }

    /// Begins a merge into the subvolume of this file, and returns the number of the stream with
    /// the outcome. `ENOTTY` on a mount that is not of ubtrfs.
    pub fn merge(&self, merge: &Merge) -> Done<u64> {
        let mut argument = merge.encode();
        // SAFETY: this command reads and writes an argument of the size that its number encodes.
        let updater = unsafe { Updater::<MERGE, _>::new(&mut argument) };
        // SAFETY: the same.
        unsafe { ioctl(&self.0, updater) }?;
        argument.first_chunk().map(|number| u64::from_le_bytes(*number)).ok_or(Errno::PROTO)
    }

    fn destroy(&self, argument: &Argument) -> Done<()> {
        // SAFETY: the same.
        unsafe { ioctl(&self.0, Setter::<SNAP_DESTROY_V2, Argument>::new(*argument)) }
    }

    /// Whether this subvolume is read-only. `EINVAL` if it is no subvolume.
    pub fn is_read_only(&self) -> Done<bool> {
        // SAFETY: this command fills in a number.
        let getter = unsafe { Getter::<SUBVOL_GETFLAGS, u64>::new() };
        // SAFETY: the same.
        unsafe { ioctl(&self.0, getter) }.map(|flags| flags & READ_ONLY != 0)
    }

    /// Makes this subvolume read-only or writable.
    pub fn set_read_only(&self, read_only: bool) -> Done<()> {
        let flags = if read_only { READ_ONLY } else { 0 };
        // SAFETY: this command reads a number.
        unsafe { ioctl(&self.0, Setter::<SUBVOL_SETFLAGS, u64>::new(flags)) }
    }

    /// Returns the description of the subvolume of this file.
    pub fn info(&self) -> Done<[u8; INFO_SIZE]> {
        // SAFETY: this command fills in an argument of the size that its number encodes.
        let getter = unsafe { Getter::<GET_SUBVOL_INFO, [u8; INFO_SIZE]>::new() };
        // SAFETY: the same.
        unsafe { ioctl(&self.0, getter) }
    }

    /// Returns the subvolume of this file.
    pub fn subvolume(&self) -> Done<TreeId> {
        let mut argument: Argument = [0; SIZE];
        argument[8..16].copy_from_slice(&256_u64.to_le_bytes());
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        unsafe { ioctl(&self.0, Updater::<INO_LOOKUP, Argument>::new(&mut argument)) }?;
        Ok(TreeId(u64_at(&argument, 0)))
    }

    /// Sets the default subvolume.
    pub fn set_default(&self, id: u64) -> Done<()> {
        // SAFETY: this command reads a number.
        unsafe { ioctl(&self.0, Setter::<DEFAULT_SUBVOL, u64>::new(id)) }
    }

    /// Returns the numbers of the volume's devices.
    pub fn device_numbers(&self) -> Done<Vec<u64>> {
        // SAFETY: this command fills in an array of the size that its number encodes.
        let getter = unsafe { Getter::<FS_INFO, [u8; FS_INFO_SIZE]>::new() };
        // SAFETY: the same.
        let highest = u64_at(&self.answered(unsafe { ioctl(&self.0, getter) })?, 0);
        if highest > MAX_DEVICES {
            return Err(Errno::PROTO);
        }
        let mut numbers = Vec::new();
        for devid in 1..=highest {
            match self.device_path(devid) {
                Ok(_) => numbers.push(devid),
                Err(Errno::NODEV) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(numbers)
    }

    /// Returns the path of a device.
    pub fn device_path(&self, devid: u64) -> Done<String> {
        const PATH: usize = 3072;
        let argument = self.device_info(devid)?;
        let path: Vec<u8> = argument[PATH..].iter().copied().take_while(|byte| *byte != 0).collect();
        Ok(show::harmless(&String::from_utf8_lossy(&path)))
    }

    /// Returns how many bytes of a device chunks take, and how many bytes it has.
    pub fn device_bytes(&self, devid: u64) -> Done<(u64, u64)> {
        let argument = self.device_info(devid)?;
        Ok((u64_at(&argument, 24), u64_at(&argument, 32)))
    }

    fn device_info(&self, devid: u64) -> Done<Argument> {
        let mut argument: Argument = [0; SIZE];
        argument[..8].copy_from_slice(&devid.to_le_bytes());
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        let done = unsafe { ioctl(&self.0, Updater::<DEV_INFO, Argument>::new(&mut argument)) };
        self.answered(done).map(|()| argument)
    }

    /// Returns how often a device failed. `reset` sets the counters to zero afterwards.
    pub fn device_errors(&self, devid: u64, reset: bool) -> Done<[u64; 5]> {
        let mut argument = [0; DEV_STATS_SIZE];
        for (index, number) in [devid, 5, u64::from(reset)].iter().enumerate() {
            argument[index * 8..index * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        unsafe { ioctl(&self.0, Updater::<GET_DEV_STATS, [u8; DEV_STATS_SIZE]>::new(&mut argument)) }?;
        Ok(std::array::from_fn(|index| u64_at(&argument, 24 + index * 8)))
    }

    /// Whether the file is on a mount of the kernel's btrfs.
    pub fn is_of_the_kernel(&self) -> Done<bool> {
        rustix::fs::fstatfs(&self.0).map(|found| found.f_type == KERNEL_MAGIC)
    }

    /// Returns the size of the file in bytes.
    pub fn size(&self) -> Done<u64> {
        rustix::fs::fstat(&self.0).map(|found| found.st_size.cast_unsigned())
    }

    /// Makes the file durable.
    pub fn sync(&self) -> Done<()> {
        rustix::fs::fsync(&self.0)
    }

    /// Defragments the file.
    pub fn defragment(&self, how: &Defragmentation) -> Done<()> {
        // SAFETY: this command reads an argument of the size that its number encodes.
        unsafe { ioctl(&self.0, Setter::<DEFRAG_RANGE, [u8; ARGUMENT_SIZE]>::new(defragment::encode(how))) }
    }

    /// Returns the map of the file's extents from an offset on. Other file systems than btrfs
    /// return theirs.
    pub fn extents(&self, from: u64) -> Done<ExtentMap> {
        let mut argument = extent_map::ask(from);
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        let asked =
            unsafe { ioctl(&self.0, Updater::<EXTENT_MAP, [u8; extent_map::ARGUMENT_SIZE]>::new(&mut argument)) };
        if asked == Err(Errno::NOTTY) {
            // SAFETY: this command reads and fills in an argument of the size that its number
            // encodes, and after it as many extents as that has room for.
            unsafe { ioctl(&self.0, Updater::<FIEMAP, [u8; extent_map::ARGUMENT_SIZE]>::new(&mut argument)) }?;
        } else {
            asked?;
        }
        Ok(extent_map::decode(&argument))
    }

    /// Returns the id of the volume that the file is on.
    pub fn volume_id(&self) -> Done<[u8; 16]> {
        // SAFETY: this command fills in an array of the size that its number encodes.
        let getter = unsafe { Getter::<FS_INFO, [u8; FS_INFO_SIZE]>::new() };
        // SAFETY: the same.
        let info = unsafe { ioctl(&self.0, getter) }?;
        Ok(std::array::from_fn(|index| info[16 + index]))
    }

    /// Scrubs a device. Returns the counters when the scrub is done.
    pub fn scrub(&self, request: &Request) -> Done<[u8; SCRUB_SIZE]> {
        let mut argument = request.encode();
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        unsafe { ioctl(&self.0, Updater::<SCRUB, [u8; SCRUB_SIZE]>::new(&mut argument)) }?;
        Ok(argument)
    }

    /// Returns what the scrub of a device has done so far.
    pub fn scrub_progress(&self, device: DeviceId) -> Done<[u8; SCRUB_SIZE]> {
        let mut argument = [0; SCRUB_SIZE];
        argument[..8].copy_from_slice(&device.0.to_le_bytes());
        // SAFETY: the same.
        let done = unsafe { ioctl(&self.0, Updater::<SCRUB_PROGRESS, [u8; SCRUB_SIZE]>::new(&mut argument)) };
        self.answered(done).map(|()| argument)
    }

    /// Cancels all scrubs of the volume.
    pub fn cancel_scrub(&self) -> Done<()> {
        // SAFETY: this command has no argument.
        self.answered(unsafe { ioctl(&self.0, NoArg::<SCRUB_CANCEL>::new()) })
    }

    /// Starts or resumes a balance of the volume. Returns its progress when it is done.
    pub fn balance(&self, run: &balance::Run) -> Done<BalanceProgress> {
        let mut argument = run.encode();
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        let answer = unsafe { ioctl(&self.0, Answering::<BALANCE, [u8; balance::ARGUMENT_SIZE]>(&mut argument)) };
        self.answered(answer).and_then(done)?;
        Ok(balance::progress_in(&argument).1)
    }

    /// Returns the progress of a balance of the volume.
    pub fn balance_progress(&self) -> Done<[u8; balance::ARGUMENT_SIZE]> {
        // SAFETY: this command fills in an argument of the size that its number encodes.
        let getter = unsafe { Getter::<BALANCE_PROGRESS, [u8; balance::ARGUMENT_SIZE]>::new() };
        // SAFETY: the same.
        self.answered(unsafe { ioctl(&self.0, getter) })
    }

    /// Has a balance of the volume pause or end.
    pub fn control_balance(&self, wish: u64) -> Done<()> {
        // SAFETY: this command reads a number.
        self.answered(unsafe { ioctl(&self.0, Setter::<BALANCE_CONTROL, u64>::new(wish)) })
    }

    /// Adds a device to the volume.
    pub fn add_device(&self, path: &str) -> Done<()> {
        let mut argument = encode_added(path)?;
        // SAFETY: this command reads an argument of the size that its number encodes.
        unsafe { ioctl(&self.0, Answering::<ADD_DEVICE, [u8; ADD_SIZE]>(&mut argument)) }.and_then(done)
    }

    /// Removes a device from the volume, or cancels the removal. Returns when that is done.
    pub fn remove_device(&self, which: &Which, bytes_per_second: u64) -> Done<()> {
        let mut argument = encode_removed(which, bytes_per_second)?;
        // SAFETY: the same.
        let answer = unsafe { ioctl(&self.0, Answering::<REMOVE_DEVICE_V2, Argument>(&mut argument)) };
        self.answered(answer).and_then(done)
    }

    /// Resizes a device, or cancels the resize. Returns when that is done.
    pub fn resize(&self, what: &str, bytes_per_second: u64) -> Done<()> {
        let mut argument = encode_resized(what, bytes_per_second)?;
        // SAFETY: the same.
        let answer = unsafe { ioctl(&self.0, Answering::<RESIZE, Argument>(&mut argument)) };
        self.answered(answer).and_then(done)
    }

    /// Begins the replacement of a device, queries its progress or cancels it, as the argument
    /// says. Returns the answer.
    pub fn replace(&self, mut argument: [u8; REPLACE_SIZE]) -> Done<[u8; REPLACE_SIZE]> {
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        let done = unsafe { ioctl(&self.0, Updater::<REPLACE, [u8; REPLACE_SIZE]>::new(&mut argument)) };
        self.answered(done).map(|()| argument)
    }

    /// Makes all changes of the volume durable.
    pub fn commit(&self) -> Done<()> {
        // SAFETY: this command has no argument.
        unsafe { ioctl(&self.0, NoArg::<SYNC>::new()) }
    }

    /// Makes all changes of a mount of ubtrfs durable. `ENOTTY` on another mount.
    pub fn sync_volume(&self) -> Done<()> {
        // SAFETY: this command has no argument.
        unsafe { ioctl(&self.0, NoArg::<CONTROL_SYNC>::new()) }
    }

    /// Has the server do its part of a remount: `ro`, `rw`, or an option that says how data is
    /// written. An empty string asks whether the server would do it.
    pub fn change_mount(&self, change: &str) -> Done<()> {
        let argument = encode_remount(change)?;
        // SAFETY: this command reads an argument of the size that its number encodes.
        unsafe { ioctl(&self.0, Setter::<REMOUNT, [u8; REMOUNT_SIZE]>::new(argument)) }
    }

    /// Announces to the server that its connection will be aborted.
    pub fn expect_force(&self) -> Done<()> {
        // SAFETY: this command has no argument.
        unsafe { ioctl(&self.0, NoArg::<FORCE>::new()) }
    }

    /// Begins a long answer to a question. Returns the number of its stream. `ENOTTY` on a mount
    /// that is not of ubtrfs.
    pub fn ask(&self, question: &Question) -> Done<u64> {
        let mut argument = encode_question(question);
        let asked = match question {
            // SAFETY: these commands read and write an argument of the size that their numbers
            // encode.
            Question::Changes { .. } => unsafe {
                ioctl(&self.0, Updater::<CHANGES, [u8; QUESTION_SIZE]>::new(&mut argument))
            },
            // SAFETY: the same.
            Question::ChangesSince { .. } => unsafe {
                ioctl(&self.0, Updater::<CHANGES_SINCE, [u8; QUESTION_SIZE]>::new(&mut argument))
            },
        };
        asked?;
        Ok(u64_at(&argument, 0))
    }

    /// Returns the next piece of the stream with this number, as the ioctl answers.
    pub fn next_piece(&self, number: u64) -> Done<Box<[u8; NEXT_SIZE]>> {
        let mut argument = Box::new(encode_next(number));
        // SAFETY: this command reads and fills in an argument of the size that its number encodes.
        unsafe { ioctl(&self.0, Updater::<NEXT, [u8; NEXT_SIZE]>::new(&mut argument)) }?;
        Ok(argument)
    }

    /// Reports that the reader of a stream is still there.
    pub fn keep_stream(&self, number: u64) -> Done<()> {
        // SAFETY: this command reads a number.
        unsafe { ioctl(&self.0, Setter::<KEEP, u64>::new(number)) }
    }

    /// Returns the volume's label. `ENOTTY` if the file is not on btrfs: other file systems know
    /// this command, too.
    pub fn label(&self) -> Done<Vec<u8>> {
        self.volume_id()?;
        // SAFETY: this command fills in an array of the size that its number encodes.
        let getter = unsafe { Getter::<GET_LABEL, [u8; LABEL_SIZE]>::new() };
        // SAFETY: the same.
        let label = unsafe { ioctl(&self.0, getter) }?;
        Ok(label.iter().copied().take_while(|byte| *byte != 0).collect())
    }

    /// Sets the label of the volume. `ENAMETOOLONG` if it is too long, `ENOTTY` if the file is not
    /// on btrfs: other file systems know this command, too.
    pub fn set_label(&self, label: &[u8]) -> Done<()> {
        self.volume_id()?;
        let mut argument = [0; LABEL_SIZE];
        argument.get_mut(..label.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(label);
        // SAFETY: this command reads an array of the size that its number encodes.
        unsafe { ioctl(&self.0, Setter::<SET_LABEL, [u8; LABEL_SIZE]>::new(argument)) }
    }

    /// Visits the items of a tree from `first` to `last` in leaves that the commit `oldest` or a
    /// later one wrote, until `visit` returns false.
    pub fn search_since(
        &self,
        tree: TreeId,
        oldest: Generation,
        (first, last): (Key, Key),
        visit: &mut dyn FnMut(Item) -> bool,
    ) -> Done<()> {
        const HEAD: usize = 104;
        const ITEM_HEAD: usize = 32;
        let mut from = Some(first);
        while let Some(first) = from.filter(|first| *first <= last) {
            let mut argument: Argument = [0; SIZE];
            let numbers = [tree.0, first.objectid, last.objectid, first.offset, last.offset, oldest.0, u64::MAX];
            for (place, number) in argument.chunks_exact_mut(8).zip(numbers) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            argument[56..60].copy_from_slice(&u32::from(first.item_type.0).to_le_bytes());
            argument[60..64].copy_from_slice(&u32::from(last.item_type.0).to_le_bytes());
            argument[64..68].copy_from_slice(&u32::MAX.to_le_bytes());
            // SAFETY: this command reads and fills in an argument of the size that its number
            // encodes.
            unsafe { ioctl(&self.0, Updater::<TREE_SEARCH, Argument>::new(&mut argument)) }?;
            let found = u64_at(&argument, 64) & u64::from(u32::MAX);
            let mut rest = &argument[HEAD..];
            let mut end = None;
            for _ in 0..found {
                let (head, behind) = rest.split_at_checked(ITEM_HEAD).ok_or(Errno::PROTO)?;
                let kind_and_length = u64_at(head, 24);
                let (kind, length) = (kind_and_length as u8, (kind_and_length >> 32) as usize);
                let key = Key::new(u64_at(head, 8), ItemType(kind), u64_at(head, 16));
                if key < first || end.is_some_and(|end| key <= end) {
                    return Err(Errno::PROTO);
                }
                let (data, behind) = behind.split_at_checked(length).ok_or(Errno::PROTO)?;
                if !visit(Item { key, data: data.to_vec() }) {
                    return Ok(());
                }
                end = Some(key);
                rest = behind;
            }
            from = end.and_then(after);
        }
        Ok(())
    }
}

/// An ioctl that reads and perhaps fills in its argument, and whose answer is a number.
struct Answering<'a, const OPCODE: Opcode, T>(&'a mut T);

// SAFETY: the argument is borrowed, and has the size that the number of the command encodes.
unsafe impl<const OPCODE: Opcode, T> Ioctl for Answering<'_, OPCODE, T> {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> Done<IoctlOutput> {
        Ok(output)
    }
}

/// Translates the answer of the kernel's driver to a change of devices, which may be a refusal by a
/// number of its own (`enum btrfs_err_code` of `linux/btrfs.h`).
fn done(answer: IoctlOutput) -> Done<()> {
    match answer {
        0 => Ok(()),
        5 | 6 => Err(Errno::NODEV),
        8 => Err(Errno::INPROGRESS),
        _ => Err(Errno::INVAL),
    }
}

/// Describes why a file of a mount can't be opened.
pub fn about_opening(path: &Path, error: &std::io::Error) -> Failure {
    match Errno::from_io_error(error) {
        Some(errno @ (Errno::NOTCONN | Errno::CONNABORTED)) => about_mount(path.display(), errno),
        _ => Failure::about(path.display(), error),
    }
}

/// Describes why a mounted volume refuses a request.
pub fn about_mount(subject: impl std::fmt::Display, errno: Errno) -> Failure {
    match errno {
        Errno::NOTTY => not_on_btrfs(&subject.to_string()),
        Errno::NOTCONN | Errno::CONNABORTED => about_dead_mount(subject),
        errno => Failure::about(subject, &std::io::Error::from(errno)),
    }
}

/// Returns an error if an open file is not the root directory of a subvolume.
pub fn check_subvolume(mounted: &Mounted, path: &Path) -> Result<()> {
    mounted.is_read_only().map(drop).map_err(|errno| match errno {
        Errno::INVAL => not_a_subvolume(path),
        errno => about_mount(path.display(), errno),
    })
}

/// Opens the root directory of a subvolume.
pub fn open_subvolume(path: &Path) -> Result<Mounted> {
    let opened = Mounted::open(path)?;
    check_subvolume(&opened, path)?;
    Ok(opened)
}

/// Returns the key that follows a key.
fn after(key: Key) -> Option<Key> {
    let Key { objectid, item_type, offset } = key;
    match (offset.checked_add(1), item_type.0.checked_add(1)) {
        (Some(offset), _) => Some(Key::new(objectid, item_type, offset)),
        (None, Some(kind)) => Some(Key::new(objectid, ItemType(kind), 0)),
        (None, None) => Some(Key::new(objectid.checked_add(1)?, ItemType(0), 0)),
    }
}

/// Returns the argument of version 2 with a name.
fn named(descriptor: i64, flags: u64, name: &OsStr) -> Done<Argument> {
    let name = name.as_bytes();
    if name.len() > MAX_NAME {
        return Err(Errno::NAMETOOLONG);
    }
    let mut argument: Argument = [0; SIZE];
    argument[..8].copy_from_slice(&descriptor.to_le_bytes());
    argument[16..24].copy_from_slice(&flags.to_le_bytes());
    argument[NAME..NAME + name.len()].copy_from_slice(name);
    Ok(argument)
}

/// Returns a number in an answer.
pub fn u64_at(data: &[u8], at: usize) -> u64 {
    data.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

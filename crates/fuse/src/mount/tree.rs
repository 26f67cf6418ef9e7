//! Mounts of single directories of a filesystem, as the kernel's own file systems have them: the
//! whole filesystem is mounted nowhere in the tree, and a directory of it is mounted at the mount
//! point. There is one file system in the kernel, and so one cache, however many of its directories
//! are mounted, and by however many processes. It ends with the last of these mounts.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, mount_change, move_mount,
    open_tree,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::error::MountError;
use super::identity;
use super::name_of_device::NameOfDevice;
use super::options::MountOptions;
use super::point::open_point;
use crate::device::Device;

/// The mount namespace of a thread.
const NAMESPACE: &str = "/proc/thread-self/ns/mnt";

/// A whole file system, mounted nowhere in the tree. If nothing of it was attached when this is
/// dropped, the mount ends.
#[derive(Debug)]
pub struct Detached {
    mount: OwnedFd,
}

impl Detached {
    /// Mounts a file system of type `kind` whose requests come from `device`. `read_only` makes the
    /// file system read-only; all that the kernel keeps for each mount, such as the `read_only` of
    /// the options, applies to this mount.
    pub(super) fn new(
        kind: &str,
        source: &str,
        device: &Device,
        options: &MountOptions,
        read_only: bool,
    ) -> Result<Self, MountError> {
        let all = options.kernel_options(device.as_fd().as_raw_fd(), kind == "fuseblk")?;
        let mount = || {
            let new = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_set_string(&new, "source", source)?;
            for option in &all {
                match option.split_once('=') {
                    Some((name, value)) => fsconfig_set_string(&new, name, value)?,
                    None => fsconfig_set_flag(&new, option.as_str())?,
                }
            }
            if read_only {
                fsconfig_set_flag(&new, "ro")?;
            }
            fsconfig_create(&new)?;
            fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, options.attributes())
        };
        let mount = mount().map_err(|errno| MountError::Mount(source.into(), errno.into()))?;
        Ok(Self { mount })
    }

    /// Makes one more mount, with its own flags, of the file system that is mounted from this block
    /// device as `fuseblk` already. The kernel finds it by the device; this asks neither its server
    /// nor any mount point. The mount table shows `source`, as for the first mount, if the name can
    /// be made. `None` if there is no such mount (any more). Needs root.
    pub fn of_mounted(
        device: &Path,
        source: &str,
        options: &MountOptions,
        read_only: bool,
    ) -> Result<Option<Self>, MountError> {
        let unused = Device::open().map_err(MountError::Device)?;
        let path = device.to_str().ok_or_else(|| MountError::Mount(device.into(), Errno::INVAL.into()))?;
        let number = |path: &Path| std::fs::metadata(path).ok().map(|found| found.rdev());
        let mount = |source| Self::new("fuseblk", source, &unused, options, read_only);
        let mounted = if number(Path::new(source)) == number(device) {
            mount(source)
        } else if let Ok(name) = NameOfDevice::new(source, path) {
            let failed = |error| MountError::Mount(source.into(), error);
            name.with(|| mount(name.as_str())).map_err(failed)?
        } else {
            mount(path)
        };
        let mounted = mounted?;
        // If the mount belongs to our own `/dev/fuse`, it is a new one that nobody serves.
        Ok(if unused.is_mounted().map_err(MountError::Device)? { None } else { Some(mounted) })
    }

    /// Makes one more mount, with its own flags, of the file system that is mounted as `fuse`
    /// already by this connection. This asks neither its server nor any mount point. The mount
    /// table shows `source`, as for the first mount. `None` if the file system is not mounted any
    /// more. Needs root.
    pub fn of_connection(
        connection: OwnedFd,
        source: &str,
        options: &MountOptions,
        read_only: bool,
    ) -> Result<Option<Self>, MountError> {
        match Self::new("fuse", source, &connection.into(), options, read_only) {
            Err(MountError::Mount(_, error)) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => Ok(None),
            mounted => mounted.map(Some),
        }
    }

    /// A path of its root, for this process.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.mount.as_raw_fd()).into()
    }

    /// The device number that its files show, major and minor.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        identity::device_number_of(&self.mount)
    }

    /// Opens a directory in the file system with `O_PATH`. Symbolic links are not followed. The
    /// session must be running, since this sends requests to it.
    pub fn open(&self, directory: &Path) -> io::Result<File> {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = rustix::fs::openat(&self.mount, ".", how, Mode::empty())?;
        for part in directory.components() {
            let name: &OsStr = match part {
                Component::RootDir | Component::CurDir => continue,
                Component::ParentDir | Component::Prefix(_) => return Err(Errno::NOENT.into()),
                Component::Normal(name) => name,
            };
            at = rustix::fs::openat(&at, name, how, Mode::empty())?;
        }
        Ok(at.into())
    }

    /// Makes a read-only file system writable again in the kernel. Mounts that are read-only stay
    /// so.
    pub fn make_writable(&self) -> io::Result<()> {
        let change = fspick(&self.mount, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
        fsconfig_set_flag(&change, "rw")?;
        Ok(fsconfig_reconfigure(&change)?)
    }

    /// Mounts all of it on the directory `point`.
    pub(super) fn attach_root(self, point: &Path) -> Result<(), MountError> {
        let opened = open_point(point)?;
        place(&self.mount, &opened).map_err(|error| MountError::Mount(point.into(), error))
    }

    /// Mounts a directory that was [opened](Self::open) in it on the directory `point`.
    pub fn attach(self, directory: &File, point: &Path) -> Result<(), MountError> {
        let failed = |error: io::Error| MountError::Mount(point.into(), error);
        let opened = open_point(point)?;
        let tree = match clone_of(directory) {
            // Before Linux 6.15 this works only for a mount that is in a tree.
            Err(Errno::INVAL) => self.clone_in_a_tree(directory),
            done => done.map_err(Into::into),
        };
        place(&tree.map_err(failed)?, &opened).map_err(failed)
    }

    /// Makes a mount of a directory alone while the whole file system is mounted in a mount
    /// namespace of its own, so that nobody sees it meanwhile.
    fn clone_in_a_tree(&self, directory: &File) -> io::Result<OwnedFd> {
        let work = || {
            // SAFETY: from now on this thread, which ends here, has its own working directory and
            // mounts; nothing relies on its having those of the process.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }?;
            // This enters the root of the namespace, since the root directory of the process may be
            // no mount point.
            move_into_link_name_space(File::open(NAMESPACE)?.as_fd(), Some(LinkNameSpaceType::Mount))?;
            // What is mounted here does not appear in other namespaces, but what is unmounted there
            // disappears here.
            mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
            move_mount(&self.mount, "", rustix::fs::CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
            Ok(clone_of(directory)?)
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("attach".into()).spawn_scoped(scope, work)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Makes a mount of a directory alone, nowhere in the tree.
fn clone_of(directory: &File) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, "", flags)
}

fn place(mount: &OwnedFd, point: &File) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", point, "", flags)?)
}

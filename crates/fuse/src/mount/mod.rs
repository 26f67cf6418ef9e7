//! Mounting and unmounting.
//!
//! Root mounts with type `fuseblk` where there is a block device to name as the source, so that
//! sync(2), syncfs(2) and umount(2) reach the filesystem, else with type `fuse`. Something that the
//! kernel has no device of, such as an export of a server, gets a loop device for that. Other users
//! mount by `fusermount3`.

mod error;
mod fusermount;
mod identity;
mod loop_device;
mod name_of_device;
mod options;
mod point;
mod tree;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, ioctl};
pub use rustix::mount::MountFlags;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

use crate::connection::{Connection, Observed};
use crate::device::Device;
pub use error::{MountError, Unmount};
use identity::Listed;
pub use identity::device_number_of;
pub(crate) use loop_device::LoopDevice;
pub use loop_device::SOURCE_LABEL;
use name_of_device::NameOfDevice;
pub use options::{MountOptions, Source};
pub use point::{Point, is_dead};
use point::{open_point, real_path};
pub use tree::Detached;

/// The longest time that a umount(2) with `MNT_FORCE` needs between aborting and unmounting, also
/// where the processors are busy.
const TIME_OF_FORCED_UNMOUNT: Duration = Duration::from_secs(5);

/// How a filesystem was mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountKind {
    /// `fuseblk`: sync(2), syncfs(2) and umount(2) reach the filesystem and wait for it.
    Block,
    /// `fuse`: these calls don't reach the filesystem.
    Plain,
    /// `fuse` by `fusermount3`: these calls don't reach it either.
    Fusermount,
}

/// A mount. If it still exists when this is dropped, it is unmounted lazily.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    how: How,
    device_number: Option<(u32, u32)>,
    /// The connection, if the filesystem may be mounted in several places. `None` if the kernel
    /// doesn't show it.
    connection: Option<Observed>,
    place: OnceLock<Place>,
}

/// How the mount was made.
#[derive(Debug)]
struct How {
    kind: MountKind,
    source: String,
    fallback: Option<String>,
    /// A path to the block device that is the source, if the kernel's dirty pages may have to be
    /// written by a flush of it.
    block: Option<PathBuf>,
}

/// The identity of the mount once it is in the tree.
#[derive(Debug)]
struct Place {
    id: Option<u64>,
    listed_as: Option<u64>,
}

impl Place {
    fn of(path: &Path) -> Self {
        Self { id: identity::of(path), listed_as: identity::listed_as(path) }
    }
}

impl Mount {
    /// Mounts on the directory `path`. The kernel's INIT then waits on the device, and every
    /// process that uses the mount waits for its answer: see
    /// [`Session::establish`](crate::Session::establish).
    pub fn new(path: &Path, options: &MountOptions) -> Result<(Self, Device), MountError> {
        if rustix::process::geteuid().is_root() {
            let (mount, all, device) = Self::new_nowhere(path, options)?;
            all.attach_root(path)?;
            mount.note_place();
            return Ok((mount, device));
        }
        open_point(path)?;
        let path = real_path(path)?;
        let device = fusermount::mount(&path, options)?;
        let source = options.shown_name().to_owned();
        let fallback = options.source.wants_block().then(|| "only root mounts fuseblk".to_owned());
        let how = How { kind: MountKind::Fusermount, source, fallback, block: None };
        let device_number = identity::device_number(&path);
        let mount = Self { how, device_number, connection: None, place: OnceLock::new(), path };
        mount.note_place();
        Ok((mount, device))
    }

    /// Mounts the filesystem, but nowhere in the tree yet. [`Self::attach`] mounts a directory of
    /// it on the directory `path`. Needs root.
    pub fn new_nowhere(path: &Path, options: &MountOptions) -> Result<(Self, Detached, Device), MountError> {
        open_point(path)?;
        let path = real_path(path)?;
        let (how, all, device) = mount_as_root(&path, options)?;
        let device_number = all.device_number();
        let connection = device_number.and_then(|number| Connection::of(number).observe().ok());
        Ok((Self { path, how, device_number, connection, place: OnceLock::new() }, all, device))
    }

    /// Mounts a directory of the filesystem that was mounted [nowhere](Self::new_nowhere).
    pub fn attach(&self, all: Detached, directory: &File) -> Result<(), MountError> {
        all.attach(directory, &self.path)?;
        self.note_place();
        Ok(())
    }

    fn note_place(&self) {
        if let Some(reason) = &self.how.fallback {
            tracing::info!(reason, "mounted as plain fuse");
        }
        let _ = self.place.set(Place::of(&self.path));
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the filesystem was mounted.
    pub fn kind(&self) -> MountKind {
        self.how.kind
    }

    /// The source in the mount table: the block device (for an image, its loop device), the URI or
    /// the name.
    pub fn source(&self) -> &str {
        &self.how.source
    }

    /// Why the type isn't `fuseblk` although there is a device, an image or a URI.
    pub fn fallback(&self) -> Option<&str> {
        self.how.fallback.as_deref()
    }

    /// The device number that the mount's files show, major and minor.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        self.device_number
    }

    /// Returns whether the mount still exists and is visible at its path.
    pub fn is_mounted(&self) -> bool {
        let id = self.place.get().and_then(|place| place.id);
        id.is_some() && id == identity::of(&self.path)
    }

    /// Has the kernel write all dirty pages of a `fuseblk` mount, and waits until the session has
    /// served the WRITEs. The kernel also sends a SYNCFS, from this thread. This waits for a
    /// remount in progress, and does not keep the mount busy, as a call by a path would.
    pub fn write_pages(&self) -> io::Result<()> {
        /// `BLKFLSBUF`: syncs what is mounted from a block device.
        const FLUSH: rustix::ioctl::Opcode = 0x1261;
        let block = File::open(self.how.block.as_ref().ok_or(Errno::NODEV)?)?;
        // SAFETY: the command takes no argument and changes no memory of the process.
        Ok(unsafe { ioctl(&block, NoArg::<FLUSH>::new()) }?)
    }

    /// Returns whether the mount table lists this mount, or another of the same filesystem, and the
    /// filesystem itself is read-only.
    pub fn is_listed_read_only(&self) -> bool {
        self.listed().is_some_and(|listed| listed.is_read_only())
    }

    fn listed(&self) -> Option<Listed<'_>> {
        let source = (self.how.kind != MountKind::Block).then_some(&*self.how.source);
        self.device_number.map(|number| Listed { number, source })
    }

    /// Has the kernel show the file system as read-only in all its mounts, and refuse changes
    /// itself. Fails with `EBUSY` while a file is open for writing, and with `EPERM` for a process
    /// that is not root where the file system was mounted. The kernel writes its dirty pages first,
    /// so the session must be running.
    pub fn make_read_only(&self) -> io::Result<()> {
        let point = self.points().pop().ok_or(Errno::NOENT)?;
        let open = rustix::fs::open(&point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if identity::device_number_of(&open) != self.device_number {
            return Err(Errno::NOENT.into());
        }
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        let picked = fspick(&open, "", flags)?;
        // The open descriptor keeps the mount busy; the picked file system does not.
        drop(open);
        fsconfig_set_flag(picked.as_fd(), "ro")?;
        Ok(fsconfig_reconfigure(picked.as_fd())?)
    }

    /// Has the kernel read ahead as far in files that are read in order as it does for its own
    /// btrfs: 4 MiB instead of FUSE's 128 KiB. To be called once the session is established, when
    /// the kernel has set its own value. Only root may change the value; for others it stays the
    /// same.
    pub fn read_far_ahead(&self) {
        const READ_AHEAD_KIB: &str = "4096";
        let Some((major, minor)) = self.device_number() else { return };
        let suffix = if self.how.kind == MountKind::Block { "-fuseblk" } else { "" };
        let setting = format!("/sys/class/bdi/{major}:{minor}{suffix}/read_ahead_kb");
        if let Err(error) = std::fs::write(&setting, READ_AHEAD_KIB) {
            tracing::debug!(%error, setting, "the kernel reads ahead no further than it does by itself");
        }
    }

    /// Unmounts what is left of the mount after its connection was aborted. The abort may come from
    /// a umount(2) with `MNT_FORCE`, which fails with EINVAL if the mount disappears under it. So
    /// this first gives that call the time to unmount by itself.
    pub fn unmount_aborted(&self) {
        let deadline = Instant::now() + TIME_OF_FORCED_UNMOUNT;
        let listed_as = self.place.get().and_then(|place| place.listed_as);
        let is_listed = || listed_as.is_some_and(identity::is_listed);
        while is_listed() && Instant::now() < deadline {
            thread::sleep(TIME_OF_FORCED_UNMOUNT / 1000);
        }
        self.unmount_lazily();
    }

    /// Unmounts the filesystem lazily wherever it is visible, whether or not somebody uses it.
    pub fn unmount_lazily(&self) {
        for path in self.points() {
            let Ok(point) = Point::open(&path) else { continue };
            // If it isn't known whether the filesystem still exists, another server may have
            // mounted the device by now, with the same number.
            let is_own = path == self.path || self.connection.is_some() || is_dead(&point.place());
            if is_own && let Err(error) = self.unmount_at(&point, Unmount::Lazy) {
                tracing::debug!(%error, "not unmounted");
            }
        }
    }

    /// Returns whether the filesystem is known to be mounted nowhere any more. Another filesystem
    /// then has its device number, or will get it.
    fn has_ended(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.exists())
    }

    /// The mount points at which the filesystem, or a part of it, is visible in this mount
    /// namespace: those at which any process has mounted a part of it, and last the mount's own
    /// path. Once the filesystem has ended and the kernel doesn't show that, these are the points
    /// of the next mount of the device.
    pub fn points(&self) -> Vec<PathBuf> {
        let mut points = match self.listed() {
            // Mounts by `fusermount3` are not mounted elsewhere.
            Some(listed) if self.how.kind != MountKind::Fusermount && !self.has_ended() => {
                let mut points = listed.points();
                // Of several mounts on one mount point only the last is visible, and that may be
                // something else.
                points.retain(|point| *point != self.path && identity::device_number(point) == Some(listed.number));
                points
            }
            _ => Vec::new(),
        };
        if self.is_mounted() {
            points.push(self.path.clone());
        }
        points
    }

    /// Unmounts the filesystem wherever it is visible. The session must be running.
    pub fn unmount_all(&self, how: Unmount) -> Result<(), MountError> {
        self.points().iter().try_for_each(|path| self.unmount_on(path, how))
    }

    /// Unmounts the mount at its path. The session must be running, or else the unmount of a
    /// `fuseblk` mount waits forever.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.unmount_on(&self.path, how)
    }

    fn unmount_on(&self, path: &Path, how: Unmount) -> Result<(), MountError> {
        let point = Point::open(path).map_err(|error| MountError::Unmount(path.into(), error))?;
        self.unmount_at(&point, how)
    }

    /// Unmounts what is mounted at `point` if that is this mount or another of the same filesystem.
    /// By then the path may lead to anything, and any filesystem may have the device number
    /// (invariant 52).
    fn unmount_at(&self, point: &Point, how: Unmount) -> Result<(), MountError> {
        let failed = |error: io::Error| MountError::Unmount(point.path().into(), error);
        let mounted = point.open_mounted().map_err(failed)?;
        let is_own = if point.path() == self.path {
            let id = self.place.get().and_then(|place| place.id);
            id.is_some() && identity::of_open(&mounted) == id
        } else {
            // The open descriptor keeps the device number from being reused.
            identity::device_number_of(&mounted) == self.device_number && !self.has_ended()
        };
        if is_own { point.unmount_opened(mounted, how) } else { Err(failed(Errno::INVAL.into())) }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted()
            && let Err(error) = self.unmount(Unmount::Lazy)
        {
            tracing::warn!(%error, path = %self.path.display(), "left mounted");
        }
    }
}

/// Unmounts what is mounted on `path`.
pub fn unmount(path: &Path, how: Unmount) -> Result<(), MountError> {
    Point::open(path).map_err(|error| MountError::Unmount(path.into(), error))?.unmount(how)
}

/// Gives the mount whose root is open as `root` exactly these flags, except that its flags for
/// access times stay. The kernel first writes back the dirty pages, and refuses to make a mount
/// read-only that has files open for writing. It sends the server no other requests.
pub fn remount(root: impl AsFd, flags: MountFlags) -> io::Result<()> {
    let place = format!("/proc/self/fd/{}", root.as_fd().as_raw_fd());
    Ok(rustix::mount::mount_remount(place, flags, c"")?)
}

/// Mounts as `fuseblk` if the options name a source for it and that can be used, else as `fuse`.
fn mount_as_root(path: &Path, options: &MountOptions) -> Result<(How, Detached, Device), MountError> {
    let open = || Device::open().map_err(MountError::Device);
    let new = |kind, source: &str, device: &Device| Detached::new(kind, source, device, options, options.read_only);
    let fallback = match block_source(options) {
        None => None,
        Some(Err(reason)) => Some(reason),
        Some(Ok(block)) => {
            let failed = |error| MountError::Mount(path.into(), error);
            let device = open()?;
            let mount = || new("fuseblk", &block.name, &device);
            let mounted = match &block.name_of {
                Some(name) => name.with(mount).map_err(failed)?,
                None => mount(),
            };
            match mounted {
                // If another server has mounted the block device already, the kernel just shows
                // that mount once more, and the new `/dev/fuse` belongs to no mount.
                Ok(_) if !device.is_mounted().map_err(MountError::Device)? => {
                    return Err(MountError::AlreadyServed(block.name));
                }
                Ok(all) => {
                    let how = How { kind: MountKind::Block, source: block.name, fallback: None, block: block.device };
                    return Ok((how, all, device));
                }
                Err(MountError::Mount(_, error)) => Some(format!("fuseblk from {}: {error}", block.name)),
                Err(error) => return Err(error),
            }
        }
    };
    let source = options.shown_name().to_owned();
    let device = open()?;
    let all = new("fuse", &source, &device)?;
    Ok((How { kind: MountKind::Plain, source, fallback, block: None }, all, device))
}

/// A block device to mount from.
struct BlockSource {
    /// Its path, or a name that refers to it.
    name: String,
    name_of: Option<NameOfDevice>,
    /// A path to it, if the kernel's dirty pages may have to be written by a flush of it.
    device: Option<PathBuf>,
    /// Held until the mount holds it; after that it detaches itself when the mount ends.
    _attached: Option<LoopDevice>,
}

/// The block device that the options name for `fuseblk`, or the reason why it can't be used.
fn block_source(options: &MountOptions) -> Option<Result<BlockSource, String>> {
    let found = match &options.source {
        Source::Name(_) => return None,
        Source::BlockDevice(device) => match std::fs::metadata(device) {
            Ok(metadata) if metadata.file_type().is_block_device() => Ok(BlockSource {
                name: device.display().to_string(),
                name_of: None,
                device: Some(device.clone()),
                _attached: None,
            }),
            Ok(_) => Err(format!("{}: not a block device", device.display())),
            Err(error) => Err(format!("{}: {error}", device.display())),
        },
        Source::Image(image) => LoopDevice::attach(image, options.read_only)
            .map(|attached| BlockSource {
                name: attached.path().to_owned(),
                name_of: None,
                device: Some(attached.path().into()),
                _attached: Some(attached),
            })
            .map_err(|error| format!("no loop device for {}: {error}", image.display())),
        Source::Uri(uri) => LoopDevice::attach_nothing(uri)
            .and_then(|attached| {
                let name_of = NameOfDevice::new(uri, attached.path())?;
                Ok(BlockSource {
                    name: name_of.as_str().to_owned(),
                    name_of: Some(name_of),
                    device: Some(attached.path().into()),
                    _attached: Some(attached),
                })
            })
            .map_err(|error| format!("no loop device for {uri}: {error}")),
        Source::Served { device, name } => {
            let path = device.display().to_string();
            let name_of = NameOfDevice::new(name, &path)
                .inspect_err(|error| tracing::debug!(%error, name, "the mount table shows the device instead"))
                .ok();
            let name = name_of.as_ref().map_or(path, |name| name.as_str().to_owned());
            Ok(BlockSource { name, name_of, device: None, _attached: None })
        }
    };
    Some(found)
}

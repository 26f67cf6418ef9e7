//! Mounting and unmounting.
//!
//! As root, by mount(2): of type `fuseblk` where there is a block device to name as the source, so
//! that sync(2), syncfs(2) and umount(2) reach the filesystem, else of type `fuse`. What the kernel
//! has no device of, such as an export of a server, gets a loop device for that. Without root, by
//! `fusermount3`.

mod error;
mod fusermount;
mod identity;
mod loop_device;
mod name_of_device;
mod options;

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{NoArg, ioctl};
pub use rustix::mount::MountFlags;
use rustix::mount::UnmountFlags;

use crate::device::Device;
pub use error::{MountError, Unmount};
pub(crate) use loop_device::LoopDevice;
pub use loop_device::SOURCE_LABEL;
use name_of_device::NameOfDevice;
pub use options::{MountOptions, Source};

/// The time that a umount(2) with `MNT_FORCE` needs at most between aborting and unmounting.
const TIME_OF_FORCED_UNMOUNT: Duration = Duration::from_secs(1);

/// How it was mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountKind {
    /// `fuseblk`: sync(2), syncfs(2) and umount(2) reach the filesystem and wait for it.
    Block,
    /// `fuse`: they don't.
    Plain,
    /// `fuse` by `fusermount3`: they don't either.
    Fusermount,
}

/// A mount. When it is dropped and still there, it is taken out of the tree (lazily).
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    how: How,
    id: Option<u64>,
    listed_as: Option<u64>,
}

/// How it was made.
#[derive(Debug)]
struct How {
    kind: MountKind,
    source: String,
    fallback: Option<String>,
    /// A path to the block device that is the source, where its pages may have to be written by it.
    block: Option<PathBuf>,
}

impl Mount {
    /// Mounts on the directory `path`. The kernel's INIT then waits on the device, and every
    /// process that uses the mount waits for its answer: see
    /// [`Session::establish`](crate::Session::establish).
    pub fn new(path: &Path, options: &MountOptions) -> Result<(Self, Device), MountError> {
        let point = open_point(path)?;
        let path = std::path::absolute(path).map_err(|error| MountError::MountPoint(path.into(), error))?;
        let path = path.canonicalize().unwrap_or(path);
        if !rustix::process::geteuid().is_root() {
            let device = fusermount::mount(&path, options)?;
            let source = options.shown_name().to_owned();
            let fallback = options.source.wants_block().then(|| "only root mounts fuseblk".to_owned());
            let how = How { kind: MountKind::Fusermount, source, fallback, block: None };
            return Ok((Self::mounted(path, how), device));
        }
        let (how, device) = mount_as_root(&path, &point, options)?;
        Ok((Self::mounted(path, how), device))
    }

    fn mounted(path: PathBuf, how: How) -> Self {
        if let Some(reason) = &how.fallback {
            tracing::info!(reason, "mounted as plain fuse");
        }
        let (id, listed_as) = (identity::of(&path), identity::listed_as(&path));
        Self { path, how, id, listed_as }
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How.
    pub fn kind(&self) -> MountKind {
        self.how.kind
    }

    /// What the mount table shows as the source: the block device (of an image, its loop device),
    /// the URI or the name.
    pub fn source(&self) -> &str {
        &self.how.source
    }

    /// Why it isn't `fuseblk` although there is a device, an image or a URI.
    pub fn fallback(&self) -> Option<&str> {
        self.how.fallback.as_deref()
    }

    /// The device number that its files show, major and minor.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        identity::device_number(&self.path).filter(|_| self.is_mounted())
    }

    /// Whether it still exists and is visible.
    pub fn is_mounted(&self) -> bool {
        self.id.is_some() && self.id == identity::of(&self.path)
    }

    /// Has the kernel write all dirty pages of a `fuseblk` mount, and waits until the session has
    /// served that. A SYNCFS comes with it, from this thread. Waits for a remount in progress, and
    /// keeps no mount busy, as a call by a path would.
    pub fn write_pages(&self) -> io::Result<()> {
        /// `BLKFLSBUF`: syncs what is mounted from a block device.
        const FLUSH: rustix::ioctl::Opcode = 0x1261;
        let block = File::open(self.how.block.as_ref().ok_or(Errno::NODEV)?)?;
        // SAFETY: the command takes no argument and changes no memory of the process.
        Ok(unsafe { ioctl(&block, NoArg::<FLUSH>::new()) }?)
    }

    /// Whether the mount table lists the mount, and it is read-only for everybody.
    pub fn is_listed_read_only(&self) -> bool {
        self.listed_as.is_some_and(identity::is_listed_read_only)
    }

    /// Has the kernel read ahead as far as it does for its own btrfs in files that are read in
    /// order: 4 MiB instead of FUSE's 128 KiB. To be called once the session is established, when
    /// the kernel has set its own value. Only root may: for anybody else it stays at that.
    pub fn read_far_ahead(&self) {
        const READ_AHEAD_KIB: &str = "4096";
        let Some((major, minor)) = self.device_number() else { return };
        let suffix = if self.how.kind == MountKind::Block { "-fuseblk" } else { "" };
        let setting = format!("/sys/class/bdi/{major}:{minor}{suffix}/read_ahead_kb");
        if let Err(error) = std::fs::write(&setting, READ_AHEAD_KIB) {
            tracing::debug!(%error, setting, "the kernel reads ahead no further than it does by itself");
        }
    }

    /// Unmounts what is left of it when the connection was aborted while it was mounted. What
    /// aborted it may be a umount(2) with `MNT_FORCE`, which fails with EINVAL if the mount
    /// disappears under it. So it first gets a second to unmount it itself.
    pub fn unmount_aborted(&self) {
        let deadline = Instant::now() + TIME_OF_FORCED_UNMOUNT;
        let is_listed = || self.listed_as.is_some_and(identity::is_listed);
        while is_listed() && Instant::now() < deadline {
            thread::sleep(TIME_OF_FORCED_UNMOUNT / 200);
        }
        if self.is_mounted()
            && let Err(error) = self.unmount(Unmount::Lazy)
        {
            tracing::debug!(%error, "not unmounted");
        }
    }

    /// Unmounts. The session must be running, or else `fuseblk` waits for its end forever.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        unmount(&self.path, how)
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

/// Unmounts what is mounted on `path`; also what a server left behind that is no more ("Transport
/// endpoint is not connected").
pub fn unmount(path: &Path, how: Unmount) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return fusermount::unmount(path, how);
    }
    let flags = match how {
        Unmount::Now => UnmountFlags::NOFOLLOW,
        Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    rustix::mount::unmount(path, flags).map_err(|errno| MountError::Unmount(path.into(), errno.into()))
}

/// Gives the mount at `path` these flags, and no others; its flags for access times stay. The
/// kernel first writes back its dirty pages, and refuses to make a mount read-only that has files
/// open for writing. Other requests are not sent to the server.
pub fn remount(path: &Path, flags: MountFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(path, flags, c"")?)
}

/// Whether `path` is the mount of a server that is no more.
pub fn is_dead(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| is_dead_error(&error))
}

fn is_dead_error(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Opens the mount point, a directory, so that the mount is made on the directory that was checked.
fn open_point(path: &Path) -> Result<File, MountError> {
    let flags = (OFlags::PATH | OFlags::CLOEXEC).bits() as i32;
    let failed = |error: io::Error| match error {
        error if is_dead_error(&error) => MountError::Dead(path.into()),
        error => MountError::MountPoint(path.into(), error),
    };
    let point = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = point.metadata().map_err(failed)?;
    if metadata.is_dir() { Ok(point) } else { Err(MountError::NotADirectory(path.into())) }
}

/// As `fuseblk` if the options name something for it and nothing is in the way; else as `fuse`.
fn mount_as_root(path: &Path, point: &File, options: &MountOptions) -> Result<(How, Device), MountError> {
    let fallback = match block_source(options) {
        None => None,
        Some(Err(reason)) => Some(reason),
        Some(Ok(block)) => match mount_block(&block, path, point, options) {
            Ok(device) => {
                refuse_shared(path, &block.name, &device)?;
                let how = How { kind: MountKind::Block, source: block.name, fallback: None, block: block.device };
                return Ok((how, device));
            }
            Err(MountError::Mount(_, error)) => Some(format!("fuseblk from {}: {error}", block.name)),
            Err(error) => return Err(error),
        },
    };
    let name = options.shown_name();
    let device = Device::open().map_err(MountError::Device)?;
    mount_type("fuse", name, path, (point, &path_of(point)), options, &device)?;
    Ok((How { kind: MountKind::Plain, source: name.to_owned(), fallback, block: None }, device))
}

/// Of a block device that another server has mounted already as `fuseblk`, mount(2) just shows that
/// mount once more, and the new `/dev/fuse` belongs to nothing.
fn refuse_shared(path: &Path, source: &str, device: &Device) -> Result<(), MountError> {
    if device.is_mounted().map_err(MountError::Device)? {
        return Ok(());
    }
    unmount(path, Unmount::Lazy)?;
    Err(MountError::AlreadyServed(source.into()))
}

fn mount_block(block: &BlockSource, path: &Path, point: &File, options: &MountOptions) -> Result<Device, MountError> {
    let device = Device::open().map_err(MountError::Device)?;
    let mount = |target: &str| mount_type("fuseblk", &block.name, path, (point, target), options, &device);
    match &block.name_of {
        Some(name) => name.with(point, mount).map_err(|error| MountError::Mount(path.into(), error))?,
        None => mount(&path_of(point)),
    }?;
    Ok(device)
}

/// A path to what is open.
fn path_of(point: &File) -> String {
    format!("/proc/self/fd/{}", point.as_raw_fd())
}

/// A block device to mount from.
struct BlockSource {
    /// Its path, or a name that refers to it.
    name: String,
    name_of: Option<NameOfDevice>,
    /// A path to it, where its pages may have to be written by it.
    device: Option<PathBuf>,
    /// Held until the mount holds it; after that it detaches itself when the mount ends.
    _attached: Option<LoopDevice>,
}

/// What the options name for `fuseblk`, or why it can't be used.
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

fn mount_type(
    kind: &str,
    source: &str,
    path: &Path,
    (point, target): (&File, &str),
    options: &MountOptions,
    device: &Device,
) -> Result<(), MountError> {
    let failed = |error: io::Error| MountError::Mount(path.into(), error);
    let mode = point.metadata().map_err(|error| MountError::MountPoint(path.into(), error))?.mode();
    let kind_of_root = mode & rustix::fs::FileType::Directory.as_raw_mode();
    let data = options.kernel_data(device.as_fd().as_raw_fd(), kind_of_root, kind == "fuseblk")?;
    let data = CString::new(data).map_err(|_| failed(Errno::INVAL.into()))?;
    let kind = match options.subtype.as_str() {
        "" => kind.to_owned(),
        subtype => format!("{kind}.{subtype}"),
    };
    rustix::mount::mount(source, target, kind, options.flags(), data.as_c_str()).map_err(|errno| failed(errno.into()))
}

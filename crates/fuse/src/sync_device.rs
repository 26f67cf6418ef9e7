//! A block device to which the kernel writes whenever somebody syncs.
//!
//! Before Linux 6.18 the kernel does not tell the server of a `fuseblk` mount about sync(2),
//! syncfs(2) and a remount to read-only. But each of these writes dirty pages of block devices and
//! waits until they are written: sync(2) writes those of all devices that are open, the others
//! those of the mount's source. So the source is a loop device whose file this process serves, by a
//! session of its own, and one page of it is dirty at any time. The WRITE of that page is a request
//! to sync, and its answer says how that ended. The kernel writes the page by itself, too, when it
//! has been dirty for half a minute (`vm.dirty_expire_centisecs`); nobody waits for that sync.
//!
//! The page is dirty again before the sync that its WRITE requests begins (invariant 46). A sync of
//! the kernel therefore waits for a WRITE whose sync has not begun yet, or causes another WRITE;
//! either covers all that was done before it.
//!
//! The file is the root of a mount that is nowhere in the tree, and which no user but root may
//! enter. If the process that serves it hangs and can't end, the connection of that mount has to be
//! aborted, or else sync(2) waits forever.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use ubtrfs_threads::{Mutex, Rank};

use crate::abi::flags::Capabilities;
use crate::attributes::Attributes;
use crate::device::Device;
use crate::filesystem::Filesystem;
use crate::mount::LoopDevice;
use crate::negotiate::{Config, Transport};
use crate::reply::{ReplyAttr, ReplyData, ReplyEmpty, ReplyWrite};
use crate::request::{Caller, Read, Write};
use crate::session::Session;

/// The mode of the file: a regular one.
const MODE: u32 = 0o100_600;
/// The size of the device in bytes. No image of a volume is so small.
const SIZE: usize = 4096;
/// How long the kernel caches the attributes of the file, which never change.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

type OnSync = Box<dyn Fn() -> Result<(), Errno> + Send + Sync>;

/// The device, until [`end`](Self::end) is called or this is dropped.
#[derive(Debug)]
pub struct SyncDevice {
    state: Arc<State>,
    path: String,
    number: (u32, u32),
    /// The loop device, until [`end`](Self::end); the mount may keep it attached a little longer.
    attached: Mutex<Option<LoopDevice>>,
}

struct State {
    /// The device, as long as its page is kept dirty.
    device: Mutex<Option<File>>,
    sync: OnceLock<OnSync>,
    ended: AtomicBool,
}

impl Default for State {
    fn default() -> Self {
        Self { device: Mutex::with_default(Rank::SyncDevice), sync: OnceLock::default(), ended: AtomicBool::new(false) }
    }
}

impl SyncDevice {
    /// Makes the device. losetup(8) and others show it as attached to `name`. Needs root.
    pub fn new(name: &OsStr) -> io::Result<Self> {
        let state = Arc::new(State::default());
        let device = Device::open()?;
        let place = mount_nowhere(&device)?;
        let wanted = Capabilities::BIG_WRITES | Capabilities::MAX_PAGES | Capabilities::NO_OPEN_SUPPORT;
        let config = Config { wanted, threads: 1, transport: Transport::Device, ..Config::default() };
        let session = Session::establish(device, Page(Arc::clone(&state)), &config).map_err(io::Error::other)?;
        thread::Builder::new().name("sync-device".into()).spawn(move || {
            if let Err(error) = session.run() {
                tracing::error!(%error, "the device by which syncs arrive has ended");
            }
        })?;
        let file = format!("/proc/self/fd/{}", place.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(file)?;
        // The kernel has to know the file's size before it makes a device of it.
        let number = file.metadata()?.dev();
        let attached = LoopDevice::attach_file(&file, name, false)?;
        if must_not_change_while_written(attached.path()) {
            return Err(io::Error::other("its pages can't be dirtied while they are written"));
        }
        let number = (rustix::fs::major(number), rustix::fs::minor(number));
        Ok(Self {
            state,
            path: attached.path().to_owned(),
            number,
            attached: Mutex::new(Rank::SyncLoopDevice, Some(attached)),
        })
    }

    /// The path of the device, which is to be the source of the mount.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The device number, major and minor, of the file system that the device's file is in. It
    /// identifies the connection in the kernel's control file system.
    pub fn number_of_file(&self) -> (u32, u32) {
        self.number
    }

    /// Has the kernel's syncs call `sync` from now on, one after the other, and wait for its
    /// result. To be called when the device is mounted, since mounting drops its pages.
    pub fn begin(&self, sync: impl Fn() -> Result<(), Errno> + Send + Sync + 'static) -> io::Result<()> {
        let _ = self.state.sync.set(Box::new(sync));
        let attached = self.attached.lock();
        let Some(attached) = attached.as_ref() else { return Err(Errno::NODEV.into()) };
        *self.state.device.lock() = Some(attached.file().try_clone()?);
        Ok(self.state.dirty()?)
    }

    /// Ends the syncs and closes the device. Waits for a sync in progress.
    pub fn end(&self) {
        self.state.ended.store(true, Ordering::SeqCst);
        let device = self.state.device.lock().take();
        // The kernel would otherwise write the dirty page when the process that serves it has
        // ended.
        if let Some(Err(error)) = device.map(|device| device.sync_data()) {
            tracing::debug!(%error, "the last page of the device by which syncs arrive");
        }
        drop(self.attached.lock().take());
    }
}

impl Drop for SyncDevice {
    fn drop(&mut self) {
        self.end();
    }
}

impl State {
    /// Dirties the page, unless the device has ended.
    fn dirty(&self) -> Result<(), Errno> {
        match &*self.device.lock() {
            Some(device) => {
                device.write_all_at(&[0; SIZE], 0).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
            None => Ok(()),
        }
    }

    /// Serves the WRITE of the page, which means that somebody syncs.
    fn written(&self) -> Result<(), Errno> {
        let Some(sync) = self.sync.get().filter(|_| !self.ended.load(Ordering::SeqCst)) else { return Ok(()) };
        // The page is dirty before the sync begins, so that a sync that comes meanwhile causes
        // another one.
        if let Err(errno) = self.dirty() {
            tracing::error!(%errno, "syncs of the kernel no longer arrive");
            // The process that syncs gets the error (invariant 46).
            return Err(errno);
        }
        sync()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("State").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// The file: a page of zeros.
struct Page(Arc<State>);

impl Filesystem for Page {
    fn getattr(&self, _: &Caller<'_>, _: u64, _: Option<u64>, reply: ReplyAttr) {
        let size = SIZE as u32;
        let attributes =
            Attributes { ino: 1, size: SIZE as u64, mode: MODE, nlink: 1, blksize: size, ..Attributes::default() };
        reply.attributes(&attributes, TTL);
    }

    fn read(&self, _: &Caller<'_>, _: u64, what: &Read, reply: ReplyData) {
        let rest = (SIZE as u64).saturating_sub(what.offset).min(u64::from(what.size));
        reply.data(&[0; SIZE][..rest as usize]);
    }

    fn write(&self, _: &Caller<'_>, _: u64, what: &Write<'_>, reply: ReplyWrite) {
        match self.0.written() {
            Ok(()) => reply.written(what.data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, _: &Caller<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Mounts a file system whose root is a regular file. The file is opened through the descriptor.
fn mount_nowhere(device: &Device) -> io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let number = device.as_fd().as_raw_fd().to_string();
    fsconfig_set_string(&context, "source", "ubtrfs")?;
    fsconfig_set_string(&context, "fd", &number)?;
    fsconfig_set_string(&context, "rootmode", format!("{MODE:o}"))?;
    fsconfig_set_string(&context, "user_id", "0")?;
    fsconfig_set_string(&context, "group_id", "0")?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Returns whether the kernel keeps pages of a device unchanged while it writes them, so that
/// dirtying a page waits for its WRITE.
fn must_not_change_while_written(device: &str) -> bool {
    let name = device.trim_start_matches("/dev/");
    std::fs::read_to_string(format!("/sys/block/{name}/queue/stable_writes")).is_ok_and(|value| value.trim() != "0")
}

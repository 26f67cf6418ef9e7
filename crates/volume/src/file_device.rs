//! Image files and block devices.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use ubtrfs_format::Physical;

use crate::buffer::{ALIGNMENT, Buffer, is_aligned};
use crate::device::{CounterCells, Device, DeviceCounters, DeviceTicket, DeviceWrite, check_range, check_writes};
use crate::device_part::DevicePart;
use crate::error::{Error, Result};
use crate::image_lock::{lock, unlock};
use crate::runs;
use crate::uring::Ring;
use crate::write_pool::WritePool;

/// The most bytes that an unaligned read copies at once.
const BOUNCE: usize = 1 << 20;

/// The access with which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// Which other users of the device are excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// Read-write: no other process may have the device open through ubtrfs, and a block device may
    /// not be mounted or be otherwise in use. Read-only: other processes may read, and an image
    /// file may not be open read-write through ubtrfs.
    Yes,
    /// As `Yes`, but a block device is not claimed here, since somebody else claims it, as the
    /// kernel does for a mount (`fuseblk`).
    ButDevice,
    /// Nobody is excluded, and nothing is checked.
    No,
}

/// How writes reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `io_uring` if the kernel offers it, else threads.
    Auto,
    /// A few threads.
    Threads,
}

/// An image file or block device. It is used with `O_DIRECT` if the underlying file system supports
/// that.
#[derive(Debug)]
pub struct FileDevice {
    file: Arc<File>,
    /// The image file behind a loop device, whose lock other users of the image check.
    image: Option<File>,
    path: PathBuf,
    size: AtomicU64,
    read_only: bool,
    is_block: bool,
    direct: bool,
    writer: Writer,
    counters: CounterCells,
}

#[derive(Debug)]
enum Writer {
    /// Read-only.
    None,
    Ring(Arc<Ring>),
    Pool(WritePool),
}

impl FileDevice {
    /// Opens an image file or block device. The threads and rings behind it do not survive a
    /// `fork`: open after it.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode, exclusive: Exclusive) -> Result<Self> {
        Self::open_with(path.as_ref(), mode, exclusive, DevicePart::WHOLE, Engine::Auto)
    }

    /// As [`FileDevice::open`], but uses only this part of an image file: others are kept out of
    /// that part, and may use other parts. A block device is claimed as a whole.
    pub fn open_part(path: impl AsRef<Path>, mode: OpenMode, exclusive: Exclusive, part: DevicePart) -> Result<Self> {
        Self::open_with(path.as_ref(), mode, exclusive, part, Engine::Auto)
    }

    /// As [`FileDevice::open`], with a choice of how to write.
    pub fn open_with_engine(
        path: impl AsRef<Path>,
        mode: OpenMode,
        exclusive: Exclusive,
        engine: Engine,
    ) -> Result<Self> {
        Self::open_with(path.as_ref(), mode, exclusive, DevicePart::WHOLE, engine)
    }

    fn open_with(path: &Path, mode: OpenMode, exclusive: Exclusive, part: DevicePart, engine: Engine) -> Result<Self> {
        let failed = |source: io::Error| Error::Open { path: path.to_owned(), source };
        let stat = rustix::fs::stat(path).map_err(|error| failed(error.into()))?;
        let is_block = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            _ => return Err(Error::NotADevice { path: path.to_owned() }),
        };
        let read_only = mode == OpenMode::ReadOnly;
        let file = open_file(path, read_only, is_block && !read_only && exclusive == Exclusive::Yes)?;
        if is_block && !read_only && is_write_protected(&file).map_err(failed)? {
            return Err(failed(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the device is write-protected")));
        }
        let mut image = None;
        if exclusive != Exclusive::No {
            image = if is_block { backing_file(stat.st_rdev).and_then(|path| File::open(path).ok()) } else { None };
            if let Some(locked) = if is_block { image.as_ref() } else { Some(&file) } {
                // Partitions of one loop device share its image, and each is claimed by itself.
                let is_shared = read_only || is_block && whole_disk(stat.st_rdev).is_some();
                lock(locked, is_shared, if is_block { DevicePart::WHOLE } else { part }, path)?;
                // The process that held the lock until now may have put another file in its place.
                let found = rustix::fs::stat(path).map_err(|error| failed(error.into()))?;
                if !is_block && (found.st_dev, found.st_ino) != (stat.st_dev, stat.st_ino) {
                    return Err(Error::Held { path: path.to_owned(), by: None });
                }
            }
        }
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|error| failed(error.into()))?;
        let direct = settle_direct(&file).map_err(failed)?;
        let file = Arc::new(file);
        let writer = if read_only { Writer::None } else { Writer::start(&file, engine).map_err(failed)? };
        let (path, counters) = (path.to_owned(), CounterCells::default());
        let size = AtomicU64::new(size);
        Ok(Self { file, image, path, size, read_only, is_block, direct, writer, counters })
    }

    /// Returns the path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether `O_DIRECT` is used.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns whether writes go through `io_uring`.
    pub fn uses_io_uring(&self) -> bool {
        matches!(self.writer, Writer::Ring(_))
    }

    /// Reads through a separate buffer, since `O_DIRECT` requires aligned addresses, lengths and
    /// memory.
    fn read_unaligned(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let unit = ALIGNMENT as u64;
        let mut done = 0;
        while done < buf.len() {
            let from = at + done as u64;
            let start = from - from % unit;
            let skip = (from - start) as usize;
            let take = (buf.len() - done).min(BOUNCE - skip);
            let mut bounce = Buffer::for_reading((skip + take).next_multiple_of(ALIGNMENT));
            read_at_least(&self.file, start, &mut bounce, skip + take)?;
            buf[done..done + take].copy_from_slice(&bounce[skip..skip + take]);
            done += take;
        }
        Ok(())
    }
}

impl Writer {
    fn start(file: &Arc<File>, engine: Engine) -> io::Result<Self> {
        if engine == Engine::Auto {
            match Ring::start(file) {
                Ok(ring) => return Ok(Self::Ring(Arc::new(ring))),
                Err(error) => tracing::info!(%error, "no io_uring: writing with threads"),
            }
        }
        WritePool::start(file).map(Self::Pool)
    }
}

/// Returns the image file behind the loop device with this number, or behind the loop device that
/// has the partition with this number, if it can be found.
pub fn backing_file(device_number: u64) -> Option<PathBuf> {
    let whole = whole_disk(device_number).unwrap_or(device_number);
    let reported = std::fs::read(in_sysfs(whole).join("loop/backing_file")).ok()?;
    Some(OsStr::from_bytes(reported.strip_suffix(b"\n")?).into())
}

/// Returns the number of the disk that the device of this number is a partition of.
pub fn whole_disk(device_number: u64) -> Option<u64> {
    let device = in_sysfs(device_number);
    if !device.join("partition").exists() {
        return None;
    }
    let reported = std::fs::read_to_string(device.join("../dev")).ok()?;
    let (major, minor) = reported.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn in_sysfs(device_number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device_number), rustix::fs::minor(device_number));
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// Opens with `O_DIRECT`, or without it where the file system refuses.
fn open_file(path: &Path, read_only: bool, claim: bool) -> Result<File> {
    let mut flags = OFlags::CLOEXEC | if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if claim {
        flags |= OFlags::EXCL;
    }
    let opened = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
        Err(Errno::INVAL) => rustix::fs::open(path, flags, Mode::empty()),
        opened => opened,
    };
    match opened {
        Ok(file) => Ok(file.into()),
        Err(Errno::BUSY) => Err(Error::Held { path: path.to_owned(), by: None }),
        Err(error) => Err(Error::Open { path: path.to_owned(), source: error.into() }),
    }
}

/// Returns whether direct reads of 4096 bytes work. If not (no `O_DIRECT` here, or larger blocks),
/// turns `O_DIRECT` off.
fn settle_direct(file: &File) -> io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    if !flags.contains(OFlags::DIRECT) {
        return Ok(false);
    }
    let mut probe = Buffer::for_reading(ALIGNMENT);
    match file.read_at(&mut probe, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            rustix::fs::fcntl_setfl(file, flags.difference(OFlags::DIRECT))?;
            Ok(false)
        }
        // Any other error is not about alignment; later reads of that range will report it.
        _ => Ok(true),
    }
}

/// Reads at least the first `need` bytes of `buf`.
fn read_at_least(file: &File, at: u64, buf: &mut [u8], need: usize) -> io::Result<()> {
    let mut done = 0;
    while done < need {
        match file.read_at(&mut buf[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn find_size(&self) -> io::Result<u64> {
        let size = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?;
        self.size.store(size, Ordering::Release);
        Ok(size)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        check_range(at, buf.len(), self.size())?;
        self.counters.read(buf.len());
        if self.direct && !(is_aligned(buf) && at.0.is_multiple_of(ALIGNMENT as u64)) {
            return self.read_unaligned(at.0, buf);
        }
        let need = buf.len();
        read_at_least(&self.file, at.0, buf, need)
    }

    fn file_to_read(&self, at: Physical, len: usize) -> Option<Arc<File>> {
        let unit = ALIGNMENT as u64;
        let is_possible = self.direct
            && at.0.is_multiple_of(unit)
            && len.is_multiple_of(ALIGNMENT)
            && check_range(at, len, self.size()).is_ok();
        is_possible.then(|| {
            self.counters.read(len);
            Arc::clone(&self.file)
        })
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        if let Err(error) = check_writes(&writes, self.size()) {
            return DeviceTicket::done(Err(error));
        }
        let runs = runs::join(writes, self.direct);
        let Some(first) = runs.first() else { return DeviceTicket::done(Ok(())) };
        for run in &runs {
            self.counters.write(run.len);
        }
        match &self.writer {
            Writer::None => DeviceTicket::done(Err(first.failed(Errno::ROFS.into()))),
            Writer::Ring(ring) => ring.submit(runs),
            Writer::Pool(pool) => pool.submit(runs),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        // Writes do not change the size, so flushing the data alone is enough.
        rustix::fs::fdatasync(self.file.as_fd()).map_err(Into::into)
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        check_range(at, len as usize, self.size())?;
        if self.read_only {
            return Err(Errno::ROFS.into());
        }
        // The kernel refuses an empty range.
        if len == 0 {
            return Ok(());
        }
        self.counters.discard();
        if self.is_block {
            return discard_blocks(&self.file, at.0, len);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.file.as_fd(), flags, at.0, len) {
            Err(Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
            other => other.map_err(Into::into),
        }
    }

    fn data_ranges(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        if self.is_block {
            return Ok(None);
        }
        let (mut found, mut at, end) = (Vec::new(), 0, self.size());
        let whole = 0..end;
        // Preallocated space looks like a hole to `SEEK_DATA`, but takes space.
        if self.file.metadata()?.blocks().saturating_mul(512) >= end {
            return Ok(Some(Vec::from([whole])));
        }
        while at < end {
            let start = match rustix::fs::seek(&*self.file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                // The file system doesn't know.
                Err(Errno::INVAL) => return Ok(None),
                start => start?,
            };
            at = rustix::fs::seek(&*self.file, SeekFrom::Hole(start))?;
            found.push(start..at);
        }
        Ok(Some(found))
    }

    fn release(&self) {
        let locked = if self.is_block { self.image.as_ref() } else { Some(&*self.file) };
        if let Some(locked) = locked {
            unlock(locked);
        }
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.get()
    }
}

impl Drop for FileDevice {
    /// Gives up locks and claims at once, even if the kernel is slow to dismantle the ring.
    fn drop(&mut self) {
        if let Writer::Ring(ring) = &self.writer {
            // Tickets may outlive the device, and they keep the ring alive.
            ring.drain();
        }
        self.writer = Writer::None;
        self.release();
    }
}

/// `BLKROGET` of the block layer: a device can be opened for writing though no write will succeed.
fn is_write_protected(file: &File) -> io::Result<bool> {
    const BLKROGET: libc::c_ulong = 0x125e;
    let mut protected: libc::c_int = 0;
    // SAFETY: the request takes a pointer to an int, which it writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET as _, &raw mut protected) };
    if result == 0 { Ok(protected != 0) } else { Err(io::Error::last_os_error()) }
}

/// `BLKDISCARD` of the block layer.
fn discard_blocks(file: &File, at: u64, len: u64) -> io::Result<()> {
    const BLKDISCARD: libc::c_ulong = 0x1277;
    let range = [at, len];
    // SAFETY: the request takes a pointer to two 64-bit numbers, which it only reads.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EOPNOTSUPP) { Err(io::ErrorKind::Unsupported.into()) } else { Err(error) }
}

//! Loop devices: a file as a block device.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `LOOP_CTL_GET_FREE` of `/dev/loop-control`: the number of a free device.
const GET_FREE: rustix::ioctl::Opcode = 0x4c82;
/// `LOOP_CONFIGURE`: attaches a file.
const CONFIGURE: rustix::ioctl::Opcode = 0x4c0a;
/// `LO_FLAGS_READ_ONLY`
const READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`: the last one to close the device detaches the file.
const AUTOCLEAR: u32 = 4;
/// The size of a device without content, in bytes. No image of a volume is so small, so a
/// comparison of sizes does not take it for one.
const SIZE_OF_NOTHING: u64 = 4096;
/// How often to try, since another process may take a device that was free just before.
const ATTEMPTS: u32 = 32;

/// The prefix of the name in the status of our devices. They serve only as the source of a mount:
/// reads and writes go to the image itself.
pub const SOURCE_LABEL: &[u8] = b"ubtrfs:";

/// `struct loop_config` with the `struct loop_info64` within it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    status: LoopStatus,
    reserved: [u64; 8],
}

/// `struct loop_info64`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LoopStatus {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// A file attached to a loop device. The file is detached once this is dropped and nobody else,
/// such as a mount, has the device open.
#[derive(Debug)]
pub struct LoopDevice {
    path: String,
    open: File,
}

impl LoopDevice {
    /// Attaches `image`.
    pub fn attach(image: &Path, read_only: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(!read_only).open(image)?;
        Self::attach_file(&file, image.as_os_str(), read_only)
    }

    /// Attaches empty memory, for a mount of something that the kernel has no device of. losetup(8)
    /// shows the name, cut to the length that a memfd's name may have.
    pub fn attach_nothing(name: &str) -> io::Result<Self> {
        const MAX: usize = 249;
        let shown = &name.as_bytes()[..name.len().min(MAX)];
        let memory = File::from(rustix::fs::memfd_create(shown, MemfdFlags::CLOEXEC)?);
        memory.set_len(SIZE_OF_NOTHING)?;
        Self::attach_file(&memory, name.as_ref(), false)
    }

    /// Attaches a file. `name` stands for it in the status of the device.
    pub(crate) fn attach_file(file: &File, name: &OsStr, read_only: bool) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..ATTEMPTS {
            let number = free_number(&control)?;
            let path = format!("/dev/loop{number}");
            let device = OpenOptions::new().read(true).write(!read_only).open(&path)?;
            match configure(&device, file, name, read_only) {
                Ok(()) => return Ok(Self { path, open: device }),
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// The path of the device.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The device, opened.
    pub(crate) fn file(&self) -> &File {
        &self.open
    }
}

/// The answer of `LOOP_CTL_GET_FREE` is what ioctl(2) returns.
struct GetFree;

// SAFETY: the command takes no argument and changes no memory of the process.
unsafe impl rustix::ioctl::Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: rustix::ioctl::IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u32> {
        u32::try_from(number).map_err(|_| Errno::NODEV)
    }
}

fn free_number(control: &File) -> rustix::io::Result<u32> {
    // SAFETY: `GetFree` describes the command as it is.
    unsafe { ioctl(control, GetFree) }
}

fn configure(device: &File, file: &File, name: &OsStr, read_only: bool) -> rustix::io::Result<()> {
    let mut config = <LoopConfig as zerocopy::FromZeros>::new_zeroed();
    config.fd = file.as_raw_fd() as u32;
    config.status.flags = AUTOCLEAR | if read_only { READ_ONLY } else { 0 };
    let name = SOURCE_LABEL.iter().chain(name.as_encoded_bytes());
    // The last byte stays NUL.
    for (to, from) in config.status.file_name.iter_mut().take(63).zip(name) {
        *to = *from;
    }
    // SAFETY: the command reads a `struct loop_config`, whose layout `LoopConfig` has, and changes
    // no memory of the process.
    unsafe { ioctl(device, Setter::<CONFIGURE, LoopConfig>::new(config)) }
}

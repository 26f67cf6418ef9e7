//! Reading and writing a file through a shared mapping.

use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::content::BLOCK;

/// Reads `bytes.len()` bytes at `offset` through a shared mapping, writes `bytes` there, and waits
/// for them to be written back. Returns what was read. The range must be within the file, which
/// must not be truncated in the meantime.
pub fn exchange(file: &File, offset: u64, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let start = offset / BLOCK * BLOCK;
    let within = (offset - start) as usize;
    let length = within + bytes.len();
    assert!(
        !bytes.is_empty() && offset + bytes.len() as u64 <= file.metadata()?.len(),
        "the range to map is not in the file"
    );
    // SAFETY: a fresh shared mapping at an address of the kernel's choice; it is unmapped below and
    // never escapes.
    let address = unsafe {
        mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, start)?
    };
    let mut before = vec![0; bytes.len()];
    // SAFETY: `address` maps `length` readable and writable bytes of the file, whose size was
    // checked above; the copies stay within them and overlap neither buffer. Raw copies do not
    // assume that the file is unchanged.
    let synced = unsafe {
        let place = address.cast::<u8>().add(within);
        std::ptr::copy_nonoverlapping(place, before.as_mut_ptr(), before.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        let synced = msync(address, length, MsyncFlags::SYNC);
        munmap(address, length)?;
        synced
    };
    synced?;
    Ok(before)
}

/// Writes `bytes` to the beginning of a file through a shared mapping, calls `meanwhile` while the
/// page is dirty, and unmaps it. The file must be at least as long as `bytes`, and must not be
/// truncated in the meantime.
pub fn write_and(file: &File, bytes: &[u8], meanwhile: impl FnOnce()) -> io::Result<()> {
    assert!(bytes.len() as u64 <= file.metadata()?.len(), "the range to map is not in the file");
    let length = bytes.len();
    // SAFETY: a fresh shared mapping at an address of the kernel's choice; it is unmapped below and
    // never escapes.
    let address =
        unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
    // SAFETY: `address` maps `length` writable bytes of the file, whose size was checked above.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast::<u8>(), length) };
    meanwhile();
    // SAFETY: the mapping made above, which no one else uses.
    unsafe { munmap(address, length)? };
    Ok(())
}

/// The beginning of a file, which is mapped until this is dropped.
pub struct Mapping {
    address: *mut u8,
    length: usize,
}

impl Mapping {
    /// Maps the first `length` bytes of a file, which must not be truncated in the meantime.
    pub fn new(file: &File, length: usize) -> io::Result<Self> {
        assert!(length as u64 <= file.metadata()?.len(), "the range to map is not in the file");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice, which is unmapped
        // when this is dropped.
        let address = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)? };
        Ok(Self { address: address.cast(), length })
    }

    /// Stores bytes at the beginning.
    pub fn store(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.length, "they are more than is mapped");
        // SAFETY: `address` maps `length` writable bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address, bytes.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, which nobody refers to any more.
        let _ = unsafe { munmap(self.address.cast(), self.length) };
    }
}

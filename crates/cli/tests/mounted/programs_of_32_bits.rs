//! Tests of 32-bit programs, which can't handle larger inode numbers (invariant 48): stat(2) and
//! getdents(2) are called through the kernel's table of system calls for them, by `int 0x80`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume, ubtrfs};

const STAT: u32 = 106;
const GETDENTS: u32 = 141;
/// The size of memory that such a program can address.
const SIZE: usize = 1 << 16;

struct Low(*mut u8);

impl Low {
    fn new() -> Self {
        const MAP_32BIT: u32 = 0x40;
        let flags = MapFlags::PRIVATE | MapFlags::from_bits_retain(MAP_32BIT);
        // SAFETY: the memory is new, and belongs to this value alone.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, flags) };
        Self(at.unwrap().cast())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `SIZE` bytes long and lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0, SIZE) }
    }

    fn at(&self, offset: usize) -> u32 {
        u32::try_from(self.0 as usize + offset).unwrap()
    }
}

impl Drop for Low {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the memory any more.
        unsafe { munmap(self.0.cast(), SIZE).unwrap() };
    }
}

/// Makes a system call of a 32-bit program. All pointers are into memory of a [`Low`].
fn call(number: u32, arguments: [u32; 3]) -> Result<usize, Errno> {
    let [first, second, third] = arguments;
    let result: i32;
    // SAFETY: the callers' pointers are into a `Low` with room for what the call writes.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first:r}",
            "int 0x80",
            "xchg rbx, {first:r}",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") second,
            in("edx") third,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(result as usize) }
}

fn number_of(path: &Path) -> Result<u64, Errno> {
    let mut low = Low::new();
    let bytes = path.as_os_str().as_encoded_bytes();
    low.bytes()[..bytes.len()].copy_from_slice(bytes);
    call(STAT, [low.at(0), low.at(SIZE / 2), 0])?;
    Ok(u32::from_ne_bytes(low.bytes()[SIZE / 2 + 4..][..4].try_into().unwrap()).into())
}

fn listed(path: &Path) -> Result<BTreeMap<String, u64>, Errno> {
    let (dir, mut low, mut found) = (File::open(path).unwrap(), Low::new(), BTreeMap::new());
    loop {
        let length = call(GETDENTS, [dir.as_raw_fd() as u32, low.at(0), SIZE as u32])?;
        if length == 0 {
            return Ok(found);
        }
        let mut rest = &low.bytes()[..length];
        while !rest.is_empty() {
            let number = u32::from_ne_bytes(rest[..4].try_into().unwrap());
            let size = usize::from(u16::from_ne_bytes(rest[8..10].try_into().unwrap()));
            let name = rest[10..size].split(|byte| *byte == 0).next().unwrap();
            found.insert(String::from_utf8(name.to_vec()).unwrap(), number.into());
            rest = &rest[size..];
        }
    }
}

#[test]
fn programs_of_32_bits_list_and_stat_files_of_all_subvolumes() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let at = |name: &str| volume.point.join(name);
    fs::create_dir(at("dir")).unwrap();
    for name in ["dir/one", "two"] {
        ubtrfs(&["subvolume".as_ref(), "create".as_ref(), at(name).as_os_str()]).ok();
    }
    for name in ["file", "dir/file", "dir/one/file", "two/file"] {
        fs::write(at(name), "content").unwrap();
    }
    ubtrfs(&["subvolume".as_ref(), "snapshot".as_ref(), at("").as_os_str(), at("whole").as_os_str()]).ok();
    let mut seen = BTreeMap::new();
    for dir in ["", "dir", "dir/one", "two", "whole", "whole/dir"] {
        let listed = listed(&at(dir));
        let listed = listed.unwrap_or_else(|errno| panic!("/{dir} is listed with {errno}"));
        assert!(listed.len() > 2, "/{dir}: {listed:?}");
        for (name, number) in listed.into_iter().filter(|(name, _)| !dir.is_empty() || name != "..") {
            let path = at(dir).join(&name);
            assert_eq!(number_of(&path), Ok(number), "{}", path.display());
            assert_eq!(fs::metadata(&path).unwrap().ino(), number, "{}", path.display());
            // The empty directories in place of nested subvolumes share one number in their
            // snapshot.
            let is_stub = number & 0xfff == 2;
            if name != "." && name != ".." && !is_stub {
                let other = seen.insert(number, path.clone());
                assert!(other.is_none(), "{} and {other:?} have one number", path.display());
            }
        }
    }
    volume.umount();
}

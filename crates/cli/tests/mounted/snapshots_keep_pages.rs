//! Tests that the pages which the kernel has cached of a subvolume stay cached when a snapshot of
//! it is made, and that earlier stores to mappings are in the snapshot.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume, ubtrfs};

const PAGE: usize = 4096;
const PAGES: usize = 300;

/// A shared mapping of a file.
struct Mapping(*mut u8);

impl Mapping {
    fn of(file: &File) -> Self {
        let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, PAGES * PAGE);
        // SAFETY: the memory is new, and as long as the file.
        Self(
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file.as_fd(), 0) }
                .unwrap()
                .cast(),
        )
    }

    fn store(&self, offset: usize, byte: u8) {
        // SAFETY: the address is within the mapping.
        unsafe { self.0.add(offset).write_volatile(byte) };
    }

    /// Returns how many of its pages are cached.
    fn cached(&self) -> usize {
        let mut pages = [0_u8; PAGES];
        // SAFETY: the array has a byte for each page.
        assert_eq!(unsafe { libc::mincore(self.0.cast(), PAGES * PAGE, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the memory any more.
        unsafe { munmap(self.0.cast(), PAGES * PAGE).unwrap() };
    }
}

/// Makes a snapshot as other programs do (`BTRFS_IOC_SNAP_CREATE_V2`). The command of ubtrfs would
/// sync the mount before.
fn snapshot(source: &Path, to: &Path) {
    const SNAP_CREATE_V2: libc::c_ulong = 0x5000_9417;
    let (source, into) = (File::open(source).unwrap(), File::open(to.parent().unwrap()).unwrap());
    let name = to.file_name().unwrap().as_encoded_bytes();
    let mut arguments = [0_u8; 4096];
    arguments[..8].copy_from_slice(&i64::from(source.as_raw_fd()).to_ne_bytes());
    arguments[56..56 + name.len()].copy_from_slice(name);
    // SAFETY: the argument has the size that the number encodes.
    let result = unsafe { libc::ioctl(into.as_raw_fd(), SNAP_CREATE_V2, arguments.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn keep_what_is_cached_and_have_what_was_stored() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let (work, file) = (volume.point.join("work"), volume.point.join("work/file"));
    ubtrfs(&["subvolume".as_ref(), "create".as_ref(), work.as_os_str()]).ok();
    fs::write(&file, vec![b'a'; PAGES * PAGE]).unwrap();
    let open = File::options().read(true).write(true).open(&file).unwrap();
    let mapping = Mapping::of(&open);
    fs::read(&file).unwrap();
    assert_eq!(mapping.cached(), PAGES);
    for round in 0..20_u8 {
        let page = usize::from(round) * 7;
        mapping.store(page * PAGE + 5, round);
        let copy = volume.point.join(format!("copy{round}"));
        snapshot(&work, &copy);
        assert_eq!(mapping.cached(), PAGES, "round {round}");
        let content = fs::read(copy.join("file")).unwrap();
        for before in 0..=round {
            assert_eq!(content[usize::from(before) * 7 * PAGE + 5], before, "stored in round {before}");
        }
        mapping.store(page * PAGE + 6, 0xff);
        assert_eq!(fs::read(copy.join("file")).unwrap()[page * PAGE + 6], b'a', "stored after the snapshot");
    }
    drop((mapping, open));
    volume.umount();
    volume.check();
}

/// Returns how often the table of inodes was locked: at least once for each inode that is examined.
fn inodes_looked_at(volume: &Volume) -> u64 {
    volume.stats()["lock_acquisitions"]["inode table"].as_u64().unwrap()
}

#[test]
fn a_snapshot_asks_nothing_about_files_that_were_only_looked_at() {
    const FILES: u64 = 4000;
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let work = volume.point.join("work");
    ubtrfs(&["subvolume".as_ref(), "create".as_ref(), work.as_os_str()]).ok();
    for number in 0..FILES {
        let kind = (rustix::fs::FileType::RegularFile, rustix::fs::Mode::from_raw_mode(0o644));
        rustix::fs::mknodat(rustix::fs::CWD, work.join(format!("file{number}")), kind.0, kind.1, 0).unwrap();
    }
    let looked_at = fs::read_dir(&work).unwrap().filter(|entry| entry.as_ref().unwrap().metadata().is_ok());
    assert_eq!(looked_at.count() as u64, FILES);
    fs::write(work.join("file7"), "written").unwrap();
    let before = inodes_looked_at(&volume);
    snapshot(&work, &volume.point.join("copy"));
    let asked = inodes_looked_at(&volume) - before;
    assert!(asked < FILES / 4, "{asked} inodes were looked at");
    assert_eq!(fs::read(volume.point.join("copy/file7")).unwrap(), b"written");
    volume.umount();
    volume.check();
}

/// A file that is open, and possibly mapped.
struct Kept {
    _mapping: Option<Mapping>,
    _file: File,
}

impl From<File> for Kept {
    fn from(file: File) -> Self {
        Self { _mapping: None, _file: file }
    }
}

/// Maps the file, and stores the byte in it.
fn store(file: File, byte: u8) -> Kept {
    let mapping = Mapping::of(&file);
    mapping.store(0, byte);
    Kept { _mapping: Some(mapping), _file: file }
}

type Way = fn(&Path, u8) -> Kept;

/// The ways in which a page of a file becomes dirty; each stores `byte` at offset 0 of a file that
/// has at least a page. The result must be kept, since the kernel writes a file's pages when it is
/// closed or unmapped.
const WAYS: [(&str, Way); 9] = [
    ("a whole page", |path, byte| write(path, &[byte; PAGE])),
    ("a byte", |path, byte| write(path, &[byte])),
    ("new", |path, byte| {
        let _ = fs::remove_file(path);
        let file = File::create(path).unwrap();
        file.write_all_at(&[byte; PAGE], 0).unwrap();
        file.into()
    }),
    ("a node", |path, byte| {
        let _ = fs::remove_file(path);
        let (kind, mode) = (rustix::fs::FileType::RegularFile, rustix::fs::Mode::from_raw_mode(0o644));
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        write(path, &[byte; PAGE])
    }),
    ("without a name", |path, byte| {
        let _ = fs::remove_file(path);
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let file = rustix::fs::open(path.parent().unwrap(), flags, mode).unwrap();
        rustix::io::pwrite(&file, &[byte; PAGE], 0).unwrap();
        rustix::fs::linkat(&file, "", rustix::fs::CWD, path, rustix::fs::AtFlags::EMPTY_PATH).unwrap();
        File::from(file).into()
    }),
    ("a mapping", |path, byte| {
        let open = File::options().read(true).write(true).open(path).unwrap();
        store(open, byte)
    }),
    ("a mapping of a hole", |path, byte| {
        let open = File::options().read(true).write(true).open(path).unwrap();
        open.set_len(0).unwrap();
        open.set_len((PAGES * PAGE) as u64).unwrap();
        store(open, byte)
    }),
    // The kernel has cached the page that was written, and does not read it.
    ("a mapping of what was written", |path, byte| {
        let _ = fs::remove_file(path);
        let open = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        open.write_all_at(&[b'b'; PAGES * PAGE], 0).unwrap();
        store(open, byte)
    }),
    ("a pipe", |path, byte| {
        let (from, to) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&to, &[byte; PAGE]).unwrap();
        let open = File::options().write(true).open(path).unwrap();
        let flags = rustix::pipe::SpliceFlags::empty();
        let moved = rustix::pipe::splice(&from, None, &open, Some(&mut 0), PAGE, flags).unwrap();
        assert_eq!(moved, PAGE);
        open.into()
    }),
];

fn write(path: &Path, content: &[u8]) -> Kept {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.into()
}

#[test]
fn snapshots_have_what_was_written_in_whatever_way() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let work = volume.point.join("work");
    ubtrfs(&["subvolume".as_ref(), "create".as_ref(), work.as_os_str()]).ok();
    for (name, _) in WAYS {
        fs::write(work.join(name), vec![b'a'; PAGES * PAGE]).unwrap();
    }
    // From here on the kernel has nothing of the files in its caches.
    volume.umount();
    volume.mount("");
    for entry in fs::read_dir(&work).unwrap() {
        entry.unwrap().metadata().unwrap();
    }
    for round in 0..4_u8 {
        let open: Vec<_> = WAYS.iter().map(|(name, way)| way(&work.join(name), round)).collect();
        let copy = volume.point.join(format!("copy{round}"));
        snapshot(&work, &copy);
        for (name, _) in WAYS {
            assert_eq!(fs::read(copy.join(name)).unwrap()[0], round, "{name}, round {round}");
        }
        drop(open);
        if round == 1 {
            // The kernel drops the files from its caches again.
            volume.umount();
            volume.mount("");
        }
    }
    volume.umount();
    volume.check();
}

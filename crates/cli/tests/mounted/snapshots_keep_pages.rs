//! What the kernel has cached of a subvolume stays cached when a snapshot of it is made, and what
//! programs have stored to mappings until then is in the snapshot.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume, ubtrfs};

const PAGE: usize = 4096;
const PAGES: usize = 300;

/// A file in memory, shared with others who have it open.
struct Mapping(*mut u8);

impl Mapping {
    fn of(file: &File) -> Self {
        let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, PAGES * PAGE);
        // SAFETY: new memory of its own, as long as the file.
        Self(
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file.as_fd(), 0) }
                .unwrap()
                .cast(),
        )
    }

    fn store(&self, offset: usize, byte: u8) {
        // SAFETY: it is within the mapping.
        unsafe { self.0.add(offset).write_volatile(byte) };
    }

    /// How many of its pages the kernel has.
    fn cached(&self) -> usize {
        let mut pages = [0_u8; PAGES];
        // SAFETY: there is a byte for each page.
        assert_eq!(unsafe { libc::mincore(self.0.cast(), PAGES * PAGE, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { munmap(self.0.cast(), PAGES * PAGE).unwrap() };
    }
}

fn snapshot(source: &Path, to: &Path) {
    ubtrfs(&["subvolume".as_ref(), "snapshot".as_ref(), source.as_os_str(), to.as_os_str()]).ok();
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

//! Tests with changes of every kind, many more than fit into `memory=`: the server stays within its
//! memory (invariant 26).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{FallocateFlags, XattrFlags};
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume, ubtrfs};

const MEMORY: u64 = 32 << 20;
/// The memory in bytes for code, stacks, buffers of requests, and 60 bytes for each inode that the
/// kernel remembers.
const BESIDE: u64 = 96 << 20;
/// The limit in bytes. If they were all held in memory, the changes of some kinds would take twice
/// as much.
const MAX: u64 = 2 * MEMORY + BESIDE;

const SECTOR: u64 = 4096;

const XATTRS: u64 = 13_000;
const LINKS: u64 = 120_000;
const EXTENTS: u64 = 20_000;
/// The length of a file with so many extents, each of which is a sector followed by a hole.
const LENGTH: u64 = EXTENTS * 2 * SECTOR;

/// A mount whose server's memory is measured.
struct Watched {
    volume: Volume,
    pid: String,
    failures: Vec<String>,
}

impl Watched {
    fn new() -> Self {
        let volume = Volume::without_image();
        ubtrfs(&["mkfs".as_ref(), "--size".as_ref(), "3G".as_ref(), volume.image.as_os_str()]).ok();
        // Rings have their own buffers, of up to 64 MiB on two CPUs.
        volume.mount(&format!("memory={MEMORY},transport=dev"));
        let pid = volume.stats()["pid"].to_string();
        Self { volume, pid, failures: Vec::new() }
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.volume.point.join(name)
    }

    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// Returns the server's peak of memory since the last call.
    fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Runs `work`, and measures the memory that it takes.
    fn holds(&mut self, what: &str, work: impl FnOnce(&Self)) {
        self.peak();
        let start = Instant::now();
        work(self);
        let peak = self.peak();
        println!("{what}: {} MiB, {:?}", peak >> 20, start.elapsed());
        if peak > MAX {
            self.failures.push(format!("{} MiB: {what}", peak >> 20));
        }
    }

    #[track_caller]
    fn end(self) {
        self.volume.umount();
        ubtrfs(&["check".as_ref(), "--no-data".as_ref(), self.volume.image.as_os_str()]).ok();
        assert!(self.failures.is_empty(), "more than {} MiB: {:#?}", MAX >> 20, self.failures);
    }
}

/// Returns a name of 200 bytes.
fn long(number: u64) -> String {
    format!("{number:0200}")
}

#[test]
fn names_and_xattrs_hold_to_memory() {
    require!(FUSE);
    let mut mount = Watched::new();
    let dir = mount.dir("xattrs");
    let file = |number: u64| dir.join((number / 16).to_string());
    mount.holds("xattrs of 16,000 bytes", |_| {
        for number in 0..XATTRS {
            if number % 16 == 0 {
                drop(File::create(file(number)).unwrap());
            }
            let name = format!("user.{}", number % 16);
            rustix::fs::setxattr(file(number), name, &[number as u8; 16_000], XattrFlags::CREATE).unwrap();
        }
    });
    mount.holds("xattrs that are replaced", |_| {
        for number in (0..XATTRS).step_by(2) {
            let name = format!("user.{}", number % 16);
            rustix::fs::setxattr(file(number), name, &[1; 15_000], XattrFlags::REPLACE).unwrap();
        }
    });
    mount.holds("xattrs that go with their files", |_| fs::remove_dir_all(&dir).unwrap());

    let dir = mount.dir("symlinks");
    let target = "t".repeat(4000);
    mount.holds("symlinks to 4,000 bytes", |_| {
        (0..30_000).for_each(|number| symlink(&target, dir.join(number.to_string())).unwrap());
    });

    // The names of a directory are stored in the order of their hashes, so with small directories a
    // commit changes few leaves.
    let root = mount.volume.point.clone();
    let link = |number: u64| root.join(format!("links-{}/{}", number / 4000, long(number)));
    let renamed = |number: u64| link(number).with_file_name(format!("renamed-{number}"));
    let mut first = PathBuf::new();
    mount.holds("hard links", |_| {
        for number in 0..LINKS {
            if number % 4000 == 0 {
                first = link(number);
                fs::create_dir(first.parent().unwrap()).unwrap();
                drop(File::create(&first).unwrap());
            } else {
                fs::hard_link(&first, link(number)).unwrap();
            }
        }
    });
    mount.holds("hard links that are renamed", |_| {
        (0..LINKS / 2).for_each(|number| fs::rename(link(number), renamed(number)).unwrap());
    });
    mount.holds("hard links that go", |_| {
        (0..LINKS / 2).for_each(|number| fs::remove_file(renamed(number)).unwrap());
        (LINKS / 2..LINKS).for_each(|number| fs::remove_file(link(number)).unwrap());
    });

    let dir = mount.dir("logged");
    mount.holds("names that are made and removed in a directory that the log has", |_| {
        let synced = File::open(&dir).unwrap();
        drop(File::create(dir.join("first")).unwrap());
        synced.sync_all().unwrap();
        for number in 0..30_000 {
            let name = dir.join(long(number));
            drop(File::create(&name).unwrap());
            fs::remove_file(&name).unwrap();
        }
    });
    mount.end();
}

#[test]
fn data_holds_to_memory() {
    require!(FUSE);
    let mut mount = Watched::new();
    let dir = mount.dir("files");
    let file = |number: u64| File::create(dir.join(number.to_string())).unwrap();
    mount.holds("files that grow side by side", |_| {
        let files: Vec<_> = (0..32).map(file).collect();
        let block = vec![7; 1 << 20];
        for at in 0..12 {
            for file in &files {
                file.write_all_at(&block, at << 20).unwrap();
            }
        }
    });
    mount.holds("sectors far from each other", |_| {
        let file = file(100);
        for number in 0..4_000 {
            file.write_all_at(&[1; 4096], number << 16).unwrap();
            file.write_all_at(&[1; 4096], (number << 16) + (15 << 12)).unwrap();
        }
    });
    mount.holds("files that are fsynced", |_| {
        for number in 0..1_000 {
            let file = file(1000 + number);
            file.write_all_at(&vec![2; 200 << 10], 0).unwrap();
            file.sync_data().unwrap();
        }
    });
    mount.holds("reserved space that is written", |_| {
        let file = file(200);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 30).unwrap();
        for number in 0..60_000 {
            file.write_all_at(&[3; 4096], (number * 2 + number % 2) * 2 * SECTOR).unwrap();
        }
    });
    mount.end();
}

#[test]
fn maps_of_files_hold_to_memory() {
    require!(FUSE);
    let mut mount = Watched::new();
    let file = |mount: &Watched, name: &str| {
        File::options().create(true).truncate(false).read(true).write(true).open(mount.path(name)).unwrap()
    };
    mount.holds("extents of a sector", |mount| {
        let file = file(mount, "pieces");
        (0..EXTENTS).for_each(|number| file.write_all_at(&[1; 4096], number * 2 * SECTOR).unwrap());
        file.sync_all().unwrap();
    });
    let copy = |mount: &Watched, from: &File, name: &str| {
        let to = file(mount, name);
        let mut at = 0;
        while at < LENGTH - SECTOR {
            let (mut start, mut end) = (at, at);
            let count = rustix::fs::copy_file_range(
                from,
                Some(&mut start),
                &to,
                Some(&mut end),
                (LENGTH - SECTOR - at) as usize,
            );
            at += count.unwrap() as u64;
        }
    };
    mount.holds("pieces that are shared", |mount| {
        let pieces = file(mount, "pieces");
        (0..14).for_each(|number| copy(mount, &pieces, &format!("copy-{number}")));
    });
    mount.holds("a hole in place of each second piece", |mount| {
        for number in 0..2 {
            let file = file(mount, &format!("copy-{number}"));
            for piece in (0..EXTENTS).step_by(2) {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, piece * 2 * SECTOR, SECTOR).unwrap();
            }
        }
    });
    mount.holds("one hole in place of all pieces", |mount| {
        for number in 0..4 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file(mount, &format!("copy-{number}")), flags, 0, LENGTH).unwrap();
        }
    });
    mount.holds("zeroes in place of all pieces", |mount| {
        for number in 4..7 {
            rustix::fs::fallocate(file(mount, &format!("copy-{number}")), FallocateFlags::ZERO_RANGE, 0, LENGTH)
                .unwrap();
        }
    });
    mount.holds("one extent in place of all pieces", |mount| {
        let flat = file(mount, "flat");
        rustix::fs::ftruncate(&flat, LENGTH).unwrap();
        flat.write_all_at(&vec![1; 1 << 16], 0).unwrap();
        (7..10).for_each(|number| copy(mount, &flat, &format!("copy-{number}")));
    });
    // Steps of 83 sectors, so that sectors both with and without data are compared.
    let reads_as = |number: u64, content: &dyn Fn(u64) -> u8| {
        let copy = file(&mount, &format!("copy-{number}"));
        let mut sector = [9; SECTOR as usize];
        for at in (0..LENGTH - SECTOR).step_by(83 * SECTOR as usize) {
            copy.read_exact_at(&mut sector, at).unwrap();
            assert_eq!(sector, [content(at); SECTOR as usize], "copy-{number} at {at}");
        }
    };
    reads_as(3, &|_| 0);
    reads_as(6, &|_| 0);
    reads_as(9, &|at| u8::from(at < 1 << 16));
    reads_as(13, &|at| u8::from(at % (2 * SECTOR) == 0));
    mount.holds("files that are truncated", |mount| {
        (10..14).for_each(|number| file(mount, &format!("copy-{number}")).set_len(1).unwrap());
    });
    mount.end();
}

//! Tests with many files, names and xattrs: the server stays within its memory, and a volume with
//! many files mounts quickly.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::XattrFlags;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::harness::{FUSE, Volume, ubtrfs};

/// The most bytes that a mount reads.
const READ_BY_A_MOUNT: u64 = 8 << 20;

/// Returns the server's memory in bytes besides `memory=`: for its code, the stacks of its threads,
/// buffers of requests, and its state for each inode that the kernel remembers, which are those of
/// the large directory and of the tree.
fn beside(files: u64) -> u64 {
    const INODE_OF_THE_KERNEL: u64 = 60;
    (32 << 20) + 2 * files * INODE_OF_THE_KERNEL
}

/// Returns the server's peak of memory in bytes.
fn peak(volume: &Volume) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", volume.stats()["pid"])).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn timed(what: &str, count: u64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    println!("{what}: {} a second", u128::from(count) * 1000 / start.elapsed().as_millis().max(1));
}

/// Makes, reads, renames and removes one directory of `count` entries, and a tree of as many files.
fn many_files(volume: &Volume, count: u64) {
    let large = volume.point.join("large");
    fs::create_dir(&large).unwrap();
    let in_large = |name: &str, number: u64| large.join(format!("{name}{number:07}"));
    timed("create in one directory", count, || {
        for number in 0..count {
            drop(File::create(in_large("file", number)).unwrap());
        }
    });
    check_memory(volume, count, "create");
    timed("list", count, || assert_eq!(fs::read_dir(&large).unwrap().count() as u64, count));
    timed("stat", count, || (0..count).for_each(|n| assert!(fs::symlink_metadata(in_large("file", n)).is_ok())));
    timed("rename", count, || (0..count).for_each(|n| fs::rename(in_large("file", n), in_large("other", n)).unwrap()));
    check_memory(volume, count, "rename");

    let in_tree = |number: u64| volume.point.join(format!("tree/{}/{}", number / 1000, number % 1000));
    fs::create_dir(volume.point.join("tree")).unwrap();
    timed("create a tree", count, || {
        for number in 0..count {
            if number % 1000 == 0 {
                fs::create_dir(in_tree(number).parent().unwrap()).unwrap();
            }
            fs::write(in_tree(number), number.to_string()).unwrap();
        }
    });
    check_memory(volume, count, "create a tree");
    volume.umount();
    timed("mount", 1, || volume.mount(&mount_options(count)));
    // A mount is fast, however many files there are.
    let read = volume.stats()["device_bytes_read"].as_u64().unwrap();
    assert!(read < READ_BY_A_MOUNT, "{} KiB", read >> 10);
    timed("read a tree", count, || {
        (0..count).for_each(|n| assert_eq!(fs::read(in_tree(n)).unwrap(), n.to_string().as_bytes()));
    });
    check_memory(volume, count, "read a tree");
    timed("remove all", 2 * count, || {
        fs::remove_dir_all(&large).unwrap();
        fs::remove_dir_all(volume.point.join("tree")).unwrap();
    });
    check_memory(volume, count, "remove");
}

fn memory_of(count: u64) -> u64 {
    if count >= 1_000_000 { 256 << 20 } else { 128 << 20 }
}

fn mount_options(count: u64) -> String {
    format!("memory={}", memory_of(count))
}

#[track_caller]
fn check_memory(volume: &Volume, count: u64, after: &str) {
    let peak = peak(volume);
    println!("after {after}: {} MiB at the most", peak >> 20);
    assert!(peak <= memory_of(count) + beside(count), "{} MiB after: {after}", peak >> 20);
}

fn memory_is_held_with(count: u64, size: &str) {
    let volume = Volume::without_image();
    ubtrfs(&["mkfs".as_ref(), "--size".as_ref(), size.as_ref(), volume.image.as_os_str()]).ok();
    volume.mount(&mount_options(count));
    many_files(&volume, count);
    volume.umount();
    volume.check();
}

#[test]
fn memory_is_held_with_many_files() {
    require!(FUSE);
    memory_is_held_with(20_000, "1G");
}

/// `make soak` runs this test; to run it alone:
/// `cargo test --profile proof -p ubtrfs-cli --test posix million -- --ignored --nocapture`.
#[test]
#[ignore = "takes ten minutes"]
fn memory_is_held_with_a_million_files() {
    require!(FUSE);
    memory_is_held_with(1_000_000, "16G");
}

fn xattrs_of(path: &Path) -> usize {
    let mut names = vec![0_u8; 1 << 16];
    let length = rustix::fs::listxattr(path, &mut names[..]).unwrap();
    names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).count()
}

#[test]
fn ten_thousand_xattrs_stay() {
    const FILES: usize = 40;
    const EACH: usize = 250;
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let path = |root: &Path, file: usize| root.join(file.to_string());
    for file in 0..FILES {
        fs::write(path(&volume.point, file), "").unwrap();
        for number in 0..EACH {
            let (name, value) = (format!("user.attribute-{number}"), vec![number as u8; number % 300]);
            rustix::fs::setxattr(path(&volume.point, file), name, &value, XattrFlags::CREATE).unwrap();
        }
        assert_eq!(xattrs_of(&path(&volume.point, file)), EACH);
    }
    volume.umount();
    volume.check();
    let kernel = ubtrfs_testkit::kernel::KernelMount::new(&[&volume.image], "");
    for file in 0..FILES {
        assert_eq!(xattrs_of(&path(kernel.path(), file)), EACH);
        let mut value = [0_u8; 300];
        let length = rustix::fs::getxattr(path(kernel.path(), file), "user.attribute-123", &mut value[..]).unwrap();
        assert_eq!(value[..length], [123; 123]);
    }
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    volume.mount("");
    for file in 0..FILES {
        for number in (0..EACH).step_by(2) {
            rustix::fs::removexattr(path(&volume.point, file), format!("user.attribute-{number}")).unwrap();
        }
        assert_eq!(xattrs_of(&path(&volume.point, file)), EACH / 2);
    }
    volume.umount();
    volume.check();
}

/// One sector of each pair is written, so that no two extents are adjacent.
const STEP: u64 = 8192;

/// Makes, reads, partly overwrites, truncates and removes a file of so many extents.
fn many_extents(count: u64, size: &str) {
    let volume = Volume::without_image();
    ubtrfs(&["mkfs".as_ref(), "--size".as_ref(), size.as_ref(), volume.image.as_os_str()]).ok();
    let path = volume.point.join("file");
    let content = |number: u64, round: u64| [number, round].map(u64::to_le_bytes).as_flattened().repeat(256);
    volume.mount(&mount_options(count));
    let file = File::create(&path).unwrap();
    timed("write", count, || {
        (0..count).for_each(|number| file.write_all_at(&content(number, 0), number * STEP).unwrap());
        file.sync_all().unwrap();
    });
    drop(file);
    check_memory(&volume, count, "write");
    assert_eq!(fs::metadata(&path).unwrap().blocks(), count * 8);
    volume.umount();
    volume.mount(&mount_options(count));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let read = |number: u64, round: u64| {
        let mut found = vec![0; 4096];
        file.read_exact_at(&mut found, number * STEP).unwrap();
        assert!(found == content(number, round), "extent {number}");
    };
    timed("read", count, || (0..count).for_each(|number| read(number, 0)));
    timed("overwrite", count / 50, || {
        (0..count).step_by(50).for_each(|number| file.write_all_at(&content(number, 1), number * STEP).unwrap());
        file.sync_all().unwrap();
    });
    (0..count).step_by(25).for_each(|number| read(number, u64::from(number % 50 == 0)));
    check_memory(&volume, count, "overwrite");
    timed("truncate", count / 2, || file.set_len(count / 2 * STEP).unwrap());
    read(count / 2 - 1, 0);
    assert_eq!(file.metadata().unwrap().blocks(), count / 2 * 8);
    drop(file);
    volume.umount();
    volume.check();
    volume.mount(&mount_options(count));
    timed("remove", count / 2, || fs::remove_file(&path).unwrap());
    volume.umount();
    volume.check();
}

#[test]
fn a_file_of_many_extents_is_kept() {
    require!(Need::Kernel, FUSE);
    many_extents(10_000, "1G");
}

#[test]
#[ignore = "takes minutes"]
fn a_file_of_a_million_extents_is_kept() {
    require!(Need::Kernel, FUSE);
    many_extents(1_000_000, "16G");
}

#[test]
fn a_file_has_as_many_names_as_the_format_allows() {
    const MAX: u64 = 65_535;
    const EACH: u64 = 8000;
    require!(Need::Kernel, FUSE);
    let volume = Volume::without_image();
    ubtrfs(&["mkfs".as_ref(), "--size".as_ref(), "1G".as_ref(), volume.image.as_os_str()]).ok();
    volume.mount("");
    let name = |root: &Path, number: u64| root.join(format!("{}/{number}", number / EACH));
    (0..=MAX / EACH).for_each(|dir| fs::create_dir(volume.point.join(dir.to_string())).unwrap());
    fs::write(name(&volume.point, 0), "content").unwrap();
    timed("link", MAX, || {
        (1..MAX).for_each(|n| fs::hard_link(name(&volume.point, 0), name(&volume.point, n)).unwrap());
    });
    let one_more = fs::hard_link(name(&volume.point, 0), volume.point.join("one more")).unwrap_err();
    assert_eq!(one_more.raw_os_error(), Some(rustix::io::Errno::MLINK.raw_os_error()));
    volume.umount();
    volume.check();
    let kernel = ubtrfs_testkit::kernel::KernelMount::new(&[&volume.image], "");
    for number in (0..MAX).step_by(997) {
        assert_eq!(fs::metadata(name(kernel.path(), number)).unwrap().nlink(), MAX);
        assert_eq!(fs::read_to_string(name(kernel.path(), number)).unwrap(), "content");
    }
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    volume.mount("");
    timed("unlink", EACH, || (MAX - EACH..MAX).for_each(|n| fs::remove_file(name(&volume.point, n)).unwrap()));
    assert_eq!(fs::metadata(name(&volume.point, 0)).unwrap().nlink(), MAX - EACH);
    volume.umount();
    volume.check();
}

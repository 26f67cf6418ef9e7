//! Tests that files are rewritten in fewer extents, or compressed, by ubtrfs and by btrfs-progs:
//! the kernel finds the same content in fewer extents, and shared extents stay shared.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, IFlags, Mode, OFlags};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::compression::algorithms;
use crate::harness::{FUSE, Volume, fails, ubtrfs};

const BLOCK: usize = 4096;
const BLOCKS: usize = 128;

fn block(number: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| b"a page of a database, "[(at + number) % 22]).collect()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Writes blocks in an order that separates each from its neighbours on disk, alternating with
/// another file.
fn fragment(file: &File, other: &File) {
    for step in 0..BLOCKS {
        let number = step * 51 % BLOCKS;
        file.write_all_at(&block(number), (number * BLOCK) as u64).unwrap();
        file.sync_data().unwrap();
        if step % 16 == 0 {
            other.write_all_at(&block(step), (step * BLOCK) as u64).unwrap();
            other.sync_data().unwrap();
        }
    }
}

fn whole() -> Vec<u8> {
    (0..BLOCKS).flat_map(block).collect()
}

/// Returns the number of a file's extents, as the kernel counts them.
fn extents(path: &Path) -> usize {
    let shown = run(command("filefrag", &["-s"]).arg(path)).ok().stdout;
    shown.rsplit_once(": ").and_then(|(_, count)| count.split(' ').next()).unwrap().parse().unwrap()
}

/// Returns how many bytes of a file are shared, as the kernel counts them.
fn shared_bytes(path: &Path) -> u64 {
    let shown = run(command("btrfs", &["filesystem", "du", "-s", "--raw"]).arg(path)).ok().stdout;
    shown.lines().last().unwrap().split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// Runs `ubtrfs` with these words and a path.
fn ubtrfs_on(words: &[&str], path: &Path) -> Outcome {
    let words = words.iter().map(OsStr::new).chain([path.as_os_str()]);
    ubtrfs(&words.collect::<Vec<_>>())
}

fn defragment(options: &[&str], path: &Path) {
    ubtrfs_on(&[&["filesystem", "defragment"], options].concat(), path).ok();
}

#[test]
fn fragmented_files_come_to_lie_in_one_place() {
    require!(Need::Root, FUSE, Need::Kernel);
    let volume = Volume::new();
    volume.mount("");
    let names = ["plain", "nodatacow", "reserved"];
    for name in names {
        let file = open(&volume.point.join(name));
        match name {
            "nodatacow" => rustix::fs::ioctl_setflags(&file, IFlags::from_bits_retain(0x80_0000)).unwrap(),
            "reserved" => {
                for part in (0..BLOCKS).step_by(2) {
                    let (at, len) = ((part * BLOCK) as u64, BLOCK as u64);
                    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, at, len).unwrap();
                }
            }
            _ => {}
        }
        fragment(&file, &open(&volume.point.join("other")));
    }
    volume.umount();
    let kernel = KernelMount::new(&[&volume.image], "ro");
    for name in names {
        assert!(extents(&kernel.path().join(name)) > 50, "{name}");
    }
    assert_eq!(kernel.unmount(), [""; 0]);
    volume.mount("");
    for name in names {
        let path = volume.point.join(name);
        let before = path.metadata().unwrap();
        defragment(&["--flush"], &path);
        let after = path.metadata().unwrap();
        let times = |is: &fs::Metadata| (is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec(), is.size());
        assert_eq!(times(&before), times(&after), "{name}");
        assert!(fs::read(&path).unwrap() == whole(), "{name}");
    }
    volume.umount();
    assert_btrfs_check_clean(&volume.image);
    volume.check();
    let kernel = KernelMount::new(&[&volume.image], "ro");
    for name in names {
        let path = kernel.path().join(name);
        assert!(fs::read(&path).unwrap() == whole(), "{name}");
        assert!(extents(&path) <= 2, "{name} has {} extents", extents(&path));
    }
    assert_eq!(kernel.unmount(), [""; 0]);
}

#[test]
fn shared_extents_stay_shared_unless_the_command_says_otherwise() {
    require!(Need::Root, FUSE, Need::Kernel);
    let volume = Volume::new();
    volume.mount("");
    let at = |name: &str| volume.point.join(name);
    ubtrfs_on(&["subvolume", "create"], &at("top")).ok();
    fragment(&open(&at("top/file")), &open(&at("top/other")));
    fragment(&open(&at("top/alone")), &open(&at("top/other")));
    let (source, copy) = (open(&at("top/file")), open(&at("top/copy")));
    source.sync_all().unwrap();
    let copied = rustix::fs::copy_file_range(&source, None, &copy, None, BLOCKS * BLOCK).unwrap();
    assert_eq!(copied, BLOCKS * BLOCK);
    drop((source, copy));
    let shared = |volume: &Volume| {
        volume.umount();
        assert_btrfs_check_clean(&volume.image);
        let kernel = KernelMount::new(&[&volume.image], "ro");
        let top = kernel.path().join("top");
        for name in ["file", "copy", "alone"] {
            assert!(fs::read(top.join(name)).unwrap() == whole(), "{name}");
        }
        let found = (shared_bytes(&kernel.path().join("top")), extents(&top.join("alone")));
        assert_eq!(kernel.unmount(), [""; 0]);
        volume.mount("");
        found
    };
    let whole_size = (BLOCKS * BLOCK) as u64;
    let defragment_all = |options: &[&str]| defragment(&[options, &["--recursive"]].concat(), &at("top"));
    defragment_all(&[]);
    let (bytes, pieces) = shared(&volume);
    assert_eq!(bytes, whole_size, "two files share all of their content");
    assert!(pieces <= 2, "a file that shares nothing has {pieces} extents");
    // A snapshot shares leaves; once it is deleted, nothing does.
    fragment(&open(&at("top/alone")), &open(&at("top/other")));
    let top = at("top");
    ubtrfs_on(&["subvolume", "snapshot", top.to_str().unwrap()], &at("snapshot")).ok();
    defragment_all(&["-czstd"]);
    let (_, pieces) = shared(&volume);
    assert!(pieces > 50, "what a snapshot shares has {pieces} extents");
    ubtrfs_on(&["subvolume", "delete", "--commit-after"], &at("snapshot")).ok();
    ubtrfs_on(&["subvolume", "sync"], &volume.point).ok();
    defragment_all(&[]);
    let (bytes, pieces) = shared(&volume);
    assert_eq!(bytes, whole_size);
    assert!(pieces <= 2, "what a deleted snapshot shared has {pieces} extents");
    defragment_all(&["--unshare"]);
    assert_eq!(shared(&volume).0, 0);
}

#[test]
fn btrfs_progs_defragment_and_compress() {
    require!(Need::Root, FUSE, Need::Kernel);
    let volume = Volume::new();
    volume.mount("");
    let path = volume.point.join("file");
    fragment(&open(&path), &open(&volume.point.join("other")));
    let blocks = |volume: &Volume| {
        volume.umount();
        assert_btrfs_check_clean(&volume.image);
        let kernel = KernelMount::new(&[&volume.image], "ro");
        let path = kernel.path().join("file");
        assert!(fs::read(&path).unwrap() == whole());
        let found = (extents(&path), algorithms(volume));
        assert_eq!(kernel.unmount(), [""; 0]);
        volume.mount("");
        found
    };
    let by_progs = |options: &[&str]| {
        run(command("btrfs", &["filesystem", "defragment"]).args(options).arg(&volume.point)).ok();
    };
    by_progs(&["-r"]);
    assert!(blocks(&volume).0 <= 2);
    by_progs(&["-r", "-czstd"]);
    // Extents of at most 128 KiB each.
    let pieces = (BLOCKS * BLOCK) >> 17;
    let (found, how) = blocks(&volume);
    assert_eq!(found, pieces);
    assert!(how.contains(&("file".into(), "zstd".into())), "{how:?}");
    // Without an option for compression, compressed data stays compressed.
    let remove = ["--nocomp", "--flush"];
    defragment(&[], &path);
    assert_eq!(blocks(&volume).0, pieces);
    defragment(&remove, &path);
    assert!(blocks(&volume).0 <= 2);
}

#[test]
fn only_who_may_write_to_a_file_defragments_it() {
    require!(Need::Root, FUSE, Need::Kernel);
    let volume = Volume::new();
    volume.mount("allow_other");
    let (file, other) = (volume.point.join("file"), volume.point.join("other"));
    fragment(&open(&file), &open(&other));
    std::os::unix::fs::chown(&other, Some(65_534), Some(65_534)).unwrap();
    let as_nobody = |path: &Path| {
        let mut setpriv = command("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups"]);
        run(setpriv.arg(env!("CARGO_BIN_EXE_ubtrfs")).args(["filesystem", "defragment"]).arg(path))
    };
    as_nobody(&other).ok();
    fails(&as_nobody(&file), "only who may write to a file may defragment it");
    fails(&ubtrfs_on(&["filesystem", "defragment"], &volume.point), "-r defragments");
    volume.umount();
}

#[test]
fn images_are_defragmented_without_a_mount() {
    require!(Need::Root, FUSE, Need::Kernel);
    let volume = Volume::new();
    volume.mount("");
    fs::create_dir(volume.point.join("dir")).unwrap();
    fragment(&open(&volume.point.join("dir/file")), &open(&volume.point.join("other")));
    volume.umount();
    let mut place = volume.image.clone().into_os_string();
    place.push(":/");
    defragment(&["-rv", "--compress=lzo", "--level=1"], Path::new(&place));
    assert_btrfs_check_clean(&volume.image);
    let kernel = KernelMount::new(&[&volume.image], "ro");
    let path = kernel.path().join("dir/file");
    assert!(fs::read(&path).unwrap() == whole());
    assert_eq!(extents(&path), (BLOCKS * BLOCK) >> 17);
    assert_eq!(kernel.unmount(), [""; 0]);
}

/// Enters directories with this name until there are no more, which is deeper than a path can be.
fn bottom_of(top: &Path, name: &str) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    while let Ok(below) = rustix::fs::openat(&at, name, flags, Mode::empty()) {
        at = below;
    }
    at
}

#[test]
fn files_deeper_than_a_path_are_defragmented_and_measured_and_no_link_is_followed() {
    require!(Need::Root, FUSE, Need::Kernel);
    let (volume, name) = (Volume::new(), "n".repeat(200));
    volume.mount("");
    let tree = volume.point.join("tree");
    fs::create_dir(&tree).unwrap();
    for _ in 0..40 {
        rustix::fs::mkdirat(bottom_of(&tree, &name), &name, Mode::RWXU).unwrap();
    }
    let how = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let bottom = rustix::fs::openat(bottom_of(&tree, &name), "bottom", how, Mode::RUSR | Mode::WUSR).unwrap();
    fragment(&bottom.into(), &open(&volume.point.join("other")));
    fragment(&open(&volume.point.join("elsewhere")), &open(&volume.point.join("other")));
    std::os::unix::fs::symlink("../elsewhere", tree.join("link")).unwrap();
    let shown = ubtrfs_on(&["filesystem", "du", "--json"], &tree).ok().stdout;
    assert_eq!(shown.matches("/bottom\"").count(), 1);
    assert!(!shown.contains("link"));
    volume.umount();
    // The file at the bottom, and the target of the link.
    let pieces = || {
        let kernel = KernelMount::new(&[&volume.image], "ro");
        let bottom = bottom_of(&kernel.path().join("tree"), &name);
        let found = [
            extents(Path::new(&format!("/proc/{}/fd/{}/bottom", std::process::id(), bottom.as_raw_fd()))),
            extents(&kernel.path().join("elsewhere")),
        ];
        drop(bottom);
        assert_eq!(kernel.unmount(), [""; 0]);
        found
    };
    let before = pieces();
    assert!(before.into_iter().all(|count| count > 16), "{before:?}");
    volume.mount("");
    defragment(&["-r"], &tree);
    volume.umount();
    let after = pieces();
    assert!(after[0] <= 2 && after[1] == before[1], "{before:?} {after:?}");
    assert_btrfs_check_clean(&volume.image);
}

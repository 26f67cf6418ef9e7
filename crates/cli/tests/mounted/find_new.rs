//! Tests that changes since a commit are listed as by `btrfs subvolume find-new`, for volumes that
//! ubtrfs or the kernel has changed, on mounts of both and in images.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, mkfs_btrfs};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, fails, ubtrfs};

fn theirs(place: &Path, generation: u64) -> String {
    run(command("btrfs", &["subvolume", "find-new"]).arg(place).arg(generation.to_string())).ok().stdout
}

fn ours(place: &str, generation: u64) -> String {
    ubtrfs(&["subvolume", "find-new", place, &generation.to_string()]).ok().stdout
}

/// Writes files with all kinds of extents into a directory.
fn write_files(dir: &Path) {
    fs::create_dir_all(dir.join("one/two")).unwrap();
    fs::write(dir.join("inline"), "small ".repeat(50)).unwrap();
    fs::write(dir.join("one/two/large"), vec![7; 3 << 20]).unwrap();
    File::create(dir.join("one/sparse")).unwrap().write_all_at(&[1; 4096], 1 << 20).unwrap();
    run(command("fallocate", &["-l", "64K"]).arg(dir.join("reserved"))).ok();
    fs::hard_link(dir.join("one/two/large"), dir.join("name")).unwrap();
    fs::rename(dir.join("one/two"), dir.join("one/renamed")).unwrap();
}

#[test]
fn new_extents_are_listed_as_by_btrfs() {
    require!(FUSE, Need::Kernel);
    let volume = Volume::without_image();
    mkfs_btrfs(&volume.image, 256 << 20, &["-O", "^no-holes"]);
    let kernel = KernelMount::new(&[&volume.image], "compress-force=zlib");
    let of_kernel = kernel.path().join("sub");
    run(command("btrfs", &["subvolume", "create"]).arg(&of_kernel)).ok();
    write_files(&of_kernel);
    run(command("btrfs", &["filesystem", "sync"]).arg(&of_kernel)).ok();
    let whole = theirs(&of_kernel, 0);
    assert!(whole.contains("COMPRESS|INLINE") && whole.contains("PREALLOC"), "{whole}");
    let next = whole.lines().last().unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap() + 1;
    File::options().write(true).open(of_kernel.join("name")).unwrap().write_all_at(&[9; 4096], 8192).unwrap();
    let expected = [0, next - 1, next, next + 1].map(|generation| (generation, theirs(&of_kernel, generation)));
    assert_eq!((expected[2].1.lines().count(), expected[3].1.lines().count()), (2, 1), "{expected:?}");
    let assert_same = |place: &str| {
        for (generation, expected) in &expected {
            assert_eq!(&ours(place, *generation), expected, "{place} since {generation}");
        }
    };
    assert_same(of_kernel.to_str().unwrap());
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    let in_image = format!("{}:sub", volume.image.display());
    assert_same(&in_image);
    volume.mount("");
    let on_mount = volume.point.join("sub");
    assert_same(on_mount.to_str().unwrap());

    // Our command lists what was written at once, and theirs later.
    write_files(&on_mount.join("one/ours"));
    let shown = ours(on_mount.to_str().unwrap(), next + 1);
    assert!(shown.contains(" one/ours/name\n") && shown.contains("INLINE one/ours/inline\n"), "{shown}");
    assert!(!shown.contains("inode 258 "), "{shown}");
    fails(&ubtrfs(&["subvolume", "find-new", on_mount.join("one").to_str().unwrap(), "1"]), "not a subvolume");
    volume.umount();
    assert_eq!(ours(&in_image, next + 1), shown);
    assert_btrfs_check_clean(&volume.image);
    let kernel = KernelMount::new(&[&volume.image], "");
    assert_eq!(theirs(&kernel.path().join("sub"), next + 1), shown);
}

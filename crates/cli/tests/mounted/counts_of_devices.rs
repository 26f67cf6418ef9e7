//! Tests with superblocks whose number of devices differs from that in the chunk tree. The kernel
//! uses the chunk tree, and its next commit corrects the number; but a volume with a count of one
//! is opened by a single device.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ubtrfs_format::{ChecksumType, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

use crate::harness::{FUSE, ubtrfs};

const SIZE: u64 = 300 << 20;
/// The ranges of a superblock with its checksum, and with the number of devices.
const CHECKSUM: std::ops::Range<usize> = 0..32;
const COUNT: std::ops::Range<usize> = 136..144;

/// Returns the superblocks of an image.
fn superblocks(image: &File) -> impl Iterator<Item = (u64, Vec<u8>)> {
    SUPERBLOCK_COPIES.into_iter().filter(|at| at.0 < SIZE).map(|at| {
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        image.read_exact_at(&mut bytes, at.0).unwrap();
        (at.0, bytes)
    })
}

fn set_count(image: &Path, count: u64) {
    let image = File::options().read(true).write(true).open(image).unwrap();
    for (at, mut bytes) in superblocks(&image) {
        bytes[COUNT].copy_from_slice(&count.to_le_bytes());
        let sum = ChecksumType::Crc32c.compute(&bytes[CHECKSUM.end..]);
        bytes[CHECKSUM].copy_from_slice(&sum.0);
        image.write_all_at(&bytes, at).unwrap();
    }
}

/// Returns the number of devices in all superblocks of an image.
fn count(image: &Path) -> u64 {
    let counts: Vec<u64> = superblocks(&File::open(image).unwrap())
        .map(|(_, bytes)| u64::from_le_bytes(bytes[COUNT].try_into().unwrap()))
        .collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    counts[0]
}

/// Makes a volume, sets the number of devices in its superblocks, and returns its images.
fn volume(dir: &Path, devices: usize, counted: u64) -> Vec<PathBuf> {
    let images: Vec<PathBuf> = (0..devices).map(|number| dir.join(format!("image{number}"))).collect();
    for image in &images {
        blank_image(image, SIZE);
    }
    let profile = if devices == 1 { "single" } else { "raid1" };
    mkfs_btrfs_on(&images, &["-d", profile, "-m", profile]);
    for image in &images {
        set_count(image, counted);
    }
    images
}

/// Returns the number in the superblocks after a mount by the kernel; `None` if it refuses the
/// volume. If the number changes, the kernel logs that.
fn by_the_kernel(images: &[&Path], options: &str) -> Option<u64> {
    let mount = KernelMount::try_new(images, options).ok()?;
    if !options.starts_with("ro") {
        fs::write(mount.path().join("file"), "content").unwrap();
    }
    let said = mount.unmount();
    assert!(said.iter().any(|line| line.contains("mismatch with DEV_ITEM count")), "{said:?}");
    Some(count(images[0]))
}

fn by_ubtrfs(images: &[&Path], options: &str) -> Option<u64> {
    let subject = Subject::Ubtrfs(env!("CARGO_BIN_EXE_ubtrfs").into());
    let mount = subject.try_mount(images, options).ok()?;
    if !options.starts_with("ro") {
        fs::write(mount.path().join("file"), "content").unwrap();
    }
    mount.unmount();
    Some(count(images[0]))
}

#[test]
fn a_wrong_count_is_treated_as_by_the_kernel() {
    require!(Need::Kernel, FUSE);
    // Devices, the number in the superblocks, the devices given, the mount options, and the number
    // after the mount, if it succeeds.
    let cases: [(usize, u64, usize, &str, Option<u64>); 13] = [
        (1, 2, 1, "", Some(1)),
        (1, 2, 1, "ro", Some(2)),
        (1, u64::MAX, 1, "", Some(1)),
        (1, 0, 1, "", None),
        (2, 3, 2, "", Some(2)),
        (2, 3, 2, "degraded", Some(2)),
        (3, 2, 3, "", Some(3)),
        (3, 2, 3, "ro", Some(2)),
        (3, 2, 2, "", None),
        (3, 2, 2, "degraded", Some(3)),
        (3, 4, 2, "degraded", Some(3)),
        (3, 4, 2, "", None),
        (2, 1, 2, "", None),
    ];
    for (devices, counted, given, options, expected) in cases {
        let what = format!("{given} of {devices} devices, {counted} counted, with '{options}'");
        let dir = scratch_dir();
        let images = volume(dir.path(), devices, counted);
        let others: Vec<PathBuf> = images.iter().map(|image| image.with_extension("other")).collect();
        for (image, other) in images.iter().zip(&others) {
            run(command("cp", &["--sparse=always"]).args([image, other])).ok();
        }
        let [images, others]: [Vec<&Path>; 2] =
            [&images, &others].map(|all| all.iter().take(given).map(PathBuf::as_path).collect());
        assert_eq!(by_the_kernel(&images, options), expected, "the kernel, {what}");
        assert_eq!(by_ubtrfs(&others, options), expected, "{what}");
        if devices == 1 && expected == Some(1) {
            assert_btrfs_check_clean(others[0]);
        }
    }
}

#[test]
fn a_wrong_count_is_a_fault_that_check_finds_and_repairs() {
    require!(Need::Kernel, FUSE);
    let dir = scratch_dir();
    let images = volume(dir.path(), 1, 4);
    let image = images[0].as_os_str();
    let checked = ubtrfs(&["check".as_ref(), image]);
    assert!(checked.code() == Some(1) && checked.stdout.contains("num_devices is 4 where 1 is right"), "{checked:?}");
    assert_eq!(count(&images[0]), 4);
    ubtrfs(&["check".as_ref(), "--repair".as_ref(), "--yes".as_ref(), image]).ok();
    assert_eq!(count(&images[0]), 1);
    ubtrfs(&["check".as_ref(), image]).ok();
    ubtrfs(&["info".as_ref(), image]).ok();
}

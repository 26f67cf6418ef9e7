//! Volumes with parity (RAID5, RAID6) that the kernel made are read completely without the devices
//! that parity can replace, whether these are away or have other content.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

/// The devices of a volume, and the expected contents of its files.
struct Volume {
    dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    losses: usize,
    shown: String,
}

impl Volume {
    fn make(profile: &str, devices: usize) -> Self {
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (0..devices).map(|number| dir.path().join(format!("image{number}"))).collect();
        for image in &images {
            blank_image(image, 400 << 20);
        }
        mkfs_btrfs_on(&images, &["-d", profile, "-m", profile]);
        let all: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let mount = KernelMount::new(&all, "");
        fill(mount.path());
        let shown = shown(mount.path()).ok().stdout;
        assert_eq!(mount.unmount(), [] as [String; 0]);
        Self { dir, images, losses: if profile == "raid6" { 2 } else { 1 }, shown }
    }

    /// Mounts without these devices, and compares everything.
    fn verify_without(&self, lost: &[usize]) {
        let left = self.images.iter().enumerate().filter(|(number, _)| !lost.contains(number));
        let left: Vec<&Path> = left.map(|(_, image)| image.as_path()).collect();
        let mount = Subject::ubtrfs().mount(&left, if lost.is_empty() { "ro" } else { "ro,degraded" });
        assert_eq!(shown(mount.path()).ok().stdout, self.shown, "{} devices without {lost:?}", self.images.len());
        mount.unmount();
    }

    /// Returns all sets of so many devices.
    fn sets(&self, size: usize) -> Vec<Vec<usize>> {
        let devices = self.images.len();
        let sets = (0_u32..1 << devices).filter(|set| set.count_ones() as usize == size);
        sets.map(|set| (0..devices).filter(|device| set >> device & 1 == 1).collect()).collect()
    }

    /// Overwrites most of a device, but no superblock.
    fn damage(&self, device: usize, with: u8) {
        let image = std::fs::OpenOptions::new().write(true).open(&self.images[device]).unwrap();
        for (start, end) in [(1, 60), (70, 400)] {
            image.write_all_at(&vec![with; (end - start) << 20], (start << 20) as u64).unwrap();
        }
    }

    fn ubtrfs(&self, arguments: &[&str]) -> Outcome {
        let binary = ubtrfs_binary().expect("the ubtrfs binary");
        run(Command::new(binary).args(arguments).args(&self.images).current_dir(self.dir.path()))
    }

    fn scrubbed(&self) -> serde_json::Value {
        let outcome = self.ubtrfs(&["scrub", "start", "-r", "--json"]);
        let found = serde_json::from_str::<Vec<_>>(&outcome.stdout);
        found.unwrap_or_else(|error| panic!("{error}: {}", outcome.report())).remove(0)
    }
}

/// Makes inline files and files with extents, small ones and some that take several rows.
fn fill(top: &Path) {
    for number in 0..40_u32 {
        let content: Vec<u8> = (0..number * number * 900).map(|at| ((at / 5) ^ (at >> 9) ^ number) as u8).collect();
        std::fs::write(top.join(format!("file {number}")), &content).unwrap();
    }
    run(command("sync", &["-f"]).arg(top)).ok();
    // Makes rows with data of two commits, and rows with holes.
    for number in (0..40).step_by(3) {
        std::fs::remove_file(top.join(format!("file {number}"))).unwrap();
    }
    for number in 0..300 {
        std::fs::write(top.join(format!("late {number}")), vec![number as u8; 9000 + 13 * number]).unwrap();
    }
}

fn shown(top: &Path) -> Outcome {
    run(command("sh", &["-c", "cd \"$1\" && find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum", "sh"]).arg(top))
}

#[test]
fn everything_is_there_without_devices_that_parity_replaces() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for (profile, devices) in [("raid5", 2), ("raid5", 3), ("raid5", 5), ("raid6", 3), ("raid6", 4), ("raid6", 5)] {
        let volume = Volume::make(profile, devices);
        for size in 0..=volume.losses {
            for lost in volume.sets(size) {
                volume.verify_without(&lost);
            }
        }
        let too_many: Vec<&Path> = volume.images[volume.losses + 1..].iter().map(PathBuf::as_path).collect();
        if let Ok(mount) = Subject::ubtrfs().try_mount(&too_many, "ro,degraded") {
            assert!(!shown(mount.path()).success(), "{profile}: without {} devices", volume.losses + 1);
            mount.unmount();
        }
    }
}

#[test]
fn data_without_checksums_comes_from_parity_too() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for (profile, devices) in [("raid5", 3), ("raid6", 4)] {
        let mut volume = Volume::make(profile, devices);
        let all: Vec<&Path> = volume.images.iter().map(PathBuf::as_path).collect();
        let mount = KernelMount::new(&all, "nodatacow");
        let content: Vec<u8> = (0..3_000_000_u32).map(|at| ((at / 3) ^ (at >> 11)) as u8).collect();
        std::fs::write(mount.path().join("without checksums"), &content).unwrap();
        volume.shown = shown(mount.path()).ok().stdout;
        assert_eq!(mount.unmount(), [] as [String; 0]);
        for size in 0..=volume.losses {
            for lost in volume.sets(size) {
                volume.verify_without(&lost);
            }
        }
    }
}

#[test]
fn wrong_devices_are_found_out_and_replaced_by_parity() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for (profile, devices, damaged, lost) in [
        ("raid5", 4, &[2][..], &[][..]),
        ("raid6", 5, &[0, 3], &[]),
        ("raid6", 4, &[1], &[2]),
        ("raid6", 3, &[0], &[2]),
    ] {
        let volume = Volume::make(profile, devices);
        let clean = volume.scrubbed();
        for name in ["checksum_errors", "read_errors", "parity_errors", "uncorrectable"] {
            assert_eq!(clean[name], 0, "{profile}: {clean}");
        }
        for device in damaged {
            volume.damage(*device, 0x70 + *device as u8);
        }
        volume.verify_without(lost);
        let found = volume.scrubbed();
        let (all, parity) = (found["checksum_errors"].as_u64().unwrap(), found["parity_errors"].as_u64().unwrap());
        assert!(parity > 0 && all > parity, "{profile}: {found}");
        assert_eq!(found["uncorrectable"], all, "{profile}: {found}");
    }
}

#[test]
fn volumes_with_parity_are_not_written() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let volume = Volume::make("raid5", 3);
    let all: Vec<&Path> = volume.images.iter().map(PathBuf::as_path).collect();
    let refused = Subject::ubtrfs().try_mount(&all, "").expect_err("a mount for writing");
    assert!(refused.stderr.contains("the volume has RAID5 chunks"), "{}", refused.report());
    let refused = volume.ubtrfs(&["scrub", "start"]);
    assert!(!refused.success() && refused.stderr.contains("RAID5"), "{}", refused.report());
    volume.verify_without(&[]);
}

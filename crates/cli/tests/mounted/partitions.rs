//! Tests with volumes in partitions of one image, which are mounted at the same time, each by one
//! server.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::partitions::gpt;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, fails, ubtrfs};

const SIZE: u64 = 300 << 20;

fn server(volume: &Volume) -> u64 {
    volume.stats()["pid"].as_u64().unwrap()
}

/// A further mount is of the same part, whatever its name is, and not of another part of the same
/// source.
#[test]
fn a_part_of_an_image_or_a_device_is_mounted_again() {
    require!(Need::Kernel, FUSE);
    let (one, other) = (Volume::without_image(), Volume::without_image());
    let (two, second) = (Volume::without_image(), Volume::without_image());
    let disk = one.dir.path().join("disk");
    let file = File::options().read(true).write(true).create_new(true).open(&disk).unwrap();
    file.set_len(SIZE).unwrap();
    // The second volume is a copy of the first, so that only their positions differ.
    for (at, piece) in gpt(SIZE, 512, &[(2048, 264_191), (264_192, 526_335)]) {
        file.write_all_at(&piece, at).unwrap();
    }
    ubtrfs(&["mkfs", "--partition", "1", disk.to_str().unwrap()]).ok();
    let mut content = vec![0; 128 << 20];
    file.read_exact_at(&mut content, 1 << 20).unwrap();
    file.write_all_at(&content, 129 << 20).unwrap();
    for number in ["1", "2"] {
        let part = ["--partition", number, disk.to_str().unwrap()];
        ubtrfs(&[&["subvolume", "create"], &part[..2], &[&format!("{}:/@", part[2])]].concat()).ok();
    }
    for by_device in [false, true] {
        let device = by_device.then(|| LoopDevice::attach(&disk, false));
        let path = device.as_ref().map_or(&*disk, LoopDevice::path);
        one.try_mount_device(path, "partition=1,subvol=@").ok();
        let again = other.try_mount_device(path, "offset=1M,sizelimit=128M").ok();
        assert_eq!(again.stderr, "", "{}", again.report());
        assert_eq!(server(&one), server(&other));
        fs::write(one.point.join("file"), "one").unwrap();
        assert_eq!(fs::read_to_string(other.point.join("@/file")).unwrap(), "one");
        if by_device {
            // The kernel has one mount of a device, which it claims as a whole.
            fails(&two.try_mount_device(path, "partition=2"), "in use by another program");
        } else {
            two.try_mount_device(path, "partition=2").ok();
            second.try_mount_device(path, "partition=2,ro,subvol=@").ok();
            assert_eq!(server(&two), server(&second));
            assert_ne!(server(&one), server(&two));
            assert!(!second.point.join("file").exists(), "it is the other partition");
            assert!(fs::write(second.point.join("file"), "").is_err());
            two.umount();
            second.umount();
        }
        fails(&second.try_mount_device(path, "offset=64M,sizelimit=32M"), "in use by another program");
        one.umount();
        other.umount();
        one.try_mount_device(path, "partition=1,ro").ok();
        if by_device {
            other.try_mount_device(path, "partition=1,subvol=@").ok();
            fs::write(other.point.join("file"), "again").unwrap();
        } else {
            fails(&other.try_mount_device(path, "partition=1,subvol=@"), "was mounted read-only on ");
            other.try_mount_device(path, "partition=1,subvol=@,ro").ok();
        }
        assert!(fs::write(one.point.join("@/file"), "").is_err());
        other.umount();
        one.umount();
        if let Some(device) = device {
            device.wait_until_free();
        }
    }
    for number in ["1", "2"] {
        ubtrfs(&["check", "--partition", number, disk.to_str().unwrap()]).ok();
    }
}

#[test]
fn partitions_of_one_image_are_used_at_the_same_time_and_none_of_them_twice() {
    require!(Need::Root, FUSE);
    let (one, other) = (Volume::new(), Volume::new());
    let disk = one.dir.path().join("disk");
    let file = File::create(&disk).unwrap();
    file.set_len(SIZE).unwrap();
    for (at, piece) in gpt(SIZE, 512, &[(2048, 264_191), (264_192, 526_335)]) {
        file.write_all_at(&piece, at).unwrap();
    }
    let image = disk.to_str().unwrap();
    for number in ["1", "2"] {
        ubtrfs(&["mkfs", "--partition", number, image]).ok();
    }
    one.try_mount_device(&disk, "partition=1").ok();
    let advice = format!("it is mounted on {0}: work on that, or end it with 'ubtrfs umount {0}'", one.point.display());
    let foreground = ["mount", "-f", "-o", "partition=1", image, other.point.to_str().unwrap()];
    fails(&ubtrfs(&foreground), &format!("in use by another program; {advice}"));
    fails(&other.try_mount_device(&disk, "offset=64M,sizelimit=32M"), "in use by another program");
    let check = ubtrfs(&["check", "--partition", "1", image]);
    assert!(check.code() == Some(2) && check.stderr.contains("in use by another program"), "{}", check.report());
    ubtrfs(&["check", "--partition", "2", image]).ok();
    other.try_mount_device(&disk, "partition=2").ok();
    fs::write(one.point.join("file"), vec![1; 3 << 20]).unwrap();
    fs::write(other.point.join("file"), vec![2; 3 << 20]).unwrap();
    // The whole image can't be used while a part is in use.
    fails(&ubtrfs(&["mkfs", "-f", image]), "in use by another program");
    one.umount();
    fails(&ubtrfs(&["ls", "--partition", "2", image, "/"]), "in use by another program");
    let listed = ubtrfs(&["ls", "--partition", "1", image, "/"]).ok().stdout;
    assert_eq!(listed, "file\n");
    // A volume may have several readers.
    one.try_mount_device(&disk, "ro,partition=1").ok();
    ubtrfs(&["check", "--partition", "1", image]).ok();
    fails(&ubtrfs(&["label", "--partition", "1", image, "x"]), "in use by another program");
    one.umount();
    other.umount();
    for number in ["1", "2"] {
        ubtrfs(&["check", "--partition", number, image]).ok();
    }
}

/// A loop device shows a part of its file. That part is refused while it is mounted.
#[test]
fn a_part_that_the_kernel_has_mounted_is_refused_and_others_are_not() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    let disk = volume.dir.path().join("disk");
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let image = disk.to_str().unwrap();
    let part = |offset: &'static str| ["--offset", offset, "--sizelimit", "128M", image];
    for offset in ["1M", "130M"] {
        ubtrfs(&[&["mkfs"], &part(offset)[..]].concat()).ok();
    }
    let device = LoopDevice::attach_with(&disk, &["--offset", "1048576", "--sizelimit", "134217728"]);
    run(command("mount", &["-t", "btrfs"]).arg(device.path()).arg(&volume.point)).ok();
    let first = ubtrfs(&[&["ls"], &part("1M")[..], &["/"]].concat());
    let second = ubtrfs(&[&["ls"], &part("130M")[..], &["/"]].concat());
    let label = ubtrfs(&[&["label"], &part("130M")[..], &["x"]].concat());
    let whole = ubtrfs(&["mkfs", "-f", image]);
    run(&mut command("umount", &[&volume.point])).ok();
    fails(&first, "mounted by the kernel");
    second.ok();
    label.ok();
    fails(&whole, "mounted by the kernel");
    device.wait_until_free();
    ubtrfs(&[&["label"], &part("1M")[..], &["x"]].concat()).ok();
}

//! Tests with a volume that btrfs-convert made of an ext4 file system: it has structures that no
//! driver writes, and is sound.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume};

#[test]
fn a_converted_file_system_is_sound_and_can_be_changed() {
    require!(FUSE, Need::Tool("mkfs.ext4"), Need::Tool("btrfs-convert"));
    let volume = Volume::without_image();
    let source = volume.dir.path().join("source");
    fs::create_dir_all(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), vec![7; 300_000]).unwrap();
    symlink("dir/file", source.join("link")).unwrap();
    fs::File::create(&volume.image).unwrap().set_len(512 << 20).unwrap();
    let (source, image) = (source.to_str().unwrap(), volume.image.to_str().unwrap());
    run(&mut command("mkfs.ext4", &["-q", "-d", source, image])).ok();
    run(&mut command("btrfs-convert", &[image])).ok();
    assert_btrfs_check_clean(&volume.image);
    assert_ubtrfs_check_clean(&volume.image);

    volume.mount("");
    let at = |name: &str| volume.point.join(name);
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("dir/file"));
    assert_eq!(fs::read(at("link")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::symlink_metadata(at("link")).unwrap().len(), 8);
    fs::rename(at("link"), at("dir/link")).unwrap();
    fs::hard_link(at("dir/link"), at("again")).unwrap();
    fs::write(at("dir/file"), "new").unwrap();
    volume.umount();
    assert_btrfs_check_clean(&volume.image);
    assert_ubtrfs_check_clean(&volume.image);
}

//! Tests of `ubtrfs image`: what is dumped and restored can be used by every other command.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Output;

use ubtrfs_damage::Image;
use ubtrfs_format::{SuperblockFlags, TreeId};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Exclusive, FileDevice, OpenMode, Volume};

use crate::{fails, success, ubtrfs};

/// Runs `ubtrfs` in a directory, on words that are divided by spaces.
fn line(dir: &Path, words: &str) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    command.args(words.split(' ')).current_dir(dir).output().unwrap()
}

/// What a check prints.
fn found(dir: &Path, image: &str) -> String {
    String::from_utf8(line(dir, &format!("check --no-data {image}")).stdout).unwrap()
}

fn flags(image: &Path) -> SuperblockFlags {
    let device = FileDevice::open(image, OpenMode::ReadOnly, Exclusive::No).unwrap();
    Volume::superblock_of(&device).unwrap().flags
}

#[test]
fn a_restored_volume_is_read_written_checked_and_repaired() {
    let dir = scratch_dir();
    let at = dir.path();
    Fixture::load("plain").unpack(at);
    success(&line(at, "image dump plain.img dump"));
    success(&line(at, "image restore dump restored"));
    assert!(flags(&at.join("restored")).contains(SuperblockFlags::METADUMP_V2));
    for words in ["ls -l -R IMAGE /", "tree IMAGE", "tree -t chunk IMAGE", "check --no-data IMAGE"] {
        let outputs = ["plain.img", "restored"].map(|image| success(&line(at, &words.replace("IMAGE", image))));
        let same = outputs.clone().map(|text| text.replace("plain.img", "IMAGE").replace("restored", "IMAGE"));
        // Contents of inline files are gone, which `tree` shows.
        assert!(same[0] == same[1] || words.starts_with("tree"), "{words}:\n{}\n{}", same[0], same[1]);
    }
    assert!(success(&line(at, "info restored")).contains("label"));
    success(&line(at, "mkdir restored:/made-here"));
    success(&line(at, "label restored written"));
    assert!(success(&line(at, "ls restored /")).contains("made-here"));
    assert!(success(&line(at, "check --no-data restored")).contains("no fault found"));
    // A fault that a repair removes.
    Image::open(&at.join("restored")).edit_superblock(&[0], |superblock| superblock.bytes_used += 4096);
    assert!(found(at, "restored").contains("bytes_used"));
    success(&line(at, "check --no-data --repair --yes restored"));
    assert!(success(&line(at, "check --no-data restored")).contains("no fault found"));
    assert!(flags(&at.join("restored")).contains(SuperblockFlags::METADUMP_V2));
}

#[test]
fn what_btrfs_image_restores_is_written_and_repaired() {
    require!(Need::Root);
    let dir = scratch_dir();
    let at = dir.path();
    // It has no symbolic links, the targets of which btrfs-image zeroes.
    Fixture::load("log-append").unpack(at);
    run(command("btrfs-image", &["-c9"]).arg(at.join("log-append.img")).arg(at.join("dump"))).ok();
    run(command("btrfs-image", &["-r", "-t", "1"]).arg(at.join("dump")).arg(at.join("theirs"))).ok();
    for flag in [SuperblockFlags::METADUMP_V2, SuperblockFlags::METADUMP] {
        let image = Image::open(&at.join("theirs"));
        let others = SuperblockFlags::METADUMP_V2.with(SuperblockFlags::METADUMP);
        image.edit_superblock(&[0], |superblock| superblock.flags = superblock.flags.without(others).with(flag));
        success(&line(at, &format!("mkdir theirs:/made-{}", flag.0)));
        Image::open(&at.join("theirs")).edit_superblock(&[0], |superblock| superblock.bytes_used += 4096);
        assert!(found(at, "theirs").contains("bytes_used"));
        success(&line(at, "check --no-data --repair --yes theirs"));
        assert!(found(at, "theirs").contains("no fault found"), "{}", found(at, "theirs"));
        assert!(flags(&at.join("theirs")).contains(flag));
    }
}

#[test]
fn existing_files_are_replaced_only_when_forced() {
    let dir = scratch_dir();
    let at = dir.path();
    Fixture::load("plain").unpack(at);
    for file in ["dump", "restored"] {
        std::fs::write(at.join(file), "precious").unwrap();
    }
    fails(&line(at, "image dump plain.img dump"), 1, "--force");
    assert_eq!(std::fs::read(at.join("dump")).unwrap(), b"precious");
    success(&line(at, "image dump --force plain.img dump"));
    fails(&line(at, "image restore dump restored"), 1, "--force");
    assert_eq!(std::fs::read(at.join("restored")).unwrap(), b"precious");
    success(&line(at, "image restore -f dump restored"));
    success(&line(at, "check --no-data restored"));
    fails(&line(at, "image dump -f plain.img plain.img"), 1, "plain.img");
    fails(&line(at, "image restore -f dump dump"), 1, "dump");
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 3, "no temporary file is left");
}

#[test]
fn a_failed_restore_leaves_no_image() {
    let dir = scratch_dir();
    let at = dir.path();
    Fixture::load("prof-raid1").unpack(at);
    success(&line(at, "image dump prof-raid1.0.img prof-raid1.1.img dump"));
    let bytes = std::fs::read(at.join("dump")).unwrap();
    std::fs::write(at.join("cut"), &bytes[..bytes.len() - 2048]).unwrap();
    fails(&line(at, "image restore cut restored"), 1, "cut off");
    std::fs::write(at.join("other"), "no dump at all").unwrap();
    fails(&line(at, "image restore other restored"), 1, "no dump");
    fails(&line(at, "image restore dump one two three"), 1, "2 devices, and 3 targets");
    let names: Vec<_> = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn devices_are_restored_to_images_by_their_numbers() {
    let dir = scratch_dir();
    let at = dir.path();
    Fixture::load("prof-raid10").unpack(at);
    let all = "prof-raid10.0.img prof-raid10.1.img prof-raid10.2.img prof-raid10.3.img";
    success(&line(at, &format!("image dump -c 9 -t 3 {all} dump")));
    success(&line(at, "image restore -t 2 dump restored"));
    success(&line(at, "check --no-data restored restored.2 restored.3 restored.4"));
    success(&line(at, "image restore dump a b c d"));
    success(&line(at, "check --no-data a b c d"));
    for (one, other) in [("restored", "a"), ("restored.4", "d")] {
        assert!(std::fs::read(at.join(one)).unwrap() == std::fs::read(at.join(other)).unwrap());
    }
    let mode = std::fs::metadata(at.join("dump")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn damage_is_reported_and_dumped() {
    let dir = scratch_dir();
    let at = dir.path();
    let image = Fixture::load("prof-dup").unpack(at).remove(0);
    let leaf = {
        let image = Image::open(&image);
        let leaf = image.leaves(TreeId::FS)[0];
        image.flip_all(leaf);
        leaf
    };
    let output = line(at, "image dump prof-dup.img dump");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 tree blocks are damaged"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(&leaf.to_string()));
    success(&line(at, "image restore dump restored"));
    let checks = ["prof-dup.img", "restored"].map(|image| line(at, &format!("check --no-data {image}")));
    assert_eq!(checks[0].stdout, checks[1].stdout);
    assert_eq!(checks[1].status.code(), Some(1));
}

#[test]
fn restored_images_are_sparse() {
    let dir = scratch_dir();
    let at = dir.path();
    success(&ubtrfs(&["mkfs", "--size", "8G", at.join("image").to_str().unwrap()]));
    success(&line(at, "image dump image dump"));
    success(&line(at, "image restore dump restored"));
    let found = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(at.join("restored")).unwrap());
    assert_eq!(std::fs::metadata(at.join("restored")).unwrap().len(), 8 << 30);
    assert!(found * 512 < 4 << 20, "{found} sectors");
    let mut magic = [0; 8];
    let file = std::fs::File::open(at.join("restored")).unwrap();
    file.read_exact_at(&mut magic, (64 << 20) + 64).unwrap();
    assert_eq!(&magic, b"_BHRfS_M", "the copy of the superblock at 64 MiB");
}

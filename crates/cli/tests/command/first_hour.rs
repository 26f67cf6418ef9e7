//! Tests of what a new user tries first: the right owner, advice in error messages, the same
//! options everywhere, and names by which other programs call.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use ubtrfs_damage::Image;
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{fails, new_volume, success, ubtrfs};

/// The offset of the volume in the image.
const OFFSET: u64 = 3 << 20;

fn info(arguments: &[&str]) -> (Value, Output) {
    let output = ubtrfs(&[&["info", "--json"], arguments].concat());
    (serde_json::from_slice(&output.stdout).unwrap(), output)
}

/// Runs the program under another name.
fn called(name: &Path, arguments: &[&str]) -> Output {
    Command::new(name).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_root_directory_belongs_to_the_user_who_makes_the_volume() {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let image = image.to_str().unwrap();
    let owner = |image: &str| {
        let shown = success(&ubtrfs(&["stat", image, "/"]));
        shown.lines().find_map(|line| line.strip_prefix("owner")).unwrap().trim().to_owned()
    };
    success(&ubtrfs(&["mkfs", "--size", "128M", "--root-owner", "12:34", image]));
    assert_eq!(owner(image), "12:34");
    assert!(success(&ubtrfs(&["check", image])).contains("no fault found"));
    for odd in ["12", "a:b", "1:4294967295"] {
        assert_eq!(ubtrfs(&["mkfs", "-f", "--root-owner", odd, image]).status.code(), Some(2), "{odd}");
    }
    success(&ubtrfs(&["mkfs", "-f", image]));
    let own = format!("{}:{}", rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!(owner(image), own);
    require!(Need::Root, Need::Tool("setpriv"));
    fs::set_permissions(image, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let mut line = command("setpriv", &["--reuid=1234", "--regid=2345", "--clear-groups"]);
    run(line.arg(env!("CARGO_BIN_EXE_ubtrfs")).args(["mkfs", "-f", image])).ok();
    assert_eq!(owner(image), "1234:2345");
}

#[test]
fn a_lost_primary_superblock_is_restored_from_its_copy() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let primary = 64 << 10;
    let sound = fs::read(&image).unwrap();
    let file = File::options().write(true).open(&image).unwrap();
    for damage in [[0; 4096], [0xAB; 4096]] {
        file.write_all_at(&damage, primary).unwrap();
        let (described, output) = info(&[&image]);
        fails(&output, 1, "ubtrfs rescue super-recover");
        assert_eq!(described["total_bytes"], 128 << 20);
        let read = ubtrfs(&["ls", &image, "/"]);
        assert!(read.status.success() && String::from_utf8_lossy(&read.stderr).contains("the copy at 64 MiB is good"));
        fails(&ubtrfs(&["rescue", "super-recover", &image]), 1, "--yes");
        let said = success(&ubtrfs(&["rescue", "super-recover", "--yes", &image]));
        assert!(said.contains("of commit 1 again"), "{said}");
        assert!(fs::read(&image).unwrap() == sound, "more was changed than the superblock");
        assert!(success(&ubtrfs(&["check", &image])).contains("no fault found"));
    }
    assert!(success(&ubtrfs(&["rescue", "super-recover", &image])).contains("nothing was changed"));
    // Another file system has replaced the volume.
    file.write_all_at(&[0; 4096], primary).unwrap();
    file.write_all_at(b"XFSB", 0).unwrap();
    fails(&ubtrfs(&["rescue", "super-recover", "--yes", &image]), 1, "XFS");
    // No copy of the superblock is left.
    file.write_all_at(&[0; 4096], 64 << 20).unwrap();
    fails(&ubtrfs(&["info", &image]), 1, "no btrfs found");
    fails(&ubtrfs(&["rescue", "super-recover", "--yes", &image]), 1, "no copy of the superblock is good");
}

#[test]
fn volumes_without_a_device_are_described_as_far_as_the_others_tell() {
    let dir = scratch_dir();
    // The profiles, the missing devices, and how much can be read without these: all, a part, or
    // only superblocks.
    let cases: [(&str, &[usize], Readable); 11] = [
        ("prof-raid1", &[0], Readable::All),
        ("prof-raid1", &[1], Readable::All),
        ("prof-raid0", &[0], Readable::Part),
        ("prof-raid10", &[0], Readable::All),
        ("prof-raid10", &[0, 3], Readable::All),
        ("prof-raid10", &[0, 1], Readable::Nothing),
        ("prof-raid5", &[2], Readable::All),
        ("prof-raid5", &[0, 1], Readable::Nothing),
        ("prof-raid6", &[1], Readable::All),
        ("prof-raid6", &[0, 3], Readable::All),
        ("prof-raid6", &[0, 1, 2], Readable::Nothing),
    ];
    for (name, missing, readable) in cases {
        let at = tempfile::tempdir_in(dir.path()).unwrap();
        let paths = Fixture::load(name).unpack(at.path());
        let given = paths.iter().enumerate().filter(|(number, _)| !missing.contains(number));
        let given: Vec<_> = given.map(|(_, path)| path.to_str().unwrap()).collect();
        let (described, output) = info(&given);
        let words = format!("the volume has {} devices, {} given: name all of them", paths.len(), given.len());
        fails(&output, 1, &words);
        let numbers: Vec<_> = missing.iter().map(|number| number + 1).collect();
        assert_eq!(described["missing_devices"], serde_json::json!(numbers), "{name} {missing:?}");
        let groups = described["block_groups"].as_array().unwrap();
        let incomplete = groups.iter().filter(|group| group["incomplete"].as_u64() > Some(0)).count();
        match readable {
            Readable::All => assert!(!groups.is_empty() && incomplete == 0, "{name} {missing:?}: {described}"),
            Readable::Part => assert!(groups.is_empty() || incomplete > 0, "{name} {missing:?}: {described}"),
            Readable::Nothing => {}
        }
        if readable == Readable::All {
            assert!(!described["subvolumes"].as_array().unwrap().is_empty(), "{name} {missing:?}: {described}");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Readable {
    All,
    Part,
    Nothing,
}

#[test]
fn the_error_about_one_device_of_several_lists_the_missing_ones() {
    let dir = scratch_dir();
    let devices = Fixture::load("prof-raid1").unpack(dir.path());
    let [one, other] = [0, 1].map(|number: usize| devices[number].to_str().unwrap());
    for (given, has, missing) in [(one, 1, 2), (other, 2, 1)] {
        let (described, output) = info(&[given]);
        fails(&output, 1, "2 devices, 1 given: name all of them");
        assert_eq!(described["label"], "prof-raid1");
        assert_eq!(described["devices"][0]["id"], has);
        assert_eq!(described["missing_devices"], serde_json::json!([missing]));
    }
    let (whole, output) = info(&[one, other]);
    assert!(output.status.success() && whole["missing_devices"] == serde_json::json!([]), "{whole}");
}

#[test]
fn the_device_whose_superblock_is_damaged_is_named() {
    const SUPERBLOCKS: [u64; 2] = [64 << 10, 64 << 20];
    let dir = scratch_dir();
    let paths = ["one", "other"].map(|name| dir.path().join(name).display().to_string());
    let [one, other] = paths.each_ref().map(String::as_str);
    success(&ubtrfs(&["mkfs", "--size", "250M", "-d", "raid1", "-m", "raid1", one, other]));
    let damaged = File::options().write(true).open(other).unwrap();
    for (place, words) in SUPERBLOCKS.into_iter().zip(["the primary superblock is damaged", "no btrfs found"]) {
        damaged.write_all_at(&[0; 4096], place).unwrap();
        for paths in [[one, other], [other, one]] {
            for command in [&["info"][..], &["scrub", "start"]] {
                fails(&ubtrfs(&[command, &paths].concat()), 1, &format!("{other}: {words}"));
            }
            // What does not need the device is shown.
            for command in [["device", "usage"], ["device", "stats"]] {
                let shown = ubtrfs(&[&command[..], &paths].concat());
                assert!(shown.status.success());
                let said = String::from_utf8_lossy(&shown.stderr);
                assert!(said.contains(&format!("{other} is left out: {words}")), "{said}");
            }
        }
    }
}

#[test]
fn unknown_features_are_named_with_the_kernel_that_supports_them() {
    let dir = scratch_dir();
    let path = new_volume(dir.path());
    let image = Image::open(Path::new(&path));
    image.edit_superblock(&[0, 1], |superblock| {
        superblock.incompat = superblock.incompat.with(ubtrfs_format::Incompat::RAID_STRIPE_TREE);
    });
    fails(&ubtrfs(&["ls", &path, "/"]), 1, "RAID_STRIPE_TREE (Linux 6.7)");
    let (described, _) = info(&[&path]);
    let features = described["incompat_features"].as_array().unwrap();
    assert!(features.contains(&"RAID_STRIPE_TREE".into()), "{features:?}");
}

/// mkfs.btrfs leaves free-space items of its temporary block groups.
#[test]
fn a_sound_volume_of_two_devices_is_not_warned_of() {
    require!(Need::Kernel);
    let dir = scratch_dir();
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    for path in [&one, &other] {
        File::create(path).unwrap().set_len(300 << 20).unwrap();
    }
    run(command("mkfs.btrfs", &["-q", "-d", "raid1", "-m", "raid1"]).args([&one, &other])).ok();
    let said = success(&ubtrfs(&["check".as_ref(), one.as_os_str(), other.as_os_str()]));
    assert!(!said.contains("warning") && said.contains("no fault found"), "{said}");
}

#[test]
fn labels_are_shown_and_set_by_a_commit() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let label = || success(&ubtrfs(&["label", &image]));
    assert_eq!(label(), "\n");
    for new in ["a label", "another", ""] {
        success(&ubtrfs(&["label", &image, new]));
        assert_eq!(label().trim_end(), new);
        assert_eq!(info(&[&image]).0["label"], new);
        assert!(success(&ubtrfs(&["check", &image])).contains("no fault found"));
    }
    let before = fs::read(&image).unwrap();
    for odd in [&"x".repeat(256), "two\nlines"] {
        fails(&ubtrfs(&["label", &image, odd]), 1, "at most 255 bytes");
    }
    assert!(fs::read(&image).unwrap() == before);
    success(&ubtrfs(&["label", &image, &"x".repeat(255)]));
    assert_eq!(label().trim_end().len(), 255);
}

#[test]
fn all_commands_find_a_volume_inside_of_an_image() {
    let dir = scratch_dir();
    let disk = dir.path().join("disk");
    let path = disk.to_str().unwrap();
    let file = File::create(&disk).unwrap();
    file.set_len(OFFSET + (130 << 20)).unwrap();
    file.write_all_at(&[0xCD; 4096], OFFSET - 4096).unwrap();
    file.write_all_at(&[0xCD; 4096], OFFSET + (128 << 20)).unwrap();
    let window = ["--offset", "3M", "--sizelimit", "128M"];
    let inside = |command: &[&str], places: &[&str]| success(&ubtrfs(&[command, &window, places].concat()));
    inside(&["mkfs"], &[path]);
    fails(&ubtrfs(&[&["mkfs"], &window[..], &[path]].concat()), 1, "holds a btrfs");
    inside(&["label"], &[path, "inside"]);
    assert!(inside(&["info"], &[path]).contains("inside"));
    assert!(inside(&["check"], &[path]).contains("no fault found"));
    assert!(inside(&["tree", "--tree", "fs"], &[path]).contains("(256 INODE_ITEM 0)"));
    assert!(inside(&["stat"], &[path, "/"]).contains("directory"));
    inside(&["ls"], &[path, "/"]);
    assert!(inside(&["rescue", "zero-log"], &[path]).contains("there is no log"));
    assert!(inside(&["rescue", "super-recover"], &[path]).contains("nothing was changed"));
    let out = dir.path().join("out");
    let restored = ubtrfs(&[&["restore"], &window[..], &[path, out.to_str().unwrap()]].concat());
    assert!(restored.status.success(), "{restored:?}");
    fails(&ubtrfs(&["info", path]), 1, "no btrfs found");
    fails(&ubtrfs(&["check", "--offset", "1000", path]), 2, "no multiple of 4096");
    let after = fs::read(&disk).unwrap();
    let behind = (OFFSET + (128 << 20)) as usize;
    assert!(after[..OFFSET as usize - 4096].iter().all(|byte| *byte == 0), "written before the volume");
    assert!(after[OFFSET as usize - 4096..OFFSET as usize].iter().all(|byte| *byte == 0xCD));
    assert!(after[behind..behind + 4096].iter().all(|byte| *byte == 0xCD), "written behind the volume");
    // A new image also has room before the volume.
    let new = dir.path().join("new");
    success(&ubtrfs(&["mkfs", "--offset", "1M", "--size", "128M", new.to_str().unwrap()]));
    assert_eq!(fs::metadata(&new).unwrap().len(), 129 << 20);
    success(&ubtrfs(&["check", "--offset", "1M", new.to_str().unwrap()]));
}

#[test]
fn fsck_and_mkfs_call_it_by_their_names() {
    let dir = scratch_dir();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    let [mkfs, fsck] = ["mkfs.ubtrfs", "fsck.ubtrfs"].map(|name| {
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ubtrfs"), &link).unwrap();
        link
    });
    success(&called(&mkfs, &["--size", "128M", "-L", "label", path]));
    assert_eq!(info(&[path]).0["label"], "label");
    let status = |arguments: &[&str]| called(&fsck, arguments).status.code();
    for flags in [&["-a"][..], &["-p"], &["-n"], &[], &["-y"], &["-a", "-f"], &["-a", "-C0"]] {
        assert_eq!(status(&[flags, &[path]].concat()), Some(0), "{flags:?}");
    }
    // A fault that -a does not check for, and -y corrects.
    let open = Image::open(&image);
    let of_group = |key: &ubtrfs_format::Key, _: &[u8]| key.item_type == ubtrfs_format::ItemType::BLOCK_GROUP_ITEM;
    open.edit(ubtrfs_format::TreeId::BLOCK_GROUP, of_group, |_, data| {
        data[..8].copy_from_slice(&123_u64.to_le_bytes());
    });
    let faulty = [(&["-a"][..], 0), (&["-a", "-f"], 4), (&["-n"], 4), (&[], 4), (&["-y"], 1), (&["-n"], 0)];
    for (flags, expected) in faulty {
        assert_eq!(status(&[flags, &[path]].concat()), Some(expected), "{flags:?}");
    }
    // A fault that prevents a mount.
    open.flip_all(open.root(ubtrfs_format::TreeId::FS));
    assert_eq!(status(&["-a", path]), Some(4));
    assert_eq!(status(&["-a", "/does/not/exist"]), Some(8));
    assert_eq!(status(&["-Q", path]), Some(16));
    assert_eq!(status(&["-n", "-y", path]), Some(16));
}

#[test]
fn replace_takes_the_word_missing() {
    let dir = scratch_dir();
    let paths = ["one", "two", "new"].map(|name| dir.path().join(name).display().to_string());
    let [one, two, new] = paths.each_ref().map(String::as_str);
    success(&ubtrfs(&["mkfs", "--size", "250M", "-d", "raid1", "-m", "raid1", one, two]));
    File::create(new).unwrap().set_len(250 << 20).unwrap();
    fails(&ubtrfs(&["replace", "start", "missing", new, one, two]), 1, "all devices of the volume are there");
    fails(&ubtrfs(&["replace", "start", "7", new, one, two]), 1, "'ubtrfs device usage' lists");
    fs::remove_file(two).unwrap();
    assert!(ubtrfs(&["replace", "start", "missing", new, one]).status.success());
    assert!(success(&ubtrfs(&["check", one, new])).contains("no fault found"));
}

#[test]
fn a_merge_names_its_sides_and_their_order() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |name: &str| format!("{image}:{name}");
    success(&ubtrfs(&["subvolume", "create", &at("target")]));
    success(&ubtrfs(&["subvolume", "create", &at("other")]));
    success(&ubtrfs(&["subvolume", "snapshot", "-r", &at("target"), &at("base")]));
    success(&ubtrfs(&["subvolume", "snapshot", &at("target"), &at("changed")]));
    let merge = |words: [&str; 3]| ubtrfs(&[&["merge".to_owned()][..], &words.map(at)].concat());
    // BASE comes last, as with other tools.
    let said = format!(
        "TARGET ({}), or the mount through which it is named, is read-only; a read-only snapshot of",
        at("base")
    );
    fails(&merge(["target", "changed", "base"]), 2, &said);
    fails(&merge(["base", "other", "target"]), 2, &format!("CHANGED ({})", at("other")));
    success(&merge(["base", "changed", "target"]));
}

/// A user who may not look at a loop device knows only its size, which shows whether it may hold an
/// image.
#[test]
fn who_is_kept_from_an_image_by_a_foreign_loop_device_learns_the_ways_out() {
    require!(Need::Kernel, Need::Tool("setpriv"));
    let dir = scratch_dir();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let program = dir.path().join("ubtrfs");
    crate::copy_program(&program);
    let [image, hidden] = ["image", "hidden"].map(|name| dir.path().join(name));
    let as_nobody = |program: &Path, arguments: &[&str]| {
        let mut line = command("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups"]);
        line.arg(program).args(arguments).stdin(Stdio::null()).output().unwrap()
    };
    let at_image = image.to_str().unwrap();
    success(&as_nobody(&program, &["mkfs", "--size", "263M", at_image]));
    // A device whose file has no name any more, so that nobody can look at it.
    File::create(&hidden).unwrap().set_len(263 << 20).unwrap();
    let device = ubtrfs_testkit::kernel::LoopDevice::attach(&hidden, false);
    fs::remove_file(&hidden).unwrap();
    let refused = as_nobody(&program, &["label", at_image, "mine"]);
    let way = format!("let root detach that (losetup -d {}), or do this; or work on a copy", device.path().display());
    fails(&refused, 1, &way);
    let copy = format!("{at_image}.copy");
    success(&as_nobody(Path::new("cp"), &[at_image, &copy]));
    success(&as_nobody(Path::new("truncate"), &["-s", "+1M", &copy]));
    success(&as_nobody(&program, &["label", &copy, "mine"]));
    drop(device);
    success(&as_nobody(&program, &["label", at_image, "mine"]));
}

//! Tests of `mkfs`, and of the other commands on its volumes.

use std::os::unix::fs::FileExt;
use std::process::Command;

use serde_json::Value;

use crate::{fails, new_volume, success, ubtrfs};

#[test]
fn a_new_volume_has_the_requested_options() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let image = image.to_str().unwrap();
    let arguments =
        ["mkfs", "--size", "200M", "--label", "a label", "--csum", "sha256", "--nodesize", "32k", "--metadata"];
    success(&ubtrfs(&[&arguments[..], &["single", "--data", "dup", "--block-group-tree", image]].concat()));
    assert_eq!(std::fs::metadata(image).unwrap().len(), 200 << 20);
    let info: Value = serde_json::from_str(&success(&ubtrfs(&["info", "--json", image]))).unwrap();
    assert_eq!(info["label"], "a label");
    assert_eq!(info["checksum"], "sha256");
    assert_eq!(info["node_size"], 32768);
    assert_eq!(info["total_bytes"], 200 << 20);
    assert_eq!(info["has_log"], false);
    assert_eq!(info["default_subvolume"], 5);
    assert_eq!(info["subvolumes"][0]["path"], "/");
    let features = info["compat_ro_features"].as_array().unwrap();
    assert!(features.contains(&"BLOCK_GROUP_TREE".into()), "{features:?}");
    let profile = |kind: &str| {
        let groups = info["block_groups"].as_array().unwrap();
        groups.iter().find(|group| group["kind"] == kind).unwrap()["profile"].clone()
    };
    assert_eq!((profile("Data"), profile("Metadata")), ("DUP".into(), "single".into()));
    let check: Value = serde_json::from_str(&success(&ubtrfs(&["check", "--json", image]))).unwrap();
    assert_eq!((&check["clean"], &check["fault_count"]), (&true.into(), &0.into()));
    assert!(success(&ubtrfs(&["check", image])).contains("no fault found"));
    assert!(success(&ubtrfs(&["tree", image, "--tree", "fs"])).contains("(256 INODE_ITEM 0) drwxr-xr-x"));
}

#[test]
fn a_volume_of_several_devices_has_the_requested_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<String> = (1..=3).map(|number| dir.path().join(format!("{number}")).display().to_string()).collect();
    let [first, second, third] = [0, 1, 2].map(|index| paths[index].as_str());
    let made = success(&ubtrfs(&["mkfs", "--json", "--size", "300M", "-d", "raid0", first, second, third]));
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["bytes"], &made["devices"][2]["path"]), (&(900_u64 << 20).into(), &third.into()));
    let info: Value = serde_json::from_str(&success(&ubtrfs(&["info", "--json", third, first, second]))).unwrap();
    assert_eq!(info["devices"].as_array().unwrap().len(), 3);
    let groups = info["block_groups"].as_array().unwrap();
    let profile = |kind: &str| groups.iter().find(|group| group["kind"] == kind).unwrap()["profile"].clone();
    assert_eq!((profile("Data"), profile("Metadata")), ("RAID0".into(), "RAID1".into()));
    success(&ubtrfs(&["check", first, second, third]));
    // A volume that was replaced or wiped is not reported as damaged.
    let wiped = dir.path().join("wiped").display().to_string();
    std::fs::File::create(&wiped).unwrap().set_len(300 << 20).unwrap();
    for command in ["info", "check"] {
        let status = if command == "check" { 2 } else { 1 };
        fails(&ubtrfs(&[command, first, second, third, &wiped]), status, &format!("{wiped}: no btrfs found"));
    }
    // If any of the devices holds something, it is noticed, also under another name.
    fails(&ubtrfs(&["mkfs", "--size", "300M", dir.path().join("new").to_str().unwrap(), second]), 1, "holds a btrfs");
    assert!(!dir.path().join("new").exists());
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(second, &link).unwrap();
    fails(&ubtrfs(&["mkfs", "-f", first, second, link.to_str().unwrap()]), 1, "given twice");
    success(&ubtrfs(&["check", first, second, third]));
}

#[test]
fn a_device_that_is_given_twice_is_not_added_once() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    let [first, second] = paths.each_ref().map(String::as_str);
    success(&ubtrfs(&["mkfs", "--size", "200M", first]));
    std::fs::File::create(second).unwrap().set_len(200 << 20).unwrap();
    let again = dir.path().join(".").join("b").display().to_string();
    crate::fails(&ubtrfs(&["device", "add", second, &again, first]), 1, "is given twice");
    let usage: Value = serde_json::from_str(&success(&ubtrfs(&["device", "usage", "--json", first]))).unwrap();
    assert_eq!(usage["devices"].as_array().unwrap().len(), 1);
}

#[test]
fn the_use_of_devices_and_their_failures_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    let [first, second] = paths.each_ref().map(String::as_str);
    success(&ubtrfs(&["mkfs", "--size", "300M", "-d", "raid1", first, second]));
    let df = success(&ubtrfs(&["filesystem", "df", second, first]));
    assert!(df.contains("Data, RAID1: total=64.00MiB, used=0.00B"), "{df}");
    assert!(df.contains("System, RAID1: total=8.00MiB, used=16.00KiB"), "{df}");
    let usage: Value = serde_json::from_str(&success(&ubtrfs(&["device", "usage", "--json", second, first]))).unwrap();
    let devices = usage["devices"].as_array().unwrap();
    assert_eq!((&devices[0]["path"], &devices[1]["path"]), (&first.into(), &second.into()), "by their numbers");
    for device in devices {
        let bytes = |value: &Value| value.as_u64().unwrap();
        let chunks: u64 = device["chunks"].as_array().unwrap().iter().map(|chunks| bytes(&chunks["bytes"])).sum();
        assert_eq!((chunks, bytes(&device["unallocated_bytes"])), (104 << 20, (300 - 104) << 20));
    }
    assert!(success(&ubtrfs(&["filesystem", "usage", first, second])).contains("Data,RAID1: Size:64.00MiB"));
    let stats = success(&ubtrfs(&["device", "stats", "-z", "-c", first, second]));
    assert!(stats.contains(&format!("[{second}].write_io_errs    0\n")), "{stats}");
    success(&ubtrfs(&["check", first, second]));
}

#[test]
fn several_devices_are_filled_and_equal_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), vec![7; 3 << 20]).unwrap();
    let make = |name: &str, shrink: &[&str]| -> [String; 2] {
        let paths = ["a", "b"].map(|of| dir.path().join(format!("{name}{of}")).display().to_string());
        let arguments = ["mkfs", "-d", "raid1", "--size", "200M", "--rootdir", tree.to_str().unwrap()];
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        command.args(arguments).args(shrink).args(&paths).env("SOURCE_DATE_EPOCH", "1700000000");
        success(&command.output().unwrap());
        success(&ubtrfs(&["check", &paths[0], &paths[1]]));
        paths
    };
    let (one, two) = (make("one", &[]), make("two", &[]));
    for (one, two) in one.iter().zip(&two) {
        assert!(std::fs::read(one).unwrap() == std::fs::read(two).unwrap());
    }
    let shrunk = make("shrunk", &["--shrink"]);
    for path in &shrunk {
        assert!(std::fs::metadata(path).unwrap().len() < 200 << 20, "{path} ends with its last chunk");
    }
}

#[test]
fn nothing_is_overwritten_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    let before = std::fs::read(&image).unwrap();
    fails(&ubtrfs(&["mkfs", &image]), 1, "holds a btrfs");
    fails(&ubtrfs(&["mkfs", "--size", "300M", &image]), 1, "holds a btrfs");
    assert!(std::fs::read(&image).unwrap() == before);
    success(&ubtrfs(&["mkfs", "-f", "--size", "300M", &image]));
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 300 << 20);
    success(&ubtrfs(&["check", &image]));
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    fails(&ubtrfs(&["mkfs", path]), 1, "does not exist");
    fails(&ubtrfs(&["mkfs", "--size", "1M", path]), 1, "too small");
    fails(&ubtrfs(&["mkfs", "--size", "8E", path]), 1, "smaller than 8 EiB");
    fails(&ubtrfs(&["mkfs", "--size", "1G", "--csum", "md5", path]), 1, "md5");
    fails(&ubtrfs(&["mkfs", "--size", "1G", "--nodesize", "5000", path]), 1, "5000");
    fails(&ubtrfs(&["mkfs", "--size", "1G", "--data", "raid1", path]), 1, "raid1 needs at least 2 devices");
    fails(&ubtrfs(&["mkfs", "--size", "1G", "--data", "raid5", path]), 1, "writes no parity");
    fails(&ubtrfs(&["mkfs", "--size", "1G", path, path]), 1, "given twice");
    let other = dir.path().join("other");
    let other = other.to_str().unwrap();
    fails(&ubtrfs(&["mkfs", "--size", "30M", path, other]), 1, "of device 1 are too small");
    fails(&ubtrfs(&["mkfs", "--size", "1G", path, "/does/not/exist"]), 1, "No such file or directory");
    assert!(!std::path::Path::new(other).exists());
    fails(&ubtrfs(&["mkfs", "--size", "1G", "/does/not/exist"]), 1, "No such file or directory");
    assert!(!image.exists());
    let usage = ubtrfs(&["mkfs", "--size", "8X", path]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("'8X' is not a size"));
}

#[test]
fn version_and_help_are_there() {
    assert_eq!(success(&ubtrfs(&["--version"])).trim(), format!("ubtrfs {}", env!("CARGO_PKG_VERSION")));
    for command in ["mkfs", "mount", "umount", "sync", "stats", "check", "info", "tree", "ls", "stat", "cat"] {
        assert!(success(&ubtrfs(&[command, "--help"])).contains("Usage:"), "{command}");
    }
    assert_eq!(ubtrfs::<&str>(&[]).status.code(), Some(2));
    assert_eq!(ubtrfs(&["nonsense"]).status.code(), Some(2));
}

/// The magic numbers are those of the formats' documentation.
#[test]
fn what_others_made_is_not_overwritten_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    let size = 200 << 20;
    let cases: [(&str, u64, &[u8]); 6] = [
        ("minix", 1024 + 24, &[0x5a, 0x4d]),
        ("APFS", 32, b"NXSB"),
        ("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
        ("md RAID", size - 8192, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("md RAID", size - 65536, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("GPT", size - 512, b"EFI PART"),
    ];
    for (name, at, magic) in cases {
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(magic, at).unwrap();
        fails(&ubtrfs(&["mkfs", path]), 1, &format!("holds a {name}"));
        success(&ubtrfs(&["mkfs", "-f", path]));
    }
    // In a part of an image the end of that part counts.
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(300 << 20).unwrap();
    file.write_all_at(&[0xfc, 0x4e, 0x2b, 0xa9], (210 << 20) - 65536).unwrap();
    fails(&ubtrfs(&["mkfs", "--offset", "10M", "--sizelimit", "200M", path]), 1, "holds a md RAID");
    success(&ubtrfs(&["mkfs", "--offset", "10M", "--sizelimit", "190M", path]));
}

#[test]
fn a_place_that_cannot_be_leaves_a_file_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0; 10 << 20]).unwrap();
    let path = image.to_str().unwrap();
    fails(&ubtrfs(&["mkfs", "--size", "200M", "--offset", "1000", path]), 1, "no multiple of 4096");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 10 << 20);
}

/// Otherwise programs could take these superblocks for those of the new volume.
#[test]
fn superblocks_of_an_older_volume_behind_the_end_are_wiped() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    let offset = 1 << 20;
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(300 << 20).unwrap();
    success(&ubtrfs(&["mkfs", "--offset", "1M", path]));
    let copy_at = |at: u64| {
        let mut bytes = [0; 4096];
        std::fs::File::open(&image).unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    let copy = copy_at(offset + (64 << 20));
    assert_eq!(&copy[64..72], b"_BHRfS_M");
    // A superblock with another address belongs to another volume.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&copy, 200 << 20).unwrap();
    success(&ubtrfs(&["mkfs", "-f", "-M", "--offset", "1M", "--size", "60M", path]));
    assert_eq!(copy_at(offset + (64 << 20)), [0; 4096]);
    assert_eq!(copy_at(200 << 20), copy);
    success(&ubtrfs(&["check", "--offset", "1M", path]));
}

#[test]
fn a_call_without_a_directory_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    fails(&ubtrfs(&["mount", &image]), 2, "a device and a directory are needed");
    fails(&ubtrfs(&["restore", &image]), 2, "a device and a directory are needed");
}

#[test]
fn a_report_that_cannot_be_written_is_no_fault_of_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let image = new_volume(dir.path());
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_ubtrfs")).args(["check", &image]).stdout(full).output().unwrap();
    fails(&checked, 2, "standard output");
}

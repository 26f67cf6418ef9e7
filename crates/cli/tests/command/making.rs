//! `mkfs`, and what the other commands say of its volumes.

use serde_json::Value;

use crate::{fails, new_volume, success, ubtrfs};

#[test]
fn a_new_volume_is_what_was_asked_for() {
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
    fails(&ubtrfs(&["mkfs", "--size", "1G", "--data", "raid1", path]), 1, "raid1");
    fails(&ubtrfs(&["mkfs", "--size", "1G", path, path]), 1, "one device");
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

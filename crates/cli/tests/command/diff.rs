//! Tests the output of `ubtrfs diff`, and its exit status.

use std::path::Path;

use serde_json::Value;
use ubtrfs::{Dir, Filesystem, NewInode, Options, SetAttributes, XattrMode};
use ubtrfs_format::TreeId;
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{changed, fails, new_volume, ubtrfs};

/// Returns the standard output of a comparison that found differences.
#[track_caller]
fn different(arguments: &[&str]) -> String {
    let output = ubtrfs(&[&["diff"], arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*error), (Some(1), ""));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn open(image: &str) -> std::sync::Arc<Filesystem> {
    let options = Options { subvolume_id: Some(TreeId::FS.0), background_commits: false, ..Options::default() };
    Filesystem::open_path(image, options).unwrap()
}

/// Makes a volume with the snapshot `old` and later changes. Returns its path, and the generation
/// after the snapshot.
fn with_changes(dir: &Path) -> (String, u64) {
    let image = new_volume(dir);
    let fs = open(&image);
    let root = Dir::root(&fs);
    root.create_dir_all("swap/one").unwrap();
    root.create_dir_all("swap/two/below").unwrap();
    root.write("swap/two/below/file", vec![1; 20_000]).unwrap();
    root.write("kept", b"kept").unwrap();
    root.write("gone", b"gone").unwrap();
    root.write("linked", b"linked").unwrap();
    let old = fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"old", true).unwrap();
    assert_ne!(old, TreeId::FS);
    let generation = fs.generation().0 + 1;
    root.rename("swap/one", "swap/three").unwrap();
    root.rename("swap/two", "swap/one").unwrap();
    root.rename("swap/three", "swap/two").unwrap();
    let file = root.open("swap/one/below/file").unwrap();
    let id = file.id();
    fs.files().write(id, ubtrfs::WriteAt::Offset(4096), &[2; 4096], false).unwrap();
    fs.inodes().set_attributes(id, &SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
    fs.inodes().set_xattr(id, b"user.note", b"new", XattrMode::Set).unwrap();
    drop(file);
    root.remove_file("gone").unwrap();
    root.write("made", vec![3; 5000]).unwrap();
    root.hard_link("linked", "swap/also").unwrap();
    fs.close().unwrap();
    (image, generation)
}

#[test]
fn all_kinds_of_changes_are_shown() {
    let dir = scratch_dir();
    let (image, generation) = with_changes(dir.path());
    let before = changed(&image);
    let (old, new) = (format!("{image}:/old"), format!("{image}:"));
    let expected = [
        "A made",
        "A old/: subvolume 256",
        "A swap/also = linked",
        "D gone",
        "M swap/one/below/file: data 4096-8191, mode 0644 -> 0600, mtime, xattr +user.note",
        "R swap/one/ -> swap/two/",
        "R swap/two/ -> swap/one/",
    ];
    assert_eq!(sorted(&different(&[&old, &new])), expected);
    let names =
        ["gone", "made", "old", "swap/also", "swap/one", "swap/one", "swap/one/below/file", "swap/two", "swap/two"];
    assert_eq!(sorted(&different(&["--name-only", &old, &new])), names);
    let stat = different(&["--stat", &old, &new]);
    assert!(stat.contains("M            4096 swap/one/below/file\n"), "{stat}");
    assert!(stat.ends_with("1 made, 1 removed, 3 with other names, 1 changed; 9100 bytes of content\n"), "{stat}");

    let json: Value = serde_json::from_str(&different(&["--json", &old, &new])).unwrap();
    let all = json.as_array().unwrap();
    let file = all.iter().find(|change| change["new_paths"][0] == "swap/one/below/file").unwrap();
    assert_eq!((&file["change"], &file["type"]), (&"changed".into(), &"file".into()));
    assert_eq!(file["old_paths"][0], "swap/two/below/file");
    let content = serde_json::json!([{ "offset": 4096, "length": 4096, "old": "data", "new": "data" }]);
    assert_eq!(file["content"], content);
    assert_eq!(file["xattrs"][0]["new_hex"], "6e6577");
    assert_eq!((&file["old"]["mode"], &file["new"]["mode"]), (&0o644.into(), &0o600.into()));

    let since = different(&["--since", &generation.to_string(), &new]);
    for line in ["A made", "A swap/one/", "M swap/one/below/file: data 4096-8191, xattr user.note"] {
        assert!(since.lines().any(|shown| shown == line), "{since}");
    }
    assert!(!since.contains("kept") && !since.contains("gone"), "{since}");

    let same = ubtrfs(&["diff", &old, &old]);
    assert_eq!((same.status.code(), same.stdout), (Some(0), vec![]));
    let same = ubtrfs(&["diff", "--json", &new, &new]);
    assert_eq!((same.status.code(), &same.stdout[..]), (Some(0), &b"[]\n"[..]));
    assert_eq!(changed(&image), before, "the volume was written to");
}

#[test]
fn what_can_not_be_compared_is_said_with_status_two() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let (top, absent) = (format!("{image}:"), format!("{image}:absent"));
    fails(&ubtrfs(&["diff", &top, &absent]), 2, "absent");
    for wrong in [&["diff", &top][..], &["diff", "--since", "1", &top, &top]] {
        assert_eq!(ubtrfs(wrong).status.code(), Some(2));
    }
    fails(&ubtrfs(&["diff", dir.path().to_str().unwrap(), &top]), 2, "mounted");
    fails(&ubtrfs(&["diff", "nowhere:a", &top]), 2, "nowhere:a");
    let other = dir.path().join("other").display().to_string();
    std::fs::copy(&image, &other).unwrap();
    fails(&ubtrfs(&["diff", &top, &format!("{other}:")]), 2, "same volume");
    let fs = open(&image);
    Dir::root(&fs).create_dir_all("directory").unwrap();
    fs.close().unwrap();
    drop(fs);
    fails(&ubtrfs(&["diff", &top, &format!("{image}:directory")]), 2, "not a subvolume");
}

#[test]
fn snapshots_of_the_kernel_are_compared() {
    let dir = scratch_dir();
    let images = Fixture::load("snapshots").unpack(dir.path());
    let place = |path: &str| format!("{}:{path}", images[0].display());
    let shown = different(&[&place("snap1"), &place("snap2")]);
    let lines = sorted(&shown);
    assert_eq!(lines[..2], ["A only-in-snap2", "D dir/hard"], "{shown}");
    assert_eq!(lines[2..], ["M regular: data 36864-44999, size 40000 -> 45000, mtime"], "{shown}");
}

#[test]
fn paths_that_would_fill_memory_are_refused_with_a_sentence() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let fs = open(&image);
    let snapshot = |name: &[u8]| fs.subvolumes().snapshot(TreeId::FS, fs.root(), name, false).unwrap();
    let make = |above, name: &str, mode| {
        let made = fs.directories().create(above, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap();
        fs.references().forget(made, 1);
        made
    };
    let start = snapshot(b"start");
    let deepest = (0..14_000).fold(fs.root(), |above, _| make(above, &"n".repeat(255), 0o040_755));
    snapshot(b"nested");
    make(deepest, "file", 0o100_644);
    assert_ne!(start, TreeId::FS);
    fs.close().unwrap();
    drop(fs);
    let (start, nested, now) = (format!("{image}:start"), format!("{image}:nested"), format!("{image}:"));
    for (arguments, words) in [
        (&["diff", &nested, &now][..], "a path is too long: its directories take more than"),
        (&["diff", &start, &now], "all paths together, are too long to be shown"),
        (&["merge", "-n", &nested, &now, &nested], "a path is too long: its directories take more than"),
    ] {
        let output = ubtrfs(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.lines().count() == 1 && error.contains(words), "{error}");
    }
}

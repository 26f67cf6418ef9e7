//! Tests with subvolumes of volumes that are not mounted.

use std::fs;

use serde_json::Value;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::editing::with_input;
use crate::{fails, new_volume, success, ubtrfs};

fn subvolume(arguments: &[&str]) -> String {
    success(&ubtrfs(&[&["subvolume"], arguments].concat()))
}

fn paths(image: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(&subvolume(&["list", "--json", image])).unwrap();
    list.as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn subvolumes_are_made_copied_listed_and_deleted_in_an_image() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    subvolume(&["create", &at("a"), &at("/b")]);
    subvolume(&["create", "-p", &at("/x/y/z")]);
    subvolume(&["create", &at("a/inner")]);
    subvolume(&["snapshot", "-r", &at("a"), &at("snap")]);
    assert!(subvolume(&["snapshot", &at("a"), &at("x")]).ends_with("x/a'\n"), "it gets the name of its source");
    assert_eq!(paths(&image), ["a", "b", "x/y/z", "a/inner", "snap", "x/a"]);
    let list = subvolume(&["list", "-p", "-o", &at("a")]);
    assert!(list.starts_with("ID 259 gen ") && list.ends_with(" parent 256 top level 256 path a/inner\n"), "{list}");
    assert!(subvolume(&["list", "-r", &image]).ends_with("path snap\n"));
    assert_eq!(subvolume(&["list", "-s", "--sort=-path", &image]).lines().count(), 2);
    assert_eq!(subvolume(&["list", "-G", "-1", &image]), "");
    let shown = subvolume(&["show", &at("snap")]);
    for part in ["\tName: \t\t\tsnap\n", "\tSubvolume ID: \t\t260\n", "\tFlags: \t\t\treadonly\n"] {
        assert!(shown.contains(part), "{shown}");
    }
    let shown: Value = serde_json::from_str(&subvolume(&["show", "--json", &at("a")])).unwrap();
    assert_eq!(shown["snapshots"], serde_json::json!([260, 261]));
    assert_eq!(subvolume(&["show", "--uuid", shown["uuid"].as_str().unwrap(), &image]), subvolume(&["show", &at("a")]));

    subvolume(&["delete", &at("x/a"), &at("b")]);
    subvolume(&["delete", "--subvolid", "259", &image]);
    subvolume(&["delete", "-c", &at("a")]);
    subvolume(&["sync", &image]);
    assert_eq!(
        (paths(&image), subvolume(&["list", "-d", &image])),
        (vec!["x/y/z".into(), "snap".into()], String::new())
    );
    assert!(success(&ubtrfs(&["check", &image])).contains("no fault found"));
}

#[test]
fn a_subvolume_of_an_image_is_reset_to_a_snapshot() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    subvolume(&["create", "-p", &at("place/a")]);
    subvolume(&["create", &at("place/a/inner")]);
    subvolume(&["snapshot", "-r", &at("place/a"), &at("kept")]);
    subvolume(&["create", &at("b")]);
    subvolume(&["set-default", &at("b")]);
    assert_eq!(
        subvolume(&["reset", &at("b"), &at("kept")]),
        format!("Reset subvolume '{image}:b' to '{image}:kept'\n")
    );
    assert_eq!(paths(&image), ["place/a", "place/a/inner", "kept", "b"]);
    let shown: Value = serde_json::from_str(&subvolume(&["show", "--json", &at("b")])).unwrap();
    assert_eq!((&shown["id"], &shown["read_only"]), (&260.into(), &false.into()), "{shown}");
    // The new subvolume is the default now.
    assert!(subvolume(&["get-default", &image]).starts_with("ID 260 "));
    assert_eq!(success(&ubtrfs(&["ls", &image, "/"])), "inner\n");

    let before = fs::read(&image).unwrap();
    for (target, source, words) in [
        ("b", "b", "it is SOURCE itself"),
        ("kept", "b", "it is read-only"),
        ("place/a", "b", "there are other subvolumes in it"),
        ("place", "b", "is not a subvolume"),
        ("", "b", "the top level of a volume can't be replaced"),
        ("none", "b", "No such file or directory"),
    ] {
        fails(&ubtrfs(&["subvolume", "reset", &at(target), &at(source)]), 1, words);
    }
    fails(&ubtrfs(&["subvolume", "reset", "b", &at("kept")]), 1, "neither a directory of a mounted volume");
    assert!(fs::read(&image).unwrap() == before);
    subvolume(&["sync", &image]);
    assert!(success(&ubtrfs(&["check", &image])).contains("no fault found"));
}

#[test]
fn the_default_subvolume_and_the_property_ro_are_shown_and_set() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    assert_eq!(subvolume(&["get-default", &image]), "ID 5 (FS_TREE)\n");
    subvolume(&["create", &at("a"), &at("b")]);
    subvolume(&["set-default", &at("a")]);
    let default = subvolume(&["get-default", &image]);
    assert!(default.starts_with("ID 256 gen ") && default.ends_with(" top level 5 path a\n"), "{default}");
    fails(&ubtrfs(&["subvolume", "delete", &at("a")]), 1, "the default subvolume can't be deleted");
    // Places are named from the top level, whatever the default is.
    subvolume(&["set-default", "257", &image]);
    subvolume(&["delete", &at("a")]);
    subvolume(&["set-default", "5", &image]);

    let ro = || success(&ubtrfs(&["property", "get", &at("b"), "ro"]));
    assert_eq!(ro(), "ro=false\n");
    success(&ubtrfs(&["property", "set", "-t", "s", &at("b"), "ro", "true"]));
    assert_eq!(ro(), "ro=true\n");
    fails(&ubtrfs(&["subvolume", "create", &at("b/inner")]), 1, "Read-only file system");
    success(&ubtrfs(&["property", "set", &at("b"), "ro", "false"]));
    assert_eq!(ro(), "ro=false\n");
    assert!(success(&ubtrfs(&["check", &image])).contains("no fault found"));
}

#[test]
fn what_can_not_be_done_is_refused_and_changes_nothing() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    let other = dir.path().join("other").to_str().unwrap().to_owned();
    success(&ubtrfs(&["mkfs", "--size", "128M", &other]));
    subvolume(&["create", &at("a"), &at("a/inner")]);
    let before = fs::read(&image).unwrap();
    let long = "x".repeat(256);
    let attempts: [(&[&str], &str); 11] = [
        (&["create", &at("a")], "File exists"),
        (&["create", &at("none/b")], "No such file or directory"),
        (&["create", &at("..")], "is not the name of a subvolume"),
        (&["create", &at(&long)], "File name too long"),
        (&["snapshot", &at("none"), &at("b")], "No such file or directory"),
        (&["snapshot", &at("a"), &format!("{other}:b")], "must be in the same volume"),
        (&["snapshot", &at("a"), "b"], "neither a directory of a mounted volume"),
        (&["delete", &at("a")], "there are other subvolumes in it"),
        (&["delete", "-i", "5", &image], "the top level of a volume can't be deleted"),
        (&["show", "-r", "999", &image], "no such subvolume"),
        (&["list", "/proc"], "is not on a btrfs volume"),
    ];
    for (attempt, words) in attempts {
        fails(&ubtrfs(&[&["subvolume"], attempt].concat()), 1, words);
    }
    assert!(fs::read(&image).unwrap() == before);
    // If one deletion fails, the others are done all the same.
    let output = ubtrfs(&["subvolume", "delete", &at("none"), &at("a/inner")]);
    fails(&output, 1, "No such file or directory");
    assert_eq!(paths(&image), ["a"]);
    assert_eq!(ubtrfs(&["subvolume", "list", "--sort=size", &image]).status.code(), Some(2));
}

/// Characters in names that control a terminal are escaped in messages.
#[test]
fn names_with_control_characters_are_shown_escaped() {
    const ESCAPED: &str = "evil\\u{1b}]0;title\\u{7}";
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    let evil = at("evil\x1b]0;title\x07");
    let copy = at("copy of evil\x1b]0;title\x07");
    let file = at("evil\x1b]0;title\x07/file");
    for said in [
        subvolume(&["create", &evil]),
        subvolume(&["snapshot", &evil, &copy]),
        subvolume(&["reset", &copy, &evil]),
        subvolume(&["delete", &copy]),
    ] {
        assert!(said.contains(ESCAPED) && !said.trim_end().contains(char::is_control), "{said:?}");
    }
    success(&with_input(&["put", &file], b"content"));
    let said = success(&ubtrfs(&["filesystem", "defragment", "-v", "-r", &evil]));
    assert!(said.contains(ESCAPED) && said.lines().all(|line| !line.contains(char::is_control)), "{said:?}");
}

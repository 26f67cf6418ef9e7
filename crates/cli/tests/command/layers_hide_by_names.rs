//! Tests that whiteouts of a layer of an OCI image hide files of lower layers, and none of their
//! own layer, in every order of the layer's entries.

use tar::EntryType;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::archives::{archive, import_layers};
use crate::editing::is_clean;
use crate::{new_volume, success, ubtrfs};

type Entry = (&'static str, EntryType, &'static str, &'static [u8]);

const FILE: EntryType = EntryType::Regular;
const DIR: EntryType = EntryType::Directory;
const LINK: EntryType = EntryType::Link;
const SYMLINK: EntryType = EntryType::Symlink;

const BELOW: &[Entry] = &[
    ("d/old", FILE, "", b"1"),
    ("d/name", FILE, "", b"2"),
    ("d/sub/deep", FILE, "", b"3"),
    ("target", FILE, "", b"4"),
];

/// Returns the listing after a layer on [`BELOW`], in one line.
fn after(layer: &[Entry]) -> String {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    import_layers(dir.path(), &image, &[archive(BELOW), archive(layer)]);
    let shown = success(&ubtrfs(&["ls", "-R", &image, "/"]));
    is_clean(&image);
    let mut paths: Vec<String> = Vec::new();
    for part in shown.split("\n\n") {
        let (directory, names) = part.split_once(":\n").unwrap_or((part.trim_end_matches(':'), ""));
        paths.extend(names.lines().map(|name| format!("{}/{name}", directory.trim_end_matches('/'))));
    }
    paths.sort();
    paths.join(" ")
}

/// Asserts the same result for each order of the entries.
#[track_caller]
fn in_every_order(layer: &[Entry], expected: &str) {
    let mut orders = vec![Vec::new()];
    for entry in layer {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<Entry>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, *entry);
                    order
                })
            })
            .collect();
    }
    for order in orders {
        assert_eq!(after(&order), expected, "{:?}", order.iter().map(|entry| entry.0).collect::<Vec<_>>());
    }
}

#[test]
fn an_opaque_directory_keeps_what_the_layer_has() {
    in_every_order(
        &[("d/.wh..wh..opq", FILE, "", b""), ("d/link", LINK, "target", b""), ("d/new", FILE, "", b"5")],
        "/d /d/link /d/new /target",
    );
    in_every_order(&[("d/.wh..wh..opq", FILE, "", b""), ("d/sub/new", FILE, "", b"5")], "/d /d/sub /d/sub/new /target");
}

#[test]
fn a_directory_that_is_hidden_keeps_what_the_layer_has_in_it() {
    in_every_order(&[(".wh.d", FILE, "", b""), ("d/new", FILE, "", b"5")], "/d /d/new /target");
    in_every_order(&[(".wh.d", FILE, "", b""), ("d/link", LINK, "target", b"")], "/d /d/link /target");
    in_every_order(&[(".wh.d", FILE, "", b""), ("d/sub", SYMLINK, "x", b"")], "/d /d/sub /target");
    in_every_order(&[(".wh.d", FILE, "", b""), ("d", DIR, "", b"")], "/d /target");
}

#[test]
fn whiteouts_below_a_whiteout_make_nothing() {
    in_every_order(&[(".wh.d", FILE, "", b""), ("d/.wh.name", FILE, "", b"")], "/target");
    in_every_order(&[(".wh.d", FILE, "", b""), ("d/.wh..wh..opq", FILE, "", b"")], "/target");
    in_every_order(&[("none/.wh.x", FILE, "", b"")], "/d /d/name /d/old /d/sub /d/sub/deep /target");
}

/// umoci writes such a layer, which lists the files that were below the directory.
#[test]
fn a_directory_may_become_something_else() {
    in_every_order(&[("d", FILE, "", b"5"), ("d/.wh.old", FILE, "", b"")], "/d /target");
    in_every_order(&[("d", LINK, "target", b""), ("d/.wh.old", FILE, "", b"")], "/d /target");
    // The target of a link is not affected.
    assert_eq!(
        after(&[("other/old", FILE, "", b"5"), ("d", SYMLINK, "other", b""), ("d/.wh.old", FILE, "", b"")]),
        "/d /other /other/old /target"
    );
}

#[test]
fn what_aufs_had_for_itself_is_passed_over() {
    assert_eq!(
        after(&[(".wh..wh.plnk", DIR, "", b""), (".wh..wh.aufs", FILE, "", b"x")]),
        "/d /d/name /d/old /d/sub /d/sub/deep /target"
    );
}

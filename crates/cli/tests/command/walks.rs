//! Tests that walks through the files of an image end, whatever it holds, and report where they
//! stopped.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ubtrfs_damage::Image;
use ubtrfs_format::items::InodeItem;
use ubtrfs_format::{ItemType, TreeId};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::editing::{quiet, with_input};
use crate::{fails, new_volume, success, ubtrfs};

/// The flag that `chattr +i` sets.
const IMMUTABLE: u64 = 1 << 6;

/// Returns the inode number of a name.
fn number(image: &str, path: &str) -> u64 {
    let shown = success(&ubtrfs(&["stat", image, path]));
    let digits = shown.split("inode      ").nth(1).unwrap_or_else(|| panic!("{shown}"));
    digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[test]
fn a_directory_within_itself_is_named_and_ends_every_walk() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    quiet(&["mkdir", "-p", &at("a/b/c")]);
    success(&with_input(&["put", &at("a/b/file")], b"x"));
    let (above, below) = (number(&image, "a"), number(&image, "a/b"));
    for item_type in [ItemType::DIR_ITEM, ItemType::DIR_INDEX] {
        Image::open(Path::new(&image)).edit(
            TreeId::FS,
            |key, data| key.objectid == below && key.item_type == item_type && data.ends_with(b"c"),
            |_, data| data[..8].copy_from_slice(&above.to_le_bytes()),
        );
    }
    let superblock = || fs::read(&image).unwrap()[65536..65536 + 4096].to_vec();
    let before = superblock();
    let host = dir.path().join("host").to_str().unwrap().to_owned();
    let attempts: [&[&str]; 8] = [
        &["cp", "-r", &at("a"), &at("copy")],
        &["cp", "-a", &at("a"), &host],
        &["chmod", "-R", "700", &at("a")],
        &["chown", "-R", "1:1", &at("a")],
        &["rm", "-r", &at("a")],
        &["export", &at("a")],
        &["filesystem", "du", &at("a")],
        &["filesystem", "defragment", "-r", &at("a")],
    ];
    for attempt in attempts {
        let output = ubtrfs(attempt);
        assert_eq!(output.status.code(), Some(1), "{attempt:?}");
        fails(&output, 1, "a/b/c is a directory that has another path, too");
    }
    assert!(superblock() == before, "none of them has changed anything");
}

/// The sizes of files are only summed up, and the sum must not overflow.
#[test]
fn files_of_nearly_any_size_are_copied_within_an_image() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    quiet(&["mkdir", &at("d")]);
    for name in ["one", "other", "third"] {
        success(&with_input(&["put", &at(&format!("d/{name}"))], &vec![0x5a; 9000]));
    }
    let huge: u64 = (1 << 63) - 4096;
    for name in ["one", "other", "third"] {
        let wanted = number(&image, &format!("d/{name}"));
        Image::open(Path::new(&image)).edit(
            TreeId::FS,
            |key, _| key.objectid == wanted && key.item_type == ItemType::INODE_ITEM,
            |_, data| {
                let mut item = InodeItem::parse(data).unwrap();
                item.size = huge;
                *data = item.to_bytes().to_vec();
            },
        );
    }
    for reflink in ["auto", "never"] {
        let copy = at(reflink);
        success(&ubtrfs(&["cp", "-a", &format!("--reflink={reflink}"), &at("d"), &copy]));
        let shown = success(&ubtrfs(&["stat", &image, &format!("{reflink}/third")]));
        assert!(shown.contains(&huge.to_string()), "{shown}");
    }
    success(&ubtrfs(&["filesystem", "du", &at("")]));
    let done = success(&ubtrfs(&["cp", "-r", "--json", &at("d"), &at("counted")]));
    assert!(done.contains(&u64::MAX.to_string()), "{done}");
}

#[test]
fn what_fails_within_a_tree_is_named_by_its_path() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let at = |path: &str| format!("{image}:{path}");
    quiet(&["mkdir", "-p", &at("a/b/one"), &at("a/c/two")]);
    success(&with_input(&["put", &at("a/b/one/file")], &vec![0xa5; 8192]));
    let wanted = number(&image, "a/b/one/file");
    Image::open(Path::new(&image)).edit(
        TreeId::FS,
        |key, _| key.objectid == wanted && key.item_type == ItemType::INODE_ITEM,
        |_, data| {
            let mut item = InodeItem::parse(data).unwrap();
            item.flags |= IMMUTABLE;
            *data = item.to_bytes().to_vec();
        },
    );
    let host = dir.path().join("host").to_str().unwrap().to_owned();
    for attempt in [&["chmod", "-R", "700", &at("a")][..], &["chown", "-R", "1:1", &at("a")]] {
        fails(&ubtrfs(attempt), 1, "a/b/one/file: Operation not permitted");
    }
    fails(&ubtrfs(&["rm", "-r", &at("a")]), 1, "a/b/one/file can't be removed");
    let bytes = fs::read(&image).unwrap();
    for (place, _) in bytes.windows(64).enumerate().filter(|(_, window)| **window == [0xa5; 64]) {
        fs::File::options().write(true).open(&image).unwrap().write_all_at(&[0], place as u64).unwrap();
    }
    for attempt in [
        &["cp", "-r", "--reflink=never", &at("a"), &at("copy")][..],
        &["cp", "-a", &at("a"), &host],
        &["export", &at("a")],
    ] {
        fails(&ubtrfs(attempt), 1, "a/b/one/file");
    }
}

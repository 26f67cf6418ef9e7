//! Tests that errors which a first-time user meets say what to do.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{fails, new_volume, success, ubtrfs};

#[test]
fn slips_in_mount_options_are_corrected() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let point = dir.path().to_str().unwrap();
    for (written, meant) in [("ro,compres=zstd:3", "compress=zstd:3"), ("subvl=x", "subvol=x"), ("noatme", "noatime")] {
        let words = format!("did you mean '{meant}'?");
        fails(&ubtrfs(&["mount", "-o", written, &image, point]), 1, &words);
    }
    let strange = ubtrfs(&["mount", "-o", "frobnicate", &image, point]);
    fails(&strange, 1, "unknown mount option 'frobnicate'");
    assert!(!String::from_utf8_lossy(&strange.stderr).contains("did you mean"));
}

#[test]
fn errors_say_which_place_is_not_what_it_should_be() {
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    let point = dir.path().to_str().unwrap();
    let absent = format!("{point}/absent");
    fails(&ubtrfs(&["mount", &image, &absent]), 1, &format!("does not exist: 'mkdir {absent}' makes it"));
    for command in [vec!["ls", point, "/"], vec!["info", point], vec!["mkfs", point], vec!["mount", point, point]] {
        fails(&ubtrfs(&command), 1, "it is a directory: name the image or the device");
    }
    fails(&ubtrfs(&["restore", &image, point]), 1, "is not empty: name a directory that is, or a new one");
    fails(&ubtrfs(&["mount", &image]), 2, "ubtrfs mount DEVICE DIR");
    fails(&ubtrfs(&["restore", &image]), 2, "ubtrfs restore DEVICE DIR");
    fails(&ubtrfs(&["tree", "-t", "nonsense", &image]), 1, "name its number, or root, extent, chunk");
    fails(&ubtrfs(&["scrub", "status", &image]), 1, "name a directory on the mount of one");
    // An image without a path means its top level.
    let alone = success(&ubtrfs(&["property", "get", &image, "ro"]));
    assert_eq!(alone, success(&ubtrfs(&["property", "get", &format!("{image}:/"), "ro"])));
}

#[test]
fn images_without_anything_get_the_advice_to_make_a_volume() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    File::create(&path).unwrap().set_len(200 << 20).unwrap();
    fails(&ubtrfs(&["info", image]), 1, &format!("it is empty; 'ubtrfs mkfs {image}' makes a volume of it"));
    fs::write(&path, "a letter").unwrap();
    fails(&ubtrfs(&["info", image]), 1, "it has 8 bytes, fewer than any volume");
    // A file with other contents is not reported as empty.
    fs::write(&path, vec![7; 200_000]).unwrap();
    let other = ubtrfs(&["info", image]);
    fails(&other, 1, "no btrfs found");
    assert!(!String::from_utf8_lossy(&other.stderr).contains("mkfs"), "{other:?}");
}

#[test]
fn an_image_without_permission_is_an_error_that_says_who_may_open_it() {
    require!(Need::Root);
    let dir = scratch_dir();
    let image = new_volume(dir.path());
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // A copy of the program that all users may run.
    let program = dir.path().join("ubtrfs");
    crate::copy_program(&program);
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let output = command.args(["ls", &image, "/"]).current_dir("/").output().unwrap();
    fails(&output, 1, "its owner can let you ('chmod'), or root can do this (sudo)");
}

//! How a mount ends when it isn't simply unmounted.

use std::fs::{self, File};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, cat, fails, ubtrfs};

#[test]
fn signals_end_it_with_a_commit() {
    require!(Need::Root, FUSE);
    for signal in ["TERM", "INT"] {
        let volume = Volume::new();
        volume.mount("commit=1000");
        fs::write(volume.point.join("file"), signal).unwrap();
        let server = volume.server();
        server.signal(signal);
        server.ended();
        assert!(!volume.is_mounted());
        assert_eq!(cat(&volume.image, "/file"), signal);
        volume.check();
    }
}

#[test]
fn a_signal_ends_it_though_it_is_in_use() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    let open = File::create(volume.point.join("open")).unwrap();
    fs::write(volume.point.join("file"), "content").unwrap();
    let server = volume.server();
    server.signal("TERM");
    server.ended();
    assert!(!volume.is_mounted());
    assert!(open.metadata().is_err(), "the connection is cut");
    drop(open);
    assert_eq!(cat(&volume.image, "/file"), "content");
    volume.check();
}

#[test]
fn umount_says_that_it_is_busy() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let open = File::create(volume.point.join("open")).unwrap();
    fails(&ubtrfs(&["umount".as_ref(), volume.point.as_os_str()]), "is busy");
    assert!(volume.is_mounted());
    drop(open);
    volume.umount();
}

#[test]
fn the_mount_of_a_dead_server_is_cleared_and_what_was_synced_is_there() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("synced"), "content").unwrap();
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    fs::write(volume.point.join("lost"), "content").unwrap();
    let server = volume.server();
    server.signal("KILL");
    server.ended();
    assert!(volume.is_mounted());
    fails(&volume.try_mount(""), "the mount of a server that is no more");
    fails(&ubtrfs(&["stats".as_ref(), volume.point.as_os_str()]), "the server of this mount is no more");
    volume.umount();
    volume.check();
    volume.mount("");
    assert_eq!(fs::read_to_string(volume.point.join("synced")).unwrap(), "content");
    assert!(!volume.point.join("lost").exists());
    volume.umount();
}

#[test]
fn plain_umount_commits_and_frees_the_image() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("file"), "content").unwrap();
    let server = volume.server();
    run(&mut command("umount", &[&volume.point])).ok();
    // Of a fuseblk mount umount(8) returns after the last commit; the server then has but to let go.
    let copy = volume.dir.path().join("copy");
    fs::copy(&volume.image, &copy).unwrap();
    assert_eq!(cat(&copy, "/file"), "content");
    server.ended();
    assert_eq!(cat(&volume.image, "/file"), "content");
}

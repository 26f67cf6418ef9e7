//! Tests of sync(2), and of remounts by the kernel alone. `tests/kernels.sh` tests the same on
//! kernels that send a server fewer requests.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ubtrfs_testkit::mapped::Mapping;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, cat, ubtrfs};
use crate::users_mount::UsersMount;

/// Calls sync(2), and returns whether it has ended: it waits for all mounts of this machine.
fn sync() -> bool {
    run(&mut command("timeout", &["300", "sync"])).success()
}

/// Copies the files of the image as they would be after a crash now.
fn after_a_crash(volume: &Volume, into: &Path) {
    let copy = volume.dir.path().join("copy");
    run(command("cp", &["--sparse=always"]).args([&volume.image, &copy])).ok();
    ubtrfs(&["restore".as_ref(), copy.as_os_str(), into.as_os_str()]).ok();
}

/// For so many files the kernel only starts the writeback, and sends SYNCFS meanwhile.
#[test]
fn stores_to_live_mappings_are_part_of_a_sync() {
    const FILES: usize = 400;
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    let path = |number: usize| volume.point.join(number.to_string());
    let mapped = |number: usize| {
        fs::write(path(number), [b'-'; 4096]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path(number)).unwrap();
        Mapping::new(&file, 4096).unwrap()
    };
    let mappings: Vec<_> = (0..FILES).map(mapped).collect();
    let rounds = if std::env::var_os("UBTRFS_SOAK").is_some() { 100 } else { 4 };
    for round in 0..rounds {
        let stored = format!("round {round:04}");
        for mapping in &mappings {
            mapping.store(stored.as_bytes());
        }
        if !sync() {
            eprintln!("sync(2) does not come back on this machine: nothing can be learned from it");
            return;
        }
        let restored = volume.dir.path().join(format!("restored-{round}"));
        after_a_crash(&volume, &restored);
        let is_missing =
            |number: &usize| !fs::read(restored.join(number.to_string())).unwrap().starts_with(stored.as_bytes());
        let missing = (0..FILES).filter(is_missing).count();
        assert_eq!(missing, 0, "files of {FILES} miss their stores in round {round}");
        fs::remove_dir_all(&restored).unwrap();
    }
    drop(mappings);
    volume.umount();
    volume.check();
}

#[test]
fn a_mount_says_how_syncs_arrive() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let said = volume.stats()["syncs"].as_str().unwrap().to_owned();
    assert!(said.starts_with("sync(2), syncfs(2) and remounts by the kernel alone commit"), "{said}");
    assert!(said.contains("6.18"), "{said}");
    volume.umount();
    volume.mount("ro");
    assert_eq!(volume.stats()["syncs"], "nothing is written");
    volume.umount();
}

/// No request arrives, so the mount table shows that it has happened.
#[test]
fn a_users_mount_commits_when_root_remounts_it_read_only() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    require!(Need::Tool("nsenter"));
    let (volume, mount) = UsersMount::of_new_volume("commit=1000");
    mount.as_user("echo content > $2/file", &volume).ok();
    let said = mount.as_user("\"$1\" stats $2", &volume).ok().stdout;
    let syncs = said.lines().find(|line| line.starts_with("syncs ")).unwrap_or_default();
    assert!(syncs.contains("do not commit") && syncs.contains("'ubtrfs sync "), "{said}");
    mount.within(&["sh", "-c", "mount -i -o remount,ro \"$2\"", "sh"], &volume).ok();
    let deadline = Instant::now() + Duration::from_secs(20);
    let copy = volume.dir.path().join("copy");
    loop {
        fs::copy(&volume.image, &copy).unwrap();
        // A copy that was made during the commit may be inconsistent.
        let listing = ubtrfs(&["ls".as_ref(), copy.as_os_str(), "/".as_ref()]);
        if listing.success() && listing.stdout.contains("file") {
            break;
        }
        assert!(Instant::now() < deadline, "nothing is committed");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(cat(&copy, "/file"), "content\n");
}

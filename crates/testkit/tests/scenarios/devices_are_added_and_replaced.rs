//! ubtrfs and the kernel add devices to volumes and replace devices in turn: each finishes what the
//! other began, and neither complains.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::{blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::subject::{Mount, Subject};

use crate::device_images::{Images, SIZE, command_of, ubtrfs};

/// The time in which a replacement has to end.
const TIMEOUT: Duration = Duration::from_secs(120);

fn shown(directory: &Path) -> serde_json::Value {
    serde_json::from_str(&ubtrfs(&["replace", "status", "--json"], &[directory]).ok().stdout).unwrap()
}

/// Waits until a replacement has ended, and returns its state.
fn ended(directory: &Path) -> String {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let shown = shown(directory);
        if shown["state"] != "started" || Instant::now() > deadline {
            return shown["state"].as_str().unwrap().to_owned();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until a replacement on a mount of ours has copied something, and asserts that it has not
/// ended.
fn wait_for_the_middle(directory: &Path) {
    let deadline = Instant::now() + TIMEOUT;
    while shown(directory)["state"] != "started" {
        assert!(Instant::now() < deadline, "{}", shown(directory));
        std::thread::sleep(Duration::from_millis(20));
    }
    ubtrfs(&["sync"], &[directory]).ok();
}

/// Begins a slow replacement of the second device, and does not wait for it.
fn begin_slowly(old: &str, new: &Path, place: &Path) -> Child {
    let mut line = command_of(&["replace", "start", "-f", "--limit", "4M", old], &[new, place]);
    line.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn volumes_get_devices_by_ubtrfs_and_the_kernel() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(5);
    rig.mkfs(&[], &[0]);
    let mount = Subject::ubtrfs().mount(&[rig.image(0)], "");
    let top = mount.path().to_owned();
    rig.write(&top, 1, 20);
    assert_eq!((&shown(&top)["state"], &shown(&top)["progress"]), (&"never started".into(), &0.into()));
    ubtrfs(&["device", "add"], &[rig.image(1), &top]).ok();
    let again = ubtrfs(&["device", "add"], &[rig.image(1), &top]);
    assert!(!again.success(), "it is one of the volume's already");
    run(command("mkfs.ext4", &["-q"]).arg(rig.image(2))).ok();
    let refused = ubtrfs(&["device", "add"], &[rig.image(2), &top]);
    assert!(!refused.success() && refused.stderr.contains("ext2/3/4"), "{}", refused.report());
    ubtrfs(&["device", "add", "-f"], &[rig.image(2), &top]).ok();
    // Writes more than the first device could hold.
    rig.write(&top, 2, 500);
    rig.verify(&top, "written");
    let usage = ubtrfs(&["device", "usage", "--json"], &[&top]).ok().stdout;
    let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
    assert_eq!(usage["devices"].as_array().unwrap().len(), 3, "{usage}");
    mount.unmount();
    rig.assert_good(&[0, 1, 2], "three devices");
    // The kernel adds a device, and another one is added while nothing is mounted.
    let kernel = KernelMount::new(&rig.images(&[0, 1, 2]), "");
    {
        let fourth = LoopDevice::attach(rig.image(3), false);
        run(command("btrfs", &["device", "add"]).arg(fourth.path()).arg(kernel.path())).ok();
        assert!(kernel.unmount().is_empty());
        fourth.wait_until_free();
    }
    let others = [1, 2, 3].map(|number| format!("--device={}", rig.image(number).display()));
    ubtrfs(&["device", "add", &others[0], &others[1], &others[2]], &[rig.image(4), rig.image(0)]).ok();
    rig.assert_good(&[4, 3, 2, 1, 0], "five devices");
}

#[test]
fn devices_are_replaced_by_ubtrfs_and_the_kernel() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(5);
    rig.mkfs(&["-d", "single", "-m", "raid1"], &[0, 1]);
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1]), "");
    let top = mount.path().to_owned();
    rig.write(&top, 1, 150);
    let small = rig.image(0).with_file_name("small");
    blank_image(&small, SIZE / 2);
    // The other file system on it is kept, even with -f.
    run(command("mkfs.ext4", &["-q"]).arg(&small)).ok();
    let before = std::fs::read(&small).unwrap();
    let refused = ubtrfs(&["replace", "start", "-f", "2"], &[&small, &top]);
    assert!(!refused.success() && refused.stderr.contains("too small"), "{}", refused.report());
    let unchanged = || std::fs::read(&small).unwrap() == before;
    assert!(unchanged());
    let old = rig.image(1).to_owned();
    let done = ubtrfs(&["replace", "start", "--json"], &[&old, rig.image(2), &top]).ok().stdout;
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&done["state"], &done["device"]), (&"finished".into(), &2.into()), "{done}");
    rig.write(&top, 2, 20);
    rig.verify(&top, "replaced");
    let usage = ubtrfs(&["device", "usage"], &[&top]).ok().stdout;
    assert!(usage.contains("image2, ID: 2") && !usage.contains("image1"), "{usage}");
    mount.unmount();
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 2]), "ro");
    for words in [&["device", "add", "-f"][..], &["replace", "start", "-f", "2"]] {
        let refused = ubtrfs(words, &[&small, mount.path()]);
        assert!(!refused.success() && refused.stderr.contains("read-only") && unchanged(), "{}", refused.report());
    }
    mount.unmount();
    assert!(!ubtrfs(&["info"], &[&old]).success(), "the old device is the volume's no more");
    rig.assert_good(&[0, 2], "replaced by ubtrfs");
    let kernel = KernelMount::new(&rig.images(&[0, 2]), "");
    {
        let fourth = LoopDevice::attach(rig.image(3), false);
        let words = ["replace", "start", "-B", "1"];
        run(command("btrfs", &words).arg(fourth.path()).arg(kernel.path())).ok();
        assert!(kernel.unmount().is_empty());
        fourth.wait_until_free();
    }
    rig.assert_good(&[3, 2], "replaced by the kernel");
    // A device is missing, and the volume is not mounted.
    ubtrfs(&["replace", "start", "-r", "2"], &[rig.image(4), rig.image(3), rig.image(2)]).ok();
    rig.assert_good(&[3, 4], "replaced offline");
}

#[test]
fn a_replacement_of_ubtrfs_is_finished_by_either_after_a_kill() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    for finisher in [Subject::ubtrfs(), Subject::Kernel] {
        let what = format!("finished by {}", finisher.name());
        let mut rig = Images::new(3);
        rig.mkfs(&["-d", "raid1", "-m", "raid1"], &[0, 1]);
        let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1]), "");
        let top = mount.path().to_owned();
        rig.write(&top, 1, 100);
        let mut client = begin_slowly("2", rig.image(2), &top);
        wait_for_the_middle(&top);
        rig.write(&top, 2, 10);
        ubtrfs(&["sync"], &[&top]).ok();
        assert_eq!(shown(&top)["state"], "started");
        let Mount::Ubtrfs(killed) = &mount else { unreachable!() };
        killed.kill_server();
        let _ = client.wait();
        drop(mount);
        let mount = finisher.mount(&rig.images(&[0, 1, 2]), "");
        rig.verify(mount.path(), &what);
        assert_eq!(ended(mount.path()), "finished", "{what}");
        rig.verify(mount.path(), &what);
        mount.unmount();
        rig.assert_good(&[0, 2], &what);
    }
}

#[test]
fn a_replacement_of_the_kernel_is_finished_by_ubtrfs() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(6);
    mkfs_btrfs_on(&rig.images(&[0, 1]), &["-d", "single", "-m", "raid1"]);
    let kernel = KernelMount::new(&rig.images(&[0, 1]), "");
    let top = kernel.path().to_owned();
    rig.write(&top, 1, 200);
    run(command("sync", &["-f"]).arg(&top)).ok();
    // The replacement is so slow that it is under way when its devices are copied.
    let fsid = run(command("findmnt", &["-n", "-o", "UUID"]).arg(&top)).ok().stdout;
    let limit = format!("/sys/fs/btrfs/{}/devinfo/2/scrub_speed_max", fsid.trim());
    std::fs::write(limit, "8388608").unwrap();
    let target = LoopDevice::attach(rig.image(2), false);
    run(command("btrfs", &["replace", "start", "2"]).arg(target.path()).arg(&top)).ok();
    rig.write(&top, 2, 10);
    run(command("sync", &["-f"]).arg(&top)).ok();
    assert_eq!(shown(&top)["state"], "started");
    // Copies the devices as they are at one point in time, like a crash.
    run(command("fsfreeze", &["-f"]).arg(&top)).ok();
    for (from, to) in [(0, 3), (1, 4), (2, 5)] {
        std::fs::copy(rig.image(from), rig.image(to)).unwrap();
    }
    run(command("fsfreeze", &["-u"]).arg(&top)).ok();
    run(command("btrfs", &["replace", "cancel"]).arg(&top)).ok();
    drop(kernel.unmount());
    target.wait_until_free();
    drop(target);
    let mount = Subject::ubtrfs().mount(&rig.images(&[3, 4, 5]), "");
    rig.verify(mount.path(), "at first");
    assert_eq!(ended(mount.path()), "finished");
    rig.write(mount.path(), 3, 5);
    rig.verify(mount.path(), "at last");
    mount.unmount();
    rig.assert_good(&[3, 5], "finished by ubtrfs");
}

#[test]
fn a_replacement_waits_for_its_new_device_and_can_be_cancelled() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(3);
    rig.mkfs(&["-d", "raid1", "-m", "raid1"], &[0, 1]);
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1]), "");
    let top = mount.path().to_owned();
    rig.write(&top, 1, 60);
    let mut client = begin_slowly("1", rig.image(2), &top);
    wait_for_the_middle(&top);
    // The replacement goes on without the command, up to the end of the mount.
    client.kill().unwrap();
    let _ = client.wait();
    assert_eq!(shown(&top)["state"], "started");
    mount.unmount();
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1]), "");
    assert_eq!(shown(mount.path())["state"], "suspended");
    rig.write(mount.path(), 2, 5);
    mount.unmount();
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1, 2]), "");
    assert_eq!(ended(mount.path()), "finished");
    rig.verify(mount.path(), "the new device was away for a while");
    let top = mount.path().to_owned();
    let mut client = begin_slowly("2", rig.image(0), &top);
    wait_for_the_middle(&top);
    ubtrfs(&["replace", "cancel"], &[&top]).ok();
    assert!(!client.wait().unwrap().success());
    assert_eq!(shown(&top)["state"], "cancelled");
    assert!(!ubtrfs(&["replace", "cancel"], &[&top]).success(), "there is none any more");
    mount.unmount();
    rig.assert_good(&[1, 2], "cancelled");
}

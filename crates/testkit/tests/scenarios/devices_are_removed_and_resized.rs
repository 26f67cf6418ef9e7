//! ubtrfs and the kernel remove devices from volumes and resize them in turn. An operation that is
//! cancelled leaves the volume as it was.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs_on;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::subject::{Mount, Subject};

use crate::device_images::{Images, SIZE, command_of, ubtrfs};

const MIB: u64 = 1 << 20;
/// The time in which a command has to end.
const TIMEOUT: Duration = Duration::from_secs(60);

fn json(words: &[&str], places: &[&Path]) -> serde_json::Value {
    serde_json::from_str(&ubtrfs(words, places).ok().stdout).unwrap()
}

/// Returns the bytes of a device.
fn size_of(top: &Path, id: u64) -> u64 {
    let usage = json(&["device", "usage", "--json"], &[top]);
    let of_device = usage["devices"].as_array().unwrap().iter().find(|device| device["id"] == id).cloned();
    let of_device = of_device.unwrap_or_else(|| panic!("no device {id} in {usage}"));
    of_device["total_bytes"].as_u64().unwrap()
}

/// Begins a slow operation, and returns when it is under way.
fn begin(words: &[&str], top: &Path) -> Child {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut line = command_of(words, &[top]);
        let mut client = line.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The command is refused if it comes while this asks, so it is tried again.
        while client.try_wait().unwrap().is_none() {
            if ubtrfs(&["filesystem", "resize", "1:max"], &[top]).stderr.contains("under way") {
                return client;
            }
            assert!(Instant::now() < deadline, "it does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn devices_are_removed_by_ubtrfs_and_the_kernel() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(5);
    rig.mkfs(&["-d", "raid0", "-m", "raid1"], &[0, 1, 2, 3, 4]);
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1, 2, 3, 4]), "");
    let top = mount.path().to_owned();
    rig.write(&top, 1, 200);
    let old = rig.image(1).to_owned();
    let done = json(&["device", "remove", "--json"], &[&old, &top]);
    assert_eq!(done[0]["device"], 2);
    assert!(!ubtrfs(&["device", "remove"], &[&old, &top]).success(), "it is none of the volume's any more");
    rig.write(&top, 2, 20);
    let usage = ubtrfs(&["device", "usage"], &[&top]).ok().stdout;
    assert!(usage.contains("image2, ID: 3") && !usage.contains("image1"), "{usage}");
    mount.unmount();
    assert!(!ubtrfs(&["info"], &[&old]).success(), "nothing of the volume is found there");
    rig.assert_good(&[0, 2, 3, 4], "removed by ubtrfs");
    let kernel = KernelMount::new(&rig.images(&[0, 2, 3, 4]), "");
    run(command("btrfs", &["device", "remove", "4"]).arg(kernel.path())).ok();
    assert!(kernel.unmount().is_empty());
    rig.assert_good(&[0, 2, 4], "removed by the kernel");
    // A device is lost, with data that was on it alone.
    let lost = format!("--device={}", rig.image(4).display());
    let refused = ubtrfs(&["device", "remove", &lost, "missing"], &[rig.image(0)]);
    assert!(
        !refused.success() && refused.stderr.contains("can only be read"),
        "RAID0 data is lost: {}",
        refused.report()
    );
}

#[test]
fn a_lost_device_is_removed_and_what_can_not_be_is_refused() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(3);
    rig.mkfs(&["-d", "raid1", "-m", "raid1"], &[0, 1, 2]);
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1, 2]), "");
    rig.write(mount.path(), 1, 100);
    mount.unmount();
    let third = format!("--device={}", rig.image(2).display());
    ubtrfs(&["device", "remove", &third, "missing"], &[rig.image(0)]).ok();
    rig.assert_good(&[0, 2], "the lost one is removed");
    let refused = ubtrfs(&["device", "delete", &third, "3"], &[rig.image(0)]);
    assert!(!refused.success() && refused.stderr.contains("too few"), "{}", refused.report());
    let kernel = KernelMount::new(&rig.images(&[0, 2]), "");
    ubtrfs(&["balance", "start", "-dconvert=single", "-mconvert=dup", "-f"], &[kernel.path()]).ok();
    let usage = json(&["device", "remove", "--json", "3"], &[kernel.path()]);
    assert_eq!(usage[0]["device"], 3, "the commands are for mounts of the kernel, too");
    assert!(kernel.unmount().is_empty());
    rig.assert_good(&[0], "one is left");
}

/// Asserts that the command fails, and says why.
fn assert_refused(words: &[&str], places: &[&Path], why: &str) {
    let refused = ubtrfs(words, places);
    assert!(!refused.success() && refused.stderr.contains(why), "{}", refused.report());
}

#[test]
fn devices_of_other_volumes_and_volumes_that_are_not_whole_are_left_alone() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let rig = Images::new(5);
    rig.mkfs(&["-d", "raid1", "-m", "raid1"], &[0, 1, 2]);
    rig.mkfs(&["-d", "single", "-m", "raid1"], &[3, 4]);
    let others = [1, 2].map(|number| format!("--device={}", rig.image(number).display()));
    let (others, image, foreign) = ([&*others[0], &*others[1]], rig.image(0), rig.image(4));
    let remove = [&["device", "remove"], &others[..]].concat();
    assert_refused(&remove, &[foreign, image], "different volumes");
    let new = rig.image(0).with_file_name("new");
    std::fs::File::create(&new).unwrap().set_len(SIZE).unwrap();
    let all = [foreign, &new, image, rig.image(1), rig.image(2)];
    assert_refused(&["replace", "start"], &all, "no device");
    // A device that is there but was not named does not count as missing.
    assert_refused(&["device", "remove", others[0], "2"], &[image], "name all of them");
    assert_refused(&["filesystem", "resize", others[0], "1:-10M"], &[image], "name all of them");
    // Here the device is named only as the one to remove.
    ubtrfs(&["device", "remove", others[0]], &[rig.image(2), image]).ok();
    assert!(!ubtrfs(&["info"], &[rig.image(2)]).success(), "nothing of the volume is found there");
    rig.assert_good(&[0, 1], "removed");
    // The kernel returns error numbers of its own.
    let kernel = KernelMount::new(&rig.images(&[0, 1]), "");
    assert_refused(&["device", "remove", "2"], &[kernel.path()], "too few");
    assert_refused(&["device", "remove", "missing"], &[kernel.path()], "too few");
    assert!(kernel.unmount().is_empty());
    rig.assert_good(&[0, 1], "refused");
}

#[test]
fn a_device_that_lags_gets_no_other_size() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(2);
    rig.mkfs(&["-d", "raid1", "-m", "raid1"], &[0, 1]);
    let degraded = Subject::ubtrfs().mount(&[rig.image(0)], "degraded");
    rig.write(degraded.path(), 1, 10);
    degraded.unmount();
    let second = format!("--device={}", rig.image(1).display());
    assert_refused(&["filesystem", "resize", &second, "2:-100M"], &[rig.image(0)], "scrub start");
    ubtrfs(&["scrub", "start"], &rig.images(&[0, 1])).ok();
    ubtrfs(&["filesystem", "resize", &second, "2:-100M"], &[rig.image(0)]).ok();
    rig.assert_good(&[0, 1], "brought up, and made smaller");
}

#[test]
fn devices_get_other_sizes_by_ubtrfs_and_the_kernel() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(2);
    rig.mkfs(&["-d", "single", "-m", "raid1"], &[0, 1]);
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1]), "");
    let top = mount.path().to_owned();
    rig.write(&top, 1, 300);
    let done = json(&["filesystem", "resize", "--json", "2:-200M"], &[&top]);
    assert_eq!((&done["bytes_before"], &done["bytes"]), (&SIZE.into(), &(SIZE - 200 * MIB).into()), "{done}");
    assert_eq!(size_of(&top, 2), SIZE - 200 * MIB);
    let refused = ubtrfs(&["filesystem", "resize", "2:+300M"], &[&top]);
    assert!(!refused.success() && refused.stderr.contains("not that large"), "{}", refused.report());
    rig.write(&top, 2, 20);
    mount.unmount();
    rig.assert_good(&[0, 1], "smaller by ubtrfs");
    let kernel = KernelMount::new(&rig.images(&[0, 1]), "");
    run(command("btrfs", &["filesystem", "resize", "2:max"]).arg(kernel.path())).ok();
    run(command("btrfs", &["filesystem", "resize", "1:-150M"]).arg(kernel.path())).ok();
    assert!(kernel.unmount().is_empty());
    rig.assert_good(&[0, 1], "by the kernel");
    // An image file is resized together with its device.
    let second = format!("--device={}", rig.image(1).display());
    ubtrfs(&["filesystem", "resize", &second, "2:1G"], &[rig.image(0)]).ok();
    assert_eq!(std::fs::metadata(rig.image(1)).unwrap().len(), 1 << 30);
    ubtrfs(&["filesystem", "resize", &second, "2:450M"], &[rig.image(0)]).ok();
    assert_eq!(std::fs::metadata(rig.image(1)).unwrap().len(), 450 * MIB);
    assert_eq!(std::fs::metadata(rig.image(0)).unwrap().len(), SIZE, "it ends before its file does");
    let refused = ubtrfs(&["filesystem", "resize", &second, "2:20M"], &[rig.image(0)]);
    assert!(!refused.success() && refused.stderr.contains("no room"), "{}", refused.report());
    assert_eq!(std::fs::metadata(rig.image(1)).unwrap().len(), 450 * MIB);
    rig.assert_good(&[0, 1], "offline");
    // The device is larger than the volume on it.
    let larger = std::fs::OpenOptions::new().write(true).open(rig.image(1)).unwrap();
    larger.set_len(SIZE).unwrap();
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1]), "");
    larger.set_len(2 * SIZE).unwrap();
    ubtrfs(&["filesystem", "resize", "2:max"], &[mount.path()]).ok();
    assert_eq!(size_of(mount.path(), 2), 2 * SIZE, "also where it has become so since it was mounted");
    rig.write(mount.path(), 3, 500);
    mount.unmount();
    rig.assert_good(&[0, 1], "grown on a mount");
}

#[test]
fn a_removal_ends_by_a_signal_by_another_command_or_by_a_kill_of_the_server() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(3);
    rig.mkfs(&["-d", "single", "-m", "raid1"], &[0, 1, 2]);
    let mount = Subject::ubtrfs().mount(&rig.images(&[0, 1, 2]), "");
    let top = mount.path().to_owned();
    // The removal moves these extents one after the other.
    (10..50).for_each(|seed| rig.write(&top, seed, 10));
    let slowly = ["device", "remove", "--limit", "4M", "2"];
    // The client is killed.
    let mut client = begin(&slowly, &top);
    let begun = Instant::now();
    client.kill().unwrap();
    assert_eq!(client.wait().unwrap().signal(), Some(9));
    assert!(begun.elapsed() < TIMEOUT / 2, "it does not wait for all of the device");
    // Another command cancels the removal.
    let client = begin(&slowly, &top);
    ubtrfs(&["device", "remove", "cancel"], &[&top]).ok();
    let ended = client.wait_with_output().unwrap();
    assert!(!ended.status.success());
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the removal was ended"), "{ended:?}");
    assert!(!ubtrfs(&["device", "remove", "cancel"], &[&top]).success(), "there is none any more");
    rig.write(&top, 2, 10);
    rig.verify(&top, "ended twice");
    // The server is killed.
    let mut client = begin(&slowly, &top);
    ubtrfs(&["sync"], &[&top]).ok();
    let Mount::Ubtrfs(killed) = &mount else { unreachable!() };
    killed.kill_server();
    let _ = client.wait();
    drop(mount);
    rig.assert_good(&[0, 1, 2], "after a kill");
    // The removal has to be requested again.
    let kernel = KernelMount::new(&rig.images(&[0, 1, 2]), "");
    run(command("btrfs", &["device", "remove", "2"]).arg(kernel.path())).ok();
    assert!(kernel.unmount().is_empty());
    rig.assert_good(&[0, 2], "removed by the kernel");
}

#[test]
fn a_balance_and_a_resizing_end_by_a_signal() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(1);
    rig.mkfs(&[], &[0]);
    let mount = Subject::ubtrfs().mount(&[rig.image(0)], "");
    let top = mount.path().to_owned();
    rig.write(&top, 1, 150);
    rig.write(&top, 2, 150);
    rig.remove(&top, 1);
    ubtrfs(&["sync"], &[&top]).ok();
    for words in [&["balance", "start", "--limit", "4M"][..], &["filesystem", "resize", "--limit", "4M", "1:-200M"]] {
        let mut client = begin(words, &top);
        client.kill().unwrap();
        client.wait().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while !ubtrfs(&["filesystem", "resize", "1:max"], &[&top]).success() {
            assert!(Instant::now() < deadline, "{words:?} goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let status = json(&["balance", "status", "--json"], &[&top]);
    assert_eq!(status["state"], "none");
    let done = json(&["balance", "start", "--json", "-dusage=90", "-musage=50"], &[&top]);
    assert_eq!(done["state"], "finished");
    ubtrfs(&["filesystem", "resize", "-200M"], &[&top]).ok();
    mount.unmount();
    rig.assert_good(&[0], "smaller");
}

#[test]
fn a_device_of_the_kernels_goes_where_ubtrfs_has_changed_it() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let mut rig = Images::new(3);
    mkfs_btrfs_on(&rig.images(&[0, 1, 2]), &["-d", "raid1", "-m", "raid1c3"]);
    let kernel = KernelMount::new(&rig.images(&[0, 1, 2]), "");
    rig.write(kernel.path(), 1, 60);
    run(command("btrfs", &["balance", "start", "-mconvert=raid1", "-f"]).arg(kernel.path())).ok();
    assert!(kernel.unmount().is_empty());
    // The devices are block devices, which others may have scanned.
    {
        let devices: Vec<LoopDevice> = (0..3).map(|number| LoopDevice::attach(rig.image(number), false)).collect();
        let paths: Vec<&Path> = devices.iter().map(LoopDevice::path).collect();
        let more = [1, 2].map(|number| format!("--device={}", paths[number].display()));
        ubtrfs(&["device", "remove", &more[0], &more[1]], &[paths[1], paths[0]]).ok();
    }
    rig.assert_good(&[0, 2], "removed from block devices");
}

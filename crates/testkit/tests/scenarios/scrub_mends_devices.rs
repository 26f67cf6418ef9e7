//! A device that was damaged, was lost, or came back with old data is brought up to the others
//! (invariant 34), also as the kernel and `btrfs check` see it.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, blank_image, mkfs_btrfs_on};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

const SIZE: u64 = 512 << 20;

fn ubtrfs(arguments: &[&str], places: &[&Path]) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments).args(places))
}

/// Makes files, some of them inline, compressed or without checksums.
fn fill(dir: &Path, seed: u8) {
    let path = dir.join(format!("dir {seed}"));
    std::fs::create_dir(&path).unwrap();
    for number in 0..60_u8 {
        let content = vec![number ^ seed; 1500 * usize::from(number)];
        std::fs::write(path.join(format!("file {number}")), content).unwrap();
    }
}

fn shown(dir: &Path) -> String {
    run(command("sh", &["-c", "cd \"$1\" && find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum", "sh"]).arg(dir))
        .ok()
        .stdout
}

fn scrubbed(places: &[&Path]) -> serde_json::Value {
    serde_json::from_str(&ubtrfs(&["scrub", "start", "--json"], places).ok().stdout).unwrap()
}

fn sum(found: &serde_json::Value, name: &str) -> u64 {
    found.as_array().unwrap().iter().map(|device| device[name].as_u64().unwrap()).sum()
}

fn assert_clean(images: &[&Path]) {
    ubtrfs(&["check"], images).ok();
    let attached: Vec<LoopDevice> = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
    let paths = attached.iter().map(LoopDevice::path);
    run(command("btrfs", &["device", "scan"]).args(paths)).ok();
    assert_btrfs_check_clean(attached[0].path());
}

#[test]
fn devices_are_mended_and_brought_up_to_the_others() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let images: Vec<PathBuf> = (0..3).map(|number| dir.path().join(format!("image{number}"))).collect();
    for image in &images {
        blank_image(image, SIZE);
    }
    let all: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    mkfs_btrfs_on(&all, &["-d", "raid1", "-m", "raid1c3"]);
    let mounted = Subject::ubtrfs().mount(&all, "");
    fill(mounted.path(), 1);
    ubtrfs(&["sync"], &[mounted.path()]).ok();
    // Damages one device while the volume is mounted.
    let damaged = std::fs::OpenOptions::new().write(true).open(&images[1]).unwrap();
    for (start, end) in [(1, 60), (70, 500)] {
        damaged.write_all_at(&vec![0x77; (end - start) << 20], (start << 20) as u64).unwrap();
    }
    let first = scrubbed(&[mounted.path()]);
    assert!(sum(&first, "corrected") > 0 && sum(&first, "uncorrectable") == 0, "{first}");
    let second = scrubbed(&[mounted.path()]);
    assert_eq!(sum(&second, "checksum_errors") + sum(&second, "read_errors"), 0, "{second}");
    assert!(ubtrfs(&["scrub", "cancel"], &[mounted.path()]).stderr.contains("no scrub is running"));
    mounted.unmount();
    assert_clean(&all);
    // The volume changes while one device is away.
    let mounted = Subject::ubtrfs().mount(&[all[0], all[1]], "degraded");
    fill(mounted.path(), 2);
    std::fs::remove_dir_all(mounted.path().join("dir 1")).unwrap();
    let expected = shown(mounted.path());
    let without = ubtrfs(&["scrub", "start", "--json"], &[mounted.path()]);
    assert_eq!(without.code(), Some(4), "{}", without.report());
    let without: serde_json::Value = serde_json::from_str(&without.stdout).unwrap();
    let is_missing: Vec<_> = without.as_array().unwrap().iter().map(|device| device["missing"].clone()).collect();
    assert_eq!((is_missing, sum(&without, "super_errors")), (vec![false.into(), false.into(), true.into()], 0));
    mounted.unmount();
    let refused = Subject::ubtrfs().try_mount(&[all[0], all[1]], "");
    assert!(refused.is_err(), "only with degraded");
    // The device comes back. Its data is too old, and nothing reads it.
    let mounted = Subject::ubtrfs().mount(&all, "");
    assert_eq!(shown(mounted.path()), expected);
    mounted.unmount();
    scrubbed(&all);
    assert_clean(&all);
    for (subject, images) in [(Subject::Kernel, &all[..]), (Subject::ubtrfs(), &[all[2], all[1]])] {
        let mounted = subject.mount(images, if images.len() == 3 { "" } else { "degraded" });
        assert_eq!(shown(mounted.path()), expected, "{}", subject.name());
        mounted.unmount();
    }
}

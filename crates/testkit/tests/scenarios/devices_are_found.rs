//! One device of a volume is named, and ubtrfs finds the others in /dev. Errors name devices that
//! are missing, named twice, or of another volume.

use std::path::{Path, PathBuf};
use std::process::Command;

use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::blank_image;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

/// A volume whose devices are attached.
struct Volume {
    _dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    devices: Vec<LoopDevice>,
}

impl Volume {
    fn make(profile: &str, count: usize) -> Self {
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (0..count).map(|number| dir.path().join(format!("image{number}"))).collect();
        for image in &images {
            blank_image(image, 300 << 20);
        }
        run(command("mkfs.btrfs", &["-q", "-f", "-d", profile, "-m", profile]).args(&images)).ok();
        let devices = images.iter().map(|image| LoopDevice::attach(image, false)).collect();
        Self { _dir: dir, images, devices }
    }

    fn path(&self, number: usize) -> &Path {
        self.devices[number].path()
    }
}

fn ubtrfs(arguments: &[&str], places: &[&Path]) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments).args(places))
}

/// Opens the volume on these devices.
fn list(places: &[&Path]) -> Outcome {
    ubtrfs(&["ls"], &[places, &[Path::new("/")]].concat())
}

fn fails(outcome: &Outcome, words: &[&str]) {
    assert!(!outcome.success(), "{}", outcome.report());
    for word in words {
        assert!(outcome.stderr.contains(word), "{word:?} is not said: {}", outcome.report());
    }
}

#[test]
fn one_device_is_enough_to_name_a_volume() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    for profile in ["raid0", "raid1"] {
        let volume = Volume::make(profile, 3);
        for number in 0..3 {
            let mount = Subject::ubtrfs().mount(&[volume.path(number)], "");
            std::fs::write(mount.path().join(format!("file{number}")), vec![number as u8; 100_000]).unwrap();
            mount.unmount();
        }
        // Calls the mount helper with an entry of fstab, as mount(8) does.
        let mount = scratch_dir();
        let binary = ubtrfs_binary().expect("the ubtrfs binary");
        let helper = mount.path().join("mount.ubtrfs");
        std::os::unix::fs::symlink(&binary, &helper).unwrap();
        let point = mount.path().join("point");
        std::fs::create_dir(&point).unwrap();
        run(Command::new(&helper).args([volume.path(1), &point]).args(["-o", "ro"])).ok();
        let listed = std::fs::read(point.join("file0"));
        ubtrfs(&["umount"], &[&point]).ok();
        assert!(listed.unwrap() == vec![0; 100_000]);
        list(&[volume.path(2)]).ok();
        for command in ["check", "info"] {
            ubtrfs(&[command], &[volume.path(2)]).ok();
        }
        let usage = ubtrfs(&["filesystem", "usage"], &[volume.path(2)]).ok().stdout;
        for number in 0..3 {
            assert!(usage.contains(volume.path(number).to_str().unwrap()), "{usage}");
        }
        // ubtrfs does not search for image files.
        fails(&ubtrfs(&["check", "--no-data"], &[&volume.images[0]]), &["missing"]);
    }
}

#[test]
fn missing_devices_are_described() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let mut volume = Volume::make("raid1", 2);
    let uuid = uuid_of(volume.path(1));
    volume.devices.truncate(1);
    let given = volume.path(0);
    let words = ["2 devices, 1 given", "missing: device 2", &uuid, "300 MiB", "device=PATH", "-o degraded"];
    fails(&Subject::ubtrfs().try_mount(&[given], "").expect_err("one of two"), &words);
    let checked = ubtrfs(&["check", "--no-data"], &[given]);
    assert!(!checked.success() && checked.stdout.contains("device 2 is missing"), "{}", checked.report());
    // What only reads does without it, and says so.
    let listed = list(&[given]).ok();
    assert!(listed.stderr.contains("device 2 of the volume is missing"), "{}", listed.report());
    Subject::ubtrfs().mount(&[given], "degraded").unmount();
    // The other device may be an image.
    let options = format!("device={}", volume.images[1].display());
    Subject::ubtrfs().mount(&[given], &options).unmount();
}

/// An entry of fstab with the UUID of a volume and all of its devices names one of them twice.
#[test]
fn an_option_may_repeat_a_device_that_is_named() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let volume = Volume::make("raid1", 2);
    let link = volume.images[0].with_file_name("link");
    std::os::unix::fs::symlink(volume.path(0), &link).unwrap();
    let all = [&link, volume.path(0), volume.path(1)].map(|path| format!("device={}", path.display())).join(",");
    for subject in [Subject::Kernel, Subject::ubtrfs()] {
        subject.mount(&[volume.path(0)], &all).unmount();
    }
}

fn uuid_of(device: &Path) -> String {
    let shown = run(command("btrfs", &["inspect-internal", "dump-super"]).arg(device)).ok().stdout;
    let line = shown.lines().find(|line| line.starts_with("dev_item.uuid")).expect("the UUID of the device");
    line.split_whitespace().last().expect("a UUID").to_owned()
}

#[test]
fn devices_that_are_not_one_volume_are_refused_by_name() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs);
    let (volume, other) = (Volume::make("raid1", 2), Volume::make("raid1", 2));
    let names = [0, 1].map(|number| volume.path(number).to_str().unwrap().to_owned());
    let twice = [volume.path(0), volume.path(1), volume.path(0)];
    fails(&list(&twice), &[&names[0], "is given twice"]);
    let link = other.images[0].with_file_name("link");
    std::os::unix::fs::symlink(volume.path(0), &link).unwrap();
    fails(&list(&[&link, volume.path(0)]), &["given twice, also as", link.to_str().unwrap()]);
    let foreign = other.path(0).to_str().unwrap();
    // What only reads leaves it out, and says so.
    let listed = list(&[volume.path(0), other.path(0)]).ok();
    assert!(listed.stderr.contains(&format!("{foreign} is left out: it is of another volume")), "{}", listed.report());
    // A copy of a device is named, or found beside the original.
    let copy = volume.images[1].with_file_name("copy");
    std::fs::copy(&volume.images[1], &copy).unwrap();
    let copy = LoopDevice::attach(&copy, false);
    let both = [&names[1], copy.path().to_str().unwrap()];
    let say = "both say they are device 2";
    fails(&list(&[volume.path(0), volume.path(1), copy.path()]), &[say, both[0], both[1]]);
    fails(&list(&[volume.path(0)]), &["both say that they are device 2", both[0], both[1]]);
    list(&[volume.path(0), volume.path(1)]).ok();
    list(&[volume.path(0), copy.path()]).ok();
    // A device that belonged to another volume before.
    let stale = volume.images[1].with_file_name("stale");
    std::fs::copy(&volume.images[0], &stale).unwrap();
    drop(copy);
    let stale = LoopDevice::attach(&stale, false);
    list(&[volume.path(0)]).ok();
    drop(stale);
}

//! Tests that block devices, their partitions, and images that the kernel has mounted have only one
//! writer each.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::NOBODY;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume, cat, fails, ubtrfs};

/// A partition of a loop device; it is removed on drop.
struct Partition<'a> {
    disk: &'a LoopDevice,
    number: u32,
    path: PathBuf,
}

impl<'a> Partition<'a> {
    /// Adds a partition to a disk. Its start and length are in MiB.
    fn add(disk: &'a LoopDevice, number: u32, start: u64, length: u64) -> Self {
        let sectors = [start, length].map(|mib| (mib << 11).to_string());
        let number_text = number.to_string();
        run(command("addpart", &[disk.path().as_os_str(), number_text.as_ref()]).args(sectors)).ok();
        Self { disk, number, path: format!("{}p{number}", disk.path().display()).into() }
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        run(command("delpart", &[self.disk.path()]).arg(self.number.to_string()));
    }
}

fn on<'a>(words: &[&'a str], device: &'a Path) -> Outcome {
    let words = words.iter().map(AsRef::<OsStr>::as_ref);
    ubtrfs(&words.chain([device.as_os_str()]).collect::<Vec<_>>())
}

/// Two servers that write to one volume would destroy it.
#[test]
fn a_partition_of_a_loop_device_and_its_image_have_one_server() {
    require!(Need::Kernel, FUSE, Need::Tool("addpart"));
    let volume = Volume::without_image();
    fs::File::create(&volume.image).unwrap().set_len(300 << 20).unwrap();
    let disk = LoopDevice::attach(&volume.image, false);
    let first = Partition::add(&disk, 1, 1, 128);
    let second = Partition::add(&disk, 2, 129, 128);
    on(&["mkfs"], &first.path).ok();
    on(&["mkfs"], &second.path).ok();
    volume.mount("offset=1M,sizelimit=128M");
    let other = Volume::without_image();
    fails(&other.try_mount_device(&first.path, ""), "in use by another program");
    fails(&on(&["mkfs", "-f"], &first.path), "in use by another program");
    volume.umount();
    // The other order, and both partitions together.
    other.try_mount_device(&first.path, "").ok();
    let both = Volume::without_image();
    both.try_mount_device(&second.path, "").ok();
    fails(&volume.try_mount("offset=1M,sizelimit=128M"), "in use by another program");
    fs::write(other.point.join("file"), "first").unwrap();
    fs::write(both.point.join("file"), "second").unwrap();
    other.umount();
    both.umount();
    assert_eq!((cat(&first.path, "/file"), cat(&second.path, "/file")), ("first".into(), "second".into()));
    on(&["check"], &first.path).ok();
    on(&["check"], &second.path).ok();
}

#[test]
fn every_command_that_writes_takes_a_block_device() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::without_image();
    fs::File::create(&volume.image).unwrap().set_len(128 << 20).unwrap();
    let device = LoopDevice::attach(&volume.image, false);
    let device = device.path();
    on(&["mkfs"], device).ok();
    ubtrfs(&["label".as_ref(), device.as_os_str(), "named".as_ref()]).ok();
    assert_eq!(on(&["label"], device).ok().stdout, "named\n");
    assert!(on(&["rescue", "zero-log"], device).ok().stdout.contains("there is no log"));
    assert!(on(&["rescue", "super-recover"], device).ok().stdout.contains("nothing was changed"));
    let writing = fs::OpenOptions::new().write(true).open(device).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&writing, &[0; 4096], 64 << 10).unwrap();
    writing.sync_all().unwrap();
    drop(writing);
    on(&["rescue", "super-recover", "--yes"], device).ok();
    // A bad copy is corrected.
    let writing = fs::OpenOptions::new().write(true).open(device).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&writing, &[0; 4096], 64 << 20).unwrap();
    writing.sync_all().unwrap();
    drop(writing);
    assert_eq!(on(&["check"], device).code(), Some(1));
    on(&["check", "--repair", "--yes"], device).ok();
    on(&["check"], device).ok();
}

/// Runs in a mount namespace of its own: `$1` is the command, `$2` the image, `$3` a directory,
/// `$4` another volume, of [`NOBODY`], `$5` another directory, of that user, `$6` its final device.
const FOOLED: &str = r#"
    set -e
    cp -a /dev/fuse "$3/fuse"
    chmod 666 "$3/fuse"
    mount --bind "$3/fuse" /dev/fuse
    mkdir "$3/kernel"
    loop=$(losetup -f --show "$2")
    trap 'umount "$5" || true; umount "$3/kernel" || true; losetup -d $loop' EXIT
    mount -t btrfs $loop "$3/kernel"
    setpriv --reuid=65534 --regid=65534 --clear-groups "$1" mount -o fsname=$loop "$4" "$5"
    grep -q "^$loop $5 fuse.ubtrfs" /proc/self/mounts
    "$1" label "$2" fooled && exit 7
    "$1" mkfs -f "$2" && exit 8
    exit 0
"#;

/// A user's mount may claim the name of any device.
#[test]
fn a_mount_that_calls_itself_by_a_device_hides_nothing() {
    require!(Need::Kernel, FUSE, Need::Tool("setpriv"), Need::Tool("fusermount3"));
    let volume = Volume::new();
    let users = Volume::new();
    for path in [users.dir.path(), &users.image, &users.point] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let binary = users.dir.path().join("ubtrfs");
    fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &binary).unwrap();
    fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    let mut line = command("unshare", &["--mount", "--propagation", "private", "sh", "-c", FOOLED, "sh"]);
    line.args([&binary, &volume.image]).arg(volume.dir.path()).args([&users.image, &users.point]);
    let outcome = run(&mut line);
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    assert_eq!(
        outcome.stderr.matches("is mounted by the kernel, through /dev/loop").count(),
        2,
        "{}",
        outcome.report()
    );
}

/// Runs in a mount namespace of its own: `$1` is the command, `$2` the image, `$3` a directory.
const NO_NODES: &str = r#"
    set -e
    mkdir "$3/kernel"
    loop=$(losetup -f --show "$2")
    trap 'umount /dev; umount "$3/kernel" || true; losetup -d $loop' EXIT
    test -z "$4" || mount -t btrfs $loop "$3/kernel"
    mount -t tmpfs none /dev
    mknod /dev/null c 1 3
    mknod /dev/urandom c 1 9
    "$1" label "$2" fooled && exit 7
    "$1" mkfs -f "$2" && exit 8
    exit 0
"#;

/// Containers and chroots may lack device nodes.
#[test]
fn a_device_without_a_node_is_found() {
    require!(Need::Kernel);
    for (mounts, words) in [("yes", "is mounted by the kernel, through"), ("", "which can't be asked whether")] {
        let volume = Volume::new();
        let mut line = command("unshare", &["--mount", "--propagation", "private", "sh", "-c", NO_NODES, "sh"]);
        line.arg(env!("CARGO_BIN_EXE_ubtrfs")).arg(&volume.image).arg(volume.dir.path()).arg(mounts);
        let outcome = run(&mut line);
        assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
        assert_eq!(outcome.stderr.matches(words).count(), 2, "{}", outcome.report());
    }
}

/// sysfs shows ordinary users the path of a device's file. That file may not exist, or be in a
/// directory that they may not search.
#[test]
fn a_file_that_may_be_behind_a_device_is_not_written_to() {
    require!(Need::Kernel, Need::Tool("setpriv"));
    // The images of other tests don't have this size; otherwise these tests would be refused.
    let volume = Volume::without_image();
    on(&["mkfs", "--size", "211M"], &volume.image).ok();
    fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    chown(&volume.image, Some(NOBODY), Some(NOBODY)).unwrap();
    let binary = volume.dir.path().join("ubtrfs");
    fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &binary).unwrap();
    fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    let as_user = |arguments: &[&str]| {
        let mut line = command("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups"]);
        run(line.arg(&binary).args(arguments).arg(&volume.image))
    };
    let private = volume.dir.path().join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, PermissionsExt::from_mode(0o700)).unwrap();
    let hidden = private.join("image");
    fs::hard_link(&volume.image, &hidden).unwrap();
    let device = LoopDevice::attach(&hidden, false);
    fails(&as_user(&["mkfs", "-f"]), "has a file that can't be looked at");
    drop(device);
    // A file without any name is not the one that now has the name.
    let other = private.join("other");
    fs::File::create(&other).unwrap().set_len(211 << 20).unwrap();
    fs::remove_file(&hidden).unwrap();
    let device = LoopDevice::attach(&other, false);
    as_user(&["mkfs", "-f"]).ok();
    drop(device);
    let removed = volume.dir.path().join("removed");
    fs::hard_link(&volume.image, &removed).unwrap();
    let device = LoopDevice::attach(&removed, false);
    fs::remove_file(&removed).unwrap();
    fails(&as_user(&["mkfs", "-f"]), "has a file that can't be looked at");
    as_user(&["check"]).ok();
    drop(device);
    // A file of another size can't be the one behind the device.
    let other = volume.dir.path().join("other");
    fs::File::create(&other).unwrap().set_len(212 << 20).unwrap();
    let device = LoopDevice::attach(&other, false);
    fs::remove_file(&other).unwrap();
    as_user(&["mkfs", "-f"]).ok();
    drop(device);
}

/// A mirrored volume of two devices, one of which was away while another device was added to the
/// volume.
struct Comeback {
    volume: Volume,
    stayed: LoopDevice,
    came_back: LoopDevice,
    new: LoopDevice,
}

impl Comeback {
    /// Makes the volume. `change` gets the device that is new, and the mount.
    fn after(change: fn(&Path, &Path)) -> Self {
        let volume = Volume::without_image();
        let [first, second, third] = ["first", "second", "third"].map(|name| volume.dir.path().join(name));
        let attach = |image: &Path| {
            fs::OpenOptions::new().append(true).create(true).open(image).unwrap().set_len(256 << 20).unwrap();
            LoopDevice::attach(image, false)
        };
        let (stayed, away, new) = (attach(&first), attach(&second), attach(&third));
        let mut mkfs: Vec<&OsStr> = ["mkfs", "-d", "raid1", "-m", "raid1"].iter().map(AsRef::as_ref).collect();
        mkfs.extend([stayed.path().as_os_str(), away.path().as_os_str()]);
        ubtrfs(&mkfs).ok();
        drop(away);
        volume.try_mount_device(stayed.path(), "degraded").ok();
        fs::write(volume.point.join("file"), "new").unwrap();
        change(new.path(), &volume.point);
        volume.umount();
        Self { volume, stayed, came_back: attach(&second), new }
    }

    /// Returns the content of the file, on a mount of these devices.
    fn shown(&self, devices: &[&LoopDevice], options: &str) -> String {
        let more = devices[1..].iter().map(|device| format!(",device={}", device.path().display()));
        let options = format!("{options}{}", more.collect::<String>());
        self.volume.try_mount_device(devices[0].path(), &options).ok();
        let shown = fs::read_to_string(self.volume.point.join("file")).unwrap();
        self.volume.umount();
        shown
    }
}

#[test]
fn a_volume_is_mounted_by_a_device_that_it_has_no_more() {
    require!(Need::Kernel, FUSE);
    let comeback = Comeback::after(|new, mount| {
        ubtrfs(&["device".as_ref(), "add".as_ref(), new.as_os_str(), mount.as_os_str()]).ok();
        on(&["device", "remove", "missing"], mount).ok();
    });
    let Comeback { volume, stayed, came_back, new } = &comeback;
    for options in ["ro", "rw"] {
        for devices in [&[came_back][..], &[stayed, came_back], &[new, came_back], &[stayed], &[new, stayed, came_back]]
        {
            assert_eq!(comeback.shown(devices, options), "new", "{options}");
        }
    }
    // The device is up to date again.
    assert!(!on(&["info"], came_back.path()).ok().stdout.contains("lacks"));
    ubtrfs(&["check".as_ref(), stayed.path().as_os_str(), new.path().as_os_str()]).ok();
    let kernel = volume.dir.path().join("kernel");
    fs::create_dir(&kernel).unwrap();
    run(command("btrfs", &["device", "scan"]).args([stayed.path(), came_back.path(), new.path()])).ok();
    run(command("mount", &["-t", "btrfs", "-o", "ro"]).arg(came_back.path()).arg(&kernel)).ok();
    let shown = fs::read_to_string(kernel.join("file"));
    run(&mut command("umount", &[&kernel])).ok();
    assert_eq!(shown.unwrap(), "new");
}

#[test]
fn a_device_that_was_replaced_takes_no_place_of_the_new_one() {
    require!(Need::Kernel, FUSE);
    let comeback = Comeback::after(|new, mount| {
        let words: [&OsStr; 4] = ["replace".as_ref(), "start".as_ref(), "2".as_ref(), new.as_os_str()];
        ubtrfs(&words.into_iter().chain([mount.as_os_str()]).collect::<Vec<_>>()).ok();
    });
    let Comeback { volume, stayed, came_back, new } = &comeback;
    for options in ["ro", "rw"] {
        for device in [came_back, stayed] {
            fails(&volume.try_mount_device(device.path(), options), "both say that they are device 2 of the volume");
        }
        assert_eq!(comeback.shown(&[new], options), "new");
        assert_eq!(comeback.shown(&[stayed, new], options), "new");
        assert_eq!(comeback.shown(&[came_back, stayed, new], options), "new");
    }
    ubtrfs(&["check".as_ref(), stayed.path().as_os_str(), new.path().as_os_str()]).ok();
}

/// The file is emptied before it becomes a device: nothing of it is read as part of the volume.
#[test]
fn files_with_data_become_devices_of_a_mount_only_by_force() {
    require!(FUSE);
    let volume = Volume::new();
    volume.mount("");
    let place = volume.point.as_os_str();
    let new = volume.dir.path().join("new");
    for words in [&["device", "add"][..], &["replace", "start", "1"]] {
        fs::write(&new, vec![0x5a; 256 << 20]).unwrap();
        let line = |force: &[&str]| {
            let options = words.iter().chain(force).map(OsStr::new);
            ubtrfs(&options.chain([new.as_os_str(), place]).collect::<Vec<_>>())
        };
        fails(&line(&[]), "holds data that is no file system: -f overwrites it");
        assert!(fs::read(&new).unwrap().iter().all(|byte| *byte == 0x5a), "{words:?}");
        line(&["-f"]).ok();
        let left = fs::read(&new).unwrap().chunks(4096).filter(|block| block.iter().all(|byte| *byte == 0x5a)).count();
        assert_eq!(left, 0, "{words:?}");
        if words[0] == "device" {
            on(&["device", "remove", "2"], &volume.point).ok();
            fs::remove_file(&new).unwrap();
        }
    }
    volume.umount();
    on(&["check"], &new).ok();
}

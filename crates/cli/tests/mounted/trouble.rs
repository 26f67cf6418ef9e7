//! Tests with devices that fail while they are mounted.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, fails, ubtrfs};

/// A small tmpfs, which is unmounted at the end.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn new(point: &'a Path, size: &str) -> Self {
        fs::create_dir(point).unwrap();
        run(command("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "small"]).arg(point)).ok();
        Self(point)
    }

    fn resize(&self, size: &str) {
        run(command("mount", &["-o", &format!("remount,size={size}")]).arg(self.0)).ok();
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        run(command("umount", &["-l"]).arg(self.0));
    }
}

/// Mounts an image of 1 GiB that is on a file system of 24 MiB, at `below`.
fn mounted_from_small_disk<'a>(volume: &mut Volume, below: &'a Path) -> SmallDisk<'a> {
    let disk = SmallDisk::new(below, "24M");
    volume.image = below.join("image");
    ubtrfs(&["mkfs".as_ref(), "--size".as_ref(), "1G".as_ref(), volume.image.as_os_str()]).ok();
    volume.mount("commit=1000");
    disk
}

/// Returns so many bytes that can't be compressed.
fn noise(len: u32) -> Vec<u8> {
    (0..len).map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect()
}

#[test]
fn a_file_system_that_fills_up_under_a_sparse_image_loses_nothing_durable() {
    require!(Need::Root, FUSE);
    let mut volume = Volume::without_image();
    let below = volume.dir.path().join("below");
    let disk = mounted_from_small_disk(&mut volume, &below);
    let durable: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(volume.point.join("durable"), &durable).unwrap();
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();

    let mut file = fs::File::create(volume.point.join("large")).unwrap();
    let noise = noise(1 << 18);
    let mut failed = false;
    for _ in 0..256 {
        failed |= file.write_all(&noise).is_err();
    }
    failed |= file.sync_all().is_err();
    assert!(failed, "64 MiB do not fit 24");
    drop(file);
    // The error is reported, whether the volume can still be read or not, and the mount can be
    // ended.
    let outcome = volume.try_umount();
    assert!(!volume.is_mounted(), "{}", outcome.report());
    assert!(outcome.success() || outcome.stderr.lines().count() == 1, "{}", outcome.report());
    assert!(!outcome.stderr.contains("os error"), "{}", outcome.report());

    disk.resize("256M");
    volume.check();
    volume.mount("");
    assert!(fs::read(volume.point.join("durable")).unwrap() == durable);
    fs::write(volume.point.join("more"), &noise).unwrap();
    volume.umount();
    volume.check();
}

#[test]
fn stats_name_the_step_the_device_and_the_place_of_a_write_that_failed() {
    require!(Need::Root, FUSE);
    let mut volume = Volume::without_image();
    let below = volume.dir.path().join("below");
    let _disk = mounted_from_small_disk(&mut volume, &below);
    let stats = volume.stats();
    assert_eq!((&stats["errors"], &stats["last_errors"]), (&0.into(), &serde_json::json!([])));
    // More bytes than the file system below has room for.
    let noise = noise(1 << 25);
    let mut file = fs::File::create(volume.point.join("large")).unwrap();
    let written = file.write_all(&noise).and_then(|()| file.sync_all());
    assert!(written.is_err(), "32 MiB do not fit 24");
    drop(file);

    let stats = volume.stats();
    let error = stats["last_errors"].as_array().unwrap().first().unwrap();
    let number = |name: &str| error[name].as_u64().unwrap_or_else(|| panic!("{name}: {error}"));
    assert_eq!((number("device"), &stats["read_only"]), (1, &true.into()));
    assert!(number("physical") < 1 << 30 && number("logical") > 0 && number("length") > 0, "{error}");
    let (step, cause) = (error["step"].as_str().unwrap(), error["cause"].as_str().unwrap());
    assert!(step.starts_with("writing data of inode 257"), "{step}");
    let place = format!("device 1: writing {} bytes at {}", number("length"), number("physical"));
    assert!(cause.starts_with(&place) && cause.ends_with(": No space left on device"), "{cause}");
    assert_eq!(stats["aborted"], format!("{step}: {cause}"));
    let text = ubtrfs(&["stats".as_ref(), volume.point.as_os_str()]).ok().stdout;
    for (name, value) in [("step", step), ("cause", cause), ("time", " UTC")] {
        let line = text.lines().find(|line| line.starts_with(&format!("last_errors.1.{name} ")));
        assert!(line.is_some_and(|line| line.ends_with(value)), "{name}: {text}");
    }
    fails(&volume.try_umount(), &place);
}

/// Returns the options of the file system in the mount table, without those of the mount.
fn shown(volume: &Volume) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = format!(" {} ", volume.point.display());
    let line = table.lines().find(|line| line.contains(&point)).unwrap();
    line.rsplit(' ').next().unwrap().split(',').next().unwrap().into()
}

#[track_caller]
fn becomes(volume: &Volume, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while shown(volume) != wanted {
        assert!(Instant::now() < deadline, "it is shown as {}", shown(volume));
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_mount_that_turned_read_only_is_shown_so_and_stays_so() {
    require!(Need::Root, FUSE);
    let mut volume = Volume::without_image();
    let below = volume.dir.path().join("below");
    let _disk = mounted_from_small_disk(&mut volume, &below);
    fs::write(volume.point.join("small"), "small").unwrap();
    let noise = noise(1 << 25);
    let mut file = fs::File::create(volume.point.join("large")).unwrap();
    assert!(file.write_all(&noise).and_then(|()| file.sync_all()).is_err(), "32 MiB do not fit 24");
    // Nobody can remount it read-only while this file is open for writing, but nothing is written.
    let errors = [
        file.sync_all(),
        fs::write(volume.point.join("other"), "other"),
        fs::create_dir(volume.point.join("dir")),
        fs::remove_file(volume.point.join("small")),
        fs::set_permissions(volume.point.join("small"), PermissionsExt::from_mode(0o600)),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert!(matches!(error.raw_os_error(), Some(libc::EROFS | libc::EIO)), "{error}");
    }
    drop(file);
    becomes(&volume, "ro");
    assert_eq!(access(volume.point.join("small"), Access::WRITE_OK), Err(Errno::ROFS));
    let opened = OpenOptions::new().write(true).open(volume.point.join("small"));
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EROFS));

    let remount =
        |options: &str| ubtrfs(&["mount".as_ref(), "-o".as_ref(), options.as_ref(), volume.point.as_os_str()]);
    let reason = volume.stats()["aborted"].as_str().unwrap().to_owned();
    fails(&remount("remount,rw"), &format!("turned read-only after an error and stays so: {reason}"));
    assert_eq!(shown(&volume), "ro");
    remount("remount,ro").ok();
    // Without a helper the kernel alone decides, and the server undoes it.
    run(command("mount", &["-i", "-o", "remount,rw"]).arg(&volume.point)).ok();
    becomes(&volume, "ro");
    fails(&volume.try_umount(), "had turned read-only after an error");
}

#[test]
fn data_that_is_wrong_on_the_device_is_an_error_and_the_rest_is_not() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let content: Vec<u8> = b"a page that can be found again. ".repeat(256);
    fs::write(volume.point.join("bad"), &content).unwrap();
    fs::write(volume.point.join("good"), "good").unwrap();
    volume.umount();
    let bytes = fs::read(&volume.image).unwrap();
    let at = (0..bytes.len()).step_by(4096).find(|at| bytes[*at..].starts_with(&content)).unwrap();
    OpenOptions::new().write(true).open(&volume.image).unwrap().write_all_at(b"A", at as u64).unwrap();
    volume.mount("");
    let error = fs::read(volume.point.join("bad")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(fs::read_to_string(volume.point.join("good")).unwrap(), "good");
    assert!(volume.stats()["checksum_errors"].as_u64() >= Some(1));
    volume.umount();
    let check = ubtrfs(&["check".as_ref(), volume.image.as_os_str()]);
    assert_eq!(check.code(), Some(1), "{}", check.report());
    ubtrfs(&["check".as_ref(), "--no-data".as_ref(), volume.image.as_os_str()]).ok();
}

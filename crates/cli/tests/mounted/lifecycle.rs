//! Tests of a mount from its start to its end, without errors.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::in_private_namespace;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, OVER_RINGS, Volume, cat, fails, ubtrfs};

/// Returns the volume's line in the mount table.
fn mount_line(volume: &Volume) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = format!(" {} ", volume.point.display());
    table.lines().find(|line| line.contains(&point)).unwrap().to_owned()
}

#[test]
fn written_data_is_there_for_the_kernel_after_umount() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("");
    assert!(mount_line(&volume).contains(" - fuseblk.ubtrfs "), "{}", mount_line(&volume));
    fs::create_dir(volume.point.join("dir")).unwrap();
    fs::write(volume.point.join("dir/file"), "content").unwrap();
    volume.umount();
    // The image is not in use, and its contents are complete.
    rustix::fs::flock(File::open(&volume.image).unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(cat(&volume.image, "/dir/file"), "content");
    assert_btrfs_check_clean(&volume.image);
    let kernel = KernelMount::new(&[&volume.image], "");
    assert_eq!(fs::read_to_string(kernel.path().join("dir/file")).unwrap(), "content");
    assert_eq!(kernel.unmount(), Vec::<String>::new());
}

#[test]
fn a_mount_outlives_the_terminal_that_it_was_made_in() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    let (program, image, point) = (env!("CARGO_BIN_EXE_ubtrfs"), volume.image.display(), volume.point.display());
    let mount = format!("{program} mount {image} {point}");
    // A session of its own on its own terminal, which hangs up when the command ends.
    run(&mut command("script", &["--quiet", "--return", "--command", &mount, "/dev/null"])).ok();
    thread::sleep(Duration::from_millis(300));
    fs::write(volume.point.join("file"), "content").unwrap();
    volume.umount();
    assert_eq!(cat(&volume.image, "/file"), "content");
}

#[test]
fn a_block_device_is_mounted_and_freed() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    let device = LoopDevice::attach(&volume.image, false);
    volume.try_mount_device(device.path(), "").ok();
    fs::write(volume.point.join("file"), "content").unwrap();
    fails(&ubtrfs(&["mkfs".as_ref(), "-f".as_ref(), device.path().as_os_str()]), "in use by another program");
    let check = ubtrfs(&["check".as_ref(), device.path().as_os_str()]);
    assert_eq!(check.code(), Some(2), "{}", check.report());
    volume.umount();
    assert_eq!(cat(device.path(), "/file"), "content");
}

#[test]
fn a_device_that_the_kernel_has_mounted_is_refused() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    let device = LoopDevice::attach(&volume.image, false);
    let point = volume.dir.path().join("kernel");
    fs::create_dir(&point).unwrap();
    run(command("mount", &["-t", "btrfs"]).arg(device.path()).arg(&point)).ok();
    let refused = volume.try_mount_device(device.path(), "");
    // Nor can the image be used, to which the device belongs.
    let below = ["", "ro"].map(|options| volume.try_mount(options));
    let made = ubtrfs(&["mkfs".as_ref(), "-f".as_ref(), volume.image.as_os_str()]);
    let check = ubtrfs(&["check".as_ref(), volume.image.as_os_str()]);
    run(&mut command("umount", &[&point])).ok();
    fails(&refused, "in use by another program");
    for refused in [&below[0], &below[1], &made] {
        fails(refused, "is mounted by the kernel, through /dev/loop");
    }
    assert_eq!(check.code(), Some(2), "{}", check.report());
    device.wait_until_free();
    // A device that is attached but not mounted may be used.
    volume.check();
}

/// Runs in a mount namespace of its own: `$1` is the image, `$2` a directory.
const UNSEEN: &str = r#"
    set -e
    mount -t btrfs -o loop "$1" "$2"
    echo mounted
    read line || true
    umount "$2"
"#;

#[test]
fn an_image_that_is_mounted_in_another_mount_namespace_is_refused() {
    require!(Need::Kernel, FUSE, Need::Tool("unshare"));
    let volume = Volume::new();
    let point = volume.dir.path().join("kernel");
    fs::create_dir(&point).unwrap();
    let mut kernel = in_private_namespace(volume.dir.path());
    kernel.args(["sh", "-c", UNSEEN, "sh"]).args([&volume.image, &point]);
    let kernel = kernel.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut kernel = kernel.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(kernel.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "mounted\n");
    let image = volume.image.as_os_str();
    let attempts: [&[&OsStr]; 4] = [
        &["mkfs".as_ref(), "-f".as_ref(), image],
        &["check".as_ref(), image],
        &["check".as_ref(), "--repair".as_ref(), "--yes".as_ref(), image],
        &["mount".as_ref(), "-o".as_ref(), "ro".as_ref(), image, volume.point.as_os_str()],
    ];
    let mut refused: Vec<_> = attempts.iter().map(|attempt| ubtrfs(attempt)).collect();
    refused.push(volume.try_mount(""));
    let other = LoopDevice::attach(&volume.image, false);
    let through_another = volume.try_mount_device(other.path(), "");
    drop(other);
    drop(kernel.stdin.take());
    assert!(kernel.wait().unwrap().success());
    for refused in refused.iter().chain([&through_another]) {
        let said = &refused.stderr;
        assert!(!refused.success() && said.contains("in another mount namespace"), "{}", refused.report());
    }
    // Once it is unmounted there, the image can be used.
    volume.mount("");
    volume.umount();
}

/// Only root can ask whether a loop device is mounted.
#[test]
fn an_image_that_may_be_mounted_invisibly_is_not_written_to() {
    require!(Need::Kernel, Need::Tool("setpriv"));
    let volume = Volume::new();
    fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&volume.image, Some(65534), Some(65534)).unwrap();
    let binary = volume.dir.path().join("ubtrfs");
    fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &binary).unwrap();
    fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    let as_user = |arguments: &[&str]| {
        let mut line = command("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups"]);
        run(line.arg(&binary).args(arguments).arg(&volume.image))
    };
    let device = LoopDevice::attach(&volume.image, false);
    fails(&as_user(&["mkfs", "-f"]), "only root can find out whether that is mounted");
    as_user(&["check"]).ok();
    drop(device);
    as_user(&["mkfs", "-f"]).ok();
}

#[test]
fn a_write_protected_block_device_is_mounted_read_only_alone() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    let device = LoopDevice::attach(&volume.image, true);
    fails(&volume.try_mount_device(device.path(), ""), "write-protected");
    fails(&ubtrfs(&["mkfs".as_ref(), "-f".as_ref(), device.path().as_os_str()]), "write-protected");
    volume.try_mount_device(device.path(), "ro").ok();
    volume.umount();
}

#[test]
fn an_interval_beyond_all_time_is_none() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    let mounted = volume.try_mount("commit=18446744073709551615").ok();
    assert_eq!(mounted.stderr, "");
    fs::write(volume.point.join("file"), "content").unwrap();
    volume.umount();
    assert_eq!(cat(&volume.image, "/file"), "content");
}

#[test]
fn options_do_what_they_say() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=7,fsname=a name,threads=3,noexec,dev,suid,noatime");
    let line = mount_line(&volume);
    assert!(line.contains("noexec") && line.contains("noatime"), "{line}");
    assert!(!line.contains("nodev") && !line.contains("nosuid"), "{line}");
    assert!(line.contains("allow_other") && line.contains("default_permissions"), "{line}");
    let stats = volume.stats();
    assert_eq!((&stats["commit_interval_seconds"], &stats["threads"]), (&7.into(), &3.into()));
    volume.umount();

    volume.mount("noallow_other");
    let line = mount_line(&volume);
    assert!(line.contains("nodev") && line.contains("nosuid") && !line.contains("allow_other"), "{line}");
    volume.umount();
}

#[test]
fn requests_arrive_as_they_shall() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    fails(&volume.try_mount("transport=pigeon"), "auto, ring or dev");
    // If rings are available they are used, also without the option.
    let (options, transport) = if OVER_RINGS { ("transport=auto", "io_uring") } else { ("transport=dev", "/dev/fuse") };
    volume.mount(options);
    let stats = volume.stats();
    assert_eq!((&stats["transport"], &stats["transport_fallback"]), (&transport.into(), &serde_json::Value::Null));
    volume.umount();
}

#[test]
fn files_are_read_ahead_as_far_as_by_the_kernels_driver() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let line = mount_line(&volume);
    let number = line.split(' ').nth(2).unwrap();
    let read_ahead = fs::read_to_string(format!("/sys/class/bdi/{number}-fuseblk/read_ahead_kb")).unwrap();
    assert_eq!(read_ahead.trim(), "4096");
    volume.umount();
}

#[test]
fn a_read_only_mount_writes_nothing() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    fs::write(volume.point.join("file"), "content").unwrap();
    volume.umount();
    let before = fs::read(&volume.image).unwrap();
    volume.mount("ro");
    assert_eq!(fs::read_to_string(volume.point.join("file")).unwrap(), "content");
    let refused = fs::write(volume.point.join("other"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(volume.stats()["read_only"], true);
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    volume.umount();
    assert!(fs::read(&volume.image).unwrap() == before);
}

#[test]
fn sync_makes_durable_and_stats_count() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("file"), "content").unwrap();
    let before = volume.stats();
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    // The image now has the state that a crash would leave.
    let copy = volume.dir.path().join("copy");
    fs::copy(&volume.image, &copy).unwrap();
    assert_eq!(cat(&copy, "/file"), "content");
    let after = volume.stats();
    assert!(after["commits"].as_u64() > before["commits"].as_u64(), "{after}");
    assert!(after["requests"]["write"].as_u64() >= Some(1), "{after}");
    let text = ubtrfs(&["stats".as_ref(), volume.point.as_os_str()]).ok().stdout;
    assert!(text.lines().any(|line| line.starts_with("mount_type") && line.ends_with("fuseblk")), "{text}");
    // Every file has them, and no list contains them.
    let list = run(command("getfattr", &["-d", "-m", "-"]).arg(volume.point.join("file")));
    assert!(!list.stdout.contains("ubtrfs."), "{}", list.report());
    volume.umount();
}

#[test]
fn sync_of_the_system_reaches_a_fuseblk_mount() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("file"), "content").unwrap();
    run(command("sync", &["-f"]).arg(&volume.point)).ok();
    let copy = volume.dir.path().join("copy");
    fs::copy(&volume.image, &copy).unwrap();
    assert_eq!(cat(&copy, "/file"), "content");
    volume.umount();
}

#[test]
fn subvolumes_are_found_and_numbered() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    let kernel = KernelMount::new(&[&volume.image], "");
    let subvolume = kernel.path().join("sub");
    run(command("btrfs", &["subvolume", "create"]).arg(&subvolume)).ok();
    fs::write(subvolume.join("inner"), "content").unwrap();
    let number = fs::metadata(subvolume.join("inner")).unwrap().ino();
    drop(kernel);
    volume.mount("");
    let seen = fs::metadata(volume.point.join("sub/inner")).unwrap();
    assert_eq!(seen.ino() & 0xfff, number);
    assert_eq!(seen.ino() >> 31, 1, "{:#x}", seen.ino());
    let error = fs::rename(volume.point.join("sub/inner"), volume.point.join("outer")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::CrossesDevices);
    volume.umount();
    volume.mount("subvol=/sub");
    let seen = fs::metadata(volume.point.join("inner")).unwrap();
    assert_eq!((seen.ino(), seen.permissions().mode() & 0o777), (number, 0o644));
    assert_eq!(fs::metadata(&volume.point).unwrap().ino(), 256);
    volume.umount();
}

#[test]
fn a_mount_in_the_foreground_serves_until_it_is_unmounted() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_ubtrfs"))
        .args(["mount", "-f"])
        .args([&volume.image, &volume.point])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !volume.is_mounted() {
        assert!(Instant::now() < deadline && server.try_wait().unwrap().is_none(), "it does not mount");
        thread::sleep(Duration::from_millis(20));
    }
    fs::write(volume.point.join("file"), "content").unwrap();
    volume.umount();
    let output = server.wait().unwrap();
    assert!(output.success());
    assert_eq!(cat(&volume.image, "/file"), "content");
}

//! Tests of the changes that `mount -o remount` makes to a mount, and those that it refuses.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::thread;
use std::time::Duration;

use ubtrfs_format::ioctl::REMOUNT;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume, cat, fails, ubtrfs};
use crate::users_mount::UsersMount;

fn remount(volume: &Volume, options: &str) -> Outcome {
    let options = format!("remount,{options}");
    ubtrfs(&["mount".as_ref(), "-o".as_ref(), options.as_ref(), volume.point.as_os_str()])
}

#[test]
fn data_from_before_a_remount_to_read_only_is_durable_and_nothing_is_written_after_it() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1");
    let file = volume.point.join("file");
    fs::write(&file, "before").unwrap();
    // The space of the file is freed in the background.
    fs::write(volume.point.join("large"), vec![7; 32 << 20]).unwrap();
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    fs::remove_file(volume.point.join("large")).unwrap();
    remount(&volume, "ro").ok();
    let written = fs::read(&volume.image).unwrap();
    assert!(fs::write(&file, "refused").is_err() && fs::create_dir(volume.point.join("dir")).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    assert_eq!(volume.stats()["read_only"], true);
    thread::sleep(Duration::from_millis(1500));
    assert!(written == fs::read(&volume.image).unwrap(), "a read-only mount writes");
    let copy = volume.dir.path().join("copy");
    fs::write(&copy, &written).unwrap();
    assert_eq!(cat(&copy, "/file"), "before");

    remount(&volume, "rw").ok();
    fs::write(&file, "after").unwrap();
    remount(&volume, "ro").ok();
    remount(&volume, "rw").ok();
    fs::write(volume.point.join("more"), "more").unwrap();
    volume.umount();
    volume.check();
    let kernel = KernelMount::new(&[&volume.image], "");
    assert_eq!(fs::read_to_string(kernel.path().join("file")).unwrap(), "after");
    assert_eq!(fs::read_to_string(kernel.path().join("more")).unwrap(), "more");
    assert_eq!(kernel.unmount(), Vec::<String>::new());
}

#[test]
fn a_mount_that_is_unmounted_read_only_has_lost_nothing() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("file"), "content").unwrap();
    remount(&volume, "ro").ok();
    volume.umount();
    assert_eq!(cat(&volume.image, "/file"), "content");
    volume.check();
}

#[test]
fn a_file_that_is_open_for_writing_prevents_a_remount_and_its_writer_continues() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let mut open = File::create(volume.point.join("file")).unwrap();
    fails(&remount(&volume, "ro"), "is open for writing: it is used by ");
    open.write_all(b"content").unwrap();
    drop(open);
    remount(&volume, "ro").ok();
    let reader = File::open(volume.point.join("file")).unwrap();
    remount(&volume, "rw").ok();
    drop(reader);
    OpenOptions::new().append(true).open(volume.point.join("file")).unwrap().write_all(b" and more").unwrap();
    volume.umount();
    assert_eq!(cat(&volume.image, "/file"), "content and more");
}

#[test]
fn an_impossible_remount_fails_with_a_reason() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    fails(&remount(&volume, "compress=lz4"), "can't be had by a remount: it is zlib[:1..9], lzo,");
    fails(&remount(&volume, "commit=7"), "unmount the volume, and mount it with that option");
    fails(&ubtrfs(&["mount", "-o", "remount,ro", "/proc"]), "no volume is mounted on /proc by ubtrfs");
    volume.umount();
    volume.mount("ro");
    fails(&remount(&volume, "rw"), "was mounted read-only and stays so");
    remount(&volume, "ro").ok();
    volume.umount();
}

#[test]
fn a_remount_whose_commit_fails_says_why_and_leaves_the_mount_read_only() {
    /// A byte of the label in the superblock.
    const PLACE: u64 = (64 << 10) + 0x12B + 100;
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("file"), "content").unwrap();
    // A commit refuses to overwrite the superblock of another writer.
    let image = OpenOptions::new().write(true).open(&volume.image).unwrap();
    image.write_all_at(b"x", PLACE).unwrap();
    fails(&remount(&volume, "ro"), "turned read-only after an error and stays so: ");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = format!(" {} ", volume.point.display());
    let line = table.lines().find(|line| line.contains(&point)).unwrap();
    assert!(line.contains(" ro,") && !line.contains(" rw,"), "{line}");
    fails(&remount(&volume, "rw"), "turned read-only after an error and stays so: ");
    fails(&volume.try_umount(), "is unmounted, but had turned read-only after an error");
    image.write_all_at(&[0], PLACE).unwrap();
    volume.check();
}

#[test]
fn only_the_kernels_permission_lets_a_caller_stop_writing() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let ask = format!(
        "import fcntl, os, sys; \
         fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), {REMOUNT}, sys.argv[2].encode().ljust(256, bytes(1)))"
    );
    for change in ["", "ro", "rw", "compress=lzo"] {
        let line = ["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", &ask];
        let outcome = run(command("setpriv", &line).arg(&volume.point).arg(change));
        assert!(outcome.stderr.contains("Operation not permitted"), "{}", outcome.report());
    }
    fs::write(volume.point.join("file"), "content").unwrap();
    volume.umount();
}

#[test]
fn root_turns_a_users_mount_read_only_and_back() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    require!(Need::Tool("nsenter"));
    let (volume, mount) = UsersMount::of_new_volume("commit=1000");
    let as_root = |script: &str| mount.within(&["sh", "-c", script, "sh"], &volume);
    let writes = |name: &str| mount.as_user(&format!("echo content > \"$2/{name}\""), &volume).success();
    let is_stopped = || mount.as_user(r#""$1" stats --json "$2""#, &volume).ok().stdout.contains(r#""read_only":true"#);
    assert!(writes("before") && !is_stopped());
    as_root(r#""$1" mount -o remount,ro "$2""#).ok();
    assert!(!writes("refused") && is_stopped());
    as_root(r#""$1" mount -o remount,rw "$2""#).ok();
    assert!(writes("after") && !is_stopped());
    as_root(r#""$1" umount "$2""#).ok();
    mount.server.ended();
    for name in ["/before", "/after"] {
        assert_eq!(cat(&volume.image, name), "content\n");
    }
    volume.check();
}

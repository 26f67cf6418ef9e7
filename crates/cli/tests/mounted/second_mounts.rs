//! Tests of volumes that root mounts more than once, as fstab does with subvolumes: `@` on `/` and
//! `@home` on `/home`.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::nbd_server::NbdServer;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{lend, shell};
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::mount_points;

use crate::harness::{FUSE, Server, TRANSPORT, Volume, assert_same, cat, fails, ubtrfs};

/// A volume with the subvolumes `@`, `@home` and `@/nested`, on a block device, and directories to
/// mount it on. What is mounted on them at the end is unmounted.
struct Disk {
    volume: Volume,
    device: LoopDevice,
}

impl Disk {
    fn new() -> Self {
        let volume = Volume::new();
        volume.mount("");
        for name in ["@", "@home", "@/nested"] {
            ubtrfs(&["subvolume".as_ref(), "create".as_ref(), volume.point.join(name).as_os_str()]).ok();
        }
        fs::create_dir(volume.point.join("@/dir")).unwrap();
        volume.umount();
        for name in ["a", "b", "c"] {
            fs::create_dir(volume.dir.path().join(name)).unwrap();
        }
        let device = LoopDevice::attach(&volume.image, false);
        Self { volume, device }
    }

    fn point(&self, name: &str) -> PathBuf {
        self.volume.dir.path().join(name)
    }

    fn try_mount(&self, options: &str, name: &str) -> Outcome {
        try_mount(self.device.path(), options, &self.point(name))
    }

    #[track_caller]
    fn mount(&self, options: &str, name: &str) -> PathBuf {
        self.try_mount(options, name).ok();
        self.point(name)
    }

    /// Returns the server of the mount on this directory.
    fn server(&self, name: &str) -> Server {
        let stats = ubtrfs(&["stats".as_ref(), "--json".as_ref(), self.point(name).as_os_str()]).ok().stdout;
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        Server(i32::try_from(stats["pid"].as_u64().unwrap()).unwrap())
    }

    fn umount(&self, name: &str) -> Outcome {
        ubtrfs(&["umount".as_ref(), self.point(name).as_os_str()])
    }

    fn is_mounted(&self, name: &str) -> bool {
        mount_points().contains(&self.point(name))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for name in ["c", "b", "a"].iter().filter(|name| self.is_mounted(name)) {
            run(Command::new("umount").arg("-l").arg(self.point(name)));
        }
    }
}

/// Returns the sources of these mounts in the mount table.
fn sources(disk: &Disk, names: &[&str]) -> Vec<String> {
    let source = |name: &&str| {
        let mut line = command("findmnt", &["-n", "-o", "SOURCE", "-v"]);
        run(line.arg(disk.point(name))).ok().stdout.trim().to_owned()
    };
    names.iter().map(source).collect()
}

fn try_mount(device: &Path, options: &str, point: &Path) -> Outcome {
    let options = format!("{TRANSPORT},{options}");
    ubtrfs(&["mount".as_ref(), "-o".as_ref(), options.as_ref(), device.as_os_str(), point.as_os_str()])
}

/// Prints the properties of the mounts, and the results of operations on them. `$1` is the command
/// that mounts, `$2` the device, `$3` the directory with the mount points `a`, `b` and `c`.
const TOUR: &str = r#"
    mount=$1 device=$2 dir=$3
    cd "$dir"
    m() {
        if $mount "$device" "$dir/$2" -o "$1" >/dev/null 2>&1; then echo "== $2: $1"; else echo "== $2: $1: refused"; fi
        seen
    }
    seen() {
        awk -v d="$dir/" 'index($5, d) == 1 { split($6, own, ","); split($NF, all, ",")
            print "   ", substr($5, length(d) + 1), $4, own[1], ($6 ~ /noatime/), ($6 ~ /nodev/), all[1] }' \
            /proc/self/mountinfo | sort
    }
    writes() { for at in "$@"; do if (: >"$at/w") 2>/dev/null; then echo "$at written"; else echo "$at refused"; fi; done; }
    u() { for at in "$@"; do umount "$at" || { echo "$at: not unmounted"; cat /proc/self/mountinfo; }; done; }
    m nodev,subvol=@ a; m nodev,subvol=@home,noatime b; m dev,subvol=/ c
    writes a b c
    echo content > a/file; cat c/@/file; ls a b c c/@home
    python3 -c 'import os
for act in os.link, os.rename:
    try: act("a/file", "b/file")
    except OSError as error: print(error.errno)'
    u a; seen; writes b c; u b; u c
    m nodev,ro,subvol=@ a; m nodev,subvol=@home b; writes a b
    m remount,nodev,rw a; writes a b; u a b
    m nodev,subvol=@ a; m nodev,ro,subvol=@home b; writes a b
    m remount,nodev,ro a; writes a b; m remount,nodev,rw b; writes a b; u a b
    m nodev,ro,subvol=@ a; m nodev,ro,subvol=@home b; writes a b; u a b
    m nodev,ro,subvol=@ a; m remount,nodev,rw a; writes a; u a
    m nodev,subvol=@ a; m nodev,subvol=@home b
    exec 7>a/open; m remount,nodev,ro b; exec 7>&-; m remount,nodev,ro b; writes a b; m remount,nodev,rw b; writes a b; u a b
    m nodev,subvol=@ a; m nodev,subvol=@home,compress=zstd b; u b
    m nodev,subvolid=256 b; u b
    m nodev,subvol=@,subvolid=256 b; u b; m nodev,subvolid=256,subvol=/@ b; u b
    m nodev,subvol=@,subvolid=257 b; m nodev,subvol=@/dir b; m nodev,subvol=none b; m nodev,subvolid=999 b
    m nodev,subvol=@/nested b; u b
    btrfs subvolume set-default 257 a; m nodev b; u b; u a; m nodev a; m nodev,subvolid=0 b; u a b
    m nodev,subvol=@ a; m nodev,subvol=@home b; exec 7>b/open; umount -l b; seen; echo more >&7; writes a
    u a; exec 7>&-; m nodev,subvolid=5 a; cat a/@home/open; btrfs subvolume set-default 5 a; u a
"#;

fn tour(mount: &str, disk: &Disk) -> Vec<String> {
    let mut line = command("bash", &["-c", TOUR, "bash", mount]);
    line.arg(disk.device.path()).arg(disk.volume.dir.path());
    let outcome = run(&mut line).ok();
    assert_eq!(outcome.stderr, "", "{mount}: {}", outcome.report());
    outcome.stdout.lines().map(Into::into).collect()
}

#[test]
fn subvolumes_are_mounted_beside_one_another_as_by_the_kernel() {
    require!(Need::Kernel, FUSE, Need::Tool("btrfs"));
    let (ours, theirs) = (Disk::new(), Disk::new());
    // mount(8) calls the helper so for lines in fstab.
    let helper = ours.volume.dir.path().join("mount.ubtrfs");
    symlink(env!("CARGO_BIN_EXE_ubtrfs"), &helper).unwrap();
    let (ours_said, theirs_said) = (tour(helper.to_str().unwrap(), &ours), tour("mount -t btrfs", &theirs));
    assert_eq!(ours_said, theirs_said);
    ours.device.wait_until_free();
    for disk in [&ours, &theirs] {
        disk.volume.check();
        assert_btrfs_check_clean(&disk.volume.image);
    }
}

#[test]
fn the_server_ends_with_the_last_mount() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    let (a, b) = (disk.mount("subvol=@", "a"), disk.mount("subvol=@home", "b"));
    assert_eq!(fs::metadata(&a).unwrap().dev(), fs::metadata(&b).unwrap().dev());
    let server = disk.server("a");
    assert_eq!(disk.server("b").0, server.0);
    fs::write(a.join("file"), "a").unwrap();
    let begun = Instant::now();
    disk.umount("a").ok();
    assert!(begun.elapsed() < Duration::from_secs(5), "it waits for a server that goes on");
    // Changes on that mount are durable.
    let copy = disk.point("copy");
    fs::copy(&disk.volume.image, &copy).unwrap();
    assert_eq!(cat(&copy, "/@/file"), "a");
    fs::write(b.join("file"), "b").unwrap();
    // The same again, while the other mount exists.
    disk.mount("subvol=@", "a");
    assert_eq!(fs::read_to_string(a.join("file")).unwrap(), "a");
    disk.umount("b").ok();
    disk.umount("a").ok();
    server.ended();
    assert_eq!(cat(disk.device.path(), "/@home/file"), "b");
    disk.volume.check();
}

#[test]
fn by_force_one_mount_is_taken_away_and_the_others_stay() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    disk.mount("subvol=@", "a");
    disk.mount("subvol=@home", "b");
    let held = fs::File::create(disk.point("a/held")).unwrap();
    let lost = fs::File::create(disk.point("b/lost")).unwrap();
    let force = |name: &str| ubtrfs(&["umount".as_ref(), "--force".as_ref(), disk.point(name).as_os_str()]);
    assert!(force("b").ok().stderr.contains("the volume is still mounted elsewhere"));
    assert!(disk.is_mounted("a") && !disk.is_mounted("b"));
    held.sync_all().unwrap();
    fs::write(disk.point("a/new"), "new").unwrap();
    lost.sync_all().unwrap();
    drop(lost);
    force("a").ok();
    assert!(!disk.is_mounted("a"));
    held.sync_all().unwrap_err();
    drop(held);
    assert_btrfs_check_clean(disk.device.path());
}

#[test]
fn a_server_that_is_ended_or_killed_takes_all_mounts_along() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    let (a, b) = (disk.mount("subvol=@", "a"), disk.mount("subvol=@home", "b"));
    fs::write(a.join("file"), "a").unwrap();
    let server = disk.server("b");
    server.signal("TERM");
    server.ended();
    assert!(!disk.is_mounted("a") && !disk.is_mounted("b"));
    assert_eq!(cat(disk.device.path(), "/@/file"), "a");

    // The first mount does not exist any more, and the second one is in use.
    disk.mount("subvol=@", "a");
    disk.mount("subvol=@home", "b");
    disk.umount("a").ok();
    let server = disk.server("b");
    let open = fs::File::create(b.join("open")).unwrap();
    server.signal("TERM");
    server.ended();
    assert!(!disk.is_mounted("b"));
    drop(open);

    disk.mount("subvol=@", "a");
    disk.mount("subvol=@home", "b");
    let server = disk.server("a");
    server.signal("KILL");
    server.ended();
    for name in ["a", "b"] {
        assert!(fs::metadata(disk.point(name)).is_err());
        disk.umount(name).ok();
        assert!(!disk.is_mounted(name));
    }
    disk.device.wait_until_free();
    disk.volume.check();
}

/// systemd mounts the lines of fstab in parallel.
#[test]
fn mounts_at_the_same_time_have_one_server() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    for _ in 0..3 {
        let what = [("subvol=@", "a"), ("subvol=@home", "b"), ("subvol=/", "c")];
        thread::scope(|scope| {
            for (options, name) in what {
                let disk = &disk;
                scope.spawn(move || disk.mount(options, name));
            }
        });
        let servers = what.map(|(_, name)| disk.server(name).0);
        assert_eq!(servers, [servers[0]; 3]);
        for (_, name) in what {
            disk.umount(name).ok();
        }
    }
    // The files on which they waited for one another are removed.
    let superblock = fs::read(&disk.volume.image).unwrap();
    let fsid = format!("{:x}", u128::from_be_bytes(superblock[0x1_0020..0x1_0030].try_into().unwrap()));
    let left = fs::read_dir("/run/ubtrfs").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.replace('-', "").ends_with(&fsid)).collect::<Vec<_>>(), [""; 0]);
}

/// `$1` is the directory whose file handles are taken, `$2` the one in which they are opened.
const HANDLES: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_char * 128)]
handles = []
for root, dirs, files in os.walk(sys.argv[1]):
    for name in ["."] + files:
        path, handle, mount = os.path.join(root, name), Handle(bytes=128), ctypes.c_int()
        assert libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0) == 0, path
        handles.append((path, handle, os.stat(path).st_ino))
open("/proc/sys/vm/drop_caches", "w").write("2")
there = os.open(sys.argv[2], os.O_RDONLY)
for path, handle, ino in handles:
    opened = libc.open_by_handle_at(there, ctypes.byref(handle), os.O_RDONLY)
    assert opened >= 0, (path, os.strerror(ctypes.get_errno()))
    assert os.fstat(opened).st_ino == ino, path
print(len(handles))
"#;

/// Deletes the subvolume that a mount shows, and replaces another one by it. `$1` is the command
/// that mounts, `$2` the device, `$3` the directory with the mount points.
const DELETIONS: &str = r#"
    mount=$1 device=$2 dir=$3
    cd "$dir"
    m() { $mount "$device" "$dir/$2" -o "$1" 2>/dev/null || echo "$2: $1: refused"; }
    ioctl() { python3 -c 'import errno, fcntl, os, struct, sys
dir, name = os.path.split(sys.argv[1])
try: fcntl.ioctl(os.open(dir, 0), int(sys.argv[2], 16), bytearray(struct.pack("<q", 0) + name.encode().ljust(4088, b"\0")))
except OSError as e: print(sys.argv[1], errno.errorcode[e.errno])' "$2" "$1"; }
    delete() { ioctl 5000940f "$1"; }
    t() { echo "-- $*"; "$@" 2>&1 | sed -e 's/.*: //'; }
    m nodev,subvol=@ a; m nodev,subvol=@home b; m nodev,subvol=/ c
    echo content > a/file; echo content > b/file
    exec 7<>a/file 8<>b/file
    delete c/@; delete a/nested; delete c/@; delete c/@home
    t ls c
    for at in a b; do
        t touch $at/new; t mkdir $at/dir2; t ls $at/none; t rmdir $at/dir; t mv $at/dir c/; t ln $at/file c/
        t stat -c %h,%F $at
    done
    t cat /proc/self/fd/7; t cat /proc/self/fd/8
    for fd in 7 8; do echo more >&$fd; t cat /proc/self/fd/$fd; done
    sync
    t cat /proc/self/fd/7; t cat /proc/self/fd/8
    ioctl 5000940e c/@; echo again > c/@/file
    exec 8>&-; umount b; m nodev,subvol=@ b; t cat b/file; t cat /proc/self/fd/7
    exec 7>&-; umount a; m nodev,subvol=@ a; t cat a/file; umount a; umount b; umount c
"#;

/// This includes the first mount, on which the others depend.
#[test]
fn what_a_mount_shows_is_deleted_as_by_the_kernel() {
    require!(Need::Kernel, FUSE, Need::Tool("btrfs"));
    let (ours, theirs) = (Disk::new(), Disk::new());
    let helper = ours.volume.dir.path().join("mount.ubtrfs");
    symlink(env!("CARGO_BIN_EXE_ubtrfs"), &helper).unwrap();
    let said = [(helper.to_str().unwrap(), &ours), ("mount -t btrfs", &theirs)].map(|(mount, disk)| {
        let mut line = command("bash", &["-c", DELETIONS, "bash", mount]);
        run(line.arg(disk.device.path()).arg(disk.volume.dir.path())).ok().stdout
    });
    let [ours_said, theirs_said] = said.each_ref().map(|said| said.lines().map(Into::into).collect::<Vec<String>>());
    assert_same(&ours_said, &theirs_said);
    ours.device.wait_until_free();
    for disk in [&ours, &theirs] {
        disk.volume.check();
        assert_btrfs_check_clean(&disk.volume.image);
    }
}

/// File handles of the first mount contain the directories above the file, which that mount doesn't
/// show.
#[test]
fn file_handles_are_of_the_whole_volume() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    let handles = |from: &Path, at: &Path| {
        let mut line = command("python3", &["-c", HANDLES]);
        run(line.args([from, at])).ok().stdout.trim().parse::<u32>().unwrap()
    };
    let a = disk.mount("subvol=@", "a");
    fs::create_dir_all(a.join("dir/deep/deeper")).unwrap();
    fs::write(a.join("dir/deep/deeper/file"), "").unwrap();
    assert_eq!(handles(&a, &a), 6);
    let (b, c) = (disk.mount("subvol=@home", "b"), disk.mount("subvol=/", "c"));
    fs::create_dir(b.join("dir")).unwrap();
    fs::write(b.join("dir/file"), "").unwrap();
    for (from, at, count) in [(&a, &b, 6), (&b, &a, 3), (&c, &a, 10), (&c, &b, 10), (&b, &c, 3)] {
        assert_eq!(handles(from, at), count, "{} at {}", from.display(), at.display());
    }
    for name in ["a", "b", "c"] {
        disk.umount(name).ok();
    }
}

/// The mounts share one page cache.
#[test]
fn stores_to_a_mapping_are_seen_through_another_mount() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    let (a, c) = (disk.mount("subvol=@", "a"), disk.mount("subvol=/", "c"));
    let script = "import mmap, os, sys
one, other = sys.argv[1:]
open(one, 'wb').write(bytes(8192))
files = [os.open(path, os.O_RDWR) for path in (one, other)]
maps = [mmap.mmap(file, 8192) for file in files]
for round in range(1, 200):
    maps[0][4096] = round
    assert maps[1][4096] == round and os.pread(files[1], 1, 4096) == bytes([round]), round
    os.pwrite(files[1], bytes([round]), 5)
    assert maps[0][5] == round, round
os.truncate(other, 5000)
assert os.fstat(files[0]).st_size == 5000
os.unlink(other)
assert not os.path.exists(one)";
    let mut line = command("python3", &["-c", script]);
    run(line.args([a.join("file"), c.join("@/file")])).ok();
    disk.umount("a").ok();
    disk.umount("c").ok();
    disk.volume.check();
}

#[test]
fn another_device_of_the_volume_and_an_image_are_mounted_again() {
    require!(Need::Kernel, FUSE, Need::Tool("mkfs.btrfs"));
    let disk = Disk::new();
    // The image itself: its mount has its own loop device.
    try_mount(&disk.volume.image, "subvol=@", &disk.point("a")).ok();
    try_mount(&disk.volume.image, "subvol=@home,ro", &disk.point("b")).ok();
    assert_eq!(disk.server("a").0, disk.server("b").0);
    assert!(fs::write(disk.point("b/file"), "").is_err() && fs::write(disk.point("a/file"), "").is_ok());
    // Another loop device of the image is another device, with other pages in the cache.
    fails(&disk.try_mount("", "c"), "in use by another program");
    disk.umount("b").ok();
    disk.umount("a").ok();
    // Others may read an image that is mounted read-only, so it stays read-only.
    try_mount(&disk.volume.image, "subvol=@,ro", &disk.point("a")).ok();
    fails(&try_mount(&disk.volume.image, "subvol=@home", &disk.point("b")), "was mounted read-only on ");
    try_mount(&disk.volume.image, "subvol=@home,ro", &disk.point("b")).ok();
    disk.umount("a").ok();
    disk.umount("b").ok();

    let images = ["one", "other"].map(|name| disk.point(name));
    for image in &images {
        fs::File::create(image).unwrap().set_len(256 << 20).unwrap();
    }
    let devices = images.each_ref().map(|image| LoopDevice::attach(image, false));
    let paths = devices.each_ref().map(LoopDevice::path);
    run(command("mkfs.btrfs", &["-q", "-m", "raid1", "-d", "raid1"]).args(paths)).ok();
    try_mount(paths[0], "", &disk.point("a")).ok();
    try_mount(paths[1], "", &disk.point("b")).ok();
    fs::write(disk.point("a/file"), "content").unwrap();
    assert_eq!(fs::read_to_string(disk.point("b/file")).unwrap(), "content");
    assert_eq!(disk.server("a").0, disk.server("b").0);
    disk.umount("a").ok();
    disk.umount("b").ok();
    ubtrfs(&["check".as_ref(), paths[0].as_os_str(), paths[1].as_os_str()]).ok();
}

/// The device from which the volume was mounted does not belong to it any more.
#[test]
fn a_volume_is_mounted_again_by_a_device_that_it_got_while_mounted() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    let images = ["added", "target"].map(|name| disk.point(name));
    let devices = images.each_ref().map(|image| {
        fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
        LoopDevice::attach(image, false)
    });
    let [added, target] = devices.each_ref().map(|device| device.path().to_str().unwrap());
    let first = disk.mount("", "a");
    let point = first.to_str().unwrap();
    let again = |device: &str| {
        try_mount(Path::new(device), "subvol=@home", &disk.point("b")).ok();
        fs::write(disk.point("b").join(device.replace('/', "-")), "new").unwrap();
        disk.umount("b").ok();
    };
    ubtrfs(&["device", "add", added, point]).ok();
    again(added);
    ubtrfs(&["device", "remove", disk.device.path().to_str().unwrap(), point]).ok();
    again(added);
    ubtrfs(&["replace", "start", added, target, point]).ok();
    again(target);
    disk.umount("a").ok();
    assert_btrfs_check_clean(&images[1]);
}

/// An export of a server is identified by its name, whatever form the URI has.
#[test]
fn an_export_of_a_server_is_mounted_again() {
    require!(Need::Kernel, FUSE, Need::Tool("qemu-nbd"));
    let disk = Disk::new();
    let socket = disk.point("socket");
    let server = NbdServer::qemu(&socket, &disk.volume.image, "raw", &[]);
    let mount = |uri: &str, options: &str, name: &str| try_mount(uri.as_ref(), options, &disk.point(name));
    let uri = server.uri("");
    for options in ["subvol=@", "subvol=@,ro"] {
        mount(&uri, options, "a").ok();
        // The same export by a name that is relative to another directory.
        let mut line = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
        line.args(["mount", "-o", "subvol=@home,ro", "NBD+unix:///?socket=socket", "b"]);
        run(line.current_dir(disk.volume.dir.path())).ok();
        assert_eq!(disk.server("a").0, disk.server("b").0);
        assert!(fs::write(disk.point("b/file"), "").is_err());
        assert_eq!(sources(&disk, &["a", "b"]), [&*uri; 2]);
        let third = mount(&uri, "subvol=/", "c");
        if options.ends_with("ro") {
            fails(&third, "was mounted read-only on ");
            mount(&uri, "subvol=/,ro", "c").ok();
            assert_eq!(fs::read_to_string(disk.point("c/@/file")).unwrap(), "content");
        } else {
            third.ok();
            fs::write(disk.point("a/file"), "content").unwrap();
            assert_eq!(fs::read_to_string(disk.point("c/@/file")).unwrap(), "content");
        }
        for name in ["a", "c", "b"] {
            disk.umount(name).ok();
        }
    }
    thread::scope(|scope| {
        for (options, name) in [("subvol=@", "a"), ("subvol=@home", "b"), ("subvol=/", "c")] {
            let (mount, uri) = (&mount, &uri);
            scope.spawn(move || mount(uri, options, name).ok());
        }
    });
    let server = disk.server("a");
    assert_eq!(["b", "c"].map(|name| disk.server(name).0), [server.0; 2]);
    for name in ["a", "b", "c"] {
        disk.umount(name).ok();
    }
    server.ended();
    disk.volume.check();
}

/// A volume of several exports, or of several parts of images, is mounted again by any of them.
/// Only the server knows all of them.
#[test]
fn a_volume_of_several_exports_or_parts_is_mounted_again_by_any_of_them() {
    require!(Need::Kernel, FUSE, Need::Tool("qemu-nbd"), Need::Tool("mkfs.btrfs"));
    let disk = Disk::new();
    let images = ["one", "other"].map(|name| disk.point(name));
    for image in &images {
        fs::File::create(image).unwrap().set_len(257 << 20).unwrap();
    }
    let of_part = ["--offset", "1048576"];
    let devices = images.each_ref().map(|image| LoopDevice::attach_with(image, &of_part));
    run(command("mkfs.btrfs", &["-q", "-m", "raid1", "-d", "raid1"]).args(devices.each_ref().map(LoopDevice::path)))
        .ok();
    drop(devices);
    let sockets = ["socket1", "socket2"].map(|name| disk.point(name));
    let offset = ["--offset=1048576"];
    let servers = [0, 1].map(|number| NbdServer::qemu(&sockets[number], &images[number], "raw", &offset));
    let uris = servers.each_ref().map(|server| PathBuf::from(server.uri("")));
    for ([one, other], options) in [(&uris, ""), (&images, ",offset=1M")] {
        let mount = |device: &Path, more: &str, name: &str| {
            try_mount(device, &format!("{TRANSPORT}{options}{more}"), &disk.point(name))
        };
        mount(one, &format!(",device={}", other.display()), "a").ok();
        mount(other, "", "b").ok();
        mount(other, &format!(",ro,device={}", one.display()), "c").ok();
        fs::write(disk.point("a/file"), options).unwrap();
        assert_eq!(fs::read_to_string(disk.point("b/file")).unwrap(), options);
        let pid = disk.server("a").0;
        assert_eq!(["b", "c"].map(|name| disk.server(name).0), [pid; 2]);
        assert!(fs::write(disk.point("c/file"), "").is_err());
        for name in ["a", "b", "c"] {
            disk.umount(name).ok();
        }
    }
}

/// Without loop devices, as in many containers, root's mounts of images are of the type `fuse`.
/// `$1` is the program, `$2` the image, `$3` the options, `$4` the directory with the mount points.
const WITHOUT_LOOP_DEVICES: &str = r#"
    set -eu
    program=$1 image=$2 options=$3 dir=$4
    # Mounts of other tests are theirs.
    awk '/ - fuse(blk)?\./ { print $5 }' /proc/self/mountinfo | xargs -r umount -l
    mount --bind /dev/null /dev/loop-control
    cd "$dir"
    m() { "$program" mount -o "$options,$1" "$image" "$dir/$2"; }
    pid() { "$program" stats --json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'; }
    m subvol=@ a; m subvol=@home,noatime b; m subvolid=5,ro c
    awk -v d="$dir/" 'index($5, d) == 1 { split($6, own, ",")
        print substr($5, length(d) + 1), $4, own[1], ($6 ~ /noatime/), $(NF - 2) }' /proc/self/mountinfo
    server=$(pid a); test "$server" = "$(pid b)"; test "$server" = "$(pid c)"
    test "$(stat -c %d a)" = "$(stat -c %d b)"
    echo content >a/file; cat c/@/file
    if : 2>/dev/null >c/w; then echo c is written; fi
    "$program" mount -f -o "$options" "$image" "$dir/mnt" 2>&1 | grep -o 'in use by another program'
    umount a; echo more >b/file; m subvol=@ a; cat a/file
    # By force one goes, and the others stay.
    "$program" umount --force a 2>&1 | grep -o 'still mounted elsewhere'; cat c/@/file
    # The server ends with the last one.
    "$program" umount b; "$program" umount c
    "$program" cat "$image" /@home/file
    # It takes all of them along.
    ln -s "$image" link
    m subvol=@ a; image=$dir/link m subvol=@home b; kill "$(pid b)"
    for i in $(seq 200); do grep -q " $dir/[ab] " /proc/self/mountinfo || break; sleep 0.1; done
    if grep " $dir/[ab] " /proc/self/mountinfo; then exit 1; fi
    # All at the same time, as systemd makes them.
    m subvol=@ a & m subvol=@home b & m subvol=/ c; wait
    server=$(pid a); test "$server" = "$(pid b)"; test "$server" = "$(pid c)"
    # One that is killed is nobody's.
    kill -9 "$server"
    while test -e "/proc/$server"; do sleep 0.1; done
    for at in a b c; do umount -l $at; done
    m subvol=@ a; test "$server" != "$(pid a)"; cat a/file; m ro,subvol=@home b; "$program" umount a
    "$program" umount b
    m ro,subvol=@ a; m ro,subvol=@home b; test "$(pid a)" = "$(pid b)"
    m subvol=/ c 2>&1 | grep -o 'was mounted read-only' ; "$program" umount a; "$program" umount b
"#;

#[test]
fn mounts_of_the_type_fuse_are_mounted_again() {
    require!(Need::Kernel, FUSE, Need::Tool("unshare"));
    let disk = Disk::new();
    let mut line = command("unshare", &["--mount", "--propagation", "private", "bash", "-c", WITHOUT_LOOP_DEVICES]);
    line.args(["bash".as_ref(), env!("CARGO_BIN_EXE_ubtrfs").as_ref(), disk.volume.image.as_os_str()]);
    let said = run(line.arg(TRANSPORT).arg(disk.volume.dir.path())).ok().stdout;
    let expected = "a /@ rw 0 fuse.ubtrfs\nb /@home rw 1 fuse.ubtrfs\nc / ro 0 fuse.ubtrfs\ncontent\n\
                    in use by another program\ncontent\nstill mounted elsewhere\ncontent\nmore\ncontent\n\
                    was mounted read-only\n";
    assert_eq!(said, expected);
    disk.volume.check();
}

/// Makes as many callers wait for this server's answer as its queue takes: a further connect(2)
/// would block.
fn fill_queue(server: &Server) -> Vec<OwnedFd> {
    let of_server = format!("{}-", server.0);
    let socket = fs::read_dir("/run/ubtrfs/served").unwrap().map(|entry| entry.unwrap().path());
    let mut socket = socket.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&of_server));
    let address = SocketAddrUnix::new(socket.next().expect("its socket")).unwrap();
    let mut callers = Vec::new();
    loop {
        let caller = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        match connect(&caller, &address) {
            Ok(()) => callers.push(caller),
            Err(Errno::AGAIN) => return callers,
            Err(errno) => panic!("{errno}"),
        }
    }
}

/// All servers are asked what they serve, if the kernel does not know it.
#[test]
fn a_server_that_does_not_answer_holds_up_no_mount_of_another_volume() {
    require!(Need::Kernel, FUSE);
    let (one, other) = (Disk::new(), Disk::new());
    one.mount("", "a");
    let server = one.server("a");
    server.signal("STOP");
    let callers = fill_queue(&server);
    let begun = Instant::now();
    let mounted = other.try_mount("", "a");
    let elapsed = begun.elapsed();
    server.signal("CONT");
    drop(callers);
    mounted.ok();
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    // Callers that have disconnected do no harm.
    one.mount("", "b");
    assert_eq!(one.server("b").0, server.0);
    for disk in [&one, &other] {
        disk.umount("a").ok();
    }
    one.umount("b").ok();
}

#[test]
fn a_seed_is_mounted_again() {
    require!(Need::Kernel, FUSE, Need::Tool("btrfstune"));
    let disk = Disk::new();
    run(command("btrfstune", &["-S", "1"]).arg(disk.device.path())).ok();
    for options in ["subvol=@,ro", "subvol=@"] {
        disk.mount(options, "a");
        disk.mount("subvol=@home", "b");
        assert!(fs::write(disk.point("b/file"), "").is_err());
        disk.umount("a").ok();
        disk.umount("b").ok();
    }
}

/// A mount with `ro` writes nothing until it is made writable.
#[test]
fn a_read_only_mount_of_a_block_device_writes_nothing() {
    require!(Need::Kernel, FUSE);
    let disk = Disk::new();
    let before = fs::read(&disk.volume.image).unwrap();
    let a = disk.mount("subvol=@,ro,commit=1", "a");
    fs::read_dir(&a).unwrap().count();
    run(&mut command("sync", &[] as &[&str])).ok();
    thread::sleep(Duration::from_millis(1500));
    disk.umount("a").ok();
    assert!(fs::read(&disk.volume.image).unwrap() == before);
}

/// `$1` is the program, `$2` the image, `$3` to `$5` mount points. fusermount3 makes a file system
/// of its own for each mount, and its caches are not shared with the others.
const OF_A_USER: &str = r#"
    set -u
    m() { "$program" mount -o "$1" "$image" "$2" 2>&1 | grep -o 'in use by another program'; }
    u() { for at in "$@"; do "$program" umount "$at"; done; }
    program=$1 image=$2 a=$3 b=$4 c=$5
    m ro,subvol=@ "$a"; m ro,subvol=@home "$b"; m subvol=/ "$c"; cat "$a/file" "$b/file"
    u "$a"; cat "$b/file"; m ro,subvol=/ "$a"; cat "$a/@/file"; u "$a" "$b"
    m subvol=@ "$a"; m ro,subvol=@home "$b"; m subvol=@home "$b"; u "$a"
"#;

/// The caches agree as long as nothing is written. So with write access a user can mount a volume
/// only once.
#[test]
fn a_user_mounts_an_image_more_than_once_with_ro_alone() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    let volume = Volume::new();
    volume.mount("");
    for name in ["@", "@home"] {
        ubtrfs(&["subvolume".as_ref(), "create".as_ref(), volume.point.join(name).as_os_str()]).ok();
        fs::write(volume.point.join(name).join("file"), format!("{name}\n")).unwrap();
    }
    volume.umount();
    let points = ["a", "b", "c"].map(|name| volume.dir.path().join(name));
    for point in &points {
        fs::create_dir(point).unwrap();
    }
    let [a, b, c] = &points;
    let program = lend(volume.dir.path(), env!("CARGO_BIN_EXE_ubtrfs").as_ref(), &[&volume.image, a, b, c]);
    let mut line = shell(volume.dir.path(), OF_A_USER);
    let said = run(line.arg(&program).arg(&volume.image).args(&points)).ok().stdout;
    let in_use = "in use by another program\n";
    assert_eq!(said, format!("{in_use}@\n@home\n@home\n@\n{in_use}{in_use}"));
    volume.check();
}

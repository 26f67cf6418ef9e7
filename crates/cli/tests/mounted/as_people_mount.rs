//! Tests of mounts by mount(8), by fstab and by systemd, and of volumes inside images, volumes from
//! other systems, and damaged ones.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ubtrfs_testkit::diff::{Options, assert_same};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::kernel::{KernelMount, LoopDevice};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{NOBODY, in_private_namespace, lend, shell};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, run};
use ubtrfs_testkit::walk::walk;

use crate::harness::{FUSE, Volume, cat, fails, ubtrfs};
use ubtrfs_damage::Image;

/// The actions of the user. `$1` is ubtrfs, `$2` the image, `$3` the mount point.
const USER: &str = r#"
    set -e
    "$1" mount "$2" "$3"
    trap '"$1" umount "$3" || fusermount3 -u -z "$3"' EXIT
    if cat "$3/secret" 2>/dev/null; then exit 1; fi
    "$1" umount "$3"
    "$1" mount -o fakeroot "$2" "$3"
    test "$(cat "$3/secret")" = secret
    echo new > "$3/new"
    test "$(stat -c %u "$3/new")" = 0
    chown 7 "$3/secret"
    if "$1" mount -o fakeroot,allow_other "$2" "$3"; then exit 1; fi
    "$1" umount "$3"
    "$1" mount -o single_user "$2" "$3"
    test "$(cat "$3/secret")" = secret
    echo mine > "$3/mine"
    test "$(stat -c %u "$3/mine")" = "$(id -u)"
    test "$(stat -c %a "$3/secret")" = 600
"#;

/// The offset of the volume in the image.
const OFFSET: u64 = 3 << 20;

/// Runs in a mount namespace where `mount.ubtrfs` is installed: `$1` is ubtrfs, `$2` the image,
/// `$3` the mount point, `$4` a directory.
const SESSION: &str = r#"
    set -e
    mkdir "$4/sbin"
    ln -s "$1" "$4/sbin/mount.ubtrfs"
    ln -s "$1" "$4/sbin/mount.fuse.ubtrfs"
    ln -s "$1" "$4/sbin/mount.fuseblk.ubtrfs"
    mount -t overlay overlay -o "lowerdir=$4/sbin:/usr/sbin" /usr/sbin
    trap 'umount "$3" 2>/dev/null || true' EXIT
    mount -t ubtrfs -o noatime,nofail,_netdev,user,x-systemd.automount,ssd,space_cache=v2 "$2" "$3"
    echo by-type > "$3/by-type"
    umount "$3"
    mount -t fuse.ubtrfs "$2" "$3"
    test "$(cat "$3/by-type")" = by-type
    umount "$3"
    echo "$2 $3 ubtrfs defaults,noauto,nofail,x-systemd.device-timeout=5,errors=remount-ro 0 0" > "$4/fstab"
    mount -T "$4/fstab" "$3"
    echo by-fstab > "$3/by-fstab"
    mount -o remount,ro "$3"
    if touch "$3/refused" 2>/dev/null; then exit 1; fi
    mount -T "$4/fstab" -o remount,rw "$3"
    echo again >> "$3/by-fstab"
    mount -o remount,compress=zstd "$3"
    umount "$3"
    mount -t ubtrfs -o loop,compress=zstd:3 "$2" "$3"
    umount "$3"
    mount -f -t ubtrfs "$2" "$3"
    if mountpoint -q "$3"; then exit 1; fi
    mount -s -t ubtrfs -o no_such_option "$2" "$3"
    umount "$3"
    if mount -t ubtrfs -o no_such_option "$2" "$3"; then exit 1; fi
"#;

#[test]
fn mount_and_fstab_find_the_helper() {
    require!(Need::Root, FUSE, Need::Tool("unshare"));
    let volume = Volume::new();
    let mut line = in_private_namespace(volume.dir.path());
    line.args(["sh", "-c", SESSION, "sh"]);
    line.arg(env!("CARGO_BIN_EXE_ubtrfs")).args([&volume.image, &volume.point]).arg(volume.dir.path());
    let outcome = run(&mut line);
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    assert!(outcome.stderr.contains("unknown mount option 'no_such_option'"), "{}", outcome.report());
    assert!(!outcome.stderr.contains("compress"), "{}", outcome.report());
    for (name, content) in [("by-type", "by-type\n"), ("by-fstab", "by-fstab\nagain\n")] {
        assert_eq!(cat(&volume.image, &format!("/{name}")), content);
    }
    volume.check();
}

/// Two servers that write to one image would destroy it, since each has its own map of free space.
#[test]
fn one_image_has_one_server_whatever_its_name() {
    require!(Need::Kernel, FUSE);
    let volume = Volume::new();
    let (one, other) = (LoopDevice::attach(&volume.image, false), LoopDevice::attach(&volume.image, false));
    let again = Volume::without_image();
    let repair = |device: &Path| {
        let outcome = ubtrfs(&["check".as_ref(), "--repair".as_ref(), "--yes".as_ref(), device.as_os_str()]);
        assert_eq!(outcome.code(), Some(2), "{}", outcome.report());
    };
    let in_use = |outcome: &Outcome| fails(outcome, "in use by another program");
    let attempts: [&(dyn Fn(&Path) + Sync); 4] = [
        &|device| in_use(&again.try_mount_device(device, "")),
        &|device| in_use(&again.try_mount_device(device, "ro")),
        &|device| in_use(&ubtrfs(&["mkfs".as_ref(), "-f".as_ref(), device.as_os_str()])),
        &repair,
    ];
    // At the same time, since each of them retries for seconds.
    let all_refused = |devices: [&Path; 2]| {
        thread::scope(|scope| {
            for device in devices {
                for attempt in attempts {
                    scope.spawn(move || attempt(device));
                }
            }
        });
    };
    volume.mount("");
    all_refused([one.path(), other.path()]);
    volume.umount();
    volume.try_mount_device(one.path(), "").ok();
    all_refused([other.path(), other.path()]);
    // The image is what this device shows, so it counts as mounted.
    again.try_mount_device(&volume.image, "").ok();
    assert_eq!(again.stats()["pid"], volume.stats()["pid"]);
    again.umount();
    volume.umount();
    let kernel = KernelMount::new(&[&volume.image], "");
    for device in [other.path(), &volume.image] {
        fails(&volume.try_mount_device(device, ""), "mounted by the kernel");
    }
    assert_eq!(kernel.unmount(), Vec::<String>::new());
    volume.check();
}

#[test]
fn a_volume_inside_of_an_image_is_mounted_at_its_offset() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    let disk = volume.dir.path().join("disk");
    let inside = fs::read(&volume.image).unwrap();
    let file = File::create(&disk).unwrap();
    file.set_len(OFFSET + inside.len() as u64 + (1 << 20)).unwrap();
    file.write_all_at(&[0xAB; 4096], OFFSET - 4096).unwrap();
    file.write_all_at(&[0xAB; 4096], OFFSET + inside.len() as u64).unwrap();
    file.write_all_at(&inside, OFFSET).unwrap();
    drop(file);
    fails(&volume.try_mount_device(&disk, ""), "no btrfs found");
    fails(&volume.try_mount_device(&disk, "offset=1000"), "no multiple of 4096");
    fails(&volume.try_mount_device(&disk, "offset=1T"), "behind the end");
    fails(&volume.try_mount_device(&disk, "offset=3M,sizelimit=10M"), "truncated");
    let size = inside.len();
    volume.try_mount_device(&disk, &format!("offset=3M,sizelimit={size}")).ok();
    fs::write(volume.point.join("file"), vec![7; 5 << 20]).unwrap();
    volume.umount();
    let after = fs::read(&disk).unwrap();
    let (before, behind) = (&after[..OFFSET as usize], &after[OFFSET as usize + size..]);
    assert!(before[before.len() - 4096..].iter().chain(&behind[..4096]).all(|byte| *byte == 0xAB));
    fs::write(&volume.image, &after[OFFSET as usize..OFFSET as usize + size]).unwrap();
    assert_eq!(cat(&volume.image, "/file").len(), 5 << 20);
    volume.check();
}

#[test]
fn a_volume_without_one_of_its_devices_is_read_and_written() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    for (name, missing) in [("prof-raid1", 0), ("prof-raid1", 1), ("prof-raid10", 2)] {
        let fixture = Fixture::load(name);
        let at = tempfile::tempdir_in(volume.dir.path()).unwrap();
        let mut paths = fixture.unpack(at.path());
        let mount = |paths: &[PathBuf], options: &str| {
            let with = |options: String, path: &PathBuf| options + ",device=" + path.to_str().unwrap();
            volume.try_mount_device(&paths[0], &paths[1..].iter().fold(options.to_owned(), with))
        };
        mount(&paths, "ro").ok();
        let whole = walk(&volume.point);
        volume.umount();
        paths.remove(missing);
        fails(&mount(&paths, "ro"), "name all of them");
        mount(&paths, "ro,degraded").ok();
        assert_same(name, &whole, &walk(&volume.point), Options::SAME_VOLUME);
        volume.umount();
        mount(&paths, "degraded").ok();
        fs::write(volume.point.join("written without it"), name).unwrap();
        volume.umount();
        mount(&paths, "ro,degraded").ok();
        assert_eq!(fs::read_to_string(volume.point.join("written without it")).unwrap(), name);
        volume.umount();
    }
}

/// Synology's kernels set flags of inodes and subvolumes that no other kernel knows.
#[test]
fn volumes_of_synology_are_read_and_written_and_keep_their_flags() {
    use ubtrfs_format::items::{InodeFlags, InodeItem, RootFlags, RootItem};
    use ubtrfs_format::{ItemType, TreeId};
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    for name in ["kept", "changed", "cleared"] {
        fs::write(volume.point.join(name), name).unwrap();
    }
    volume.umount();
    let set = |flag: u64, tree: TreeId, kind: ItemType| {
        Image::open(&volume.image).edit_leaf(tree, |items| {
            let wanted = |key: &ubtrfs_format::Key| {
                key.item_type == kind
                    && (kind == ItemType::INODE_ITEM && key.objectid > 256 || key.objectid == TreeId::FS.0)
            };
            let found = items.iter_mut().filter(|(key, _)| wanted(key));
            let changed = found.map(|(_, data)| {
                if kind == ItemType::INODE_ITEM {
                    let mut item = InodeItem::parse(data).unwrap();
                    item.flags |= flag;
                    data.copy_from_slice(&item.to_bytes());
                } else {
                    let mut item = RootItem::parse(data).unwrap();
                    item.flags |= flag;
                    data.copy_from_slice(&item.to_bytes());
                }
            });
            changed.count() > 0
        });
    };
    set(InodeFlags::SYNOLOGY, TreeId::FS, ItemType::INODE_ITEM);
    set(RootFlags::SYNOLOGY, TreeId::ROOT, ItemType::ROOT_ITEM);
    let flags = |name: &str| {
        let said = ubtrfs(&["stat".as_ref(), volume.image.as_os_str(), name.as_ref()]).ok().stdout;
        said.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(flags("kept"), "0x40000000");
    volume.mount("");
    fs::write(volume.point.join("changed"), "otherwise").unwrap();
    fs::write(volume.point.join("new"), "new").unwrap();
    chown(volume.point.join("cleared"), Some(7), Some(7)).unwrap();
    assert_eq!(fs::read_to_string(volume.point.join("kept")).unwrap(), "kept");
    volume.umount();
    let found = ["kept", "changed", "cleared", "new"].map(flags);
    assert_eq!(found, ["0x40000000", "0x40000000", "0x40000000", "0x0"]);
    let roots = Image::open(&volume.image).items(TreeId::ROOT);
    let own = roots.iter().find(|(key, _)| key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::FS.0);
    assert_eq!(RootItem::parse(&own.unwrap().1).unwrap().flags, RootFlags::SYNOLOGY);
    ubtrfs(&["check".as_ref(), volume.image.as_os_str()]).ok();
    // Flags of unknown origin are shown, and a volume with them is only mounted read-only.
    set(1 << 20, TreeId::FS, ItemType::INODE_ITEM);
    assert_eq!(flags("kept"), "0x40100000");
    let refused = volume.try_mount_device(&volume.image, "");
    fails(&refused, "inode flags has the impossible value 1074790400");
    volume.mount("ro");
    assert_eq!(fs::read_to_string(volume.point.join("kept")).unwrap(), "kept");
}

#[test]
fn an_old_commit_is_mounted_to_be_read() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    fs::write(volume.point.join("file"), "old").unwrap();
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    fs::remove_file(volume.point.join("file")).unwrap();
    fs::write(volume.point.join("other"), "new").unwrap();
    volume.umount();
    let before = fs::read(&volume.image).unwrap();
    let said = ubtrfs(&["history".as_ref(), "--json".as_ref(), volume.image.as_os_str(), "/file".as_ref()]).ok().stdout;
    let versions: serde_json::Value = serde_json::from_str(&said).unwrap();
    let old = versions.as_array().unwrap().iter().find(|one| one["state"] == "present").unwrap();
    let option = format!("ro,generation={}", old["last_generation"]);
    volume.mount(&option);
    assert_eq!(fs::read_to_string(volume.point.join("file")).unwrap(), "old");
    assert!(!volume.point.join("other").exists());
    assert!(fs::write(volume.point.join("file"), "x").is_err());
    volume.umount();
    fails(&volume.try_mount_device(&volume.image, "generation=2"), "generation= needs it");
    fails(&volume.try_mount_device(&volume.image, "ro,generation=9999"), "'ubtrfs history' lists those that are");
    assert!(fs::read(&volume.image).unwrap() == before, "the volume was written to");
}

#[test]
fn damaged_volumes_are_mounted_to_be_read() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    fs::write(volume.point.join("old"), "old").unwrap();
    volume.umount();
    volume.mount("");
    fs::write(volume.point.join("data"), vec![7; 64 << 10]).unwrap();
    volume.umount();
    let image = Image::open(&volume.image);
    let is_data = |(key, data): &(ubtrfs_format::Key, Vec<u8>)| {
        use ubtrfs_format::items::{ExtentFlags, ExtentItem};
        ExtentItem::parse(key, data).is_ok_and(|item| item.flags & ExtentFlags::DATA != 0)
    };
    let items = image.items(ubtrfs_format::TreeId::EXTENT);
    let extents = items.iter().filter(|(key, _)| key.item_type == ubtrfs_format::ItemType::EXTENT_ITEM);
    let extent = extents.clone().find(|item| is_data(item)).unwrap().0.objectid;
    image.flip(ubtrfs_format::Logical(extent), &[0]);
    volume.mount("ro");
    assert!(fs::read(volume.point.join("data")).is_err());
    volume.umount();
    volume.mount("ro,rescue=ignoredatacsums");
    assert_eq!(fs::read(volume.point.join("data")).unwrap().len(), 64 << 10);
    volume.umount();

    image.flip_all(image.superblock.root);
    assert_eq!(volume.try_mount("ro").code(), Some(1));
    fails(&volume.try_mount("rescue=all"), "needs it");
    let before = fs::read(&volume.image).unwrap();
    volume.mount("ro,rescue=usebackuproot:ignorebadroots");
    assert_eq!(fs::read_to_string(volume.point.join("old")).unwrap(), "old");
    assert!(fs::write(volume.point.join("new"), "").is_err());
    volume.umount();
    assert!(before == fs::read(&volume.image).unwrap(), "the image was written to");
}

#[test]
fn owners_show_as_it_is_asked_for() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("uid=1234,gid=2345,umask=027");
    let file = volume.point.join("file");
    fs::write(&file, "content").unwrap();
    let shown = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(shown(&file), (1234, 2345, 0o640));
    assert_eq!((shown(&volume.point).0, shown(&volume.point).1), (1234, 2345));
    chown(&file, Some(1234), None).unwrap();
    assert!(chown(&file, Some(1), None).is_err());
    volume.umount();
    volume.mount("");
    assert_eq!(shown(&file), (0, 0, 0o666));
    volume.umount();
    volume.check();
}

#[test]
fn a_user_is_root_on_a_volume_from_elsewhere() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    let volume = Volume::new();
    volume.mount("");
    let secret = volume.point.join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    volume.umount();
    let binary = volume.dir.path().join("ubtrfs");
    fs::copy(env!("CARGO_BIN_EXE_ubtrfs"), &binary).unwrap();
    fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for path in [&volume.image, &volume.point] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let outcome = run(shell(volume.dir.path(), USER).arg(&binary).args([&volume.image, &volume.point]));
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    volume.mount("");
    assert_eq!(fs::metadata(&secret).unwrap().uid(), 7);
    assert_eq!(fs::metadata(volume.point.join("new")).unwrap().uid(), 0);
    volume.umount();
    volume.check();
}

/// Runs commands from within the mount; the connection of a server that hangs is aborted. `$1` is
/// ubtrfs, `$2` the image next to the mount point, `$3` the mount point.
const FROM_WITHIN: &str = r#"
    cd "$3"
    for image in "../${2##*/}" "$3/../${2##*/}"; do
        timeout --signal=KILL 20 "$1" mount "$image" . || {
            number=$(awk -v point="$3" '$5 == point { print $3 }' /proc/self/mountinfo)
            echo 1 > "/sys/fs/fuse/connections/${number#*:}/abort"
            exit 1
        }
        timeout --signal=KILL 20 "$1" umount "$3" || exit 1
    done
"#;

#[test]
fn the_path_of_an_image_may_lead_through_the_mount_point() {
    require!(Need::Root, FUSE, Need::Tool("setpriv"), Need::Tool("unshare"), Need::Tool("fusermount3"));
    let volume = Volume::new();
    let program = lend(volume.dir.path(), env!("CARGO_BIN_EXE_ubtrfs").as_ref(), &[&volume.image, &volume.point]);
    let outcome = run(shell(volume.dir.path(), FROM_WITHIN).arg(&program).args([&volume.image, &volume.point]));
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    volume.check();
}

#[test]
fn systemd_is_notified_and_a_signal_writes_statistics() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    let path = volume.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let receive = || {
        let mut message = [0; 1000];
        let length = socket.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let mut server = Command::new(env!("CARGO_BIN_EXE_ubtrfs"))
        .args(["mount", "-f", "-o", "transport=dev"])
        .args([&volume.image, &volume.point])
        .env("NOTIFY_SOCKET", &path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(receive().lines().any(|line| line == "READY=1"));
    assert!(volume.is_mounted());
    fs::write(volume.point.join("file"), "content").unwrap();
    run(Command::new("kill").args(["-USR1", &server.id().to_string()])).ok();
    let stderr = BufReader::new(server.stderr.take().unwrap());
    let (sender, lines) = channel();
    thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let report = loop {
        let line = lines.recv_timeout(Duration::from_secs(60)).unwrap();
        if let Some((_, report)) = line.split_once("statistics: ") {
            break report.to_owned();
        }
    };
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["bytes_written"].as_u64().unwrap() >= 7, "{report}");
    assert!(volume.is_mounted(), "the signal has ended the mount");
    ubtrfs(&["umount".as_ref(), volume.point.as_os_str()]).ok();
    assert!(receive().lines().any(|line| line == "STOPPING=1"));
    assert!(server.wait().unwrap().success());
    assert_eq!(cat(&volume.image, "/file"), "content");
}

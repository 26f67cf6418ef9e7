//! Runs a tour of all operations on a mount and on the kernel's btrfs; both must have the same
//! results.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::mapped;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, Volume, cat};

/// The results of a tour, line by line.
#[derive(Default)]
pub struct Diary(pub Vec<String>);

impl Diary {
    pub fn note(&mut self, what: &str, seen: impl std::fmt::Debug) {
        self.0.push(format!("{what}: {seen:?}"));
    }

    /// Notes an outcome: success, or the error number.
    pub fn io<T>(&mut self, what: &str, result: std::io::Result<T>) {
        self.note(what, result.map(drop).map_err(|error| error.raw_os_error()));
    }

    pub fn sys<T>(&mut self, what: &str, result: Result<T, Errno>) {
        self.note(what, result.map(drop));
    }

    /// Notes the fields of stat(2) that do not depend on time and mount.
    fn stat(&mut self, what: &str, path: &Path) {
        let seen = fs::symlink_metadata(path).map(|meta| {
            let rdev = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
            (format!("{:o}", meta.mode()), meta.nlink(), meta.uid(), meta.gid(), meta.size(), rdev)
        });
        self.note(what, seen.map_err(|error| error.raw_os_error()));
    }
}

/// Runs a shell script as an ordinary user.
fn as_user(dir: &Path, script: &str) -> Option<i32> {
    let user = ["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", script];
    run(command("setpriv", &user).current_dir(dir)).code()
}

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
}

fn names(dir: &Path, diary: &mut Diary) {
    let at = |name: &str| dir.join(name);
    fs::write(at("a"), "content").unwrap();
    diary.io("link", fs::hard_link(at("a"), at("b")));
    diary.stat("two names", &at("a"));
    diary.io("link over a name", fs::hard_link(at("a"), at("b")));
    diary.io("unlink", fs::remove_file(at("a")));
    diary.stat("one name", &at("b"));
    diary.io("unlink nothing", fs::remove_file(at("a")));
    diary.io("mkdir", fs::create_dir(at("d")));
    diary.io("mkdir again", fs::create_dir(at("d")));
    diary.io("link of a directory", fs::hard_link(at("d"), at("e")));
    fs::write(at("d/f"), "").unwrap();
    diary.io("rmdir of a full one", fs::remove_dir(at("d")));
    diary.io("unlink of a directory", fs::remove_file(at("d")));
    diary.io("rmdir of a file", fs::remove_dir(at("b")));
    diary.io("a file as a directory", fs::write(at("b/x"), ""));
    fs::create_dir(at("e")).unwrap();
    diary.io("rename over an empty directory", fs::rename(at("d"), at("e")));
    diary.io("rename into itself", fs::rename(at("e"), at("e/e")));
    diary.io("rename of a file over a directory", fs::rename(at("b"), at("e")));
    diary.io("rename of a directory over a file", fs::rename(at("e"), at("b")));
    let flags = |flags, from: &str, to: &str| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
    fs::write(at("c"), "other").unwrap();
    diary.sys("noreplace", flags(RenameFlags::NOREPLACE, "b", "c"));
    diary.sys("exchange", flags(RenameFlags::EXCHANGE, "b", "c"));
    diary.note("exchanged", fs::read_to_string(at("b")).ok());
    diary.sys("exchange with a directory", flags(RenameFlags::EXCHANGE, "b", "e"));
    diary.sys("exchange with nothing", flags(RenameFlags::EXCHANGE, "b", "nothing"));
    std::os::unix::fs::chown(at("c"), Some(7), Some(8)).unwrap();
    diary.sys("whiteout", flags(RenameFlags::WHITEOUT, "c", "w"));
    diary.stat("the whiteout", &at("c"));
    let longest = "n".repeat(255);
    diary.io("the longest name", fs::write(at(&longest), ""));
    diary.io("a longer name", fs::write(at(&format!("{longest}n")), ""));
    diary.io("symlink", symlink("b", at("s")));
    diary.note("its target", fs::read_link(at("s")).ok());
    diary.stat("its attributes", &at("s"));
    diary.io("a long target", symlink("t".repeat(4000), at("long")));
    diary.note("the long target", fs::read_link(at("long")).map(|target| target.as_os_str().len()).ok());
    for (name, kind, major, minor) in [
        ("chr", FileType::CharacterDevice, 10, 74565),
        ("blk", FileType::BlockDevice, 4095, 1_048_575),
        ("fifo", FileType::Fifo, 0, 0),
        ("sock", FileType::Socket, 0, 0),
    ] {
        let device = rustix::fs::makedev(major, minor);
        diary.sys("mknod", rustix::fs::mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o640), device));
        diary.stat(name, &at(name));
    }
}

fn links(dir: &Path, diary: &mut Diary) {
    let first = dir.join("first");
    fs::write(&first, "").unwrap();
    let most = (0..70_000).find_map(|number| {
        let linked = fs::hard_link(&first, dir.join(format!("{number}")));
        linked.err().map(|error| (number, error.raw_os_error()))
    });
    diary.note("the most links", most);
    diary.note("links", fs::metadata(&first).unwrap().nlink());
    diary.note("listed", fs::read_dir(dir).unwrap().count());
    let mut renamed = 0;
    for entry in fs::read_dir(dir).unwrap().flatten().take(2000) {
        fs::remove_file(entry.path()).unwrap();
        renamed += 1;
    }
    diary.note("removed while listing", renamed);
    diary.note("still listed", fs::read_dir(dir).unwrap().count());
}

fn data(dir: &Path, diary: &mut Diary) {
    let path = dir.join("f");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let file = open();
    file.write_all_at(b"far", (8 << 40) + 5).unwrap();
    diary.note("sparse", file.metadata().unwrap().size());
    let hole_and_data = |file: &File, from| {
        let data = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(from));
        (data, rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(from)))
    };
    diary.note("first data", hole_and_data(&file, 0));
    diary.note("behind the end", hole_and_data(&file, 9 << 40));
    diary.io("grow too far", file.set_len(i64::MAX as u64));
    file.set_len(3).unwrap();
    let mut append = OpenOptions::new().append(true).open(&path).unwrap();
    append.write_all(b"appended").unwrap();
    diary.note("content", fs::read(&path).unwrap());
    file.write_all_at(&vec![7; 20_000], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    diary.sys("punch", rustix::fs::fallocate(&file, punch, 4096, 8192));
    diary.note("punched", fs::read(&path).unwrap().split(|byte| *byte == 7).count());
    diary.note("its hole", hole_and_data(&file, 0));
    diary.sys("collapse", rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096));

    let open_direct =
        || OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
    diary.io("O_DIRECT", open_direct());
    let mut reader = File::open(&path).unwrap();
    reader.seek(SeekFrom::Start(19_990)).unwrap();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    diary.note("the end", rest.len());
    let other = File::create(dir.join("copy")).unwrap();
    // How many bytes it copies in one call is not specified.
    diary.sys("copy_file_range", rustix::fs::copy_file_range(&file, Some(&mut 0), &other, None, 5000));
    diary.io("O_TRUNC", File::create(&path));
    diary.stat("truncated", &path);

    fs::remove_file(&path).unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    diary.note("without a name", (file.metadata().unwrap().nlink(), file.metadata().unwrap().size()));
    let unnamed = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600)).unwrap();
    rustix::io::write(&unnamed, b"unnamed").unwrap();
    let place = CString::new(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed))).unwrap();
    diary.sys("a name for O_TMPFILE", rustix::fs::linkat(CWD, &place, CWD, dir.join("t"), AtFlags::SYMLINK_FOLLOW));
    diary.stat("named", &dir.join("t"));
    diary.io("fsync", file.sync_all());
    diary.sys("fsync of a directory", rustix::fs::fsync(File::open(dir).unwrap()));
}

/// Notes the usage that du(1) shows: data that replaces other data is not counted twice, whether it
/// is on disk yet or not.
fn blocks(dir: &Path, diary: &mut Diary) {
    let open = |name: &str| {
        let path = dir.join(name);
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let mut seen = |what: &str, file: &File| {
        diary.note(what, file.metadata().unwrap().blocks());
        file.sync_all().unwrap();
        diary.note("on disk", file.metadata().unwrap().blocks());
    };
    for size in [1, 2048, 2049, 100_000] {
        let file = open(&format!("{size}"));
        file.write_all_at(&vec![1; size], 0).unwrap();
        seen("written", &file);
        file.write_all_at(&vec![2; size], 0).unwrap();
        seen("written again", &file);
        file.set_len(size as u64 / 4096 * 4096 + 12288).unwrap();
        seen("grown", &file);
        file.write_all_at(b"far", 1 << 40).unwrap();
        file.write_all_at(b"near", 3).unwrap();
        seen("written here and there", &file);
        file.set_len(size as u64 / 2).unwrap();
        seen("truncate", &file);
    }
    let file = open("many");
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    seen("a large one", &file);
    for at in (0..1 << 20).step_by(16384) {
        file.write_all_at(b"x", at).unwrap();
    }
    seen("written in many places", &file);
}

fn attributes(dir: &Path, diary: &mut Diary) {
    let path = dir.join("f");
    fs::write(&path, "content").unwrap();
    let time = |sec, nsec| Timespec { tv_sec: sec, tv_nsec: nsec };
    let times = Timestamps { last_access: time(-5, 123_456_789), last_modification: time(4_000_000_000, 1) };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let meta = fs::metadata(&path).unwrap();
    diary.note("times", (meta.atime(), meta.atime_nsec(), meta.mtime(), meta.mtime_nsec()));
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).unwrap();
    diary.note("born", (statx.stx_mask & StatxFlags::BTIME.bits() != 0, statx.stx_btime.tv_sec > 1_600_000_000));
    let old = Timestamps { last_access: time(5, 5), last_modification: time(9, 9) };
    let (link, sub) = (dir.join("link"), dir.join("sub"));
    symlink("f", &link).unwrap();
    fs::create_dir(&sub).unwrap();
    for place in [&link, &sub] {
        rustix::fs::utimensat(CWD, place, &old, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        diary.stat("unread", place);
        let _ = (fs::read_link(&link), fs::read_dir(&sub).unwrap().count());
        diary.note("reading changes atime", fs::symlink_metadata(place).unwrap().atime() != 5);
        diary.note("but not mtime", fs::symlink_metadata(place).unwrap().mtime());
    }
    let before = meta.ctime_nsec();
    mode(&path, 0o640);
    diary.note("chmod changes ctime", fs::metadata(&path).unwrap().ctime_nsec() != before);
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    for (name, value, flags) in [
        ("user.a", &b"value"[..], XattrFlags::empty()),
        ("user.a", b"again", XattrFlags::CREATE),
        ("user.a", b"again", XattrFlags::REPLACE),
        ("user.b", b"", XattrFlags::REPLACE),
        ("user.empty", b"", XattrFlags::empty()),
        ("trusted.t", &[0, 255], XattrFlags::CREATE),
        ("security.s", b"s", XattrFlags::empty()),
        ("nonsense.x", b"x", XattrFlags::empty()),
        ("system.x", b"x", XattrFlags::empty()),
        ("user.", b"x", XattrFlags::empty()),
        ("user.large", &[1; 16000], XattrFlags::empty()),
        ("user.larger", &vec![1; 17000], XattrFlags::empty()),
    ] {
        diary.sys(name, set(name, value, flags));
    }
    let mut list = ubtrfs_testkit::walk::xattrs(&path).unwrap();
    list.remove(&b"user.large"[..]);
    diary.note("xattrs", list);
    for name in ["nonsense.x", "system.x", "user", "user.none"] {
        diary.sys(name, rustix::fs::getxattr(&path, name, &mut [0_u8; 8][..]));
    }
    let mut small = [0; 2];
    diary.note("no room", rustix::fs::getxattr(&path, "user.a", &mut small[..]));
    diary.note("asked for the size", rustix::fs::getxattr(&path, "user.a", &mut [0_u8; 0][..]));
    diary.sys("remove", rustix::fs::removexattr(&path, "user.a"));
    diary.sys("remove again", rustix::fs::removexattr(&path, "user.a"));
}

/// Set-id bits and capabilities are cleared when another user writes, or when the owner changes.
fn privileges(dir: &Path, diary: &mut Diary) {
    mode(dir, 0o777);
    let path = dir.join("f");
    let ways = [
        "echo >> f",
        "truncate -s 3 f",
        ": > f",
        "dd if=/dev/zero of=f bs=4k count=1 oflag=direct conv=notrunc status=none",
    ];
    for way in ways {
        // Only the kernel clears the set-group-id bit of a file that its group may not execute, and
        // only if the writer is not in the group, which FUSE doesn't report.
        for bits in [0o6777, 0o4767] {
            fs::write(&path, "content").unwrap();
            mode(&path, bits);
            rustix::fs::setxattr(&path, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
            diary.note("stat before", format!("{:o}", fs::metadata(&path).unwrap().mode()));
            let status = as_user(dir, way);
            let left = rustix::fs::getxattr(&path, "security.capability", &mut [0_u8; 64][..]);
            diary.note(way, (status, format!("{:o}", fs::metadata(&path).unwrap().mode()), left));
        }
    }
    // A chown without owner and group is refused to other users, by ubtrfs without an error; it
    // must not clear any bits.
    let nobody = "python3 -c 'import os; os.chown(\"f\", -1, -1)' 2> /dev/null; true";
    for (owner, way) in [(0, nobody), (1000, nobody), (0, "fallocate -p -l 4096 f"), (1000, "fallocate -p -l 4096 f")] {
        fs::write(&path, "content").unwrap();
        std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
        mode(&path, 0o6777);
        diary.note(way, as_user(dir, way));
        diary.stat("what is left", &path);
        fs::remove_file(&path).unwrap();
    }
    for bits in [0o6755, 0o2644] {
        fs::write(&path, "content").unwrap();
        mode(&path, bits);
        std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
        diary.stat("chown", &path);
        diary.note("chmod by the owner", as_user(dir, "chmod 2755 f"));
        diary.stat("after it", &path);
        fs::remove_file(&path).unwrap();
    }
    fs::create_dir(dir.join("group")).unwrap();
    std::os::unix::fs::chown(dir.join("group"), Some(0), Some(1234)).unwrap();
    mode(&dir.join("group"), 0o2777);
    diary.note("in a set-group-id directory", as_user(dir, "umask 002; mkdir group/d; touch group/f"));
    diary.stat("its directory", &dir.join("group/d"));
    diary.stat("its file", &dir.join("group/f"));
    mode(dir, 0o755);
    diary.note("not allowed", as_user(dir, "touch new"));
    diary.note("nor this", as_user(dir, "rm -f group/../group/f && rm f"));
}

/// `cap_net_raw+ep`, as setcap(8) writes it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn lists(dir: &Path, diary: &mut Diary) {
    let script = "
        umask 027; mkdir plain; touch plain/f; mkdir plain/d; mknod plain/p p; stat -c '%A %n' plain plain/*
        mkdir d; setfacl -d -m u:1000:rwx,g:1234:r d; umask 077
        touch d/f; mkdir d/d; mknod d/p p; ln -s x d/s; stat -c '%A %n' d/*; getfacl -n d d/f d/d d/p
        setfacl -m u:1000:rw d/f; chmod 640 d/f; getfacl -n d/f; setfacl -x u:1000 d/f; getfacl -n d/f
        setfacl -b d/f; getfacl -n d/f; getfattr -m - d/f; setfacl -k d; getfattr -m - d; setfacl -b d/d; touch d/d/g; getfacl -n d/d/g
        setfacl -d -m u:5:r d/f; chmod 2777 d/d; setfacl -m u:7:rwx,m::r d/d; stat -c %A d/d; touch same; setfacl -m u::rw,g::r,o::- same; getfattr -m - same; stat -c %A same";
    let outcome = run(command("sh", &["-c", script]).current_dir(dir));
    diary.0.extend(outcome.stdout.lines().map(ToOwned::to_owned));
    diary.0.extend(outcome.stderr.lines().map(ToOwned::to_owned));
}

fn tour(dir: &Path) -> Vec<String> {
    let mut diary = Diary::default();
    for (name, part) in [
        ("names", names as fn(&Path, &mut Diary)),
        ("links", links),
        ("data", data),
        ("blocks", blocks),
        ("attributes", attributes),
        ("privileges", privileges),
        ("lists", lists),
    ] {
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        part(&dir, &mut diary);
    }
    diary.0
}

/// A page that was written when that was allowed is not lost if the file is made immutable before
/// the writeback.
#[test]
fn mapped_pages_outlive_a_flag_that_forbids_writing() {
    require!(Need::Root, FUSE);
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        let volume = Volume::new();
        volume.mount("");
        let path = volume.point.join("file");
        fs::write(&path, vec![b'a'; 8192]).unwrap();
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        mapped::write_and(&file, b"new", || rustix::fs::ioctl_setflags(&file, flag).unwrap()).unwrap();
        file.sync_all().unwrap();
        drop(file);
        volume.umount();
        assert!(cat(&volume.image, "/file").starts_with("newaaa"), "{flag:?}");
        volume.check();
    }
}

/// FUSE has no request for the open, so the write has to fail, and no reader may see the refused
/// data afterwards.
#[test]
fn files_that_must_not_change_do_not_through_mappings() {
    require!(Need::Root, FUSE);
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        let volume = Volume::new();
        volume.mount("");
        let path = volume.point.join("file");
        fs::write(&path, "original").unwrap();
        rustix::fs::ioctl_setflags(fs::File::open(&path).unwrap(), flag).unwrap();
        for remounted in [false, true] {
            if remounted {
                volume.umount();
                volume.mount("");
            }
            let file = fs::File::options().read(true).write(true).open(&path).unwrap();
            mapped::exchange(&file, 0, b"changed!").unwrap_err();
            file.write_all_at(b" and more", 8).unwrap_err();
            // The process that syncs this file gets the error, and those that sync the mount don't.
            let top = fs::File::open(&volume.point).unwrap();
            mapped::write_and(&file, b"changed!", || rustix::fs::syncfs(&top).unwrap()).unwrap();
            rustix::fs::syncfs(&top).unwrap();
            assert_eq!(file.sync_all().unwrap_err().kind(), ErrorKind::PermissionDenied, "{flag:?}");
            file.sync_all().unwrap();
            drop(file);
            let deadline = Instant::now() + Duration::from_secs(60);
            while fs::read(&path).unwrap() != b"original" {
                assert!(Instant::now() < deadline, "{flag:?}: the page that could not be written stays");
            }
        }
        fs::File::options().append(true).open(&path).unwrap().write_all(b" and more").unwrap_or_else(|error| {
            assert_eq!((flag, error.raw_os_error()), (IFlags::IMMUTABLE, Some(rustix::io::Errno::PERM.raw_os_error())));
        });
        volume.umount();
        let wanted = if flag == IFlags::APPEND { "original and more" } else { "original" };
        assert_eq!(cat(&volume.image, "/file"), wanted, "{flag:?}");
        volume.check();
    }
}

#[test]
fn all_operations_end_as_the_kernels_do() {
    require!(Need::Kernel, FUSE, Need::Tool("setpriv"), Need::Tool("setfacl"), Need::Tool("getfattr"));
    let volume = Volume::new();
    volume.mount("");
    let ours = tour(&volume.point);
    volume.umount();
    volume.check();

    volume.assert_kernels_tour_is_the_same(&ours, tour);

    // The kernel sees the same in our volume as it would have made itself.
    let ours = KernelMount::new(&[&volume.image], "");
    for name in ["chr", "blk"] {
        let seen = fs::symlink_metadata(ours.path().join("names").join(name)).unwrap().rdev();
        let wanted = if name == "chr" { (10, 74565) } else { (4095, 1_048_575) };
        assert_eq!((rustix::fs::major(seen), rustix::fs::minor(seen)), wanted);
    }
    assert_eq!(ours.unmount(), Vec::<String>::new());
}

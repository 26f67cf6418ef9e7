//! Tests that programs get the same answers as from the kernel's driver: about operations that file
//! flags forbid, placeholders of subvolumes, and deleted subvolumes.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, RenameFlags, XattrFlags, copy_file_range, renameat_with, setxattr};
use rustix::io::Errno;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{Volume, cat, ubtrfs};

fn said<T>(what: &str, result: Result<T, impl Into<io::Error>>) -> String {
    match result.map_err(Into::into) {
        Ok(_) => format!("{what}: OK"),
        Err(error) => format!("{what}: {:?}", Errno::from_io_error(&error)),
    }
}

fn make(what: &str, places: &[&Path]) {
    let words = ["subvolume", what].into_iter().map(OsStr::new);
    ubtrfs(&words.chain(places.iter().map(|place| place.as_os_str())).collect::<Vec<_>>()).ok();
}

fn chattr(change: &str, path: &Path) {
    run(command("chattr", &[change]).arg(path)).ok();
}

/// Returns the results of opening a file with all kinds of access.
fn openings(path: &Path, what: &str) -> Vec<String> {
    let (append, truncate) = (libc::O_APPEND, libc::O_TRUNC);
    let mut said_of = Vec::new();
    for (reads, writes) in [(true, false), (false, true), (true, true)] {
        for flags in [0, append, truncate, append | truncate] {
            let opened = OpenOptions::new().read(reads).write(writes).custom_flags(flags).open(path);
            said_of.push(said(&format!("{what}, reads {reads}, writes {writes}, flags {flags:o}"), opened));
        }
    }
    said_of
}

fn tour_of_openings(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for change in ["+i", "+a", "+ia"] {
        let path = dir.join(change);
        fs::write(&path, "content").unwrap();
        chattr(change, &path);
        all.extend(openings(&path, change));
        chattr("-ia", &path);
        all.extend(openings(&path, "again"));
    }
    all
}

#[test]
fn files_whose_flags_forbid_it_are_not_opened_for_writing() {
    require!(Need::Kernel, Need::Fuse, Need::Tool("chattr"));
    let volume = Volume::new();
    volume.mount("check_open=always");
    let ours = tour_of_openings(&volume.point);
    volume.umount();
    volume.assert_kernels_tour_is_the_same(&ours, tour_of_openings);
}

fn tour_of_placeholders(dir: &Path) -> Vec<String> {
    let place = |name: &str| dir.join(name);
    make("create", &[&place("source")]);
    make("create", &[&place("source/nested")]);
    make("snapshot", &[&place("source"), &place("snapshot")]);
    let nested = place("snapshot/nested");
    let mode = |what: &str| format!("{what}: {:o}", fs::metadata(&nested).unwrap().permissions().mode());
    let mut all = vec![
        said("chmod", fs::set_permissions(&nested, PermissionsExt::from_mode(0o700))),
        said("chown", chown(&nested, Some(1), Some(1))),
        said("utimes", run_touch(&nested)),
        mode("mode"),
        said("mkdir", fs::create_dir(nested.join("a"))),
    ];
    for name in ["user.a", "trusted.a", "security.a", "btrfs.compression", "odd.a"] {
        all.push(said(name, setxattr(&nested, name, b"zlib", XattrFlags::empty())));
    }
    all.push(said("removexattr", rustix::fs::removexattr(&nested, "user.a")));
    let acl = run(command("setfacl", &["-m", "u:1:rwx"]).arg(&nested));
    all.push(format!("setfacl: {:?}", acl.success()));
    all.push(said("create in it", run_ubtrfs(&["subvolume", "create"], &nested.join("a"))));
    all.push(said("rmdir", fs::remove_dir(&nested)));
    all
}

fn run_touch(path: &Path) -> io::Result<()> {
    File::open(path)?.set_modified(std::time::UNIX_EPOCH)
}

/// Runs a command, and returns the system's error with which it ends.
fn run_ubtrfs(words: &[&str], path: &Path) -> io::Result<()> {
    let outcome = ubtrfs(&words.iter().map(OsStr::new).chain([path.as_os_str()]).collect::<Vec<_>>());
    if outcome.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOTTY)) }
}

#[test]
fn placeholders_of_subvolumes_answer_as_the_kernels() {
    require!(Need::Kernel, Need::Fuse, Need::Tool("setfacl"));
    let volume = Volume::new();
    volume.mount("");
    let ours = tour_of_placeholders(&volume.point);
    volume.umount();
    volume.check();
    volume.assert_kernels_tour_is_the_same(&ours, tour_of_placeholders);
}

/// Sets flags of files and directories by `FS_IOC_SETFLAGS`, for each initial value of
/// `btrfs.compression` and each of the flags that another call has set, and prints the resulting
/// state.
const FLAGS_AND_PROPERTIES: &str = r"
import errno, fcntl, os, struct, sys
GET, SET, PROPERTY = 0x80086601, 0x40086602, 'btrfs.compression'
c, i, a, m, A = 0x4, 0x10, 0x20, 0x400, 0x80
def set_flags(fd, flags):
    try: fcntl.ioctl(fd, SET, struct.pack('l', flags)); return 'OK'
    except OSError as error: return errno.errorcode[error.errno]
def state(path, fd):
    try: value = os.getxattr(path, PROPERTY)
    except OSError: value = b''
    return value, hex(struct.unpack('l', fcntl.ioctl(fd, GET, bytes(8)))[0])
for kind in 'file', 'directory':
    for value in b'', b'no', b'lzo', b'zlib', b'zstd':
        for first in 0, i, a, c, c|i, c|a, m, m|i:
            for second in 0, A, i, a, c, c|i, c|a, c|A, m, m|i, m|a:
                path = os.path.join(sys.argv[1], 'it')
                os.mkdir(path) if kind == 'directory' else open(path, 'w').close()
                if value: os.setxattr(path, PROPERTY, value)
                fd = os.open(path, os.O_RDONLY)
                print(kind, value, hex(first), set_flags(fd, first), *state(path, fd),
                      hex(second), set_flags(fd, second), *state(path, fd))
                set_flags(fd, 0)
                os.close(fd)
                os.rmdir(path) if kind == 'directory' else os.unlink(path)
";

#[test]
fn flags_and_the_property_of_compression_change_together_as_the_kernels() {
    fn tour(dir: &Path) -> Vec<String> {
        let said = run(command("python3", &["-c", FLAGS_AND_PROPERTIES]).arg(dir)).ok().stdout;
        said.lines().map(str::to_owned).collect()
    }
    require!(Need::Kernel, Need::Fuse, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let ours = tour(&volume.point);
    assert_eq!(ours.len(), 880);
    volume.umount();
    volume.check();
    volume.assert_kernels_tour_is_the_same(&ours, tour);
}

/// Makes subvolumes through a descriptor of a deleted subvolume.
const IN_DELETED: &str = r#"
import errno, fcntl, os, struct, sys
def ioctl(dir, number, source, name):
    try:
        fcntl.ioctl(dir, number, bytearray(struct.pack("<q4088s", source, name.encode())))
        return "OK"
    except OSError as error:
        return errno.errorcode[error.errno]
top = os.open(sys.argv[1], os.O_RDONLY)
gone = os.open(sys.argv[1] + "/gone", os.O_RDONLY)
print(ioctl(top, 0x5000940f, 0, "gone"), ioctl(top, 0x50009401, gone, "a"), ioctl(gone, 0x5000940e, 0, "b"))
"#;

#[test]
fn nothing_is_made_of_a_subvolume_that_was_deleted() {
    fn tour(dir: &Path) -> Vec<String> {
        make("create", &[&dir.join("gone")]);
        vec![run(command("python3", &["-c", IN_DELETED]).arg(dir)).ok().stdout]
    }
    require!(Need::Kernel, Need::Fuse, Need::Tool("python3"));
    let volume = Volume::new();
    volume.mount("");
    let ours = tour(&volume.point);
    assert_eq!(ours, ["OK ENOENT ENOENT\n"]);
    volume.umount();
    volume.assert_kernels_tour_is_the_same(&ours, tour);
}

#[test]
fn subvolumes_that_were_deleted_or_moved_are_listed_as_they_are_before_a_commit() {
    require!(Need::Root, Need::Fuse);
    let volume = Volume::new();
    volume.mount("commit=1000");
    for name in ["deleted", "moved"] {
        make("create", &[&volume.point.join(name)]);
    }
    let listed = || ubtrfs(&["subvolume".as_ref(), "list".as_ref(), volume.point.as_os_str()]).ok().stdout;
    assert!(listed().contains("path deleted") && listed().contains("path moved"));
    make("delete", &[&volume.point.join("deleted")]);
    assert!(!listed().contains("path deleted"), "{}", listed());
    fs::rename(volume.point.join("moved"), volume.point.join("elsewhere")).unwrap();
    assert!(listed().contains("path elsewhere") && !listed().contains("path moved"), "{}", listed());
    volume.umount();
}

/// Another subvolume that gets the name meanwhile is not deleted.
#[test]
fn a_subvolume_that_is_deleted_by_its_number_is_that_one() {
    const ROUNDS: u32 = 40;
    require!(Need::Root, Need::Fuse);
    let volume = Volume::new();
    volume.mount("");
    let place = |name: &str| volume.point.join(name);
    make("create", &[&place("kept")]);
    fs::write(place("kept/file"), "kept").unwrap();
    for round in 0..ROUNDS {
        make("create", &[&place("victim")]);
        let shown = ubtrfs(&["subvolume".as_ref(), "list".as_ref(), volume.point.as_os_str()]).ok().stdout;
        let number = shown.lines().find(|line| line.ends_with("path victim")).unwrap().split(' ').nth(1).unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let _ = renameat_with(CWD, place("kept"), CWD, place("victim"), RenameFlags::EXCHANGE);
                }
            });
            let line = ["subvolume", "delete", "--subvolid", number].map(OsStr::new);
            let deleted = ubtrfs(&line.into_iter().chain([volume.point.as_os_str()]).collect::<Vec<_>>());
            ends.store(true, Ordering::Relaxed);
            deleted.ok();
        });
        let left = ["kept", "victim"].map(|name| fs::read_to_string(place(name).join("file")).ok());
        let kept = left.iter().flatten().collect::<Vec<_>>();
        assert_eq!(kept, ["kept"], "round {round}");
        if left[0].is_none() {
            fs::rename(place("victim"), place("kept")).unwrap();
        }
    }
    volume.umount();
    volume.check();
}

/// If the target is open for durable writes, what `copy_file_range` shares is durable when it
/// returns.
#[test]
fn copies_into_files_that_are_open_for_durable_writes_are_durable() {
    require!(Need::Root, Need::Fuse);
    for flags in [libc::O_DSYNC, libc::O_SYNC] {
        let volume = Volume::new();
        volume.mount("commit=1000");
        let content = vec![b'a'; 256 << 10];
        let source = File::create_new(volume.point.join("source")).unwrap();
        source.write_all_at(&content, 0).unwrap();
        source.sync_all().unwrap();
        drop(source);
        let source = File::open(volume.point.join("source")).unwrap();
        let mut target = OpenOptions::new();
        let target = target.write(true).create(true).truncate(true).custom_flags(flags);
        let target = target.open(volume.point.join("target")).unwrap();
        let mut left = content.len();
        while left > 0 {
            left -= copy_file_range(&source, None, &target, None, left).unwrap();
        }
        let copy = volume.dir.path().join("copy");
        fs::copy(&volume.image, &copy).unwrap();
        assert_eq!(cat(&copy, "/target").len(), content.len(), "flags {flags:o}");
        drop(source);
        drop(target);
        volume.umount();
    }
}

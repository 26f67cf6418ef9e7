//! Tests the attempts of a user who may only use the mount: every ioctl number, flag, kind of xattr
//! and name. Only the user's own files change, the server does not grow notably, and the mount
//! continues to serve other users (invariant 27).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, IFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::actors::Actor;
use crate::harness::{FUSE, Volume, ubtrfs};
use crate::operations::open;
use crate::run::{Outcomes, compare, short};

const OTHERS: u32 = 1003;

const SETFLAGS: u32 = 0x4008_6602;
const SETFLAGS_32: u32 = 0x4004_6602;
const FSSETXATTR: u32 = 0x401c_5820;
const FITRIM: u32 = 0xc018_5879;
const TREE_SEARCH: u32 = 0xd000_9411;
const SCRUB: u32 = 0xc400_941b;
const SCRUB_CANCEL: u32 = 0x941c;
const SCRUB_PROGRESS: u32 = 0xc400_941d;

/// A buffer as large as the argument of any ioctl.
type Argument = [u8; 1 << 14];

fn ioctl(file: &impl AsRawFd, command: u32, argument: &mut Argument) -> Result<i32, Errno> {
    // SAFETY: a command encodes the size of its argument in 14 bits, and the buffer is larger than
    // that; the file is open.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(command), argument.as_mut_ptr()) };
    if done < 0 { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()) } else { Ok(done) }
}

/// Calls an ioctl whose argument begins with this word.
fn ioctl_of_word(file: &impl AsRawFd, command: u32, word: u32) -> Result<i32, Errno> {
    let mut argument = [0; 1 << 14];
    argument[..4].copy_from_slice(&word.to_ne_bytes());
    ioctl(file, command, &mut argument)
}

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
}

/// Makes the files of the actor and of other users.
fn furnish(root: &Path) {
    mode(root, 0o755);
    fs::write(root.join("readable"), "content").unwrap();
    fs::write(root.join("secret"), "secret").unwrap();
    mode(&root.join("secret"), 0o600);
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/entry"), "entry").unwrap();
    fs::write(root.join("kept"), "kept").unwrap();
    for name in ["readable", "dir"] {
        rustix::fs::setxattr(root.join(name), "user.kept", b"kept", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(root.join(name), "trusted.kept", b"kept", XattrFlags::empty()).unwrap();
    }
    rustix::fs::ioctl_setflags(File::open(root.join("kept")).unwrap(), IFlags::IMMUTABLE | IFlags::NODUMP).unwrap();
    fs::create_dir(root.join("own")).unwrap();
    fs::write(root.join("own/file"), "own").unwrap();
    for name in ["own", "own/file"] {
        lchown(root.join(name), Some(OTHERS), Some(OTHERS)).unwrap();
    }
}

/// Returns the attributes, flags, xattrs and content of other users' files.
fn state_of(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut names = vec![root.to_path_buf()];
    for entry in fs::read_dir(root).unwrap().chain(fs::read_dir(root.join("dir")).unwrap()) {
        names.push(entry.unwrap().path());
    }
    let reported = |path: &PathBuf| {
        let meta = fs::symlink_metadata(path).unwrap();
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let flags = rustix::fs::ioctl_getflags(File::open(path).unwrap()).unwrap();
        let mut list = [0_u8; 4096];
        let xattrs = rustix::fs::listxattr(path, &mut list[..]).map(|length| list[..length].to_vec());
        let content = fs::read(path).ok();
        let ids = (meta.mode(), meta.nlink(), meta.uid(), meta.gid(), meta.size(), meta.blocks());
        format!("{ids:?} {times:?} {flags:?} {xattrs:?} {content:?}")
    };
    names.iter().filter(|path| !path.ends_with("own")).map(|path| (path.clone(), reported(path))).collect()
}

fn opened(root: &Path) -> Vec<File> {
    let open = |name: &str| open(&root.join(name), OFlags::RDONLY).ok().map(File::from);
    let files: Vec<File> = ["readable", "dir", "kept", "secret", "", "own"].into_iter().filter_map(open).collect();
    assert_eq!(files.len(), 5, "only the secret is one");
    files
}

/// Calls all numbers of all types with an argument of one size. For types that file systems use, it
/// calls them with all directions and many sizes.
fn all_ioctls(root: &Path) {
    const TYPES: [u32; 5] = [0x94, b'f' as u32, b'X' as u32, 0, b'v' as u32];
    const SIZES: [u32; 8] = [0, 4, 8, 24, 28, 1024, 4096, 0x3fff];
    let files = opened(root);
    let mut garbage = [0; 1 << 14];
    for (number, byte) in garbage.iter_mut().enumerate() {
        *byte = (number.wrapping_mul(2_654_435_761) >> 13) as u8;
    }
    let contents: Vec<Argument> = vec![[0; 1 << 14], [0xff; 1 << 14], garbage];
    for number in 0..1 << 16 {
        let content = number as usize % contents.len();
        let _ =
            ioctl(&files[number as usize % files.len()], 3 << 30 | 64 << 16 | number, &mut contents[content].clone());
    }
    for kind in TYPES {
        for number in 0..256 {
            for (step, size) in SIZES.iter().enumerate() {
                for direction in 0..4 {
                    let command = direction << 30 | size << 16 | kind << 8 | number;
                    let content = (step + number as usize) % contents.len();
                    let _ = ioctl(&files[step % 2], command, &mut contents[content].clone());
                }
            }
        }
    }
}

/// Sets each bit of the flags by each ioctl that sets flags.
fn all_flags(root: &Path) {
    for file in opened(root) {
        let is_own = file.metadata().unwrap().uid() == OTHERS;
        for command in [SETFLAGS, SETFLAGS_32, FSSETXATTR] {
            for bits in (0..32).map(|bit| 1 << bit).chain([0, 0x40]) {
                let done = ioctl_of_word(&file, command, bits);
                assert!(is_own || done.is_err(), "{command:x} {bits:x}");
            }
        }
        for command in [SETFLAGS, SETFLAGS_32, FSSETXATTR] {
            for restricting in if command == FSSETXATTR { [0x8, 0x10] } else { [0x10, 0x20] } {
                let refused = if command == SETFLAGS_32 { Errno::NOTTY } else { Errno::PERM };
                assert_eq!(ioctl_of_word(&file, command, restricting), Err(refused), "{command:x}");
            }
        }
        assert_eq!(ioctl_of_word(&file, FITRIM, 0), Err(Errno::PERM));
        assert_eq!(ioctl_of_word(&file, TREE_SEARCH, 5), Err(Errno::PERM));
        for command in [SCRUB, SCRUB_CANCEL, SCRUB_PROGRESS] {
            assert_eq!(ioctl_of_word(&file, command, 1), Err(Errno::PERM), "{command:x}");
        }
    }
}

fn all_xattrs(root: &Path) {
    const NAMESPACES: [&str; 9] =
        ["user.", "trusted.", "security.", "system.", "btrfs.", "ubtrfs.", "", "none.", "system.posix_acl_"];
    let names =
        ["", "x", "kept", "access", "default", "compression", "capability", "selinux", "stats", "sync", "\u{1}"]
            .map(str::to_owned)
            .into_iter()
            .chain([1, 200, 255].map(|length| "n".repeat(length)));
    let acl =
        [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 7, 0, 255, 255, 255, 255, 32, 0, 7, 0, 255, 255, 255, 255];
    let long = vec![b'z'; 1 << 16];
    let values: [&[u8]; 6] = [b"", b"x", b"zstd", &acl, &acl[..21], &long];
    let paths = ["readable", "secret", "dir", "kept", "", "own", "own/file"].map(|name| root.join(name));
    for name in names {
        for namespace in NAMESPACES {
            let name = format!("{namespace}{name}");
            for path in &paths {
                for value in values {
                    let _ = rustix::fs::setxattr(path, &*name, value, XattrFlags::empty());
                }
                let _ = rustix::fs::getxattr(path, &*name, &mut [0_u8; 4096][..]);
                let _ = rustix::fs::removexattr(path, &*name);
            }
        }
    }
}

fn all_names(root: &Path) {
    let long = |length| vec![b'n'; length];
    let names: Vec<Vec<u8>> = [
        &b""[..],
        b".",
        b"..",
        b"/",
        b"a/b",
        b"../readable",
        b"entry",
        b"\n",
        b"\xff\xfe",
        b" ",
        b"file",
        b"..\xff",
        b"../dir/entry",
        b"...",
    ]
    .into_iter()
    .map(<[u8]>::to_vec)
    .chain([long(254), long(255), long(256), long(4095), b"../".repeat(300)])
    .collect();
    let any = Mode::from_raw_mode(0o777);
    for dir in ["own", "dir", ""].map(|name| root.join(name)) {
        for name in &names {
            let mut path = dir.as_os_str().as_bytes().to_vec();
            path.push(b'/');
            path.extend(name);
            let path = Path::new(OsStr::from_bytes(&path)).to_owned();
            let readable = root.join("readable");
            let _ = open(&path, OFlags::CREATE | OFlags::WRONLY);
            let _ = rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, any, 0);
            let _ = rustix::fs::mknodat(CWD, &path, FileType::Fifo, any, 0);
            let _ = rustix::fs::unlink(&path);
            let _ = rustix::fs::mkdir(&path, any);
            let _ = rustix::fs::symlink("/etc/shadow", &path);
            let _ = rustix::fs::rename(&readable, &path);
            let _ = rustix::fs::renameat_with(CWD, &path, CWD, &readable, RenameFlags::EXCHANGE);
            let _ = rustix::fs::rename(root.join("own/file"), &path);
            let _ = rustix::fs::rename(&path, root.join("own/file"));
            let _ = rustix::fs::chmod(&path, Mode::from_raw_mode(0o7777));
            let _ = rustix::fs::unlink(&path);
            let _ = rustix::fs::rmdir(&path);
        }
    }
}

/// Opens handles of inodes without a path.
fn all_handles(root: &Path) {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        content: [u32; 6],
    }
    let mount = File::open(root).unwrap();
    for kind in [0x81, 0x82, 1, 2, 0x4d, 0x4e] {
        for inode in [0, 1, 5, 256, 257, 258, u32::MAX] {
            for bytes in [12, 24, 20] {
                let mut handle = Handle { bytes, kind, content: [0, inode, 0, 0, inode, 0] };
                // SAFETY: the handle has room for all the bytes that its length says.
                let opened =
                    unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut handle, 0) };
                assert_eq!(opened, -1);
            }
        }
    }
}

/// Returns how many bytes of memory a process uses.
fn resident(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn users_change_only_their_own_files() {
    const MIB: u64 = 1 << 20;
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    mode(volume.dir.path(), 0o755);
    volume.mount("allow_other");
    furnish(&volume.point);
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    let before = state_of(&volume.point);
    let pid = volume.stats()["pid"].as_u64().unwrap();
    let memory = resident(pid);
    for attempt in [all_ioctls, all_flags, all_xattrs, all_names, all_handles] {
        Actor::Other.does_with_umask(0, || attempt(&volume.point));
        let after = state_of(&volume.point);
        let changed: Vec<_> = before.iter().filter(|(path, reported)| after.get(*path) != Some(*reported)).collect();
        assert!(changed.is_empty(), "{changed:#?} became {after:#?}");
        assert_eq!(before.len(), after.len(), "{after:#?}");
    }
    let grown = resident(pid).saturating_sub(memory);
    assert!(grown < 64 * MIB, "the server grew by {grown} bytes");
    fs::write(volume.point.join("dir/another"), "by root").unwrap();
    File::open(volume.point.join("dir/another")).unwrap().sync_all().unwrap();
    assert_eq!(volume.stats()["read_only"], false);
    volume.umount();
    volume.check();
}

/// Neither user id 0 nor a capability in a user's own user namespace gives any rights.
#[test]
fn numbers_and_namespaces_of_ones_own_are_no_powers() {
    const SCRIPT: &str = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
def ask(command, argument):
    try: fcntl.ioctl(fd, command, bytearray(argument)); return 0
    except OSError as error: return error.errno
flag = lambda bits: struct.pack('<I', bits)
print(ask(0x40086602, flag(0x10)), ask(0x40086602, flag(0x40)), ask(0xc0185879, struct.pack('<3Q', 0, 2**64 - 1, 0)),
      ask(0xd0009411, bytes(4096)))
";
    require!(Need::Root, FUSE, Need::Tool("unshare"), Need::Tool("python3"));
    let volume = Volume::new();
    mode(volume.dir.path(), 0o755);
    volume.mount("allow_other");
    furnish(&volume.point);
    let readable = volume.point.join("readable");
    Actor::PowerlessRoot.does(|| {
        let file = File::open(&readable).unwrap();
        assert_eq!(ioctl_of_word(&file, FITRIM, 0), Err(Errno::PERM));
        assert_eq!(ioctl_of_word(&file, TREE_SEARCH, 5), Err(Errno::PERM));
        for command in [SCRUB, SCRUB_CANCEL, SCRUB_PROGRESS] {
            assert_eq!(ioctl_of_word(&file, command, 1), Err(Errno::PERM), "{command:x}");
        }
        assert_eq!(ioctl_of_word(&file, SETFLAGS, 0x10), Err(Errno::PERM));
        assert_eq!(ioctl_of_word(&file, SETFLAGS, 0x40), Ok(0), "it is root's file");
        assert_eq!(ioctl_of_word(&file, SETFLAGS, 0), Ok(0));
    });
    let mut line = command("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups"]);
    line.args(["unshare", "--user", "--map-root-user", "python3", "-c", SCRIPT]).arg(&readable);
    let outcome = run(&mut line);
    if outcome.stderr.contains("unshare") {
        eprintln!("nobody makes user namespaces here: {}", outcome.stderr);
    } else {
        assert_eq!(outcome.ok().stdout.trim(), "1 1 1 1");
    }
    // Actors with the capabilities can use them.
    let file = File::open(&readable).unwrap();
    assert_eq!(ioctl_of_word(&file, SETFLAGS, 0x10), Ok(0));
    assert_eq!(ioctl_of_word(&file, SETFLAGS, 0), Ok(0));
    drop(file);
    volume.umount();
    volume.check();
}

/// Returns whether each actor may set flags, by each of the ioctls that the kernel's driver has for
/// that.
fn flags_of_others(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let path = root.join("file");
    for before in [0, 0x10, 0x20, 0x40, 0x50] {
        for wanted in [0, 0x10, 0x20, 0x40, 0x50, 0x60, 0x80_0000] {
            for actor in Actor::ALL {
                for (name, command) in
                    [("setflags", SETFLAGS), ("setflags of 32 bits", SETFLAGS_32), ("fssetxattr", FSSETXATTR)]
                {
                    fs::write(&path, "content").unwrap();
                    mode(&path, 0o666);
                    lchown(&path, Some(1000), Some(1000)).unwrap();
                    let file = File::open(&path).unwrap();
                    ioctl_of_word(&file, SETFLAGS, before).unwrap();
                    let done = actor.does(|| short(ioctl_of_word(&File::open(&path).unwrap(), command, wanted)));
                    let flags = rustix::fs::ioctl_getflags(&file).unwrap();
                    outcomes.insert(format!("{before:x} {wanted:x} {actor:?} {name}"), format!("{done} {flags:?}"));
                    ioctl_of_word(&file, SETFLAGS, 0).unwrap();
                    fs::remove_file(&path).unwrap();
                }
            }
        }
    }
    outcomes
}

#[test]
fn flags_are_set_by_those_whom_the_kernel_lets() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), flags_of_others, &[]);
}

/// On a mount that shows the volume read-only, or with other owners, no ioctl sets what the mount
/// forbids.
fn flags_through_a_read_only_mount(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let (dir, bound) = (root.join("dir"), root.join("bound"));
    for path in [&dir, &bound] {
        fs::create_dir(path).unwrap();
    }
    fs::write(dir.join("file"), "content").unwrap();
    lchown(dir.join("file"), Some(OTHERS), Some(OTHERS)).unwrap();
    run(&mut command("mount", &["--bind".as_ref(), dir.as_os_str(), bound.as_os_str()])).ok();
    run(&mut command("mount", &["-o".as_ref(), "remount,bind,ro".as_ref(), bound.as_os_str()])).ok();
    for (name, number) in [("setflags", SETFLAGS), ("setflags of 32 bits", SETFLAGS_32), ("fssetxattr", FSSETXATTR)] {
        for (at, path) in [("a file", "file"), ("a directory", "")] {
            for actor in [Actor::Root, Actor::Other] {
                let path = bound.join(path);
                let done = actor.does(|| short(ioctl_of_word(&File::open(&path).unwrap(), number, 0x80)));
                let flags = rustix::fs::ioctl_getflags(File::open(&path).unwrap()).unwrap();
                outcomes.insert(format!("{name} of {at} by {actor:?}"), format!("{done} {flags:?}"));
            }
        }
    }
    run(&mut command("umount", &[&bound])).ok();
    outcomes
}

#[test]
fn no_number_of_an_ioctl_bypasses_a_mount_that_forbids_changes() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), flags_through_a_read_only_mount, &[]);
}

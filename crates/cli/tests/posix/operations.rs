//! The operations, each of which is a function of a place that returns the outcome.

use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use crate::actors::{GROUP, OWNER, SECOND_GROUP};
use crate::objects::Place;
use crate::run::short;

/// The outcome of an operation.
pub type Outcome = Result<String, Errno>;

/// An operation.
pub struct Operation {
    pub name: String,
    pub act: Box<dyn Fn(&Place) -> Outcome + Sync + Send>,
}

/// A list of operations that grows.
#[derive(Default)]
struct List(Vec<Operation>);

impl List {
    fn reports(&mut self, name: impl Into<String>, act: impl Fn(&Place) -> Outcome + Sync + Send + 'static) {
        self.0.push(Operation { name: name.into(), act: Box::new(act) });
    }

    fn does<T>(&mut self, name: impl Into<String>, act: impl Fn(&Place) -> Result<T, Errno> + Sync + Send + 'static) {
        self.reports(name, move |place| act(place).map(|_| "done".into()));
    }

    /// Adds an operation on the open object.
    fn opened(
        &mut self,
        name: &str,
        flags: OFlags,
        act: impl Fn(&OwnedFd, &Place) -> Outcome + Sync + Send + Clone + 'static,
    ) {
        self.reports(format!("{name} of {}", words(flags)), move |place| {
            match open(&place.path, flags | OFlags::NONBLOCK) {
                Ok(file) => act(&file, place),
                Err(error) => Ok(format!("open: {}", error.raw_os_error())),
            }
        });
    }
}

fn words(flags: OFlags) -> String {
    const WORDS: [(OFlags, &str); 14] = [
        (OFlags::TMPFILE, "TMPFILE"),
        (OFlags::CREATE, "CREAT"),
        (OFlags::EXCL, "EXCL"),
        (OFlags::TRUNC, "TRUNC"),
        (OFlags::APPEND, "APPEND"),
        (OFlags::NOFOLLOW, "NOFOLLOW"),
        (OFlags::DIRECTORY, "DIRECTORY"),
        (OFlags::PATH, "PATH"),
        (OFlags::DIRECT, "DIRECT"),
        (OFlags::NOATIME, "NOATIME"),
        (OFlags::DSYNC, "DSYNC"),
        (OFlags::CLOEXEC, "CLOEXEC"),
        (OFlags::NONBLOCK, "NONBLOCK"),
        (OFlags::NOCTTY, "NOCTTY"),
    ];
    let mut reported: String = match flags & OFlags::RWMODE {
        OFlags::RDONLY => "RDONLY",
        OFlags::WRONLY => "WRONLY",
        _ => "RDWR",
    }
    .into();
    let mut rest = flags;
    for (flag, word) in WORDS {
        if rest.contains(flag) {
            rest &= !flag;
            reported.push('|');
            reported.push_str(word);
        }
    }
    reported
}

pub fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mode = if flags.intersects(OFlags::CREATE | OFlags::TMPFILE) { 0o666 } else { 0 };
    rustix::fs::open(path, flags, Mode::from_raw_mode(mode))
}

fn opening(list: &mut List) {
    const EXTRAS: [OFlags; 16] = [
        OFlags::empty(),
        OFlags::CREATE,
        OFlags::CREATE.union(OFlags::EXCL),
        OFlags::CREATE.union(OFlags::TRUNC),
        OFlags::CREATE.union(OFlags::NOFOLLOW),
        OFlags::CREATE.union(OFlags::DIRECTORY),
        OFlags::TRUNC,
        OFlags::APPEND,
        OFlags::APPEND.union(OFlags::TRUNC),
        OFlags::NOFOLLOW,
        OFlags::DIRECTORY,
        OFlags::DIRECTORY.union(OFlags::NOFOLLOW),
        OFlags::DIRECT,
        OFlags::NOATIME,
        OFlags::TMPFILE,
        OFlags::DSYNC.union(OFlags::CREATE),
    ];
    for access in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
        for extra in EXTRAS {
            list.does(format!("open {}", words(access | extra)), move |place| {
                open(&place.path, access | extra | OFlags::NONBLOCK)
            });
        }
    }
    for flags in [OFlags::PATH, OFlags::PATH | OFlags::NOFOLLOW, OFlags::PATH | OFlags::DIRECTORY] {
        list.does(format!("open {}", words(flags)), move |place| open(&place.path, flags));
    }
    list.reports("list", |place| {
        let dir = Dir::new(open(&place.path, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        let mut names = Vec::new();
        for entry in dir {
            let entry = entry?;
            names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
        }
        names.sort();
        Ok(names.join(" "))
    });
}

fn names(list: &mut List) {
    let mode = Mode::from_raw_mode;
    list.does("mkdir", move |place| rustix::fs::mkdir(&place.path, mode(0o777)));
    list.does("mkdir 7777", move |place| rustix::fs::mkdir(&place.path, mode(0o7777)));
    for (name, kind) in [
        ("file", FileType::RegularFile),
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("device", FileType::CharacterDevice),
        ("directory", FileType::Directory),
        ("link", FileType::Symlink),
    ] {
        list.does(format!("mknod {name}"), move |place| {
            rustix::fs::mknodat(CWD, &place.path, kind, mode(0o6755), rustix::fs::makedev(1, 3))
        });
    }
    list.does("symlink", |place| rustix::fs::symlink("somewhere", &place.path));
    list.does("symlink to nothing", |place| rustix::fs::symlink("", &place.path));
    for length in [4095, 4096] {
        list.does(format!("symlink of {length}"), move |place| rustix::fs::symlink("s".repeat(length), &place.path));
    }
    list.does("link to new", |place| rustix::fs::link(&place.path, &place.new));
    list.does("link of its target", |place| {
        rustix::fs::linkat(CWD, &place.path, CWD, &place.new, AtFlags::SYMLINK_FOLLOW)
    });
    list.does("link onto other", |place| rustix::fs::link(&place.path, &place.other));
    list.does("link of other", |place| rustix::fs::link(&place.other, &place.path));
    list.does("unlink", |place| rustix::fs::unlink(&place.path));
    list.does("rmdir", |place| rustix::fs::rmdir(&place.path));

    list.does("rename to new", |place| rustix::fs::rename(&place.path, &place.new));
    list.does("rename over other", |place| rustix::fs::rename(&place.path, &place.other));
    list.does("rename over a directory", |place| rustix::fs::rename(&place.path, &place.other_dir));
    list.does("rename of other", |place| rustix::fs::rename(&place.other, &place.path));
    list.does("rename of a directory", |place| rustix::fs::rename(&place.other_dir, &place.path));
    list.does("rename of nothing", |place| rustix::fs::rename(&place.new, &place.path));
    list.does("rename to itself", |place| rustix::fs::rename(&place.path, &place.path));
    list.does("rename below itself", |place| rustix::fs::rename(&place.path, place.path.join("below")));
    list.does("rename of the directory into it", |place| rustix::fs::rename(&place.dir, place.path.join("below")));
    list.does("rename into a directory", |place| rustix::fs::rename(&place.path, place.other_dir.join("moved")));
    list.does("rename out of it", |place| rustix::fs::rename(place.path.join("within"), &place.new));
    list.does("rename over a name of the same", |place| {
        rustix::fs::link(&place.path, &place.new)?;
        rustix::fs::rename(&place.path, &place.new)
    });
    for (word, flags) in [
        ("NOREPLACE", RenameFlags::NOREPLACE),
        ("EXCHANGE", RenameFlags::EXCHANGE),
        ("WHITEOUT", RenameFlags::WHITEOUT),
        ("NOREPLACE|EXCHANGE", RenameFlags::NOREPLACE | RenameFlags::EXCHANGE),
        ("an unknown flag", RenameFlags::from_bits_retain(64)),
    ] {
        list.does(format!("rename {word} new"), move |place| {
            rustix::fs::renameat_with(CWD, &place.path, CWD, &place.new, flags)
        });
        list.does(format!("rename {word} other"), move |place| {
            rustix::fs::renameat_with(CWD, &place.path, CWD, &place.other, flags)
        });
        list.does(format!("rename {word} of a directory"), move |place| {
            rustix::fs::renameat_with(CWD, &place.other_dir, CWD, &place.path, flags)
        });
        list.does(format!("rename {word} into itself"), move |place| {
            rustix::fs::renameat_with(CWD, &place.path, CWD, place.path.join("below"), flags)
        });
    }
}

fn attributes(list: &mut List) {
    for (name, bits) in [("0", 0), ("644", 0o644), ("7777", 0o7777), ("6644", 0o6644)] {
        list.does(format!("chmod {name}"), move |place| {
            rustix::fs::chmodat(CWD, &place.path, Mode::from_raw_mode(bits), AtFlags::empty())
        });
    }
    list.opened("fchmod", OFlags::RDONLY, |file, _| {
        rustix::fs::fchmod(file, Mode::from_raw_mode(0o600)).map(|()| "done".into())
    });
    for (name, owner, group) in [
        ("nobody", None, None),
        ("the same", Some(OWNER), Some(GROUP)),
        ("a second group", None, Some(SECOND_GROUP)),
        ("a foreign group", None, Some(3000)),
        ("another", Some(1001), None),
        ("root", Some(0), Some(0)),
    ] {
        for (word, flags) in [("chown", AtFlags::empty()), ("lchown", AtFlags::SYMLINK_NOFOLLOW)] {
            list.does(format!("{word} {name}"), move |place| {
                rustix::fs::chownat(CWD, &place.path, owner.map(Uid::from_raw), group.map(Gid::from_raw), flags)
            });
        }
    }
    let time = |tv_sec: i64, tv_nsec| Timespec { tv_sec, tv_nsec };
    let (now, omit) = (time(0, rustix::fs::UTIME_NOW), time(0, rustix::fs::UTIME_OMIT));
    for (name, a, m) in [
        ("now", now, now),
        ("omitted", omit, omit),
        ("accessed now", now, omit),
        ("modified now", omit, now),
        ("set", time(-7, 1), time(5_000_000_000, 999_999_999)),
        ("modified set", omit, time(1 << 35, 0)),
        ("nanoseconds too large", time(1, 1_000_000_000), now),
    ] {
        for (word, flags) in [("utimens", AtFlags::empty()), ("utimens of the link", AtFlags::SYMLINK_NOFOLLOW)] {
            list.reports(format!("{word} {name}"), move |place| {
                let times = Timestamps { last_access: a, last_modification: m };
                rustix::fs::utimensat(CWD, &place.path, &times, flags)?;
                let seen = rustix::fs::statat(CWD, &place.path, AtFlags::SYMLINK_NOFOLLOW)?;
                let shown = |sec: i64| if (1_100_000_000..4_000_000_000).contains(&sec) { 1 } else { sec };
                Ok(format!("{} {}", shown(seen.st_atime), shown(seen.st_mtime)))
            });
        }
    }
    for (name, wanted) in [
        ("F", rustix::fs::Access::EXISTS),
        ("R", rustix::fs::Access::READ_OK),
        ("W", rustix::fs::Access::WRITE_OK),
        ("X", rustix::fs::Access::EXEC_OK),
    ] {
        list.does(format!("access {name}"), move |place| {
            rustix::fs::accessat(CWD, &place.path, wanted, AtFlags::EACCESS)
        });
    }
    for (name, flags) in [("stat", AtFlags::empty()), ("lstat", AtFlags::SYMLINK_NOFOLLOW)] {
        list.reports(name, move |place| {
            let seen = rustix::fs::statat(CWD, &place.path, flags)?;
            Ok(format!(
                "{:o} {} {} {} {} {} {:x}",
                seen.st_mode, seen.st_nlink, seen.st_uid, seen.st_gid, seen.st_size, seen.st_blksize, seen.st_rdev
            ))
        });
    }
    list.reports("readlink", |place| Ok(format!("{:?}", rustix::fs::readlink(&place.path, Vec::new())?)));
    list.reports("statfs", |place| Ok(format!("{}", rustix::fs::statvfs(&place.path)?.f_namemax)));
}

fn sizes(list: &mut List) {
    for (name, size) in [
        ("0", 0_i64),
        ("3", 3),
        ("5000", 5000),
        ("-1", -1),
        ("most", i64::MAX),
        ("2^60", 1 << 60),
        ("most but a page", i64::MAX - 4095),
    ] {
        list.does(format!("truncate {name}"), move |place| {
            // `truncate` itself, which checks in a different order than `ftruncate`.
            truncate(&place.path, size)
        });
    }
    for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
        for size in [0, 11, 100] {
            list.opened(&format!("ftruncate {size}"), flags, move |file, _| {
                rustix::fs::ftruncate(file, size).map(|()| "done".into())
            });
        }
        list.opened("read", flags, |file, _| {
            let mut bytes = [0; 64];
            let read = rustix::io::read(file, &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes[..read]).into_owned())
        });
        list.opened("read nothing", flags, |file, _| Ok(format!("{}", rustix::io::read(file, &mut [0_u8; 0])?)));
        list.opened("write", flags, |file, _| Ok(format!("{}", rustix::io::write(file, b"12345678901234")?)));
        list.opened("write nothing", flags, |file, _| Ok(format!("{}", rustix::io::write(file, b"")?)));
        list.opened("write at a negative place", flags, |file, _| {
            Ok(format!("{}", rustix::io::pwrite(file, b"x", u64::MAX)?))
        });
        list.opened("write at the last place", flags, |file, _| {
            Ok(format!("{}", rustix::io::pwrite(file, b"xyz", i64::MAX as u64 - 1)?))
        });
        list.opened("append", flags | OFlags::APPEND, |file, _| {
            let written = rustix::io::pwrite(file, b"more", 0)?;
            Ok(format!("{written} {:?}", rustix::fs::seek(file, SeekFrom::Current(0))))
        });
        for (name, place) in [
            ("data", SeekFrom::Data(0)),
            ("hole", SeekFrom::Hole(0)),
            ("data at 5", SeekFrom::Data(5)),
            ("data at the end", SeekFrom::Data(11)),
            ("hole at the end", SeekFrom::Hole(11)),
            ("hole beyond", SeekFrom::Hole(1 << 40)),
            ("the end", SeekFrom::End(0)),
            ("before the start", SeekFrom::Current(-1)),
            ("far", SeekFrom::Start(i64::MAX as u64)),
        ] {
            list.opened(&format!("seek {name}"), flags, move |file, _| {
                Ok(format!("{}", rustix::fs::seek(file, place)?))
            });
        }
        list.opened("punch", flags, |file, _| {
            rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 2, 4)
                .map(|()| "done".into())
        });
        list.opened("punch nothing", flags, |file, _| {
            rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 2, 0)
                .map(|()| "done".into())
        });
        list.opened("fsync", flags, |file, _| rustix::fs::fsync(file).map(|()| "done".into()));
        list.opened("copy_file_range", flags, |file, place| {
            let other = rustix::fs::open(&place.new, OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o600))?;
            Ok(format!("{}", rustix::fs::copy_file_range(file, None, other, None, 5)?))
        });
    }
}

fn truncate(path: &Path, size: i64) -> Result<(), Errno> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    // SAFETY: `path` is NUL-terminated, and the call keeps no reference to it.
    let result = unsafe { libc::truncate(path.as_ptr(), size) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()) }
}

fn xattrs(list: &mut List) {
    const ACL: &[u8] = &[
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 233, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 7,
        0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    const NAMES: [&str; 11] = [
        "user.a",
        "trusted.a",
        "security.a",
        "security.capability",
        "system.posix_acl_access",
        "system.posix_acl_default",
        "system.other",
        "nonsense",
        "user.",
        "user",
        "",
    ];
    for name in NAMES {
        let value: &'static [u8] = match name {
            "system.posix_acl_access" | "system.posix_acl_default" => ACL,
            "security.capability" => &[1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            _ => b"value",
        };
        list.reports(format!("getxattr '{name}'"), move |place| {
            Ok(format!("{}", rustix::fs::getxattr(&place.path, name, &mut [0_u8; 100][..])?))
        });
        list.does(format!("setxattr '{name}'"), move |place| {
            rustix::fs::setxattr(&place.path, name, value, XattrFlags::empty())
        });
        list.reports(format!("lsetxattr '{name}'"), move |place| {
            rustix::fs::lsetxattr(&place.path, name, value, XattrFlags::CREATE)?;
            let mut names = [0_u8; 200];
            let length = rustix::fs::llistxattr(&place.path, &mut names[..])?;
            let again = rustix::fs::lsetxattr(&place.path, name, value, XattrFlags::CREATE);
            let removed = rustix::fs::lremovexattr(&place.path, name);
            Ok(format!("{} {} {}", String::from_utf8_lossy(&names[..length]), short(again), short(removed)))
        });
        list.does(format!("removexattr '{name}'"), move |place| rustix::fs::removexattr(&place.path, name));
    }
    list.does("replace a missing xattr", |place| {
        rustix::fs::setxattr(&place.path, "user.none", b"x", XattrFlags::REPLACE)
    });
    for length in [255 - 5, 256 - 5] {
        list.does(format!("an xattr's name of {length}"), move |place| {
            rustix::fs::setxattr(&place.path, format!("user.{}", "x".repeat(length)), b"v", XattrFlags::empty())
        });
    }
    for length in [16200, 16300, 65536, 65537] {
        list.does(format!("an xattr's value of {length}"), move |place| {
            rustix::fs::setxattr(&place.path, "user.v", &vec![1; length], XattrFlags::empty())
        });
    }
    for (name, list_of) in [("listxattr", true), ("llistxattr", false)] {
        list.reports(name, move |place| {
            let mut names = [0_u8; 200];
            let length = if list_of {
                rustix::fs::listxattr(&place.path, &mut names[..])?
            } else {
                rustix::fs::llistxattr(&place.path, &mut names[..])?
            };
            Ok(String::from_utf8_lossy(&names[..length]).into_owned())
        });
    }
    list.reports("listxattr without room", |place| {
        rustix::fs::setxattr(&place.path, "user.a", b"value", XattrFlags::empty())?;
        let listed = rustix::fs::listxattr(&place.path, &mut [0_u8; 3][..]);
        let got = rustix::fs::getxattr(&place.path, "user.a", &mut [0_u8; 3][..]);
        Ok(format!("{} {}", short(listed), short(got)))
    });
}

/// Returns all operations.
pub fn all() -> Vec<Operation> {
    let mut list = List::default();
    opening(&mut list);
    names(&mut list);
    attributes(&mut list);
    sizes(&mut list);
    xattrs(&mut list);
    list.0
}

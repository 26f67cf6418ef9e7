//! Tests of permissions by mode, group and sticky directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RawMode, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::actors::{Actor, GROUP, OWNER, SECOND_GROUP};
use crate::harness::FUSE;
use crate::operations::open;
use crate::run::{Exceptions, Outcomes, compare, share, short, traces};

type Act = fn(&Path) -> Result<(), Errno>;

fn set_mode(path: &Path, mode: RawMode) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn now() -> Timestamps {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

fn long_ago() -> Timestamps {
    let then = rustix::fs::Timespec { tv_sec: 5, tv_nsec: 5 };
    Timestamps { last_access: then, last_modification: then }
}

/// The actions on a file `f` in the directory `d`; they get the path of `d`.
const ACTS: &[(&str, Act)] = &[
    ("access R of the directory", |d| rustix::fs::accessat(CWD, d, rustix::fs::Access::READ_OK, AtFlags::EACCESS)),
    ("access W of the directory", |d| rustix::fs::accessat(CWD, d, rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)),
    ("access X of the directory", |d| rustix::fs::accessat(CWD, d, rustix::fs::Access::EXEC_OK, AtFlags::EACCESS)),
    ("access R", |d| rustix::fs::accessat(CWD, d.join("f"), rustix::fs::Access::READ_OK, AtFlags::EACCESS)),
    ("access W", |d| rustix::fs::accessat(CWD, d.join("f"), rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)),
    ("access X", |d| rustix::fs::accessat(CWD, d.join("f"), rustix::fs::Access::EXEC_OK, AtFlags::EACCESS)),
    ("stat", |d| rustix::fs::stat(d.join("f")).map(drop)),
    ("list", |d| {
        let dir = rustix::fs::Dir::new(open(d, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        dir.into_iter().try_for_each(|entry| entry.map(drop))
    }),
    ("chdir", |d| {
        open(d, OFlags::PATH).and_then(|d| rustix::fs::openat(d, ".", OFlags::RDONLY, Mode::empty())).map(drop)
    }),
    ("open to read", |d| open(&d.join("f"), OFlags::RDONLY).map(drop)),
    ("open to write", |d| open(&d.join("f"), OFlags::WRONLY).map(drop)),
    ("open for both", |d| open(&d.join("f"), OFlags::RDWR).map(drop)),
    ("open to truncate", |d| open(&d.join("f"), OFlags::RDONLY | OFlags::TRUNC).map(drop)),
    ("open or create", |d| open(&d.join("f"), OFlags::WRONLY | OFlags::CREATE).map(drop)),
    ("open without atime", |d| open(&d.join("f"), OFlags::RDONLY | OFlags::NOATIME).map(drop)),
    ("truncate", |d| {
        let file = open(&d.join("f"), OFlags::WRONLY)?;
        rustix::fs::ftruncate(file, 1)
    }),
    ("chmod", |d| rustix::fs::chmod(d.join("f"), Mode::from_raw_mode(0o751))),
    ("chmod of the directory", |d| rustix::fs::chmod(d, Mode::from_raw_mode(0o751))),
    ("chown to oneself", |d| {
        rustix::fs::chownat(CWD, d.join("f"), Some(rustix::process::geteuid()), None, AtFlags::empty())
    }),
    ("chown to another", |d| rustix::fs::chownat(CWD, d.join("f"), Some(Uid::from_raw(77)), None, AtFlags::empty())),
    ("chgrp to the second", |d| {
        rustix::fs::chownat(CWD, d.join("f"), None, Some(Gid::from_raw(SECOND_GROUP)), AtFlags::empty())
    }),
    ("chgrp to a foreign", |d| rustix::fs::chownat(CWD, d.join("f"), None, Some(Gid::from_raw(77)), AtFlags::empty())),
    ("touch", |d| rustix::fs::utimensat(CWD, d.join("f"), &now(), AtFlags::empty())),
    ("set times", |d| rustix::fs::utimensat(CWD, d.join("f"), &long_ago(), AtFlags::empty())),
    ("getxattr", |d| rustix::fs::getxattr(d.join("f"), "user.there", &mut [0_u8; 9][..]).map(drop)),
    ("setxattr", |d| rustix::fs::setxattr(d.join("f"), "user.x", b"", XattrFlags::empty())),
    ("setxattr of the directory", |d| rustix::fs::setxattr(d, "user.x", b"", XattrFlags::empty())),
    ("removexattr", |d| rustix::fs::removexattr(d.join("f"), "user.there")),
    ("create", |d| open(&d.join("n"), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).map(drop)),
    ("create without a name", |d| open(d, OFlags::WRONLY | OFlags::TMPFILE).map(drop)),
    ("mkdir", |d| rustix::fs::mkdir(d.join("n"), Mode::from_raw_mode(0o777))),
    ("symlink", |d| rustix::fs::symlink("x", d.join("n"))),
    ("mknod", |d| rustix::fs::mknodat(CWD, d.join("n"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o666), 0)),
    ("mknod of a device", |d| {
        rustix::fs::mknodat(CWD, d.join("n"), rustix::fs::FileType::BlockDevice, Mode::from_raw_mode(0o666), 7)
    }),
    ("link", |d| rustix::fs::link(d.join("f"), d.join("n"))),
    ("link elsewhere", |d| rustix::fs::link(d.join("f"), d.with_file_name("open").join("n"))),
    ("unlink", |d| rustix::fs::unlink(d.join("f"))),
    ("rmdir", |d| rustix::fs::rmdir(d.join("s"))),
    ("rename", |d| rustix::fs::rename(d.join("f"), d.join("n"))),
    ("rename over", |d| rustix::fs::rename(d.join("f"), d.join("g"))),
    ("rename over of another's", |d| rustix::fs::rename(d.join("g"), d.join("f"))),
    ("rename away", |d| rustix::fs::rename(d.join("f"), d.with_file_name("open").join("n"))),
    ("rename in", |d| rustix::fs::rename(d.with_file_name("open").join("f"), d.join("n"))),
    ("rename of a directory", |d| rustix::fs::rename(d.join("s"), d.join("n"))),
    ("rename of a directory away", |d| rustix::fs::rename(d.join("s"), d.with_file_name("open").join("n"))),
    ("exchange", |d| rustix::fs::renameat_with(CWD, d.join("f"), CWD, d.join("g"), rustix::fs::RenameFlags::EXCHANGE)),
];

/// Modes of the directory and of the file, and the owners of both.
struct Setting {
    directory: RawMode,
    directory_owner: u32,
    file: RawMode,
    file_owner: u32,
}

fn make(case: &Path, setting: &Setting) {
    fs::create_dir(case).unwrap();
    let (d, open) = (case.join("d"), case.join("open"));
    for dir in [&d, &open] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("f"), "content").unwrap();
        rustix::fs::setxattr(dir.join("f"), "user.there", b"", XattrFlags::empty()).unwrap();
        lchown(dir.join("f"), Some(setting.file_owner), Some(GROUP)).unwrap();
        set_mode(&dir.join("f"), setting.file);
    }
    fs::write(d.join("g"), "another's").unwrap();
    lchown(d.join("g"), Some(1234), Some(GROUP)).unwrap();
    fs::create_dir(d.join("s")).unwrap();
    lchown(d.join("s"), Some(setting.file_owner), Some(GROUP)).unwrap();
    lchown(&d, Some(setting.directory_owner), Some(GROUP)).unwrap();
    set_mode(&open, 0o777);
    set_mode(&d, setting.directory);
}

fn table(root: &Path) -> Outcomes {
    let bits = [0o400, 0o200, 0o100, 0o040, 0o020, 0o010, 0o004, 0o002, 0o001, 0o000, 0o777, 0o077, 0o707];
    let by_file = bits.map(|file| Setting { directory: 0o777, directory_owner: 9, file, file_owner: OWNER });
    let by_dir = [bits.as_slice(), &[0o700, 0o300, 0o500, 0o600, 0o070, 0o030, 0o007, 0o003, 0o005]]
        .concat()
        .into_iter()
        .map(|directory| Setting { directory, directory_owner: OWNER, file: 0o666, file_owner: 1234 });
    let sticky = [(9, 9), (OWNER, 9), (9, OWNER), (OWNER, OWNER), (0, 9), (9, 0)]
        .into_iter()
        .map(|(dir, file)| Setting { directory: 0o1777, directory_owner: dir, file: 0o666, file_owner: file });
    let mut outcomes = Outcomes::new();
    let (share, mut number) = (share(), 0);
    for setting in by_file.into_iter().chain(by_dir).chain(sticky) {
        for actor in Actor::ALL {
            for (name, act) in ACTS {
                number += 1;
                if number % share != 0 {
                    continue;
                }
                let case = root.join("case");
                make(&case, &setting);
                let outcome = actor.does(|| act(&case.join("d")));
                let reported = format!(
                    "{} f {} n {}",
                    short(outcome),
                    traces(&case.join("d/f"), None),
                    traces(&case.join("d/n"), None)
                );
                let Setting { directory, directory_owner, file, file_owner } = setting;
                let case_name =
                    format!("{directory:o} of {directory_owner}, {file:o} of {file_owner} / {actor:?} / {name}");
                outcomes.insert(case_name, reported);
                fs::remove_dir_all(&case).unwrap();
            }
        }
    }
    outcomes
}

const EXCEPTIONS: Exceptions = &[];

#[test]
fn users_have_the_permissions_that_the_kernel_gives_them() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), table, EXCEPTIONS);
}

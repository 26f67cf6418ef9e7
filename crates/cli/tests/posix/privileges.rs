//! Tests of set-id bits: when they are cleared, and what new files inherit from directories.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawMode, Uid, XattrFlags};
use rustix::io::Errno;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;

use crate::actors::{Actor, GROUP, OWNER, SECOND_GROUP};
use crate::harness::FUSE;
use crate::operations::open;
use crate::run::{Exceptions, Outcomes, compare, short, traces};

type Act = fn(&Path) -> Result<(), Errno>;

const ACTS: &[(&str, Act)] = &[
    ("write", |f| rustix::io::write(open(f, OFlags::WRONLY)?, b"x").map(drop)),
    ("write nothing", |f| rustix::io::write(open(f, OFlags::WRONLY)?, b"").map(drop)),
    ("write directly", |f| rustix::io::write(open(f, OFlags::WRONLY | OFlags::DIRECT)?, b"").map(drop)),
    ("truncate to the same", |f| rustix::fs::ftruncate(open(f, OFlags::WRONLY)?, 7)),
    ("truncate", |f| rustix::fs::ftruncate(open(f, OFlags::WRONLY)?, 3)),
    ("O_TRUNC", |f| open(f, OFlags::WRONLY | OFlags::TRUNC).map(drop)),
    ("punch", |f| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(open(f, OFlags::WRONLY)?, flags, 1, 2)
    }),
    ("allocate", |f| rustix::fs::fallocate(open(f, OFlags::WRONLY)?, FallocateFlags::empty(), 0, 9)),
    ("copy a range", |f| {
        let from = open(&f.with_file_name("source"), OFlags::RDONLY)?;
        rustix::fs::copy_file_range(from, None, open(f, OFlags::WRONLY)?, None, 7).map(drop)
    }),
    ("chown of nothing", |f| rustix::fs::chownat(CWD, f, None, None, AtFlags::empty())),
    ("chown to the same", |f| rustix::fs::chownat(CWD, f, Some(Uid::from_raw(OWNER)), None, AtFlags::empty())),
    ("chown", |f| rustix::fs::chownat(CWD, f, Some(Uid::from_raw(5)), None, AtFlags::empty())),
    ("chgrp to the same", |f| rustix::fs::chownat(CWD, f, None, Some(Gid::from_raw(GROUP)), AtFlags::empty())),
    ("chgrp", |f| rustix::fs::chownat(CWD, f, None, Some(Gid::from_raw(SECOND_GROUP)), AtFlags::empty())),
    ("chmod to the same", |f| {
        let mode = rustix::fs::stat(f)?.st_mode;
        rustix::fs::chmod(f, Mode::from_raw_mode(mode & 0o7777))
    }),
    ("chmod 7777", |f| rustix::fs::chmod(f, Mode::from_raw_mode(0o7777))),
    ("setxattr", |f| rustix::fs::setxattr(f, "user.x", b"", XattrFlags::empty())),
    ("an ACL", |f| rustix::fs::setxattr(f, "system.posix_acl_access", &acl(), XattrFlags::empty())),
    ("a small ACL", |f| {
        rustix::fs::setxattr(
            f,
            "system.posix_acl_access",
            &[&acl()[..12], &acl()[20..28], &acl()[36..]].concat(),
            XattrFlags::empty(),
        )
    }),
    ("removexattr", |f| rustix::fs::removexattr(f, "system.posix_acl_access")),
    ("link", |f| rustix::fs::link(f, f.with_file_name("n"))),
    ("rename", |f| rustix::fs::rename(f, f.with_file_name("n"))),
];

/// `u::rw-,u:1001:rwx,g::r--,m::rwx,o::---`
fn acl() -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in
        [(1_u16, 6_u16, u32::MAX), (2, 7, 1001), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn bits_go(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for kind in ["file", "directory"] {
        for mode in [0o6777, 0o4777, 0o2777, 0o2767, 0o4711, 0o755] {
            for (owner, group) in [(OWNER, GROUP), (OWNER, 3000), (9, GROUP)] {
                for actor in Actor::ALL {
                    for (name, act) in ACTS {
                        let dir = root.join("case");
                        fs::create_dir(&dir).unwrap();
                        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
                        let f = dir.join("f");
                        fs::write(dir.join("source"), "another").unwrap();
                        if kind == "file" {
                            fs::write(&f, "content").unwrap();
                        } else {
                            fs::create_dir(&f).unwrap();
                        }
                        lchown(&f, Some(owner), Some(group)).unwrap();
                        fs::set_permissions(&f, Permissions::from_mode(mode)).unwrap();
                        if kind == "file" {
                            rustix::fs::setxattr(&f, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
                        }
                        let before = fs::metadata(&f).unwrap();
                        let outcome = actor.does(|| act(&f));
                        let capability = rustix::fs::getxattr(&f, "security.capability", &mut [0_u8; 30][..]);
                        let list = rustix::fs::getxattr(&f, "system.posix_acl_access", &mut [0_u8; 90][..]);
                        let reported = format!(
                            "{} {} n {} capability {} acl {}",
                            short(outcome),
                            traces(&f, Some(&before)),
                            traces(&dir.join("n"), None),
                            short(capability),
                            short(list)
                        );
                        outcomes.insert(format!("{kind} {mode:o} of {owner}:{group} / {actor:?} / {name}"), reported);
                        fs::remove_dir_all(&dir).unwrap();
                    }
                }
            }
        }
    }
    outcomes
}

type Make = fn(&Path, Mode) -> Result<(), Errno>;

const MAKERS: &[(&str, Make)] = &[
    ("open", |path, mode| rustix::fs::open(path, OFlags::CREATE | OFlags::WRONLY, mode).map(drop)),
    ("mkdir", |path, mode| rustix::fs::mkdir(path, mode)),
    ("fifo", |path, mode| rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0)),
    ("mknod", |path, mode| rustix::fs::mknodat(CWD, path, FileType::RegularFile, mode, 0)),
    ("symlink", |path, _| rustix::fs::symlink("x", path)),
    ("O_TMPFILE", |path, mode| {
        let file = rustix::fs::open(path.parent().unwrap(), OFlags::TMPFILE | OFlags::WRONLY, mode)?;
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        rustix::fs::linkat(CWD, link, CWD, path, AtFlags::SYMLINK_FOLLOW)
    }),
];

fn inheritance_by_new_files(root: &Path) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for dir_mode in [0o777, 0o2777, 0o1777, 0o6777, 0o2755] {
        for list in [false, true] {
            for group in [GROUP, 3000] {
                for actor in Actor::ALL {
                    for mask in [0, 0o022, 0o077, 0o777] {
                        for mode in [0o666, 0o7777, 0o2755, 0] {
                            for (name, make) in MAKERS {
                                let dir = root.join("case");
                                fs::create_dir(&dir).unwrap();
                                lchown(&dir, Some(OWNER), Some(group)).unwrap();
                                fs::set_permissions(&dir, Permissions::from_mode(dir_mode)).unwrap();
                                if list {
                                    rustix::fs::setxattr(&dir, "system.posix_acl_default", &acl(), XattrFlags::empty())
                                        .unwrap();
                                }
                                let new = dir.join("n");
                                let outcome =
                                    actor.does_with_umask(mask, || make(&new, Mode::from_raw_mode(mode as RawMode)));
                                let xattr = |name| {
                                    let mut value = [0_u8; 90];
                                    let length = rustix::fs::lgetxattr(&new, name, &mut value[..]).unwrap_or(0);
                                    value[..length]
                                        .chunks(8)
                                        .map(|entry| *entry.get(2).unwrap_or(&0))
                                        .collect::<Vec<_>>()
                                };
                                let reported = format!(
                                    "{} {} {:?} {:?}",
                                    short(outcome),
                                    traces(&new, None),
                                    xattr("system.posix_acl_access"),
                                    xattr("system.posix_acl_default")
                                );
                                let case = format!(
                                    "{dir_mode:o} acl {list} of {group} / {actor:?} umask {mask:o} / {name} {mode:o}"
                                );
                                outcomes.insert(case, reported);
                                fs::remove_dir_all(&dir).unwrap();
                            }
                        }
                    }
                }
            }
        }
    }
    outcomes
}

const GO: Exceptions = &[
    // Before root writes to a file with capabilities, the kernel requests that privileges be
    // cleared, and means the capabilities only.
    ("/ Root / write", "set-id bits go along with capabilities"),
    ("/ Root / allocate", "set-id bits go along with capabilities"),
    ("/ Root / copy a range", "set-id bits go along with capabilities"),
    ("/ Root / punch", "set-id bits go along with capabilities"),
    ("/ chown of nothing", "the kernel doesn't say that a caller without permission requested it"),
];

#[test]
fn set_id_bits_are_cleared_when_the_kernels_are() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), bits_go, GO);
}

#[test]
fn new_files_get_group_and_mode_as_from_the_kernel() {
    require!(Need::Kernel, FUSE);
    compare(("", ""), inheritance_by_new_files, &[]);
}

//! Histories on a mount, by the system calls that usual programs make. The counters are the
//! kernel's requests by kind, the number of times that requests pass from one thread of the server
//! to another, and the writes of the device.
//!
//! This process makes the calls, since versions of the programs differ. Each history has a fresh
//! volume, one process, and no commit but its own, so the numbers are the same each time. FORGETs
//! are not counted, since the kernel sends them when it needs memory.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, Timespec, Timestamps};
use ubtrfs_random::Rng;

use crate::failure::Result;

/// Directories of the tree, and files in each.
const DIRECTORIES: u64 = 10;
const FILES: u64 = 20;
const SECTOR: u64 = 4096;
const MIB: u64 = 1 << 20;

/// The work of a process on a mount.
pub struct History {
    /// Its name in the baseline.
    pub name: &'static str,
    /// The preparation, which is not counted. If `cold`, the volume is mounted again after it.
    pub prepare: Option<fn(&Path) -> Result<()>>,
    /// Whether the kernel's caches are empty at the beginning.
    pub cold: bool,
    /// The counted work.
    pub run: fn(&Path) -> Result<()>,
}

/// All histories.
pub const HISTORIES: &[History] = &[
    History { name: "create, write and close 200 files", prepare: None, cold: false, run: create },
    History { name: "200 files in 10 directories, as tar makes them", prepare: None, cold: false, run: untar },
    History { name: "200 files in 10 directories, as git makes them", prepare: None, cold: false, run: checkout },
    History {
        name: "stat 200 files in 10 directories, as git status does",
        prepare: Some(checkout),
        cold: false,
        run: stat,
    },
    History { name: "the same after a mount", prepare: Some(checkout), cold: true, run: stat },
    History {
        name: "remove 200 files in 10 directories, as rm -rf does, after a mount",
        prepare: Some(checkout),
        cold: true,
        run: remove,
    },
    History { name: "share 200 files with copies, as cp does", prepare: Some(create), cold: false, run: copy },
    History { name: "sync of 200 new files", prepare: Some(create), cold: false, run: sync },
    History { name: "rename 500 files after an fsync", prepare: Some(files_and_fsync), cold: false, run: rename },
    History { name: "200 O_TMPFILE files opened, and closed", prepare: None, cold: false, run: unnamed },
    History { name: "read 200 random sectors of 16 MiB after a mount", prepare: Some(large), cold: true, run: read },
    History { name: "append 4 KiB, fsync; 100 times", prepare: None, cold: false, run: append },
];

/// Returns the path of a directory of the tree.
fn directory(number: u64) -> String {
    format!("part{}/module{number}", number / 5)
}

fn create(root: &Path) -> Result<()> {
    for number in 0..DIRECTORIES * FILES {
        std::fs::write(root.join(format!("file{number}")), [1; 5000])?;
    }
    Ok(())
}

fn copy(root: &Path) -> Result<()> {
    for number in 0..DIRECTORIES * FILES {
        let from = File::open(root.join(format!("file{number}")))?;
        let to = File::create_new(root.join(format!("copy{number}")))?;
        rustix::fs::copy_file_range(&from, None, &to, None, 1 << 30)?;
    }
    Ok(())
}

fn sync(root: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(root)?)?)
}

/// Returns times with an old mtime and an unchanged atime.
fn old() -> Timestamps {
    let at = |nanoseconds| Timespec { tv_sec: 1_000_000_000, tv_nsec: nanoseconds };
    Timestamps { last_access: at(rustix::fs::UTIME_OMIT), last_modification: at(0) }
}

/// As root, tar makes each file for its owner alone, and sets owner and mode when it is written; it
/// does the same to directories when all of their files are there.
fn untar(root: &Path) -> Result<()> {
    let place = rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let all = || (0..DIRECTORIES).map(directory);
    let owner = (Some(rustix::fs::Uid::ROOT), Some(rustix::fs::Gid::ROOT));
    for part in ["part0", "part1"] {
        rustix::fs::mkdirat(&place, part, Mode::RWXU)?;
    }
    for path in all() {
        rustix::fs::mkdirat(&place, &path, Mode::RWXU)?;
        for number in 0..FILES {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&place, format!("{path}/file{number}"), flags, Mode::RUSR | Mode::WUSR)?;
            rustix::io::write(&file, &[1; 1000])?;
            rustix::fs::futimens(&file, &old())?;
            rustix::fs::fchown(&file, owner.0, owner.1)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        }
    }
    for path in all().chain(["part0".into(), "part1".into()]) {
        rustix::fs::utimensat(&place, &path, &old(), AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::chownat(&place, &path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::chmodat(&place, &path, Mode::from_raw_mode(0o755), AtFlags::empty())?;
    }
    Ok(())
}

fn exists(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok()
}

/// git checks whether a file exists before it makes it, and stats it when it is written.
fn checkout(root: &Path) -> Result<()> {
    for number in 0..DIRECTORIES {
        let path = root.join(directory(number));
        for path in [path.parent().unwrap_or(root), &path] {
            if !exists(path) {
                rustix::fs::mkdir(path, Mode::from_raw_mode(0o777))?;
            }
        }
        exists(&path.join(".gitattributes"));
        for number in 0..FILES {
            let path = path.join(format!("file{number}"));
            exists(&path);
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.write_all(&[1; 1000])?;
            rustix::fs::fstat(&file)?;
        }
    }
    Ok(())
}

fn stat(root: &Path) -> Result<()> {
    for number in 0..DIRECTORIES {
        let path = root.join(directory(number));
        for number in 0..FILES {
            rustix::fs::lstat(path.join(format!("file{number}")))?;
        }
    }
    Ok(())
}

/// rm lists a directory before it removes its entries.
fn remove(root: &Path) -> Result<()> {
    for part in ["part0", "part1"] {
        remove_directory(&rustix::fs::open(root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?, part)?;
    }
    Ok(())
}

fn remove_directory(parent: &OwnedFd, name: &str) -> Result<()> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    rustix::fs::fstat(&directory)?;
    let mut room = Vec::with_capacity(32 << 10);
    let mut listed = Vec::new();
    let mut entries = RawDir::new(&directory, room.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            listed.push((name, entry.file_type().is_dir()));
        }
    }
    for (name, is_directory) in listed {
        if is_directory {
            remove_directory(&directory, &name)?;
        } else {
            rustix::fs::unlinkat(&directory, &name, AtFlags::empty())?;
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Makes a directory of 500 committed files, a log, and a change of the directory after that.
fn files_and_fsync(root: &Path) -> Result<()> {
    let dir = root.join("dir");
    std::fs::create_dir(&dir)?;
    for number in 0..500 {
        std::fs::write(dir.join(format!("file{number}")), b"")?;
    }
    rustix::fs::syncfs(File::open(&dir)?)?;
    File::create(root.join("other"))?.sync_all()?;
    Ok(std::fs::write(dir.join("more"), b"")?)
}

fn rename(root: &Path) -> Result<()> {
    let dir = root.join("dir");
    for number in 0..500 {
        std::fs::rename(dir.join(format!("file{number}")), dir.join(format!("renamed{number}")))?;
    }
    Ok(())
}

fn unnamed(root: &Path) -> Result<()> {
    let open = |_| rustix::fs::openat(CWD, root, OFlags::RDWR | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR);
    let all = (0..200).map(open).collect::<rustix::io::Result<Vec<_>>>()?;
    all.into_iter().for_each(drop);
    Ok(())
}

fn large(root: &Path) -> Result<()> {
    Ok(std::fs::write(root.join("large"), vec![1; 16 * MIB as usize])?)
}

/// Reads with `O_DIRECT`, since readahead depends on what is in the page cache.
fn read(root: &Path) -> Result<()> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(direct).open(root.join("large"))?;
    let mut room = vec![0; 2 * SECTOR as usize];
    let start = room.as_ptr().align_offset(SECTOR as usize);
    let sector = room.get_mut(start..start + SECTOR as usize).unwrap_or_default();
    let mut random = Rng::new(4);
    for _ in 0..200 {
        file.read_exact_at(sector, random.below(16 * MIB / SECTOR) * SECTOR)?;
    }
    Ok(())
}

fn append(root: &Path) -> Result<()> {
    let mut file = File::create(root.join("log"))?;
    for _ in 0..100 {
        file.write_all(&[1; SECTOR as usize])?;
        file.sync_data()?;
    }
    Ok(())
}

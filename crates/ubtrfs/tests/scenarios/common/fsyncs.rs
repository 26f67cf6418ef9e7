//! Random operations with fsyncs on few names, through a mount, so that logs have many cases.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use ubtrfs_random::Rng;

/// Returns options to open a file that don't wait for the other end of a pipe.
fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    options
}

fn writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    options
}

/// Directories that may exist, and names in them.
const DIRS: [&str; 6] = ["", "A", "B", "A/C", "B/D", SUBVOLUME];
/// Where a subvolume may be.
pub const SUBVOLUME: &str = "S";
const NAMES: [&str; 6] = ["foo", "bar", "A", "C", "D", "a longer name than the others"];

/// Performs random operations below a directory. Operations may fail, since most names don't exist
/// at most times.
pub struct Fsyncs {
    top: PathBuf,
    rng: Rng,
    /// The operations so far, for messages.
    pub reported: Vec<String>,
    /// Whether files are large.
    large: bool,
    /// Recently used paths, which are used and synced again.
    recent: Vec<PathBuf>,
}

impl Fsyncs {
    pub fn new(top: &Path, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let large = rng.one_in(3);
        Self { top: top.to_owned(), rng, reported: Vec::new(), large, recent: Vec::new() }
    }

    /// Returns a path that mostly exists, and that was often used recently.
    fn path(&mut self) -> PathBuf {
        if !self.recent.is_empty() && self.rng.one_in(2) {
            return self.rng.pick(&self.recent).clone();
        }
        let mut there = Vec::new();
        for dir in DIRS {
            let below = NAMES.map(|name| self.top.join(dir).join(name));
            there.extend(below.into_iter().filter(|path| path.symlink_metadata().is_ok()));
        }
        if there.is_empty() || self.rng.one_in(5) { self.any_path() } else { self.rng.pick(&there).clone() }
    }

    fn any_path(&mut self) -> PathBuf {
        let dir = *self.rng.pick(&DIRS);
        let name = *self.rng.pick(&NAMES);
        self.top.join(dir).join(name)
    }

    fn dir(&mut self) -> PathBuf {
        self.top.join(self.rng.pick(&DIRS))
    }

    fn log_outcome<T, E>(&mut self, what: &str, done: Result<T, E>) -> Option<T> {
        let top = format!("{}/", self.top.display());
        let what = what.replace(&top, "").replace(&self.top.display().to_string(), ".");
        if done.is_ok() {
            self.reported.push(what);
        }
        done.ok()
    }

    fn offset(&mut self) -> u64 {
        let most = if self.large { 2 << 20 } else { 100_000 };
        let offset = self.rng.below(most);
        if self.rng.one_in(2) { offset / 4096 * 4096 } else { offset }
    }

    fn length(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => 1 + self.rng.below(2000),
            1 => 4096 * (1 + self.rng.below(8)),
            2 if self.large => 1 + self.rng.below(400_000),
            _ => 1 + self.rng.below(20_000),
        }
    }

    /// Makes the directories.
    pub fn begin(&mut self) {
        for dir in &DIRS[1..DIRS.len() - 1] {
            let done = std::fs::create_dir(self.top.join(dir));
            self.log_outcome(&format!("mkdir {dir}"), done);
        }
    }

    /// Performs one operation other than a sync.
    pub fn step(&mut self) {
        const RECENT: usize = 3;
        let path = self.path();
        if path.symlink_metadata().is_ok() && !self.recent.contains(&path) {
            self.recent.insert(0, path.clone());
            self.recent.truncate(RECENT);
        }
        let shown = path.display().to_string();
        match self.rng.below(26) {
            0..=2 => {
                let path = self.any_path();
                let shown = path.display().to_string();
                let made = writing().create_new(true).open(&path);
                if let Some(file) = self.log_outcome(&format!("create {shown}"), made)
                    && !self.rng.one_in(3)
                {
                    self.write(&file, &shown, 0);
                }
            }
            3..=6 => {
                let offset = self.offset();
                if let Ok(file) = writing().open(&path) {
                    let offset = if self.rng.one_in(2) { file.metadata().map_or(0, |m| m.len()) } else { offset };
                    self.write(&file, &shown, offset);
                }
            }
            7 | 8 => {
                let size = if self.rng.one_in(4) { 0 } else { self.offset() };
                let done = writing().open(&path).and_then(|file| file.set_len(size));
                self.log_outcome(&format!("truncate {shown} to {size}"), done);
            }
            9 | 10 => self.allocate(&path),
            11..=14 => {
                let to = self.any_path();
                let flags = match self.rng.below(6) {
                    0 => RenameFlags::EXCHANGE,
                    1 => RenameFlags::NOREPLACE,
                    _ => RenameFlags::empty(),
                };
                let done = rustix::fs::renameat_with(CWD, &path, CWD, &to, flags);
                if self.log_outcome(&format!("rename {shown} to {} {flags:?}", to.display()), done).is_some() {
                    self.recent.insert(0, to);
                }
            }
            15 | 16 => {
                let to = self.any_path();
                let done = std::fs::hard_link(&path, &to);
                if self.log_outcome(&format!("link {shown} as {}", to.display()), done).is_some() {
                    self.recent.insert(0, to);
                }
            }
            17 | 18 => {
                let done = std::fs::remove_file(&path);
                self.log_outcome(&format!("unlink {shown}"), done);
            }
            19 => {
                let path = self.any_path();
                let done = std::fs::create_dir(&path);
                self.log_outcome(&format!("mkdir {}", path.display()), done);
            }
            20 => {
                let done = std::fs::remove_dir(&path);
                self.log_outcome(&format!("rmdir {shown}"), done);
            }
            21 => {
                let path = self.any_path();
                self.make_special(&path);
            }
            22 | 23 => self.xattr(&path),
            24 => {
                let path = self.any_path();
                self.unnamed(&path);
            }
            _ => {
                let mode = 0o600 + self.rng.below(0o200) as u32;
                let done = rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode), AtFlags::empty());
                self.log_outcome(&format!("chmod {shown} {mode:o}"), done);
            }
        }
    }

    fn write(&mut self, file: &File, shown: &str, offset: u64) {
        let len = self.length();
        let bytes = self.rng.bytes(len as usize);
        let done = file.write_all_at(&bytes, offset);
        self.log_outcome(&format!("write {shown} {offset}+{len}"), done);
    }

    fn allocate(&mut self, path: &Path) {
        let Ok(file) = writing().open(path) else { return };
        let (offset, len) = (self.offset(), self.length());
        let modes = [
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::KEEP_SIZE,
            FallocateFlags::empty(),
            FallocateFlags::ZERO_RANGE,
        ];
        let mode = *self.rng.pick(&modes);
        let done = rustix::fs::fallocate(&file, mode, offset, len);
        self.log_outcome(&format!("fallocate {} {mode:?} {offset}+{len}", path.display()), done);
    }

    fn make_special(&mut self, path: &Path) {
        let shown = path.display().to_string();
        match self.rng.below(3) {
            0 => {
                let mode = Mode::from_raw_mode(0o644);
                let done = rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, mode, 0);
                self.log_outcome(&format!("mkfifo {shown}"), done);
            }
            1 => {
                let done = std::os::unix::fs::symlink("target of a link", path);
                self.log_outcome(&format!("symlink {shown}"), done);
            }
            _ => {
                let from = self.path();
                let done = reading().open(&from).and_then(|from| {
                    let to = writing().create(true).truncate(false).open(path)?;
                    Ok(rustix::fs::ioctl_ficlone(to.as_fd(), from.as_fd())?)
                });
                self.log_outcome(&format!("clone {} to {shown}", from.display()), done);
            }
        }
    }

    fn xattr(&mut self, path: &Path) {
        let name = format!("user.{}", self.rng.below(2));
        if self.rng.one_in(2) {
            let done = rustix::fs::lremovexattr(path, name.as_str());
            self.log_outcome(&format!("removexattr {} {name}", path.display()), done);
        } else {
            let len = self.rng.below(300);
            let value = self.rng.noise(len as usize);
            let done = rustix::fs::lsetxattr(path, name.as_str(), &value, XattrFlags::empty());
            self.log_outcome(&format!("setxattr {} {name}", path.display()), done);
        }
    }

    /// Makes a file without a name, and sometimes links it.
    fn unnamed(&mut self, path: &Path) {
        let flags = OFlags::TMPFILE.bits() as i32;
        let Some(parent) = path.parent() else { return };
        let made = OpenOptions::new().write(true).custom_flags(flags).open(parent);
        let Some(file) = self.log_outcome(&format!("tmpfile in {}", parent.display()), made) else { return };
        self.write(&file, "(tmpfile)", 0);
        let early = self.rng.one_in(3);
        if early {
            let done = file.sync_all();
            self.log_outcome("fsync (tmpfile)", done);
        }
        if self.rng.one_in(4) {
            return;
        }
        let own = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let done = rustix::fs::linkat(CWD, own.as_c_str(), CWD, path, AtFlags::SYMLINK_FOLLOW);
        self.log_outcome(&format!("linkat (tmpfile) as {}", path.display()), done);
    }

    /// Syncs something; returns whether that succeeded.
    pub fn sync(&mut self) -> bool {
        let (path, dir) = if self.rng.one_in(4) { (self.dir(), true) } else { (self.path(), false) };
        let Ok(file) = reading().open(&path) else { return false };
        let data_only = !dir && self.rng.one_in(5);
        let done = if data_only { file.sync_data() } else { file.sync_all() };
        let what = if data_only { "fdatasync" } else { "fsync" };
        self.log_outcome(&format!("{what} {}", path.display()), done).is_some()
    }
}

//! One thread's random work on files of its own, in directories that it shares with others.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};

use super::blocks::{HEAD, block};
use super::seen::MARK;
use super::{BLOCK, Name, Promises};
use crate::rng::Rng;

/// The directories that all writers share.
pub const TOPS: [&str; 3] = ["one", "two", "three"];

/// Blocks that a file has at the most.
const MOST_BLOCKS: usize = 64;
/// Blocks of one call, which reach the file system in one piece.
const PIECE: usize = 16;
/// Names for files in each directory, and for directories.
const FILES: u64 = 6;
const DIRS: u64 = 3;
/// Files that are kept open.
const HELD: usize = 5;

/// Works on the names that begin with its prefix, and keeps book.
pub struct Writer<'a> {
    place: &'a Path,
    prefix: String,
    promises: &'a mut Promises,
    rng: Rng,
    tops: Vec<u64>,
    held: Vec<(u64, File)>,
}

impl<'a> Writer<'a> {
    /// Makes the directories that writers share.
    pub fn prepare(place: &Path) {
        for top in TOPS {
            std::fs::create_dir_all(place.join(top)).expect("make a directory");
        }
    }

    /// Writer `number` in the directory `place`; `promises` were adopted, or are new as the directory is.
    pub fn new(place: &'a Path, number: u64, promises: &'a mut Promises, seed: u64) -> Self {
        let number_of = |top| std::fs::metadata(place.join(top)).expect("a directory that is prepared").ino();
        let tops = TOPS.into_iter().map(number_of).collect();
        Self { place, prefix: Self::prefix(number), promises, rng: Rng::new(seed), tops, held: Vec::new() }
    }

    /// How the names of writer `number` begin.
    pub fn prefix(number: u64) -> String {
        format!("w{number}.")
    }

    /// Works until the file system dies, which `dying` announces, or `operations` are done. Returns what went wrong before.
    pub fn run(mut self, dying: &AtomicBool, operations: u64) -> Result<(), String> {
        while self.promises.moment < operations {
            if let Err(error) = self.step() {
                if dying.load(Ordering::SeqCst) {
                    return Ok(());
                }
                return Err(format!("{error}, after\n{}", self.promises.recent()));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> std::io::Result<()> {
        if self.rng.one_in(600) {
            return self.sync();
        }
        match self.rng.below(100) {
            0..12 => self.create(),
            12..22 => self.overwrite(false),
            22..32 => self.append(),
            32..35 => self.truncate(),
            35 => self.punch(),
            36..46 => self.rename(),
            46..49 => self.exchange(),
            49..55 => self.replace(),
            55..60 => self.link(),
            60..66 => self.unlink(),
            66..69 => self.make_dir(),
            69 => self.remove_dir(),
            70..73 => self.rename_dir(),
            73..75 => self.chmod(),
            75..77 => self.mark(),
            77..79 => self.nameless(),
            79..81 => self.overwrite(true),
            81..87 => self.fsync(false),
            87..90 => self.fsync(true),
            _ => self.fsync_dir(),
        }
    }

    // Choosing.

    fn dirs(&self) -> Vec<u64> {
        let own = self.promises.inodes.iter().filter(|(_, inode)| inode.is_dir && !inode.names.now().is_empty());
        self.tops.iter().copied().chain(own.map(|(&number, _)| number)).collect()
    }

    fn some_dir(&mut self) -> u64 {
        let dirs = self.dirs();
        *self.rng.pick(&dirs)
    }

    /// A name for a file, which may be taken.
    fn some_name(&mut self) -> Name {
        let dir = self.some_dir();
        (dir, format!("{}f{}", self.prefix, self.rng.below(FILES)))
    }

    /// A name that a file has.
    fn taken_name(&mut self) -> Option<Name> {
        let is_file = |number| !self.promises.inode(number).is_dir;
        let names = self.promises.names.iter().filter(|(_, holder)| holder.now().is_some_and(is_file));
        let names: Vec<Name> = names.map(|(name, _)| name.clone()).collect();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    fn some_file(&mut self) -> Option<u64> {
        if !self.held.is_empty() && self.rng.one_in(4) {
            return Some(self.rng.pick(&self.held).0);
        }
        let name = self.taken_name()?;
        self.promises.holder(&name)
    }

    /// The directories of this writer, by name.
    fn own_dir(&mut self) -> Option<(Name, u64)> {
        let own = self.promises.inodes.iter().filter(|(_, inode)| inode.is_dir);
        let own: Vec<(Name, u64)> =
            own.filter_map(|(&number, inode)| Some((inode.names.now().first()?.clone(), number))).collect();
        (!own.is_empty()).then(|| self.rng.pick(&own).clone())
    }

    fn dir_path(&self, dir: u64) -> PathBuf {
        if let Some(top) = self.tops.iter().position(|&top| top == dir) {
            return self.place.join(TOPS[top]);
        }
        let name = self.promises.inode(dir).names.now().first().expect("a directory that is there");
        self.path(name)
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.dir_path(name.0).join(&name.1)
    }

    /// A path below the place, for the book.
    fn shown(&self, name: &Name) -> String {
        let path = self.path(name);
        path.strip_prefix(self.place).unwrap_or(&path).display().to_string()
    }

    /// Does `work` with an open file of the inode, which may have been open for long, and may stay so.
    fn with_file(
        &mut self,
        number: u64,
        work: impl FnOnce(&mut Self, &File) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let held = self.held.iter().position(|(held, _)| *held == number).map(|at| self.held.swap_remove(at).1);
        let open = || {
            let name = self.promises.inode(number).names.now().first().expect("a file that has a name");
            File::options().read(true).write(true).open(self.path(name))
        };
        let file = held.map_or_else(open, Ok)?;
        let result = work(self, &file);
        if self.rng.one_in(3) {
            self.hold(number, file);
        }
        result
    }

    fn hold(&mut self, number: u64, file: File) {
        if self.held.len() == HELD {
            self.held.remove(0);
        }
        self.held.push((number, file));
    }

    // Content.

    /// Writes `count` blocks from block `first` on, the last one as long as `last` or as what is there.
    fn write(&mut self, number: u64, file: &File, first: usize, count: usize, last: u64) -> std::io::Result<()> {
        let id = self.promises.inode(number).id;
        let mut done = 0;
        while done < count {
            let (from, piece) = (first + done, (count - done).min(PIECE));
            done += piece;
            let state = self.promises.state(number);
            let end = from + piece;
            let there = state.size.saturating_sub((end as u64 - 1) * BLOCK).min(BLOCK);
            let last = if done < count { BLOCK } else { last.clamp(HEAD, BLOCK).max(there) };
            let state = state.clone();
            let versions: Vec<u32> = (0..piece).map(|_| self.promises.new_version()).collect();
            let mut bytes = Vec::with_capacity(piece * BLOCK as usize);
            for (which, version) in (from as u32..).zip(&versions) {
                bytes.extend(block(id, which, *version));
            }
            bytes.truncate((piece as u64 - 1) as usize * BLOCK as usize + last as usize);
            let what = format!("write inode {number}, {} bytes at block {from}: versions {versions:?}", bytes.len());
            let moment = self.promises.begin(&what);
            self.promises.changing(moment, number, state.written(from, &versions, last));
            file.write_all_at(&bytes, from as u64 * BLOCK)?;
        }
        Ok(())
    }

    /// Writes a length that is often small enough to be kept inline.
    fn fill(&mut self, number: u64, file: &File) -> std::io::Result<()> {
        let (count, last) = match self.rng.below(4) {
            0 => (1, HEAD + self.rng.below(2000)),
            1 => (1 + self.rng.below(MOST_BLOCKS as u64), BLOCK),
            2 => (1 + self.rng.below(4), self.rng.below(BLOCK)),
            _ => return Ok(()),
        };
        self.write(number, file, 0, count as usize, last)
    }

    fn create(&mut self) -> std::io::Result<()> {
        let name = self.some_name();
        if self.promises.holder(&name).is_some() {
            return self.overwrite(false);
        }
        let (number, file) = self.create_at(&name)?;
        self.fill(number, &file)?;
        if self.rng.one_in(3) {
            self.hold(number, file);
        }
        Ok(())
    }

    fn create_at(&mut self, name: &Name) -> std::io::Result<(u64, File)> {
        let moment = self.promises.begin(&format!("create {}", self.shown(name)));
        self.promises.creating(moment, name);
        let file = File::options().read(true).write(true).create_new(true).open(self.path(name))?;
        let meta = file.metadata()?;
        self.promises.created(moment, Some(name), meta.ino(), false, meta.mode() & 0o7777);
        Ok((meta.ino(), file))
    }

    fn overwrite(&mut self, at_once: bool) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let blocks = self.promises.state(number).versions.len() as u64;
        let first = self.rng.below(blocks);
        let count = 1 + self.rng.below((blocks - first).min(8));
        if at_once && let Some(name) = self.promises.inode(number).names.now().first() {
            let flag = if self.rng.one_in(2) { OFlags::DSYNC } else { OFlags::SYNC };
            let file = File::options().write(true).custom_flags(flag.bits() as i32).open(self.path(name))?;
            let count = count.min(PIECE as u64);
            self.write(number, &file, first as usize, count as usize, BLOCK)?;
            self.promises.synced(self.promises.moment, number);
            return Ok(());
        }
        self.with_file(number, |this, file| this.write(number, file, first as usize, count as usize, BLOCK))
    }

    fn append(&mut self) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let state = self.promises.state(number);
        let first = (state.size / BLOCK) as usize;
        let most = if self.rng.one_in(3) { 16 } else { 2 };
        let count = 1 + self.rng.below(most) as usize;
        let last = if self.rng.one_in(2) { BLOCK } else { self.rng.below(BLOCK) };
        if first + count > MOST_BLOCKS {
            return self.truncate();
        }
        self.with_file(number, |this, file| this.write(number, file, first, count, last))
    }

    fn truncate(&mut self) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let old = self.promises.state(number).clone();
        let blocks = self.rng.below(old.versions.len() as u64 + 1);
        let grows = old.size.is_multiple_of(BLOCK) && self.rng.one_in(3);
        let size = match self.rng.below(3) {
            _ if grows => (old.size + 1 + self.rng.below(8 * BLOCK)).min(MOST_BLOCKS as u64 * BLOCK),
            0 => 0,
            1 => (blocks * BLOCK).min(old.size),
            _ => (blocks * BLOCK + HEAD + self.rng.below(BLOCK - HEAD)).min(old.size),
        };
        // A last block must be long enough to tell what it is.
        let size = if (1..HEAD).contains(&(size % BLOCK)) { size / BLOCK * BLOCK } else { size };
        self.with_file(number, |this, file| {
            let moment = this.promises.begin(&format!("truncate inode {number} to {size}"));
            this.promises.changing(moment, number, old.resized(size));
            file.set_len(size)
        })
    }

    fn punch(&mut self) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        let mut state = self.promises.state(number).clone();
        if state.versions.is_empty() {
            return Ok(());
        }
        let first = self.rng.index(state.versions.len());
        let count = 1 + self.rng.index(state.versions.len() - first);
        state.versions[first..first + count].fill(0);
        self.with_file(number, |this, file| {
            let moment = this.promises.begin(&format!("punch inode {number}, {count} blocks from block {first} on"));
            this.promises.changing(moment, number, state);
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(file, mode, first as u64 * BLOCK, count as u64 * BLOCK)?)
        })
    }

    // Names.

    fn rename(&mut self) -> std::io::Result<()> {
        let (Some(from), mut to) = (self.taken_name(), self.some_name()) else { return Ok(()) };
        if self.rng.one_in(3) {
            to = self.taken_name().unwrap_or(to);
        }
        self.rename_to(&from, &to)
    }

    fn rename_to(&mut self, from: &Name, to: &Name) -> std::io::Result<()> {
        if self.promises.holder(from) == self.promises.holder(to) {
            return Ok(());
        }
        let (old, new) = (self.path(from), self.path(to));
        let moment = self.promises.begin(&format!("rename {} to {}", self.shown(from), self.shown(to)));
        self.promises.renaming(moment, from, to);
        std::fs::rename(old, new)
    }

    fn exchange(&mut self) -> std::io::Result<()> {
        let (Some(one), Some(two)) = (self.taken_name(), self.taken_name()) else { return Ok(()) };
        if self.promises.holder(&one) == self.promises.holder(&two) {
            return Ok(());
        }
        let moment = self.promises.begin(&format!("exchange {} and {}", self.shown(&one), self.shown(&two)));
        self.promises.exchanging(moment, &one, &two);
        Ok(rustix::fs::renameat_with(CWD, self.path(&one), CWD, self.path(&two), RenameFlags::EXCHANGE)?)
    }

    /// Replaces a file as careful programs do: a new one is written, made durable and renamed over it.
    fn replace(&mut self) -> std::io::Result<()> {
        let to = self.some_name();
        let from = (to.0, format!("{}new", self.prefix));
        if self.promises.holder(&from).is_some() {
            return self.rename_to(&from, &to);
        }
        let (number, file) = self.create_at(&from)?;
        self.fill(number, &file)?;
        self.sync_file(number, &file, false)?;
        self.rename_to(&from, &to)?;
        if self.rng.one_in(2) { self.sync_dir(to.0) } else { Ok(()) }
    }

    fn link(&mut self) -> std::io::Result<()> {
        let (Some(from), to) = (self.taken_name(), self.some_name()) else { return Ok(()) };
        if self.promises.holder(&to).is_some() {
            return self.rename_to(&from, &to);
        }
        let number = self.promises.holder(&from).expect("a name that is taken");
        let moment = self.promises.begin(&format!("link {} to {}", self.shown(&from), self.shown(&to)));
        self.promises.linking(moment, number, &to);
        std::fs::hard_link(self.path(&from), self.path(&to))
    }

    fn unlink(&mut self) -> std::io::Result<()> {
        let Some(name) = self.taken_name() else { return Ok(()) };
        let path = self.path(&name);
        let number = self.promises.holder(&name).expect("a name that is taken");
        let moment = self.promises.begin(&format!("unlink {}", self.shown(&name)));
        self.promises.unlinking(moment, &name);
        std::fs::remove_file(path)?;
        // Sometimes the last name goes while the file is open; more often nobody has it.
        if self.rng.one_in(2) {
            self.held.retain(|(held, _)| *held != number);
        }
        Ok(())
    }

    /// A file without a name, made durable or not, gets one.
    fn nameless(&mut self) -> std::io::Result<()> {
        let name = self.some_name();
        if self.promises.holder(&name).is_some() {
            return self.fsync(false);
        }
        let moment = self.promises.begin(&format!("a file without a name for {}", self.shown(&name)));
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(self.dir_path(name.0), flags, Mode::from_raw_mode(0o640))?);
        let meta = file.metadata()?;
        let number = meta.ino();
        self.promises.created(moment, None, number, false, meta.mode() & 0o7777);
        self.fill(number, &file)?;
        if self.rng.one_in(2) {
            self.sync_file(number, &file, false)?;
        }
        let moment = self.promises.begin(&format!("link inode {number} to {}", self.shown(&name)));
        self.promises.linking(moment, number, &name);
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, own, CWD, self.path(&name), AtFlags::SYMLINK_FOLLOW)?;
        if self.rng.one_in(3) { self.sync_file(number, &file, true) } else { Ok(()) }
    }

    fn make_dir(&mut self) -> std::io::Result<()> {
        let dir = self.some_dir();
        let name = (dir, format!("{}d{}", self.prefix, self.rng.below(DIRS)));
        let deep = self.dir_path(dir).components().count() > self.place.components().count() + 3;
        if deep || self.promises.holder(&name).is_some() {
            return self.fsync_dir();
        }
        let path = self.path(&name);
        let moment = self.promises.begin(&format!("mkdir {}", self.shown(&name)));
        self.promises.creating(moment, &name);
        std::fs::create_dir(&path)?;
        let meta = std::fs::symlink_metadata(&path)?;
        self.promises.created(moment, Some(&name), meta.ino(), true, meta.mode() & 0o7777);
        Ok(())
    }

    fn is_empty(&self, dir: u64) -> bool {
        let mut entries = self.promises.names.range((dir, String::new())..(dir + 1, String::new()));
        entries.all(|(_, holder)| holder.now().is_none())
    }

    fn remove_dir(&mut self) -> std::io::Result<()> {
        let Some((name, number)) = self.own_dir() else { return Ok(()) };
        if !self.is_empty(number) {
            return Ok(());
        }
        let path = self.path(&name);
        let moment = self.promises.begin(&format!("rmdir {}", self.shown(&name)));
        self.promises.unlinking(moment, &name);
        std::fs::remove_dir(path)
    }

    fn rename_dir(&mut self) -> std::io::Result<()> {
        let (Some((from, number)), dir) = (self.own_dir(), self.some_dir()) else { return Ok(()) };
        let to = (dir, format!("{}d{}", self.prefix, self.rng.below(DIRS)));
        let below = self.dir_path(dir).starts_with(self.path(&from));
        let over = self.promises.holder(&to);
        if below || over == Some(number) || over.is_some_and(|over| !self.is_empty(over)) {
            return Ok(());
        }
        self.rename_to(&from, &to)
    }

    // Attributes.

    fn chmod(&mut self) -> std::io::Result<()> {
        let Some(name) = self.taken_name() else { return Ok(()) };
        let number = self.promises.holder(&name).expect("a name that is taken");
        let mode = 0o600 | self.rng.below(0o100) as u32;
        let moment = self.promises.begin(&format!("chmod inode {number} to {mode:o}"));
        self.promises.inode_mut(number).mode.push(moment, mode);
        std::fs::set_permissions(self.path(&name), PermissionsExt::from_mode(mode))
    }

    fn mark(&mut self) -> std::io::Result<()> {
        let Some(name) = self.taken_name() else { return Ok(()) };
        let number = self.promises.holder(&name).expect("a name that is taken");
        let old = *self.promises.inode(number).mark.now();
        let mark = if old != 0 && self.rng.one_in(2) { 0 } else { self.promises.new_version() };
        let moment = self.promises.begin(&format!("mark inode {number} with {mark}"));
        self.promises.inode_mut(number).mark.push(moment, mark);
        let path = self.path(&name);
        match mark {
            0 => rustix::fs::removexattr(path, MARK)?,
            _ => rustix::fs::setxattr(path, MARK, &mark.to_le_bytes(), XattrFlags::empty())?,
        }
        Ok(())
    }

    // Durability.

    fn fsync(&mut self, data_only: bool) -> std::io::Result<()> {
        let Some(number) = self.some_file() else { return Ok(()) };
        self.with_file(number, |this, file| this.sync_file(number, file, data_only))
    }

    fn sync_file(&mut self, number: u64, file: &File, data_only: bool) -> std::io::Result<()> {
        let call = if data_only { "fdatasync" } else { "fsync" };
        let moment = self.promises.begin(&format!("{call} inode {number}"));
        if data_only { file.sync_data() } else { file.sync_all() }?;
        self.promises.synced(moment, number);
        Ok(())
    }

    fn fsync_dir(&mut self) -> std::io::Result<()> {
        let dir = self.some_dir();
        self.sync_dir(dir)
    }

    fn sync_dir(&mut self, dir: u64) -> std::io::Result<()> {
        let path = self.dir_path(dir);
        let moment = self
            .promises
            .begin(&format!("fsync directory {dir}, {}", path.strip_prefix(self.place).unwrap_or(&path).display()));
        File::open(path)?.sync_all()?;
        if self.promises.inodes.contains_key(&dir) {
            self.promises.synced(moment, dir);
        } else {
            self.promises.entries_synced(moment, dir);
        }
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        let moment = self.promises.begin("syncfs");
        rustix::fs::syncfs(File::open(self.place)?)?;
        self.promises.all_synced(moment);
        Ok(())
    }
}

//! The random work of one thread on files of its own, in directories that it shares with others.

mod data;
mod names;

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::XattrFlags;

use super::tops::{MARK, TOPS};
use super::{Name, Promises};
use ubtrfs_random::Rng;

/// The maximum number of blocks of a file.
const MAX_BLOCKS: usize = 64;
/// The blocks of one call, which reach the file system in one request.
const REQUEST_BLOCKS: usize = 16;
/// Names for files in each directory, and for directories.
const FILES: u64 = 6;
const DIRS: u64 = 3;
/// Files that are kept open.
const HELD: usize = 5;

/// Works on the names that begin with its prefix, and records all operations.
pub struct Writer<'a> {
    place: &'a Path,
    prefix: String,
    promises: &'a mut Promises,
    rng: Rng,
    tops: Vec<u64>,
    held: Vec<(u64, File)>,
    only_logs: bool,
}

impl<'a> Writer<'a> {
    /// Makes the directories that writers share.
    pub fn prepare(place: &Path) {
        for top in TOPS {
            std::fs::create_dir_all(place.join(top)).expect("make a directory");
        }
    }

    /// Makes writer `number` in the directory `place`. `promises` were adopted, or are new like the
    /// directory.
    pub fn new(place: &'a Path, number: u64, promises: &'a mut Promises, seed: u64) -> Self {
        let number_of = |top| std::fs::metadata(place.join(top)).expect("a directory that is prepared").ino();
        let tops = TOPS.into_iter().map(number_of).collect();
        Self {
            place,
            prefix: Self::prefix(number),
            promises,
            rng: Rng::new(seed),
            tops,
            held: Vec::new(),
            only_logs: false,
        }
    }

    /// Does nothing that makes the file system commit, so that a single log grows.
    #[must_use]
    pub fn only_logs(mut self, yes: bool) -> Self {
        self.only_logs = yes;
        self
    }

    /// Returns the prefix of the names of writer `number`.
    pub fn prefix(number: u64) -> String {
        format!("w{number}.")
    }

    /// Works until the file system dies, which `dying` announces, or until `operations` are done.
    /// Returns an earlier error.
    pub fn run(mut self, dying: &AtomicBool, operations: u64) -> Result<(), String> {
        while self.promises.sequence < operations {
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
        if self.rng.one_in(1000) && !self.only_logs {
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

    // Choices.

    fn dirs(&self) -> Vec<u64> {
        let own = self.promises.inodes.iter().filter(|(_, inode)| inode.is_dir && !inode.names.now().is_empty());
        self.tops.iter().copied().chain(own.map(|(&number, _)| number)).collect()
    }

    fn some_dir(&mut self) -> u64 {
        let dirs = self.dirs();
        *self.rng.pick(&dirs)
    }

    /// Returns a name for a file, which may be taken.
    fn some_name(&mut self) -> Name {
        let dir = self.some_dir();
        (dir, format!("{}f{}", self.prefix, self.rng.below(FILES)))
    }

    /// Returns a name that a file has.
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

    /// Returns a directory of this writer, with its name.
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

    /// Returns a path below the place, for the record.
    fn shown(&self, name: &Name) -> String {
        let path = self.path(name);
        path.strip_prefix(self.place).unwrap_or(&path).display().to_string()
    }

    /// Calls `work` with an open file of the inode, which may have been open for long, and may stay
    /// open.
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

    // Attributes.

    fn chmod(&mut self) -> std::io::Result<()> {
        let Some(name) = self.taken_name() else { return Ok(()) };
        let number = self.promises.holder(&name).expect("a name that is taken");
        let mode = 0o600 | self.rng.below(0o100) as u32;
        let sequence = self.promises.begin(&format!("chmod inode {number} to {mode:o}"));
        self.promises.inode_mut(number).mode.push(sequence, mode);
        std::fs::set_permissions(self.path(&name), PermissionsExt::from_mode(mode))
    }

    fn mark(&mut self) -> std::io::Result<()> {
        let Some(name) = self.taken_name() else { return Ok(()) };
        let number = self.promises.holder(&name).expect("a name that is taken");
        let old = *self.promises.inode(number).mark.now();
        let mark = if old != 0 && self.rng.one_in(2) { 0 } else { self.promises.new_version() };
        let sequence = self.promises.begin(&format!("mark inode {number} with {mark}"));
        self.promises.inode_mut(number).mark.push(sequence, mark);
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
        let sequence = self.promises.begin(&format!("{call} inode {number}"));
        if data_only { file.sync_data() } else { file.sync_all() }?;
        self.promises.synced(sequence, number);
        Ok(())
    }

    fn fsync_dir(&mut self) -> std::io::Result<()> {
        let dir = self.some_dir();
        self.sync_dir(dir)
    }

    fn sync_dir(&mut self, dir: u64) -> std::io::Result<()> {
        let path = self.dir_path(dir);
        let sequence = self
            .promises
            .begin(&format!("fsync directory {dir}, {}", path.strip_prefix(self.place).unwrap_or(&path).display()));
        File::open(path)?.sync_all()?;
        if self.promises.inodes.contains_key(&dir) {
            self.promises.synced(sequence, dir);
        } else {
            self.promises.entries_synced(sequence, dir);
        }
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        let sequence = self.promises.begin("syncfs");
        rustix::fs::syncfs(File::open(self.place)?)?;
        self.promises.all_synced(sequence);
        Ok(())
    }
}

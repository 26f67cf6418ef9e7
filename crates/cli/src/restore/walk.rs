//! The walk through the directories of the volume, and the copy of each entry. The memory that it
//! takes is bounded by the depth of the tree, a bit for each inode that was found, and a name for
//! each file whose other names have not been found yet. Paths are assembled for messages only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use regex::bytes::Regex;
use ubtrfs::{Attributes, DirectoryEntry, Errno, InodeId};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Ino, TreeId};
use ubtrfs_image::{HostDirectory, LinkedPath, is_name};

use super::record::{Fate, Record};
use super::report::{Copied, Report};
use super::source::Source;
use super::way::Way;
use crate::args;
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::host::target::{self, Identity, Made, Shown, Target, is_fatal};
use crate::output::say;
use crate::path::{AtEnd, lookup};
use crate::report::Progress;
use crate::size::show_size;
use crate::trees::Trees;

/// How many entries are listed at a time.
const BATCH: usize = 64;
/// How many kinds of omissions are listed.
const MAX_LEFT_OUT: usize = 100;

/// How many subvolumes are listed of which nothing is copied.
const MAX_OTHERS: usize = 20;

/// A set of inodes: a bit for each, in words for neighbouring numbers.
#[derive(Default)]
pub struct InodeSet(HashMap<(TreeId, u64), u64>);

impl InodeSet {
    /// Adds an inode. Returns false if the set contained it.
    pub fn insert(&mut self, id: InodeId) -> bool {
        let bit = 1 << (id.ino.0 % 64);
        let word = self.0.entry((id.subvolume, id.ino.0 / 64)).or_default();
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    pub fn contains(&self, id: InodeId) -> bool {
        self.0.get(&(id.subvolume, id.ino.0 / 64)).is_some_and(|word| word & 1 << (id.ino.0 % 64) != 0)
    }
}

/// A directory of the current path, and the directory that it is copied to.
struct Level {
    id: InodeId,
    to: Way,
    after: DirIndex,
    batch: VecDeque<DirectoryEntry>,
    is_listed: bool,
}

/// The copy of an inode that has several names. It holds no descriptor, since there may be many
/// such inodes.
pub(super) struct First {
    pub(super) at: Rc<HostDirectory>,
    pub(super) name: Vec<u8>,
    pub(super) known: Identity,
    /// How many of the names have not been found yet.
    pub(super) left: u32,
}

/// A copy in progress.
pub struct Walk<'a> {
    pub(super) source: &'a Source,
    pub(super) arguments: &'a args::Restore,
    pub(super) target: Option<Target>,
    /// The devices of the volume, which are never written to.
    pub(super) sources: &'a Sources,
    pub(super) record: Record,
    /// The pattern that the paths of copied files match, and the path that the walk begins at.
    wanted: Option<(&'a Regex, Vec<u8>)>,
    progress: Progress,
    copied: Copied,
    pub(super) seen: InodeSet,
    /// Files with several names.
    pub(super) linked: HashMap<InodeId, First>,
    /// The ways to the directories of lost files.
    pub(super) ways: HashMap<Ino, Way>,
    snapshots: Vec<TreeId>,
    /// The subvolumes of which something was copied.
    pub(super) subvolumes: Vec<TreeId>,
    /// The snapshots that were found and left out.
    met: HashSet<TreeId>,
    /// Descriptions of what the walk did not find.
    others: Vec<String>,
}

impl<'a> Walk<'a> {
    pub fn new(
        source: &'a Source,
        arguments: &'a args::Restore,
        sources: &'a Sources,
        target: Option<Target>,
    ) -> Result<Self> {
        let start = arguments.path.as_ref().map_or_else(Vec::new, |path| path.as_bytes().to_vec());
        let in_volume = |name: &str| [&*start, b"/", name.as_bytes()].concat();
        let at = target.as_ref().map(|target| target.descriptor(target.root()).and_then(|at| at.try_clone()));
        let at = at.transpose().map_err(|error| Failure::about("/", &error))?;
        let is_taken = |name: &str| lookup(&source.fs, &in_volume(name), AtEnd::Stay).is_ok();
        let record = Record::begin(at, arguments.go_on, is_taken);
        let found = source.fs.find_subvolumes().into_iter();
        let snapshots = found.filter(|subvolume| subvolume.is_snapshot).map(|subvolume| subvolume.id).collect();
        Ok(Self {
            source,
            arguments,
            target,
            sources,
            record,
            wanted: arguments.path_regex.as_ref().map(|regex| (regex, start)),
            progress: Progress::new(),
            copied: Copied::default(),
            seen: InodeSet::default(),
            linked: HashMap::new(),
            ways: HashMap::new(),
            snapshots,
            subvolumes: Vec::new(),
            met: HashSet::new(),
            others: Vec::new(),
        })
    }

    pub fn finish(self) -> Report {
        Report {
            copied: self.copied,
            others: self.others,
            source: self.source.what.clone(),
            record: self.record,
            damage: self.source.damage.sentences(),
            unverified: self.source.damage.unverified() > 0,
            dry_run: self.target.is_none(),
            file: None,
        }
    }

    /// Copies a directory, with everything below it, to the target itself.
    pub fn tree(&mut self, id: InodeId) -> Result<()> {
        self.seen.insert(id);
        self.subvolumes.push(id.subvolume);
        self.copied.directories += 1;
        let top = self.top();
        self.below(&top, id)
    }

    /// Copies one file.
    pub fn single(&mut self, name: &[u8], id: InodeId) -> Result<()> {
        let top = self.top();
        self.entry(&top, name, id).map(|_| ())
    }

    /// Returns the target directory.
    pub(super) fn top(&self) -> Way {
        Way { path: LinkedPath::new(""), at: self.target.as_ref().map(|target| Rc::clone(target.root())) }
    }

    /// Copies the contents of a directory that has been made, and at the end its attributes.
    pub(super) fn below(&mut self, to: &Way, id: InodeId) -> Result<()> {
        let level = |id, to: &Way| {
            let (after, batch, is_listed) = (DirIndex(0), VecDeque::new(), false);
            Level { id, to: to.clone(), after, batch, is_listed }
        };
        let mut levels = vec![level(id, to)];
        while let Some(here) = levels.last_mut() {
            if here.batch.is_empty() && !here.is_listed {
                self.list(here);
            }
            let Some(entry) = here.batch.pop_front() else {
                self.finish_directory(here)?;
                let done = levels.pop();
                if let (Some(done), Some(above)) = (done, levels.last()) {
                    let to = above.to.clone();
                    self.drop_unwanted(&to, &done.to);
                }
                continue;
            };
            here.after = entry.index;
            let inside = here.id.subvolume;
            if entry.inode.subvolume != inside && self.is_left_out(entry.inode.subvolume) {
                continue;
            }
            if self.entry(&here.to, &entry.name, entry.inode)? {
                let to = self.enter(&here.to, &entry.name)?;
                if entry.inode.subvolume != inside && entry.inode.ino == Ino::ROOT_DIR {
                    self.subvolumes.push(entry.inode.subvolume);
                }
                levels.push(level(entry.inode, &to));
            }
        }
        Ok(())
    }

    fn is_left_out(&mut self, subvolume: TreeId) -> bool {
        let left_out = !self.arguments.snapshots && self.snapshots.contains(&subvolume);
        if left_out {
            self.met.insert(subvolume);
            self.leave_out("snapshots (--snapshots copies them)".into());
        }
        left_out
    }

    /// Lists the subvolumes that were not copied, except for those that the walk found.
    pub fn list_other_subvolumes(&mut self) {
        let mut found = self.source.fs.find_subvolumes();
        found.retain(|other| !self.subvolumes.contains(&other.id) && !self.met.contains(&other.id));
        let is_named = |other: &&ubtrfs::FoundSubvolume| self.arguments.snapshots || !other.is_snapshot;
        let named: Vec<_> = found.iter().filter(is_named).map(|other| other.id).collect();
        let trees = Trees::new(&self.source.volume);
        for id in named.iter().take(MAX_OTHERS) {
            let path = crate::info::path(&trees, *id).map(|path| crate::show::bytes(&path));
            let path = path.unwrap_or_else(|| "whose path is unknown".into());
            self.others.push(format!("the subvolume {path} (--subvolid {id} copies it)"));
        }
        if named.len() > MAX_OTHERS {
            self.others.push(format!("{} more subvolumes ('ubtrfs info' lists them)", named.len() - MAX_OTHERS));
        }
        if found.len() > named.len() {
            let count = found.len() - named.len();
            self.others.push(format!("snapshots elsewhere, {count} of them ('ubtrfs info' lists them)"));
        }
    }

    /// Whether the path of a file matches the pattern, if there is one.
    pub(super) fn is_wanted(&self, path: &LinkedPath) -> bool {
        self.wanted.as_ref().is_none_or(|(regex, start)| regex.is_match(&path.below(start)))
    }

    /// Removes a directory in which the pattern matched nothing, unless it matches its own path.
    fn drop_unwanted(&mut self, above: &Way, directory: &Way) {
        if self.is_wanted(&directory.path) {
            return;
        }
        let Some((at, target)) = above.at.as_ref().zip(self.target.as_ref()) else { return };
        // It stays if something is in it.
        let removed = target.descriptor(at).map(|at| target::remove_directory(&at, directory.path.name()));
        if removed.is_ok_and(|removed| removed.is_ok()) {
            self.copied.directories = self.copied.directories.saturating_sub(1);
        }
    }

    pub(super) fn leave_out(&mut self, what: String) {
        let left_out = &mut self.copied.left_out;
        let is_one_more = left_out.len() >= MAX_LEFT_OUT && !left_out.contains_key(&what);
        *left_out.entry(if is_one_more { "others".into() } else { what }).or_default() += 1;
    }

    /// Enters a directory that was made in another one.
    pub(super) fn enter(&self, above: &Way, name: &[u8]) -> Result<Way> {
        let entered = above.at.as_ref().zip(self.target.as_ref()).map(|(at, target)| target.enter(at, name));
        let path = above.path.join(name);
        let at = entered.transpose().map_err(|error| Failure::about(Shown(&path), &error))?;
        Ok(Way { path, at })
    }

    fn list(&mut self, level: &mut Level) {
        let before = self.source.damage.count();
        match self.source.fs.directories().list(level.id, level.after, DirIndex(u64::MAX), BATCH) {
            Ok(entries) => {
                level.is_listed = entries.len() < BATCH;
                level.batch = entries.into();
            }
            Err(error) => {
                level.is_listed = true;
                let why = format!("can't be listed: {}", sentence(&error));
                self.record.note(&level.to.path, &Fate::Lacks(&why));
            }
        }
        if self.source.damage.count() != before {
            self.record.note(&level.to.path, &Fate::Lacks("part of the directory can't be read"));
        }
    }

    /// Copies an entry. Returns true if it is a directory whose contents are to be copied next.
    pub(super) fn entry(&mut self, to: &Way, name: &[u8], id: InodeId) -> Result<bool> {
        let path = to.path.join(name);
        let shown = &Shown(&path);
        if !is_name(name) {
            self.record.note(&path, &Fate::Lost("nothing can have this name"));
            return Ok(false);
        }
        let attributes = match self.source.fs.inodes().attributes(id) {
            Ok(attributes) => attributes,
            Err(error) => {
                let error = match error.errno() {
                    Errno::NOENT => "its attributes are lost".into(),
                    _ => sentence(&error),
                };
                if self.is_wanted(&path) {
                    self.record.note(&path, &Fate::Lost(&error));
                }
                return Ok(false);
            }
        };
        let is_directory = attributes.file_type == FileType::Directory;
        if !is_directory && !self.is_wanted(&path) {
            self.seen.insert(id);
            return Ok(false);
        }
        if self.arguments.verbose {
            say(&format!("{shown}\n"));
        }
        if is_directory && !self.seen.insert(id) {
            // The directories that stand for nested subvolumes in a snapshot all have this number.
            if id.ino != Ino(2) {
                self.record.note(&path, &Fate::Lost("the directory is elsewhere, too"));
                return Ok(false);
            }
        }
        if !is_directory {
            self.seen.insert(id);
        }
        let made = if let Some(at) = &to.at {
            self.make(at, name, &attributes, &path)
        } else {
            self.count(&attributes, attributes.size);
            Ok(true)
        };
        match made {
            Ok(made) => Ok(is_directory && made),
            Err(error) if is_fatal(&error) => Err(Failure::about(shown, &error)),
            Err(error) => {
                self.record.note(&path, &Fate::Lost(&sentence(&error)));
                Ok(false)
            }
        }
    }

    fn finish_directory(&mut self, level: &Level) -> Result<()> {
        let Way { path, at } = &level.to;
        let Some((at, target)) = at.as_ref().zip(self.target.as_ref()) else { return Ok(()) };
        let shown = Shown(path);
        let at = target.descriptor(at).map_err(|error| Failure::about(&shown, &error))?;
        match self.source.fs.inodes().attributes(level.id) {
            Ok(attributes) => self.dress(&Made::Open(at.as_fd()), &attributes, path),
            Err(error) => self.record.note(path, &Fate::Lacks(&sentence(&error))),
        }
        Ok(())
    }

    pub(super) fn count(&mut self, attributes: &Attributes, bytes: u64) {
        let copied = &mut self.copied;
        match attributes.file_type {
            FileType::Directory => copied.directories += 1,
            FileType::Regular => {
                copied.files += 1;
                copied.bytes = copied.bytes.saturating_add(bytes);
            }
            FileType::Symlink => copied.symlinks += 1,
            _ => copied.others += 1,
        }
        self.show_progress();
    }

    /// Shows on a terminal how far the copy is.
    pub(super) fn show_progress(&self) {
        let (copied, fates) = (&self.copied, &self.record.fates);
        self.progress.say_sometimes(|| {
            let there = if fates.there > 0 { format!(", {} there already", fates.there) } else { String::new() };
            format!(
                "{} files, {}{there}; {} in part, {} lost",
                copied.files,
                show_size(copied.bytes),
                fates.in_part,
                fates.lost
            )
        });
    }
}

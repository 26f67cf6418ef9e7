//! The walk through the directories of the volume, and the copy of each entry. The memory that it
//! takes is bounded by the depth of the tree, a bit for each inode that was found, and a name for
//! each file whose other names have not been found yet. Paths are assembled for messages only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use ubtrfs::{Attributes, DirectoryEntry, Errno, InodeId};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Ino, TreeId};
use ubtrfs_image::{HostDirectory, LinkedPath, is_name};

use super::content;
use super::report::{Copied, Report};
use super::source::Source;
use super::way::Way;
use crate::args;
use crate::failure::{Failure, Result};
use crate::host::target::{self, Identity, Made, Shown, Target, is_fatal};
use crate::output::say;
use crate::problems::Problems;
use crate::trees::Trees;

/// How many entries are listed at a time.
const BATCH: usize = 64;
/// How many files with several names are remembered until all their names have been found.
const MAX_LINKED: usize = 1 << 20;

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
struct First {
    at: Rc<HostDirectory>,
    name: Vec<u8>,
    known: Identity,
    /// How many of the names have not been found yet.
    left: u32,
}

/// A copy in progress.
pub struct Walk<'a> {
    pub(super) source: &'a Source,
    pub(super) arguments: &'a args::Restore,
    pub(super) target: Option<Target>,
    pub(super) problems: Problems,
    copied: Copied,
    pub(super) seen: InodeSet,
    /// Files with several names.
    linked: HashMap<InodeId, First>,
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
    pub fn new(source: &'a Source, arguments: &'a args::Restore, target: Option<Target>) -> Self {
        let found = source.fs.find_subvolumes().into_iter();
        let snapshots = found.filter(|subvolume| subvolume.is_snapshot).map(|subvolume| subvolume.id).collect();
        Self {
            source,
            arguments,
            target,
            problems: Problems::default(),
            copied: Copied::default(),
            seen: InodeSet::default(),
            linked: HashMap::new(),
            ways: HashMap::new(),
            snapshots,
            subvolumes: Vec::new(),
            met: HashSet::new(),
            others: Vec::new(),
        }
    }

    pub fn finish(self) -> Report {
        Report {
            copied: self.copied,
            others: self.others,
            problems: self.problems,
            damage: self.source.damage.sentences(),
            unverified: self.source.damage.unverified() > 0,
            dry_run: self.target.is_none(),
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
                levels.pop();
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
                self.problems.add(Shown(&level.to.path), format!("can't be listed: {}", sentence(&error)));
            }
        }
        if self.source.damage.count() != before {
            self.problems.add(Shown(&level.to.path), "part of the directory can't be read");
        }
    }

    /// Copies an entry. Returns true if it is a directory whose contents are to be copied next.
    pub(super) fn entry(&mut self, to: &Way, name: &[u8], id: InodeId) -> Result<bool> {
        let path = to.path.join(name);
        let shown = &Shown(&path);
        if !is_name(name) {
            self.problems.add(shown, "nothing can have this name");
            return Ok(false);
        }
        let attributes = match self.source.fs.inodes().attributes(id) {
            Ok(attributes) => attributes,
            Err(error) => {
                let error = match error.errno() {
                    Errno::NOENT => "its attributes are lost".into(),
                    _ => sentence(&error),
                };
                self.problems.add(shown, error);
                return Ok(false);
            }
        };
        if self.arguments.verbose {
            say(&format!("{shown}\n"));
        }
        let is_directory = attributes.file_type == FileType::Directory;
        if is_directory && !self.seen.insert(id) {
            // The directories that stand for nested subvolumes in a snapshot all have this number.
            if id.ino != Ino(2) {
                self.problems.add(shown, "the directory is elsewhere, too");
                return Ok(false);
            }
        }
        if !is_directory {
            self.seen.insert(id);
        }
        let made = if let Some(at) = &to.at {
            self.make(at, name, &attributes, shown)
        } else {
            self.count(&attributes, attributes.size);
            Ok(())
        };
        match made {
            Ok(()) => Ok(is_directory),
            Err(error) if is_fatal(&error) => Err(Failure::about(shown, &error)),
            Err(error) => {
                self.problems.add(shown, sentence(&error));
                Ok(false)
            }
        }
    }

    fn make(
        &mut self,
        dir: &Rc<HostDirectory>,
        name: &[u8],
        attributes: &Attributes,
        shown: &Shown<'_>,
    ) -> io::Result<()> {
        let Some(at) = self.target.as_ref().map(|target| target.descriptor(dir)).transpose()? else { return Ok(()) };
        let at = &*at;
        if attributes.file_type == FileType::Directory {
            // The directory gets its attributes when it is complete.
            target::make_directory(at, name)?;
            self.count(attributes, 0);
            return Ok(());
        }
        if attributes.nlink > 1 && self.link(at, name, attributes.id, shown)? {
            return Ok(());
        }
        let known = match attributes.file_type {
            FileType::Regular => {
                let file = target::make_file(at, name)?;
                let before = self.source.damage.count();
                let copied =
                    content::copy(&self.source.fs, &self.source.damage, attributes.id, attributes.size, &file)?;
                if copied.lost > 0 {
                    let why = copied.why.unwrap_or_default();
                    self.problems.add(shown, format!("{} bytes of {} are lost: {why}", copied.lost, attributes.size));
                } else if self.source.damage.count() != before {
                    self.problems.add(shown, "part of its map can't be read: there may be holes where data was");
                }
                let made = Made::Open(file.as_fd());
                if let Some(error) = &copied.size_error {
                    let size = attributes.size;
                    self.problems.add(shown, format!("it can't have its size of {size} bytes: {}", sentence(error)));
                }
                self.dress(&made, attributes, shown);
                self.count(attributes, copied.copied);
                made.identity()?
            }
            FileType::Symlink => {
                let to = self.source.fs.files().read_link(attributes.id).map_err(io::Error::other)?;
                target::make_symlink(at, name, &to)?;
                let made = target::hold(at, name, attributes.mode)?;
                self.dress(&made, attributes, shown);
                self.count(attributes, 0);
                made.identity()?
            }
            FileType::CharDevice | FileType::BlockDevice if !self.keeps_owners() => {
                self.leave_out("device nodes, which only root can make".into());
                return Ok(());
            }
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                target::make_node(at, name, attributes, 0o600)?;
                let made = target::hold(at, name, attributes.mode)?;
                self.dress(&made, attributes, shown);
                self.count(attributes, 0);
                made.identity()?
            }
            _ => return Err(io::Error::other("its type is unknown")),
        };
        let left = self.linked.remove(&attributes.id).map_or(attributes.nlink, |first| first.left).saturating_sub(1);
        if left > 0 && self.linked.len() < MAX_LINKED {
            let (at, name) = (Rc::clone(dir), name.to_vec());
            self.linked.insert(attributes.id, First { at, name, known, left });
        }
        Ok(())
    }

    /// Makes another name of a file that was copied before. Returns false if no name of the file
    /// was copied, or none can be reached.
    fn link(&mut self, at: &OwnedFd, name: &[u8], id: InodeId, shown: &Shown<'_>) -> io::Result<bool> {
        let (Some(first), Some(target)) = (self.linked.get_mut(&id), &self.target) else {
            return Ok(false);
        };
        let file = target.descriptor(&first.at).and_then(|dir| target::hold_again(&dir, &first.name, first.known));
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.problems.add(shown, target::NO_LINK);
                return Ok(false);
            }
            file => file?,
        };
        target::make_link(&file, at, name)?;
        first.left -= 1;
        if first.left == 0 {
            self.linked.remove(&id);
        }
        Ok(true)
    }

    fn finish_directory(&mut self, level: &Level) -> Result<()> {
        let Way { path, at } = &level.to;
        let Some((at, target)) = at.as_ref().zip(self.target.as_ref()) else { return Ok(()) };
        let shown = Shown(path);
        let at = target.descriptor(at).map_err(|error| Failure::about(&shown, &error))?;
        match self.source.fs.inodes().attributes(level.id) {
            Ok(attributes) => self.dress(&Made::Open(at.as_fd()), &attributes, &shown),
            Err(error) => self.problems.add(shown, sentence(&error)),
        }
        Ok(())
    }

    pub(super) fn keeps_owners(&self) -> bool {
        self.target.as_ref().is_some_and(Target::keeps_owners)
    }

    /// Sets the owner, permissions, extended attributes and times. What the user or the file system
    /// does not allow is left out.
    fn dress(&mut self, made: &Made<'_>, attributes: &Attributes, shown: &Shown<'_>) {
        let fs = &self.source.fs;
        if self.keeps_owners() {
            if let Err(error) = made.own(attributes.uid, attributes.gid) {
                self.leave_out(format!("owners: {}", sentence(&error)));
            }
        } else if attributes.uid != rustix::process::geteuid().as_raw() {
            self.leave_out("owners, which only root can give".into());
        }
        // A file that gets another owner than before must not run with the rights of that owner.
        let mode = if self.keeps_owners() { attributes.mode } else { attributes.mode & 0o1777 };
        let names = fs.inodes().list_xattrs(attributes.id).unwrap_or_else(|error| {
            self.problems.add(shown, format!("extended attributes: {}", sentence(&error)));
            Vec::new()
        });
        // Attributes of users can only be set while the file is writable, so they come before the
        // permissions. The permissions would change ACLs, which therefore come last.
        let (after, before): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.starts_with(b"system."));
        self.set_xattrs(made, attributes.id, &before, shown);
        // ACLs that the file has inherited from its directory would be added to its own.
        if let Err(error) = made.drop_acls(|name| after.iter().any(|of| of == name)) {
            self.leave_out(format!("the removal of inherited ACLs: {}", sentence(&error)));
        }
        if let Err(error) = made.permit(mode) {
            self.leave_out(format!("permissions: {}", sentence(&error)));
        }
        self.set_xattrs(made, attributes.id, &after, shown);
        if let Err(error) = made.stamp(attributes.atime, attributes.mtime) {
            self.leave_out(format!("times: {}", sentence(&error)));
        }
    }

    fn set_xattrs(&mut self, made: &Made<'_>, id: InodeId, names: &[Vec<u8>], shown: &Shown<'_>) {
        for name in names {
            match self.source.fs.inodes().get_xattr(id, name) {
                Ok(value) => {
                    if let Err(error) = made.set_xattr(name, &value) {
                        let space = name.split(|byte| *byte == b'.').next().unwrap_or_default();
                        let space = crate::show::bytes(space);
                        let error = sentence(&error);
                        self.leave_out(format!("extended attributes of the namespace {space}: {error}"));
                    }
                }
                Err(error) => {
                    let name = crate::show::bytes(name);
                    self.problems.add(shown, format!("extended attribute {name}: {}", sentence(&error)));
                }
            }
        }
    }

    fn count(&mut self, attributes: &Attributes, bytes: u64) {
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
    }
}

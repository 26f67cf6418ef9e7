//! Makes the copy of one file of any type, or takes the one that is there already.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{FileType as HostType, Mode, OFlags, Stat};
use ubtrfs::{Attributes, InodeId};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::FileType;
use ubtrfs_image::{HostDirectory, LinkedPath};

use super::content::{self, Outcome, Ranges};
use super::record::Fate;
use super::walk::{First, Walk};
use crate::host::replacement::Replacement;
use crate::host::target::{self, Identity, Made, Target};

/// How many files with several names are remembered until all their names have been found.
const MAX_LINKED: usize = 1 << 20;
/// The unit of [`Attributes::blocks`] in bytes.
const BLOCK: u64 = 512;

/// What is at the place of a copy.
enum There {
    Nothing,
    /// The file as the volume has it, from an earlier restore.
    Same,
    /// The file, from an earlier restore, which lacks these ranges.
    Part(Ranges),
    /// Something else.
    Other,
}

impl Walk<'_> {
    /// Makes the copy of a file, or an empty directory. Returns false if nothing of it was made,
    /// and that was noted.
    pub(super) fn make(
        &mut self,
        dir: &Rc<HostDirectory>,
        name: &[u8],
        attributes: &Attributes,
        path: &LinkedPath,
    ) -> io::Result<bool> {
        let Some(at) = self.target.as_ref().map(|target| target.descriptor(dir)).transpose()? else { return Ok(false) };
        let at = &*at;
        if attributes.file_type == FileType::Directory {
            return self.make_directory(at, name, attributes, path);
        }
        if attributes.nlink > 1 && self.link(at, name, attributes.id, path)? {
            return Ok(true);
        }
        let there = self.there(at, name, attributes, path)?;
        if matches!(there, There::Other) && !self.arguments.overwrite {
            self.record.note(path, &Fate::Differs("there is something else, which is left as it is"));
            return Ok(false);
        }
        let known = match (there, attributes.file_type) {
            (There::Same, _) => {
                self.record.fates.there += 1;
                self.show_progress();
                Some(target::hold(at, name, attributes.mode)?.identity()?)
            }
            (There::Part(lacks), _) => Some(self.complete(at, name, attributes, &lacks, path)?),
            (_, FileType::Regular) => self.regular(at, name, attributes, path)?,
            (_, FileType::CharDevice | FileType::BlockDevice) if !self.keeps_owners() => {
                self.leave_out("device nodes, which only root can make".into());
                return Ok(true);
            }
            _ => Some(self.special(at, name, attributes, path)?),
        };
        let Some(known) = known else { return Ok(false) };
        let left = self.linked.remove(&attributes.id).map_or(attributes.nlink, |first| first.left).saturating_sub(1);
        if left > 0 && self.linked.len() < MAX_LINKED {
            let (at, name) = (Rc::clone(dir), name.to_vec());
            self.linked.insert(attributes.id, First { at, name, known, left });
        }
        Ok(true)
    }

    /// Examines the place of a copy.
    ///
    /// # Errors
    ///
    /// If something is there in a directory that was empty: the volume has the name twice.
    fn there(&self, at: &OwnedFd, name: &[u8], attributes: &Attributes, path: &LinkedPath) -> io::Result<There> {
        let Some(found) = target::stat(at, name)? else { return Ok(There::Nothing) };
        if !self.arguments.go_on {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(self.compare(at, name, attributes, path, &found))
    }

    fn compare(&self, at: &OwnedFd, name: &[u8], attributes: &Attributes, path: &LinkedPath, found: &Stat) -> There {
        if HostType::from_raw_mode(found.st_mode) != HostType::from_raw_mode(attributes.mode) {
            return There::Other;
        }
        let is_same = match attributes.file_type {
            FileType::Regular => {
                let has_size = found.st_size as u64 == attributes.size;
                let has_time = target::has_time(found, attributes.mtime);
                if let Some(lacks) = self.record.lacked(path).filter(|_| has_size)
                    && (has_time || lacks.is_begun)
                {
                    return There::Part(lacks.ranges.clone());
                }
                has_size && has_time
            }
            FileType::Symlink => {
                let is_there = target::read_symlink(at, name);
                is_there.is_ok_and(|is| self.source.fs.files().read_link(attributes.id).is_ok_and(|was| was == is))
            }
            _ => true,
        };
        if is_same { There::Same } else { There::Other }
    }

    /// Whether the file is at this place already, whole or in part, from an earlier restore.
    pub(super) fn is_there(&self, at: &OwnedFd, name: &[u8], attributes: &Attributes, path: &LinkedPath) -> bool {
        self.arguments.go_on
            && attributes.file_type != FileType::Directory
            && target::stat(at, name).is_ok_and(|found| {
                found.is_some_and(|found| !matches!(self.compare(at, name, attributes, path, &found), There::Other))
            })
    }

    fn make_directory(
        &mut self,
        at: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
        path: &LinkedPath,
    ) -> io::Result<bool> {
        match target::stat(at, name)? {
            // The directory gets its attributes when it is complete.
            None => target::make_directory(at, name)?,
            Some(_) if !self.arguments.go_on => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(found) if HostType::from_raw_mode(found.st_mode) == HostType::Directory => {
                target::let_owner_fill(at, name);
            }
            Some(_) => {
                let why = "there is something else, which is left as it is: nothing of the directory is copied";
                self.record.note(path, &Fate::Differs(why));
                return Ok(false);
            }
        }
        self.count(attributes, 0);
        Ok(true)
    }

    /// Copies a regular file. Returns `None` if nothing of its content can be read: such a file is
    /// not made.
    fn regular(
        &mut self,
        at: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
        path: &LinkedPath,
    ) -> io::Result<Option<Identity>> {
        let mut new = Replacement::begin(at, name, HostType::RegularFile, self.sources)?;
        let file = new.make_file(0o600)?;
        let (damage, size) = (&self.source.damage, attributes.size);
        let (before, unverified) = (damage.count(), damage.unverified());
        let copied = content::copy(&self.source.fs, damage, attributes.id, size, &file)?;
        let (is_damaged, is_unverified) = (damage.count() != before, damage.unverified() != unverified);
        let why = copied.why.clone().unwrap_or_default();
        if copied.copied == 0 && !copied.lost.is_empty() {
            self.record.note(path, &Fate::Lost(&why));
            return Ok(None);
        }
        let made = Made::Open(file.as_fd());
        if let Some(error) = &copied.size_error {
            let why = format!("it can't have its size of {size} bytes: {}", sentence(error));
            self.record.note(path, &Fate::Lacks(&why));
        }
        self.dress(&made, attributes, path);
        let known = made.identity()?;
        new.finish(Some(&file), false)?;
        self.note_part(path, attributes, &copied, is_damaged);
        if is_unverified {
            self.record.note(path, &Fate::Unverified);
        }
        self.count(attributes, copied.copied);
        Ok(Some(known))
    }

    /// Notes what a copied file lacks, if it lacks something.
    fn note_part(&mut self, path: &LinkedPath, attributes: &Attributes, copied: &Outcome, is_damaged: bool) {
        let size = attributes.size;
        let why = copied.why.as_deref().unwrap_or_default();
        if !copied.lost.is_empty() {
            self.record.note(path, &Fate::Part { size, lost: &copied.lost, why });
        } else if is_damaged && copied.mapped < attributes.blocks.saturating_mul(BLOCK).min(size) {
            // The inode counts more than what the map has.
            let why = "part of its map can't be read: there may be holes where data was";
            self.record.note(path, &Fate::Part { size, lost: &copied.gaps, why });
        }
    }

    /// Copies what an earlier restore could not read of a file.
    fn complete(
        &mut self,
        at: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
        lacks: &Ranges,
        path: &LinkedPath,
    ) -> io::Result<Identity> {
        // Keeps the file from being used as an image meanwhile.
        let _kept = Replacement::begin(at, name, HostType::RegularFile, self.sources)?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(at, name, flags, Mode::empty())?);
        let size = attributes.size;
        // A file that is written to gets another time until it is done.
        self.record.note_begun(path, size, lacks);
        let before = self.source.damage.count();
        let copied = content::fill(&self.source.fs, &self.source.damage, attributes.id, lacks, &file)?;
        let made = Made::Open(file.as_fd());
        self.dress(&made, attributes, path);
        let why = copied.why.clone().unwrap_or_default();
        if self.source.damage.count() != before {
            // What its map has there is unknown.
            let why = "part of its map can't be read: there may be holes where data was";
            self.record.note(path, &Fate::Part { size, lost: lacks, why });
        } else if copied.lost.is_empty() {
            self.record.note(path, &Fate::Whole);
        } else {
            self.record.note(path, &Fate::Part { size, lost: &copied.lost, why: &why });
        }
        self.show_progress();
        made.identity()
    }

    /// Makes a symbolic link, a device node, a FIFO or a socket.
    fn special(
        &mut self,
        at: &OwnedFd,
        name: &[u8],
        attributes: &Attributes,
        path: &LinkedPath,
    ) -> io::Result<Identity> {
        let kind = HostType::from_raw_mode(attributes.mode);
        let mut new = Replacement::begin(at, name, kind, self.sources)?;
        match attributes.file_type {
            FileType::Symlink => {
                let to = self.source.fs.files().read_link(attributes.id).map_err(io::Error::other)?;
                target::make_symlink(at, new.name_for_now(), &to)?;
            }
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                target::make_node(at, new.name_for_now(), attributes, 0o600)?;
            }
            _ => return Err(io::Error::other("its type is unknown")),
        }
        let made = target::hold(at, new.name_for_now(), attributes.mode)?;
        self.dress(&made, attributes, path);
        self.count(attributes, 0);
        new.finish(None, false)?;
        made.identity()
    }

    /// Makes another name of a file that was copied before. Returns false if no name of the file
    /// was copied, or none can be reached.
    fn link(&mut self, at: &OwnedFd, name: &[u8], id: InodeId, path: &LinkedPath) -> io::Result<bool> {
        let (Some(first), Some(target)) = (self.linked.get_mut(&id), &self.target) else {
            return Ok(false);
        };
        let file = target.descriptor(&first.at).and_then(|dir| target::hold_again(&dir, &first.name, first.known));
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.record.note(path, &Fate::Lacks(target::NO_LINK));
                return Ok(false);
            }
            file => file?,
        };
        let known = first.known;
        match target::stat(at, name)? {
            None => target::make_link(&file, at, name)?,
            Some(_) if !self.arguments.go_on => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(found) => {
                let is_same = || target::hold(at, name, found.st_mode).and_then(|held| held.identity());
                if is_same().is_ok_and(|is| is == known) {
                    self.record.fates.there += 1;
                } else if self.arguments.overwrite {
                    let kind = HostType::from_raw_mode(found.st_mode);
                    let mut new = Replacement::begin(at, name, kind, self.sources)?;
                    target::make_link(&file, at, new.name_for_now())?;
                    new.finish(None, false)?;
                } else {
                    self.record.note(path, &Fate::Differs("there is something else, which is left as it is"));
                }
            }
        }
        if let Some(first) = self.linked.get_mut(&id) {
            first.left = first.left.saturating_sub(1);
            if first.left == 0 {
                self.linked.remove(&id);
            }
        }
        Ok(true)
    }

    pub(super) fn keeps_owners(&self) -> bool {
        self.target.as_ref().is_some_and(Target::keeps_owners)
    }

    /// Sets the owner, permissions, extended attributes and times. What the user or the file system
    /// does not allow is left out.
    pub(super) fn dress(&mut self, made: &Made<'_>, attributes: &Attributes, path: &LinkedPath) {
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
            self.record.note(path, &Fate::Lacks(&format!("extended attributes: {}", sentence(&error))));
            Vec::new()
        });
        // Attributes of users can only be set while the file is writable, so they come before the
        // permissions. The permissions would change ACLs, which therefore come last.
        let (after, before): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.starts_with(b"system."));
        self.set_xattrs(made, attributes.id, &before, path);
        // ACLs that the file has inherited from its directory would be added to its own.
        if let Err(error) = made.drop_acls(|name| after.iter().any(|of| of == name)) {
            self.leave_out(format!("the removal of inherited ACLs: {}", sentence(&error)));
        }
        if let Err(error) = made.permit(mode) {
            self.leave_out(format!("permissions: {}", sentence(&error)));
        }
        self.set_xattrs(made, attributes.id, &after, path);
        if let Err(error) = made.stamp(attributes.atime, attributes.mtime) {
            self.leave_out(format!("times: {}", sentence(&error)));
        }
    }

    fn set_xattrs(&mut self, made: &Made<'_>, id: InodeId, names: &[Vec<u8>], path: &LinkedPath) {
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
                    let why = format!("extended attribute {name}: {}", sentence(&error));
                    self.record.note(path, &Fate::Lacks(&why));
                }
            }
        }
    }
}

//! Replaces the file with a name by a new one. The old file stays as it is until the new one is
//! complete, and rename(2) then replaces it atomically; if a copy fails or is killed, the old file
//! remains. A file that is an image in use, by this command or by any other, is never replaced
//! (invariant 41).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::Errno;
use ubtrfs::acl;
use ubtrfs::xattr_names::CAPABILITY;
use ubtrfs_errors::sentence;
use ubtrfs_format::posix::SET_ID;
use ubtrfs_mkfs::random_uuid;

use super::sources::Sources;
use super::target::Made;

/// Attributes that depend on the old content, so that the new content does not get them.
const OF_CONTENT: [&[u8]; 3] = [CAPABILITY, b"security.ima", b"security.evm"];
/// The attribute that gives rights to named users and groups, and to the group of the file.
const ACL: &[u8] = acl::ACCESS;

/// A name in a directory that gets a new file.
#[derive(Debug)]
pub struct Replacement<'a> {
    at: &'a OwnedFd,
    name: &'a [u8],
    old: Option<Old>,
    /// The temporary name of the new file, if it has one.
    temporary: Option<Vec<u8>>,
}

/// The file that has the name so far.
#[derive(Debug)]
struct Old {
    found: Stat,
    /// A regular file, open for writing and locked, so that nobody opens it as an image meanwhile.
    file: Option<File>,
}

impl<'a> Replacement<'a> {
    /// Examines the file with the name, which is to become a file of type `new`. Returns an error
    /// if the existing file may not be replaced by that.
    pub fn begin(at: &'a OwnedFd, name: &'a [u8], new: FileType, sources: &Sources) -> io::Result<Self> {
        let old = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            found => Some(Old::examine(at, name, found?, new, sources)?),
        };
        Ok(Self { at, name, old, temporary: None })
    }

    /// Whether the name already refers to this file.
    pub fn is_taken_by(&self, file: &Stat) -> bool {
        let same = |old: &Old| (old.found.st_dev, old.found.st_ino) == (file.st_dev, file.st_ino);
        self.old.as_ref().is_some_and(same)
    }

    /// Whether a regular file has the name so far, whose attributes the new content may get.
    pub fn has_file(&self) -> bool {
        self.old.as_ref().is_some_and(|old| old.file.is_some())
    }

    /// Returns the name under which a file other than a regular one is to be made.
    pub fn name_for_now(&mut self) -> &[u8] {
        if self.old.is_none() {
            return self.name;
        }
        self.temporary.get_or_insert_with(temporary_name)
    }

    /// Makes a regular file with these permissions as open(2) does, without a name if the file
    /// system supports that (`O_TMPFILE`).
    pub fn make_file(&mut self, mode: u32) -> io::Result<File> {
        let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
        if let Ok(file) = rustix::fs::openat(self.at, ".", flags | OFlags::TMPFILE, mode) {
            let file = File::from(file);
            if std::fs::symlink_metadata(by_descriptor(&file)).is_ok() {
                return Ok(file);
            }
        }
        let name = self.temporary.insert(temporary_name());
        let made = rustix::fs::openat(self.at, &**name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode);
        Ok(made?.into())
    }

    /// Gives the new file the owner, permissions, ACLs and other attributes of the file that it
    /// replaces, as far as the user may set them. If some can't be set, nobody gets more rights by
    /// that.
    pub fn inherit(&self, file: &File) -> io::Result<()> {
        let Some(Old { found, file: Some(old) }) = &self.old else { return Ok(()) };
        let owner = rustix::fs::Uid::from_raw(found.st_uid);
        let group = rustix::fs::Gid::from_raw(found.st_gid);
        let is_owned = rustix::fs::fchown(file, Some(owner), Some(group)).is_ok();
        let has_group = is_owned || rustix::fs::fchown(file, None, Some(group)).is_ok();
        inherit_attributes(old, file, has_group)?;
        let mut mode = found.st_mode & 0o7777;
        if !is_owned || !rustix::process::geteuid().is_root() {
            mode &= !SET_ID;
        }
        if !has_group {
            // The members of the other group get no more rights than all users had.
            mode &= !0o070 | mode << 3;
        }
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }

    /// Moves the new file to its place: a regular file, or the file that was made under the
    /// [temporary name](Self::name_for_now). With `durable`, the content is made durable before.
    pub fn finish(mut self, file: Option<&File>, durable: bool) -> io::Result<()> {
        if let Some(file) = file {
            if durable && self.has_file() {
                file.sync_data()?;
            }
            if self.temporary.is_none() {
                let name = if self.old.is_some() { self.temporary.insert(temporary_name()) } else { self.name };
                rustix::fs::linkat(CWD, by_descriptor(file), self.at, name, AtFlags::SYMLINK_FOLLOW)?;
            }
        }
        let Some(temporary) = &self.temporary else { return Ok(()) };
        // A file that has appeared meanwhile was not examined, so it is not replaced.
        let flags = if self.old.is_some() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(self.at, &**temporary, self.at, self.name, flags) {
            Err(Errno::INVAL) if self.old.is_none() => rustix::fs::renameat(self.at, &**temporary, self.at, self.name)?,
            renamed => renamed?,
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            let _ = rustix::fs::unlinkat(self.at, &**name, AtFlags::empty());
        }
    }
}

impl Old {
    fn examine(at: &OwnedFd, name: &[u8], found: Stat, new: FileType, sources: &Sources) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(found.st_mode);
        let file = match kind {
            FileType::RegularFile => Some(Self::lock(at, name, &found, sources)?),
            FileType::Directory => return Err(io::Error::other("it is a directory, which no file replaces")),
            // An earlier copy may have made a file of the same type.
            kind if kind == new || kind == FileType::Symlink => None,
            kind => {
                let what = kind_name(kind);
                return Err(io::Error::other(format!("it is {what}, which no other file replaces")));
            }
        };
        Ok(Self { found, file })
    }

    /// Opens a file for writing, and locks out everything that uses images.
    fn lock(at: &OwnedFd, name: &[u8], found: &Stat, sources: &Sources) -> io::Result<File> {
        if sources.have(found) {
            // By invariant 41: the contents that are read from it would be lost.
            return Err(io::Error::other("it is the image itself, or a device of the volume"));
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(at, name, flags, Mode::empty())?);
        let opened = rustix::fs::fstat(&file)?;
        if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino) {
            return Err(io::Error::other("something else was put in its place"));
        }
        // The caller adds the name of the file to the sentence.
        let is_free = ubtrfs_volume::keep_from_use(&file, Path::new("it"));
        is_free.map_err(|error| io::Error::other(sentence(&error)))?;
        Ok(file)
    }
}

fn inherit_attributes(old: &File, new: &File, has_group: bool) -> io::Result<()> {
    // ACLs that the new file has inherited from its directory are not those of the old file.
    Made::Open(new.as_fd()).drop_acls(|_| false)?;
    let mut names = vec![0; 64 << 10];
    let Ok(len) = rustix::fs::flistxattr(old, &mut names) else { return Ok(()) };
    let mut value = vec![0; 64 << 10];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty() && !OF_CONTENT.contains(name)) {
        let is_acl = name == ACL;
        // The entry for the group would apply to another group.
        if is_acl && !has_group {
            continue;
        }
        let Ok(len) = rustix::fs::fgetxattr(old, name, &mut value) else { continue };
        match rustix::fs::fsetxattr(new, name, &value[..len], XattrFlags::empty()) {
            Err(error) if is_acl => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the description of a file that is not a regular one.
pub fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link",
        _ => "of an unknown type",
    }
}

/// Returns a name that no file has.
fn temporary_name() -> Vec<u8> {
    format!(".ubtrfs-{}", random_uuid()).into_bytes()
}

fn by_descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

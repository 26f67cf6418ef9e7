//! The target directory of a copy. Whatever names an image has, nothing is made or changed
//! outside of it: every step is relative to an open directory, never follows a symbolic link, and
//! never goes up.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use ubtrfs::{Attributes, acl};
use ubtrfs_format::items::Timespec as VolumeTime;
use ubtrfs_image::{HostDirectory, HostTree, LinkedPath};
use ubtrfs_server::device_number;

use crate::failure::{Failure, Result};

/// The problem with a file that should have been another name of an existing one: users other than
/// root may not reach that file once its directory has its permissions.
pub const NO_LINK: &str = "it is a file of its own, since the one that it is another name of can't be reached";

/// A target directory.
pub struct Target {
    root: Rc<HostDirectory>,
    /// The directories below it, of which a few are open.
    tree: HostTree,
    /// Whether owners can be kept.
    is_root: bool,
}

impl Target {
    /// Makes the directory, or takes an existing one that is empty. With `goes_on` it may have
    /// something in it.
    pub fn prepare(path: &Path, goes_on: bool) -> Result<Self> {
        let failed = |error: &io::Error| Failure::about(path.display(), error);
        let is_new = match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&error)),
            made => made.is_ok(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|error| failed(&error.into()))?;
        if is_new {
            Made::Open(root.as_fd()).let_owner_fill().map_err(|error| failed(&error))?;
        }
        // The open directory is read, since the path may refer to something else by now.
        let mut entries = rustix::fs::Dir::read_from(&root).map_err(|error| failed(&error.into()))?;
        let is_own = |name: &[u8]| matches!(name, b"." | b"..");
        if !goes_on && entries.any(|entry| entry.map_or(true, |entry| !is_own(entry.file_name().to_bytes()))) {
            return Err(Failure::new(format!(
                "{} is not empty: name a directory that is, or a new one; or -o goes on in it, and replaces nothing",
                path.display()
            )));
        }
        Self::held(root).map_err(|error| failed(&error))
    }

    fn held(root: OwnedFd) -> io::Result<Self> {
        let (root, tree) = (HostTree::begin(root)?, HostTree::default());
        Ok(Self { root, tree, is_root: rustix::process::geteuid().is_root() })
    }

    /// Makes a new directory in it, as a target of its own. With `goes_on` it may exist.
    pub fn make_target(&self, name: &[u8], goes_on: bool) -> io::Result<Self> {
        let root = self.descriptor(&self.root)?;
        match make_directory(&root, name) {
            Err(error) if goes_on && error.kind() == io::ErrorKind::AlreadyExists => let_owner_fill(&root, name),
            made => made?,
        }
        Self::held(enter(&root, name)?)
    }

    /// Returns the directory itself.
    pub fn root(&self) -> &Rc<HostDirectory> {
        &self.root
    }

    /// Enters an existing directory in `at`.
    pub fn enter(&self, at: &Rc<HostDirectory>, name: &[u8]) -> io::Result<Rc<HostDirectory>> {
        self.tree.enter(at, name, enter(&*self.descriptor(at)?, name)?)
    }

    /// Returns the descriptor of a directory, which may have to be opened again.
    pub fn descriptor(&self, at: &Rc<HostDirectory>) -> io::Result<Rc<OwnedFd>> {
        self.tree.descriptor(at)
    }

    /// Whether the user of this process may give files to other owners.
    pub fn keeps_owners(&self) -> bool {
        self.is_root
    }
}

/// Opens a path below a directory, without following symbolic links.
fn open_below(at: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(at, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, resolve)?)
}

/// Opens a directory in a directory.
pub fn enter(at: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    open_below(at.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Makes a directory that only its owner can access, without ACLs from the directory above.
pub fn make_directory(at: &OwnedFd, name: &[u8]) -> io::Result<()> {
    rustix::fs::mkdirat(at, name, Mode::RWXU)?;
    with_directory(at, name, |made| {
        made.drop_acls(|_| false)?;
        made.permit(0o700)
    })
}

/// Makes a directory as mkdir(2) does, with the ACLs that the directory above hands down. Its owner
/// can create files in it in any case; if the final permissions don't allow that, returns them.
pub fn make_directory_as(at: &OwnedFd, name: &[u8], mode: u32) -> io::Result<Option<u32>> {
    rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode))?;
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method alone is of one lifetime only")]
    with_directory(at, name, |made| made.let_owner_fill())
}

/// Acts on a directory that was just made. It is opened if the umask allows that, since `/proc` is
/// needed otherwise.
fn with_directory<T>(at: &OwnedFd, name: &[u8], act: impl FnOnce(&Made<'_>) -> io::Result<T>) -> io::Result<T> {
    match enter(at, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            act(&hold(at, name, FileType::Directory.as_raw_mode())?)
        }
        opened => act(&Made::Open(opened?.as_fd())),
    }
}

/// Makes a symbolic link.
pub fn make_symlink(at: &OwnedFd, name: &[u8], to: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::symlinkat(to, at, name)?)
}

/// Makes a device node, a FIFO or a socket with these permissions, as mknod(2) does.
pub fn make_node(at: &OwnedFd, name: &[u8], attributes: &Attributes, mode: u32) -> io::Result<()> {
    let number = device_number::from_disk(attributes.rdev);
    let device = rustix::fs::makedev(number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00);
    let kind = FileType::from_raw_mode(attributes.mode);
    Ok(rustix::fs::mknodat(at, name, kind, Mode::from_raw_mode(mode), device)?)
}

/// Lets the owner create files in an existing directory, if the user may do that.
pub fn let_owner_fill(at: &OwnedFd, name: &[u8]) {
    // If this fails, what can't be made in it is reported.
    let _ = hold(at, name, FileType::Directory.as_raw_mode()).and_then(|held| held.let_owner_fill());
}

/// Removes a directory that is empty.
pub fn remove_directory(at: &OwnedFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?)
}

/// Returns the target of a symbolic link.
pub fn read_symlink(at: &OwnedFd, name: &[u8]) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(at, name, Vec::new())?.into_bytes())
}

/// Returns what has a name, or `None` if nothing has it.
pub fn stat(at: &OwnedFd, name: &[u8]) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// Whether a file has this time of modification, as far as its file system can store it: some store
/// seconds only, or units of 100 nanoseconds.
pub fn has_time(found: &Stat, wanted: VolumeTime) -> bool {
    let (Timestamps { last_modification: wanted, .. }, nsec) = (stamps(wanted, wanted), found.st_mtime_nsec as i64);
    let rounded = [wanted.tv_nsec, wanted.tv_nsec - wanted.tv_nsec % 100, wanted.tv_nsec - wanted.tv_nsec % 1000, 0];
    found.st_mtime == wanted.tv_sec && rounded.contains(&nsec)
}

/// The identity of a file that was made, to recognise it later. Inode numbers of removed files are
/// reused, but not with the same birth time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: (u32, u32),
    ino: u64,
    born: (i64, u32),
}

impl Identity {
    fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
        let (device, born) = ((found.stx_dev_major, found.stx_dev_minor), found.stx_btime);
        Ok(Self { device, ino: found.stx_ino, born: (born.tv_sec, born.tv_nsec) })
    }
}

/// Opens a file that was made under this name with `O_PATH`. Returns an error if the name now
/// refers to another file, which the owner of the directory may have put there.
pub fn hold_again(at: &OwnedFd, name: &[u8], known: Identity) -> io::Result<OwnedFd> {
    let node = open_below(at.as_fd(), name, OFlags::PATH, Mode::empty())?;
    if Identity::of(node.as_fd())? != known {
        return Err(io::Error::other("something else was put in the place of the file that it is to be linked to"));
    }
    Ok(node)
}

/// Makes another name of an open file.
pub fn make_link(file: &OwnedFd, at: &OwnedFd, name: &[u8]) -> io::Result<()> {
    rustix::fs::linkat(CWD, by_descriptor(file), at, name, AtFlags::SYMLINK_FOLLOW).map_err(about_proc)
}

/// Returns the type of the file with a name, if it exists.
pub fn type_of(at: &OwnedFd, name: &[u8]) -> Option<FileType> {
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(found.st_mode))
}

/// A file that was made and needs its attributes. They are set by its descriptor and never by its
/// name, since directories get the volume's owners during the copy, and such an owner may replace a
/// file by a symbolic link.
pub enum Made<'a> {
    /// The file is open.
    Open(BorrowedFd<'a>),
    /// The file can't be opened for reading or writing, so the descriptor only refers to it
    /// (`O_PATH`).
    Held { node: OwnedFd, is_symlink: bool },
}

/// Opens a file that was just made under this name. Returns an error if the name now refers to a
/// file of another type.
pub fn hold<'a>(at: &OwnedFd, name: &[u8], mode: u32) -> io::Result<Made<'a>> {
    let node = open_below(at.as_fd(), name, OFlags::PATH, Mode::empty())?;
    let found = FileType::from_raw_mode(rustix::fs::fstat(&node)?.st_mode);
    if found != FileType::from_raw_mode(mode) {
        return Err(io::Error::other("something else was put in its place"));
    }
    Ok(Made::Held { node, is_symlink: found == FileType::Symlink })
}

/// Returns a path to the file of a descriptor, for calls that don't accept such a descriptor.
fn by_descriptor(node: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// Returns the error of a call with such a path.
fn about_proc(errno: Errno) -> io::Error {
    let is_missing = errno == Errno::NOENT && !Path::new("/proc/self/fd").exists();
    if is_missing { io::Error::other("this needs /proc, which is not mounted") } else { errno.into() }
}

impl Made<'_> {
    /// Returns the identity of the file.
    pub fn identity(&self) -> io::Result<Identity> {
        Identity::of(match self {
            Self::Open(file) => *file,
            Self::Held { node, .. } => node.as_fd(),
        })
    }

    /// Sets the owner and the group.
    pub fn own(&self, uid: u32, gid: u32) -> io::Result<()> {
        match self {
            Self::Open(file) => rustix::fs::fchown(file, owner(uid), group(gid))?,
            Self::Held { node, .. } => {
                rustix::fs::chownat(node, "", owner(uid), group(gid), AtFlags::EMPTY_PATH)?;
            }
        }
        Ok(())
    }

    /// Sets the permissions, except those of symbolic links, which have none.
    pub fn permit(&self, mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        match self {
            Self::Open(file) => rustix::fs::fchmod(file, mode)?,
            Self::Held { is_symlink: true, .. } => {}
            Self::Held { node, .. } => rustix::fs::chmod(by_descriptor(node), mode).map_err(about_proc)?,
        }
        Ok(())
    }

    /// Removes ACLs, such as those that the file has inherited from its directory (acl(5)), except
    /// for those for whose names `is_kept` is true.
    pub fn drop_acls(&self, is_kept: impl Fn(&[u8]) -> bool) -> io::Result<()> {
        for name in [acl::ACCESS, acl::DEFAULT].into_iter().filter(|name| !is_kept(name)) {
            if self.has_xattr(name) {
                match self {
                    Self::Open(file) => rustix::fs::fremovexattr(file, name)?,
                    Self::Held { node, .. } => rustix::fs::removexattr(by_descriptor(node), name)?,
                }
            }
        }
        Ok(())
    }

    fn has_xattr(&self, name: &[u8]) -> bool {
        let mut none = [0_u8; 0];
        let size = match self {
            Self::Open(file) => rustix::fs::fgetxattr(file, name, &mut none),
            Self::Held { node, .. } => rustix::fs::getxattr(by_descriptor(node), name, &mut none),
        };
        size.is_ok()
    }

    /// Lets the owner create files in a directory, whatever umask or ACL it was made under. Returns
    /// its previous permissions, if these were different.
    fn let_owner_fill(&self) -> io::Result<Option<u32>> {
        let found = match self {
            Self::Open(file) => rustix::fs::fstat(file)?,
            Self::Held { node, .. } => rustix::fs::fstat(node)?,
        };
        let mode = found.st_mode;
        if mode & 0o700 == 0o700 {
            return Ok(None);
        }
        self.permit(mode | 0o700)?;
        Ok(Some(mode))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        match self {
            Self::Open(file) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())?,
            Self::Held { node, .. } => {
                rustix::fs::setxattr(by_descriptor(node), name, value, XattrFlags::empty()).map_err(about_proc)?;
            }
        }
        Ok(())
    }

    /// Sets the times of the last access and the last change.
    pub fn stamp(&self, accessed: VolumeTime, modified: VolumeTime) -> io::Result<()> {
        let times = stamps(accessed, modified);
        match self {
            Self::Open(file) => rustix::fs::futimens(file, &times)?,
            Self::Held { node, .. } => rustix::fs::utimensat(node, "", &times, AtFlags::EMPTY_PATH)?,
        }
        Ok(())
    }
}

/// Returns the times of an open directory, to be restored later.
pub fn times(of: &OwnedFd) -> io::Result<Timestamps> {
    let stat = rustix::fs::fstat(of)?;
    let time = |sec, nsec: u64| Timespec { tv_sec: sec, tv_nsec: nsec as _ };
    Ok(Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as u64),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as u64),
    })
}

/// Restores the times of a directory.
pub fn set_times(of: &OwnedFd, times: &Timestamps) -> io::Result<()> {
    Ok(rustix::fs::futimens(of, times)?)
}

fn stamps(accessed: VolumeTime, modified: VolumeTime) -> Timestamps {
    // A damaged time must not become a special value, which means "now" or "unchanged".
    let time = |time: VolumeTime| Timespec { tv_sec: time.sec as i64, tv_nsec: i64::from(time.nsec.min(999_999_999)) };
    Timestamps { last_access: time(accessed), last_modification: time(modified) }
}

/// Returns `None` for -1, which would mean "unchanged".
fn owner(uid: u32) -> Option<rustix::fs::Uid> {
    (uid != u32::MAX).then(|| rustix::fs::Uid::from_raw(uid))
}

fn group(gid: u32) -> Option<rustix::fs::Gid> {
    (gid != u32::MAX).then(|| rustix::fs::Gid::from_raw(gid))
}

/// A path from the top for a message. The path is assembled only when it is shown.
pub struct Shown<'a>(pub &'a LinkedPath);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&joined(self.0))
    }
}

/// Returns a path from the top for people. The middle of a very long one is omitted.
fn joined(path: &LinkedPath) -> String {
    const MAX: usize = 1000;
    let shown = crate::show::bytes(&path.below(b""));
    if shown.is_empty() {
        return "/".into();
    }
    if shown.len() <= MAX {
        return shown;
    }
    let half = |is_first: bool| {
        let mut at = if is_first { MAX / 2 } else { shown.len() - MAX / 2 };
        while !shown.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    format!("{}…{}", &shown[..half(true)], &shown[half(false)..])
}

/// Whether an error means that nothing more can be created at all.
pub fn is_fatal(error: &io::Error) -> bool {
    use io::ErrorKind::{ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | ReadOnlyFilesystem | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn make_file(at: &OwnedFd, name: &[u8]) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        open_below(at.as_fd(), name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    fn enter_all(target: &Target, path: &[Vec<u8>]) -> io::Result<Rc<HostDirectory>> {
        path.iter().try_fold(Rc::clone(target.root()), |at, name| target.enter(&at, name))
    }

    #[test]
    fn nothing_is_opened_through_links_or_upwards() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("in/out")).unwrap();
        let target = Target::prepare(&dir.path().join("in"), false).err();
        assert!(target.is_some(), "a directory with something in it was taken");
        let target = Target::prepare(&dir.path().join("new"), false).unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("new/up")).unwrap();
        let names = |path: &str| path.split('/').map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        for path in ["up", "up/in", "..", "../in"] {
            assert!(enter_all(&target, &names(path)).is_err(), "{path}");
        }
        let root = target.descriptor(target.root()).unwrap();
        assert!(make_file(&root, b"up/x").is_err() && make_file(&root, b"up").is_err());
        assert!(enter(&root, b"up").is_err());
        // An existing directory is not accepted as a new target.
        assert!(target.make_target(b"up", false).is_err() && target.make_target(b"..", false).is_err());
        target.make_target(b"made", false).unwrap();
        assert!(target.make_target(b"made", false).is_err());
        // Deeper than the limit of a path.
        let mut deep = Vec::new();
        for level in 0..40 {
            let at = enter_all(&target, &deep).unwrap();
            let name = vec![b'a' + level % 26; 200];
            make_directory(&target.descriptor(&at).unwrap(), &name).unwrap();
            deep.push(name);
        }
        let at = enter_all(&target, &deep).unwrap();
        make_file(&target.descriptor(&at).unwrap(), b"bottom").unwrap();
    }

    /// Its owner may change what the path refers to at any time.
    #[test]
    fn what_was_found_empty_is_what_is_taken() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let [out, other] = ["out", "other"].map(|name| dir.path().join(name));
        std::fs::create_dir(&out).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("file"), "").unwrap();
        let full = std::fs::metadata(&other).unwrap().ino();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    rustix::fs::renameat_with(CWD, &out, CWD, &other, rustix::fs::RenameFlags::EXCHANGE).unwrap();
                }
            });
            let prepare = || {
                Target::prepare(&out, false).ok().map(|target| {
                    let root = target.descriptor(target.root()).unwrap();
                    rustix::fs::fstat(root).unwrap().st_ino
                })
            };
            let taken: Vec<_> = (0..20_000).filter_map(|_| prepare()).collect();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            taken
        });
        assert!(!taken.is_empty() && !taken.contains(&full));
    }

    /// The owner of a directory that is finished may change it while root continues to copy.
    #[test]
    fn only_the_file_that_was_made_gets_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let target = Target::prepare(&out, false).unwrap();
        let at = target.descriptor(target.root()).unwrap();
        let made = make_file(&at, b"file").unwrap();
        let known = Made::Open(made.as_fd()).identity().unwrap();
        make_symlink(&at, b"link", b"file").unwrap();
        let known_link = hold(&at, b"link", 0o120_000).unwrap().identity().unwrap();
        make_link(&hold_again(&at, b"file", known).unwrap(), &at, b"second").unwrap();
        make_link(&hold_again(&at, b"link", known_link).unwrap(), &at, b"second link").unwrap();
        let number = |name: &str| std::os::unix::fs::MetadataExt::ino(&out.join(name).symlink_metadata().unwrap());
        assert_eq!((number("file"), number("link")), (number("second"), number("second link")));
        // The file loses all its names, so that its inode number may be reused.
        drop(made);
        std::thread::sleep(std::time::Duration::from_millis(20));
        for name in ["file", "second"] {
            std::fs::remove_file(out.join(name)).unwrap();
        }
        std::fs::write(out.join("file"), "another").unwrap();
        assert!(hold_again(&at, b"file", known).is_err());
        std::fs::remove_file(out.join("file")).unwrap();
        make_symlink(&at, b"file", b"link").unwrap();
        assert!(hold_again(&at, b"file", known).is_err());
    }

    /// The owner of a directory of the copy may change it while root continues to copy.
    #[test]
    fn what_took_the_place_of_a_node_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "").unwrap();
        std::fs::set_permissions(&victim, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let target = Target::prepare(&dir.path().join("out"), false).unwrap();
        let at = target.descriptor(target.root()).unwrap();
        let fifo = 0o010_000;
        let mode_of = |path: &Path| std::os::unix::fs::MetadataExt::mode(&std::fs::symlink_metadata(path).unwrap());
        let make = |name: &str| rustix::fs::mknodat(&at, name, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (before, after) = (dir.path().join("out/before"), dir.path().join("out/after"));
        make("before");
        std::fs::remove_file(&before).unwrap();
        std::os::unix::fs::symlink(&victim, &before).unwrap();
        assert!(hold(&at, b"before", fifo).is_err());
        // The same if the node is open already.
        make("after");
        let held = hold(&at, b"after", fifo).unwrap();
        std::fs::remove_file(&after).unwrap();
        std::os::unix::fs::symlink(&victim, &after).unwrap();
        held.permit(0o666).unwrap();
        held.set_xattr(b"user.x", b"y").unwrap_err();
        held.stamp(VolumeTime { sec: 1, nsec: 0 }, VolumeTime { sec: 1, nsec: 0 }).unwrap();
        assert_eq!(mode_of(&victim) & 0o777, 0o600);
        assert!(std::fs::metadata(&victim).unwrap().modified().unwrap().elapsed().unwrap().as_secs() < 3600);
        make("left");
        let held = hold(&at, b"left", fifo).unwrap();
        held.permit(0o640).unwrap();
        assert_eq!(mode_of(&dir.path().join("out/left")) & 0o777, 0o640);
    }
}

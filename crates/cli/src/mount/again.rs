//! Further mounts of a volume that root has mounted already: of another subvolume, or of the same
//! one, as with the kernel's driver. The kernel has one file system of the volume, with one server
//! and one cache, and each mount shows a directory of it. Each mount has its own options that the
//! kernel keeps for each mount (`ro`, `nodev`, `nosuid`, `noexec`, `noatime`); all other options
//! are those of the first mount, and a later mount can't change them. The server ends with the last
//! of the mounts.
//!
//! Only root may mount so, and only what root has mounted. The kernel says which file system was
//! mounted from a block device, and by whom, and finds it by that device; so nothing on a mount
//! point is opened, and no server is trusted (invariant 51). The mounts of others can't be shared,
//! since the kernel lets nobody else mount a directory of a file system.
//!
//! A mount is made from a part of a device, an image or an export: other parts are other volumes,
//! though the kernel may show the same source for them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, remove_file};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use ubtrfs_format::{Superblock, TreeId};
use ubtrfs_fuse::mount::{Detached, MountError, MountOptions, is_dead};
use ubtrfs_server::control::Report;
use ubtrfs_volume::{is_remote, is_same_export};

use super::offers;
use super::option::Scope;
use super::option_table::find;
use super::options::each;
use super::request::MountRequest;
use crate::args::Window;
use crate::control;
use crate::device::part_of;
use crate::failure::{Failure, Result};
use crate::ioctls::{self, about_mount, check_subvolume};
use crate::mount_table::{self, Mounted};
use crate::output::note;
use crate::trust::is_trusted;
use crate::volume_at::table::{default_subvolume, subvolumes};
use crate::volume_at::{Search, mounted_at};

/// The type of mounts that the kernel finds by their block device.
const BLOCK: &str = "fuseblk.ubtrfs";
/// The directory of the files on which root's mounts of one volume wait for one another.
const TURNS: &str = "/run/ubtrfs";

/// A mount that is requested.
pub struct Wanted<'a> {
    /// All devices of the volume that are found.
    pub devices: &'a [PathBuf],
    /// The superblock of the volume. `None` for an export, since no server is asked for it.
    pub superblock: Option<&'a Superblock>,
    pub directory: &'a Path,
    /// The options as they were given.
    pub given: &'a [String],
    pub request: &'a MountRequest,
    pub options: &'a MountOptions,
}

/// The turn at mounting a volume. Dropping it ends the turn.
pub struct Turn {
    path: PathBuf,
    file: File,
}

impl Turn {
    /// Waits for the turn. `None` if the file for the wait can't be made.
    fn wait_for(path: &Path) -> Option<Self> {
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).ok()?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive).ok()?;
            let turn = Self { path: path.into(), file };
            if turn.is_of_path() {
                return Some(turn);
            }
        }
    }

    /// Whether the file is still at its path, so that others wait for it, too: the previous holder
    /// of the turn may have removed it.
    fn is_of_path(&self) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        let is = self.file.metadata().map(identity);
        is.is_ok_and(|is| std::fs::metadata(&self.path).map(identity).is_ok_and(|found| found == is))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Only the holder of the turn removes the file. Those that wait for it notice that.
        if self.is_of_path() {
            let _ = remove_file(&self.path);
        }
    }
}

/// Waits until no other mount of this volume is in progress, and keeps others waiting while the
/// result lives: of two mounts at the same time, one becomes the first, and the other is mounted
/// from it. Empty if the files for the wait can't be made.
pub fn wait_for_turn(devices: &[PathBuf], superblock: Option<&Superblock>) -> Vec<Turn> {
    let _ = DirBuilder::new().mode(0o700).create(TURNS);
    let exports = devices.iter().filter(|device| is_remote(device));
    // A fixed order, so that no two wait for each other.
    let mut names: BTreeSet<String> = exports.map(|export| format!("mount-{:016x}", hash(export))).collect();
    names.extend(superblock.map(|superblock| format!("mount-{}", superblock.fsid)));
    names.iter().filter_map(|name| Turn::wait_for(&Path::new(TURNS).join(name))).collect()
}

/// Hashes the name of an export. If two names have the same hash, their mounts wait for each other
/// without need.
fn hash(name: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// A mount by root that may be the volume that is wanted.
struct Candidate {
    /// One of the mounts of the volume.
    first: Mounted,
    /// The one of the given devices by which it was found.
    source: PathBuf,
    /// The connection of the mount, if its server has offered it.
    connection: Option<OwnedFd>,
}

/// Makes a further mount of what root has mounted of this volume already. Returns whether there was
/// such a mount.
pub fn mount(wanted: &Wanted<'_>) -> Result<bool> {
    let table = mount_table::all().map_err(|error| Failure::about(mount_table::TABLE, &error))?;
    // Servers are only asked if none of the mounts that the kernel knows by their device fits.
    let offered = iter::once(()).flat_map(|()| offered(&table, wanted.devices));
    for candidate in first_mounts(&table, wanted.devices).into_iter().chain(offered) {
        let Candidate { first, source, connection } = candidate;
        if let Some((all, report)) = found(wanted, &first, &source, connection)? {
            attach(wanted, &first, all, &report)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens the whole file system of the first mount, and gets the report of its server, if that is
/// the volume that is wanted.
fn found(
    wanted: &Wanted<'_>,
    first: &Mounted,
    source: &Path,
    connection: Option<OwnedFd>,
) -> Result<Option<(Detached, Report)>> {
    let shown = first.source.to_string_lossy();
    let mounted = if first.kind == BLOCK {
        let Some(device) = block_device(first.device) else { return Ok(None) };
        Detached::of_mounted(&device, &shown, wanted.options, first.read_only)
    } else {
        let Some(connection) = connection else { return Ok(None) };
        Detached::of_connection(connection, &shown, wanted.options, first.read_only)
    };
    let all = match mounted {
        Ok(Some(all)) => all,
        // The mount has ended meanwhile.
        Ok(None) => return Ok(None),
        Err(MountError::Mount(_, error)) if Errno::from_io_error(&error) == Some(Errno::BUSY) => return Ok(None),
        Err(error) => return Err(Failure::of(&error)),
    };
    if all.device_number() != Some(first.device) {
        // By invariant 51: it is not known who has mounted the one that was found.
        return Err(Failure::new(format!("{} is not what {} is a mount of", source.display(), first.point.display())));
    }
    let failed = |errno| about_mount(first.point.display(), errno);
    if is_dead(&all.path()) {
        return Err(failed(Errno::CONNABORTED));
    }
    let root = ioctls::Mounted::open(&all.path())?;
    let volume = root.volume_id().map_err(failed)?;
    let report = control::report(&all.path()).map_err(failed)?;
    if wanted.superblock.is_some_and(|superblock| superblock.fsid.0 != volume)
        || !is_same_part(wanted, source, &report)?
    {
        // It is another part of the device, or another export.
        return Ok(None);
    }
    if root.subvolume().map_err(failed)? != TreeId::FS {
        return Err(Failure::new(format!(
            "{} is mounted on {} with options under which it can be mounted only once: unmount it there",
            first.source.display(),
            first.point.display()
        )));
    }
    Ok(Some((all, report)))
}

/// Whether the server serves the part of this source that is wanted.
fn is_same_part(wanted: &Wanted<'_>, source: &Path, report: &Report) -> Result<bool> {
    if is_remote(source) && !report.devices.iter().any(|device| is_same_export(source, device)) {
        return Ok(false);
    }
    let of_part = report.options.iter().filter(|option| is_of_part(option)).cloned();
    let mounted = MountRequest::parse(&of_part.collect::<Vec<_>>())?.window();
    let wanted = wanted.request.window();
    let is_same = |one: Window, other: Window| Ok(part_of(source, one)? == part_of(source, other)?);
    if mounted == wanted { Ok(true) } else { is_same(mounted, wanted) }
}

/// Whether an option selects the part of a device that the volume is in.
fn is_of_part(option: &str) -> bool {
    find(option).is_some_and(|given| given.row.scope == Scope::Part)
}

/// Mounts the wanted directory of the volume.
fn attach(wanted: &Wanted<'_>, first: &Mounted, all: Detached, report: &Report) -> Result<()> {
    if first.read_only && !wanted.request.read_only {
        write_again(&all, first)?;
    }
    say_what_is_ignored(wanted.given, report);
    let directory = directory(&all, wanted.request)?;
    all.attach(&directory, wanted.directory).map_err(|error| Failure::of(&error))
}

/// Returns the mounts that root has made from these devices, according to the kernel, one of each
/// volume.
fn first_mounts(table: &[Mounted], devices: &[PathBuf]) -> Vec<Candidate> {
    let mut seen = BTreeSet::new();
    let found = table.iter().filter(|mounted| mounted.kind == BLOCK && is_roots(mounted)).filter_map(|mounted| {
        let source = devices.iter().find(|device| is_source(device, mounted))?.clone();
        seen.insert(mounted.device).then(|| Candidate { first: mounted.clone(), source, connection: None })
    });
    found.collect()
}

/// Returns the mounts that root's servers report to have made from these devices, if the kernel
/// shows them in this mount namespace.
fn offered(table: &[Mounted], devices: &[PathBuf]) -> Vec<Candidate> {
    let found = offers::all().into_iter().filter_map(|(served, connection)| {
        let is_served = |device: &&PathBuf| served.devices.iter().any(|other| is_same_device(device, other));
        let source = devices.iter().find(is_served)?.clone();
        let is_first = |mounted: &&Mounted| mounted.device == served.device && is_roots(mounted);
        let first = table.iter().find(is_first)?.clone();
        Some(Candidate { first, source, connection })
    });
    found.collect()
}

/// Whether root made this mount. By invariant 51 the kernel decides: it says who has mounted what,
/// and lets only root mount `fuseblk`.
fn is_roots(mounted: &Mounted) -> bool {
    mounted.is_ours() && mounted.user == Some(0) && is_trusted(mounted)
}

/// Whether two names refer to one device, image or export.
fn is_same_device(one: &Path, other: &Path) -> bool {
    if is_remote(one) || is_remote(other) {
        return is_same_export(one, other);
    }
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some(if found.file_type().is_block_device() { (None, found.rdev()) } else { (Some(found.dev()), found.ino()) })
    };
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// Whether this device, or this image through a loop device, or this export by its name, is the
/// source of a mount.
fn is_source(device: &Path, mounted: &Mounted) -> bool {
    if is_remote(device) {
        // The kernel shows names without a slash at the end. Whether the exports are the same, the
        // server says later.
        let shown = |name: &Path| PathBuf::from(name.to_string_lossy().trim_end_matches('/'));
        return is_same_export(shown(device), shown(&mounted.source));
    }
    let Ok(found) = std::fs::metadata(device) else { return false };
    let is_same = |other: Metadata| {
        let is_device = found.file_type().is_block_device() && found.rdev() == other.rdev();
        is_device || (found.dev(), found.ino()) == (other.dev(), other.ino())
    };
    // Before Linux 6.18 the source is another device with the name of this one.
    if std::fs::metadata(&mounted.source).is_ok_and(is_same) {
        return true;
    }
    let (major, minor) = mounted.device;
    if found.file_type().is_block_device() {
        return (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())) == mounted.device;
    }
    let image = std::fs::read(format!("/sys/dev/block/{major}:{minor}/loop/backing_file")).unwrap_or_default();
    let image = std::fs::metadata(OsStr::from_bytes(image.trim_ascii_end()));
    image.is_ok_and(|image| (image.dev(), image.ino()) == (found.dev(), found.ino()))
}

/// Returns the path of the block device with this number.
fn block_device((major, minor): (u32, u32)) -> Option<PathBuf> {
    let event = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).ok()?;
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    let path = Path::new("/dev").join(name);
    let found = std::fs::metadata(&path).ok()?;
    (found.rdev() == rustix::fs::makedev(major, minor)).then_some(path)
}

/// Has the server of a volume, all of whose mounts are read-only, allow writing again. Those mounts
/// stay read-only.
fn write_again(all: &Detached, first: &Mounted) -> Result<()> {
    let read_only = || {
        Failure::new(format!(
            "{} was mounted read-only on {} first, and so nothing can be written to it: unmount it there, or mount it \
             with ro here, too",
            first.source.display(),
            first.point.display()
        ))
    };
    control::write_again(&all.path()).map_err(|errno| match errno {
        Errno::ROFS => read_only(),
        errno => control::failure(&first.point, errno),
    })?;
    all.make_writable().map_err(|error| {
        let _ = control::stop_writing(&all.path());
        Failure::about(first.point.display(), &error)
    })
}

/// Names the options that have no effect, since only the first mount could have set them.
fn say_what_is_ignored(given: &[String], report: &Report) {
    let is_own = |option: &str| find(option).is_some_and(|given| given.row.scope != Scope::Volume);
    for option in each(given).filter(|option| !is_own(option) && !report.options.iter().any(|other| other == option)) {
        note!(
            "ubtrfs: mount option '{option}' has no effect: the volume is mounted already, and has this from its first \
             mount"
        );
    }
}

/// Opens the subvolume that a mount with these options shows, with `O_PATH`.
pub fn directory(all: &Detached, request: &MountRequest) -> Result<File> {
    let (path, wanted) = if let Some(path) = &request.subvolume {
        (PathBuf::from(path), request.subvolume_id.map(or_top))
    } else {
        let (path, id) = path_of(all, request.subvolume_id)?;
        (path, Some(id))
    };
    let missing = || Failure::new(format!("there is no subvolume at '{}'", path.display()));
    let opened = all.open(&path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::NOTDIR) => missing(),
        _ => Failure::about(path.display(), &error),
    })?;
    let place = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let found = ioctls::Mounted::open(&place)?;
    check_subvolume(&found, &path)?;
    let found = found.subvolume().map_err(|errno| about_mount(path.display(), errno))?;
    match wanted {
        Some(wanted) if wanted != found => Err(Failure::new(format!(
            "the subvolume at '{}' has the id {found}, not {wanted}: the options subvol= and subvolid= disagree",
            path.display()
        ))),
        _ => Ok(opened),
    }
}

fn or_top(id: u64) -> TreeId {
    if id == 0 { TreeId::FS } else { TreeId(id) }
}

/// Returns the path from the top level of the subvolume with this id, or of the default one.
fn path_of(all: &Detached, id: Option<u64>) -> Result<(PathBuf, TreeId)> {
    let volume = mounted_at(&all.path());
    volume.settle()?;
    let subvolumes = subvolumes(&volume)?;
    let id = match id.map(or_top) {
        Some(id) => id,
        None => Some(default_subvolume(&volume)?).filter(|id| subvolumes.contains_key(id)).unwrap_or(TreeId::FS),
    };
    if id == TreeId::FS {
        return Ok(("/".into(), id));
    }
    let path = subvolumes.get(&id).and_then(|listed| listed.path.as_deref());
    let path = path.ok_or_else(|| Failure::new(format!("there is no subvolume with the id {id}")))?;
    Ok((OsStr::from_bytes(path).into(), id))
}

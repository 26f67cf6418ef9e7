//! Subvolumes: makes, deletes, replaces and describes them.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use ubtrfs_format::posix::UMASK;
use ubtrfs_format::{TreeId, Uuid};
use ubtrfs_server::control::Report;

use super::on_mount::OnMount;
use super::search::Search;
use super::table::subvolumes;
use crate::control::statistics;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount, check_subvolume, open_subvolume};
use crate::mount_table;
use crate::path::failure;
use crate::place::{Image, split};
use crate::show;

/// The offset of the id in the answer about a subvolume.
const RECEIVED_UUID: usize = 8 + 256 + 4 * 8 + 2 * 16;
/// The interval of the checks whether an image has freed the space of deleted subvolumes.
const PAUSE_OF_IMAGE: Duration = Duration::from_millis(10);

/// The operations on the subvolumes of a volume.
pub trait Subvolumes {
    /// Makes an empty subvolume, and with `parents` the directories above it. Returns its path.
    fn create(&self, path: &Path, parents: bool) -> Result<PathBuf>;

    /// Makes a snapshot of `source` at `dest`, or under the name of the source in `dest` if that is
    /// a directory. Returns its path.
    fn snapshot(&self, source: &Path, dest: &Path, read_only: bool) -> Result<PathBuf>;

    /// Deletes the subvolume at a path.
    fn delete(&self, path: &Path) -> Result<()>;

    /// Deletes a subvolume by its number.
    fn delete_by_id(&self, id: u64) -> Result<()>;

    /// Replaces the subvolume `target` by a snapshot of `source`.
    fn reset(&self, target: &Path, source: &Path) -> Result<()>;

    /// Returns the subvolume that a path is in.
    fn subvolume_of(&self, path: &Path) -> Result<TreeId>;

    /// Returns the subvolume whose root directory is at a path.
    fn subvolume_at(&self, path: &Path) -> Result<TreeId>;

    /// Sets the default subvolume.
    fn set_default(&self, id: TreeId) -> Result<()>;

    /// Whether the subvolume at a path is read-only.
    fn is_read_only(&self, path: &Path) -> Result<bool>;

    /// Makes the subvolume at a path read-only or writable.
    fn set_read_only(&self, path: &Path, read_only: bool) -> Result<()>;

    /// Whether the subvolume at a path was received from another volume.
    fn was_received(&self, path: &Path) -> Result<bool>;

    /// Returns the deleted subvolumes that still take space.
    fn deleted(&self) -> Result<Vec<TreeId>>;

    /// Returns how many deleted subvolumes are never dropped, since a part of them can't be read,
    /// as far as that is known.
    fn undropped(&self) -> u64;

    /// Waits while the volume drops deleted subvolumes, until another check is worthwhile; on a
    /// mount that is `pause`.
    fn wait_for_drops(&self, pause: Duration) -> Result<()>;
}

fn no_such_subvolume() -> Failure {
    Failure::new("there is no such subvolume")
}

/// Returns the failure about a volume's top level, which is no entry of a directory.
fn is_top_level(what: &str) -> Failure {
    Failure::new(format!("the top level of a volume can't be {what}: name a subvolume below it"))
}

/// Returns the failure about a subvolume that contains others, and so can't be changed.
fn in_it(shown: impl Display) -> Failure {
    Failure::new(format!("{shown}: there are other subvolumes in it"))
}

/// Returns the failure about a subvolume that can't be reset.
fn no_reset(target: impl Display, errno: Errno) -> Option<Failure> {
    let why = match errno {
        Errno::NOTEMPTY => return Some(in_it(target)),
        Errno::INVAL => "it is SOURCE itself, or no subvolume",
        Errno::ROFS => "it is read-only, or the directory that it is in",
        Errno::BUSY => "it is mounted, or being reset",
        _ => return None,
    };
    Some(Failure::new(format!("{target}: {why}")))
}

impl Subvolumes for OnMount {
    fn create(&self, path: &Path, parents: bool) -> Result<PathBuf> {
        let (dir, name) = split(path)?;
        if parents {
            std::fs::create_dir_all(&dir).map_err(|error| Failure::about(dir.display(), &error))?;
        }
        let opened = Mounted::open(&dir)?;
        opened.create(&name).map_err(|errno| about_mount(path.display(), errno))?;
        self.keep_open(opened);
        Ok(dir.join(name))
    }

    fn snapshot(&self, source: &Path, dest: &Path, read_only: bool) -> Result<PathBuf> {
        let opened = open_subvolume(source)?;
        let (dir, name) = if dest.is_dir() {
            let source = source.canonicalize().map_err(|error| Failure::about(source.display(), &error))?;
            (dest.to_owned(), split(&source)?.1)
        } else {
            split(dest)?
        };
        opened.write_back().map_err(|errno| about_mount(source.display(), errno))?;
        let path = dir.join(&name);
        Mounted::open(&dir)?.snapshot(&opened, &name, read_only).map_err(|errno| {
            on_other_volume(&dir, source, errno).unwrap_or_else(|| about_mount(path.display(), errno))
        })?;
        Ok(path)
    }

    fn delete(&self, path: &Path) -> Result<()> {
        let (dir, name) = entry(path)?;
        dir.delete(&name).map_err(|errno| about_deletion(path, errno))?;
        self.keep_open(dir);
        Ok(())
    }

    fn delete_by_id(&self, id: u64) -> Result<()> {
        self.opened()?.delete_by_id(id).map_err(|errno| about_deletion(self.place(), errno))
    }

    fn reset(&self, target: &Path, source: &Path) -> Result<()> {
        let opened = open_subvolume(source)?;
        let (dir, name) = entry(target)?;
        opened.write_back().map_err(|errno| about_mount(source.display(), errno))?;
        let shown = target.display();
        dir.reset(&name, &opened).map_err(|errno| match errno {
            Errno::NOTTY => Failure::new(format!("{shown} is not on a volume that ubtrfs has mounted")),
            Errno::PERM => Failure::new(format!(
                "{shown}: not permitted: it takes what deleting a subvolume takes, and SOURCE must be one's own"
            )),
            errno => on_other_volume(target, source, errno)
                .or_else(|| no_reset(target.display(), errno))
                .unwrap_or_else(|| about_mount(target.display(), errno)),
        })
    }

    fn subvolume_of(&self, path: &Path) -> Result<TreeId> {
        Mounted::open(path)?.subvolume().map_err(|errno| about_mount(path.display(), errno))
    }

    fn subvolume_at(&self, path: &Path) -> Result<TreeId> {
        let opened = open_subvolume(path)?;
        opened.subvolume().map_err(|errno| about_mount(path.display(), errno))
    }

    fn set_default(&self, id: TreeId) -> Result<()> {
        self.opened()?.set_default(id.0).map_err(|errno| match errno {
            Errno::PERM => Failure::new("only root, or the user who has mounted it, may change a volume's default"),
            Errno::NOENT => no_such_subvolume(),
            errno => self.failed(errno),
        })
    }

    fn is_read_only(&self, path: &Path) -> Result<bool> {
        let opened = open_subvolume(path)?;
        opened.is_read_only().map_err(|errno| about_mount(path.display(), errno))
    }

    fn set_read_only(&self, path: &Path, read_only: bool) -> Result<()> {
        Mounted::open(path)?.set_read_only(read_only).map_err(|errno| about_mount(path.display(), errno))
    }

    fn was_received(&self, path: &Path) -> Result<bool> {
        let opened = open_subvolume(path)?;
        let info = opened.info().map_err(|errno| about_mount(path.display(), errno))?;
        Ok(info[RECEIVED_UUID..RECEIVED_UUID + 16].iter().any(|byte| *byte != 0))
    }

    fn deleted(&self) -> Result<Vec<TreeId>> {
        self.settle()?;
        let all = subvolumes(self)?;
        Ok(all.values().filter(|listed| listed.is_deleted()).map(|listed| listed.id).collect())
    }

    fn undropped(&self) -> u64 {
        // The kernel's driver has no such statistics.
        let answer = statistics(self.place()).ok();
        let report = answer.and_then(|answer| serde_json::from_slice::<Report>(&answer).ok());
        report.map_or(0, |report| report.subvolumes_undropped)
    }

    fn wait_for_drops(&self, pause: Duration) -> Result<()> {
        thread::sleep(pause);
        Ok(())
    }
}

/// Returns the failure about two volumes, if the kernel has reported that.
fn on_other_volume(one: &Path, other: &Path, errno: Errno) -> Option<Failure> {
    (errno == Errno::XDEV)
        .then(|| Failure::new(format!("{} is not on the volume of {}", one.display(), other.display())))
}

fn about_deletion(path: &Path, errno: Errno) -> Failure {
    match errno {
        Errno::PERM => Failure::new(format!(
            "{}: not permitted: only root and the user who has mounted it may delete subvolumes, others with the mount \
             option user_subvol_rm_allowed; and nobody the default subvolume",
            path.display()
        )),
        Errno::NOTEMPTY => in_it(path.display()),
        errno => about_mount(path.display(), errno),
    }
}

/// Opens the directory with the entry of a subvolume, and returns it with the name of the entry.
fn entry(path: &Path) -> Result<(Mounted, OsString)> {
    // The directories above a subvolume need not be readable to name it.
    let real = match path.file_name() {
        Some(_) if !path.is_symlink() => path.to_owned(),
        _ => path.canonicalize().map_err(|error| Failure::about(path.display(), &error))?,
    };
    let opened = Mounted::open(&real)?;
    check_subvolume(&opened, path)?;
    let (dir, name) = split(&real)?;
    let mounted = mount_table::mounted_on(&mount_table::resolve(path)?)?;
    let device = |mounted: &mount_table::Mounted| mounted.device;
    if mounted.as_ref().map(device).is_some_and(|own| mount_table::holding(&dir).as_ref().map(device) != Some(own)) {
        return Err(is_mount_point(&opened, path));
    }
    Ok((Mounted::open(&dir)?, name))
}

/// Returns the failure about a subvolume that is named by its mount point, which is not an entry of
/// the volume.
fn is_mount_point(opened: &Mounted, path: &Path) -> Failure {
    let shown = path.display();
    Failure::new(match opened.subvolume() {
        Ok(TreeId::FS) => format!(
            "{shown} is where the volume itself is mounted: its top level has no entry that could be deleted or replaced; \
             name a subvolume below it, such as {shown}/NAME"
        ),
        Ok(id) => format!(
            "{shown} is where the subvolume {id} is mounted: to change or delete it, mount the top level elsewhere \
             (-o subvolid=5) and name the subvolume there, or unmount it and name it as IMAGE:PATH"
        ),
        Err(errno) => return about_mount(shown, errno),
    })
}

impl Subvolumes for Image {
    fn create(&self, path: &Path, parents: bool) -> Result<PathBuf> {
        let (dir, name) = split(path)?;
        if parents {
            self.make_directories(&dir)?;
        }
        let at = self.find(&dir)?;
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let root = self.fs.inodes().inheriting_root(at, owner, UMASK);
        let made = root.and_then(|root| self.fs.subvolumes().create_subvolume_with(at, name.as_bytes(), &root));
        made.map_err(|error| failure(path.as_os_str().as_bytes(), &error))?;
        Ok(path.to_owned())
    }

    fn snapshot(&self, source: &Path, dest: &Path, read_only: bool) -> Result<PathBuf> {
        let id = self.subvolume_at(source)?;
        let mut dest = dest.to_owned();
        if self.find(&dest).is_ok() {
            dest.push(split(source)?.1);
        }
        let (dir, name) = split(&dest)?;
        let made = self.fs.subvolumes().snapshot(id, self.find(&dir)?, name.as_bytes(), read_only);
        made.map_err(|error| failure(dest.as_os_str().as_bytes(), &error))?;
        Ok(dest)
    }

    fn delete(&self, path: &Path) -> Result<()> {
        if self.subvolume_at(path)? == TreeId::FS {
            return Err(is_top_level("deleted"));
        }
        let (dir, name) = split(path)?;
        delete_entry(self, self.find(&dir)?, name.as_bytes())
    }

    fn delete_by_id(&self, id: u64) -> Result<()> {
        let info = self.fs.subvolumes().subvolume_info(TreeId(id)).map_err(|error| match error.errno() {
            Errno::NOENT => no_such_subvolume(),
            _ => self.failed(&error),
        })?;
        let (dir, name) = info.entry.ok_or_else(|| is_top_level("deleted"))?;
        delete_entry(self, dir, &name)
    }

    fn reset(&self, target: &Path, source: &Path) -> Result<()> {
        if self.subvolume_at(target)? == TreeId::FS {
            return Err(is_top_level("replaced"));
        }
        let source = self.subvolume_at(source)?;
        let (dir, name) = split(target)?;
        let done = self.fs.subvolumes().reset_subvolume(self.find(&dir)?, name.as_bytes(), source);
        let failed =
            |error: ubtrfs::Error| no_reset(target.display(), error.errno()).unwrap_or_else(|| self.failed(&error));
        done.map(drop).map_err(failed)
    }

    fn subvolume_of(&self, path: &Path) -> Result<TreeId> {
        Ok(self.find(path)?.subvolume)
    }

    fn subvolume_at(&self, path: &Path) -> Result<TreeId> {
        self.root_at(path)
    }

    fn set_default(&self, id: TreeId) -> Result<()> {
        self.fs.subvolumes().set_default_subvolume(id).map_err(|error| match error.errno() {
            Errno::NOENT => no_such_subvolume(),
            _ => self.failed(&error),
        })
    }

    fn is_read_only(&self, path: &Path) -> Result<bool> {
        let info = self.fs.subvolumes().subvolume_info(self.root_at(path)?).map_err(|error| self.failed(&error))?;
        Ok(info.read_only)
    }

    fn set_read_only(&self, path: &Path, read_only: bool) -> Result<()> {
        self.fs
            .subvolumes()
            .set_subvolume_read_only(self.root_at(path)?, read_only)
            .map_err(|error| self.failed(&error))
    }

    fn was_received(&self, path: &Path) -> Result<bool> {
        let info = self.fs.subvolumes().subvolume_info(self.root_at(path)?).map_err(|error| self.failed(&error))?;
        Ok(info.received_uuid != Uuid::NIL)
    }

    fn deleted(&self) -> Result<Vec<TreeId>> {
        Ok(self.fs.subvolumes().deleted_subvolumes())
    }

    fn undropped(&self) -> u64 {
        self.fs.stats().subvolumes_undropped
    }

    fn wait_for_drops(&self, _: Duration) -> Result<()> {
        self.fs.durability().sync().map_err(|error| self.failed(&error))?;
        thread::sleep(PAUSE_OF_IMAGE);
        Ok(())
    }
}

fn delete_entry(image: &Image, dir: ubtrfs::InodeId, name: &[u8]) -> Result<()> {
    let shown = || show::bytes(name);
    image.fs.subvolumes().delete_subvolume(dir, name).map(drop).map_err(|error| match error.errno() {
        Errno::PERM => Failure::new(format!("{}: the default subvolume can't be deleted", shown())),
        Errno::NOTEMPTY => in_it(shown()),
        _ => failure(name, &error),
    })
}

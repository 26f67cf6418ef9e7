//! `ubtrfs subvolume` and `ubtrfs property`: on a mount by ioctls, ours or the kernel's, and in an
//! image by the engine.

mod find_new;
mod list;
mod property;
mod reset;
mod show;
pub mod table;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use ubtrfs_format::TreeId;
use ubtrfs_format::posix::UMASK;
use ubtrfs_server::control::Report;

use self::table::{Source, entry_on_mount, in_it};
use crate::args;
use crate::args::subvolume::{Create, Delete, SetDefault, Snapshot, SubvolumeCommand, SyncDeleted};
use crate::control::statistics;
use crate::failure::{Failure, Result, each};
use crate::ioctls::{Mounted, about_mount, check_subvolume};
use crate::output::say_line;
use crate::path::failure;
use crate::place::{Image, Place, is_same, split};
pub use property::run as property;

/// `ubtrfs subvolume`
pub fn run(arguments: &args::subvolume::Subvolume) -> Result<()> {
    match &arguments.what {
        SubvolumeCommand::Create(arguments) => create(arguments),
        SubvolumeCommand::Snapshot(arguments) => snapshot(arguments),
        SubvolumeCommand::Delete(arguments) => delete(arguments),
        SubvolumeCommand::Reset(arguments) => reset::run(arguments),
        SubvolumeCommand::List(arguments) => list::run(arguments),
        SubvolumeCommand::Show(arguments) => show::run(arguments),
        SubvolumeCommand::GetDefault(arguments) => show::default(arguments),
        SubvolumeCommand::SetDefault(arguments) => set_default(arguments),
        SubvolumeCommand::FindNew(arguments) => find_new::run(arguments),
        SubvolumeCommand::Sync(arguments) => sync(arguments),
    }
}

fn create(arguments: &Create) -> Result<()> {
    each(&arguments.places, |word| match Place::parse(word) {
        Place::Mounted(path) => {
            let (dir, name) = split(&path)?;
            if arguments.parents {
                std::fs::create_dir_all(&dir).map_err(|error| Failure::about(dir.display(), &error))?;
            }
            Mounted::open(&dir)?.create(&name).map_err(|errno| about_mount(path.display(), errno))?;
            say_line(&format!("Create subvolume '{}'", dir.join(name).display()))
        }
        Place::Image { image, path } => {
            let opened = Image::open(&image, &arguments.image, true, false)?;
            let as_path = Path::new(OsStr::from_bytes(&path));
            let (dir, name) = split(as_path)?;
            if arguments.parents {
                opened.make_directories(&dir)?;
            }
            let at = opened.find(dir.as_os_str().as_bytes())?;
            let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let root = opened.fs.inodes().inheriting_root(at, owner, UMASK);
            let made = root.and_then(|root| opened.fs.subvolumes().create_subvolume_with(at, name.as_bytes(), &root));
            made.map_err(|error| failure(&path, &error))?;
            opened.close()?;
            say_line(&format!("Create subvolume '{}'", word.display()))
        }
    })
}

fn snapshot(arguments: &Snapshot) -> Result<()> {
    let kind = if arguments.read_only { "readonly snapshot" } else { "snapshot" };
    let shown = match (Place::parse(&arguments.source), Place::parse(&arguments.dest)) {
        (Place::Mounted(source), Place::Mounted(dest)) => snapshot_on_mount(&source, &dest, arguments.read_only)?,
        (Place::Image { image, path: source }, Place::Image { image: other, path: dest }) => {
            if !is_same(&image, &other) {
                return Err(Failure::new("a snapshot is on the volume of its source"));
            }
            let opened = Image::open(&image, &arguments.image, true, false)?;
            let id = opened.subvolume(&source)?;
            let mut dest = PathBuf::from(OsStr::from_bytes(&dest));
            if opened.find(dest.as_os_str().as_bytes()).is_ok() {
                dest.push(split(Path::new(OsStr::from_bytes(&source)))?.1);
            }
            let (dir, name) = split(&dest)?;
            let at = opened.find(dir.as_os_str().as_bytes())?;
            let made = opened.fs.subvolumes().snapshot(id, at, name.as_bytes(), arguments.read_only);
            made.map_err(|error| failure(dest.as_os_str().as_bytes(), &error))?;
            opened.close()?;
            format!("{}:{}", image.display(), dest.display())
        }
        _ => return Err(Failure::new("a snapshot is on the volume of its source")),
    };
    say_line(&format!("Create a {kind} of '{}' in '{shown}'", arguments.source.display()))
}

fn snapshot_on_mount(source: &Path, dest: &Path, read_only: bool) -> Result<String> {
    let opened = Mounted::open(source)?;
    check_subvolume(&opened, source)?;
    let (dir, name) = if dest.is_dir() {
        let source = source.canonicalize().map_err(|error| Failure::about(source.display(), &error))?;
        (dest.to_owned(), split(&source)?.1)
    } else {
        split(dest)?
    };
    opened.write_back().map_err(|errno| about_mount(source.display(), errno))?;
    let path = dir.join(&name);
    Mounted::open(&dir)?.snapshot(&opened, &name, read_only).map_err(|errno| match errno {
        Errno::XDEV => Failure::new(format!("{} is not on the volume of {}", dir.display(), source.display())),
        errno => about_mount(path.display(), errno),
    })?;
    Ok(path.display().to_string())
}

fn delete(arguments: &Delete) -> Result<()> {
    let how = if arguments.commit_each || arguments.commit_after { "commit" } else { "no-commit" };
    if arguments.subvolid.is_some() && arguments.places.len() > 1 {
        return Err(Failure::new("with --subvolid one place says which volume it is").with_status(2));
    }
    let mut to_commit = Vec::new();
    let deleted = each(&arguments.places, |word| {
        let said = |shown: &dyn std::fmt::Display| say_line(&format!("Delete subvolume ({how}): '{shown}'"));
        let place = if arguments.subvolid.is_some() { Place::of_volume(word) } else { Place::parse(word) };
        match place {
            Place::Mounted(path) => {
                let dir = delete_on_mount(&path, arguments.subvolid)?;
                if arguments.commit_each {
                    dir.commit().map_err(|errno| about_mount(path.display(), errno))?;
                } else if arguments.commit_after {
                    to_commit.push((path.clone(), dir));
                }
                said(&path.display())
            }
            Place::Image { image, path } => {
                let opened = Image::open(&image, &arguments.image, true, false)?;
                delete_in_image(&opened, &path, arguments.subvolid)?;
                opened.close()?;
                said(&word.display())
            }
        }
    });
    let committed = each(to_commit, |(path, dir)| dir.commit().map_err(|errno| about_mount(path.display(), errno)));
    deleted.and(committed)
}

/// Deletes a subvolume; returns its directory.
fn delete_on_mount(path: &Path, id: Option<u64>) -> Result<Mounted> {
    let (dir, done) = if let Some(id) = id {
        let dir = Mounted::open(path)?;
        let done = dir.delete_by_id(id);
        (dir, done)
    } else {
        let (dir, name) = entry_on_mount(path)?;
        let done = dir.delete(&name);
        (dir, done)
    };
    done.map_err(|errno| match errno {
        Errno::PERM => Failure::new(format!(
            "{}: not permitted: only root and the user who has mounted it may delete subvolumes, others with the mount \
             option user_subvol_rm_allowed; and nobody the default subvolume",
            path.display()
        )),
        Errno::NOTEMPTY => in_it(path.display()),
        errno => about_mount(path.display(), errno),
    })?;
    Ok(dir)
}

fn delete_in_image(image: &Image, path: &[u8], id: Option<u64>) -> Result<()> {
    let (dir, name) = if let Some(id) = id {
        let info = image.fs.subvolumes().subvolume_info(TreeId(id)).map_err(|error| image.failed(&error))?;
        info.entry.ok_or_else(|| Failure::new("the top level of a volume can't be deleted"))?
    } else {
        image.subvolume(path)?;
        let (dir, name) = split(Path::new(OsStr::from_bytes(path)))?;
        (image.find(dir.as_os_str().as_bytes())?, name.as_bytes().to_vec())
    };
    let shown = || crate::show::bytes(&name);
    image.fs.subvolumes().delete_subvolume(dir, &name).map(drop).map_err(|error| match error.errno() {
        Errno::PERM => Failure::new(format!("{}: the default subvolume can't be deleted", shown())),
        Errno::NOTEMPTY => in_it(shown()),
        _ => failure(&name, &error),
    })
}

fn set_default(arguments: &SetDefault) -> Result<()> {
    let (id, word) = match &arguments.places[..] {
        [id, place] => {
            let id = id.to_str().and_then(|id| id.parse().ok());
            (Some(id.ok_or_else(|| Failure::new("a subvolume's number comes before the place").with_status(2))?), place)
        }
        [place, ..] => (None, place),
        [] => return Err(Failure::new("a place is needed").with_status(2)),
    };
    let place = if id.is_some() { Place::of_volume(word) } else { Place::parse(word) };
    match place {
        Place::Mounted(path) => {
            let opened = Mounted::open(&path)?;
            let failed = |errno| match errno {
                Errno::PERM => Failure::new("only root, or the user who has mounted it, may change a volume's default"),
                Errno::NOENT => Failure::new("there is no such subvolume"),
                errno => about_mount(path.display(), errno),
            };
            let id = if let Some(id) = id {
                id
            } else {
                check_subvolume(&opened, &path)?;
                opened.subvolume().map_err(failed)?.0
            };
            opened.set_default(id).map_err(failed)
        }
        Place::Image { image, path } => {
            let opened = Image::open(&image, &arguments.image, true, false)?;
            let id = id.map_or_else(|| opened.subvolume(&path), |id| Ok(TreeId(id)))?;
            opened.fs.subvolumes().set_default_subvolume(id).map_err(|error| opened.failed(&error))?;
            opened.close()
        }
    }
}

fn sync(arguments: &SyncDeleted) -> Result<()> {
    let pause = Duration::from_secs(arguments.seconds.max(1));
    let is_awaited = |id: &TreeId| arguments.ids.is_empty() || arguments.ids.contains(&id.0);
    match Place::of_volume(&arguments.place) {
        Place::Image { image, .. } => {
            let opened = Image::open(&image, &arguments.image, true, true)?;
            let waiting: Vec<_> = opened.fs.subvolumes().deleted_subvolumes().into_iter().filter(is_awaited).collect();
            loop {
                let left = opened.fs.subvolumes().deleted_subvolumes();
                if !left.iter().any(|id| waiting.contains(id)) {
                    return opened.close();
                }
                if left.len() as u64 <= opened.fs.stats().subvolumes_undropped {
                    opened.close()?;
                    return Err(undropped(&left));
                }
                opened.fs.durability().sync().map_err(|error| opened.failed(&error))?;
                thread::sleep(Duration::from_millis(10));
            }
        }
        ref place @ Place::Mounted(ref path) => {
            let all_left = || -> Result<Vec<TreeId>> {
                let all = Source::open(place, &arguments.image)?.subvolumes()?;
                Ok(all.values().filter(|listed| listed.is_deleted()).map(|listed| listed.id).collect())
            };
            let waiting: Vec<_> = all_left()?.into_iter().filter(is_awaited).collect();
            loop {
                let left = all_left()?;
                if !left.iter().any(|id| waiting.contains(id)) {
                    return Ok(());
                }
                // The kernel's driver has no such statistics.
                let report = statistics(path).ok().and_then(|answer| serde_json::from_slice::<Report>(&answer).ok());
                if report.is_some_and(|report| left.len() as u64 <= report.subvolumes_undropped) {
                    return Err(undropped(&left));
                }
                thread::sleep(pause);
            }
        }
    }
}

/// Only such subvolumes are left as the mount does not drop.
fn undropped(left: &[TreeId]) -> Failure {
    let ids: Vec<_> = left.iter().map(TreeId::to_string).collect();
    Failure::new(format!(
        "of the deleted subvolumes {}, tree blocks can't be read: their space does not come back in this mount",
        ids.join(", ")
    ))
}

//! `ubtrfs filesystem defragment`: on a mount by the ioctl, in an image by the engine.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use ubtrfs::{Defragmentation, Dir, Recompression};
use ubtrfs_format::Ino;
use ubtrfs_format::items::FileType;

use crate::args::filesystem::Defragment;
use crate::failure::{Failure, Result, each};
use crate::ioctls::{Mounted, about_mount};
use crate::output::say_line;
use crate::path::failure;
use crate::place::{Image, Place};

/// What one ioctl does at most, so that the command can be interrupted.
const STEP: u64 = 256 << 20;

/// `ubtrfs filesystem defragment`
pub fn run(arguments: &Defragment) -> Result<()> {
    each(&arguments.places, |word| match Place::parse(word) {
        Place::Mounted(path) => on_mount(arguments, &path),
        Place::Image { image, path } => in_image(arguments, &image, &path),
    })
}

/// How each file is defragmented, from its start.
fn how(arguments: &Defragment) -> Defragmentation {
    let compression = match arguments.compress {
        Some(algorithm) => Recompression::With { algorithm, level: arguments.level.map(i32::from) },
        None if arguments.nocomp => Recompression::Remove,
        None => Recompression::Keep,
    };
    let end = arguments.start.saturating_add(arguments.length.unwrap_or(u64::MAX));
    Defragmentation {
        range: arguments.start..end,
        extent_threshold: arguments.threshold.max(1),
        compression,
        unshare: arguments.unshare,
    }
}

fn is_a_directory(path: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{path} is a directory: -r defragments the files in it"))
}

fn on_mount(arguments: &Defragment, path: &Path) -> Result<()> {
    let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
    if !found.is_dir() {
        return file_on_mount(arguments, path);
    }
    if !arguments.recursive {
        return Err(is_a_directory(path.display()));
    }
    each(files_below(path, &found), |file| file_on_mount(arguments, &file?))
}

/// The regular files below a directory, in its subvolume.
fn files_below<'a>(top: &'a Path, is: &'a Metadata) -> impl Iterator<Item = Result<PathBuf>> + 'a {
    let mut left = vec![top.to_owned()];
    std::iter::from_fn(move || {
        loop {
            let path = left.pop()?;
            let found = std::fs::symlink_metadata(&path).and_then(|found| {
                let enters = path == top || found.is_dir() && is_of_the_same_subvolume(&found, is);
                if enters {
                    let mut entries = std::fs::read_dir(&path)?
                        .map(|entry| entry.map(|entry| entry.path()))
                        .collect::<std::io::Result<Vec<_>>>()?;
                    entries.sort_unstable_by(|one, other| other.cmp(one));
                    left.extend(entries);
                }
                Ok(found)
            });
            match found {
                Ok(found) if found.is_file() => return Some(Ok(path)),
                Ok(_) => {}
                // It was removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Some(Err(Failure::about(path.display(), &error))),
            }
        }
    })
}

fn is_of_the_same_subvolume(dir: &Metadata, top: &Metadata) -> bool {
    dir.dev() == top.dev() && dir.ino() != Ino::FIRST_FREE.0
}

fn file_on_mount(arguments: &Defragment, path: &Path) -> Result<()> {
    if arguments.verbose {
        say_line(&path.display().to_string())?;
    }
    let opened = Mounted::open(path)?;
    let failed = |errno: Errno| about_defragmentation(path, errno);
    let is_of_the_kernel = opened.is_of_the_kernel().map_err(failed)?;
    if !arguments.unshare && is_of_the_kernel {
        return Err(Failure::new(format!(
            "{}: it is on a mount of the kernel's, which defragments shared extents, too, so that they take space \
             for each file: --unshare says that this is wanted",
            path.display()
        )));
    }
    let mut how = how(arguments);
    // The kernel knows no such flag.
    how.unshare = arguments.unshare && !is_of_the_kernel;
    let end = how.range.end.min(opened.size().map_err(failed)?);
    while how.range.start < end {
        how.range.end = end.min(how.range.start.saturating_add(STEP));
        opened.defragment(&how).map_err(failed)?;
        how.range.start = how.range.end;
    }
    if arguments.flush {
        opened.sync().map_err(failed)?;
    }
    Ok(())
}

fn about_defragmentation(path: &Path, errno: Errno) -> Failure {
    match errno {
        Errno::NOTTY | Errno::OPNOTSUPP => {
            Failure::new(format!("{} is not a file of a mounted btrfs volume", path.display()))
        }
        Errno::PERM => Failure::new(format!("{}: only who may write to a file may defragment it", path.display())),
        errno => about_mount(path.display(), errno),
    }
}

fn in_image(arguments: &Defragment, image: &Path, path: &[u8]) -> Result<()> {
    let opened = Image::open(image, &arguments.image, true, false)?;
    let done = defragment_in(arguments, &opened, path);
    // What was done before a failure stays done.
    let closed = opened.close();
    done.and(closed)
}

fn defragment_in(arguments: &Defragment, image: &Image, path: &[u8]) -> Result<()> {
    let how = how(arguments);
    let top = image.find(path)?;
    let is = image.fs.attributes(top).map_err(|error| failure(path, &error))?;
    if is.file_type != FileType::Directory {
        return file_in(arguments, image, &how, path, top);
    }
    if !arguments.recursive {
        return Err(is_a_directory(OsStr::from_bytes(path).display()));
    }
    let root = Dir::root(&image.fs);
    let mut left = vec![OsString::from(OsStr::from_bytes(path))];
    while let Some(dir) = left.pop() {
        let entries = root.read_dir(&dir).and_then(Iterator::collect::<ubtrfs::Result<Vec<_>>>);
        let entries = entries.map_err(|error| failure(dir.as_bytes(), &error))?;
        for entry in entries {
            let path = Path::new(&dir).join(entry.file_name());
            match entry.file_type() {
                FileType::Directory if entry.id().subvolume == top.subvolume => left.push(path.into()),
                FileType::Regular => {
                    let bytes = path.as_os_str().as_bytes();
                    file_in(arguments, image, &how, bytes, entry.id())?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn file_in(
    arguments: &Defragment,
    image: &Image,
    how: &Defragmentation,
    path: &[u8],
    id: ubtrfs::InodeId,
) -> Result<()> {
    if arguments.verbose {
        say_line(&OsStr::from_bytes(path).display().to_string())?;
    }
    image.fs.defragment(id, how).map(|_| ()).map_err(|error| failure(path, &error))
}

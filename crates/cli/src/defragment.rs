//! `ubtrfs filesystem defragment`: on a mount by the ioctl, in an image by the engine.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType as FileKind, Stat};
use rustix::io::Errno;
use ubtrfs::{Defragmentation, Recompression};
use ubtrfs_format::Ino;
use ubtrfs_format::items::FileType;
use ubtrfs_image::{HostFile, HostTree, OpenFile, Source, VolumeFile, VolumeFiles};

use crate::args::filesystem::Defragment;
use crate::failure::{Failure, Result, each};
use crate::ioctls::{Mounted, about_mount, about_opening};
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
    let (tree, top) = (HostTree::default(), HostFile::named(path, true));
    let opened = tree.open(&top).map_err(|error| about_opening(path, &error))?;
    if opened.file_type() != FileKind::Directory {
        return file_on_mount(arguments, path, &Mounted::open(path)?);
    }
    if !arguments.recursive {
        return Err(is_a_directory(path.display()));
    }
    let of = *opened.status();
    each(files_below(&tree, top, &of), |file| {
        let (path, opened) = file?;
        file_on_mount(arguments, &path, &opened)
    })
}

/// The regular files below a directory, in its subvolume, with their paths.
fn files_below<'a>(
    tree: &'a HostTree,
    top: HostFile,
    of: &'a Stat,
) -> impl Iterator<Item = Result<(PathBuf, Mounted)>> + 'a {
    let mut left = vec![top];
    let mut is_top = true;
    std::iter::from_fn(move || {
        loop {
            let file = left.pop()?;
            let found = tree.open(&file).and_then(|opened| match opened.file_type() {
                FileKind::Directory if std::mem::take(&mut is_top) || is_of_the_same_subvolume(opened, of) => {
                    let mut entries = tree.children(&file)?;
                    entries.sort_unstable_by(|one, other| other.name().cmp(one.name()));
                    left.extend(entries);
                    Ok(None)
                }
                FileKind::RegularFile => Mounted::of(opened).map(Some),
                _ => Ok(None),
            });
            match found {
                Ok(Some(opened)) => return Some(Ok((file.path(), opened))),
                Ok(None) => {}
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Some(Err(about_opening(&file.path(), &error))),
            }
        }
    })
}

fn is_of_the_same_subvolume(dir: &OpenFile, top: &Stat) -> bool {
    let (device, ino) = dir.id();
    device == top.st_dev && ino != Ino::FIRST_FREE.0
}

fn file_on_mount(arguments: &Defragment, path: &Path, opened: &Mounted) -> Result<()> {
    if arguments.verbose {
        say_line(&path.display().to_string())?;
    }
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
    let is = image.fs.inodes().attributes(top).map_err(|error| failure(path, &error))?;
    if is.file_type != FileType::Directory {
        return file_in(arguments, image, &how, path, top);
    }
    if !arguments.recursive {
        return Err(is_a_directory(OsStr::from_bytes(path).display()));
    }
    let source = VolumeFiles::new(&image.fs);
    let mut left = vec![VolumeFile::new(top, OsStr::from_bytes(path))];
    while let Some(dir) = left.pop() {
        for (_, file) in source.children(&dir).map_err(|error| Failure::of(&error))? {
            match source.describe(&file).map_err(|error| Failure::of(&error))?.file_type() {
                FileType::Directory if file.id.subvolume == top.subvolume => left.push(file),
                FileType::Regular => {
                    file_in(arguments, image, &how, file.path().path().as_os_str().as_bytes(), file.id)?;
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
    image.fs.files().defragment(id, how).map(|_| ()).map_err(|error| failure(path, &error))
}

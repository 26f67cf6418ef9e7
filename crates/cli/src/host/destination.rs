//! Decides, as cp(1) does, where a file is written that is copied to a path of the host: by what
//! exists there.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use ubtrfs_errors::sentence;
use ubtrfs_volume::keep_image_from_use;

use super::replacement::kind_name;
use super::sources::Sources;
use crate::failure::{Failure, Result};

/// The destination of a file.
#[derive(Debug)]
pub enum Destination {
    /// A name in a directory.
    Named {
        /// The directory.
        above: PathBuf,
        /// The name.
        name: Vec<u8>,
    },
    /// A device or FIFO, into which the content is written.
    Stream(Stream),
}

/// An open device or FIFO.
#[derive(Debug)]
pub struct Stream {
    /// The device or FIFO, open for writing.
    pub file: File,
    /// The image behind a loop device, locked as long as the device is written to.
    _image: Option<File>,
}

impl Destination {
    /// Returns the destination of a regular file. Follows symbolic links, and opens devices and
    /// FIFOs.
    pub fn of_content(path: &Path, sources: &Sources) -> Result<Self> {
        let failed = |error: io::Error| Failure::about(path.display(), &error);
        let found = match rustix::fs::stat(path) {
            Err(Errno::NOENT) if path.is_symlink() => {
                return Err(Failure::new(format!(
                    "{}: it is a symbolic link to what is not there, and not written through",
                    path.display()
                )));
            }
            Err(Errno::NOENT) => return Self::named(path),
            found => found.map_err(|error| failed(error.into()))?,
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Self::named(path),
            FileType::RegularFile => {
                let real = path.canonicalize().map_err(failed)?;
                let is_it = rustix::fs::lstat(&real)
                    .is_ok_and(|of_real| (of_real.st_dev, of_real.st_ino) == (found.st_dev, found.st_ino));
                if is_it {
                    Self::named(&real)
                } else {
                    Err(Failure::new(format!("{}: it has no name by which it could be replaced", path.display())))
                }
            }
            kind => {
                if sources.have(&found) {
                    return Err(Failure::new(format!("{}: it is a device of the volume itself", path.display())));
                }
                stream(path, kind).map(Self::Stream)
            }
        }
    }

    /// Returns the destination of a file other than a regular one, which gets exactly this name.
    pub fn named(path: &Path) -> Result<Self> {
        let wrong = || Failure::new(format!("{} is not the name of a file", path.display()));
        if path.as_os_str().as_bytes().ends_with(b"/..") {
            return Err(wrong());
        }
        let name = path.file_name().ok_or_else(wrong)?.as_bytes().to_vec();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self::Named { above: above.into(), name })
    }
}

/// Opens a device or a FIFO. A block device must not be in use, nor the image behind a loop device
/// (invariant 41).
fn stream(path: &Path, kind: FileType) -> Result<Stream> {
    let is_block = kind == FileType::BlockDevice;
    let exclusive = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let opened = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC | exclusive, Mode::empty());
    let file = opened.map_err(|error| match error {
        Errno::BUSY if is_block => Failure::new(format!("{}: the device is in use", path.display())),
        Errno::NXIO => Failure::new(format!("{}: it is {}, and can't be written to", path.display(), kind_name(kind))),
        error => Failure::about(path.display(), &io::Error::from(error)),
    })?;
    let file = File::from(file);
    let image = if is_block { keep_image_from_use(&file, path) } else { Ok(None) };
    let image = image.map_err(|error| Failure::new(sentence(&error)))?;
    Ok(Stream { file, _image: image })
}

/// Whether a path can only be the path of a directory.
pub fn is_named_as_directory(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/") || is_content(path)
}

/// Whether a path is `DIR/.`, which stands for the contents of the directory.
pub fn is_content(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/.") || bytes == b"."
}

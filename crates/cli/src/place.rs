//! The places that commands take as arguments: on a mount, or in an image.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::{Damage, Filesystem, InodeId, Options};
use ubtrfs_format::TreeId;
use ubtrfs_image::Editor;
use ubtrfs_volume::{Error, OpenMode, OpenOptions, Volume, is_remote, open_to_look};

use crate::args::Window;
use crate::args::in_volume::Word;
use crate::args::subvolume::InImage;
use crate::device::{about_volume_within, open_for_writing, open_what_can_be_read, part_of};
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::mount_table;
use crate::passed_over;
use crate::path::{AtEnd, find};
use crate::reading::{self, open_engine, passing_over};

/// A place, as its name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path on a mounted volume.
    Mounted(PathBuf),
    /// A path in an image, from the volume's top level.
    Image { image: PathBuf, path: PathBuf },
}

impl Place {
    /// Parses `PATH` or `IMAGE:PATH`. The image is what stands before the first colon that follows
    /// the name of a file or a block device.
    pub fn parse(word: &OsStr) -> Self {
        let bytes = word.as_bytes();
        if is_remote(word) {
            let (image, path) = split_uri(bytes);
            return match path {
                Some(path) => Self::Image { image: image.into(), path: as_path(path) },
                None => Self::Mounted(image.into()),
            };
        }
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
        for colon in colons {
            let image = Path::new(OsStr::from_bytes(&bytes[..colon]));
            if is_image(image) {
                return Self::Image { image: image.into(), path: as_path(&bytes[colon + 1..]) };
            }
        }
        Self::Mounted(word.into())
    }

    /// Parses the place of a volume, which may be an image without a path.
    pub fn of_volume(word: &OsStr) -> Self {
        match Self::parse(word) {
            Self::Mounted(path) if is_image(&path) => Self::Image { image: path, path: PathBuf::new() },
            place => place,
        }
    }

    /// Parses the place of something that may be a file. A regular file without a path in it is a
    /// file of a mounted volume if it is on one, and otherwise an image.
    pub fn of_file(word: &OsStr) -> Self {
        match Self::parse(word) {
            Self::Mounted(path) if is_image(&path) && !is_on_btrfs(&path) => {
                Self::Image { image: path, path: PathBuf::new() }
            }
            place => place,
        }
    }

    /// Returns the image, and the path in it.
    pub fn in_image(self) -> Result<(PathBuf, PathBuf)> {
        match self {
            Self::Image { image, path } => Ok((image, path)),
            Self::Mounted(path) => Err(not_in_an_image(path.display())),
        }
    }
}

/// Returns the directory that names a mounted volume, if it is the only place. Otherwise the places
/// are the devices of a volume that is not mounted.
pub fn mount_of(places: &[PathBuf]) -> Option<&Path> {
    match places {
        [directory] if directory.is_dir() => Some(directory),
        _ => None,
    }
}

/// Returns a place with further devices of the volume, which are omitted for a mount.
pub fn with_more(place: &Path, more: &[PathBuf]) -> Vec<PathBuf> {
    let more = if place.is_dir() { &[] } else { more };
    [&[place.to_owned()][..], more].concat()
}

/// Returns the image, and the path in it, if the word has one. A word that is no place in an image
/// is returned as it is.
pub fn split_image(word: &Path) -> (PathBuf, Option<PathBuf>) {
    match Place::parse(word.as_os_str()) {
        Place::Image { image, path } if !word.exists() => (image, Some(path).filter(|path| path.as_os_str() != "")),
        _ => (word.to_owned(), None),
    }
}

/// Classifies the word as a place on the command line. A number is not an image, even if a file has
/// that name. With `may_be_file`, a regular file on a mounted volume is meant itself.
pub fn classify(word: &OsStr, may_be_file: bool) -> Word {
    let place = if may_be_file { Place::of_file(word) } else { Place::of_volume(word) };
    match (Place::parse(word), place) {
        (Place::Image { .. }, _) => Word::InImage,
        (_, Place::Image { .. }) if !word.as_bytes().iter().all(u8::is_ascii_digit) => Word::Image,
        _ => Word::Other,
    }
}

/// Returns the error about words that are no place in an image, for commands that work on images
/// only.
pub fn not_in_an_image(words: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{words} is not in an image: write IMAGE:PATH, with an image or a device that exists"))
}

fn as_path(path: &[u8]) -> PathBuf {
    OsStr::from_bytes(path).into()
}

/// Splits an NBD URI from what follows its colon, which is the first one after the host and the
/// port. The name of an export and the path of a socket have `%3A` instead.
fn split_uri(word: &[u8]) -> (&OsStr, Option<&[u8]>) {
    let scheme = word.iter().position(|byte| *byte == b':').map_or(0, |at| at + 1);
    let start = if word[scheme..].starts_with(b"//") { scheme + 2 } else { scheme };
    let is_end = |byte: &u8| matches!(byte, b'/' | b'?');
    let host = start + word[start..].iter().position(is_end).unwrap_or(word.len() - start);
    let at = match word[start..host].last() {
        Some(b':') => Some(host - 1),
        _ => word[host..].iter().position(|byte| *byte == b':').map(|at| host + at),
    };
    (OsStr::from_bytes(&word[..at.unwrap_or(word.len())]), at.map(|at| &word[at + 1..]))
}

fn is_image(path: &Path) -> bool {
    is_remote(path) || std::fs::metadata(path).is_ok_and(|found| found.is_file() || found.file_type().is_block_device())
}

/// Whether a regular file is on a mounted volume.
fn is_on_btrfs(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file())
        && mount_table::holding(path).is_some_and(|on| on.is_btrfs())
}

/// Returns the directory of a path, and the name that the path ends with.
pub fn split(path: &Path) -> Result<(PathBuf, OsString)> {
    let wrong = || {
        if path.as_os_str().is_empty() {
            return Failure::new("the name of a subvolume is missing: write IMAGE:PATH");
        }
        Failure::new(format!("{} is not the name of a subvolume", path.display()))
    };
    let name = path.file_name().ok_or_else(wrong)?.to_owned();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((dir.to_owned(), name))
}

/// The purpose for which a volume that is not mounted is opened.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the ways in which a command opens a volume are independent")]
pub struct Opening {
    /// The volume may be changed.
    pub writable: bool,
    /// What is deleted is freed in the background.
    pub in_background: bool,
    /// The log tree is not replayed.
    pub no_log_replay: bool,
    /// Parts of trees that can't be read are skipped, and reported at the end of the program.
    pub passes_over: bool,
}

impl Opening {
    /// For reading.
    pub const READING: Self = Self { writable: false, in_background: false, no_log_replay: false, passes_over: false };
    /// For reading what is left of a damaged volume.
    pub const READING_ON: Self = Self { passes_over: true, ..Self::READING };
    /// For changes.
    pub const WRITING: Self = Self { writable: true, ..Self::READING };
    /// For changes that take long.
    pub const WRITING_IN_BACKGROUND: Self = Self { in_background: true, ..Self::WRITING };
}

/// A volume in an image, opened from its top level.
pub struct Image {
    pub fs: Arc<Filesystem>,
    /// What was skipped because it can't be read.
    pub damage: Arc<Damage>,
    path: PathBuf,
    sources: Sources,
    /// Claims that keep others from writing to the devices.
    _claims: Vec<File>,
}

impl Image {
    /// Opens the volume in an image.
    pub fn open(image: &Path, how: &InImage, opening: Opening) -> Result<Self> {
        let Opening { writable, in_background, no_log_replay, passes_over } = opening;
        let paths = [&[image.to_owned()][..], &how.devices].concat();
        let open = if writable { open_for_writing } else { open_what_can_be_read };
        let opened = open(&paths, how.window).map_err(|failure| unless_mounted(image, how.window, failure))?;
        let damage = Arc::new(Damage::default());
        let options = Options {
            read_only: !writable,
            no_log_replay,
            catches_up_first: true,
            background_commits: in_background,
            subvolume_id: Some(TreeId::FS.0),
            no_atime: true,
            ..Options::default()
        };
        let fs = if writable {
            let volume = Volume::open(opened.devices, OpenOptions { read_only: false });
            let volume = volume.map_err(|error| about_volume_within(&paths, how.window, &error))?;
            Filesystem::open(Arc::new(volume), options).map_err(|error| Failure::about(image.display(), &error))?
        } else {
            let options = if passes_over { passing_over(options, &damage) } else { options };
            reading::open(&paths, how.window, &opened.devices, |volume| open_engine(image, &volume, &options))?
        };
        passed_over::watch(&damage);
        Ok(Self { fs, damage, path: image.to_owned(), sources: opened.sources, _claims: opened.claims })
    }

    /// Returns the path of the image, or of the first device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the host's files that the volume is in.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns the inode at a path.
    pub fn find(&self, path: &Path) -> Result<InodeId> {
        find(&self.fs, path.as_os_str().as_bytes(), AtEnd::Follow)
    }

    /// Returns the subvolume whose root directory is at a path.
    pub fn root_at(&self, path: &Path) -> Result<TreeId> {
        let found = self.find(path)?;
        if found == InodeId::root_of(found.subvolume) {
            return Ok(found.subvolume);
        }
        Err(not_a_subvolume(path))
    }

    /// Returns the failure for an error of the volume as a whole.
    pub fn failed(&self, error: &ubtrfs::Error) -> Failure {
        Failure::about(self.path.display(), error)
    }

    /// Commits all changes.
    pub fn close(self) -> Result<()> {
        self.fs.close().map_err(|error| Failure::about(self.path.display(), &error))
    }

    /// Makes those directories of a path that don't exist, as edits do.
    pub fn make_directories(&self, path: &Path) -> Result<()> {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let editor = Editor::new(&self.fs, owner);
        editor.make_directory(path, true, None).map_err(|error| Failure::of(&error))
    }
}

/// Returns the error about subvolumes that must be in one volume.
pub fn other_volumes() -> Failure {
    Failure::new("the subvolumes must be in the same volume")
}

/// Returns the error about a path that is neither on a mounted volume nor in an image. For a path
/// that does not exist it asks for an image or a device that exists.
pub fn neither(path: &Path) -> Failure {
    let shown = path.display();
    let exists = if path.exists() { "" } else { " with an image or a device that exists" };
    Failure::new(format!("{shown} is neither a directory of a mounted volume nor IMAGE:PATH{exists}"))
}

/// Returns the error about a path that is not a subvolume.
pub fn not_a_subvolume(path: impl AsRef<OsStr>) -> Failure {
    Failure::new(format!("{} is not a subvolume", path.as_ref().display()))
}

/// Replaces the failure about an image if it is an ordinary file of a mounted volume, where a
/// directory was meant.
pub fn unless_on_mount(image: &Path, window: Window, failure: Failure) -> Failure {
    let is_ordinary = is_on_btrfs(image)
        && window.is_whole()
        && open_to_look(image).is_ok_and(|device| Volume::is_without_superblock(&*device));
    if !is_ordinary {
        return failure;
    }
    let shown = image.display();
    Failure::new(format!("{shown} is a file on a mounted volume, and no image: name a subvolume, or a directory"))
}

/// Adds to a failure what to do about it, if the image is mounted.
pub fn unless_mounted(image: &Path, window: Window, failure: Failure) -> Failure {
    let Ok(part) = part_of(image, window) else { return failure };
    match ubtrfs_volume::open_part_exclusively(image, OpenMode::ReadOnly, part, None) {
        Err(Error::Held { .. } | Error::Attached { .. }) => {
            failure.map_sentence(|sentence| sentence + "; if it is mounted, name the directories on the mount instead")
        }
        _ => failure,
    }
}

/// Whether two paths refer to one image.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    one == other || canonical(one).is_some_and(|path| canonical(other) == Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_before_a_colon_is_an_image_if_it_is_a_file() {
        let dir = std::env::temp_dir().join(format!("ubtrfs-place-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a:b")).unwrap();
        let image = dir.join("a:b/image");
        std::fs::write(&image, "").unwrap();
        let word = |rest: &str| OsString::from(format!("{}{rest}", image.display()));
        let inside = |path: &str| Place::Image { image: image.clone(), path: path.into() };
        assert_eq!(Place::parse(&word(":")), inside(""));
        assert_eq!(Place::parse(&word(":/x:y/z")), inside("/x:y/z"));
        assert_eq!(Place::parse(&word("")), Place::Mounted(image.clone()));
        assert_eq!(Place::of_volume(&word("")), inside(""));
        let export = |uri: &str, path: &str| Place::Image { image: uri.into(), path: path.into() };
        for (uri, path) in [
            ("nbd://host/export", "/x:y"),
            ("nbd://host:99/", "/x"),
            ("nbd://host:99", "/x"),
            ("nbd://[::1]:99/a%3Ab", ""),
            ("nbd+unix:///e?socket=/run/s", "/x"),
            ("nbd+unix:/e?socket=/run/s", "/x"),
        ] {
            assert_eq!(Place::parse(format!("{uri}:{path}").as_ref()), export(uri, path));
            assert_eq!(Place::of_volume(uri.as_ref()), export(uri, ""));
        }
        let on_mount = dir.join("a:b");
        assert_eq!(Place::of_volume(on_mount.as_os_str()), Place::Mounted(on_mount));
        std::fs::remove_dir_all(dir).unwrap();
    }
}

//! The objects of the tables: each case gets its own directory with one object, and a few other
//! files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};

use crate::actors::{GROUP, OWNER};

/// The kind of file that a path refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    File,
    EmptyFile,
    EmptyDir,
    FullDir,
    LinkToFile,
    LinkToDir,
    Dangling,
    Loop,
    Fifo,
    Socket,
    CharDevice,
    NoDevice,
    Missing,
    BelowFile,
    BelowMissing,
    BelowLoop,
    FileWithSlash,
    DirWithSlash,
    LinkToDirWithSlash,
    LinkToFileWithSlash,
    MissingWithSlash,
    DirDot,
    DirDotDot,
    LongestName,
    TooLongName,
    TooLongPath,
    Empty,
}

impl Object {
    pub const ALL: [Self; 27] = [
        Self::File,
        Self::EmptyFile,
        Self::EmptyDir,
        Self::FullDir,
        Self::LinkToFile,
        Self::LinkToDir,
        Self::Dangling,
        Self::Loop,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::NoDevice,
        Self::Missing,
        Self::BelowFile,
        Self::BelowMissing,
        Self::BelowLoop,
        Self::FileWithSlash,
        Self::DirWithSlash,
        Self::LinkToDirWithSlash,
        Self::LinkToFileWithSlash,
        Self::MissingWithSlash,
        Self::DirDot,
        Self::DirDotDot,
        Self::LongestName,
        Self::TooLongName,
        Self::TooLongPath,
        Self::Empty,
    ];

    /// Makes the object in `dir`, and returns the path by which to act on it.
    fn make(self, dir: &Path) -> PathBuf {
        let path = dir.join("o");
        let node = |kind, device| rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o644), device).unwrap();
        match self {
            Self::File | Self::BelowFile | Self::FileWithSlash => fs::write(&path, "the content").unwrap(),
            Self::EmptyFile => fs::write(&path, "").unwrap(),
            Self::EmptyDir | Self::DirWithSlash | Self::DirDot | Self::DirDotDot => fs::create_dir(&path).unwrap(),
            Self::FullDir => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("within"), "").unwrap();
            }
            Self::LinkToFile | Self::LinkToFileWithSlash => symlink("file", &path).unwrap(),
            Self::LinkToDir | Self::LinkToDirWithSlash => symlink("dir", &path).unwrap(),
            Self::Dangling => symlink("nothing", &path).unwrap(),
            Self::Loop | Self::BelowLoop => symlink("o", &path).unwrap(),
            Self::Fifo => node(FileType::Fifo, 0),
            Self::Socket => node(FileType::Socket, 0),
            Self::CharDevice => node(FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
            Self::NoDevice => node(FileType::BlockDevice, rustix::fs::makedev(4000, 1_000_000)),
            Self::Missing
            | Self::BelowMissing
            | Self::MissingWithSlash
            | Self::LongestName
            | Self::TooLongName
            | Self::TooLongPath
            | Self::Empty => {}
        }
        match self {
            Self::BelowFile | Self::BelowMissing | Self::BelowLoop => path.join("below"),
            Self::FileWithSlash
            | Self::DirWithSlash
            | Self::LinkToDirWithSlash
            | Self::LinkToFileWithSlash
            | Self::MissingWithSlash => dir.join("o/"),
            Self::DirDot => path.join("."),
            Self::DirDotDot => path.join(".."),
            Self::LongestName => dir.join("n".repeat(255)),
            Self::TooLongName => dir.join("n".repeat(256)),
            Self::TooLongPath => dir.join("d/".repeat(2100)),
            Self::Empty => PathBuf::new(),
            _ => path,
        }
    }
}

/// A directory with an object, and other files.
pub struct Place {
    pub dir: PathBuf,
    /// The path of the object, as operations use it.
    pub path: PathBuf,
    /// The path of a file.
    pub other: PathBuf,
    /// The path of an empty directory.
    pub other_dir: PathBuf,
    /// A path that does not exist.
    pub new: PathBuf,
}

/// A time in the past, so that any change of a time is visible.
pub const LONG_AGO: i64 = 1_000_000_000;

/// A time in the future, so that no access changes it.
const FAR_OFF: i64 = 4_000_000_000;

/// Sets access and modification times; those of the link itself, if the path is a link.
pub fn set_times(path: &Path, accessed: i64, modified: i64) {
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 5 };
    let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

impl Place {
    /// Makes such a directory. The owner owns all of it.
    pub fn new(dir: &Path, object: Object) -> Self {
        fs::create_dir(dir).unwrap();
        let at = |name: &str| dir.join(name);
        fs::write(at("file"), "the target of the link").unwrap();
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("other"), "other").unwrap();
        fs::create_dir(at("other_dir")).unwrap();
        let path = object.make(dir);
        for name in ["file", "dir", "other", "other_dir", "o/within", "o", "."] {
            if fs::symlink_metadata(at(name)).is_ok() {
                std::os::unix::fs::lchown(at(name), Some(OWNER), Some(GROUP)).unwrap();
                // Following a link changes its access time, which the kernel does from its cache
                // without a request: `times` covers that.
                let is_link = fs::symlink_metadata(at(name)).unwrap().is_symlink();
                set_times(&at(name), if is_link { FAR_OFF } else { LONG_AGO + 1 }, LONG_AGO);
            }
        }
        Self { dir: dir.to_owned(), path, other: at("other"), other_dir: at("other_dir"), new: at("new") }
    }
}

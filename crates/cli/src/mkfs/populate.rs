//! Filling a new volume with a directory or an archive, in one commit.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::Options;
use ubtrfs_format::items::FileType;
use ubtrfs_image::{
    CopyOptions, Destination, Editor, Error, HostFiles, Layer, MadeSubvolumes, NewSubvolume, Session, Source,
    copy_into, import,
};
use ubtrfs_volume::Device;

use super::identity::Identity;
use crate::args::Mkfs;
use crate::failure::{Failure, Result};

const MIB: u64 = 1 << 20;
/// The size of a volume that is shrunk in the end, if nothing is known of what comes into it.
const UNKNOWN: u64 = 1 << 40;

/// What a volume is filled with.
#[derive(Clone, Debug)]
pub enum Input {
    Directory(PathBuf),
    Archive(PathBuf),
    Stdin,
}

impl Input {
    /// What a path names.
    pub fn new(path: &Path) -> Result<Self> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdin);
        }
        let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
        Ok(if found.is_dir() { Self::Directory(path.into()) } else { Self::Archive(path.into()) })
    }

    /// Bytes of a volume that has room for all of it and more: of what is not used, a file has
    /// holes. `None` if nothing is known of it.
    pub fn size_of_volume(&self, arguments: &Mkfs) -> Result<Option<u64>> {
        let copies = |profile: &Option<String>, default: u64| match profile.as_deref() {
            Some(name) if name.eq_ignore_ascii_case("dup") => 2,
            Some(_) => 1,
            None => default,
        };
        let (data, files) = match self {
            Self::Directory(path) => sizes(path)?,
            Self::Archive(path) => {
                let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
                if !found.is_file() {
                    return Ok(None);
                }
                (found.len(), found.len() / 1024)
            }
            Self::Stdin => return Ok(None),
        };
        // Each file has some items, and each sector of data a checksum.
        let metadata = files.saturating_mul(4096).saturating_add(data / 64);
        let bytes = data.saturating_mul(copies(&arguments.data, 1));
        let bytes = bytes.saturating_add(metadata.saturating_mul(copies(&arguments.metadata, 2)));
        let bytes = bytes.saturating_add(bytes / 8).saturating_add(512 * MIB);
        Ok(Some(bytes.next_multiple_of(16 * MIB)))
    }
}

/// Bytes of the files below a directory, in whole sectors, and the number of files.
fn sizes(path: &Path) -> Result<(u64, u64)> {
    let source = HostFiles { without_xattrs: true, latest: None };
    let (mut left, mut data, mut files) = (vec![path.to_path_buf()], 0_u64, 0);
    while let Some(path) = left.pop() {
        let of = source.describe(&path).map_err(|error| Failure::of(&error))?;
        files += 1;
        match of.file_type() {
            FileType::Directory => {
                let children = source.children(&path).map_err(|error| Failure::of(&error))?;
                left.extend(children.into_iter().map(|(_, path)| path));
            }
            FileType::Regular => data = data.saturating_add(of.size.saturating_add(4095) / 4096 * 4096),
            _ => {}
        }
    }
    Ok((data, files))
}

/// How a volume is filled.
pub struct Population<'a> {
    pub input: &'a Input,
    pub arguments: &'a Mkfs,
    pub identity: Identity,
    /// Bytes of the volume so far.
    pub size: u64,
}

impl Population<'_> {
    /// Bytes of a volume whose size nobody gives.
    pub fn default_size(input: &Input, arguments: &Mkfs) -> Result<Option<u64>> {
        let known = input.size_of_volume(arguments)?;
        Ok(known.or(arguments.populate.shrink.then_some(UNKNOWN)))
    }

    /// The most bytes of a chunk: of a volume that is shrunk, the last ones are full in part.
    pub fn largest_chunk(arguments: &Mkfs, size: u64) -> Option<u64> {
        let size = if size == UNKNOWN { 4 << 30 } else { size };
        arguments.populate.shrink.then(|| (size / 64).clamp(8 * MIB, 1 << 30) / MIB * MIB)
    }

    /// Fills the volume on this device. Returns the bytes that it has then.
    pub fn run(self, device: Arc<dyn Device>) -> Result<u64> {
        let options = Options {
            reproducible: self.identity.reproducible(),
            largest_chunk: Self::largest_chunk(self.arguments, self.size),
            ..Options::default()
        };
        let session = Session::open_with(vec![device], options).map_err(|error| about(&error))?;
        self.fill(&session)?;
        let size = if self.arguments.populate.shrink {
            session.fs().shrink_devices().map_err(|error| about(&error.into()))?;
            session.fs().device_bytes()
        } else {
            self.size
        };
        session.publish().map_err(|error| about(&error))?;
        Ok(size)
    }

    fn fill(&self, session: &Session) -> Result<()> {
        let (fs, populate) = (session.fs(), &self.arguments.populate);
        let editor = Editor::new(fs, (0, 0));
        let subvolumes = MadeSubvolumes::new(fs, &editor, populate.subvol.clone()).map_err(|error| about(&error))?;
        match self.input {
            Input::Directory(path) => {
                let is_missing = |subvolume: &&NewSubvolume| !is_dir(&path.join(&subvolume.path));
                if let Some(missing) = populate.subvol.iter().find(is_missing) {
                    let (missing, path) = (missing.path.display(), path.display());
                    return Err(Failure::new(format!("{missing} is no directory in {path}")));
                }
                let source = HostFiles { without_xattrs: false, latest: self.identity.time() };
                let how = CopyOptions { archive: true, recursive: true, ..CopyOptions::default() };
                let to = Destination::Onto(fs.root(), "/".into());
                copy_into(fs, &source, how, [(path.clone(), to)]).map_err(|error| about(&error))?;
            }
            Input::Archive(path) => {
                let file = File::open(path).map_err(|error| Failure::about(path.display(), &error))?;
                Self::read(session, file, &path.display())?;
            }
            Input::Stdin => Self::read(session, std::io::stdin().lock(), &"standard input")?,
        }
        if let Some((uid, gid)) = self.arguments.root_owner {
            let owner = (Some(uid), Some(gid));
            editor.change_owner(Path::new("/"), owner, false, false).map_err(|error| about(&error))?;
        }
        subvolumes.finish(fs, &editor).map_err(|error| about(&error))
    }

    fn read(session: &Session, archive: impl Read, shown: &dyn std::fmt::Display) -> Result<()> {
        let archive = BufReader::with_capacity(MIB as usize, archive);
        let read = import(session.fs(), session.fs().root(), archive, Layer::Plain);
        read.map_err(|error| match about(&error) {
            Failure::Sentence(sentence, status) => Failure::Sentence(format!("{shown}: {sentence}"), status),
            failure => failure,
        })
    }
}

/// Whether a directory is there, and no link to one.
fn is_dir(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// What an error says, and what to do about it.
fn about(error: &Error) -> Failure {
    match Failure::of(error) {
        Failure::Sentence(sentence, status) if error.is_full() => {
            Failure::Sentence(format!("{sentence}: give a larger --size"), status)
        }
        failure => failure,
    }
}

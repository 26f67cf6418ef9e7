//! Fills a new volume with a directory or an archive, in one commit.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::Options;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::units::MIB;
use ubtrfs_image::{
    CopyOptions, Counts, Destination, Editor, Error, HostFile, HostFiles, ImportOptions, Job, MadeSubvolumes,
    PathFlags, Selection, Session, copy_into, import,
};
use ubtrfs_volume::Device;

use super::identity::Identity;
use super::input::Input;
use crate::args::Mkfs;
use crate::args::edit::MEMORY;
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::report::Progress;

/// The size in bytes of a volume that is shrunk at the end, if the size of the input is unknown.
const UNKNOWN: u64 = 1 << 40;

/// The parameters of filling a volume.
pub struct Population<'a> {
    pub input: &'a Input,
    pub arguments: &'a Mkfs,
    pub identity: Identity,
    /// The selection of the input that is copied.
    pub selection: &'a Selection,
    /// The bytes of the devices so far.
    pub sizes: Vec<u64>,
}

/// A volume that has been filled.
pub struct Populated {
    /// The bytes of each device.
    pub sizes: Vec<u64>,
    /// The type of each chunk, and its bytes.
    pub chunks: Vec<(BlockGroupFlags, u64)>,
    pub counts: Counts,
    /// Files that had shrunk when they were copied.
    pub shrunk: Vec<PathBuf>,
}

impl Population<'_> {
    /// Returns the bytes of a volume for which no size is given.
    pub fn default_size(input: &Input, selection: &Selection, arguments: &Mkfs) -> Result<Option<u64>> {
        let known = input.size_of_volume(arguments, selection)?;
        Ok(known.or(arguments.populate.shrink.then_some(UNKNOWN)))
    }

    /// Returns the largest size of a chunk in bytes, if the volume is shrunk at the end: its last
    /// chunks are only partly used, so they must not be large.
    pub fn largest_chunk(arguments: &Mkfs, size: u64) -> Option<u64> {
        let size = if size == UNKNOWN { 1 << 30 } else { size };
        arguments.populate.shrink.then(|| (size / 64).clamp(8 * MIB, 1 << 30) / MIB * MIB)
    }

    /// Fills the volume on these devices.
    pub fn run(self, devices: Vec<Arc<dyn Device>>) -> Result<Populated> {
        let options = Options {
            compression: self.arguments.populate.compression(),
            reproducible: self.identity.reproducible(),
            memory: self.arguments.populate.memory.unwrap_or(MEMORY),
            largest_chunk: Self::largest_chunk(self.arguments, self.sizes.iter().sum()),
            ..Options::default()
        };
        let session = Session::open_with(devices, options).map_err(|error| about(&error))?;
        let (counts, shrunk) = self.fill(&session)?;
        let mut sizes = self.sizes;
        if self.arguments.populate.shrink {
            session.shrink().map_err(|error| about(&error))?;
            sizes = session.fs().volume().devices().items().iter().map(|item| item.total_bytes).collect();
        }
        let chunks = session.fs().volume().chunk_map().all();
        let chunks = chunks.iter().map(|(_, chunk)| (chunk.flags, chunk.length)).collect();
        session.publish().map_err(|error| about(&error))?;
        Ok(Populated { sizes, chunks, counts, shrunk })
    }

    fn fill(&self, session: &Session) -> Result<(Counts, Vec<PathBuf>)> {
        let (fs, populate) = (session.fs(), &self.arguments.populate);
        let progress = Progress::new();
        let mut job = progress.job().with_flags(PathFlags::new(populate.flags()));
        let editor = Editor::new(fs, (0, 0));
        let subvolumes = MadeSubvolumes::new(fs, &editor, populate.subvolumes()).map_err(|error| about(&error))?;
        match self.input {
            Input::Directory(path) => {
                // A hard link of the image may be anywhere in the directory.
                let without = Sources::of(&self.arguments.devices).files().to_vec();
                let (selection, top) = (self.selection.clone(), path.clone());
                let latest = self.identity.time();
                let source = HostFiles { latest, without, selection, top, ..HostFiles::default() };
                let dedupe = populate.dedupe;
                let how = CopyOptions { archive: true, recursive: true, dedupe, ..CopyOptions::default() };
                let to = Destination::Onto(fs.root(), "/".into());
                let top = HostFile::named(path, true);
                copy_into(fs, &source, how, [(top, to)], &mut job).map_err(|error| about(&error))?;
            }
            Input::Archive(path) => {
                let file = File::open(path).map_err(|error| Failure::about(path.display(), &error))?;
                self.read(session, file, &path.display(), &mut job)?;
            }
            Input::Oci(image) => {
                let (dedupe, selection) = (populate.dedupe, self.selection.clone());
                let options = ImportOptions { dedupe, selection, ..ImportOptions::default() };
                image.import(fs, fs.root(), options, &mut job).map_err(|error| about(&error))?;
            }
            Input::Stdin => self.read(session, std::io::stdin().lock(), &"standard input", &mut job)?,
        }
        if let Some((uid, gid)) = self.arguments.root_owner {
            let owner = (Some(uid), Some(gid));
            editor.change_owner(Path::new("/"), owner, false, false).map_err(|error| about(&error))?;
        }
        subvolumes.finish(fs, &editor).map_err(|error| about(&error))?;
        Ok((job.counts(), job.take_shrunk()))
    }

    fn read(
        &self,
        session: &Session,
        archive: impl Read,
        shown: &dyn std::fmt::Display,
        job: &mut Job<'_>,
    ) -> Result<()> {
        let (dedupe, selection) = (self.arguments.populate.dedupe, self.selection.clone());
        let options = ImportOptions { dedupe, selection, ..ImportOptions::default() };
        let read = import(session.fs(), session.fs().root(), archive, options, job);
        read.map_err(|error| about(&error).map_sentence(|sentence| format!("{shown}: {sentence}")))
    }
}

/// Describes an error, and what to do about it.
fn about(error: &Error) -> Failure {
    let remedy = ": give a larger --size";
    Failure::of(error).map_sentence(|sentence| if error.is_full() { sentence + remedy } else { sentence })
}

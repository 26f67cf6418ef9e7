//! What a command does with many files: what it has done so far, what it shares, and what is to
//! happen after each of them.

use std::path::{Path, PathBuf};

use ubtrfs::format::items::FileType;
use ubtrfs::{Filesystem, InodeId};

use crate::content::{Target, write_all};
use crate::dedupe::Dedupe;
use crate::error::Result;
use crate::path_flags::PathFlags;

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files that are no directories, by their names.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of data, without holes, and of whole files that are shared. Like `shared` at most
    /// `u64::MAX`: an image may say of any file that it is huge.
    pub bytes: u64,
    /// How many of them are shared instead of being written.
    pub shared: u64,
}

impl Counts {
    fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn add_shared(&mut self, bytes: u64) {
        self.shared = self.shared.saturating_add(bytes);
    }
}

/// Is called after each file with what has been done so far; an error ends the job.
pub type AfterFile<'a> = Box<dyn FnMut(&Counts) -> Result<()> + 'a>;

/// The files that one command makes.
#[derive(Default)]
pub struct Job<'a> {
    counts: Counts,
    dedupe: Option<Dedupe>,
    flags: PathFlags,
    /// Files that had become smaller when they were copied.
    shrunk: Vec<PathBuf>,
    after_file: Option<AfterFile<'a>>,
}

impl std::fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<'a> Job<'a> {
    /// A job that says after each file how far it is.
    pub fn new(after_file: AfterFile<'a>) -> Self {
        Self { after_file: Some(after_file), ..Self::default() }
    }

    /// The same, with flags for what it makes.
    #[must_use]
    pub fn with_flags(self, flags: PathFlags) -> Self {
        Self { flags, ..self }
    }

    /// Whether the paths of what is made mean anything.
    pub(crate) fn asks_for_paths(&self) -> bool {
        !self.flags.is_empty()
    }

    /// Is called with each file or directory that is still empty.
    pub(crate) fn made(&self, fs: &Filesystem, id: InodeId, path: &Path) -> Result<()> {
        self.flags.give(fs, id, path)
    }

    /// A file was smaller at the end of its copy than at the beginning.
    pub(crate) fn note_shrunk(&mut self, path: &Path) {
        self.shrunk.push(path.to_owned());
    }

    /// The paths that files have got which had become smaller when they were copied: they have what
    /// was left.
    pub fn take_shrunk(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.shrunk)
    }

    /// What has been done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts a file that is whole now.
    pub fn done(&mut self, file_type: FileType) -> Result<()> {
        match file_type {
            FileType::Directory => self.counts.directories += 1,
            _ => self.counts.files += 1,
        }
        self.after_file.as_mut().map_or(Ok(()), |call| call(&self.counts))
    }

    /// Counts data that went elsewhere than into a volume.
    pub fn add(&mut self, bytes: u64) {
        self.counts.add_bytes(bytes);
    }

    /// Counts data that was shared as a whole.
    pub(crate) fn share(&mut self, bytes: u64) {
        self.counts.add_bytes(bytes);
        self.counts.add_shared(bytes);
    }

    /// Writes data into a file; with `dedupe`, what a file of this job has already is shared.
    pub(crate) fn write(
        &mut self,
        fs: &Filesystem,
        to: Target,
        at: u64,
        data: &[u8],
        dedupe: bool,
    ) -> ubtrfs::Result<()> {
        self.counts.add_bytes(data.len() as u64);
        if !dedupe {
            return write_all(fs, to.id, at, data);
        }
        let dedupe = self.dedupe.get_or_insert_with(|| Dedupe::new(fs));
        let shared = dedupe.write(fs, to, at, data)?;
        self.counts.add_shared(shared);
        Ok(())
    }
}

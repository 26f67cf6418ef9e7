//! The state of a command that makes many files: its progress, the data to share, and what is to
//! happen after each file.

use std::path::{Path, PathBuf};

use ubtrfs::format::items::FileType;
use ubtrfs::{Filesystem, InodeId};

use crate::content::{Target, write_all};
use crate::dedupe::Dedupe;
use crate::error::Result;
use crate::path_flags::PathFlags;

/// The progress of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of names of files other than directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of data without holes, including files that are shared as a whole. Both counts stop at
    /// `u64::MAX`, since an image may say of any file that it is huge.
    pub bytes: u64,
    /// How many of these bytes are shared instead of being written.
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

/// A function that is called after each file with the progress. An error ends the job.
pub type AfterFile<'a> = Box<dyn FnMut(&Counts) -> Result<()> + 'a>;

/// The files that one command makes.
#[derive(Default)]
pub struct Job<'a> {
    counts: Counts,
    dedupe: Option<Dedupe>,
    flags: PathFlags,
    /// Files that shrank while they were copied.
    shrunk: Vec<PathBuf>,
    after_file: Option<AfterFile<'a>>,
}

impl std::fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<'a> Job<'a> {
    /// Returns a job that reports its progress after each file.
    pub fn new(after_file: AfterFile<'a>) -> Self {
        Self { after_file: Some(after_file), ..Self::default() }
    }

    /// Returns the job with flags for the files that it makes.
    #[must_use]
    pub fn with_flags(self, flags: PathFlags) -> Self {
        Self { flags, ..self }
    }

    /// Returns whether the paths of new files are needed.
    pub(crate) fn asks_for_paths(&self) -> bool {
        !self.flags.is_empty()
    }

    /// Gives a new, still empty file or directory its flags.
    pub(crate) fn made(&self, fs: &Filesystem, id: InodeId, path: &Path) -> Result<()> {
        self.flags.give(fs, id, path)
    }

    /// Notes that a file was smaller at the end of its copy than at the beginning.
    pub(crate) fn note_shrunk(&mut self, path: &Path) {
        self.shrunk.push(path.to_owned());
    }

    /// Takes the paths of the copies of files that shrank while they were copied. They have what
    /// was left.
    pub fn take_shrunk(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.shrunk)
    }

    /// The progress.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts a file that is complete.
    pub fn done(&mut self, file_type: FileType) -> Result<()> {
        match file_type {
            FileType::Directory => self.counts.directories += 1,
            _ => self.counts.files += 1,
        }
        self.after_file.as_mut().map_or(Ok(()), |call| call(&self.counts))
    }

    /// Counts bytes of data that were written elsewhere than into a volume.
    pub fn add(&mut self, bytes: u64) {
        self.counts.add_bytes(bytes);
    }

    /// Counts bytes of data that were shared as a whole.
    pub(crate) fn share(&mut self, bytes: u64) {
        self.counts.add_bytes(bytes);
        self.counts.add_shared(bytes);
    }

    /// Writes data into a file; with `dedupe`, shares data that a file of this job has already.
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

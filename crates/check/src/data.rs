//! Reads the data of the volume, beside the check of the trees or after it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use ubtrfs_format::{ItemContext, Superblock, Uuid};

use crate::csums::DataCheck;
use crate::media::Media;
use crate::report::{Faults, Progress};
use crate::walk::{Geometry, TreeRoot, Walker};

/// A reader of all data that has csums. It has a view of the volume of its own, so that it can run
/// in a thread of its own.
pub(crate) struct DataJob<'a> {
    walker: Walker<'a>,
    root: TreeRoot,
    /// How many bytes have csums.
    total: u64,
    keep: usize,
    progress: Option<&'a dyn Progress>,
    /// Whether the progress is reported: not while the trees report theirs.
    is_shown: AtomicBool,
}

/// What a reader found.
pub(crate) struct DataOutcome {
    pub(crate) faults: Faults,
    /// The addresses of wrong sectors.
    pub(crate) wrong: BTreeSet<u64>,
    /// The bytes that were read.
    pub(crate) read: u64,
}

impl<'a> DataJob<'a> {
    /// Makes a reader by the csum tree with this root.
    pub(crate) fn new(
        (superblock, geometry, seeds): (&Superblock, Geometry, Vec<Uuid>),
        media: Media,
        root: TreeRoot,
        total: u64,
        (keep, progress): (usize, Option<&'a dyn Progress>),
    ) -> Self {
        let walker = Walker::new(media, geometry, ItemContext::from(superblock), None).with_seeds(seeds);
        Self { walker, root, total, keep, progress, is_shown: AtomicBool::new(false) }
    }

    /// Reports the progress from now on.
    pub(crate) fn show(&self) {
        self.is_shown.store(true, Ordering::Relaxed);
    }

    /// Reads all data.
    pub(crate) fn run(&self) -> DataOutcome {
        let mut faults = Faults::new(self.keep);
        let Geometry { checksum, sector_size, .. } = self.walker.geometry;
        let progress: Option<&dyn Progress> = if self.progress.is_some() { Some(self) } else { None };
        let mut check = DataCheck::new(&self.walker.media, checksum, sector_size);
        (check.total, check.progress) = (self.total, progress);
        self.walker.walk_again(&self.root, &mut check, &mut faults);
        check.finish(&mut faults);
        let (wrong, read) = (std::mem::take(&mut check.wrong), check.read);
        DataOutcome { faults, wrong, read }
    }
}

impl Progress for DataJob<'_> {
    fn report(&self, phase: &'static str, done: u64, total: u64) {
        if let Some(progress) = self.progress.filter(|_| self.is_shown.load(Ordering::Relaxed)) {
            progress.report(phase, done, total);
        }
    }
}

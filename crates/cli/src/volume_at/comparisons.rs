//! Comparisons and merges of subvolumes.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use ubtrfs::{FileChange, MergeSides, Prefer};
use ubtrfs_format::TreeId;
use ubtrfs_server::control::Question;
use ubtrfs_server::merge_ioctl::Merge;
use ubtrfs_server::merge_records::{MergeRecord, records};

use super::on_mount::OnMount;
use super::subvolumes::Subvolumes;
use crate::control;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount, open_subvolume};
use crate::place::{Image, neither, other_volumes};
use crate::stream;

/// A merge of subvolumes.
pub struct WantedMerge<'a> {
    pub sides: MergeSides,
    /// The path of the target.
    pub target: &'a Path,
    pub prefer: Prefer,
    pub dry_run: bool,
    /// Returns the special meaning of an error in a merge, if it has one.
    pub explained: &'a dyn Fn(Errno) -> Option<String>,
}

/// Compares and merges several subvolumes of a volume.
pub trait Comparisons {
    /// Returns the subvolumes whose root directories are at these paths. What programs have written
    /// before, also to mappings, is written back, so that the server knows it.
    fn subvolumes_at(&self, paths: &[PathBuf]) -> Result<Vec<TreeId>>;

    /// Passes every change that the question asks for to `visit`, until that returns false.
    fn changes(&self, question: &Question, visit: &mut dyn FnMut(FileChange) -> bool) -> Result<()>;

    /// Merges, and returns what was or would be done.
    fn merge(&self, wanted: &WantedMerge<'_>) -> Result<Vec<MergeRecord>>;
}

impl Comparisons for OnMount {
    fn subvolumes_at(&self, paths: &[PathBuf]) -> Result<Vec<TreeId>> {
        let (mut ids, mut device) = (Vec::new(), None);
        for path in paths {
            if !path.is_dir() {
                return Err(neither(path));
            }
            let opened = open_subvolume(path)?;
            ids.push(opened.subvolume().map_err(|errno| about_mount(path.display(), errno))?);
            let of = opened.device().map_err(|errno| about_mount(path.display(), errno))?;
            if *device.get_or_insert(of) != of {
                return Err(other_volumes());
            }
            // A read-only mount has no dirty pages.
            let _ = opened.write_back();
        }
        Ok(ids)
    }

    fn changes(&self, question: &Question, visit: &mut dyn FnMut(FileChange) -> bool) -> Result<()> {
        stream::changes(self.place(), question, visit).map_err(|errno| about_changes(self.place(), errno))
    }

    fn merge(&self, wanted: &WantedMerge<'_>) -> Result<Vec<MergeRecord>> {
        let WantedMerge { sides: MergeSides { base, changed, .. }, target, prefer, dry_run, explained } = *wanted;
        let failed = |path: &Path, errno| about_merge(path, errno, explained(errno));
        // Through the mount of the subvolume that is changed.
        let number = Mounted::open(target)?.merge(&Merge { base, changed, prefer, dry_run });
        let answer = number.and_then(|number| stream::whole(self.place(), number));
        let answer = answer.map_err(|errno| failed(target, errno))?;
        serde_json::from_slice(&answer).map_err(|_| failed(self.place(), Errno::PROTO))
    }
}

impl Comparisons for Image {
    fn subvolumes_at(&self, paths: &[PathBuf]) -> Result<Vec<TreeId>> {
        paths.iter().map(|path| self.subvolume_at(path)).collect()
    }

    fn changes(&self, question: &Question, visit: &mut dyn FnMut(FileChange) -> bool) -> Result<()> {
        let done = match question {
            Question::Changes { old, new } => ubtrfs::changes(&self.fs, *old, *new, visit),
            Question::ChangesSince { subvolume, generation } => {
                ubtrfs::changes_since(&self.fs, *subvolume, *generation, visit)
            }
        };
        done.map_err(|error| in_image(self, &error, explained(error.errno())))
    }

    fn merge(&self, wanted: &WantedMerge<'_>) -> Result<Vec<MergeRecord>> {
        let WantedMerge { sides, prefer, dry_run, explained, .. } = *wanted;
        let merged = ubtrfs::merge(&self.fs, sides, prefer, dry_run, &mut |_| ());
        let merged = merged.map_err(|error| in_image(self, &error, explained(error.errno())))?;
        Ok(records(&merged))
    }
}

/// Returns the failure for an error of an image, by what explains it if anything does.
fn in_image(image: &Image, error: &ubtrfs::Error, explained: Option<impl Display>) -> Failure {
    match explained {
        Some(why) => Failure::new(format!("{}: {why}", image.path().display())),
        None => image.failed(error),
    }
}

/// Describes an error of a comparison.
fn explained(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::NAMETOOLONG => "a path is too long: its directories take more than 4 megabytes of memory",
        Errno::TOOBIG => "the names, ranges or xattrs of a file, or all paths together, are too long to be shown",
        _ => return None,
    })
}

/// Describes why a mount's server does not compare.
fn about_changes(path: &Path, errno: Errno) -> Failure {
    let shown = path.display();
    match errno {
        Errno::PERM => {
            Failure::new(format!("{shown}: only root, or the user who has mounted it, may compare its subvolumes"))
        }
        Errno::BUSY => Failure::new(format!("{shown}: a thousand comparisons and merges wait for their turn")),
        Errno::STALE => Failure::new(format!("{shown}: a subvolume was deleted meanwhile")),
        errno => match explained(errno) {
            Some(why) => Failure::new(format!("{shown}: {why}")),
            None => control::failure(path, errno),
        },
    }
}

/// Describes why a mount's server does not merge.
fn about_merge(path: &Path, errno: Errno, explained: Option<String>) -> Failure {
    let shown = path.display();
    match (errno, explained) {
        (Errno::PERM, _) => {
            let who = "only root, or the user who has mounted it, may merge its subvolumes";
            Failure::new(format!("{shown}: {who}; and nothing that changes may have chattr's flags i or a in TARGET"))
        }
        (_, Some(why)) => Failure::new(format!("{shown}: {why}")),
        _ => control::failure(path, errno),
    }
}

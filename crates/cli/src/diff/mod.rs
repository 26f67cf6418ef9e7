//! `ubtrfs diff`: what changed between two subvolumes, or in one since a commit.

mod json;
mod lines;
mod output;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use ubtrfs::{ChangedAttribute, FileChange, Filesystem, InodeId, Options, WhatChanged};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{Generation, TreeId};
use ubtrfs_server::control::Question;

use crate::args::Diff;
use crate::control;
use crate::device::{open_for_reading, volume};
use crate::failure::{Failure, Result, TROUBLE};
use crate::path::{AtEnd, find};
use crate::place::{not_a_subvolume, unless_mounted};
use crate::stream;
use crate::together::Together;

/// The exit status if the subvolumes differ.
const DIFFERENT: u8 = 1;

/// `ubtrfs diff`
pub fn run(arguments: &Diff) -> Result<()> {
    match compare(arguments) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Failure::Said(DIFFERENT)),
        Err(failure) => Err(failure.with_status(TROUBLE)),
    }
}

/// Shows the changes, and returns whether there are any.
fn compare(arguments: &Diff) -> Result<bool> {
    let compared = Compared::open(arguments)?;
    let out = BufWriter::new(io::stdout().lock());
    let mut output: Box<dyn output::Output> =
        if arguments.json { Box::new(json::Json::new(out)) } else { Box::new(lines::Lines::new(out, arguments)) };
    let (mut differ, mut written) = (false, Ok(()));
    let done = compared.changes(&mut |change| {
        if !matters(&change) {
            return true;
        }
        differ = true;
        written = output.change(&change);
        written.is_ok()
    });
    written.and_then(|()| output.finish()).map_err(|error| Failure::output(&error))?;
    done?;
    Ok(differ)
}

/// Whether a change is shown. Of times that of access and that of the last change of anything
/// are none by themselves, nor are size and times of a directory, which its entries change.
fn matters(change: &FileChange) -> bool {
    let is_directory = change.file_type == FileType::Directory;
    let is_minor = |attribute: &ChangedAttribute| match attribute {
        ChangedAttribute::AccessTime | ChangedAttribute::ChangeTime => true,
        ChangedAttribute::Size | ChangedAttribute::ModificationTime => is_directory,
        _ => false,
    };
    change.what != WhatChanged::Changed
        // Of what changed since a commit the attributes are not known.
        || change.old.is_none()
        || !change.attributes.iter().all(is_minor)
        || !change.names_removed.is_empty()
        || !change.names_added.is_empty()
        || !change.xattrs.is_empty()
        || !change.content.is_empty()
        || !change.subvolumes.is_empty()
}

/// What is compared: numbers of subvolumes, and the commit since which the only one changed.
struct Wanted {
    old: TreeId,
    new: Option<TreeId>,
    since: Generation,
}

impl Wanted {
    fn new(arguments: &Diff, old: TreeId, new: Option<TreeId>) -> Self {
        Self { old, new, since: Generation(arguments.since.unwrap_or_default()) }
    }
}

/// A volume, and what is compared of it.
enum Compared {
    Mounted(PathBuf, Wanted),
    Image(Volume, Wanted),
}

impl Compared {
    fn open(arguments: &Diff) -> Result<Self> {
        let words = [Some(&arguments.old), arguments.new.as_ref()];
        match Together::find(words.into_iter().flatten().map(AsRef::as_ref))? {
            Together::Mounted(path, ids) => {
                let [old, rest @ ..] = &ids[..] else { return Err(Failure::new("a subvolume is needed")) };
                Ok(Self::Mounted(path, Wanted::new(arguments, *old, rest.first().copied())))
            }
            Together::Image(image, paths) => {
                let [old, rest @ ..] = &paths[..] else { return Err(Failure::new("a subvolume is needed")) };
                Self::in_image(arguments, &image, old, rest.first().map(Vec::as_slice))
            }
        }
    }

    fn in_image(arguments: &Diff, image: &Path, old: &[u8], new: Option<&[u8]>) -> Result<Self> {
        let volume = Volume::open(image, arguments)?;
        let old = volume.subvolume(old)?;
        let new = new.map(|new| volume.subvolume(new)).transpose()?;
        Ok(Self::Image(volume, Wanted::new(arguments, old, new)))
    }

    /// Shows every change until `visit` returns false.
    fn changes(&self, visit: &mut dyn FnMut(FileChange) -> bool) -> Result<()> {
        match self {
            Self::Mounted(path, wanted) => {
                let question = match wanted.new {
                    Some(new) => Question::Changes { old: wanted.old, new },
                    None => Question::ChangesSince { subvolume: wanted.old, generation: wanted.since },
                };
                stream::changes(path, &question, visit).map_err(|errno| about_stream(path, errno))
            }
            Self::Image(volume, wanted) => {
                let done = match wanted.new {
                    Some(new) => ubtrfs::changes(&volume.fs, wanted.old, new, visit),
                    None => ubtrfs::changes_since(&volume.fs, wanted.old, wanted.since, visit),
                };
                done.map_err(|error| match explained(error.errno()) {
                    Some(why) => Failure::new(format!("{}: {why}", volume.image.display())),
                    None => Failure::about(volume.image.display(), &error),
                })
            }
        }
    }
}

/// What an error says of a comparison.
fn explained(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::NAMETOOLONG => "a path is too long: its directories take more than 4 megabytes of memory",
        Errno::TOOBIG => "the names, ranges or xattrs of a file, or all paths together, are too long to be shown",
        _ => return None,
    })
}

/// Why a mount's server doesn't say what changed.
fn about_stream(path: &Path, errno: Errno) -> Failure {
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

/// A volume opened for reading.
struct Volume {
    fs: Arc<Filesystem>,
    image: PathBuf,
    /// What keeps others from writing to the devices.
    _claims: Vec<File>,
}

impl Volume {
    fn open(image: &Path, arguments: &Diff) -> Result<Self> {
        let devices = [&[image.to_owned()][..], &arguments.devices].concat();
        let reading = open_for_reading(&devices, arguments.window)
            .map_err(|failure| unless_mounted(image, arguments.window, failure))?;
        let options = Options {
            read_only: true,
            no_log_replay: arguments.nologreplay,
            subvolume_id: Some(TreeId::FS.0),
            no_atime: true,
            background_commits: false,
            ..Options::default()
        };
        let fs = Filesystem::open(volume(&devices, arguments.window, reading.devices)?, options)
            .map_err(|error| Failure::about(image.display(), &error))?;
        Ok(Self { fs, image: image.into(), _claims: reading.claims })
    }

    fn subvolume(&self, path: &[u8]) -> Result<TreeId> {
        let found = find(&self.fs, path, AtEnd::Follow)?;
        if found == InodeId::root_of(found.subvolume) {
            return Ok(found.subvolume);
        }
        Err(not_a_subvolume(OsStr::from_bytes(path)))
    }
}

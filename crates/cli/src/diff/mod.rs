//! `ubtrfs diff`: what changed between two subvolumes, or in one since a commit.

mod json;
mod lines;
mod output;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs::{ChangedAttribute, FileChange, Filesystem, InodeId, Options, WhatChanged};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{Generation, TreeId};

use crate::args::Diff;
use crate::device::{open_for_reading, volume};
use crate::failure::{Failure, Result};
use crate::path::{AtEnd, find};
use crate::show;

/// The exit status if the subvolumes differ.
const DIFFERENT: u8 = 1;
/// The exit status if they could not be compared.
const TROUBLE: u8 = 2;

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
    let first = Place::parse(&arguments.old)?;
    let second = arguments.new.as_ref().map(|place| Place::parse(place)).transpose()?;
    if second.as_ref().is_some_and(|second| !is_same_file(&first.image, &second.image)) {
        return Err(Failure::new("both subvolumes must be in the same volume"));
    }
    let volume = Volume::open(&first.image, arguments)?;
    let old = volume.subvolume(&first)?;
    let new = second.map(|second| volume.subvolume(&second)).transpose()?;
    let out = BufWriter::new(io::stdout().lock());
    let mut output: Box<dyn output::Output> =
        if arguments.json { Box::new(json::Json::new(out)) } else { Box::new(lines::Lines::new(out, arguments)) };
    let (mut differ, mut written) = (false, Ok(()));
    let mut visit = |change: FileChange| {
        if !matters(&change) {
            return true;
        }
        differ = true;
        written = output.change(&change);
        written.is_ok()
    };
    let done = match (new, arguments.since) {
        (Some(new), _) => volume.fs.changes(old, new, &mut visit),
        (None, since) => volume.fs.changes_since(old, Generation(since.unwrap_or_default()), &mut visit),
    };
    written.and_then(|()| output.finish()).map_err(|error| Failure::output(&error))?;
    done.map_err(|error| Failure::about(first.image.display(), &error))?;
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

fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// A subvolume by its path in an image.
struct Place {
    image: PathBuf,
    /// From the top level.
    path: Vec<u8>,
}

impl Place {
    /// Reads `IMAGE:PATH`: what is before the first colon that follows a file or a block device is
    /// the image.
    fn parse(word: &OsStr) -> Result<Self> {
        let bytes = word.as_bytes();
        for (colon, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b':') {
            let image = Path::new(OsStr::from_bytes(&bytes[..colon]));
            let is_image = |found: std::fs::Metadata| found.is_file() || found.file_type().is_block_device();
            if image.metadata().is_ok_and(is_image) {
                return Ok(Self { image: image.into(), path: bytes[colon + 1..].to_vec() });
            }
        }
        let (exists, word) = (Path::new(word).exists(), word.display());
        Err(Failure::new(if exists {
            format!("{word} is not IMAGE:PATH; subvolumes of a mounted volume can't be compared")
        } else {
            format!("{word} is not IMAGE:PATH with an image or a device that exists")
        }))
    }
}

/// A volume opened for reading.
struct Volume {
    fs: Arc<Filesystem>,
    /// What keeps others from writing to the devices.
    _claims: Vec<File>,
}

impl Volume {
    fn open(image: &Path, arguments: &Diff) -> Result<Self> {
        let devices = [&[image.to_owned()][..], &arguments.devices].concat();
        let reading = open_for_reading(&devices, arguments.window)?;
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
        Ok(Self { fs, _claims: reading.claims })
    }

    fn subvolume(&self, place: &Place) -> Result<TreeId> {
        let found = find(&self.fs, &place.path, AtEnd::Follow)?;
        if found == InodeId::root_of(found.subvolume) {
            return Ok(found.subvolume);
        }
        Err(Failure::new(format!("{} is not a subvolume", show::bytes(&place.path))))
    }
}

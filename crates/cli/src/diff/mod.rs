//! `ubtrfs diff`: shows the changes between two subvolumes, or in one subvolume since a commit.

mod json;
mod lines;
mod output;

use std::io::BufWriter;

use ubtrfs::{ChangedAttribute, FileChange, WhatChanged};
use ubtrfs_format::Generation;
use ubtrfs_format::items::FileType;
use ubtrfs_server::control::Question;

use crate::args::Diff;
use crate::args::subvolume::InImage;
use crate::failure::{Failure, Result, TROUBLE};
use crate::json::Array;
use crate::output::Output;
use crate::place::Opening;
use crate::volume_at::{Named, open_together};

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

/// Prints the changes, and returns whether there are any.
fn compare(arguments: &Diff) -> Result<bool> {
    let words = [Some(&arguments.old), arguments.new.as_ref()];
    let how = InImage { devices: arguments.devices.clone(), window: arguments.window };
    let opening = Opening { no_log_replay: arguments.nologreplay, ..Opening::READING };
    let Named { volume, paths } = open_together(words.into_iter().flatten().map(AsRef::as_ref), &how, opening)?;
    let question = match *volume.subvolumes_at(&paths)? {
        [old, new] => Question::Changes { old, new },
        [subvolume] => {
            Question::ChangesSince { subvolume, generation: Generation(arguments.since.unwrap_or_default()) }
        }
        _ => return Err(Failure::new("a subvolume is needed")),
    };
    let out = BufWriter::new(Output::new());
    let mut output: Box<dyn output::Output> =
        if arguments.json { Box::new(Array::new(out)) } else { Box::new(lines::Lines::new(out, arguments)) };
    let (mut differ, mut written) = (false, Ok(()));
    let done = volume.changes(&question, &mut |change| {
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

/// Whether a change is shown. A new access time or change time alone is not shown, nor are a new
/// size and new times of a directory, since they follow from its entries.
fn matters(change: &FileChange) -> bool {
    let is_directory = change.file_type == FileType::Directory;
    let is_minor = |attribute: &ChangedAttribute| match attribute {
        ChangedAttribute::AccessTime | ChangedAttribute::ChangeTime => true,
        ChangedAttribute::Size | ChangedAttribute::ModificationTime => is_directory,
        _ => false,
    };
    change.what != WhatChanged::Changed
        // In a comparison with a commit the old attributes are not known.
        || change.old.is_none()
        || !change.attributes.iter().all(is_minor)
        || !change.names_removed.is_empty()
        || !change.names_added.is_empty()
        || !change.xattrs.is_empty()
        || !change.content.is_empty()
        || !change.subvolumes.is_empty()
}

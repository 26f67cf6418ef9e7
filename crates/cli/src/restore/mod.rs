//! `ubtrfs restore`: copies what can be read of a damaged volume. Writes nothing to the volume.

mod content;
mod lost;
mod make;
mod record;
mod report;
mod source;
mod undelete;
mod walk;
mod way;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ubtrfs_format::items::FileType;

use crate::args;
use crate::device::{Opened, open_what_can_be_read};
use crate::failure::{Failure, Result};
use crate::host::target::Target;
use crate::json;
use crate::output::{note, say};
use crate::path::{AtEnd, find};
use crate::place::split_image;
use source::Source;
use walk::Walk;

/// `ubtrfs restore`
pub fn run(arguments: &args::Restore) -> Result<()> {
    let mut arguments = arguments.clone();
    for place in &mut arguments.places {
        let (image, path) = split_image(place);
        if path.is_some() && arguments.path.is_some() {
            return Err(Failure::new("a path is given twice: as IMAGE:PATH, or by --path").with_status(2));
        }
        *place = image;
        arguments.path = arguments.path.or(path.map(Into::into));
    }
    let arguments = &arguments;
    let (devices, directory) = places(arguments)?;
    let opened = open_what_can_be_read(&devices, arguments.window)?;
    if arguments.list_commits {
        say(&source::list(&opened.devices)?);
        return Ok(());
    }
    let is_new = directory.as_ref().filter(|directory| !directory.exists());
    let done = copy(arguments, &devices, &opened, directory.as_deref());
    if let (Err(_), Some(directory)) = (&done, is_new) {
        // The directory is removed if nothing was copied; otherwise the removal fails.
        let _ = std::fs::remove_dir(directory);
    }
    done
}

fn copy(arguments: &args::Restore, paths: &[PathBuf], opened: &Opened, directory: Option<&Path>) -> Result<()> {
    let (devices, sources) = (&*opened.devices, &opened.sources);
    if arguments.undelete {
        return undelete::run(arguments, paths, devices, sources, directory);
    }
    let target = directory.map(|directory| Target::prepare(directory, arguments.go_on)).transpose()?;
    let source = Source::open(paths, devices, arguments)?;
    note!("ubtrfs: copying {}", source.what);
    let mut walk = Walk::new(&source, arguments, sources, target)?;
    let done = match &arguments.path {
        None => walk.tree(source.fs.root()).and_then(|()| walk.lost_inodes()),
        Some(path) => copy_path(&mut walk, path.as_bytes()),
    };
    // If the user requests a part, the rest is left out on purpose.
    if arguments.path.is_none() && arguments.subvol.is_none() && arguments.subvolid.is_none() {
        walk.list_other_subvolumes();
    }
    // The losses so far are reported even if nothing more can be written.
    let mut report = walk.finish();
    report.write(directory);
    if arguments.json {
        json::print(&report.described())?;
    } else {
        say(&report.summary());
        say(&report.advice(paths));
    }
    report.report_problems();
    done?;
    if report.is_entire() { Ok(()) } else { Err(Failure::Said(1)) }
}

fn copy_path(walk: &mut Walk<'_>, path: &[u8]) -> Result<()> {
    let fs = &walk.source.fs;
    let id = find(fs, path, AtEnd::Stay)?;
    let attributes = fs.inodes().attributes(id).map_err(|error| crate::path::failure(path, &error))?;
    if attributes.file_type == FileType::Directory {
        return walk.tree(id);
    }
    let name = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
    walk.single(name, id)
}

/// Returns the devices, and the directory, unless nothing is to be made.
fn places(arguments: &args::Restore) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
    let places = &arguments.places;
    if arguments.dry_run || arguments.list_commits {
        let is_directory = |path: &&PathBuf| path.is_dir() || !path.exists();
        let devices = match places.split_last() {
            Some((last, rest)) if !rest.is_empty() && is_directory(&last) => rest,
            _ => places,
        };
        return Ok((devices.to_vec(), None));
    }
    match places.split_last() {
        Some((directory, devices)) if !devices.is_empty() => Ok((devices.to_vec(), Some(directory.clone()))),
        _ => Err(Failure::new("a device and a directory are needed: ubtrfs restore DEVICE DIR").with_status(2)),
    }
}

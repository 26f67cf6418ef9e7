//! `ubtrfs export` and `ubtrfs import`: write tar archives from an image, and read them into one.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ubtrfs_format::items::FileType;
use ubtrfs_image::{Editor, Error, ImportOptions, Job, Layer, OciImage, OciReference, VolumeFile, dump};

use super::session::{about, edit};
use crate::args::edit::{Export, Format, Import};
use crate::args::subvolume::InImage;
use crate::failure::{Failure, Result};
use crate::output::note;
use crate::place::{Image, Opening, Place};
use crate::report::{Done, Progress};
use crate::{json, show};

/// The size of the buffer for writes, in bytes.
const BUFFER: usize = 1 << 20;

/// `ubtrfs export`
pub fn export(arguments: &Export) -> Result<()> {
    if arguments.digests && arguments.format == Format::Tar {
        return Err(Failure::new("--digests is for --format composefs").with_status(2));
    }
    if arguments.format == Format::Tar && io::stdout().is_terminal() {
        return Err(Failure::new(
            "an archive is nothing for a terminal: write it to a file, as in 'ubtrfs export IMAGE > x.tar'",
        ));
    }
    let (image, path) = Place::of_volume(&arguments.place).in_image()?;
    let how = InImage { devices: arguments.devices.clone(), window: arguments.window };
    let opened = Image::open(&image, &how, Opening::READING)?;
    let (id, file_type) = Editor::new(&opened.fs, (0, 0)).find(&path, true).map_err(|error| about(&error))?;
    let name = path.file_name().unwrap_or(OsStr::new("file")).as_bytes().to_owned();
    let out = BufWriter::with_capacity(BUFFER, io::stdout().lock());
    let progress = Progress::new();
    let mut job = progress.job();
    let file = VolumeFile::new(id, path);
    let written = match arguments.format {
        Format::Tar => ubtrfs_image::export(&opened.fs, file, &name, out, &mut job),
        Format::Composefs if file_type != FileType::Directory => {
            return Err(Failure::about(
                show::path(&file.path().path()),
                &io::Error::from(io::ErrorKind::NotADirectory),
            ));
        }
        Format::Composefs => dump(&opened.fs, file, arguments.digests, out, &mut job).map(|()| Vec::new()),
    };
    let skipped = match written {
        Ok(skipped) => skipped,
        // The reader wants no more of the archive.
        Err(Error::Outside { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        Err(error) => return Err(about(&error)),
    };
    let counts = job.counts();
    drop(job);
    drop(progress);
    for path in skipped {
        let path = show::bytes(path.path().as_os_str().as_bytes());
        note!("ubtrfs: {path}: a socket, which no archive can have, is left out");
    }
    if arguments.json {
        note!("{}", json::as_json(&Done::from(counts))?.trim_end());
    }
    Ok(())
}

/// `ubtrfs import`
pub fn import(arguments: &Import) -> Result<()> {
    let (image, path) = Place::of_volume(&arguments.place).in_image()?;
    let layer = if arguments.oci_layer { Layer::Oci } else { Layer::Plain };
    let options = ImportOptions { layer, dedupe: arguments.dedupe, ..ImportOptions::default() };
    edit(&image, arguments.window, arguments.how, |edited, job| {
        let session = edited.session;
        let editor = Editor::new(session.fs(), (0, 0));
        if !path.as_os_str().is_empty() {
            editor.make_directory(&path, true, None).map_err(|error| about(&error))?;
        }
        let (dir, _) = editor.find(&path, true).map_err(|error| about(&error))?;
        let read = |shown: &Path, archive: &mut dyn Read, job: &mut Job<'_>| {
            ubtrfs_image::import(session.fs(), dir, archive, options.clone(), job)
                .map_err(|error| about(&error).map_sentence(|sentence| format!("{}: {sentence}", shown.display())))
        };
        if arguments.archives.is_empty() {
            read(Path::new("standard input"), &mut io::stdin().lock(), job)?;
        }
        for path in &arguments.archives {
            if let Some(reference) = OciReference::parse(path) {
                edited.image.refuse_layout(&reference)?;
                let image = OciImage::open(&reference, arguments.platform.as_ref()).map_err(|error| about(&error))?;
                image.import(session.fs(), dir, options.clone(), job).map_err(|error| about(&error))?;
                continue;
            }
            let mut file = File::open(path).map_err(|error| Failure::about(path.display(), &error))?;
            if file.metadata().is_ok_and(|found| found.is_dir()) {
                let sentence = "is a directory, and no archive: 'ubtrfs cp -a' copies what is in it";
                return Err(Failure::new(format!("{} {sentence}", show::path(path))));
            }
            edited.image.refuse(path)?;
            read(path, &mut file, job)?;
        }
        Ok(())
    })
}

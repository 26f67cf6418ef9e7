//! The content of a new volume, and the size that it needs.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use ubtrfs_format::units::MIB;
use ubtrfs_image::{
    HostFile, HostFiles, Measured, NewSubvolume, OciImage, OciReference, OpenFile, Platform, Selection, Source,
    check_beginning, measure_compressed,
};
use ubtrfs_mkfs::Profile;

use crate::args::Mkfs;
use crate::failure::{Failure, Result};
use crate::host::sources::Sources;
use crate::output::note;
use crate::show;

/// The source of the content of a new volume.
#[derive(Debug)]
pub enum Input {
    Directory(PathBuf),
    Archive(PathBuf),
    Oci(OciImage),
    Stdin,
}

impl Input {
    /// Returns the input at a path. Refuses images inside the directory that they are made from,
    /// since they would be copied into themselves.
    pub fn new(path: &Path, platform: Option<&Platform>, images: &[PathBuf]) -> Result<Self> {
        let sources = Sources::of(images);
        if let Some(reference) = OciReference::parse(path) {
            sources.refuse_layout(&reference)?;
            if !reference.is_archive {
                refuse_within(&reference.layout, images)?;
            }
            let image = OciImage::open(&reference, platform).map_err(|error| Failure::of(&error))?;
            return Ok(Self::Oci(image));
        }
        if platform.is_some() {
            return Err(Failure::new("--platform is for --rootdir oci:DIR and oci-archive:FILE").with_status(2));
        }
        if path.as_os_str() == "-" {
            return sources.refuse_as_input().map(|()| Self::Stdin);
        }
        let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
        if !found.is_dir() {
            sources.refuse(path)?;
            if found.is_file() {
                // The input is checked before anything is overwritten.
                check_beginning(open(path)?).map_err(|error| about(path, &error))?;
            }
            return Ok(Self::Archive(path.into()));
        }
        refuse_within(path, images)?;
        if path.join("oci-layout").is_file() {
            let path = path.display();
            note!("ubtrfs: {path} is an OCI layout: --rootdir oci:{path} takes the files of its image instead");
        }
        Ok(Self::Directory(path.into()))
    }

    /// Refuses a selection by file systems for an archive, which has none.
    pub fn check_selection(&self, selection: &Selection) -> Result<()> {
        if selection.one_file_system && !matches!(self, Self::Directory(_)) {
            let why = "--one-file-system is for directories, and --rootdir is an archive or an OCI image";
            return Err(Failure::new(why).with_status(2));
        }
        Ok(())
    }

    /// Refuses inode flags for files that the directory does not have.
    pub fn check_flags(&self, flags: &[(PathBuf, u64)]) -> Result<()> {
        let Self::Directory(path) = self else { return Ok(()) };
        let is_missing = |(below, _): &&(PathBuf, u64)| std::fs::symlink_metadata(path.join(below)).is_err();
        flags.iter().find(is_missing).map_or(Ok(()), |(missing, _)| {
            let (missing, path) = (missing.display(), path.display());
            Err(Failure::new(format!("{missing} is not in {path}")))
        })
    }

    /// Refuses subvolumes for directories that the input directory does not have. The contents of
    /// an archive are not known before it is read.
    pub fn check_subvolumes(&self, subvolumes: &[NewSubvolume]) -> Result<()> {
        let Self::Directory(path) = self else { return Ok(()) };
        // A symbolic link to a directory does not count.
        let is_dir = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        match subvolumes.iter().find(|subvolume| !is_dir(&path.join(&subvolume.path))) {
            Some(missing) => {
                let (missing, path) = (missing.path.display(), path.display());
                Err(Failure::new(format!("{missing} is no directory in {path}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the bytes of a volume that has more than enough room for the input: the unused part
    /// of an image file is a hole. `None` if the size of the input is unknown.
    pub fn size_of_volume(&self, arguments: &Mkfs, selection: &Selection) -> Result<Option<u64>> {
        let copies = |profile: &Option<String>, default: u64| {
            profile.as_deref().and_then(Profile::of_name).map_or(default, Profile::copies)
        };
        let (data, files) = match self {
            Self::Directory(path) => sizes(path, selection)?,
            Self::Archive(path) => {
                let found = std::fs::metadata(path).map_err(|error| Failure::about(path.display(), &error))?;
                if !found.is_file() {
                    return Ok(None);
                }
                match measure_compressed(open(path)?).map_err(|error| about(path, &error))? {
                    Some(Measured { bytes, entries }) => (bytes, entries),
                    None => (found.len(), found.len() / 1024),
                }
            }
            Self::Oci(image) => {
                let bytes = image.plain_bytes().map_err(|error| Failure::of(&error))?;
                (bytes, bytes / 1024)
            }
            Self::Stdin => return Ok(None),
        };
        // The estimate: some items for each file, and a checksum for each sector of data.
        let metadata = files.saturating_mul(4096).saturating_add(data / 64);
        let bytes = data.saturating_mul(copies(&arguments.data, 1));
        let bytes = bytes.saturating_add(metadata.saturating_mul(copies(&arguments.metadata, 2)));
        let bytes = bytes.saturating_add(bytes / 8).saturating_add(512 * MIB);
        Ok(Some(bytes.next_multiple_of(16 * MIB)))
    }
}

/// Refuses images that are inside the directory from which they are made.
fn refuse_within(path: &Path, images: &[PathBuf]) -> Result<()> {
    for image in images {
        let above = image.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let (Ok(above), Ok(real)) = (above.canonicalize(), path.canonicalize())
            && above.starts_with(real)
        {
            let (image, path) = (image.display(), path.display());
            return Err(Failure::new(format!("{image} is in {path}, whose files it is to have: make it elsewhere")));
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Failure::about(show::path(path), &error))
}

/// Returns the failure for an error of an archive.
fn about(path: &Path, error: &ubtrfs_image::Error) -> Failure {
    Failure::about(show::path(path), error)
}

/// Returns the bytes of the files below a directory, in whole sectors and without holes, and the
/// number of names. A file with several names is counted once.
fn sizes(path: &Path, selection: &Selection) -> Result<(u64, u64)> {
    let source = HostFiles { selection: selection.clone(), top: path.into(), ..HostFiles::default() };
    let tree = &source.tree;
    let (mut left, mut data, mut files) = (vec![HostFile::named(path, true)], 0_u64, 0);
    let mut met = HashSet::new();
    while let Some(file) = left.pop() {
        let failed = |error: std::io::Error| Failure::about(show::path(&file.path()), &error);
        let found = tree.glance(&file).map_err(failed)?;
        files += 1;
        match FileType::from_raw_mode(found.st_mode) {
            // The directory may have been replaced meanwhile by a file, which has no entries to
            // count.
            FileType::Directory if tree.open(&file).map_err(failed)?.file_type() == FileType::Directory => {
                let children = source.children(&file).map_err(|error| Failure::of(&error))?;
                left.extend(children.into_iter().map(|(_, file)| file));
            }
            FileType::RegularFile if found.st_nlink < 2 || met.insert((found.st_dev, found.st_ino)) => {
                let (size, taken) = (found.st_size as u64, (found.st_blocks as u64).saturating_mul(512));
                let bytes = if taken < size {
                    // The file has holes, or its file system stores it in less space than btrfs
                    // needs.
                    tree.open(&file).and_then(OpenFile::data_bytes).map_err(failed)?
                } else {
                    size.next_multiple_of(4096)
                };
                data = data.saturating_add(bytes);
            }
            _ => {}
        }
    }
    Ok((data, files))
}

//! The images and devices that a command uses. None of the other files that it reads or writes may
//! be one of them.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use rustix::stdio::{stdin, stdout};
use ubtrfs_image::OciReference;
use ubtrfs_volume::backing_file;

use crate::failure::{Failure, Result};

/// The identities of image files and block devices, whatever their names are.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Image files, and those behind loop devices: device number of the file system, and inode
    /// number.
    files: Vec<(u64, u64)>,
    /// The device numbers of block devices.
    devices: Vec<u64>,
}

impl Sources {
    /// Returns the identities of these paths. Those that are no files here, such as exports, are
    /// left out.
    pub fn of(paths: &[PathBuf]) -> Self {
        let mut sources = Self::default();
        for found in paths.iter().filter_map(|path| std::fs::metadata(path).ok()) {
            sources.add(&found);
        }
        sources
    }

    fn add(&mut self, found: &Metadata) {
        if !found.file_type().is_block_device() {
            self.files.push((found.dev(), found.ino()));
            return;
        }
        self.devices.push(found.rdev());
        if let Some(image) = backing_file(found.rdev()).and_then(|path| std::fs::metadata(path).ok()) {
            self.files.push((image.dev(), image.ino()));
        }
    }

    /// Returns the files: device number of the file system, and inode number.
    pub fn files(&self) -> &[(u64, u64)] {
        &self.files
    }

    /// Whether a file is one of the sources.
    pub fn have(&self, file: &Stat) -> bool {
        let is_block = rustix::fs::FileType::from_raw_mode(file.st_mode).is_block_device();
        self.files.contains(&(file.st_dev, file.st_ino)) || is_block && self.devices.contains(&file.st_rdev)
    }

    /// Returns an error if a file that is to be read is one of the sources.
    pub fn refuse(&self, path: &Path) -> Result<()> {
        if rustix::fs::stat(path).is_ok_and(|found| self.have(&found)) {
            return Err(Failure::new(format!("{}: it is the image itself, or a device of the volume", path.display())));
        }
        Ok(())
    }

    /// Returns an error if a file of an OCI layout, which is to be read, is one of the sources.
    pub fn refuse_layout(&self, reference: &OciReference) -> Result<()> {
        let layout = &reference.layout;
        self.refuse(layout)?;
        if !reference.is_archive {
            for name in ["oci-layout", "index.json"] {
                self.refuse(&layout.join(name))?;
            }
            for blob in std::fs::read_dir(layout.join("blobs/sha256")).into_iter().flatten().flatten() {
                self.refuse(&blob.path())?;
            }
        }
        Ok(())
    }

    /// Returns an error if the standard output is one of the sources, as with
    /// `ubtrfs export IMAGE >> IMAGE`.
    pub fn refuse_as_output(&self) -> Result<()> {
        match rustix::fs::fstat(stdout()) {
            Ok(found) if self.have(&found) => {
                Err(Failure::new("the standard output is the image, or a device of the volume, itself"))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if the standard input is one of the sources, which the command is to
    /// change.
    pub fn refuse_as_input(&self) -> Result<()> {
        match rustix::fs::fstat(stdin()) {
            Ok(found) if self.have(&found) => {
                Err(Failure::new("the standard input is the image, or a device of the volume, itself"))
            }
            _ => Ok(()),
        }
    }
}

//! The images and devices that a command uses, which nothing that it reads or writes besides may
//! be.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use rustix::stdio::{stdin, stdout};
use ubtrfs_image::OciReference;
use ubtrfs_volume::backing_file;

use crate::failure::{Failure, Result};

/// What tells image files and block devices from others, whatever their names are.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Image files, and those behind loop devices: the number of their file system, and their own.
    files: Vec<(u64, u64)>,
    /// The numbers of block devices.
    devices: Vec<u64>,
}

impl Sources {
    /// Those with these names; what is no file here, such as an export of a server, is left out.
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

    /// The files among them: the number of their file system, and their own.
    pub fn files(&self) -> &[(u64, u64)] {
        &self.files
    }

    /// Whether a file is one of them.
    pub fn have(&self, file: &Stat) -> bool {
        let is_block = rustix::fs::FileType::from_raw_mode(file.st_mode).is_block_device();
        self.files.contains(&(file.st_dev, file.st_ino)) || is_block && self.devices.contains(&file.st_rdev)
    }

    /// An error if a file that is to be read is one of them.
    pub fn refuse(&self, path: &Path) -> Result<()> {
        if rustix::fs::stat(path).is_ok_and(|found| self.have(&found)) {
            return Err(Failure::new(format!("{}: it is the image itself, or a device of the volume", path.display())));
        }
        Ok(())
    }

    /// An error if a file of an OCI layout, which is to be read, is one of them.
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

    /// An error if what the command prints would be written into one of them, as by
    /// `ubtrfs export IMAGE >> IMAGE`.
    pub fn refuse_as_output(&self) -> Result<()> {
        match rustix::fs::fstat(stdout()) {
            Ok(found) if self.have(&found) => {
                Err(Failure::new("the standard output is the image, or a device of the volume, itself"))
            }
            _ => Ok(()),
        }
    }

    /// An error if the standard input is one of them, which a command is to write to.
    pub fn refuse_as_input(&self) -> Result<()> {
        match rustix::fs::fstat(stdin()) {
            Ok(found) if self.have(&found) => {
                Err(Failure::new("the standard input is the image, or a device of the volume, itself"))
            }
            _ => Ok(()),
        }
    }
}

//! The images and devices that a command uses. None of the other files that it reads or writes may
//! be one of them.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use rustix::stdio::{stdin, stdout};
use ubtrfs_image::OciReference;
use ubtrfs_volume::{backing_file, whole_disk};

use crate::failure::{Failure, Result};

/// The identities of image files and block devices, whatever their names are.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// What is used.
    used: Vec<Identity>,
    /// Image files, and those behind loop devices: device number of the file system, and inode
    /// number.
    files: Vec<(u64, u64)>,
}

/// What identifies an image file or a block device.
#[derive(Clone, Copy, Debug)]
struct Identity {
    /// The image file, or the one behind a loop device: device number of the file system, and inode
    /// number.
    file: Option<(u64, u64)>,
    /// The number of a block device, and that of the disk if it is a partition.
    device: Option<(u64, Option<u64>)>,
}

impl Identity {
    /// Returns the identity of the file `of_file`, which is a block device with the number in
    /// `device`, or none.
    fn new(of_file: (u64, u64), device: Option<u64>) -> Self {
        let Some(number) = device else { return Self { file: Some(of_file), device: None } };
        let image = backing_file(number).and_then(|path| std::fs::metadata(path).ok());
        Self { file: image.map(|image| (image.dev(), image.ino())), device: Some((number, whole_disk(number))) }
    }

    /// Whether both may have bytes in common. Partitions of one disk have none.
    fn overlaps(self, other: Self) -> bool {
        match (self.device, other.device) {
            (Some((one, _)), Some((another, _))) if one == another => true,
            (Some((_, Some(disk))), Some((_, Some(of_other)))) if disk == of_other => false,
            (Some((one, disk)), Some((another, of_other))) if disk == Some(another) || of_other == Some(one) => true,
            _ => self.file.is_some() && self.file == other.file,
        }
    }
}

impl Sources {
    /// Returns the identities of these paths. Those that are no files here, such as exports, are
    /// left out.
    pub fn of(paths: &[PathBuf]) -> Self {
        let found = paths.iter().filter_map(|path| std::fs::metadata(path).ok());
        let used: Vec<Identity> = found
            .map(|found| {
                let device = found.file_type().is_block_device().then(|| found.rdev());
                Identity::new((found.dev(), found.ino()), device)
            })
            .collect();
        let files = used.iter().filter_map(|identity| identity.file).collect();
        Self { used, files }
    }

    /// Returns the files: device number of the file system, and inode number.
    pub fn files(&self) -> &[(u64, u64)] {
        &self.files
    }

    /// Whether a file is one of the sources, or a block device that has bytes in common with one.
    pub fn have(&self, file: &Stat) -> bool {
        let is_block = rustix::fs::FileType::from_raw_mode(file.st_mode).is_block_device();
        let found = Identity::new((file.st_dev, file.st_ino), is_block.then_some(file.st_rdev));
        self.used.iter().any(|used| used.overlaps(found))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_overlaps_with_its_devices_and_partitions_not_with_one_another() {
        let of = |file: Option<u64>, device| Identity { file: file.map(|ino| (1, ino)), device };
        let image = of(Some(7), None);
        let (first, second) = (of(Some(7), Some((70, None))), of(Some(7), Some((71, None))));
        let parts = [of(Some(7), Some((701, Some(70)))), of(Some(7), Some((702, Some(70))))];
        let (disk, part) = (of(None, Some((80, None))), of(None, Some((801, Some(80)))));
        let other = of(Some(8), Some((90, None)));
        for (one, another, overlap) in [
            (image, image, true),
            (image, first, true),
            (image, parts[0], true),
            (first, second, true),
            (first, parts[0], true),
            (second, parts[0], true),
            (parts[0], parts[0], true),
            (parts[0], parts[1], false),
            (disk, part, true),
            (disk, disk, true),
            (disk, of(None, Some((81, None))), false),
            (image, other, false),
            (first, other, false),
            (image, disk, false),
        ] {
            assert_eq!((one.overlaps(another), another.overlaps(one)), (overlap, overlap), "{one:?} {another:?}");
        }
    }
}

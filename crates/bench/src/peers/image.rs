//! The image file of a volume.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;

use crate::cleanup;
use crate::failure::{Failure, Result};

const PIECE: u64 = 1 << 20;

/// An image file. A sparse one is new for each volume, and removed when it is dropped; one with
/// written blocks stays for the next volume.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    size: u64,
    written: bool,
}

impl Image {
    /// Makes an image of `size` bytes in `yard` for the device with this number, either sparse or
    /// with written blocks.
    pub fn new(yard: &Path, number: usize, size: u64, written: bool) -> Result<Self> {
        let image = Self { path: yard.join(format!("image{number}")), size, written };
        if written {
            let file = File::options().write(true).create(true).truncate(false).open(&image.path)?;
            file.set_len(size)?;
            image.fill()?;
        } else {
            let made = File::create(&image.path).and_then(|file| file.set_len(size));
            made.map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::FBIG) => Failure::new(format!("{}: no file has {} GiB there", yard.display(), size >> 30)),
                _ => error.into(),
            })?;
        }
        Ok(image)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes zeros into all holes, if the image's blocks have to be written before, since mkfs may
    /// have discarded some. Nothing of it stays in the page cache.
    pub fn fill(&self) -> Result<()> {
        if !self.written {
            return Ok(());
        }
        let file = File::options().write(true).open(&self.path)?;
        let zeros = vec![0; PIECE as usize];
        for (mut at, end) in self.holes()? {
            while at < end {
                cleanup::check()?;
                let now = (end - at).min(PIECE);
                file.write_all_at(&zeros[..now as usize], at)?;
                at += now;
            }
        }
        self.forget_cached()
    }

    /// Returns the ranges for which the file system below has to allocate something when they are
    /// written, including blocks that are allocated but unwritten.
    fn holes(&self) -> Result<Vec<(u64, u64)>> {
        let file = File::open(&self.path)?;
        file.sync_all()?;
        let mut holes = Vec::new();
        let mut at = 0;
        while at < self.size {
            let begin = seek(&file, SeekFrom::Hole(at))?.min(self.size);
            let end = match seek(&file, SeekFrom::Data(begin)) {
                Ok(end) => end,
                Err(Errno::NXIO) => self.size,
                Err(error) => return Err(error.into()),
            };
            if begin < end {
                holes.push((begin, end));
            }
            at = end;
        }
        Ok(holes)
    }

    /// Describes the image's blocks in words.
    pub fn blocks(&self) -> String {
        if !self.written {
            return "sparse: allocated as they are written".into();
        }
        match self.holes().map(|holes| holes.iter().map(|(begin, end)| end - begin).sum::<u64>()) {
            Ok(0) => "written before".into(),
            Ok(bytes) => format!("written before, but for {} MiB that were discarded", bytes.div_ceil(1 << 20)),
            Err(_) => "unknown".into(),
        }
    }

    /// Removes the image from the page cache of the file system below.
    pub fn forget_cached(&self) -> Result<()> {
        let image = File::open(&self.path)?;
        image.sync_all()?;
        Ok(fadvise(&image, 0, None, Advice::DontNeed)?)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if !self.written {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    #[test]
    fn written_images_stay_and_get_their_blocks_again() {
        let dir = tempfile::tempdir().unwrap();
        let image = Image::new(dir.path(), 1, 3 << 20, true).unwrap();
        assert_eq!(image.blocks(), "written before");
        let path = image.path().to_owned();
        drop(image);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"here", 5 << 19).unwrap();
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 2 << 20).unwrap();
        let image = Image { path, size: 3 << 20, written: true };
        assert_eq!(image.blocks(), "written before, but for 2 MiB that were discarded");
        let image = Image::new(dir.path(), 1, 4 << 20, true).unwrap();
        assert_eq!(image.blocks(), "written before");
        let bytes = std::fs::read(image.path()).unwrap();
        assert_eq!((bytes.len(), &bytes[5 << 19..][..4]), (4 << 20, &b"here"[..]));
    }

    #[test]
    fn sparse_images_are_new_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let image = Image::new(dir.path(), 1, 1 << 20, false).unwrap();
        std::fs::write(image.path(), "old").unwrap();
        let path = image.path().to_owned();
        drop(image);
        assert!(!path.exists());
        let image = Image::new(dir.path(), 1, 1 << 20, false).unwrap();
        assert_eq!(image.holes().unwrap(), [(0, 1 << 20)]);
    }
}

//! Removes a file, or a directory with all that is in it.

use std::path::Path;
use std::sync::Arc;

use ubtrfs::format::items::FileType;
use ubtrfs::{Filesystem, InodeId};

use crate::error::Result;
use crate::inside::{VolumeFile, VolumeFiles, lookup};
use crate::source::{Child, Source};

/// A directory that is being removed.
struct Frame {
    dir: VolumeFile,
    name: Vec<u8>,
    left: Vec<Child<VolumeFile>>,
}

/// Removes the file or directory of this name, if there is one. `path` is its path, for messages.
pub fn remove(fs: &Arc<Filesystem>, dir: InodeId, name: &[u8], path: &Path) -> Result<()> {
    let source = VolumeFiles::new(fs);
    let mut frames: Vec<Frame> = Vec::new();
    let mut next = Some((name.to_vec(), VolumeFile::new(dir, path)));
    loop {
        let above = frames.last().map_or(dir, |frame| frame.dir.id);
        if let Some((name, file)) = next.take() {
            match lookup(fs, above, &name).map_err(|error| file.failed(error))? {
                Some((id, FileType::Directory)) => {
                    let dir = VolumeFile { id, ..file };
                    let left = source.children(&dir)?;
                    frames.push(Frame { dir, name, left });
                }
                Some(_) => fs.directories().unlink(above, &name).map_err(|error| file.failed(error))?,
                None => {}
            }
        }
        let Some(frame) = frames.last_mut() else { return Ok(()) };
        next = frame.left.pop();
        if next.is_none()
            && let Some(done) = frames.pop()
        {
            let above = frames.last().map_or(dir, |frame| frame.dir.id);
            fs.directories().rmdir(above, &done.name).map_err(|error| done.dir.failed(error))?;
        }
    }
}

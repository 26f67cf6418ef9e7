//! Writes the content of a file.

use ubtrfs::{Filesystem, InodeId, WriteAt};

/// A file that gets its content. It has its size already, but no data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) id: InodeId,
    pub(crate) size: u64,
}

/// Writes all of `data`. Set-id bits and capabilities stay.
pub(crate) fn write_all(fs: &Filesystem, id: InodeId, mut at: u64, mut data: &[u8]) -> ubtrfs::Result<()> {
    while !data.is_empty() {
        let written = fs.files().write(id, WriteAt::Offset(at), &data[..data.len().min(1 << 20)], false)?;
        at += written as u64;
        data = &data[written..];
    }
    Ok(())
}

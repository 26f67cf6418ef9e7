//! What an archive has, before it is read into a volume.

use std::io::Read;

use crate::archive::ArchiveReader;
use crate::decompress::{decompressed, is_compressed};
use crate::error::{Result, outside};

/// A sector of most volumes, of which each file has whole ones.
const SECTOR: u64 = 4096;

/// What an archive has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of data in whole sectors, without holes.
    pub bytes: u64,
    /// The number of entries.
    pub entries: u64,
}

/// Reads a compressed archive to its end. `None`: it is not compressed, so its length tells how
/// much is in it.
pub fn measure_compressed(mut archive: impl Read) -> Result<Option<Measured>> {
    let mut first = Vec::new();
    (&mut archive).take(SECTOR).read_to_end(&mut first).map_err(outside("the archive"))?;
    if !is_compressed(&first) {
        return Ok(None);
    }
    let mut reader = ArchiveReader::new(decompressed(first.chain(archive))?);
    let mut measured = Measured::default();
    while let Some(of) = reader.next()? {
        measured.entries += 1;
        for (_, len) in &of.ranges {
            measured.bytes = measured.bytes.saturating_add(len.saturating_add(SECTOR - 1) / SECTOR * SECTOR);
        }
    }
    reader.finish()?;
    Ok(Some(measured))
}

/// An error if what begins here is no archive.
pub fn check_beginning(archive: impl Read) -> Result<()> {
    ArchiveReader::new(decompressed(archive)?).next().map(drop)
}

//! Measures an archive before it is imported into a volume.

use std::io::Read;

use crate::archive::ArchiveReader;
use crate::decompress::{decompressed, is_compressed};
use crate::error::{Result, outside};

/// The sector size of most volumes in bytes. Each file takes whole sectors.
const SECTOR: u64 = 4096;

/// The size of an archive's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of data in whole sectors, without holes.
    pub bytes: u64,
    /// The number of entries.
    pub entries: u64,
}

/// Reads a compressed archive to its end. Returns `None` if it is not compressed, since then its
/// length says how much is in it.
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

/// Returns an error if no archive begins here.
pub fn check_beginning(archive: impl Read) -> Result<()> {
    ArchiveReader::new(decompressed(archive)?).next().map(drop)
}

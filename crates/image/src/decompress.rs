//! Decompresses archives while they are read. Their first bytes say how they are compressed.

use std::io::{self, BufReader, Read};

use crate::error::{Result, outside};

/// How many bytes are read at once.
const PIECE: usize = 1 << 20;
/// The most memory that xz may ask for, in KiB. `xz -9` needs less.
const XZ_MEMORY: u32 = 256 << 10;
/// The largest window of zstd, as a power of two, which `zstd --ultra -22` needs.
const ZSTD_WINDOW: u32 = 27;

/// The first bytes of each compressed format.
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const XZ: &[u8] = b"\xfd7zXZ\0";
const BZIP2: &[u8] = b"BZh";

/// Returns whether an archive that begins with these bytes is compressed.
pub fn is_compressed(first: &[u8]) -> bool {
    [GZIP, ZSTD, XZ, BZIP2].iter().any(|magic| first.starts_with(magic))
}

/// Returns a reader of an archive that decompresses it, if it is compressed.
pub fn decompressed<'a>(mut archive: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    let mut first = Vec::new();
    (&mut archive).take(XZ.len() as u64).read_to_end(&mut first).map_err(outside("the archive"))?;
    let is = |magic: &[u8]| first.starts_with(magic);
    let (is_gzip, is_zstd, is_xz, is_bzip2) = (is(GZIP), is(ZSTD), is(XZ), is(BZIP2));
    let archive = io::Cursor::new(first).chain(BufReader::with_capacity(PIECE, archive));
    let reader: Box<dyn Read + 'a> = if is_gzip {
        Box::new(flate2::bufread::MultiGzDecoder::new(archive))
    } else if is_zstd {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(archive).map_err(outside("the archive"))?;
        decoder.window_log_max(ZSTD_WINDOW).map_err(outside("the archive"))?;
        Box::new(decoder)
    } else if is_xz {
        Box::new(lzma_rust2::XzReader::new_mem_limit(archive, true, XZ_MEMORY))
    } else if is_bzip2 {
        Box::new(bzip2::bufread::MultiBzDecoder::new(archive))
    } else {
        return Ok(Box::new(archive));
    };
    Ok(Box::new(BufReader::with_capacity(PIECE, reader)))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Compresses bytes by a program, if it is installed.
    fn by(program: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut child = Command::new(program).arg("-c").arg(file.path()).stdout(Stdio::piped()).spawn().ok()?;
        let mut packed = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut packed).unwrap();
        assert!(child.wait().unwrap().success(), "{program}");
        Some(packed)
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        decompressed(bytes).unwrap().read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn what_is_packed_reads_as_what_it_was() {
        let content: Vec<u8> = (0..3_000_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        for program in ["gzip", "zstd", "xz", "bzip2"] {
            let Some(packed) = by(program, &content) else { continue };
            assert!(read(&packed).unwrap() == content, "{program}");
            let twice = [&packed[..], &packed].concat();
            assert!(read(&twice).unwrap().len() == 2 * content.len(), "{program}, two of them");
            assert!(read(&packed[..packed.len() / 2]).is_err(), "{program}, cut");
        }
        for plain in [&b""[..], b"B", b"\x1f", b"plain"] {
            assert_eq!(read(plain).unwrap(), plain);
        }
    }
}

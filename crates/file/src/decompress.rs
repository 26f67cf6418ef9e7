//! Unpacking compressed extents.
//!
//! Memory is bounded by the caller's buffer for the result, plus the decoder's window. The bytes
//! come from a device, so any input must give a result or an error.

use flate2::{FlushDecompress, Status};
use ubtrfs_format::items::Compression;
use zstd::stream::raw::{DParameter, Decoder, Operation};

use crate::error::UnpackProblem;

/// The largest window of zstd frames, as a logarithm: 2^17 bytes, the most content of a packed
/// extent.
pub(crate) const ZSTD_WINDOW_LOG: u32 = 17;
/// The size in bytes of the length before an LZO stream, and of that before each segment in it.
pub(crate) const LZO_LENGTH: usize = 4;

type Result<T> = std::result::Result<T, UnpackProblem>;

/// Decompresses `packed` into `out`, whose length is the extent's uncompressed length. Padding may
/// follow `packed`. If the stream ends before `out` does, the rest is zero. Content beyond `out` is
/// ignored.
pub(crate) fn unpack(compression: Compression, packed: &[u8], out: &mut [u8], sector_size: usize) -> Result<()> {
    let unpacked = match compression {
        Compression::None => {
            let len = packed.len().min(out.len());
            out[..len].copy_from_slice(&packed[..len]);
            len
        }
        Compression::Zlib => unpack_zlib(packed, out)?,
        Compression::Zstd => unpack_zstd(packed, out)?,
        Compression::Lzo => unpack_lzo(packed, out, sector_size)?,
    };
    if let Some(rest) = out.get_mut(unpacked..) {
        rest.fill(0);
    }
    Ok(())
}

fn unpack_zlib(packed: &[u8], out: &mut [u8]) -> Result<usize> {
    let mut decoder = flate2::Decompress::new(true);
    loop {
        let (read, written) = (decoder.total_in() as usize, decoder.total_out() as usize);
        let (Some(input), Some(output)) = (packed.get(read..), out.get_mut(written..)) else {
            return Err(UnpackProblem::Malformed("zlib"));
        };
        if output.is_empty() {
            return Ok(written);
        }
        let status =
            decoder.decompress(input, output, FlushDecompress::Finish).map_err(|_| UnpackProblem::Malformed("zlib"))?;
        let stuck = (decoder.total_in() as usize, decoder.total_out() as usize) == (read, written);
        match status {
            Status::StreamEnd => return Ok(decoder.total_out() as usize),
            Status::Ok | Status::BufError if stuck => return Err(UnpackProblem::CutShort("zlib")),
            Status::Ok | Status::BufError => {}
        }
    }
}

fn unpack_zstd(packed: &[u8], out: &mut [u8]) -> Result<usize> {
    let malformed = |_| UnpackProblem::Malformed("zstd");
    let mut decoder = Decoder::new().map_err(malformed)?;
    decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG)).map_err(malformed)?;
    let (mut read, mut written) = (0, 0);
    loop {
        let (Some(input), Some(output)) = (packed.get(read..), out.get_mut(written..)) else {
            return Err(UnpackProblem::Malformed("zstd"));
        };
        if output.is_empty() {
            return Ok(written);
        }
        let status = decoder.run_on_buffers(input, output).map_err(malformed)?;
        read += status.bytes_read;
        written += status.bytes_written;
        if status.remaining == 0 {
            return Ok(written);
        }
        if status.bytes_read == 0 && status.bytes_written == 0 {
            return Err(UnpackProblem::CutShort("zstd"));
        }
    }
}

/// Unpacks a stream of LZO. It is the length of the stream, then segments: each is a length and an
/// LZO1X stream of at most a sector of content. A segment's length never crosses a sector boundary
/// (counted from the start of the stream): if the rest of a sector is too short for it, it is
/// skipped.
fn unpack_lzo(packed: &[u8], out: &mut [u8], sector_size: usize) -> Result<usize> {
    let total = lzo_length(packed, 0)?;
    let packed = packed.get(..total).ok_or(UnpackProblem::CutShort("LZO"))?;
    let mut last = Vec::new();
    let (mut read, mut written) = (LZO_LENGTH, 0);
    while written < out.len() && read < packed.len() {
        let left_in_sector = sector_size - read % sector_size;
        if left_in_sector < LZO_LENGTH {
            read += left_in_sector;
            continue;
        }
        let len = lzo_length(packed, read)?;
        read += LZO_LENGTH;
        let segment = read.checked_add(len).and_then(|end| packed.get(read..end)).ok_or(UnpackProblem::LzoFrame)?;
        read += len;
        let room = &mut out[written..];
        written += if room.len() >= sector_size {
            unpack_segment(segment, &mut room[..sector_size])?
        } else {
            // The last segment may have more content than was requested.
            last.resize(sector_size, 0);
            let len = unpack_segment(segment, &mut last)?.min(room.len());
            room[..len].copy_from_slice(&last[..len]);
            len
        };
    }
    Ok(written)
}

fn lzo_length(packed: &[u8], at: usize) -> Result<usize> {
    let bytes = packed.get(at..).and_then(<[u8]>::first_chunk::<LZO_LENGTH>).ok_or(UnpackProblem::CutShort("LZO"))?;
    Ok(u32::from_le_bytes(*bytes) as usize)
}

/// Decompresses one LZO1X stream. Refuses an empty one, since it would make no progress.
fn unpack_segment(segment: &[u8], out: &mut [u8]) -> Result<usize> {
    match lzokay::decompress::decompress(segment, out) {
        Ok(len) if len > 0 => Ok(len),
        _ => Err(UnpackProblem::Malformed("LZO")),
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use std::io::Write;

    /// Packs as the kernel does, with a window that suits an extent.
    pub(crate) fn zstd(content: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(super::ZSTD_WINDOW_LOG).unwrap();
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::test_support::zstd;
    use super::*;

    const SECTOR: usize = 4096;

    fn zlib(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn lzo(content: &[u8]) -> Vec<u8> {
        let mut packed = vec![0; LZO_LENGTH];
        for part in content.chunks(SECTOR) {
            let left = SECTOR - packed.len() % SECTOR;
            if left < LZO_LENGTH {
                packed.resize(packed.len() + left, 0);
            }
            let segment = lzokay::compress::compress(part).unwrap();
            packed.extend_from_slice(&(segment.len() as u32).to_le_bytes());
            packed.extend_from_slice(&segment);
        }
        let total = packed.len() as u32;
        packed[..LZO_LENGTH].copy_from_slice(&total.to_le_bytes());
        packed
    }

    type Packer = fn(&[u8]) -> Vec<u8>;
    const ALL: [(Compression, Packer); 3] =
        [(Compression::Zlib, zlib), (Compression::Zstd, zstd), (Compression::Lzo, lzo)];

    /// Returns content that is compressible only in parts, so that LZO segments take all sorts of
    /// lengths.
    pub(crate) fn content(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..len)
            .map(|index| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if (index / 700) % 3 == 0 { state as u8 } else { (index / 50) as u8 }
            })
            .collect()
    }

    #[test]
    fn an_early_end_is_padded_with_zeroes_and_a_late_one_cut() {
        let text = content(5000, 1);
        for (compression, pack) in ALL {
            let mut packed = pack(&text);
            packed.resize(packed.len().next_multiple_of(SECTOR), 0);
            let mut out = vec![0xEE; 8192];
            unpack(compression, &packed, &mut out, SECTOR).unwrap();
            assert!(out[..5000] == text[..] && out[5000..].iter().all(|&byte| byte == 0), "{compression:?}");
            let mut out = vec![0xEE; 4500];
            unpack(compression, &packed, &mut out, SECTOR).unwrap();
            assert!(out == text[..4500], "{compression:?}");
        }
    }

    #[test]
    fn truncated_streams_are_errors() {
        let text = content(40_000, 2);
        for (compression, pack) in ALL {
            let packed = pack(&text);
            let mut out = vec![0; text.len()];
            let truncated = &packed[..packed.len() / 2];
            assert!(unpack(compression, truncated, &mut out, SECTOR).is_err(), "{compression:?}");
            assert!(unpack(compression, &[], &mut out, SECTOR).is_err(), "{compression:?}");
        }
    }

    #[test]
    fn an_lzo_length_never_crosses_the_bound_of_a_sector() {
        let noise = content(2 * SECTOR, 3);
        let mut lefts = std::collections::BTreeSet::new();
        for packable in 0..600 {
            // The more of the first sector packs well, the earlier its segment ends.
            let mut text = noise.clone();
            text[SECTOR - packable..SECTOR].fill(0);
            text.iter_mut().take(SECTOR - packable).enumerate().for_each(|(at, byte)| *byte ^= (at * at / 7) as u8);
            let first = lzo(&text[..SECTOR]).len() % SECTOR;
            lefts.insert(SECTOR - first);
            let mut out = vec![0xEE; text.len()];
            unpack(Compression::Lzo, &lzo(&text), &mut out, SECTOR).unwrap();
            assert!(out == text, "{} bytes left in the sector", SECTOR - first);
        }
        assert!((1..=5).all(|left| lefts.contains(&left)), "{lefts:?}");
    }

    #[test]
    fn a_zstd_window_beyond_an_extent_is_refused() {
        let mut encoder = ::zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(20).unwrap();
        encoder.write_all(&vec![7; 2 << 20]).unwrap();
        let packed = encoder.finish().unwrap();
        let mut out = vec![0; 128 << 10];
        assert_eq!(unpack(Compression::Zstd, &packed, &mut out, SECTOR), Err(UnpackProblem::Malformed("zstd")));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn compressed_data_is_decompressed(len in 1_usize..131_072, seed: u64) {
            let text = content(len, seed);
            for (compression, pack) in ALL {
                let packed = pack(&text);
                let mut out = vec![0xEE; len];
                unpack(compression, &packed, &mut out, SECTOR).unwrap();
                prop_assert!(out == text, "{compression:?}");
            }
        }

        #[test]
        fn damage_gives_an_error_or_other_bytes(len in 1_usize..20_000, seed: u64, hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let text = content(len, seed);
            for (compression, pack) in ALL {
                let mut packed = pack(&text);
                for (place, byte) in &hits {
                    let at = place.index(packed.len());
                    packed[at] = *byte;
                }
                let mut out = vec![0; len];
                let _ = unpack(compression, &packed, &mut out, SECTOR);
            }
        }

        #[test]
        fn garbage_is_survived(packed in prop::collection::vec(any::<u8>(), 0..5000), len in 0_usize..9000) {
            for (compression, _) in ALL {
                let mut out = vec![0; len];
                let _ = unpack(compression, &packed, &mut out, SECTOR);
            }
        }
    }
}

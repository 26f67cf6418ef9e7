//! Packing content for compressed extents, as the kernel's btrfs reads it: zlib and zstd make one
//! stream of all content, LZO a segment for each sector.
//!
//! A [`Packer`] keeps its contexts for the next piece, since creating one takes as long as packing
//! a small piece.

use flate2::{FlushCompress, Status};
use ubtrfs_format::items::Compression;
use zstd::stream::raw::CParameter;

use crate::compression_mode::nearest_level;
use crate::decompress::{LZO_LENGTH, ZSTD_WINDOW_LOG};
use crate::lzo;
use crate::piece::MAX_PACKED;

/// An algorithm and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionMethod {
    /// The algorithm.
    pub algorithm: Compression,
    level: i32,
}

impl CompressionMethod {
    /// Uses the nearest level that the algorithm has; 0 stands for its default.
    pub fn new(algorithm: Compression, level: i32) -> Self {
        Self { algorithm, level: nearest_level(algorithm, level) }
    }
}

/// Packs pieces of content, one after the other.
pub struct Packer {
    sector_size: usize,
    packed: Vec<u8>,
    zlib: Option<(i32, flate2::Compress)>,
    zstd: Option<(i32, zstd::bulk::Compressor<'static>)>,
    lzo: Option<lzo::Table>,
}

impl Packer {
    /// For a volume of this sector size.
    pub fn new(sector_size: usize) -> Self {
        Self { sector_size, packed: vec![0; MAX_PACKED as usize], zlib: None, zstd: None, lzo: None }
    }

    /// Packs `content` into at most `most` bytes. Returns `None` if it takes more, or if packing
    /// fails.
    pub fn pack(&mut self, method: CompressionMethod, content: &[u8], most: usize) -> Option<&[u8]> {
        let most = most.min(self.packed.len());
        let len = match method.algorithm {
            Compression::None => None,
            Compression::Zlib => self.zlib(method.level, content, most),
            Compression::Zstd => self.zstd(method.level, content, most),
            Compression::Lzo => self.lzo(content, most),
        }?;
        Some(&self.packed[..len])
    }

    fn zlib(&mut self, level: i32, content: &[u8], most: usize) -> Option<usize> {
        // An encoder that did not end its stream is not used again: zlib-rs would begin the next
        // stream in the middle.
        let kept = self.zlib.take().filter(|(of, _)| *of == level);
        let new = || flate2::Compress::new(flate2::Compression::new(level as u32), true);
        let mut encoder = kept.map_or_else(new, |(_, encoder)| encoder);
        loop {
            let (read, written) = (encoder.total_in() as usize, encoder.total_out() as usize);
            let room = self.packed.get_mut(written..most).filter(|room| !room.is_empty())?;
            match encoder.compress(&content[read..], room, FlushCompress::Finish).ok()? {
                Status::StreamEnd => {
                    let packed = encoder.total_out() as usize;
                    encoder.reset();
                    self.zlib = Some((level, encoder));
                    return Some(packed);
                }
                Status::Ok | Status::BufError => {
                    if (encoder.total_in() as usize, encoder.total_out() as usize) == (read, written) {
                        return None;
                    }
                }
            }
        }
    }

    fn zstd(&mut self, level: i32, content: &[u8], most: usize) -> Option<usize> {
        self.zstd.take_if(|(of, _)| *of != level);
        if self.zstd.is_none() {
            let mut encoder = zstd::bulk::Compressor::new(level).ok()?;
            // No reader has a larger window than the most content of an extent.
            encoder.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG)).ok()?;
            self.zstd = Some((level, encoder));
        }
        let (_, encoder) = self.zstd.as_mut()?;
        encoder.compress_to_buffer(content, &mut self.packed[..most]).ok()
    }

    /// Packs by LZO. [`crate::decompress::unpack`] describes the stream.
    fn lzo(&mut self, content: &[u8], most: usize) -> Option<usize> {
        let table = self.lzo.get_or_insert_with(lzo::Table::new);
        let mut at = LZO_LENGTH;
        for part in content.chunks(self.sector_size) {
            let left = self.sector_size - at % self.sector_size;
            if left < LZO_LENGTH {
                self.packed.get_mut(at..at + left)?.fill(0);
                at += left;
            }
            let (length, rest) = self.packed.get_mut(at..most)?.split_first_chunk_mut::<LZO_LENGTH>()?;
            let len = lzo::compress(part, rest, table)?;
            *length = (len as u32).to_le_bytes();
            at += LZO_LENGTH + len;
        }
        self.packed[..LZO_LENGTH].copy_from_slice(&(at as u32).to_le_bytes());
        Some(at)
    }
}

/// Bytes of a sample, and how far apart samples are.
const SAMPLE: usize = 16;
const STRIDE: usize = 256;
/// Content of at most this many bytes is packed without sampling it.
const LITTLE: usize = 4096;

/// Returns whether samples of content suggest that it can be packed: some byte values are more
/// frequent than others, or samples occur more than once. This takes a hundredth of the time of a
/// failed attempt.
pub fn seems_compressible(content: &[u8]) -> bool {
    if content.len() <= LITTLE {
        return true;
    }
    let mut counts = [0_u32; 256];
    let mut words = Vec::with_capacity(content.len() / STRIDE + 1);
    for sample in content.chunks(STRIDE).filter_map(|part| part.first_chunk::<SAMPLE>()) {
        for byte in sample {
            counts[usize::from(*byte)] += 1;
        }
        words.push(u128::from_le_bytes(*sample));
    }
    let samples = words.len() as u64;
    let bytes = samples * SAMPLE as u64;
    // The number of equal pairs of bytes: one in 256 if all values are equally frequent.
    let equal: u64 = counts.iter().map(|count| u64::from(*count) * u64::from(count.saturating_sub(1))).sum();
    if equal * 256 * 10 > bytes * (bytes - 1) * 12 {
        return true;
    }
    words.sort_unstable();
    let repeated = words.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    repeated * 16 >= samples
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decompress::tests::content;
    use crate::decompress::unpack;

    const SECTOR: usize = 4096;
    /// The most content of an extent.
    const MAX_CONTENT: usize = MAX_PACKED as usize;

    fn noise(len: usize) -> Vec<u8> {
        ubtrfs_random::Rng::new(7).noise(len)
    }

    fn methods() -> Vec<CompressionMethod> {
        let zlib = (1..=9).map(|level| CompressionMethod::new(Compression::Zlib, level));
        let zstd = (-15..=15).map(|level| CompressionMethod::new(Compression::Zstd, level));
        zlib.chain(zstd).chain([CompressionMethod::new(Compression::Lzo, 0)]).collect()
    }

    #[test]
    fn levels_are_those_that_the_algorithms_have() {
        for (algorithm, level, nearest) in [
            (Compression::Zlib, 0, 3),
            (Compression::Zlib, -4, 1),
            (Compression::Zlib, 22, 9),
            (Compression::Zstd, 0, 3),
            (Compression::Zstd, -99, -15),
            (Compression::Zstd, 99, 15),
            (Compression::Lzo, 7, 0),
        ] {
            assert_eq!(CompressionMethod::new(algorithm, level).level, nearest, "{algorithm:?}:{level}");
        }
    }

    #[test]
    fn noise_is_not_packed_by_any_method_and_leaves_the_packer_usable() {
        let mut packer = Packer::new(SECTOR);
        let (noise, text) = (noise(MAX_CONTENT), content(MAX_CONTENT, 5));
        for method in methods() {
            assert_eq!(packer.pack(method, &noise, MAX_CONTENT - SECTOR), None, "{method:?}");
            let packed = packer.pack(method, &text, MAX_CONTENT - SECTOR).unwrap_or_else(|| panic!("{method:?}"));
            let mut out = vec![0xEE; text.len()];
            unpack(method.algorithm, packed, &mut out, SECTOR).unwrap();
            assert!(out == text, "{method:?}");
        }
    }

    #[test]
    fn samples_tell_text_from_noise() {
        let text: Vec<u8> =
            b"all work and no play makes jack a dull boy. ".iter().copied().cycle().take(70_000).collect();
        let repeated: Vec<u8> = noise(SECTOR).into_iter().cycle().take(MAX_CONTENT).collect();
        let digits: Vec<u8> = noise(MAX_CONTENT).iter().map(|byte| b'0' + byte % 10).collect();
        for packable in [text, repeated, digits, vec![0; MAX_CONTENT], noise(100)] {
            assert!(seems_compressible(&packable), "{:?}", &packable[..16]);
        }
        for len in [8192, 12_345, MAX_CONTENT] {
            assert!(!seems_compressible(&noise(len)), "{len}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn packed_content_unpacks_at_every_level(len in 1_usize..=MAX_CONTENT, seed: u64) {
            let text = content(len, seed);
            let mut packer = Packer::new(SECTOR);
            for method in methods() {
                let Some(packed) = packer.pack(method, &text, len + 1000) else { continue };
                let mut out = vec![0xEE; len];
                unpack(method.algorithm, packed, &mut out, SECTOR).unwrap();
                prop_assert!(out == text, "{method:?}");
            }
        }
    }
}

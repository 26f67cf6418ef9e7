//! An encoder for LZO1X, by the description of the stream in Linux's
//! `Documentation/staging/lzo.rst`. The decoder is that of a library, whose encoder clears tables
//! of 200 KiB for each segment and takes several times as long.
//!
//! Matches are found by one table with the last place of each hash. Of the stream's instructions
//! three are used: literals, matches of up to 8 bytes within 2 KiB, and others within 16 KiB.

const HASH_BITS: u32 = 12;
/// The least length of a match in bytes.
const MIN_MATCH: usize = 4;
/// The largest distance of a match, and that of one that takes two bytes.
const FAR: usize = 16 << 10;
const NEAR: usize = 2 << 10;
/// The longest match that takes two bytes.
const SHORT: usize = 8;
/// The longest match whose length is in its first byte.
const MEDIUM: usize = 33;

/// The last place of each hash in a segment, counted from 1; 0 if there is none.
pub(crate) struct Table(Box<[u16; 1 << HASH_BITS]>);

impl Table {
    pub(crate) fn new() -> Self {
        Self(Box::new([0; 1 << HASH_BITS]))
    }
}

/// The instructions so far, in a buffer that may become full.
struct Stream<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Stream<'_> {
    fn push(&mut self, byte: usize) -> Option<()> {
        *self.out.get_mut(self.len)? = byte as u8;
        self.len += 1;
        Some(())
    }

    /// Pushes the rest of a length for which its instruction has no room.
    fn push_length(&mut self, mut rest: usize) -> Option<()> {
        while rest > 255 {
            self.push(0)?;
            rest -= 255;
        }
        self.push(rest)
    }

    fn literals(&mut self, literals: &[u8]) -> Option<()> {
        match literals.len() {
            0 => return Some(()),
            len if self.len == 0 && len <= 238 => self.push(17 + len)?,
            // These are encoded with the match before them, in the second last byte of either kind.
            len @ 1..=3 => *self.out.get_mut(self.len.checked_sub(2)?)? |= len as u8,
            len @ 4..=18 => self.push(len - 3)?,
            len => {
                self.push(0)?;
                self.push_length(len - 18)?;
            }
        }
        let end = self.len + literals.len();
        self.out.get_mut(self.len..end)?.copy_from_slice(literals);
        self.len = end;
        Some(())
    }

    fn matched(&mut self, distance: usize, len: usize) -> Option<()> {
        let back = distance - 1;
        if len <= SHORT && distance <= NEAR {
            self.push(((len - 1) << 5) | ((back & 7) << 2))?;
            return self.push(back >> 3);
        }
        if len <= MEDIUM {
            self.push(32 | (len - 2))?;
        } else {
            self.push(32)?;
            self.push_length(len - MEDIUM)?;
        }
        self.push((back << 2) & 0xFF)?;
        self.push(back >> 6)
    }
}

fn word(content: &[u8], at: usize) -> Option<u32> {
    content.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Returns how many bytes are equal from these two places on, the second of which is later.
fn equal(content: &[u8], one: usize, other: usize) -> usize {
    const STEP: usize = 8;
    let (earlier, later) = (&content[one..], &content[other..]);
    let mut len = 0;
    while let (Some(a), Some(b)) = (earlier[len..].first_chunk::<STEP>(), later[len..].first_chunk::<STEP>()) {
        let differs = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differs != 0 {
            return len + differs.trailing_zeros() as usize / 8;
        }
        len += STEP;
    }
    len + earlier[len..].iter().zip(&later[len..]).take_while(|(a, b)| a == b).count()
}

/// Packs a segment of at most 64 KiB into `out`. Returns `None` if it is longer, or takes more
/// room.
pub(crate) fn compress(content: &[u8], out: &mut [u8], table: &mut Table) -> Option<usize> {
    if content.len() > usize::from(u16::MAX) + 1 {
        return None;
    }
    table.0.fill(0);
    let mut stream = Stream { out, len: 0 };
    let (mut at, mut literals) = (0, 0);
    while let Some(sequence) = word(content, at) {
        let hash = (sequence.wrapping_mul(0x9E37_79B1) >> (32 - HASH_BITS)) as usize;
        let before = usize::from(std::mem::replace(&mut table.0[hash], (at + 1) as u16));
        let found =
            before.checked_sub(1).filter(|before| at - before <= FAR && word(content, *before) == Some(sequence));
        let Some(before) = found else {
            // The longer there was no match, the fewer places are tried.
            at += 1 + ((at - literals) >> 5);
            continue;
        };
        stream.literals(&content[literals..at])?;
        let len = MIN_MATCH + equal(content, before + MIN_MATCH, at + MIN_MATCH);
        stream.matched(at - before, len)?;
        at += len;
        literals = at;
    }
    stream.literals(&content[literals..])?;
    // The end: a match without a distance.
    [0x11, 0, 0].into_iter().try_for_each(|byte| stream.push(byte))?;
    Some(stream.len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(content: &[u8]) -> usize {
        let mut packed = vec![0; content.len() + content.len() / 16 + 64];
        let len = compress(content, &mut packed, &mut Table::new()).unwrap();
        let mut out = vec![0xEE; content.len()];
        assert_eq!(lzokay::decompress::decompress(&packed[..len], &mut out), Ok(content.len()));
        assert!(out == content);
        len
    }

    #[test]
    fn lengths_and_distances_at_their_bounds_are_decoded() {
        for distance in [1, 2, 7, 8, 9, 2047, 2048, 2049, 4000, 16383, 16384, 16385] {
            for len in [4, 8, 9, 33, 34, 33 + 255, 34 + 255, 33 + 510, 3000] {
                for literals in [0, 1, 2, 3, 4, 18, 19, 238, 239, 18 + 255, 19 + 255, 700] {
                    let noise = ubtrfs_random::Rng::new(distance + len + literals).noise(distance as usize);
                    let mut content = noise.clone();
                    content.extend(noise.iter().cycle().take(len as usize));
                    content.extend(ubtrfs_random::Rng::new(literals).noise(literals as usize));
                    content.extend_from_slice(&noise[..distance.min(50) as usize]);
                    there_and_back(&content);
                }
            }
        }
        assert!(there_and_back(&[7; 4096]) < 40);
        assert!(compress(&[7; 4096], &mut [0; 5], &mut Table::new()).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_content_is_decoded(parts in prop::collection::vec((0_u8..4, 1_usize..900, any::<u8>()), 1..40)) {
            let mut content = Vec::new();
            for (kind, len, byte) in parts {
                match kind {
                    0 => content.resize(content.len() + len, byte),
                    1 => content.extend(ubtrfs_random::Rng::new(u64::from(byte)).noise(len)),
                    2 => content.extend((0..len).map(|at| (at / 3) as u8 ^ byte)),
                    _ => {
                        let from = content.len().saturating_sub(len * 3);
                        content.extend_from_within(from..(from + len).min(content.len()));
                    }
                }
            }
            if !content.is_empty() {
                there_and_back(&content);
            }
        }
    }
}

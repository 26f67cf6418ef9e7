//! The bytes of a file, in a form that copes with files of many TiB: the blocks that were written,
//! and a digest of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Files up to this size have a digest of all their bytes. Larger ones have a digest of the blocks
/// that are not all zeros.
pub const WHOLE_LIMIT: u64 = 256 << 20;

/// The block of [`Content`] and of the digest of large files.
pub const BLOCK: u64 = 4096;

/// A digest of a file's content for comparisons. It does not depend on where the holes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Digest {
    /// SHA-256 of all bytes, in hexadecimal.
    Whole(String),
    /// SHA-256 over number and bytes of each 4 KiB block that is not all zeros (the last one filled
    /// up with zeros), for files above [`WHOLE_LIMIT`].
    Blocks(String),
}

/// Computes a [`Digest`] from pieces in the order of their offsets; ranges in between are zeros.
pub struct Digester {
    hash: Sha256,
    size: u64,
    position: u64,
}

impl Digester {
    /// Begins the digest of a file of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { hash: Sha256::new(), size, position: 0 }
    }

    /// Adds `bytes` at `offset`. Offsets grow from call to call; for files above [`WHOLE_LIMIT`]
    /// they are multiples of [`BLOCK`], and so is the length except at the end of the file.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        if self.size <= WHOLE_LIMIT {
            self.skip_to(offset);
            self.hash.update(bytes);
            self.position += bytes.len() as u64;
            return;
        }
        assert!(offset.is_multiple_of(BLOCK), "a piece starts within a block");
        for (i, block) in bytes.chunks(BLOCK as usize).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                self.hash.update((offset / BLOCK + i as u64).to_le_bytes());
                self.hash.update(block);
                let zeros = [0; BLOCK as usize];
                self.hash.update(&zeros[block.len()..]);
            }
        }
    }

    fn skip_to(&mut self, offset: u64) {
        static ZEROS: [u8; 65536] = [0; 65536];
        while self.position < offset {
            let len = (offset - self.position).min(ZEROS.len() as u64);
            self.hash.update(&ZEROS[..len as usize]);
            self.position += len;
        }
    }

    /// Returns the digest.
    pub fn finish(mut self) -> Digest {
        if self.size <= WHOLE_LIMIT {
            self.skip_to(self.size);
            Digest::Whole(hex(&self.hash.finalize()))
        } else {
            Digest::Blocks(hex(&self.hash.finalize()))
        }
    }
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the bytes of a string of hexadecimal digits, or `None` if it is invalid.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}

/// The expected content of a file: its size, and the blocks that were written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK as usize]>>,
}

impl Content {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns how many bytes it takes in memory, for limits.
    pub fn held(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Writes `bytes` at `offset`, growing the file if they end beyond it.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % BLOCK) as usize;
            let (piece, later) = rest.split_at(rest.len().min(BLOCK as usize - within));
            let block = self.blocks.entry(at / BLOCK).or_insert_with(|| Box::new([0; BLOCK as usize]));
            block[within..within + piece.len()].copy_from_slice(piece);
            at += piece.len() as u64;
            rest = later;
        }
        if !bytes.is_empty() {
            self.size = self.size.max(at);
        }
    }

    /// Makes `length` bytes from `offset` zeros, as far as they are within the file.
    pub fn zero(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.size);
        if offset >= end {
            return;
        }
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        for (&number, block) in self.blocks.range_mut(first..=last) {
            let start = number * BLOCK;
            let from = offset.max(start) - start;
            let to = end.min(start + BLOCK) - start;
            block[from as usize..to as usize].fill(0);
        }
        let inner: Vec<u64> = self.blocks.range(first + 1..last.max(first + 1)).map(|(&n, _)| n).collect();
        for number in inner {
            self.blocks.remove(&number);
        }
    }

    /// Sets the size; added bytes are zeros.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let old = self.size;
            self.zero(size, old - size);
            self.blocks.split_off(&size.div_ceil(BLOCK));
        }
        self.size = size;
    }

    /// Returns up to `length` bytes from `offset`, fewer at the end of the file.
    pub fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = offset.saturating_add(length).min(self.size);
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let within = at % BLOCK;
            let len = (BLOCK - within).min(end - at);
            match self.blocks.get(&(at / BLOCK)) {
                Some(block) => {
                    out.extend_from_slice(&block[within as usize..(within + len) as usize]);
                }
                None => out.resize(out.len() + len as usize, 0),
            }
            at += len;
        }
        out
    }

    /// Returns the digest that a walk over the file must find.
    pub fn digest(&self) -> Digest {
        let mut digester = Digester::new(self.size);
        for (&number, block) in &self.blocks {
            let start = number * BLOCK;
            let len = BLOCK.min(self.size.saturating_sub(start)) as usize;
            digester.add(start, &block[..len]);
        }
        digester.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_random::Rng;

    #[test]
    fn content_does_what_a_plain_vector_does() {
        let mut rng = Rng::new(5);
        let (mut content, mut plain) = (Content::default(), Vec::new());
        for _ in 0..500 {
            let offset = rng.below(60_000);
            let length = rng.below(20_000) as usize;
            match rng.below(3) {
                0 => {
                    let bytes = rng.noise(length);
                    content.write(offset, &bytes);
                    let end = offset as usize + length;
                    if length > 0 && plain.len() < end {
                        plain.resize(end, 0);
                    }
                    if length > 0 {
                        plain[offset as usize..end].copy_from_slice(&bytes);
                    }
                }
                1 => {
                    content.truncate(offset);
                    plain.resize(offset as usize, 0);
                }
                _ => {
                    content.zero(offset, length as u64);
                    let end = (offset as usize + length).min(plain.len());
                    if (offset as usize) < end {
                        plain[offset as usize..end].fill(0);
                    }
                }
            }
            assert_eq!(content.read(0, u64::MAX), plain);
        }
        let whole = Digest::Whole(hex(&Sha256::digest(&plain)));
        assert_eq!(content.digest(), whole);
    }

    #[test]
    fn the_digest_of_a_large_file_ignores_where_its_holes_are() {
        let mut sparse = Content::default();
        sparse.truncate(8 << 40);
        let empty = sparse.digest();
        sparse.write(5 << 40, &[0; 8192]);
        assert_eq!(sparse.digest(), empty);
        sparse.write((5 << 40) + 4097, b"x");
        assert_ne!(sparse.digest(), empty);
    }

    #[test]
    fn hexadecimal_there_and_back() {
        assert_eq!(unhex(&hex(&[0, 255, 16])), Some(vec![0, 255, 16]));
        assert_eq!(unhex("0g"), None);
    }
}

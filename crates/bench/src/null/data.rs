//! The content of a file, in memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Bytes of a piece.
const PIECE: u64 = 65536;

/// Bytes of a file; pieces that were never written are holes.
#[derive(Default)]
pub struct Data {
    size: AtomicU64,
    dirty: AtomicU64,
    pieces: Mutex<Vec<Option<Box<[u8]>>>>,
}

/// Returns `length` bytes from `offset` as parts of pieces: the number of the piece, the offset in
/// it, and the number of bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let (mut at, end) = (offset, offset + length as u64);
    std::iter::from_fn(move || {
        let within = at % PIECE;
        let part = (PIECE - within).min(end - at);
        let piece = at / PIECE;
        at += part;
        (part > 0).then_some((piece as usize, within as usize, part as usize))
    })
}

impl Data {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    /// Returns the number of bytes written since the last call.
    pub fn take_dirty(&self) -> u64 {
        self.dirty.swap(0, Relaxed)
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut pieces = self.pieces.lock();
        let mut left = bytes;
        for (piece, within, length) in parts(offset, bytes.len()) {
            let (now, later) = left.split_at(length);
            left = later;
            if pieces.len() <= piece {
                pieces.resize_with(piece + 1, || None);
            }
            let piece = pieces[piece].get_or_insert_with(|| vec![0; PIECE as usize].into());
            piece[within..within + length].copy_from_slice(now);
        }
        drop(pieces);
        self.dirty.fetch_add(bytes.len() as u64, Relaxed);
        self.size.fetch_max(offset + bytes.len() as u64, Relaxed);
    }

    /// Reads from `offset`. Returns how many bytes there were.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let length = self.size().saturating_sub(offset).min(buffer.len() as u64) as usize;
        let pieces = self.pieces.lock();
        let mut left = &mut buffer[..length];
        for (piece, within, length) in parts(offset, length) {
            let (now, later) = left.split_at_mut(length);
            left = later;
            match pieces.get(piece) {
                Some(Some(piece)) => now.copy_from_slice(&piece[within..within + length]),
                _ => now.fill(0),
            }
        }
        length
    }

    /// Truncates or extends the file.
    pub fn resize(&self, size: u64) {
        let mut pieces = self.pieces.lock();
        pieces.truncate(size.div_ceil(PIECE) as usize);
        if let Some(Some(last)) = pieces.get_mut((size / PIECE) as usize) {
            last[(size % PIECE) as usize..].fill(0);
        }
        self.size.store(size, Relaxed);
    }

    /// Extends the file to `size` if it is shorter.
    pub fn extend(&self, size: u64) {
        self.size.fetch_max(size, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_data_is_read_across_pieces_and_holes() {
        let data = Data::default();
        let bytes: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
        data.write(100_000, &bytes);
        let mut back = vec![9; 400_000];
        assert_eq!(data.read(0, &mut back), 300_000);
        assert!(back[..100_000].iter().all(|byte| *byte == 0));
        assert_eq!(&back[100_000..300_000], &bytes[..]);
        assert_eq!((data.take_dirty(), data.take_dirty()), (200_000, 0));
    }

    #[test]
    fn truncated_data_is_dropped() {
        let data = Data::default();
        data.write(0, &vec![7; 70_000]);
        data.resize(66_000);
        data.resize(70_000);
        let mut back = vec![9; 70_000];
        assert_eq!(data.read(0, &mut back), 70_000);
        assert!(back[..66_000].iter().all(|byte| *byte == 7) && back[66_000..].iter().all(|byte| *byte == 0));
        assert_eq!(data.read(70_000, &mut back), 0);
    }
}

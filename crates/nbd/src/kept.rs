//! Keeps writes whose durability the server has not confirmed yet, so that they can be written
//! again when the server may have lost them.
//!
//! For each address only the last write is kept, so that writes can't be repeated in a wrong order
//! (invariant 32). A write is kept from the time it is submitted until the answer to a flush that
//! was requested after the write's own answer, or until its own answer if that makes it durable.

use std::collections::BTreeMap;

use bytes::Bytes;

/// The writes, as pieces that don't overlap.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pieces: BTreeMap<u64, Piece>,
    answered_bytes: usize,
}

#[derive(Clone, Debug)]
struct Piece {
    data: Bytes,
    /// The request that wrote it.
    cookie: u64,
    /// The number of its answer. Without an answer, the request itself is sent again.
    answered: Option<u64>,
}

impl Piece {
    fn answered_bytes(&self) -> usize {
        if self.answered.is_some() { self.data.len() } else { 0 }
    }
}

impl Kept {
    /// The bytes of answered writes, which are counted nowhere else.
    pub(crate) fn answered_bytes(&self) -> usize {
        self.answered_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Keeps a write that was submitted, in place of what was kept there.
    pub(crate) fn write(&mut self, at: u64, parts: &[Bytes], cookie: u64) {
        let mut at = at;
        for data in parts.iter().filter(|data| !data.is_empty()) {
            let end = at + data.len() as u64;
            self.forget(at, end);
            self.insert(at, Piece { data: data.clone(), cookie, answered: None });
            at = end;
        }
    }

    /// Notes that the write of `at..end` was answered, as number `answer`.
    pub(crate) fn answered(&mut self, at: u64, end: u64, cookie: u64, answer: u64) {
        for (_, piece) in self.pieces.range_mut(at..end).filter(|(_, piece)| piece.cookie == cookie) {
            if piece.answered.replace(answer).is_none() {
                self.answered_bytes += piece.data.len();
            }
        }
    }

    /// Drops the write of `at..end`, which is durable by itself, or has failed, so that the content
    /// is unknown.
    pub(crate) fn is_over(&mut self, at: u64, end: u64, cookie: u64) {
        let gone: Vec<u64> =
            self.pieces.range(at..end).filter(|(_, piece)| piece.cookie == cookie).map(|(at, _)| *at).collect();
        for at in gone {
            self.remove(at);
        }
    }

    /// Drops what is kept of `at..end`, whose content is not needed any more.
    pub(crate) fn forget(&mut self, at: u64, end: u64) {
        let before = self.pieces.range(..at).next_back().map(|(start, _)| *start);
        let inside = self.pieces.range(at..end).map(|(start, _)| *start);
        let touched: Vec<u64> = before.into_iter().chain(inside).collect();
        for start in touched {
            let Some(piece) = self.remove(start) else { continue };
            let len = piece.data.len() as u64;
            let (head, tail) = (at.saturating_sub(start).min(len), end.saturating_sub(start).min(len));
            let rest = [(start, piece.data.slice(..head as usize)), (start + tail, piece.data.slice(tail as usize..))];
            for (start, data) in rest.into_iter().filter(|(_, data)| !data.is_empty()) {
                self.insert(start, Piece { data, ..piece });
            }
        }
    }

    /// Drops all writes that were answered up to this answer, since they are durable.
    pub(crate) fn flushed(&mut self, covers: u64) {
        self.pieces.retain(|_, piece| piece.answered.is_none_or(|answered| answered > covers));
        self.answered_bytes = self.pieces.values().map(Piece::answered_bytes).sum();
    }

    /// The writes that a server must get again, by address.
    pub(crate) fn to_write_again(&self) -> Vec<(u64, Bytes)> {
        let answered = self.pieces.iter().filter(|(_, piece)| piece.answered.is_some());
        answered.map(|(at, piece)| (*at, piece.data.clone())).collect()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn insert(&mut self, at: u64, piece: Piece) {
        self.answered_bytes += piece.answered_bytes();
        let end = at + piece.data.len() as u64;
        assert!(
            self.pieces.range(..end).next_back().is_none_or(|(start, other)| start + other.data.len() as u64 <= at),
            "invariant 32: two writes are kept for one address, at {at}"
        );
        self.pieces.insert(at, piece);
    }

    fn remove(&mut self, at: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&at)?;
        self.answered_bytes -= piece.answered_bytes();
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filled(byte: u8, len: usize) -> Bytes {
        vec![byte; len].into()
    }

    #[test]
    fn a_write_leaves_when_a_flush_covers_its_answer() {
        let mut kept = Kept::default();
        kept.write(0, &[filled(1, 8), filled(2, 8)], 1);
        kept.write(16, &[filled(3, 8)], 2);
        assert!(kept.to_write_again().is_empty(), "without an answer they are sent again as requests");
        kept.answered(0, 16, 1, 1);
        kept.flushed(0);
        assert_eq!(kept.to_write_again(), [(0, filled(1, 8)), (8, filled(2, 8))]);
        kept.answered(16, 24, 2, 2);
        kept.flushed(1);
        assert_eq!(kept.to_write_again(), [(16, filled(3, 8))]);
        kept.flushed(2);
        assert!(kept.is_empty() && kept.answered_bytes() == 0);
    }

    #[test]
    fn a_flush_leaves_what_was_overwritten_meanwhile() {
        let mut kept = Kept::default();
        kept.write(0, &[filled(1, 16)], 1);
        kept.answered(0, 16, 1, 1);
        kept.write(4, &[filled(2, 4)], 2);
        kept.flushed(1);
        kept.answered(4, 8, 2, 2);
        assert_eq!(kept.to_write_again(), [(4, filled(2, 4))]);
    }

    proptest! {
        /// Invariant 32: for each address, the last write is kept.
        #[test]
        fn the_last_write_of_an_address_is_kept(
            steps in proptest::collection::vec((0_u64..60, 1_usize..20, 0_u8..4), 1..60)
        ) {
            let mut kept = Kept::default();
            let mut model: [Option<u8>; 80] = [None; 80];
            for (number, (at, len, kind)) in steps.into_iter().enumerate() {
                let (cookie, byte) = (number as u64, number as u8);
                let range = at as usize..at as usize + len;
                if kind == 0 {
                    kept.forget(at, at + len as u64);
                    model[range].fill(None);
                } else {
                    let cut = len / 2;
                    kept.write(at, &[filled(byte, cut), filled(byte, len - cut)], cookie);
                    kept.answered(at, at + len as u64, cookie, cookie);
                    model[range].fill(Some(byte));
                }
                let mut shown = [None; 80];
                for (at, data) in kept.to_write_again() {
                    for (place, byte) in shown[at as usize..].iter_mut().zip(&data) {
                        prop_assert!(place.replace(*byte).is_none());
                    }
                }
                prop_assert_eq!(shown, model);
                prop_assert_eq!(kept.answered_bytes(), model.iter().flatten().count());
            }
        }
    }
}

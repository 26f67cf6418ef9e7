//! Knows the contents that a place of the export may have after the server was away: the last
//! durable one, or one that was written since. Any other content shows that it is not the same
//! export any more: it is empty, an older copy, or was written by somebody else.
//!
//! The place is one that changes with every commit: the first superblock of a volume.

use bytes::Bytes;

/// The unit in bytes that a device writes atomically.
const SECTOR: usize = 512;
/// How many contents are remembered before a flush is needed.
const MAX: usize = 64;

/// The contents that a place may have.
#[derive(Debug)]
pub(crate) struct Witness {
    at: u64,
    len: usize,
    /// The contents in the order of the writes. The first may be durable, the last is what reads
    /// show.
    contents: Vec<Content>,
    /// Whether the place was discarded and no write since is durable, so that it may have any
    /// content.
    is_unknown: bool,
}

#[derive(Debug)]
struct Content {
    data: Bytes,
    cookie: u64,
    answered: Option<u64>,
}

impl Witness {
    /// Returns the witness of a place that durably has this content.
    pub(crate) fn new(at: u64, data: Bytes) -> Self {
        let len = data.len();
        Self { at, len, contents: vec![Content { data, cookie: 0, answered: Some(0) }], is_unknown: false }
    }

    pub(crate) fn place(&self) -> (u64, usize) {
        (self.at, self.len)
    }

    /// Returns whether so many contents were answered that a flush is needed.
    pub(crate) fn is_full(&self) -> bool {
        self.contents.iter().filter(|content| content.answered.is_some()).count() >= MAX
    }

    /// Notes that a write was submitted.
    pub(crate) fn write(&mut self, at: u64, parts: &[Bytes], cookie: u64) {
        let mut at = at;
        for part in parts {
            let end = at + part.len() as u64;
            if at <= self.at && self.at + self.len as u64 <= end {
                let start = (self.at - at) as usize;
                let data = part.slice(start..start + self.len);
                self.contents.push(Content { data, cookie, answered: None });
            } else {
                self.forget(at, end);
            }
            at = end;
        }
    }

    /// Notes that a write was answered, as number `answer`.
    pub(crate) fn answered(&mut self, cookie: u64, answer: u64) {
        for content in self.contents.iter_mut().filter(|content| content.cookie == cookie && content.answered.is_none())
        {
            content.answered = Some(answer);
        }
    }

    /// Notes that a range is discarded.
    pub(crate) fn forget(&mut self, at: u64, end: u64) {
        if at < self.at + self.len as u64 && self.at < end {
            self.is_unknown = true;
            self.contents.clear();
        }
    }

    /// Notes that a write that was answered is durable by itself.
    pub(crate) fn durable(&mut self, cookie: u64) {
        let Some(durable) = self.contents.iter().position(|content| content.cookie == cookie) else { return };
        let mut number = 0;
        self.contents.retain(|content| {
            number += 1;
            number > durable || content.answered.is_none()
        });
        self.is_unknown = false;
    }

    /// Notes that everything answered up to this answer is durable.
    pub(crate) fn flushed(&mut self, covers: u64) {
        let is_covered = |content: &Content| content.answered.is_some_and(|answered| answered <= covers);
        let Some(durable) = self.contents.iter().rposition(is_covered) else { return };
        // Writes without an answer may still come, also those that were submitted before.
        let mut number = 0;
        self.contents.retain(|content| {
            number += 1;
            number > durable || !is_covered(content)
        });
        self.is_unknown = false;
    }

    /// Returns whether the place may have this content.
    pub(crate) fn allows(&self, found: &[u8]) -> bool {
        let sectors = || found.chunks(SECTOR).zip((0..self.len).step_by(SECTOR));
        self.is_unknown
            || found.len() == self.len
                && sectors().all(|(found, at)| {
                    self.contents.iter().any(|content| content.data.get(at..at + found.len()) == Some(found))
                })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(byte: u8) -> Bytes {
        vec![byte; 4096].into()
    }

    #[test]
    fn what_was_durable_or_written_since_is_allowed() {
        let mut witness = Witness::new(4096, filled(1));
        witness.write(0, &[filled(7), filled(2), filled(7)], 5);
        assert!(witness.allows(&filled(1)) && witness.allows(&filled(2)));
        assert!(!witness.allows(&filled(0)) && !witness.allows(&filled(7)));
        witness.answered(5, 1);
        witness.write(4096, &[filled(3)], 6);
        witness.flushed(1);
        assert!(!witness.allows(&filled(1)), "an older copy");
        assert!(witness.allows(&filled(2)) && witness.allows(&filled(3)));
        witness.answered(6, 2);
        witness.flushed(2);
        assert!(witness.allows(&filled(3)) && !witness.allows(&filled(2)));
    }

    #[test]
    fn what_was_there_before_a_durable_write_is_an_older_copy() {
        let mut witness = Witness::new(0, filled(1));
        witness.write(0, &[filled(2)], 5);
        witness.write(0, &[filled(3)], 6);
        witness.write(0, &[filled(4)], 7);
        witness.answered(6, 1);
        witness.durable(6);
        assert!(!witness.allows(&filled(1)));
        // Writes without an answer may still come, whether they were submitted before or after.
        assert!([2, 3, 4].into_iter().all(|byte| witness.allows(&filled(byte))));
    }

    #[test]
    fn sectors_of_a_write_that_was_cut_are_allowed() {
        let mut witness = Witness::new(0, filled(1));
        witness.write(0, &[filled(2)], 5);
        let torn = [vec![2; 512], vec![1; 4096 - 512]].concat();
        assert!(witness.allows(&torn) && !witness.allows(&torn[..512]));
        let foreign = [vec![2; 100], vec![1; 4096 - 100]].concat();
        assert!(!witness.allows(&foreign));
    }

    #[test]
    fn a_discarded_place_may_hold_anything_until_it_is_written_and_flushed() {
        let mut witness = Witness::new(0, filled(1));
        witness.forget(0, 1 << 20);
        assert!(witness.allows(&filled(9)));
        witness.write(0, &[filled(2)], 5);
        witness.answered(5, 1);
        witness.flushed(0);
        assert!(witness.allows(&filled(9)));
        witness.flushed(1);
        assert!(!witness.allows(&filled(9)) && witness.allows(&filled(2)));
    }
}

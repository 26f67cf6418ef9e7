//! Computes how many entries a ring needs so that long requests leave room for others.
//!
//! A request holds its entry until it is answered, and a user can send many that take long: to
//! truncate large files, to defragment them, to make subvolumes. While these hold all entries, no
//! request of another user arrives (invariant 49). So a ring gets further entries then.
//!
//! The kernel delivers any request in any entry, so each entry may take the memory of a whole
//! payload, and never gives it back. So the number of further entries is limited to the number of
//! one user's long requests ([`MAX_LONG`]).

use crate::abi::opcode;

/// How many requests of one user may take long at a time.
pub const MAX_LONG: usize = 64;

/// Which entries of a ring hold requests that may take long.
pub struct Spread {
    /// How many entries are to be left for others.
    depth: u16,
    most: u16,
    /// Whether each entry, by its number, holds a request that may take long.
    lasts: Vec<bool>,
    lasting: u16,
}

impl Spread {
    /// Returns the state of a ring that is to have `depth` entries besides those that long requests
    /// hold.
    pub fn new(depth: u16) -> Self {
        Self { depth, most: depth + MAX_LONG as u16, lasts: Vec::new(), lasting: 0 }
    }

    /// Notes that the ring has so many entries now.
    pub fn has(&mut self, entries: usize) {
        self.lasts.resize(entries, false);
    }

    /// Notes that the ring can't have more entries.
    pub fn is_full(&mut self) {
        self.most = self.lasts.len() as u16;
    }

    /// Notes that a request has arrived in an entry.
    pub fn arrived(&mut self, index: u16, opcode: u32) {
        let may_last = matches!(opcode, opcode::SETATTR | opcode::FALLOCATE | opcode::IOCTL);
        if let Some(lasts) = self.lasts.get_mut(usize::from(index)).filter(|lasts| !**lasts && may_last) {
            *lasts = true;
            self.lasting += 1;
        }
    }

    /// Notes that the request in an entry is answered.
    pub fn answered(&mut self, index: u16) {
        if let Some(lasts) = self.lasts.get_mut(usize::from(index)).filter(|lasts| **lasts) {
            *lasts = false;
            self.lasting -= 1;
        }
    }

    /// How many entries are to be added.
    pub fn missing(&self) -> u16 {
        let (has, wanted) = (self.lasts.len() as u16, self.lasting.saturating_add(self.depth));
        if wanted <= has { 0 } else { (wanted - has).max(self.depth).min(self.most - has) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of invariant 49.
    #[test]
    fn what_takes_long_leaves_room_for_others() {
        let mut spread = Spread::new(8);
        spread.has(8);
        assert_eq!(spread.missing(), 0);
        let mut entries = 8;
        for index in 0..MAX_LONG as u16 {
            spread.arrived(index, opcode::SETATTR);
            entries += spread.missing();
            spread.has(entries.into());
            assert!(entries > index + 8, "invariant 49: {entries} entries, {index} of them held");
        }
        for index in 0..entries {
            spread.arrived(index, opcode::IOCTL);
        }
        assert_eq!((entries, spread.missing()), (8 + MAX_LONG as u16, 0), "each takes memory");
        for index in 0..entries {
            spread.answered(index);
        }
        assert_eq!(spread.lasting, 0);
    }

    #[test]
    fn what_takes_no_longer_than_a_device_gets_no_more_room() {
        let mut spread = Spread::new(8);
        spread.has(8);
        for index in 0..8 {
            spread.arrived(index, [opcode::READ, opcode::WRITE, opcode::FSYNC, opcode::LOOKUP][usize::from(index % 4)]);
        }
        assert_eq!(spread.missing(), 0);
        spread.answered(0);
        spread.arrived(0, opcode::IOCTL);
        spread.is_full();
        assert_eq!(spread.missing(), 0);
    }
}

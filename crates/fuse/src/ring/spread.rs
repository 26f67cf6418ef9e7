//! How many entries a ring needs so that long requests leave room for others.
//!
//! A request holds its entry until it is answered, and a user can make many that take long: to
//! truncate large files, to defragment them, to make subvolumes. While they hold all entries no
//! request of another user comes (invariant 65). So what may take long gets further entries. READs
//! and WRITEs don't: they take as long as the device does, and their payloads take memory.

use crate::abi::opcode;

/// Entries of a ring, at the most: a long request takes some KiB.
const MOST: u16 = 4096;

/// Which entries of a ring hold requests that may take long.
pub struct Spread {
    /// Entries that are to be left for others.
    depth: u16,
    most: u16,
    /// By the numbers of entries.
    lasts: Vec<bool>,
    lasting: u16,
}

impl Spread {
    /// Of a ring that has to have `depth` entries besides those that long requests hold.
    pub fn new(depth: u16) -> Self {
        Self { depth, most: MOST.max(depth), lasts: Vec::new(), lasting: 0 }
    }

    /// The ring has so many entries now.
    pub fn has(&mut self, entries: usize) {
        self.lasts.resize(entries, false);
    }

    /// It can't have more.
    pub fn is_full(&mut self) {
        self.most = self.lasts.len() as u16;
    }

    /// A request has arrived in an entry.
    pub fn arrived(&mut self, index: u16, opcode: u32) {
        let may_last = !matches!(opcode, opcode::READ | opcode::WRITE);
        if let Some(lasts) = self.lasts.get_mut(usize::from(index)).filter(|lasts| !**lasts && may_last) {
            *lasts = true;
            self.lasting += 1;
        }
    }

    /// The request in an entry is answered.
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

    /// Of invariant 65.
    #[test]
    fn what_takes_long_leaves_room_for_others() {
        let mut spread = Spread::new(8);
        spread.has(8);
        assert_eq!(spread.missing(), 0);
        let mut entries = 8;
        for index in 0..1000 {
            spread.arrived(index, opcode::SETATTR);
            entries += spread.missing();
            spread.has(entries.into());
            assert!(entries >= index + 1 + 8, "invariant 65: {entries} entries, {index} of them held");
        }
        for index in 0..1000 {
            spread.answered(index);
        }
        for index in 0..entries {
            spread.arrived(index, opcode::WRITE);
        }
        assert_eq!(spread.missing(), 0, "writes take memory");
    }

    #[test]
    fn there_is_an_end() {
        let mut spread = Spread::new(8);
        let mut entries = 8;
        spread.has(entries.into());
        for index in 0..MOST {
            spread.arrived(index, opcode::IOCTL);
            entries += spread.missing();
            spread.has(entries.into());
        }
        assert_eq!((entries, spread.missing()), (MOST, 0));
        let mut spread = Spread::new(8);
        spread.has(8);
        spread.is_full();
        spread.arrived(0, opcode::IOCTL);
        assert_eq!(spread.missing(), 0);
    }
}

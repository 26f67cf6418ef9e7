//! What is known of a device's primary superblock (of invariants 12 and 34).

use std::collections::VecDeque;

use ubtrfs_format::{CHECKSUM_FIELD, Generation, SUPERBLOCK_COPIES, Superblock, xxhash64};

use crate::buffer::{Buffer, SharedBuffer};

/// The primary superblock as it was read or written last, and what may be there as well since then:
/// one whose write has failed, or a damaged one.
#[derive(Debug)]
pub(crate) struct Primary {
    bytes: Buffer,
    perhaps: Vec<SharedBuffer>,
    /// Hashes of those that were there before, the oldest first.
    before: VecDeque<u64>,
    /// What was written is not there: the commit of the superblock that was found instead; 0 if
    /// that was none.
    lost: Option<Generation>,
}

/// So many are remembered (128 KiB). A device that has lost more is taken for one that somebody
/// else writes: those of logs are only looked at once a second.
const REMEMBERED: usize = 16 << 10;

fn generation(bytes: &[u8]) -> Option<Generation> {
    Superblock::parse(bytes, SUPERBLOCK_COPIES[0]).ok().map(|superblock| superblock.generation)
}

fn has_same_bytes(ours: &[u8], found: &[u8]) -> bool {
    ours.get(CHECKSUM_FIELD..) == found.get(CHECKSUM_FIELD..)
}

fn hash(bytes: &[u8]) -> u64 {
    xxhash64(bytes.get(CHECKSUM_FIELD..).unwrap_or_default())
}

impl Primary {
    /// As it was read.
    pub(crate) fn new(bytes: Buffer) -> Self {
        Self { bytes, perhaps: Vec::new(), before: VecDeque::new(), lost: None }
    }

    /// It was written.
    pub(crate) fn has_become(&mut self, bytes: &[u8]) {
        if self.before.len() == REMEMBERED {
            self.before.pop_front();
        }
        self.before.push_back(hash(&self.bytes));
        if self.bytes.len() == bytes.len() {
            self.bytes.copy_from_slice(bytes);
        } else {
            self.bytes = Buffer::from(bytes);
        }
        self.lost = None;
        self.perhaps.clear();
    }

    /// Its write has failed, or that of another copy with it.
    pub(crate) fn may_have_become(&mut self, bytes: SharedBuffer) {
        self.perhaps.push(bytes);
    }

    /// This is there. If it is nobody's superblock, or one of before, it may be written over.
    pub(crate) fn may_be_written_over(&mut self, found: &[u8]) {
        if self.is_lost_by(found) && !self.may_be(found) {
            self.perhaps.push(Buffer::from(found).share());
        }
    }

    /// Whether the superblock that was written last must have been lost where this is: no
    /// superblock, or one that was there before, byte for byte. An older one that is none of these
    /// is another writer's (invariant 12).
    pub(crate) fn is_lost_by(&self, found: &[u8]) -> bool {
        generation(found).is_none() || self.before.contains(&hash(found))
    }

    /// This is there, by which what was written last [is lost](Self::is_lost_by), and with it
    /// whatever the device has got since.
    pub(crate) fn note_lost(&mut self, found: &[u8]) {
        let found = generation(found).unwrap_or_default();
        self.lost = Some(self.lost.map_or(found, |before| before.min(found)));
    }

    /// The commit of which the device has everything, as far as its superblocks say; `None` if none
    /// does.
    pub(crate) fn has_all_of(&self) -> Option<Generation> {
        let written = generation(&self.bytes)?;
        let has = self.lost.map_or(written, |found| written.min(found));
        Some(has).filter(|has| has.0 > 0)
    }

    /// Whether this may be what we wrote last. The field of the checksum does not matter: most of
    /// it is unused, and covered by nothing.
    pub(crate) fn may_be(&self, found: &[u8]) -> bool {
        has_same_bytes(&self.bytes, found) || self.perhaps.iter().any(|other| has_same_bytes(other, found))
    }

    /// As it was read or written last; `None` if there is none.
    pub(crate) fn superblock(&self) -> Option<Superblock> {
        Superblock::parse(&self.bytes, SUPERBLOCK_COPIES[0]).ok()
    }

    /// What may be there, as far as it is a superblock.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = Superblock> {
        let all = std::iter::once(&self.bytes[..]).chain(self.perhaps.iter().map(|other| &other[..]));
        all.filter_map(|bytes| Superblock::parse(bytes, SUPERBLOCK_COPIES[0]).ok())
    }

    /// The newest generation that it may have; `None` if there is none.
    pub(crate) fn newest_generation(&self) -> Option<Generation> {
        let perhaps = self.perhaps.iter().filter_map(|other| generation(other)).max();
        generation(&self.bytes).max(perhaps)
    }
}

//! What is known of a device's primary superblock (invariants 12 and 34).

use std::collections::VecDeque;

use ubtrfs_format::{CHECKSUM_FIELD, Generation, SUPERBLOCK_COPIES, Superblock, xxhash64};

use crate::buffer::{Buffer, SharedBuffer};

/// The primary superblock as it was last read or written, and what else may be in its place since
/// then: one whose write has failed, or a damaged one.
#[derive(Debug)]
pub(crate) struct Primary {
    bytes: Buffer,
    perhaps: Vec<SharedBuffer>,
    /// Hashes of the superblocks that were there before, the oldest first.
    before: VecDeque<u64>,
    /// If what was written is gone: the commit of the superblock that was found instead, or 0 if
    /// there was none.
    lost: Option<Generation>,
}

/// How many hashes are remembered (128 KiB). If a device has lost more superblocks, it is taken for
/// one that another process writes, since superblocks of logs are compared only once a second.
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
    /// A superblock as it was read.
    pub(crate) fn new(bytes: Buffer) -> Self {
        Self { bytes, perhaps: Vec::new(), before: VecDeque::new(), lost: None }
    }

    /// Notes that these bytes were written.
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

    /// Notes that these bytes may be on the device, since their write, or that of another copy with
    /// it, has failed.
    pub(crate) fn may_have_become(&mut self, bytes: SharedBuffer) {
        self.perhaps.push(bytes);
    }

    /// Notes what was found on the device. If it is no superblock, or one that was there before, it
    /// may be overwritten.
    pub(crate) fn may_be_written_over(&mut self, found: &[u8]) {
        if self.is_lost_by(found) && !self.may_be(found) {
            self.perhaps.push(Buffer::from(found).share());
        }
    }

    /// Returns whether `found` shows that the superblock that was written last has been lost: it is
    /// no superblock, or, byte for byte, one that was there before. Any other older one is another
    /// writer's (invariant 12).
    pub(crate) fn is_lost_by(&self, found: &[u8]) -> bool {
        generation(found).is_none() || self.before.contains(&hash(found))
    }

    /// Notes that `found` is there, which shows that the last superblock [is
    /// lost](Self::is_lost_by), and with it whatever the device has got since.
    pub(crate) fn note_lost(&mut self, found: &[u8]) {
        let found = generation(found).unwrap_or_default();
        self.lost = Some(self.lost.map_or(found, |before| before.min(found)));
    }

    /// Returns the commit of which the device has everything, as far as its superblocks say, or
    /// `None` if they say nothing.
    pub(crate) fn has_all_of(&self) -> Option<Generation> {
        let written = generation(&self.bytes)?;
        let has = self.lost.map_or(written, |found| written.min(found));
        Some(has).filter(|has| has.0 > 0)
    }

    /// Returns whether this may be what we wrote last. Ignores the checksum field, since most of it
    /// is unused and no checksum covers it.
    pub(crate) fn may_be(&self, found: &[u8]) -> bool {
        has_same_bytes(&self.bytes, found) || self.perhaps.iter().any(|other| has_same_bytes(other, found))
    }

    /// Returns the superblock as it was last read or written, or `None` if there is none.
    pub(crate) fn superblock(&self) -> Option<Superblock> {
        Superblock::parse(&self.bytes, SUPERBLOCK_COPIES[0]).ok()
    }

    /// Returns the valid superblocks that may be on the device.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = Superblock> {
        let all = std::iter::once(&self.bytes[..]).chain(self.perhaps.iter().map(|other| &other[..]));
        all.filter_map(|bytes| Superblock::parse(bytes, SUPERBLOCK_COPIES[0]).ok())
    }

    /// Returns the newest generation that it may have, or `None` if there is none.
    pub(crate) fn newest_generation(&self) -> Option<Generation> {
        let perhaps = self.perhaps.iter().filter_map(|other| generation(other)).max();
        generation(&self.bytes).max(perhaps)
    }
}

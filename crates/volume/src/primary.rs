//! What is known of a device's primary superblock (of invariants 12 and 34).

use ubtrfs_format::{CHECKSUM_FIELD, Generation, SUPERBLOCK_COPIES, Superblock};

use crate::buffer::{Buffer, SharedBuffer};
use crate::staleness::missed;

/// The primary superblock as it was read or written last, and what may be there as well since then:
/// one whose write has failed, or a damaged one.
#[derive(Debug)]
pub(crate) struct Primary {
    bytes: Buffer,
    perhaps: Vec<SharedBuffer>,
}

fn generation(bytes: &[u8]) -> Option<Generation> {
    Superblock::parse(bytes, SUPERBLOCK_COPIES[0]).ok().map(|superblock| superblock.generation)
}

impl Primary {
    /// As it was read.
    pub(crate) fn new(bytes: Buffer) -> Self {
        Self { bytes, perhaps: Vec::new() }
    }

    /// It was written.
    pub(crate) fn has_become(&mut self, bytes: &[u8]) {
        self.bytes.copy_from_slice(bytes);
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
    /// superblock, or one that the volume had before.
    pub(crate) fn is_lost_by(&self, found: &[u8]) -> bool {
        let Ok(found) = Superblock::parse(found, SUPERBLOCK_COPIES[0]) else { return true };
        self.superblock().is_some_and(|own| found.fsid == own.fsid && missed(&own, &found) > 0)
    }

    /// Whether this may be what we wrote last. The field of the checksum does not matter: most of
    /// it is unused, and covered by nothing.
    pub(crate) fn may_be(&self, found: &[u8]) -> bool {
        let is = |ours: &[u8]| ours.get(CHECKSUM_FIELD..) == found.get(CHECKSUM_FIELD..);
        is(&self.bytes) || self.perhaps.iter().any(|other| is(other))
    }

    /// As it was read or written last; `None` if there is none.
    pub(crate) fn superblock(&self) -> Option<Superblock> {
        Superblock::parse(&self.bytes, SUPERBLOCK_COPIES[0]).ok()
    }

    /// The newest generation that it may have; `None` if there is none.
    pub(crate) fn newest_generation(&self) -> Option<Generation> {
        let perhaps = self.perhaps.iter().filter_map(|other| generation(other)).max();
        generation(&self.bytes).max(perhaps)
    }
}

//! What is known of a device's primary superblock (of invariants 12 and 34).

use ubtrfs_format::{Generation, SUPERBLOCK_COPIES, Superblock};

use crate::buffer::{Buffer, SharedBuffer};

/// Bytes of a superblock before what its checksum covers.
const CHECKSUM_FIELD: usize = 32;

/// The primary superblock as it was read or written last, and one whose write has failed, which may
/// be there all the same.
#[derive(Debug)]
pub(crate) struct Primary {
    bytes: Buffer,
    attempted: Option<SharedBuffer>,
}

fn generation(bytes: &[u8]) -> Option<Generation> {
    Superblock::parse(bytes, SUPERBLOCK_COPIES[0]).ok().map(|superblock| superblock.generation)
}

impl Primary {
    /// As it was read.
    pub(crate) fn new(bytes: Buffer) -> Self {
        Self { bytes, attempted: None }
    }

    /// It was written.
    pub(crate) fn has_become(&mut self, bytes: &[u8]) {
        self.bytes.copy_from_slice(bytes);
        self.attempted = None;
    }

    /// Its write has failed, or that of another copy with it.
    pub(crate) fn may_have_become(&mut self, bytes: SharedBuffer) {
        self.attempted = Some(bytes);
    }

    /// Whether this may be what we wrote last. The field of the checksum does not matter: most of it
    /// is unused, and covered by nothing.
    pub(crate) fn may_be(&self, found: &[u8]) -> bool {
        let is = |ours: &[u8]| ours.get(CHECKSUM_FIELD..) == found.get(CHECKSUM_FIELD..);
        is(&self.bytes) || self.attempted.as_deref().is_some_and(is)
    }

    /// The newest generation that it may have; `None` if there is none.
    pub(crate) fn newest_generation(&self) -> Option<Generation> {
        let attempted = self.attempted.as_ref().and_then(|attempted| generation(attempted));
        generation(&self.bytes).max(attempted)
    }
}

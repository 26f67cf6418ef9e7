//! The profiles in which new chunks are made.

use ubtrfs_format::items::BlockGroupFlags;

/// The profile of new chunks of each type.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Profiles {
    data: BlockGroupFlags,
    metadata: BlockGroupFlags,
    system: BlockGroupFlags,
    /// Whether data and metadata share chunks.
    is_mixed: bool,
}

/// Returns how many copies a profile makes of each byte.
pub(crate) fn copies(flags: BlockGroupFlags) -> u64 {
    flags.raid().map_or(1, |raid| raid.copies)
}

impl Profiles {
    pub(crate) fn new(
        data: BlockGroupFlags,
        metadata: BlockGroupFlags,
        system: BlockGroupFlags,
        is_mixed: bool,
    ) -> Self {
        Self { data, metadata, system, is_mixed }
    }

    /// Returns the profile of data.
    pub(crate) fn data(&self) -> BlockGroupFlags {
        self.data
    }

    /// Returns the profile of metadata.
    pub(crate) fn metadata(&self) -> BlockGroupFlags {
        self.metadata
    }

    /// Returns whether data and metadata share chunks.
    pub(crate) fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Returns the type and profile of a new chunk of this kind.
    pub(crate) fn of_new_chunks(&self, kind: BlockGroupFlags) -> BlockGroupFlags {
        match kind {
            BlockGroupFlags::SYSTEM => kind.with(self.system),
            BlockGroupFlags::DATA | BlockGroupFlags::METADATA if self.is_mixed => {
                BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA).with(self.metadata)
            }
            BlockGroupFlags::DATA => kind.with(self.data),
            _ => kind.with(self.metadata),
        }
    }

    /// Makes new chunks of a type in another profile from now on.
    pub(crate) fn convert(&mut self, kind: BlockGroupFlags, profile: BlockGroupFlags) {
        match kind {
            BlockGroupFlags::DATA => self.data = profile,
            BlockGroupFlags::METADATA => self.metadata = profile,
            _ => self.system = profile,
        }
    }
}

//! The possible growth: the sizes of new chunks, and the part of the unallocated space that data
//! can get.

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::units::{GIB, MIB};

use crate::chunks::MIN_CHUNK;
use crate::profiles::copies;
use crate::space::SpaceState;

/// The approximate size of metadata chunks that are made while little is unallocated.
const SMALL_METADATA_CHUNK: u64 = 8 * MIB;

impl SpaceState {
    /// How long the next chunk of this kind should be.
    pub(crate) fn next_chunk_length(&self, kind: BlockGroupFlags) -> u64 {
        /// The part of the unallocated space that a metadata chunk may take.
        const SHARE: u64 = 32;
        let flags = self.profiles.of_new_chunks(kind);
        let device_bytes = self.devices.total_bytes();
        let ceiling = if kind == BlockGroupFlags::SYSTEM {
            32 * MIB
        } else if flags.contains(BlockGroupFlags::DATA) {
            GIB
        } else {
            let most = if device_bytes > 50 * GIB { GIB } else { 256 * MIB };
            most.min((self.devices.unallocated() / SHARE).max(SMALL_METADATA_CHUNK))
        };
        let ceiling = self.chunks.max_length().map_or(ceiling, |most| ceiling.min(most));
        ceiling.min(device_bytes / 10).max(MIB) / MIB * MIB
    }

    /// Bytes of data that new chunks can hold.
    pub(crate) fn room_for_chunks(&self) -> u64 {
        self.devices.room(self.profiles.of_new_chunks(BlockGroupFlags::DATA), MIN_CHUNK)
    }

    /// Bytes of metadata for each MiB of data: checksums in leaves that are not quite full, and
    /// extents.
    fn metadata_of_a_mib(&self) -> u64 {
        const EXTENTS: u64 = 300;
        MIB / self.sector_size * self.reserved.needs.checksum_size * 9 / 8 + EXTENTS
    }

    /// Bytes of metadata chunks that have to be made before so many bytes of data fill the volume,
    /// the first of them while there is much left.
    fn bytes_of_missing_metadata_chunks(&self, data: u64) -> u64 {
        let needed = data / MIB * self.metadata_of_a_mib();
        let missing = self.missing_metadata(needed);
        if missing == 0 {
            return 0;
        }
        let first = self.next_chunk_length(BlockGroupFlags::METADATA);
        first + missing.saturating_sub(first).next_multiple_of(SMALL_METADATA_CHUNK)
    }

    /// Whether the next chunk should be one of metadata, though data needs one: too little is left
    /// to be made into chunks for metadata to wait.
    pub fn metadata_comes_first(&self) -> bool {
        let room = self.room_for_chunks();
        !self.profiles.is_mixed()
            && room > 0
            && room <= 2 * self.next_chunk_length(BlockGroupFlags::DATA)
            && self.bytes_of_missing_metadata_chunks(self.available(BlockGroupFlags::DATA) + room) > 0
    }

    /// Bytes of metadata space that could become data chunks without being needed for metadata
    /// again.
    pub(crate) fn dispensable_metadata(&self) -> u64 {
        let data = self.available(BlockGroupFlags::DATA);
        let needed = if self.profiles.is_mixed() { 0 } else { data / MIB * self.metadata_of_a_mib() };
        self.spare_metadata().saturating_sub(needed + self.last_transactions())
    }

    /// Bytes that data can have.
    pub(crate) fn data_available(&self) -> u64 {
        let free = self.available(BlockGroupFlags::DATA).saturating_sub(self.reserved.data);
        if self.profiles.is_mixed() {
            let room = self.room_for_chunks();
            return (free + room).min(self.usable_metadata(room));
        }
        let room = self.room_for_chunks() + self.reclaimable() / copies(self.profiles.data());
        let data = free + room;
        let missing = self.bytes_of_missing_metadata_chunks(data).saturating_mul(copies(self.profiles.metadata()));
        let missing = missing.div_ceil(copies(self.profiles.data()));
        if missing <= room {
            return data - missing;
        }
        data.min(self.usable_metadata(0) / self.metadata_of_a_mib() * MIB)
    }
}

//! Estimates of growth: the sizes of new chunks, and the part of the unallocated space that data
//! can get.

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::units::{GIB, MIB};

use crate::chunks::MIN_CHUNK;
use crate::profiles::copies;
use crate::space::SpaceState;

/// The approximate size of metadata chunks that are made when little is unallocated.
const SMALL_METADATA_CHUNK: u64 = 8 * MIB;

impl SpaceState {
    /// Returns how many bytes long the next chunk of this kind should be.
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

    /// Returns how many bytes of data new chunks can hold.
    pub(crate) fn room_for_chunks(&self) -> u64 {
        self.devices.room(self.profiles.of_new_chunks(BlockGroupFlags::DATA), MIN_CHUNK)
    }

    /// Returns how many bytes of metadata each MiB of data takes: checksums in leaves that are not
    /// quite full, and extents.
    fn metadata_of_a_mib(&self) -> u64 {
        const EXTENTS: u64 = 300;
        MIB / self.sector_size * self.reserved.needs.checksum_size * 9 / 8 + EXTENTS
    }

    /// Returns how many bytes of metadata chunks have to be made before `data` bytes fill the
    /// volume. The first of these chunks is made while much is left, so it is large.
    fn bytes_of_missing_metadata_chunks(&self, data: u64) -> u64 {
        let needed = data / MIB * self.metadata_of_a_mib();
        let missing = self.missing_metadata(needed);
        if missing == 0 {
            return 0;
        }
        let first = self.next_chunk_length(BlockGroupFlags::METADATA);
        first + missing.saturating_sub(first).next_multiple_of(SMALL_METADATA_CHUNK)
    }

    /// Returns whether the next chunk should be a metadata chunk though data needs one: so little
    /// unallocated space is left that metadata can't wait.
    pub fn metadata_comes_first(&self) -> bool {
        let room = self.room_for_chunks();
        !self.profiles.is_mixed()
            && room > 0
            && room <= 2 * self.next_chunk_length(BlockGroupFlags::DATA)
            && self.bytes_of_missing_metadata_chunks(self.available(BlockGroupFlags::DATA) + room) > 0
    }

    /// Returns how many bytes of metadata space could become data chunks and would not be needed
    /// for metadata again.
    pub(crate) fn dispensable_metadata(&self) -> u64 {
        let data = self.available(BlockGroupFlags::DATA);
        let needed = if self.profiles.is_mixed() { 0 } else { data / MIB * self.metadata_of_a_mib() };
        self.spare_metadata().saturating_sub(needed + self.last_transactions())
    }

    /// Returns how many bytes data can get.
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

//! Making chunks from unallocated space of the devices.

use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, encode_sys_chunk};
use ubtrfs_format::{Key, Logical, SYS_CHUNK_ARRAY_MAX, Uuid};
use ubtrfs_volume::Volume;

use crate::chunks::{MIN_CHUNK, NewChunk};
use crate::device_map::DeviceMap;
use crate::error::Result;
use crate::group::BlockGroup;
use crate::space::SpaceState;

/// The alignment of the logical addresses of chunks.
const CHUNK_ALIGN: u64 = 1 << 20;

impl SpaceState {
    /// Returns the start addresses of the chunks that the next commit adds and the one in progress
    /// does not.
    pub fn new_chunks(&self) -> impl Iterator<Item = Logical> {
        self.chunks.starts_of_new()
    }

    /// Returns the system chunks that the commit in progress removes.
    pub fn leaving_system_chunks(&self) -> Vec<Logical> {
        let of_system = self.chunks.leaving().iter().filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::SYSTEM));
        of_system.map(|(start, _)| *start).collect()
    }

    /// Returns the UUID of the chunk tree, which device extents name.
    pub fn chunk_tree_uuid(&self) -> Uuid {
        self.chunks.tree_uuid()
    }

    /// Makes a chunk of this kind from unallocated device space, and adds it to the volume before
    /// anything can be allocated from it. The next commit writes it to the trees. Returns `None` if
    /// no device has room for it, or for the system chunk that the chunk tree may need for its
    /// item, or if superblocks can list no more system chunks.
    pub fn add_chunk(&mut self, kind: BlockGroupFlags, volume: &Volume) -> Result<Option<NewChunk>> {
        let needs_system = kind != BlockGroupFlags::SYSTEM && self.is_system_short();
        if needs_system && self.make_chunk(BlockGroupFlags::SYSTEM, volume)?.is_none() {
            return Ok(None);
        }
        self.make_chunk(kind, volume)
    }

    fn make_chunk(&mut self, kind: BlockGroupFlags, volume: &Volume) -> Result<Option<NewChunk>> {
        let Some((start, chunk)) = self.place_chunk(kind, volume) else { return Ok(None) };
        let made = if kind == BlockGroupFlags::SYSTEM && !self.superblock_has_room(&chunk) {
            Ok(false)
        } else {
            volume.add_chunk(start, chunk.clone()).map(|()| true)
        };
        if !matches!(made, Ok(true)) {
            // The chunk was not added anywhere, so nothing is allocated from it.
            self.devices.uncount(&chunk);
            self.devices.vacate(&chunk);
            made?;
            return Ok(None);
        }
        let mut group = BlockGroup::empty(start, chunk.length, chunk.flags);
        group.new = true;
        group.touched = true;
        group.delta.come.insert((start.0, chunk.length));
        for (at, len) in DeviceMap::superblock_ranges(start, &chunk) {
            group.available.remove_any(at.0, len);
        }
        self.groups.insert(group);
        let made = NewChunk { start, chunk };
        self.count_reserve();
        self.chunks.add(made.clone());
        Ok(Some(made))
    }

    /// Returns whether a superblock has room for one more system chunk, if all are as large as this
    /// one.
    fn superblock_has_room(&self, chunk: &ChunkItem) -> bool {
        let there = self.groups.sums(BlockGroupFlags::SYSTEM).groups as usize + self.leaving_system_chunks().len();
        let mut entry = Vec::new();
        encode_sys_chunk(&mut entry, Key::MIN, chunk);
        (there + 1) * entry.len() <= SYS_CHUNK_ARRAY_MAX
    }

    /// Takes unallocated device space for a chunk of this kind.
    fn place_chunk(&mut self, kind: BlockGroupFlags, volume: &Volume) -> Option<(Logical, ChunkItem)> {
        let flags = self.profiles.of_new_chunks(kind);
        let want = self.next_chunk_length(kind);
        let stripes = self.devices.place(flags, want, MIN_CHUNK, &volume.devices().lagging())?;
        let leaving = self.chunks.leaving().iter().map(|(start, chunk)| start.0 + chunk.length);
        let end = self.groups.end().into_iter().chain(leaving).max();
        let start = end.unwrap_or(CHUNK_ALIGN).checked_next_multiple_of(CHUNK_ALIGN)?;
        let length = stripes.length;
        let chunk = ChunkItem {
            length,
            owner: 2,
            stripe_len: ubtrfs_format::items::STRIPE_LEN,
            flags,
            io_align: 65536,
            io_width: 65536,
            sector_size: self.sector_size as u32,
            sub_stripes: flags.raid()?.sub_stripes,
            stripes: stripes.stripes,
        };
        Some((Logical(start), chunk))
    }

    /// Takes the chunks that the commit in progress adds to the trees. It adds none that is made
    /// later.
    pub fn take_new_chunks(&mut self) -> Vec<NewChunk> {
        let new = self.chunks.take_new();
        for chunk in &new {
            if let Some(mut group) = self.groups.get_mut(chunk.start) {
                group.new = false;
            }
        }
        new
    }

    /// Returns how many chunks were made and removed so far.
    pub fn chunk_counts(&self) -> (u64, u64) {
        self.chunks.counts()
    }
}

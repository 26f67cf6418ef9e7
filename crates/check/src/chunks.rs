//! Checks that chunks, block groups, device extents, devices and the superblock's totals are
//! consistent.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ubtrfs_errors::sentence;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, DevExtent, DevItem, sys_chunks};
use ubtrfs_format::{ItemType, Key, Logical, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock, TreeId};

use crate::fault::{FaultKind, Location};
use crate::groups::Groups;
use crate::media::{Media, data_stripes};
use crate::ranges::RangeSet;
use crate::report::Faults;

/// Device extents by device and physical address.
type DeviceExtents = BTreeMap<(u64, u64), DevExtent>;

/// The items of the chunk tree and the device tree.
#[derive(Default)]
pub(crate) struct Layout {
    pub(crate) chunks: BTreeMap<u64, ChunkItem>,
    pub(crate) devices: BTreeMap<u64, DevItem>,
    pub(crate) extents: DeviceExtents,
}

fn chunk_place(start: u64) -> Location {
    Location::at(Logical(start))
}

impl Layout {
    /// Adds an item of the chunk tree.
    pub(crate) fn take_chunk_item(&mut self, key: Key, data: &[u8]) {
        match key.item_type {
            ItemType::CHUNK_ITEM => {
                if let Ok(chunk) = ChunkItem::parse(data) {
                    self.chunks.insert(key.offset, chunk);
                }
            }
            ItemType::DEV_ITEM => {
                if let Ok(device) = DevItem::parse(data) {
                    self.devices.insert(key.offset, device);
                }
            }
            _ => {}
        }
    }

    /// Adds an item of the device tree.
    pub(crate) fn take_device_item(&mut self, key: Key, data: &[u8]) {
        if key.item_type == ItemType::DEV_EXTENT
            && let Ok(extent) = DevExtent::parse(data)
        {
            self.extents.insert((key.objectid, key.offset), extent);
        }
    }

    /// Compares chunks with each other, and the system chunks with the superblock's array.
    pub(crate) fn judge_chunks(&self, superblock: &Superblock, faults: &mut Faults) {
        let mut last_end = 0;
        for (start, chunk) in &self.chunks {
            if *start < last_end {
                faults.add(FaultKind::ChunksOverlap, chunk_place(*start));
            }
            last_end = start.saturating_add(chunk.length);
        }
        match sys_chunks(&superblock.sys_chunk_array) {
            Ok(array) => {
                let array: HashMap<u64, ChunkItem> =
                    array.into_iter().map(|(key, chunk)| (key.offset, chunk)).collect();
                let system = self.chunks.iter().filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::SYSTEM));
                for (start, _) in system.filter(|(start, _)| !array.contains_key(start)) {
                    faults.add(FaultKind::SystemChunkMissing { chunk: *start }, Location::volume());
                }
                for (start, _) in array.iter().filter(|(start, chunk)| self.chunks.get(start) != Some(chunk)) {
                    faults.add(FaultKind::SystemChunkDiffers { chunk: *start }, Location::volume());
                }
            }
            Err(error) => {
                faults.add(FaultKind::SystemChunkArray { reason: sentence(&error) }, Location::volume());
            }
        }
    }

    /// Compares chunks with block groups.
    pub(crate) fn judge_groups(&self, groups: &Groups, faults: &mut Faults) {
        for (start, chunk) in &self.chunks {
            let Some(group) = groups.starting(*start) else {
                faults.add(FaultKind::ChunkWithoutBlockGroup, chunk_place(*start));
                continue;
            };
            for (field, found, expected) in
                [("length", group.length, chunk.length), ("flags", group.flags.0, chunk.flags.0)]
            {
                if found != expected {
                    let kind = FaultKind::BlockGroupDiffersFromChunk { field, found, expected };
                    faults.add(kind, chunk_place(*start));
                }
            }
        }
        for group in groups.list.iter().filter(|group| !self.chunks.contains_key(&group.start)) {
            faults.add(FaultKind::BlockGroupWithoutChunk, chunk_place(group.start));
        }
    }

    /// Compares chunks with device extents, and these with devices.
    pub(crate) fn judge_devices(&self, media: &Media, faults: &mut Faults) {
        let mut unclaimed = self.extents.clone();
        for (start, chunk) in &self.chunks {
            let expected = chunk.length / data_stripes(chunk);
            for stripe in &chunk.stripes {
                let (device, physical) = (stripe.devid.0, stripe.offset.0);
                let Some(extent) = unclaimed.remove(&(device, physical)) else {
                    faults.add(FaultKind::ChunkWithoutDeviceExtent { device, physical }, chunk_place(*start));
                    continue;
                };
                for (field, found, expected) in
                    [("length", extent.length, expected), ("chunk", extent.chunk_offset.0, *start)]
                {
                    if found != expected {
                        let kind = FaultKind::DeviceExtentDiffers { device, physical, field, found, expected };
                        faults.add(kind, chunk_place(*start));
                    }
                }
            }
        }
        for (device, physical) in unclaimed.into_keys() {
            faults.add(FaultKind::DeviceExtentWithoutChunk { device, physical }, Location::tree(TreeId::DEV));
        }
        self.judge_uuids(faults);
        let mut used: HashMap<u64, u64> = HashMap::new();
        let mut last = (0, 0);
        for ((device, physical), extent) in &self.extents {
            let (device, physical) = (*device, *physical);
            let end = physical.saturating_add(extent.length);
            if last.0 == device && physical < last.1 {
                faults.add(FaultKind::DeviceExtentsOverlap { device, physical }, Location::tree(TreeId::DEV));
            }
            if self.devices.get(&device).is_none_or(|item| end > item.total_bytes) {
                faults.add(FaultKind::DeviceExtentBeyondDevice { device, physical }, Location::tree(TreeId::DEV));
            }
            last = (device, end);
            let sum = used.entry(device).or_default();
            *sum = sum.saturating_add(extent.length);
        }
        for (device, item) in &self.devices {
            let (device, expected) = (*device, used.get(device).copied().unwrap_or(0));
            if item.bytes_used != expected {
                let kind = FaultKind::DeviceBytesUsed { device, found: item.bytes_used, expected };
                faults.add(kind, Location::tree(TreeId::CHUNK));
            }
            match media.device(device) {
                None => {
                    let kind = FaultKind::DeviceMissing { device, bytes_not_compared: 0, bytes_lost: 0 };
                    faults.add(kind, Location::volume());
                }
                Some(real) if real.size() < item.total_bytes => {
                    let kind = FaultKind::DeviceTooSmall { device, found: real.size(), expected: item.total_bytes };
                    faults.add(kind, Location::volume());
                }
                Some(_) => {}
            }
        }
    }

    /// Compares the UUIDs of devices in stripes of chunks, by which a mount finds the devices.
    fn judge_uuids(&self, faults: &mut Faults) {
        let mut wrong = BTreeSet::new();
        for stripe in self.chunks.values().flat_map(|chunk| &chunk.stripes) {
            let device = stripe.devid.0;
            if self.devices.get(&device).is_some_and(|item| item.uuid != stripe.dev_uuid) {
                wrong.insert(device);
            }
        }
        for device in wrong {
            let kind = FaultKind::DeviceUuid { device, record: "stripes of chunks" };
            faults.add(kind, Location::tree(TreeId::CHUNK));
        }
    }

    /// Checks the superblock's totals. `used` is `None` if not all extents could be read.
    pub(crate) fn judge_totals(&self, superblock: &Superblock, used: Option<u64>, faults: &mut Faults) {
        let total = self.devices.values().fold(0_u64, |sum, device| sum.saturating_add(device.total_bytes));
        let own = self.devices.get(&superblock.dev_item.devid.0);
        let mut fields = vec![
            ("num_devices", superblock.num_devices, self.devices.len() as u64),
            ("total_bytes", superblock.total_bytes, total),
        ];
        if let Some(used) = used {
            fields.push(("bytes_used", superblock.bytes_used, used));
        }
        if let Some(own) = own {
            if superblock.dev_item.uuid != own.uuid {
                let kind = FaultKind::DeviceUuid { device: own.devid.0, record: "the superblock" };
                faults.add(kind, Location::volume());
            }
            fields.push(("dev_item.total_bytes", superblock.dev_item.total_bytes, own.total_bytes));
            fields.push(("dev_item.bytes_used", superblock.dev_item.bytes_used, own.bytes_used));
        }
        for (field, found, expected) in fields {
            if found != expected {
                faults.add(FaultKind::SuperblockField { field, found, expected }, Location::volume());
            }
        }
    }

    /// Checks that no extent overlaps a copy of a device's superblock.
    pub(crate) fn judge_superblock_space(&self, used: &RangeSet, faults: &mut Faults) {
        for (start, chunk) in &self.chunks {
            let mut devices: Vec<u64> = chunk.stripes.iter().map(|stripe| stripe.devid.0).collect();
            devices.sort_unstable();
            devices.dedup();
            for device in devices {
                for Physical(copy) in SUPERBLOCK_COPIES {
                    for address in Media::addresses_of(*start, chunk, device, copy) {
                        let end = address.saturating_add(SUPERBLOCK_SIZE as u64);
                        if used.len_within(address, end) > 0 {
                            faults.add(FaultKind::ExtentOverSuperblock, Location::at(Logical(address)));
                        }
                    }
                }
            }
        }
    }
}

/// Compares the counters of block groups with the extents in them.
pub(crate) fn judge_used(groups: &Groups, used: &RangeSet, faults: &mut Faults) {
    for group in &groups.list {
        let expected = used.len_within(group.start, group.end());
        if group.used != expected {
            faults.add(FaultKind::BlockGroupUsed { found: group.used, expected }, chunk_place(group.start));
        }
    }
}

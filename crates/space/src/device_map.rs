//! The map of each device: which of its ranges belong to chunks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::MAX_STRIPES;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, DevItem, RaidProfile, STRIPE_LEN, Stripe};
use ubtrfs_format::{DeviceId, Logical, Physical, SUPERBLOCK_COPIES};

use crate::device_changes::DeviceChanges;
use crate::free_map::FreeMap;

/// Bytes at the start of a device in which no chunk is made.
const RESERVED: u64 = 1 << 20;
/// The least bytes of a stripe of a chunk on several devices.
const MIN_STRIPE: u64 = 1 << 20;

/// Whether the devices are to be cut off behind their last chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shrink {
    No,
    /// The next commit cuts them off.
    Wanted,
    /// The commit in progress has cut off this many bytes.
    Done(u64),
}

/// The devices of a volume and their unallocated ranges.
pub struct DeviceMap {
    devices: BTreeMap<DeviceId, (DevItem, FreeMap)>,
    /// Devices on which no chunks are made: they are missing, or will be removed.
    closed: BTreeSet<DeviceId>,
    /// Devices on which no chunks are made from an address on, since they will end there; and the
    /// unallocated space behind that.
    limited: BTreeMap<DeviceId, (u64, FreeMap)>,
    /// The changes that the next commit makes to the devices.
    changes: DeviceChanges,
    shrink: Shrink,
}

/// The location of a new chunk.
pub(crate) struct Placement {
    /// Logical bytes.
    pub(crate) length: u64,
    pub(crate) stripes: Vec<Stripe>,
}

impl DeviceMap {
    /// A map in which all of the devices is free except their start. No chunks are made on `closed`
    /// ones.
    pub(crate) fn new(items: &[DevItem], closed: impl IntoIterator<Item = DeviceId>) -> Self {
        let closed = closed.into_iter().collect();
        let mut map = Self {
            devices: BTreeMap::new(),
            closed,
            limited: BTreeMap::new(),
            changes: DeviceChanges::default(),
            shrink: Shrink::No,
        };
        for item in items {
            map.put(*item);
        }
        map
    }

    /// Has chunks made on a device again, which was missing or was to be removed.
    pub fn open_again(&mut self, devid: DeviceId) {
        self.closed.remove(&devid);
    }

    /// Makes no more chunks on a device. Returns whether it was open before, or `None` if there is
    /// no such device.
    pub fn close(&mut self, devid: DeviceId) -> Option<bool> {
        self.devices.contains_key(&devid).then(|| self.closed.insert(devid))
    }

    /// Makes no more chunks on a device from this address on.
    pub fn set_limit(&mut self, devid: DeviceId, limit: u64) {
        let Some((_, free)) = self.devices.get_mut(&devid) else { return };
        let mut behind = FreeMap::default();
        for (start, len) in free.overlapping(limit, u64::MAX).collect::<Vec<_>>() {
            let from = start.max(limit);
            free.remove_any(from, start + len - from);
            behind.insert(from, start + len - from);
        }
        self.limited.insert(devid, (limit, behind));
    }

    /// Has chunks made there again.
    pub fn lift_limit(&mut self, devid: DeviceId) {
        if let (Some((_, behind)), Some((_, free))) = (self.limited.remove(&devid), self.devices.get_mut(&devid)) {
            for (start, len) in behind.iter() {
                let is_new = free.insert(start, len);
                assert!(is_new, "invariant 18: device space behind a limit, at {start}, was free before it");
            }
        }
    }

    /// Sets the size of a device, behind which no chunk has anything. If it grows, chunks are made
    /// in the new space only once the limit is [lifted](Self::lift_limit): until a commit changes
    /// the device's item, the volume has the device with its old size. Returns the old size.
    pub fn resize(&mut self, devid: DeviceId, bytes: u64) -> Option<u64> {
        self.lift_limit(devid);
        let (item, free) = self.devices.get_mut(&devid)?;
        let before = std::mem::replace(&mut item.total_bytes, bytes);
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => {
                let is_new = free.insert(before, more);
                assert!(is_new, "invariant 18: device space behind the end of device {devid} was free");
                self.set_limit(devid, before);
            }
            None => free.remove_any(bytes, before - bytes),
        }
        if before != bytes {
            self.changes.resized.push((devid, before, bytes));
        }
        Some(before)
    }

    /// Has the next commit remove a device, on which no chunk has anything. Returns `None` if there
    /// is no such device.
    pub fn remove(&mut self, devid: DeviceId) -> Option<DevItem> {
        let (item, _) = self.devices.remove(&devid)?;
        self.closed.remove(&devid);
        self.limited.remove(&devid);
        self.changes.removed.push(item);
        Some(item)
    }

    /// Takes the changes to devices that the commit in progress writes.
    pub fn take_changes(&mut self) -> DeviceChanges {
        std::mem::take(&mut self.changes)
    }

    /// Returns whether the next commit has to change something about the devices.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty() || self.shrink == Shrink::Wanted
    }

    /// Has the next commit cut off the devices behind their last chunks.
    pub fn shrink(&mut self) {
        self.shrink = Shrink::Wanted;
    }

    /// Cuts off the devices behind their last chunks, if the commit in progress is to do that.
    /// Returns whether it is.
    pub fn cut(&mut self) -> bool {
        if self.shrink == Shrink::Wanted {
            self.shrink = Shrink::Done(self.cut_off_unallocated());
        }
        self.shrink != Shrink::No
    }

    /// Returns how many bytes the commit in progress has cut off, and resets that.
    pub fn take_cut(&mut self) -> u64 {
        match std::mem::replace(&mut self.shrink, Shrink::No) {
            Shrink::Done(bytes) => bytes,
            Shrink::No | Shrink::Wanted => 0,
        }
    }

    /// Returns the item of a device.
    pub fn item(&self, devid: DeviceId) -> Option<DevItem> {
        self.devices.get(&devid).map(|(item, _)| *item)
    }

    /// Adds a device to the volume; the next commit adds its item.
    pub fn add(&mut self, item: DevItem) {
        self.put(item);
        self.changes.added.push(item);
    }

    fn put(&mut self, item: DevItem) {
        let mut free = FreeMap::default();
        free.insert(RESERVED, item.total_bytes.saturating_sub(RESERVED));
        self.devices.insert(item.devid, (item, free));
    }

    /// Returns the devices on which chunks are made, and their unallocated ranges.
    fn open(&self) -> impl Iterator<Item = (&DeviceId, &DevItem, &FreeMap)> {
        let is_open = |(devid, _): &(&DeviceId, &(DevItem, FreeMap))| !self.closed.contains(devid);
        self.devices.iter().filter(is_open).map(|(devid, (item, free))| (devid, item, free))
    }

    /// Returns on how many devices chunks are made.
    pub fn open_devices(&self) -> usize {
        self.open().count()
    }

    /// Takes the device space of a chunk of the volume. Returns whether no other chunk has any of
    /// it.
    pub(crate) fn occupy(&mut self, chunk: &ChunkItem) -> bool {
        let length = stripe_length(chunk);
        let mut is_alone = true;
        for stripe in &chunk.stripes {
            if let Some((_, free)) = self.devices.get_mut(&stripe.devid) {
                // Volumes made long ago may have a chunk at the very start.
                let start = stripe.offset.0.max(RESERVED);
                let end = (stripe.offset.0 + length).max(start);
                is_alone &= free.overlapping(start, end).any(|(at, len)| at <= start && end <= at + len);
                free.remove_any(start, end - start);
            }
        }
        is_alone
    }

    /// Removes a chunk from the count, though its device extents stay in use.
    pub(crate) fn uncount(&mut self, chunk: &ChunkItem) {
        let length = stripe_length(chunk);
        for stripe in &chunk.stripes {
            if let Some((item, _)) = self.devices.get_mut(&stripe.devid) {
                item.bytes_used = item.bytes_used.saturating_sub(length);
            }
        }
    }

    /// Frees the device extents of a chunk that is no longer counted, and returns their ranges.
    pub(crate) fn vacate(&mut self, chunk: &ChunkItem) -> Vec<(DeviceId, u64, u64)> {
        let length = stripe_length(chunk);
        // Volumes made long ago may have a chunk at the very start.
        let place = |stripe: &Stripe| {
            let start = stripe.offset.0.max(RESERVED);
            (stripe.devid, start, (stripe.offset.0 + length).saturating_sub(start))
        };
        let places: Vec<_> = chunk.stripes.iter().map(place).collect();
        for (devid, start, len) in &places {
            self.release(*devid, *start, *len);
        }
        places
    }

    /// Excludes the first unallocated range in `start..end` of a device, clipped to that, until it
    /// is released.
    pub fn exclude(&mut self, devid: DeviceId, start: u64, end: u64) -> Option<(u64, u64)> {
        let (_, free) = self.devices.get_mut(&devid)?;
        let (at, len) = free.overlapping(start, end).next()?;
        let (from, to) = (at.max(start), (at + len).min(end));
        let excluded = free.remove(from, to - from);
        assert!(excluded, "invariant 19: {from}..{to} is discarded, and chunks have some of it");
        Some((from, to - from))
    }

    /// Makes a range unallocated.
    pub fn release(&mut self, devid: DeviceId, start: u64, len: u64) {
        let Some((_, free)) = self.devices.get_mut(&devid) else { return };
        let mut end = start + len;
        if let Some((limit, behind)) = self.limited.get_mut(&devid)
            && end > *limit
        {
            let from = start.max(*limit);
            let fresh = behind.insert(from, end - from);
            assert!(fresh, "invariant 18: device space at {from} given back twice");
            end = from;
        }
        if start < end {
            let fresh = free.insert(start, end - start);
            assert!(fresh, "invariant 18: device space at {start} given back twice");
        }
    }

    /// Cuts off each device behind its last chunk. Returns how many bytes that are.
    pub(crate) fn cut_off_unallocated(&mut self) -> u64 {
        let mut cut = 0;
        for (item, free) in self.devices.values_mut() {
            let end = item.total_bytes;
            let last = free.iter().next_back().filter(|(start, len)| start + len == end);
            if let Some((start, len)) = last {
                free.remove_any(start, len);
                item.total_bytes = start;
                cut += len;
            }
        }
        cut
    }

    /// Returns the bytes of all devices.
    pub fn total_bytes(&self) -> u64 {
        self.devices.values().fold(0, |sum, (item, _)| sum.saturating_add(item.total_bytes))
    }

    /// Returns how many bytes of the open devices no chunk has.
    pub(crate) fn unallocated(&self) -> u64 {
        self.open().fold(0, |sum, (_, _, free)| sum.saturating_add(free.total()))
    }

    /// Returns the device items.
    pub fn items(&self) -> Vec<DevItem> {
        self.devices.values().map(|(item, _)| *item).collect()
    }

    /// Finds and takes room for a chunk of up to `want` logical bytes (at least `least`) on as many
    /// devices as its profile uses. Lagging devices get no more stripes than the chunk can do
    /// without.
    pub(crate) fn place(
        &mut self,
        flags: BlockGroupFlags,
        want: u64,
        least: u64,
        lagging: &[DeviceId],
    ) -> Option<Placement> {
        let raid = flags.raid()?;
        let placement = if raid.most_devices == Some(1) {
            self.place_on_one_device(raid.copies, want, least, lagging)?
        } else {
            self.place_on_several_devices(&raid, want, least, lagging)?
        };
        for stripe in &placement.stripes {
            let (item, free) = self.devices.get_mut(&stripe.devid)?;
            let length = placement.length / raid.data_stripes(placement.stripes.len());
            let taken = free.remove(stripe.offset.0, length);
            assert!(taken, "invariant 18: a chunk is placed where another one is");
            item.bytes_used += length;
        }
        Some(placement)
    }

    /// Finds room on the device with the most free space.
    fn place_on_one_device(&self, copies: u64, want: u64, least: u64, lagging: &[DeviceId]) -> Option<Placement> {
        let is_current = |(devid, ..): &(&DeviceId, &DevItem, &FreeMap)| !lagging.contains(devid);
        let (devid, item, free) = self.open().filter(is_current).max_by_key(|(_, _, free)| free.total())?;
        let length = chunk_length(free, copies, want, least)?;
        let mut trial = free.clone();
        let mut stripes = Vec::new();
        for _ in 0..copies {
            let (start, _) = trial.find(0, length, STRIPE_LEN).filter(|(_, len)| *len == length)?;
            trial.remove(start, length);
            stripes.push(Stripe { devid: *devid, offset: Physical(start), dev_uuid: item.uuid });
        }
        Some(Placement { length, stripes })
    }

    /// Finds room on the devices with the largest contiguous free ranges, as the kernel chooses
    /// them. The smallest of these ranges bounds the length of all stripes.
    fn place_on_several_devices(
        &self,
        raid: &RaidProfile,
        want: u64,
        least: u64,
        lagging: &[DeviceId],
    ) -> Option<Placement> {
        let mut rooms: Vec<(u64, u64, DeviceId)> = Vec::new();
        for (devid, _, free) in self.open() {
            let largest = free.iter().filter_map(aligned).map(|(_, len)| len).max().unwrap_or(0);
            if largest >= MIN_STRIPE {
                rooms.push((largest, free.total(), *devid));
            }
        }
        let lags = |devid: &DeviceId| lagging.contains(devid);
        rooms.sort_by_key(|(largest, total, devid)| (lags(devid), Reverse(*largest), Reverse(*total), *devid));
        let current = rooms.iter().filter(|(.., devid)| !lags(devid)).count();
        rooms.truncate(current + raid.tolerated_losses() as usize);
        let most = raid.most_devices.unwrap_or(MAX_STRIPES).min(rooms.len());
        rooms.truncate(most - most % raid.devices_step);
        let enough = rooms.len() >= raid.least_devices;
        let bound = rooms.iter().map(|(largest, ..)| *largest).min().filter(|_| enough)?;
        let data_stripes = raid.data_stripes(rooms.len());
        let wanted = want.div_ceil(data_stripes).next_multiple_of(STRIPE_LEN).max(MIN_STRIPE);
        let length = wanted.min(bound);
        if length * data_stripes < least {
            return None;
        }
        let place = |(_, _, devid): &(u64, u64, DeviceId)| {
            let (item, free) = self.devices.get(devid)?;
            let (start, _) = free.find(0, length, STRIPE_LEN).filter(|(_, len)| *len == length)?;
            Some(Stripe { devid: *devid, offset: Physical(start), dev_uuid: item.uuid })
        };
        let stripes: Option<Vec<Stripe>> = rooms.iter().map(place).collect();
        Some(Placement { length: length * data_stripes, stripes: stripes? })
    }

    /// Returns how many logical bytes chunks of at least `least` logical bytes can have, without
    /// those of superblock copies.
    pub(crate) fn room(&self, flags: BlockGroupFlags, least: u64) -> u64 {
        let Some(raid) = flags.raid() else { return 0 };
        let room = |free: &FreeMap, copies: u64, least: u64| -> u64 {
            let of_a_range = |(start, len): (u64, u64)| {
                let taken =
                    SUPERBLOCK_COPIES.iter().filter(|copy| (start..start + len).contains(&copy.0)).count() as u64;
                // A superblock copy that a chunk leaves out on one of its stripes is left out on
                // the others.
                len / (copies * STRIPE_LEN) * STRIPE_LEN - taken * STRIPE_LEN
            };
            free.iter().filter_map(aligned).filter(|(_, len)| *len >= copies * least).map(of_a_range).sum()
        };
        if raid.most_devices == Some(1) {
            return self.open().map(|(_, _, free)| room(free, raid.copies, least)).sum();
        }
        let rooms: Vec<u64> = self.open().map(|(_, _, free)| room(free, 1, MIN_STRIPE)).collect();
        room_of_several(&raid, rooms)
    }

    /// Returns the logical ranges of a chunk that overlap superblock copies. They are never
    /// allocated.
    pub(crate) fn superblock_ranges(start: Logical, chunk: &ChunkItem) -> Vec<(Logical, u64)> {
        let mut ranges = Vec::new();
        let length = stripe_length(chunk);
        let data_stripes = data_stripes(chunk);
        for stripe in &chunk.stripes {
            for copy in SUPERBLOCK_COPIES {
                let Some(offset) = copy.0.checked_sub(stripe.offset.0).filter(|offset| *offset < length) else {
                    continue;
                };
                if data_stripes == 1 {
                    ranges.push((start.plus(offset), STRIPE_LEN));
                } else {
                    // If the chunk is striped, the whole row is excluded, which is simple and costs
                    // little space.
                    let row = offset / STRIPE_LEN * STRIPE_LEN * data_stripes;
                    ranges.push((start.plus(row), STRIPE_LEN * data_stripes));
                }
            }
        }
        ranges
    }
}

/// Returns how many logical bytes devices with this much room hold together: chunks are made on as
/// many as have room, until too few have.
fn room_of_several(raid: &RaidProfile, mut rooms: Vec<u64>) -> u64 {
    if let (0, true) = (raid.parities, raid.copies > 1) {
        // The most that fits if no device has two copies of anything.
        let fits = |bytes: u64| rooms.iter().map(|room| (*room).min(bytes)).sum::<u64>() / raid.copies >= bytes;
        let (mut low, mut high) = (0, rooms.iter().sum::<u64>() / raid.copies / STRIPE_LEN);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            (low, high) = if fits(middle * STRIPE_LEN) { (middle, high) } else { (low, middle - 1) };
        }
        return low * STRIPE_LEN;
    }
    let mut bytes = 0;
    loop {
        rooms.retain(|room| *room >= MIN_STRIPE);
        let Some(least) = rooms.iter().copied().min().filter(|_| rooms.len() >= raid.least_devices) else {
            return bytes;
        };
        bytes += least * raid.data_stripes(rooms.len());
        for room in &mut rooms {
            *room -= least;
        }
    }
}

/// Returns the part of a free range that stripes can use.
fn aligned((start, len): (u64, u64)) -> Option<(u64, u64)> {
    let from = start.checked_next_multiple_of(STRIPE_LEN)?;
    let len = (start + len).checked_sub(from)? / STRIPE_LEN * STRIPE_LEN;
    (len > 0).then_some((from, len))
}

/// Returns the length of a chunk: the wanted one, or a little more if the rest would be too small
/// for another chunk, or less, but at least `least`, if there is less space.
fn chunk_length(free: &FreeMap, copies: u64, want: u64, least: u64) -> Option<u64> {
    let split = |len: u64| len / copies / STRIPE_LEN * STRIPE_LEN;
    let (mut largest, mut second) = (0, 0);
    for (_, len) in free.iter().filter_map(aligned) {
        if len >= copies * want {
            return Some(if len < copies * (want + least) { split(len) } else { want });
        }
        if len > largest {
            (largest, second) = (len, largest);
        } else {
            second = second.max(len);
        }
    }
    let length = if copies == 1 { largest } else { split(largest).max(second) }.min(want);
    (length >= least).then_some(length)
}

/// Returns how many stripes of a row hold different data.
fn data_stripes(chunk: &ChunkItem) -> u64 {
    chunk.flags.raid().map_or(1, |raid| raid.data_stripes(chunk.stripes.len()))
}

/// Returns how many bytes a chunk has on each of its devices.
pub fn stripe_length(chunk: &ChunkItem) -> u64 {
    chunk.length / data_stripes(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Three devices, of which the third has the most room.
    fn map() -> DeviceMap {
        let item = |number: u64| DevItem { devid: DeviceId(number), total_bytes: number * GIB, ..DevItem::default() };
        DeviceMap::new(&[item(1), item(2), item(3)], [])
    }

    fn placed(flags: BlockGroupFlags, lagging: &[u64]) -> Option<Vec<u64>> {
        let lagging: Vec<DeviceId> = lagging.iter().copied().map(DeviceId).collect();
        let placement = map().place(flags, 64 << 20, 1 << 20, &lagging)?;
        Some(placement.stripes.iter().map(|stripe| stripe.devid.0).collect())
    }

    /// Of invariant 34: content that no other device has would be lost with a device that lags.
    #[test]
    fn devices_that_lag_get_no_more_of_a_chunk_than_it_can_do_without() {
        let data = |profile| BlockGroupFlags::DATA.with(profile);
        let single = BlockGroupFlags::DATA;
        assert_eq!(placed(single, &[]), Some(vec![3]));
        assert_eq!(placed(single, &[3]), Some(vec![2]));
        assert_eq!(placed(data(BlockGroupFlags::DUP), &[3, 2]), Some(vec![1, 1]));
        assert_eq!(placed(single, &[1, 2, 3]), None);
        assert_eq!(placed(data(BlockGroupFlags::RAID0), &[3]), Some(vec![2, 1]));
        assert_eq!(placed(data(BlockGroupFlags::RAID1), &[]), Some(vec![3, 2]));
        assert_eq!(placed(data(BlockGroupFlags::RAID1), &[3]), Some(vec![2, 1]));
        assert_eq!(placed(data(BlockGroupFlags::RAID1), &[3, 2]), Some(vec![1, 3]));
        assert_eq!(placed(data(BlockGroupFlags::RAID1), &[1, 2, 3]), None);
        assert_eq!(placed(data(BlockGroupFlags::RAID1C3), &[2, 3]), Some(vec![1, 3, 2]));
        assert_eq!(placed(data(BlockGroupFlags::RAID1C3), &[1, 2, 3]), None);
    }
}

//! What of each device belongs to chunks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::MAX_STRIPES;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, DevItem, RaidProfile, STRIPE_LEN, Stripe};
use ubtrfs_format::{DeviceId, Logical, Physical, SUPERBLOCK_COPIES};

use crate::device_changes::DeviceChanges;
use crate::free_map::FreeMap;

/// The start of a device is never given to chunks.
const RESERVED: u64 = 1 << 20;
/// No stripe of a chunk on several devices is shorter.
const MIN_STRIPE: u64 = 1 << 20;

/// Whether devices are to end where their last chunks end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shrink {
    No,
    /// The next commit does it.
    Wanted,
    /// The commit in progress has taken so many bytes from them.
    Done(u64),
}

/// The devices of a volume and their unallocated ranges.
pub struct DeviceMap {
    devices: BTreeMap<DeviceId, (DevItem, FreeMap)>,
    /// Devices that get no chunks: they are missing, or will be removed.
    closed: BTreeSet<DeviceId>,
    /// Devices that get no chunks from a place on, since they will end there, and what is
    /// unallocated behind that.
    limited: BTreeMap<DeviceId, (u64, FreeMap)>,
    /// What the next commit changes of them.
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
    /// All of the devices free, but for their start. `closed` ones get no chunks.
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

    /// A device that was missing is there, or one is not to be removed any more: it gets chunks.
    pub fn open_again(&mut self, devid: DeviceId) {
        self.closed.remove(&devid);
    }

    /// A device gets no chunks any more. Whether it got any before; `None` if there is no such
    /// device.
    pub fn close(&mut self, devid: DeviceId) -> Option<bool> {
        self.devices.contains_key(&devid).then(|| self.closed.insert(devid))
    }

    /// A device gets no chunks from this place on.
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

    /// It gets chunks there again.
    pub fn lift_limit(&mut self, devid: DeviceId) {
        if let (Some((_, behind)), Some((_, free))) = (self.limited.remove(&devid), self.devices.get_mut(&devid)) {
            for (start, len) in behind.iter() {
                let is_new = free.insert(start, len);
                assert!(is_new, "invariant 18: device space behind a limit, at {start}, was free before it");
            }
        }
    }

    /// A device ends elsewhere; no chunk has anything behind that. Where it grows, chunks get the
    /// new room only when that is [lifted](Self::lift_limit): the volume has the device as it was
    /// until a commit changes its item. Returns where it ended before.
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

    /// The device goes with the next commit; no chunk has anything on it. `None` if there is no
    /// such device.
    pub fn remove(&mut self, devid: DeviceId) -> Option<DevItem> {
        let (item, _) = self.devices.remove(&devid)?;
        self.closed.remove(&devid);
        self.limited.remove(&devid);
        self.changes.removed.push(item);
        Some(item)
    }

    /// Takes the changes of devices that the commit in progress writes.
    pub fn take_changes(&mut self) -> DeviceChanges {
        std::mem::take(&mut self.changes)
    }

    /// Whether the next commit has something to change of the devices.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty() || self.shrink == Shrink::Wanted
    }

    /// The next commit ends the devices where their last chunks end.
    pub fn shrink(&mut self) {
        self.shrink = Shrink::Wanted;
    }

    /// Ends the devices where their last chunks end, if the commit in progress is to do that;
    /// returns whether it is.
    pub fn cut(&mut self) -> bool {
        if self.shrink == Shrink::Wanted {
            self.shrink = Shrink::Done(self.cut_off_unallocated());
        }
        self.shrink != Shrink::No
    }

    /// Bytes that the commit in progress has taken from the devices.
    pub fn take_cut(&mut self) -> u64 {
        match std::mem::replace(&mut self.shrink, Shrink::No) {
            Shrink::Done(bytes) => bytes,
            Shrink::No | Shrink::Wanted => 0,
        }
    }

    /// The item of a device.
    pub fn item(&self, devid: DeviceId) -> Option<DevItem> {
        self.devices.get(&devid).map(|(item, _)| *item)
    }

    /// A device that the volume gets: the next commit adds its item.
    pub fn add(&mut self, item: DevItem) {
        self.put(item);
        self.changes.added.push(item);
    }

    fn put(&mut self, item: DevItem) {
        let mut free = FreeMap::default();
        free.insert(RESERVED, item.total_bytes.saturating_sub(RESERVED));
        self.devices.insert(item.devid, (item, free));
    }

    /// The devices that get chunks, and their unallocated ranges.
    fn open(&self) -> impl Iterator<Item = (&DeviceId, &DevItem, &FreeMap)> {
        let is_open = |(devid, _): &(&DeviceId, &(DevItem, FreeMap))| !self.closed.contains(devid);
        self.devices.iter().filter(is_open).map(|(devid, (item, free))| (devid, item, free))
    }

    /// How many devices get chunks.
    pub fn open_devices(&self) -> usize {
        self.open().count()
    }

    /// Takes what a chunk of the volume has. Whether no other chunk has any of that.
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

    /// Frees the device extents of a chunk that is no longer counted; returns the ranges.
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

    /// Takes the first unallocated range in `start..end` of a device, clipped to that, temporarily.
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

    /// Sets the used bytes in the device items to those of the chunks.
    pub(crate) fn recount(&mut self, chunks: &[(Logical, ChunkItem)]) {
        for (item, _) in self.devices.values_mut() {
            let stripes = chunks.iter().flat_map(|(_, chunk)| chunk.stripes.iter().map(move |stripe| (stripe, chunk)));
            let own = stripes.filter(|(stripe, _)| stripe.devid == item.devid);
            item.bytes_used = own.fold(0, |sum, (_, chunk)| sum.saturating_add(stripe_length(chunk)));
        }
    }

    /// Ends each device where its last chunk ends. Returns the bytes that are cut off.
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

    /// Bytes of all devices.
    pub fn total_bytes(&self) -> u64 {
        self.devices.values().fold(0, |sum, (item, _)| sum.saturating_add(item.total_bytes))
    }

    /// Device bytes that no chunk has.
    pub(crate) fn unallocated(&self) -> u64 {
        self.open().fold(0, |sum, (_, _, free)| sum.saturating_add(free.total()))
    }

    /// The device items.
    pub fn items(&self) -> Vec<DevItem> {
        self.devices.values().map(|(item, _)| *item).collect()
    }

    /// Finds room for a chunk of up to `want` logical bytes (at least `least`) on as many devices
    /// as its profile uses, and takes it. Of devices that lag it gets no more than it can do
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

    /// On the device with the most room.
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

    /// On the devices with the largest contiguous rooms, as the kernel chooses them; the smallest
    /// of these rooms bounds the length of all stripes.
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

    /// Logical bytes that chunks of at least `least` logical bytes can get, without those of
    /// superblock copies.
    pub(crate) fn room(&self, flags: BlockGroupFlags, least: u64) -> u64 {
        let Some(raid) = flags.raid() else { return 0 };
        let room = |free: &FreeMap, copies: u64, least: u64| -> u64 {
            let of_a_range = |(start, len): (u64, u64)| {
                let taken =
                    SUPERBLOCK_COPIES.iter().filter(|copy| (start..start + len).contains(&copy.0)).count() as u64;
                // A copy that a chunk leaves out on one of its stripes is left out on the others.
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

    /// Logical ranges of a chunk that overlap superblock copies; never allocated.
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
                    // Striped: the whole row is excluded, which is simple and costs little space.
                    let row = offset / STRIPE_LEN * STRIPE_LEN * data_stripes;
                    ranges.push((start.plus(row), STRIPE_LEN * data_stripes));
                }
            }
        }
        ranges
    }
}

/// Logical bytes that devices with these rooms hold together: chunks are made on as many as have
/// room, until too few have.
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

/// What stripes can have of a free range.
fn aligned((start, len): (u64, u64)) -> Option<(u64, u64)> {
    let from = start.checked_next_multiple_of(STRIPE_LEN)?;
    let len = (start + len).checked_sub(from)? / STRIPE_LEN * STRIPE_LEN;
    (len > 0).then_some((from, len))
}

/// The length of a chunk: the wanted one; a little longer where the rest would be too small for
/// another; shorter where there is less space, but at least `least`.
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

/// Stripes of a row that hold different data.
fn data_stripes(chunk: &ChunkItem) -> u64 {
    chunk.flags.raid().map_or(1, |raid| raid.data_stripes(chunk.stripes.len()))
}

/// Bytes that a chunk has on each of its devices.
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

    /// Of invariant 34: what nobody else has would be lost with a device that lags.
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

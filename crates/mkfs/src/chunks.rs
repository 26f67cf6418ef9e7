//! The places and sizes of the first chunks.
//!
//! Offsets and sizes are those of mkfs.btrfs 7.3 (seen with sizes from 16 MiB to 400 GiB, on one to
//! four devices). It starts with small single chunks at 1, 5 and 13 MiB of the first device. Chunks
//! with the single profile stay there; all others follow them. On other devices chunks begin at 1
//! MiB.

use std::cmp::Reverse;

use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, MAX_STRIPES, STRIPE_LEN, Stripe};
use ubtrfs_format::units::{GIB, MIB};
use ubtrfs_format::{DeviceId, Logical, Physical};

use crate::options::{MkfsOptions, NewDevice, Profile};
use crate::{MkfsError, Result};

/// The single system chunk: 4 MiB at 1 MiB.
const SYSTEM_AT: u64 = MIB;
const SYSTEM_SINGLE: u64 = 4 * MIB;
/// The single metadata (or mixed) chunk: 8 MiB at 5 MiB.
const METADATA_AT: u64 = 5 * MIB;
/// The single data chunk: 8 MiB at 13 MiB.
const DATA_AT: u64 = 13 * MIB;
const SMALL: u64 = 8 * MIB;
/// The address on the first device from which chunks with copies or several devices are placed. The
/// first of them has equal logical and physical addresses.
const OTHERS_AT: u64 = 21 * MIB;
const OTHERS_AT_MIXED: u64 = 13 * MIB;
/// The same address on the other devices.
const OTHERS_AT_OTHER_DEVICES: u64 = MIB;
/// Volumes that are larger than this get large metadata chunks.
const LARGE_VOLUME: u64 = 50 * GIB;
/// The least bytes of a stripe of data and of metadata, if there is room.
const USUAL_MIN_OF_DATA: u64 = 64 * MIB;
const USUAL_MIN_OF_METADATA: u64 = 32 * MIB;
/// The least bytes of a stripe, except of system chunks, on several devices that are smaller than
/// mkfs.btrfs accepts.
const MIN_STRIPE: u64 = 16 * MIB;
/// The most bytes of a chunk, however many devices it is on.
const MAX_DATA: u64 = 10 * GIB;
const MAX_SYSTEM: u64 = 16 * MIB;
/// The least bytes of a device if there are several.
const MIN_DEVICE: u64 = 16 * MIB;

/// A chunk of the new volume, and its block group.
pub(crate) struct Chunk {
    pub start: Logical,
    pub length: u64,
    pub flags: BlockGroupFlags,
    profile: Profile,
    pub stripes: Vec<(DeviceId, Physical)>,
}

impl Chunk {
    /// Returns the bytes of each of its stripes.
    pub fn stripe_length(&self) -> u64 {
        self.length / self.data_stripes()
    }

    fn data_stripes(&self) -> u64 {
        self.profile.raid().data_stripes(self.stripes.len())
    }

    /// Returns the places of the copies of a block at this address.
    pub fn copies_of(&self, at: Logical) -> impl Iterator<Item = (DeviceId, Physical)> {
        let inside = at.0 - self.start.0;
        let (row, column) = (inside / STRIPE_LEN / self.data_stripes(), inside / STRIPE_LEN % self.data_stripes());
        let copies = self.profile.raid().copies as usize;
        let mirrors = self.stripes.iter().skip(column as usize * copies).take(copies);
        mirrors.map(move |(devid, start)| (*devid, start.plus(row * STRIPE_LEN + inside % STRIPE_LEN)))
    }

    pub fn item(&self, options: &MkfsOptions) -> ChunkItem {
        let uuid_of = |devid| {
            let device = options.devices().find(|(id, _)| *id == devid);
            device.map_or(options.device_uuid, |(_, device)| device.uuid)
        };
        let stripe = |(devid, offset): &(DeviceId, Physical)| Stripe {
            devid: *devid,
            offset: *offset,
            dev_uuid: uuid_of(*devid),
        };
        ChunkItem {
            length: self.length,
            owner: ubtrfs_format::TreeId::EXTENT.0,
            stripe_len: STRIPE_LEN,
            flags: self.flags,
            io_align: STRIPE_LEN as u32,
            io_width: STRIPE_LEN as u32,
            sector_size: options.sector_size,
            sub_stripes: self.profile.raid().sub_stripes,
            stripes: self.stripes.iter().map(stripe).collect(),
        }
    }
}

/// The chunks of the new volume, ascending.
pub(crate) struct Chunks {
    pub all: Vec<Chunk>,
    /// The index in `all` of the chunk that holds the chunk tree.
    pub system: usize,
    /// The index in `all` of the chunk that holds all other trees.
    pub metadata: usize,
}

/// A chunk that the volume is to have.
struct Wanted {
    flags: BlockGroupFlags,
    profile: Profile,
    /// Its address and its bytes if it is single.
    single: (u64, u64),
    /// The least bytes of each stripe if it is not single.
    least: u64,
    lengths: Lengths,
}

/// The lengths of the stripes of a chunk that is not single.
struct Lengths {
    /// The bytes of a stripe in a large volume.
    stripe: u64,
    /// The least bytes of a stripe, if there is room.
    usual_least: u64,
    /// The most bytes of the chunk.
    most: u64,
    /// The most bytes of the chunk for a volume that is filled and shrunk.
    largest: u64,
}

impl Lengths {
    /// Returns the bytes of each of so many stripes, `data_stripes` of which have distinct data.
    /// `bound` is the room on the devices.
    fn of_stripe(&self, stripes: u64, data_stripes: u64, bound: u64) -> u64 {
        let mut length = self.stripe;
        if length * data_stripes > self.most {
            length = self.most / stripes;
        }
        length.max(self.usual_least).min(self.largest / data_stripes).min(bound) / STRIPE_LEN * STRIPE_LEN
    }
}

impl Wanted {
    fn is_single(&self) -> bool {
        self.profile == Profile::Single
    }

    /// Returns the least bytes that it takes on each of its devices, in the area of chunks that are
    /// not single.
    fn least_of_device(&self) -> u64 {
        if self.is_single() { 0 } else { self.least * self.profile.raid().device_stripes }
    }
}

/// Returns the chunks that a volume of `total` bytes is to have, in the order in which they are
/// placed.
fn wanted(options: &MkfsOptions, total: u64) -> Vec<Wanted> {
    let (data, metadata) = (options.data_profile(), options.metadata_profile());
    let largest = options.largest_chunk.map_or(u64::MAX, |largest| (largest - largest % STRIPE_LEN).max(SMALL));
    let tenth = total / 10;
    let of_data = |flags, single| Wanted {
        flags,
        profile: data,
        single,
        least: if data == Profile::Dup { USUAL_MIN_OF_DATA } else { MIN_STRIPE }.min(largest),
        lengths: Lengths { stripe: GIB, usual_least: USUAL_MIN_OF_DATA, most: MAX_DATA.min(tenth), largest },
    };
    let system = Wanted {
        flags: BlockGroupFlags::SYSTEM,
        profile: metadata,
        single: (SYSTEM_AT, SYSTEM_SINGLE),
        least: SMALL,
        lengths: Lengths { stripe: SMALL, usual_least: MIB, most: MAX_SYSTEM, largest: u64::MAX },
    };
    if options.mixed {
        let kind = BlockGroupFlags::METADATA.with(BlockGroupFlags::DATA);
        return vec![system, of_data(kind, (METADATA_AT, SMALL))];
    }
    let most = if total > LARGE_VOLUME { GIB } else { 256 * MIB };
    let of_metadata = Wanted {
        flags: BlockGroupFlags::METADATA,
        profile: metadata,
        single: (METADATA_AT, SMALL),
        least: if metadata == Profile::Dup { USUAL_MIN_OF_METADATA } else { MIN_STRIPE }.min(largest),
        lengths: Lengths { stripe: most, usual_least: USUAL_MIN_OF_METADATA, most: most.min(tenth), largest },
    };
    vec![system, of_metadata, of_data(BlockGroupFlags::DATA, (DATA_AT, SMALL))]
}

/// The addresses from which the next chunk that is not single is placed.
struct Cursor {
    logical: u64,
    devices: Vec<DeviceCursor>,
}

struct DeviceCursor {
    devid: DeviceId,
    size: u64,
    next: u64,
}

impl DeviceCursor {
    fn new(options: &MkfsOptions, devid: DeviceId, device: NewDevice) -> Self {
        let next = if devid == DeviceId(1) { first_of_others(options) } else { OTHERS_AT_OTHER_DEVICES };
        Self { devid, size: options.whole_sectors(device.total_bytes), next }
    }

    /// Returns how many bytes chunks may still take, without those that are kept for later ones.
    fn room(&self, kept: u64) -> u64 {
        self.size.saturating_sub(self.next).saturating_sub(kept)
    }
}

/// Returns the address on the first device from which chunks that are not single are placed.
fn first_of_others(options: &MkfsOptions) -> u64 {
    if options.mixed { OTHERS_AT_MIXED } else { OTHERS_AT }
}

impl Cursor {
    /// Places a chunk on the devices with the most room; `kept` bytes of each are for later ones.
    fn place(&mut self, wanted: &Wanted, kept: u64) -> Result<Chunk> {
        let raid = wanted.profile.raid();
        let mut order: Vec<usize> = (0..self.devices.len()).collect();
        order.sort_by_key(|index| (Reverse(self.devices[*index].room(0)), *index));
        let fits = |index: &&usize| self.devices[**index].room(kept) >= wanted.least_of_device();
        let fitting = order.iter().take_while(fits).count();
        if fitting < raid.least_devices {
            let DeviceCursor { devid, size, next } = &self.devices[order[fitting]];
            let minimum = (next + kept + wanted.least_of_device()).next_multiple_of(MIB);
            return Err(MkfsError::DeviceTooSmall { devid: devid.0, size: *size, minimum });
        }
        let count = raid.most_devices.unwrap_or(MAX_STRIPES).min(fitting);
        order.truncate(count - count % raid.devices_step);
        let bound = order.last().map_or(0, |index| self.devices[*index].room(kept)) / raid.device_stripes;
        order.sort_unstable();
        let stripes = order.len() as u64 * raid.device_stripes;
        let data_stripes = raid.data_stripes(stripes as usize);
        let length = wanted.lengths.of_stripe(stripes, data_stripes, bound);
        let mut placed = Vec::new();
        for index in order {
            let device = &mut self.devices[index];
            for _ in 0..raid.device_stripes {
                placed.push((device.devid, Physical(device.next)));
                device.next += length;
            }
        }
        let chunk = Chunk {
            start: Logical(self.logical),
            length: length * data_stripes,
            flags: wanted.flags.with(wanted.profile.flag()),
            profile: wanted.profile,
            stripes: placed,
        };
        self.logical += chunk.length;
        Ok(chunk)
    }
}

/// Plans the chunks, or fails with the size that the device would need.
pub(crate) fn plan(options: &MkfsOptions) -> Result<Chunks> {
    let total = options.usable_bytes();
    check_sizes(options)?;
    let wanted = wanted(options, total);
    let devices = options.devices().map(|(devid, device)| DeviceCursor::new(options, devid, device)).collect();
    let mut cursor = Cursor { logical: first_of_others(options), devices };
    let mut all = Vec::new();
    for (index, chunk) in wanted.iter().enumerate() {
        let kept = wanted[index + 1..].iter().map(Wanted::least_of_device).sum();
        all.push(match (chunk.is_single(), chunk.single) {
            (true, (at, length)) => Chunk {
                start: Logical(at),
                length,
                flags: chunk.flags,
                profile: chunk.profile,
                stripes: vec![(DeviceId(1), Physical(at))],
            },
            (false, _) => cursor.place(chunk, kept)?,
        });
    }
    all.sort_by_key(|chunk| chunk.start);
    let find = |flag| all.iter().position(|chunk| chunk.flags.contains(flag)).unwrap_or(0);
    let (system, metadata) = (find(BlockGroupFlags::SYSTEM), find(BlockGroupFlags::METADATA));
    Ok(Chunks { all, system, metadata })
}

/// Refuses devices that are too small however the chunks are placed.
fn check_sizes(options: &MkfsOptions) -> Result<()> {
    if options.more_devices.is_empty() {
        let minimum = minimum_bytes(options);
        if options.usable_bytes() < minimum {
            return Err(MkfsError::TooSmall { size: options.total_bytes, minimum });
        }
        return Ok(());
    }
    for (devid, device) in options.devices() {
        let minimum = if devid == DeviceId(1) { first_of_others(options).max(MIN_DEVICE) } else { MIN_DEVICE };
        if options.whole_sectors(device.total_bytes) < minimum {
            return Err(MkfsError::DeviceTooSmall { devid: devid.0, size: device.total_bytes, minimum });
        }
    }
    Ok(())
}

/// Returns the least bytes of the only device for these options. They are those of mkfs.btrfs,
/// which leaves some room beside the first chunks; or, if that is too small (mixed DUP), those that
/// the chunks really take.
pub fn minimum_bytes(options: &MkfsOptions) -> u64 {
    let asked = if options.mixed {
        16 * MIB
    } else {
        let metadata = if options.metadata_profile() == Profile::Single { 16 * MIB } else { 80 * MIB };
        let data = if options.data_profile() == Profile::Single { 8 * MIB } else { 128 * MIB };
        21 * MIB + metadata + data
    };
    let taken: u64 = wanted(options, 0).iter().map(Wanted::least_of_device).sum();
    asked.max((first_of_others(options) + taken).next_multiple_of(MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(total: u64, metadata: Profile, data: Profile, mixed: bool) -> MkfsOptions {
        MkfsOptions { metadata_profile: Some(metadata), data_profile: Some(data), mixed, ..MkfsOptions::new(total) }
    }

    fn ranges(options: &MkfsOptions) -> Vec<(u64, u64, Vec<u64>)> {
        let chunks = plan(options).unwrap().all;
        chunks.iter().map(|c| (c.start.0, c.length, c.stripes.iter().map(|(_, at)| at.0).collect())).collect()
    }

    /// Chunks as mkfs.btrfs 7.3 makes them.
    #[test]
    fn chunks_lie_where_mkfs_btrfs_puts_them() {
        use Profile::{Dup, Single};
        assert_eq!(
            ranges(&options(1 << 30, Dup, Single, false)),
            [
                (13_631_488, 8_388_608, vec![13_631_488]),
                (22_020_096, 8_388_608, vec![22_020_096, 30_408_704]),
                (30_408_704, 53_673_984, vec![38_797_312, 92_471_296]),
            ]
        );
        assert_eq!(
            ranges(&options(6 << 30, Dup, Dup, false)),
            [
                (22_020_096, 8_388_608, vec![22_020_096, 30_408_704]),
                (30_408_704, 268_435_456, vec![38_797_312, 307_232_768]),
                (298_844_160, 322_109_440, vec![575_668_224, 897_777_664]),
            ]
        );
        assert_eq!(
            ranges(&options(300 << 20, Single, Dup, false)),
            [
                (1_048_576, 4_194_304, vec![1_048_576]),
                (5_242_880, 8_388_608, vec![5_242_880]),
                (22_020_096, 67_108_864, vec![22_020_096, 89_128_960]),
            ]
        );
        assert_eq!(
            ranges(&options(300 << 20, Dup, Dup, true)),
            [
                (13_631_488, 8_388_608, vec![13_631_488, 22_020_096]),
                (22_020_096, 67_108_864, vec![30_408_704, 97_517_568]),
            ]
        );
        let large = ranges(&options(51 << 30, Dup, Single, false));
        assert_eq!(large[2], (30_408_704, 1 << 30, vec![38_797_312, 1_112_539_136]));
        assert_eq!(ranges(&options(50 << 30, Dup, Single, false))[2].1, 256 << 20);
    }

    fn on_several(sizes: &[u64], metadata: Profile, data: Profile) -> MkfsOptions {
        let device = |mib: &u64| NewDevice { total_bytes: mib * MIB, uuid: crate::random_uuid() };
        let more_devices = sizes[1..].iter().map(device).collect();
        MkfsOptions { more_devices, ..options(sizes[0] * MIB, metadata, data, false) }
    }

    /// Chunks on several devices as mkfs.btrfs 7.3 makes them.
    #[test]
    fn chunks_on_several_devices_lie_where_mkfs_btrfs_puts_them() {
        use Profile::{Raid1, Raid1c3, Single};
        assert_eq!(
            ranges(&on_several(&[600, 700], Raid1, Raid1)),
            [
                (22_020_096, 8_388_608, vec![22_020_096, 1_048_576]),
                (30_408_704, 68_157_440, vec![30_408_704, 9_437_184]),
                (98_566_144, 68_157_440, vec![98_566_144, 77_594_624]),
            ]
        );
        assert_eq!(
            ranges(&on_several(&[600, 700], Raid1, Single)),
            [
                (13_631_488, 8_388_608, vec![13_631_488]),
                (22_020_096, 8_388_608, vec![22_020_096, 1_048_576]),
                (30_408_704, 68_157_440, vec![30_408_704, 9_437_184]),
            ]
        );
        assert_eq!(
            ranges(&on_several(&[600, 700, 800], Raid1c3, Raid1c3))[2],
            (103_809_024, 73_400_320, vec![103_809_024, 82_837_504, 82_837_504])
        );
    }

    /// A device that is too small for its part is left out if the others are enough.
    #[test]
    fn chunks_are_on_the_devices_with_the_most_room() {
        let chunks = plan(&on_several(&[30, 900, 500, 700], Profile::Raid1, Profile::Raid0)).unwrap();
        let devices = |chunk: &Chunk| chunk.stripes.iter().map(|(devid, _)| devid.0).collect::<Vec<_>>();
        let of = |index: usize| devices(&chunks.all[index]);
        assert_eq!((of(0), of(1), of(2)), (vec![2, 4], vec![2, 4], vec![2, 3, 4]));
        let refusal = plan(&on_several(&[24, 30, 25, 29], Profile::Raid1, Profile::Raid0)).err();
        assert_eq!(refusal, Some(MkfsError::DeviceTooSmall { devid: 2, size: 30 * MIB, minimum: 41 * MIB }));
        let least = plan(&on_several(&[61, 900, 500, 700], Profile::Raid1, Profile::Raid10)).unwrap();
        assert_eq!(devices(&least.all[2]), [1, 2, 3, 4]);
    }

    #[test]
    fn blocks_of_striped_chunks_lie_on_their_rows_and_columns() {
        let chunks = plan(&on_several(&[200, 200, 200, 200], Profile::Raid10, Profile::Raid0)).unwrap();
        let metadata = &chunks.all[chunks.metadata];
        let at = |inside: u64| metadata.copies_of(metadata.start.plus(inside)).collect::<Vec<_>>();
        let stripes = &metadata.stripes;
        let moved = |index: usize, by: u64| (stripes[index].0, stripes[index].1.plus(by));
        assert_eq!(at(16384), [moved(0, 16384), moved(1, 16384)]);
        assert_eq!(at(STRIPE_LEN), [moved(2, 0), moved(3, 0)]);
        assert_eq!(at(2 * STRIPE_LEN + 4096), [moved(0, STRIPE_LEN + 4096), moved(1, STRIPE_LEN + 4096)]);
    }

    #[test]
    fn minima_are_those_of_mkfs_btrfs() {
        use Profile::{Dup, Single};
        let minimum = |metadata, data, mixed| minimum_bytes(&options(0, metadata, data, mixed));
        assert_eq!(minimum(Dup, Single, false), 114_294_784);
        assert_eq!(minimum(Single, Single, false), 47_185_920);
        assert_eq!(minimum(Dup, Dup, false), 240_123_904);
        assert_eq!(minimum(Single, Dup, false), 173_015_040);
        assert_eq!(minimum(Single, Single, true), 16_777_216);
        assert_eq!(minimum(Dup, Dup, true), 157 << 20);
    }

    #[test]
    fn chunks_never_overlap_nor_leave_the_device() {
        for total in (16..600).chain([900, 1500, 5000, 60_000, 2_000_000]).map(|mib| mib * MIB + 4096) {
            for metadata in [Profile::Single, Profile::Dup] {
                for data in [Profile::Single, Profile::Dup] {
                    for mixed in [false, true] {
                        let Ok(chunks) = plan(&options(total, metadata, data, mixed)) else { continue };
                        let stripes = chunks.all.iter().flat_map(|c| c.stripes.iter().map(|(_, at)| (at.0, c.length)));
                        let mut stripes: Vec<_> = stripes.collect();
                        stripes.sort_unstable();
                        assert!(stripes.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                        assert!(stripes.last().unwrap().0 + stripes.last().unwrap().1 <= total);
                        let ends = chunks.all.windows(2).all(|c| c[0].start.plus(c[0].length) <= c[1].start);
                        assert!(ends);
                    }
                }
            }
        }
    }
}

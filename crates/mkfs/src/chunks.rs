//! The first chunks: where they are and how large.
//!
//! Offsets and sizes are those of mkfs.btrfs 6.2 (observed over sizes from 16 MiB to 400 GiB). It
//! starts with small single chunks at 1, 5 and 13 MiB; chunks with the single profile stay there,
//! DUP chunks follow them.

use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, STRIPE_LEN, Stripe};
use ubtrfs_format::{DeviceId, Logical, Physical};

use crate::options::{MkfsOptions, Profile};
use crate::{MkfsError, Result};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The single system chunk: 4 MiB at 1 MiB.
const SYSTEM_AT: u64 = MIB;
const SYSTEM_SINGLE: u64 = 4 * MIB;
/// The single metadata (or mixed) chunk: 8 MiB at 5 MiB.
const METADATA_AT: u64 = 5 * MIB;
/// The single data chunk: 8 MiB at 13 MiB.
const DATA_AT: u64 = 13 * MIB;
const SMALL: u64 = 8 * MIB;
/// DUP chunks start here, the first at equal logical and physical addresses.
const DUP_AT: u64 = 21 * MIB;
const DUP_AT_MIXED: u64 = 13 * MIB;
/// The devices that get large metadata chunks are larger than this.
const LARGE_DEVICE: u64 = 50 * GIB;
/// What one device id names; a volume is made on one device.
pub(crate) const DEVICE: DeviceId = DeviceId(1);

/// A chunk of the new volume, and the block group that it is.
pub(crate) struct Chunk {
    pub start: Logical,
    pub length: u64,
    pub flags: BlockGroupFlags,
    pub stripes: Vec<Physical>,
}

impl Chunk {
    /// The end of its last stripe.
    fn device_end(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.0 + self.length).max().unwrap_or(0)
    }

    pub fn item(&self, options: &MkfsOptions) -> ChunkItem {
        let stripe = |offset: &Physical| Stripe { devid: DEVICE, offset: *offset, dev_uuid: options.device_uuid };
        ChunkItem {
            length: self.length,
            owner: ubtrfs_format::TreeId::EXTENT.0,
            stripe_len: STRIPE_LEN,
            flags: self.flags,
            io_align: STRIPE_LEN as u32,
            io_width: STRIPE_LEN as u32,
            sector_size: options.sector_size,
            sub_stripes: 1,
            stripes: self.stripes.iter().map(stripe).collect(),
        }
    }
}

/// The chunks of the new volume, ascending.
pub(crate) struct Chunks {
    pub all: Vec<Chunk>,
    /// The one of `all` that holds the chunk tree.
    pub system: usize,
    /// The one that holds all other trees.
    pub metadata: usize,
}

/// The offset of the next DUP chunk.
struct Cursor {
    logical: u64,
    physical: u64,
}

impl Cursor {
    fn dup(&mut self, length: u64, flags: BlockGroupFlags) -> Chunk {
        let stripes = vec![Physical(self.physical), Physical(self.physical + length)];
        let chunk = Chunk { start: Logical(self.logical), length, flags, stripes };
        self.logical += length;
        self.physical += 2 * length;
        chunk
    }
}

fn single(at: u64, length: u64, flags: BlockGroupFlags) -> Chunk {
    Chunk { start: Logical(at), length, flags, stripes: vec![Physical(at)] }
}

/// A twentieth of the device (both copies are a tenth) in whole stripes, within bounds; or the
/// largest that is asked for.
fn dup_length(options: &MkfsOptions, total_bytes: u64, least: u64, most: u64) -> u64 {
    let share = total_bytes / 20;
    let length = (share - share % STRIPE_LEN).clamp(least, most);
    options.largest_chunk.map_or(length, |largest| length.min((largest - largest % STRIPE_LEN).max(SMALL)))
}

/// Plans the chunks, or says how large the device would have to be.
pub(crate) fn plan(options: &MkfsOptions) -> Result<Chunks> {
    let total = options.usable_bytes();
    let minimum = minimum_bytes(options);
    if total < minimum {
        return Err(MkfsError::TooSmall { size: options.total_bytes, minimum });
    }
    let chunks = plan_for(options, total);
    debug_assert!(chunks.all.iter().all(|chunk| chunk.device_end() <= total));
    Ok(chunks)
}

fn plan_for(options: &MkfsOptions, total: u64) -> Chunks {
    let (data, metadata) = (options.data_profile(), options.metadata_profile());
    let mut cursor = if options.mixed {
        Cursor { logical: DUP_AT_MIXED, physical: DUP_AT_MIXED }
    } else {
        Cursor { logical: DUP_AT, physical: DUP_AT }
    };
    let data_dup = dup_length(options, total, 64 * MIB, GIB);
    let mut all = Vec::new();
    all.push(match metadata {
        Profile::Single => single(SYSTEM_AT, SYSTEM_SINGLE, BlockGroupFlags::SYSTEM),
        Profile::Dup => cursor.dup(SMALL, BlockGroupFlags::SYSTEM.with(BlockGroupFlags::DUP)),
    });
    let kind =
        if options.mixed { BlockGroupFlags::METADATA.with(BlockGroupFlags::DATA) } else { BlockGroupFlags::METADATA };
    all.push(match metadata {
        Profile::Single => single(METADATA_AT, SMALL, kind),
        Profile::Dup => {
            let most = if total > LARGE_DEVICE { GIB } else { 256 * MIB };
            let length = if options.mixed { data_dup } else { dup_length(options, total, 32 * MIB, most) };
            cursor.dup(length, kind.with(BlockGroupFlags::DUP))
        }
    });
    if !options.mixed {
        all.push(match data {
            Profile::Single => single(DATA_AT, SMALL, BlockGroupFlags::DATA),
            Profile::Dup => cursor.dup(data_dup, BlockGroupFlags::DATA.with(BlockGroupFlags::DUP)),
        });
    }
    all.sort_by_key(|chunk| chunk.start);
    let find = |flag| all.iter().position(|chunk| chunk.flags.contains(flag)).unwrap_or(0);
    let (system, metadata) = (find(BlockGroupFlags::SYSTEM), find(BlockGroupFlags::METADATA));
    Chunks { all, system, metadata }
}

/// The least size of a device for these options: that of mkfs.btrfs, which leaves some room besides
/// the first chunks, or, where it is too small (mixed DUP), the size that they really take.
fn minimum_bytes(options: &MkfsOptions) -> u64 {
    let asked = if options.mixed {
        16 * MIB
    } else {
        let metadata = match options.metadata_profile() {
            Profile::Single => 16 * MIB,
            Profile::Dup => 80 * MIB,
        };
        let data = match options.data_profile() {
            Profile::Single => 8 * MIB,
            Profile::Dup => 128 * MIB,
        };
        21 * MIB + metadata + data
    };
    let taken = plan_for(options, 0).all.iter().map(Chunk::device_end).max().unwrap_or(0);
    asked.max(taken.next_multiple_of(MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(total: u64, metadata: Profile, data: Profile, mixed: bool) -> MkfsOptions {
        MkfsOptions { metadata_profile: Some(metadata), data_profile: Some(data), mixed, ..MkfsOptions::new(total) }
    }

    fn ranges(options: &MkfsOptions) -> Vec<(u64, u64, Vec<u64>)> {
        let chunks = plan(options).unwrap().all;
        chunks.iter().map(|c| (c.start.0, c.length, c.stripes.iter().map(|s| s.0).collect())).collect()
    }

    /// Chunks as mkfs.btrfs 6.2 makes them.
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
                        let stripes = chunks.all.iter().flat_map(|c| c.stripes.iter().map(|s| (s.0, c.length)));
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

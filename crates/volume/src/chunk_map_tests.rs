use super::*;
use ubtrfs_errors::sentence;
use ubtrfs_format::Uuid;

const K64: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

fn item(flags: BlockGroupFlags, length: u64, stripes: &[(u64, u64)]) -> ChunkItem {
    let stripe = |(devid, offset): &(u64, u64)| Stripe {
        devid: DeviceId(*devid),
        offset: Physical(*offset),
        dev_uuid: Uuid::NIL,
    };
    ChunkItem {
        length,
        owner: 2,
        stripe_len: STRIPE_LEN,
        flags: BlockGroupFlags::DATA.with(flags),
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: if flags == BlockGroupFlags::RAID10 { 2 } else { 1 },
        stripes: stripes.iter().map(stripe).collect(),
    }
}

fn map_of(start: u64, item: ChunkItem) -> ChunkMap {
    let mut map = ChunkMap::default();
    map.insert(Logical(start), item, 4096, |_| Some(1 << 40)).unwrap();
    map
}

fn places(map: &ChunkMap, at: u64, len: u64) -> Vec<(u64, Vec<(u64, u64)>)> {
    let pieces = map.pieces(Logical(at), len).unwrap();
    let place = |place: &IoStripe| (place.devid.0, place.at.0);
    pieces.iter().map(|piece| (piece.len, piece.copies.iter().map(place).collect())).collect()
}

#[test]
fn copies_lie_at_the_same_offset_of_every_stripe() {
    let map = map_of(16 * MIB, item(BlockGroupFlags::DUP, MIB, &[(1, 4 * MIB), (1, 9 * MIB)]));
    let expected = vec![(8192, vec![(1, 4 * MIB + 4096), (1, 9 * MIB + 4096)])];
    assert_eq!(places(&map, 16 * MIB + 4096, 8192), expected);
}

#[test]
fn raid0_takes_turns_every_64_kib() {
    let map = map_of(0, item(BlockGroupFlags::RAID0, 6 * K64, &[(1, MIB), (2, 2 * MIB), (3, 3 * MIB)]));
    let expected =
        vec![(4096, vec![(3, 3 * MIB + K64 - 4096)]), (K64, vec![(1, MIB + K64)]), (4096, vec![(2, 2 * MIB + K64)])];
    assert_eq!(places(&map, 3 * K64 - 4096, K64 + 8192), expected);
}

#[test]
fn raid10_takes_turns_in_pairs() {
    let map = map_of(0, item(BlockGroupFlags::RAID10, 4 * K64, &[(1, MIB), (2, MIB), (3, MIB), (4, MIB)]));
    assert_eq!(places(&map, K64, 4096), vec![(4096, vec![(3, MIB), (4, MIB)])]);
    assert_eq!(places(&map, 2 * K64, 4096), vec![(4096, vec![(1, MIB + K64), (2, MIB + K64)])]);
}

#[test]
fn parity_rotates_from_row_to_row_and_is_read_only() {
    let map = map_of(0, item(BlockGroupFlags::RAID5, 6 * K64, &[(1, 0), (2, 0), (3, 0)]));
    let device = |at| places(&map, at, 4096)[0].1[0];
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(|n| device(n * K64)),
        [(1, 0), (2, 0), (2, K64), (3, K64), (3, 2 * K64), (1, 2 * K64)]
    );
    assert!(!map.locate(Logical(0), 4096).unwrap().writable);
}

#[test]
fn places_on_devices_lead_back_to_their_addresses() {
    let profiles = [
        item(BlockGroupFlags(0), 4 * K64, &[(1, MIB)]),
        item(BlockGroupFlags::DUP, 4 * K64, &[(1, 4 * MIB), (1, 9 * MIB)]),
        item(BlockGroupFlags::RAID0, 6 * K64, &[(1, MIB), (2, 2 * MIB), (3, 3 * MIB)]),
        item(BlockGroupFlags::RAID10, 4 * K64, &[(1, MIB), (2, MIB), (3, MIB), (4, MIB)]),
        item(BlockGroupFlags::RAID5, 12 * K64, &[(1, MIB), (2, MIB), (3, MIB)]),
        item(BlockGroupFlags::RAID6, 12 * K64, &[(1, MIB), (2, MIB), (3, MIB), (4, MIB)]),
    ];
    for item in profiles {
        let (length, map) = (item.length, map_of(16 * MIB, item));
        for at in (16 * MIB..16 * MIB + length).step_by(4096).map(Logical) {
            for copy in map.locate(at, 4096).unwrap().copies {
                assert_eq!(map.logical_of(copy.devid, copy.at), Some(at));
            }
        }
        assert_eq!(map.logical_of(DeviceId(1), Physical(100 * MIB)), None);
        assert_eq!(map.logical_of(DeviceId(9), Physical(MIB)), None);
    }
    let parity = map_of(0, item(BlockGroupFlags::RAID5, 6 * K64, &[(1, 0), (2, 0), (3, 0)]));
    for (devid, at) in [(3, 0), (1, K64), (2, 2 * K64)] {
        assert_eq!(parity.logical_of(DeviceId(devid), Physical(at)), None);
    }
}

#[test]
fn rows_with_parity_have_all_roles_on_different_stripes() {
    let map = map_of(16 * MIB, item(BlockGroupFlags::RAID6, 6 * K64, &[(1, 0), (2, 0), (3, 0), (4, 0)]));
    let row = map.row(Logical(16 * MIB + 3 * K64 + 4096)).unwrap();
    let places: Vec<_> = row.stripes.iter().map(|place| (place.devid.0, place.at.0)).collect();
    assert_eq!(places, [2, 3, 4, 1].map(|devid| (devid, K64 + 4096)));
    assert_eq!((row.start, row.data, row.parities(), row.wanted), (Logical(16 * MIB + 2 * K64), 2, 2, 1));
    for at in (16 * MIB..16 * MIB + 6 * K64).step_by(4096).map(Logical) {
        let row = map.row(at).unwrap();
        assert_eq!(map.locate(at, 4096).unwrap().copies, [row.stripes[row.wanted]]);
    }
    assert_eq!(map.row(Logical(16 * MIB + 6 * K64)), None);
    assert_eq!(map_of(0, item(BlockGroupFlags::RAID0, 2 * K64, &[(1, 0), (2, 0)])).row(Logical(0)), None);
}

#[test]
fn a_range_may_cross_chunks_but_not_leave_them() {
    let mut map = map_of(MIB, item(BlockGroupFlags(0), MIB, &[(1, MIB)]));
    map.insert(Logical(2 * MIB), item(BlockGroupFlags::DUP, MIB, &[(1, 8 * MIB), (1, 9 * MIB)]), 4096, |_| {
        Some(1 << 40)
    })
    .unwrap();
    let expected = vec![(4096, vec![(1, 2 * MIB - 4096)]), (4096, vec![(1, 8 * MIB), (1, 9 * MIB)])];
    assert_eq!(places(&map, 2 * MIB - 4096, 8192), expected);
    for (at, len) in [(MIB - 4096, 8192), (3 * MIB - 4096, 8192), (u64::MAX - 4095, 8192)] {
        assert!(matches!(map.pieces(Logical(at), len), Err(Error::Unmapped { .. })), "{at}");
    }
}

#[test]
fn impossible_chunks_are_refused() {
    let insert = |start: u64, item| {
        let mut map = map_of(10 * MIB, self::item(BlockGroupFlags(0), MIB, &[(1, MIB)]));
        map.insert(Logical(start), item, 4096, |devid| (devid.0 == 1).then_some(64 * MIB)).err().map(|e| sentence(&e))
    };
    let single = |length, at| item(BlockGroupFlags(0), length, &[(1, at)]);
    let fails = |start, item, text: &str| {
        let error = insert(start, item).unwrap_or_default();
        assert!(error.contains(text), "{error:?} should say {text:?}");
    };
    assert_eq!(insert(11 * MIB, single(MIB, 63 * MIB)), None);
    assert_eq!(insert(9 * MIB, single(MIB, 0)), None);
    fails(11 * MIB, single(MIB, 63 * MIB + 4096), "beyond its device");
    fails(11 * MIB, single(MIB, u64::MAX - 4095), "beyond its device");
    fails(10 * MIB + 4096, single(4096, 0), "overlap");
    fails(9 * MIB, single(3 * MIB, 0), "overlap");
    fails(9 * MIB + 4096, single(MIB, 0), "overlap");
    fails(u64::MAX - 4095, single(8192, 0), "address space");
    fails(4095, single(4096, 0), "not aligned");
    fails(0, item(BlockGroupFlags(0), MIB, &[(7, 0)]), "device 7 of the volume is missing");
    fails(0, item(BlockGroupFlags(0), MIB, &[(1, 0), (1, MIB)]), "stripe count");
    fails(0, item(BlockGroupFlags::DUP, MIB, &[(1, 0)]), "stripe count");
    fails(0, item(BlockGroupFlags::RAID10, MIB, &[(1, 0), (1, MIB), (1, 2 * MIB)]), "stripe count");
    fails(0, item(BlockGroupFlags::RAID6, MIB, &[(1, 0), (1, MIB)]), "stripe count");
    fails(0, item(BlockGroupFlags::RAID5, MIB, &[(1, 0)]), "stripe count");
    for profile in [BlockGroupFlags::RAID5, BlockGroupFlags::RAID6] {
        fails(0, item(profile, MIB, &[(1, 0); 256]), "stripe count");
        assert_eq!(insert(0, item(profile, MIB, &[(1, 0); 255])), None);
    }
    fails(0, item(BlockGroupFlags(1 << 40), MIB, &[]), "stripe count");
}

#[test]
fn superblock_copies_are_kept_free() {
    let map = map_of(1 << 30, item(BlockGroupFlags::DUP, 128 * MIB, &[(1, 60 * MIB), (1, 256 << 20)]));
    assert_eq!(map.reserved(Logical(1 << 30)), vec![(1 << 30) + 4 * MIB..(1 << 30) + 4 * MIB + K64]);
    let map = map_of(0, item(BlockGroupFlags::RAID0, 256 * MIB, &[(1, MIB), (2, 60 * MIB)]));
    assert_eq!(
        map.reserved(Logical(0)),
        vec![(4 * MIB * 2 + K64)..(4 * MIB * 2 + 2 * K64), (63 * MIB * 2)..(63 * MIB * 2 + K64)]
    );
    let map = map_of(0, item(BlockGroupFlags(0), MIB, &[(1, MIB)]));
    assert!(map.reserved(Logical(0)).is_empty());
}

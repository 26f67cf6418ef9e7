//! Blocks and data that are wrong or unreadable are rebuilt from the other stripes of their row.

use std::path::PathBuf;

use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, STRIPE_LEN};
use ubtrfs_format::{DeviceId, Logical, Physical};
use ubtrfs_volume::{Engine, Error, ParityScrub, ScrubScope, Volume};

use crate::common::{READ_ONLY, bytes_at, chunk_at, fixture, fixtures, has, open, root_of, scribble};

/// A volume, and the row of an address: for each role the image and the address in it.
struct Row {
    paths: Vec<PathBuf>,
    places: Vec<(usize, Physical)>,
    parities: usize,
    wanted: usize,
    _dir: tempfile::TempDir,
}

impl Row {
    fn of(name: &str, at: impl Fn(&Volume) -> Logical) -> Option<Self> {
        if !has("zstd") || !fixtures().join(format!("{name}.0.img.zst")).exists() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = fixture(name, dir.path());
        let volume = open(&paths, READ_ONLY, Engine::Auto).unwrap();
        let at = at(&volume);
        let (start, chunk): (Logical, ChunkItem) = chunk_at(&volume, at);
        let (stripes, parities) = (chunk.stripes.len(), if name.ends_with('6') { 2 } else { 1 });
        let (number, data) = ((at.0 - start.0) / STRIPE_LEN, (stripes - parities) as u64);
        let row = number / data;
        let place = |role: usize| {
            let stripe = chunk.stripes[(role + row as usize) % stripes];
            let within = row * STRIPE_LEN + (at.0 - start.0) % STRIPE_LEN;
            (stripe.devid.0 as usize - 1, stripe.offset.plus(within))
        };
        let places = (0..stripes).map(place).collect();
        Some(Self { paths, places, parities, wanted: (number % data) as usize, _dir: dir })
    }

    fn volume(&self) -> Volume {
        open(&self.paths, READ_ONLY, Engine::Auto).unwrap()
    }

    /// Runs a function while `len` bytes of these stripes are overwritten, and restores them
    /// afterwards.
    fn with_damage(&self, set: u32, len: usize, run: impl FnOnce(&Volume)) {
        let damaged = (0..self.places.len()).filter(|role| set >> role & 1 == 1);
        let damaged: Vec<_> = damaged.map(|role| (&self.paths[self.places[role].0], self.places[role].1)).collect();
        let before: Vec<_> = damaged.iter().map(|(path, at)| bytes_at(path, *at, len)).collect();
        for (number, (path, at)) in damaged.iter().enumerate() {
            scribble(path, *at, &vec![0xA0 + number as u8; len]);
        }
        run(&self.volume());
        damaged.iter().zip(before).for_each(|((path, at), bytes)| scribble(path, *at, &bytes));
    }
}

#[test]
fn blocks_are_right_if_no_more_stripes_are_wrong_than_there_are_parities() {
    for name in ["prof-raid5", "prof-raid6"] {
        let Some(row) = Row::of(name, |volume| root_of(volume).bytenr) else { return };
        let volume = row.volume();
        let root = root_of(&volume);
        let right = volume.reader().read_node(&root).unwrap();
        for set in 0..1_u32 << row.places.len() {
            row.with_damage(set, right.len(), |volume| {
                let is_wanted_damaged = set >> row.wanted & 1 == 1;
                match volume.reader().read_node(&root) {
                    Ok(block) => assert!(*block == *right, "{name} {set:b}"),
                    Err(error) => {
                        assert!(matches!(error, Error::Node { .. }), "{name} {set:b}: {error:?}");
                        let damaged = set.count_ones() as usize;
                        assert!(is_wanted_damaged && damaged > row.parities, "{name} {set:b}");
                    }
                }
                assert_eq!(volume.counters().checksum_errors, u64::from(is_wanted_damaged));
            });
        }
    }
}

/// Returns the start of the data chunk.
fn data(volume: &Volume) -> Logical {
    let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
    volume.chunk_map().all().iter().find(|(_, chunk)| is_data(chunk.flags)).expect("a data chunk").0
}

#[test]
fn data_is_right_sector_by_sector() {
    for name in ["prof-raid5", "prof-raid6"] {
        let Some(row) = Row::of(name, data) else { return };
        let volume = row.volume();
        let (at, sum) = (data(&volume), |sector: &[u8]| volume.checksum().compute(sector));
        let mut right = vec![0; 3 * STRIPE_LEN as usize];
        volume.reader().read_data(at, &mut right, None).unwrap();
        let size = volume.checksum().size();
        let sums: Vec<u8> = right.chunks(4096).flat_map(|sector| sum(sector).0[..size].to_vec()).collect();
        for set in (0..1_u32 << row.places.len()).filter(|set| set.count_ones() as usize <= row.parities) {
            row.with_damage(set, 3 * 4096, |volume| {
                let mut found = vec![0; right.len()];
                volume.reader().read_data(at, &mut found, Some(&sums)).unwrap();
                assert!(found == right, "{name} {set:b}");
            });
        }
    }
}

#[test]
fn parity_is_compared_where_the_data_is_right() {
    for name in ["prof-raid5", "prof-raid6"] {
        let Some(row) = Row::of(name, data) else { return };
        let volume = row.volume();
        let at = data(&volume);
        let mut right = vec![0; STRIPE_LEN as usize];
        volume.reader().read_data(at, &mut right, None).unwrap();
        let size = volume.checksum().size();
        let sums: Vec<u8> =
            right.chunks(4096).flat_map(|sector| volume.checksum().compute(sector).0[..size].to_vec()).collect();
        let scrub = |volume: &Volume, device: Option<DeviceId>| {
            let scope = ScrubScope { device, read_only: true };
            let mut parity = ParityScrub::default();
            let data = volume.scrub().data(at, right.len() as u64, Some(&sums), scope, &mut parity).unwrap();
            parity.end_row(volume.scrub(), scope);
            (data.checksum_errors, parity.found.checksum_errors, parity.found.uncorrectable)
        };
        assert_eq!(scrub(&volume, None), (0, 0, 0));
        // Two sectors of a parity.
        let parity = row.places.len() - 1;
        row.with_damage(1 << parity, 2 * 4096, |volume| {
            assert_eq!(scrub(volume, None), (0, 2, 2), "{name}");
            for (role, (image, _)) in row.places.iter().enumerate() {
                let found = scrub(volume, Some(DeviceId(*image as u64 + 1)));
                assert_eq!(found, if role == parity { (0, 2, 2) } else { (0, 0, 0) }, "{name} {role}");
            }
        });
        // A fault of the data is no fault of the parity.
        row.with_damage(1 << row.wanted, 3 * 4096, |volume| {
            assert_eq!(scrub(volume, None), (3, 0, 0), "{name}");
            let parity = row.places[parity].0 as u64 + 1;
            assert_eq!(scrub(volume, Some(DeviceId(parity))), (0, 0, 0), "{name}");
        });
    }
}

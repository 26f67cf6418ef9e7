//! Tests that parity that does not match the data of its row is found if the data is right.

use std::fs::OpenOptions as StdOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use ubtrfs_check::{FaultKind, Report};
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, STRIPE_LEN};
use ubtrfs_volume::{OpenOptions, Volume};

use crate::common::{checked, open, shown, unpack};

/// A device, and a place on it.
type Place = (u64, u64);

struct Rows {
    images: Vec<PathBuf>,
    chunk: ChunkItem,
}

impl Rows {
    /// The rows of the last chunk with data, which has data in its first rows.
    fn of(images: Vec<PathBuf>) -> Self {
        let volume = Volume::open(open(&images), OpenOptions { read_only: true }).unwrap();
        let is_data = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::DATA);
        let chunk =
            volume.chunk_map().all().into_iter().rfind(|(_, chunk)| is_data(chunk.flags)).expect("a data chunk").1;
        Self { images, chunk }
    }

    /// The start of the stripe with this role in a row.
    fn place(&self, row: u64, role: usize) -> Place {
        let stripe = &self.chunk.stripes[(row as usize + role) % self.chunk.stripes.len()];
        (stripe.devid.0, stripe.offset.0 + row * STRIPE_LEN)
    }

    /// Checks the volume while a sector at each of these places has other content.
    fn with_damage(&self, places: &[Place]) -> Report {
        let device =
            |number: u64| StdOptions::new().read(true).write(true).open(&self.images[number as usize - 1]).unwrap();
        let write = |(number, at): &Place, bytes: &[u8]| device(*number).write_all_at(bytes, *at).unwrap();
        let mut before = Vec::new();
        for place in places {
            let mut sector = vec![0; 4096];
            device(place.0).read_exact_at(&mut sector, place.1).unwrap();
            write(place, &[0xE7; 4096]);
            before.push(sector);
        }
        let report = checked(&self.images);
        places.iter().zip(before).for_each(|(place, sector)| write(place, &sector));
        report
    }
}

/// The places of wrong parity.
fn bad_parity(report: &Report) -> Vec<Place> {
    let place = |kind: &FaultKind| match kind {
        FaultKind::BadParity { device, physical, .. } => Some((*device, *physical)),
        _ => None,
    };
    report.faults.iter().filter_map(|fault| place(&fault.kind)).collect()
}

#[test]
fn wrong_parity_is_reported_where_the_data_is_right() {
    for (name, parities) in [("prof-raid5", 1), ("prof-raid6", 2)] {
        let dir = tempfile::tempdir().unwrap();
        let rows = Rows::of(unpack(name, dir.path()));
        let sound = checked(&rows.images);
        assert!(sound.is_clean() && sound.not_compared.is_empty(), "{name}: {}", shown(&sound));
        let stripes = rows.chunk.stripes.len();
        let data = stripes - parities;
        // Rows without data in the first sector are not reported.
        let all: Vec<Place> = (0..100).map(|row| rows.place(row, data)).collect();
        let found = bad_parity(&rows.with_damage(&all));
        assert!(!found.is_empty() && found.iter().all(|place| all.contains(place)), "{name}: {found:?}");
        let row = (0..100).find(|row| found.contains(&rows.place(*row, data))).expect("one of them");
        for role in data..stripes {
            let report = rows.with_damage(&[rows.place(row, role)]);
            assert_eq!(bad_parity(&report), [rows.place(row, role)], "{name} {role}: {}", shown(&report));
            assert_eq!(report.fault_count, 1, "{name} {role}: {}", shown(&report));
        }
        // Wrong data is not reported as a fault of the parity.
        let reports = (0..data).map(|role| rows.with_damage(&[rows.place(row, role)]));
        let is_data =
            |report: &Report| report.faults.iter().any(|fault| matches!(fault.kind, FaultKind::BadData { .. }));
        let of_data: Vec<Report> = reports.filter(is_data).collect();
        assert!(!of_data.is_empty(), "{name}");
        for report in of_data {
            assert_eq!(bad_parity(&report), [], "{name}: {}", shown(&report));
        }
    }
}

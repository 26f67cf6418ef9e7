//! Partition tables are read as the kernel reads them, and hostile ones give an error message.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ubtrfs_errors::sentence;
use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::partitions::{Pieces, gpt, mbr, mbr_with_logical, seal_gpt_header};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{MemoryDevice, PartitionTable, Result};

const SIZE: u64 = 64 << 20;

fn read(pieces: &Pieces) -> Result<Option<PartitionTable>> {
    let mut bytes = vec![0; SIZE as usize];
    for (at, piece) in pieces {
        bytes[*at as usize..][..piece.len()].copy_from_slice(piece);
    }
    PartitionTable::read(&MemoryDevice::from_bytes(bytes))
}

fn table(pieces: &Pieces) -> PartitionTable {
    read(pieces).unwrap().unwrap()
}

/// Returns number, start and size of each usable partition.
fn usable(table: &PartitionTable) -> Vec<(u32, u64, u64)> {
    let good = table.partitions.iter().filter(|one| one.fault.is_none());
    good.map(|one| (one.number, one.start, one.size)).collect()
}

fn complaint(pieces: &Pieces) -> String {
    sentence(&read(pieces).unwrap_err())
}

fn usual_gpt() -> Pieces {
    gpt(SIZE, 512, &[(2048, 4095), (8192, 65535)])
}

/// Tables, each with its sector size and its partitions: number, first sector and length, in
/// sectors of 512 bytes.
type Tables = [(Pieces, &'static str, Vec<(u32, u64, u64)>); 4];

fn tables() -> Tables {
    let logical = [(10_240, 2048), (20_480, 30_000), (60_416, 8)];
    [
        (usual_gpt(), "512", vec![(1, 2048, 2048), (2, 8192, 57_344)]),
        (gpt(SIZE, 4096, &[(256, 511), (1024, 8191)]), "4096", vec![(1, 2048, 2048), (2, 8192, 57_344)]),
        (
            mbr_with_logical(131_072, (2048, 4096), 8192, &logical),
            "512",
            vec![(1, 2048, 4096), (5, 10_240, 2048), (6, 20_480, 30_000), (7, 60_416, 8)],
        ),
        (
            vec![(0, mbr(&[(0x83, 2048, 2048), (0, 0, 0), (0x82, 8192, 100_000)]))],
            "512",
            vec![(1, 2048, 2048), (3, 8192, 100_000)],
        ),
    ]
}

#[test]
fn partitions_are_where_the_table_has_them() {
    for (pieces, sector, expected) in tables() {
        let table = table(&pieces);
        let found: Vec<_> = usable(&table).iter().map(|one| (one.0, one.1 / 512, one.2 / 512)).collect();
        assert_eq!(found, expected);
        assert_eq!(table.sector_size.to_string(), sector);
    }
}

/// Compares only tables of a kind that the kernel knows.
#[test]
fn the_kernel_has_partitions_in_the_same_places() {
    require!(Need::Root, Need::Tool("losetup"));
    let dir = scratch_dir();
    for (at, (pieces, sector, expected)) in tables().into_iter().enumerate() {
        let image = dir.path().join(at.to_string());
        let file = File::create(&image).unwrap();
        file.set_len(SIZE).unwrap();
        for (at, piece) in &pieces {
            file.write_all_at(piece, *at).unwrap();
        }
        let device = LoopDevice::attach_with(&image, &["-P", "-b", sector]);
        let of_kernel = |number: u32, what: &str| -> Option<u64> {
            let path = format!("/sys/block/{0}/{0}p{number}/{what}", device.name());
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let found: Vec<_> = (1..20)
            .filter_map(|number| Some((number, of_kernel(number, "start")?, of_kernel(number, "size")?)))
            // For the extended partition itself the kernel has a device of one or two sectors.
            .filter(|(_, _, sectors)| *sectors > 2)
            .collect();
        if !found.is_empty() {
            assert_eq!(found, expected, "{at}");
        }
    }
}

#[test]
fn a_backup_replaces_what_is_bad_of_a_gpt() {
    let good = table(&usual_gpt());
    assert!(!good.is_backup && usable(&good).len() == 2 && good.partitions[1].name == "part 2");
    // Damage: the MBR and the primary header are gone; only the header is gone; an entry has
    // changed.
    for damage in [vec![(0, vec![0; 1024])], vec![(512, vec![0; 512])], vec![(1024 + 32, vec![9; 8])]] {
        let bad = table(&[usual_gpt(), damage].concat());
        assert!(bad.is_backup);
        assert_eq!(bad.partitions, good.partitions);
    }
    // In an image that has grown, the backup is where the header says.
    let grown = [gpt(SIZE / 2, 512, &[(2048, 4095)]), vec![(1024 + 32, vec![9; 8])]].concat();
    assert_eq!(usable(&table(&grown)), [(1, 1 << 20, 1 << 20)]);
    let both = [usual_gpt(), vec![(512, vec![0; 512]), (SIZE - 512 + 60, vec![1; 3])]].concat();
    assert_eq!(complaint(&both), "the partition table is damaged: the MBR is there to protect a GPT, and that is gone");
}

#[test]
fn what_is_no_partition_table_is_none() {
    assert_eq!(read(&vec![]).unwrap(), None);
    // A boot sector of FAT has code where an MBR has its entries.
    let mut boot = mbr(&[]);
    boot[446..510].fill(0xfc);
    assert_eq!(read(&vec![(0, boot)]).unwrap(), None);
    assert_eq!(read(&vec![(0, mbr(&[]))]).unwrap(), None);
    assert_eq!(PartitionTable::read(&MemoryDevice::from_bytes(vec![0; 100])).unwrap(), None);
}

#[test]
fn partitions_that_cannot_be_are_named_with_the_reason() {
    let sectors = SIZE / 512;
    let places = [
        (2048, 4095),
        (4000, 5000),
        (sectors - 4096, sectors + 4096),
        (u64::MAX / 2, u64::MAX),
        (9000, 8000),
        (10_001, 11_000),
        (16_384, 20_000),
    ];
    let table = table(&gpt(SIZE, 512, &places));
    assert_eq!(usable(&table), [(7, 8 << 20, 3617 * 512)]);
    for (number, words) in [
        (1, "partition 1: it overlaps partition 2"),
        (2, "partition 2: it overlaps partition 1"),
        (3, "partition 3: it reaches beyond the end of the device"),
        (4, "partition 4: it reaches beyond the end of the device"),
        (5, "partition 5: it ends before it begins"),
        (6, "partition 6: it begins at 5120512, which is no multiple of 4096"),
        (8, "there is no partition 8; there are: 1, 2, 3, 4, 5, 6, 7"),
    ] {
        let said = sentence(&table.part(number).unwrap_err());
        assert!(said.starts_with(words), "{said}");
    }
}

#[test]
fn hostile_tables_are_bounded() {
    // Four billion entries of four billion bytes, with good checksums.
    for (count, size) in [(u32::MAX, u32::MAX), (u32::MAX, 128), (1, u32::MAX), (0x0200_0000, 128), (16, 0), (16, 129)]
    {
        let mut pieces = usual_gpt();
        for at in [1, 4] {
            let header = &mut pieces[at].1;
            header[80..84].copy_from_slice(&count.to_le_bytes());
            header[84..88].copy_from_slice(&size.to_le_bytes());
            seal_gpt_header(header);
        }
        assert!(complaint(&pieces).contains("entries of an impossible size or number"), "{count} {size}");
    }
    let mut pieces = usual_gpt();
    for at in [1, 4] {
        pieces[at].1[72..80].copy_from_slice(&(u64::MAX / 512).to_le_bytes());
        seal_gpt_header(&mut pieces[at].1);
    }
    assert!(complaint(&pieces).contains("beyond the end"));
    for size in [0_u32, 91, 513, u32::MAX] {
        let mut pieces = usual_gpt();
        for at in [1, 4] {
            pieces[at].1[12..16].copy_from_slice(&size.to_le_bytes());
        }
        assert!(complaint(&pieces).contains("an impossible size"), "{size}");
    }
    // Extended boot records that refer to themselves, to another one and back, and to nowhere.
    let first = mbr(&[(0x83, 2048, 2048), (0x05, 8192, 100_000)]);
    let chain = |next: u32| mbr(&[(0x83, 64, 64), (0x0f, next, 1000)]);
    let at = |sector: u64| sector * 512;
    for (pieces, words, found) in [
        (vec![(at(8192), chain(0))], "a loop", 2),
        (vec![(at(8192), chain(4096)), (at(12_288), chain(0))], "a loop", 3),
        (vec![(at(8192), chain(u32::MAX))], "broken", 2),
        ((0..300).map(|step| (at(8192 + 64 * step), chain(64 * (step as u32 + 1)))).collect(), "more logical", 253),
    ] {
        let table = table(&[vec![(0, first.clone())], pieces].concat());
        assert!(table.fault.unwrap().contains(words), "{table:?}");
        assert_eq!(table.partitions.len(), found);
        assert!(table.part(300).unwrap_err().to_string().contains(words));
    }
}

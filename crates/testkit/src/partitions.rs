//! Partition tables for tests, written from the descriptions of their formats.

/// Bytes and their offsets on a device.
pub type Pieces = Vec<(u64, Vec<u8>)>;

/// The type of partitions with Linux's file systems, as it is on disk.
const LINUX: [u8; 16] =
    [0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4];
/// Entries of a usual table, and the bytes of an entry.
const ENTRIES: u64 = 128;
const ENTRY: u64 = 128;

/// Returns a GPT for a device of `size` bytes, with partitions from a first to a last sector: the
/// protective MBR, the primary header, the entries, and their backups.
pub fn gpt(size: u64, sector: u64, places: &[(u64, u64)]) -> Pieces {
    let sectors = size / sector;
    let array = ENTRIES * ENTRY / sector;
    let mut entries = vec![0; (ENTRIES * ENTRY) as usize];
    for (at, (first, last)) in places.iter().enumerate() {
        let entry = &mut entries[at * ENTRY as usize..][..ENTRY as usize];
        entry[..16].copy_from_slice(&LINUX);
        entry[16..32].fill(at as u8 + 1);
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        let name: Vec<u8> = format!("part {}", at + 1).encode_utf16().flat_map(u16::to_le_bytes).collect();
        entry[56..56 + name.len()].copy_from_slice(&name);
    }
    let header = |own: u64, other: u64, array_at: u64| {
        let mut header = vec![0; sector as usize];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x0001_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        for (at, value) in [(24, own), (32, other), (40, 2 + array), (48, sectors - array - 2), (72, array_at)] {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        header[56..72].fill(7);
        for (at, value) in [(80, ENTRIES as u32), (84, ENTRY as u32), (88, crc32fast::hash(&entries))] {
            header[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        seal_gpt_header(&mut header);
        header
    };
    vec![
        (0, mbr(&[(0xee, 1, u32::try_from(sectors - 1).unwrap_or(u32::MAX))])),
        (sector, header(1, sectors - 1, 2)),
        (2 * sector, entries.clone()),
        ((sectors - 1 - array) * sector, entries.clone()),
        ((sectors - 1) * sector, header(sectors - 1, 1, sectors - 1 - array)),
    ]
}

/// Writes the right checksum into a header.
pub fn seal_gpt_header(header: &mut [u8]) {
    header[16..20].fill(0);
    let sum = crc32fast::hash(&header[..92]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// Returns a boot record with entries of a type, a first sector and a number of sectors.
pub fn mbr(entries: &[(u8, u32, u32)]) -> Vec<u8> {
    let mut record = vec![0; 512];
    for (at, (kind, first, sectors)) in entries.iter().enumerate() {
        let entry = &mut record[446 + 16 * at..][..16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    }
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    record
}

/// Returns an MBR with a primary partition, and with logical ones in an extended partition that
/// begins at a sector and takes the rest. Each logical one has its boot record a track before it.
pub fn mbr_with_logical(sectors: u32, primary: (u32, u32), extended: u32, logical: &[(u32, u32)]) -> Pieces {
    let mut pieces = vec![(0, mbr(&[(0x83, primary.0, primary.1), (0x05, extended, sectors - extended)]))];
    let record_of = |first: u32| first - 2048;
    for (at, (first, count)) in logical.iter().enumerate() {
        let mut entries = vec![(0x83, 2048, *count)];
        if let Some((next, next_count)) = logical.get(at + 1) {
            entries.push((0x05, record_of(*next) - extended, next_count + 2048));
        }
        pieces.push((u64::from(record_of(*first)) * 512, mbr(&entries)));
    }
    pieces
}

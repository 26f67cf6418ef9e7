use ubtrfs_volume::{MemoryDevice, PartitionTable};

/// The size of the device.
const SIZE: usize = 96 << 10;
const SIGNATURE: &[u8] = b"EFI PART";

/// Reads arbitrary bytes as the beginning of a device with a partition table: as they are, and with
/// corrected checksums of a GPT.
pub fn partitions(data: &[u8]) {
    let mut bytes = data[..data.len().min(SIZE)].to_vec();
    bytes.resize(SIZE, 0);
    examine(&bytes);
    for sector in [512, 4096] {
        if bytes[sector..].starts_with(SIGNATURE) {
            seal(&mut bytes, sector);
            examine(&bytes);
        }
    }
}

/// Corrects the checksums of the header in the second sector, and of the entries that it points to.
fn seal(bytes: &mut [u8], sector: usize) {
    let number = |bytes: &[u8], at: usize| {
        let from = &bytes[sector + at..][..4];
        u32::from_le_bytes([from[0], from[1], from[2], from[3]]) as usize
    };
    let start = number(bytes, 72).saturating_mul(sector);
    let len = number(bytes, 80).saturating_mul(number(bytes, 84));
    if let Some(entries) = bytes.get(start..start.saturating_add(len)) {
        let sum = crc32fast::hash(entries);
        bytes[sector + 88..][..4].copy_from_slice(&sum.to_le_bytes());
    }
    let size = number(bytes, 12);
    bytes[sector + 16..][..4].fill(0);
    if let Some(header) = bytes.get(sector..sector.saturating_add(size)) {
        let sum = crc32fast::hash(header);
        bytes[sector + 16..][..4].copy_from_slice(&sum.to_le_bytes());
    }
}

fn examine(bytes: &[u8]) {
    let Ok(Some(table)) = PartitionTable::read(&MemoryDevice::from_bytes(bytes.to_vec())) else { return };
    let mut end = 0;
    let mut parts = Vec::new();
    for partition in &table.partitions {
        if let Ok(part) = table.part(partition.number) {
            assert!(part.size.is_some_and(|size| size > 0 && part.start + size <= bytes.len() as u64));
            parts.push((part.start, part.size.unwrap_or_default()));
        }
    }
    parts.sort_unstable();
    for (start, size) in parts {
        assert!(start >= end, "two partitions that can be used overlap");
        end = start + size;
    }
}

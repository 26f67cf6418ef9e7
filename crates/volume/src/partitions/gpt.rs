//! The GUID partition table, as the UEFI specification describes it.

use super::table::{Partition, PartitionTable, TableKind, number, read};
use crate::device::Device;
use crate::error::Result;

const SIGNATURE: &[u8] = b"EFI PART";
/// The sizes of sectors that devices have.
const SECTORS: [u32; 2] = [512, 4096];
/// The minimum size of a header, and the offsets of its fields.
const HEADER: usize = 92;
const HEADER_SIZE: usize = 12;
const HEADER_CRC: std::ops::Range<usize> = 16..20;
const OWN_SECTOR: usize = 24;
const OTHER_SECTOR: usize = 32;
const ENTRIES_SECTOR: usize = 72;
const ENTRIES: usize = 80;
const ENTRY_SIZE: usize = 84;
const ENTRIES_CRC: usize = 88;
/// The minimum size of an entry, and the offsets of its fields.
const ENTRY: u64 = 128;
const TYPE: std::ops::Range<usize> = 0..16;
const FIRST: usize = 32;
const LAST: usize = 40;
const NAME: std::ops::Range<usize> = 56..128;
/// Larger arrays of entries are refused; usual ones have 16 KiB.
const MAX_BYTES: u64 = 1 << 20;

/// What a search for a GPT found at one place.
pub(super) enum Found {
    Table(PartitionTable),
    /// It has the signature of a GPT, but can't be used for this reason.
    Damaged(&'static str),
    Nothing,
}

/// Reads the table by the primary header. If that is bad, reads it by a backup header: the one that
/// the primary names, or the one in the last sector.
pub(super) fn table(device: &dyn Device) -> Result<Found> {
    let mut damage = Found::Nothing;
    for sector in SECTORS {
        let last = (device.size() / u64::from(sector)).checked_sub(1);
        let (found, other) = by_header(device, sector, 1, false)?;
        if let table @ Found::Table(_) = found {
            return Ok(table);
        }
        for place in [other, last].into_iter().flatten() {
            if let (table @ Found::Table(_), _) = by_header(device, sector, place, true)? {
                return Ok(table);
            }
        }
        if let Found::Damaged(_) = found {
            damage = found;
        }
    }
    Ok(damage)
}

/// Reads the table by the header in one sector. For a good header it also returns the sector of the
/// other header.
fn by_header(device: &dyn Device, sector: u32, at: u64, is_backup: bool) -> Result<(Found, Option<u64>)> {
    let unit = u64::from(sector);
    let header = match at.checked_mul(unit) {
        Some(start) => read(device, start, sector as usize)?,
        None => None,
    };
    let Some(header) = header.filter(|header| header.starts_with(SIGNATURE)) else {
        return Ok((Found::Nothing, None));
    };
    let size = number::<4>(&header, HEADER_SIZE) as usize;
    let Some(summed) = header.get(..size).filter(|_| size >= HEADER) else {
        return Ok((Found::Damaged("the GPT's header has an impossible size"), None));
    };
    let mut summed = summed.to_vec();
    summed[HEADER_CRC].fill(0);
    if u64::from(crc32fast::hash(&summed)) != number::<4>(&header, HEADER_CRC.start) {
        return Ok((Found::Damaged("the checksum of the GPT's header is wrong"), None));
    }
    if number::<8>(&header, OWN_SECTOR) != at {
        return Ok((Found::Damaged("the GPT's header belongs elsewhere"), None));
    }
    let other = Some(number::<8>(&header, OTHER_SECTOR)).filter(|other| *other != at);
    let damaged = |what| Ok((Found::Damaged(what), other));
    let (count, entry_size) = (number::<4>(&header, ENTRIES), number::<4>(&header, ENTRY_SIZE));
    // Both are 32-bit numbers, so the product does not overflow.
    let bytes = count * entry_size;
    if entry_size < ENTRY || !entry_size.is_multiple_of(8) || bytes > MAX_BYTES {
        return damaged("the GPT claims entries of an impossible size or number");
    }
    let start = number::<8>(&header, ENTRIES_SECTOR).checked_mul(unit);
    let entries = match start {
        Some(start) => read(device, start, bytes as usize)?,
        None => None,
    };
    let Some(entries) = entries else {
        return damaged("the GPT's entries are beyond the end of the device");
    };
    if u64::from(crc32fast::hash(&entries)) != number::<4>(&header, ENTRIES_CRC) {
        return damaged("the checksum of the GPT's entries is wrong");
    }
    let partitions = entries.chunks_exact(entry_size as usize).zip(1..).filter_map(|(entry, number)| {
        let is_used = entry[TYPE].iter().any(|byte| *byte != 0);
        is_used.then(|| partition(number, entry, unit))
    });
    let table = PartitionTable {
        kind: TableKind::Gpt,
        sector_size: sector,
        is_backup,
        partitions: partitions.collect(),
        fault: None,
    };
    Ok((Found::Table(table), other))
}

fn partition(number_of_it: u32, entry: &[u8], unit: u64) -> Partition {
    let (first, last) = (number::<8>(entry, FIRST), number::<8>(entry, LAST));
    // The last sector is part of the partition.
    let sectors = last.checked_sub(first).map_or(0, |more| more.saturating_add(1));
    let name: Vec<u16> = entry[NAME].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let end = name.iter().position(|unit| *unit == 0).unwrap_or(name.len());
    Partition {
        name: String::from_utf16_lossy(&name[..end]),
        ..Partition::new(number_of_it, first.saturating_mul(unit), sectors.saturating_mul(unit))
    }
}

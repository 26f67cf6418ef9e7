//! The master boot record, and the extended boot records that hold logical partitions.

use std::collections::HashSet;

use super::table::{Partition, PartitionTable, TableKind, number, read};
use crate::device::Device;
use crate::error::Result;

/// The size of the sectors in which an MBR counts. (Some devices have larger sectors. A device that
/// is too large for an MBR has a GPT.)
const SECTOR: u64 = 512;
const SIGNATURE_AT: usize = 510;
const SIGNATURE: &[u8] = &[0x55, 0xaa];
const ENTRIES_AT: usize = 446;
const ENTRY: usize = 16;
/// The number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
/// More logical partitions than Linux makes devices for.
const MAX_LOGICAL: usize = 252;

/// The type of an entry that protects a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of extended partitions, which hold others.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

#[derive(Clone, Copy, Default)]
struct Entry {
    kind: u8,
    start: u64,
    sectors: u64,
}

impl Entry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors > 0
    }

    fn is_extended(&self) -> bool {
        self.is_used() && EXTENDED.contains(&self.kind)
    }

    fn is_partition(&self) -> bool {
        self.is_used() && !self.is_extended()
    }
}

/// The entries of a boot record.
pub(super) struct Record([Entry; 4]);

impl Record {
    /// Returns the boot record in a sector, if it has the form of one. Boot sectors of FAT and NTFS
    /// have the same signature, and code where a boot record has its entries.
    pub(super) fn read(device: &dyn Device, sector: u64) -> Result<Option<Self>> {
        let start = sector.saturating_mul(SECTOR);
        let Some(bytes) = read(device, start, SECTOR as usize)? else { return Ok(None) };
        if bytes[SIGNATURE_AT..] != *SIGNATURE {
            return Ok(None);
        }
        let mut entries = [Entry::default(); 4];
        for (entry, from) in entries.iter_mut().zip(bytes[ENTRIES_AT..SIGNATURE_AT].chunks_exact(ENTRY)) {
            if from[0] & 0x7f != 0 {
                return Ok(None);
            }
            *entry = Entry { kind: from[4], start: number::<4>(from, 8), sectors: number::<4>(from, 12) };
        }
        Ok(Some(Self(entries)))
    }

    /// Returns whether this MBR only protects a GPT from being overwritten.
    pub(super) fn is_protective(&self) -> bool {
        self.0.iter().any(|entry| entry.kind == PROTECTIVE)
    }
}

/// Returns the partitions of a device with this boot record, or `None` if it has none.
pub(super) fn table(device: &dyn Device, record: &Record) -> Result<Option<PartitionTable>> {
    if !record.0.iter().any(Entry::is_used) {
        return Ok(None);
    }
    let mut table = PartitionTable {
        kind: TableKind::Mbr,
        sector_size: SECTOR as u32,
        is_backup: false,
        partitions: Vec::new(),
        fault: None,
    };
    for (entry, number) in record.0.iter().zip(1..) {
        if entry.is_partition() {
            table.partitions.push(Partition::new(number, entry.start * SECTOR, entry.sectors * SECTOR));
        }
    }
    let mut next = FIRST_LOGICAL;
    for extended in record.0.iter().filter(|entry| entry.is_extended()) {
        next = logical(device, extended.start, next, &mut table)?;
    }
    Ok(Some(table))
}

/// Follows the chain of extended boot records. Each has one partition, whose address is relative to
/// the record, and the next record, whose address is relative to the first one. Returns the number
/// of the next partition.
fn logical(device: &dyn Device, first: u64, mut number: u32, table: &mut PartitionTable) -> Result<u32> {
    let mut seen = HashSet::new();
    let mut at = first;
    let fault = loop {
        if !seen.insert(at) {
            break "the chain of its logical partitions is a loop";
        }
        if seen.len() > MAX_LOGICAL {
            break "it has more logical partitions than are possible";
        }
        let Some(Record(entries)) = Record::read(device, at)? else {
            break "the chain of its logical partitions is broken";
        };
        if let Some(entry) = entries.iter().find(|entry| entry.is_partition()) {
            let start = at.saturating_add(entry.start).saturating_mul(SECTOR);
            table.partitions.push(Partition::new(number, start, entry.sectors * SECTOR));
            number += 1;
        }
        match entries.iter().find(|entry| entry.is_extended()) {
            Some(next) => at = first.saturating_add(next.start),
            None => return Ok(number),
        }
    };
    table.fault = Some(fault);
    Ok(number)
}

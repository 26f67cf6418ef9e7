//! Partition tables inside of disk images: GPT, by either of its headers, and MBR with logical
//! partitions. This reads them and decides which partitions may be used; nothing writes them.
//!
//! A table may be hostile. Its size is bounded before anything is allocated, the walk along a chain
//! of extended boot records ends, and each inconsistency becomes a sentence about the table or
//! about one partition.

mod gpt;
mod mbr;
mod table;

use crate::buffer::ALIGNMENT;
use crate::device::Device;
use crate::device_part::DevicePart;
use crate::error::{Error, Result};
use crate::partition_fault::PartitionFault;
pub use table::{Partition, PartitionTable, TableKind};

impl PartitionTable {
    /// Reads the partition table of a device, if it has one. Returns an error if it has one that
    /// can't be used.
    pub fn read(device: &dyn Device) -> Result<Option<Self>> {
        let mbr = mbr::Record::read(device, 0)?;
        let is_for_gpt = mbr.as_ref().is_some_and(mbr::Record::is_protective);
        let of_mbr = match mbr {
            Some(record) if !is_for_gpt => mbr::table(device, &record)?,
            _ => None,
        };
        let table = match of_mbr {
            Some(table) => Some(table),
            None => match gpt::table(device)? {
                gpt::Found::Table(table) => Some(table),
                gpt::Found::Damaged(what) => return Err(Error::PartitionTable(what)),
                gpt::Found::Nothing if is_for_gpt => {
                    return Err(Error::PartitionTable("the MBR is there to protect a GPT, and that is gone"));
                }
                gpt::Found::Nothing => None,
            },
        };
        Ok(table.map(|table| table.judged(device.size())))
    }

    /// Returns the range of a partition.
    pub fn part(&self, number: u32) -> Result<DevicePart> {
        let Some(partition) = self.partitions.iter().find(|partition| partition.number == number) else {
            let numbers: Vec<_> = self.partitions.iter().map(|partition| partition.number.to_string()).collect();
            let fault = self.fault.map(|fault| format!("; {fault}")).unwrap_or_default();
            return Err(Error::NoPartition { number, numbers: numbers.join(", ") + &fault });
        };
        match partition.fault {
            Some(fault) => Err(Error::BadPartition { number, fault }),
            None => Ok(DevicePart { start: partition.start, size: Some(partition.size) }),
        }
    }

    /// The table, with what is wrong with each partition.
    fn judged(mut self, size: u64) -> Self {
        let places: Vec<_> = self.partitions.iter().map(|one| (one.start, one.size, one.number)).collect();
        let end = |start: u64, size: u64| start.saturating_add(size);
        // It is enough to compare with the partition that reaches farthest among those that begin
        // earlier, and with the next one: whatever overlaps another one overlaps one of these.
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|at| places[*at]);
        let mut overlaps: Vec<Option<u32>> = vec![None; places.len()];
        let mut farthest: Option<usize> = None;
        for at in order {
            let (start, length, number) = places[at];
            if let Some(before) = farthest
                && start < end(places[before].0, places[before].1)
            {
                overlaps[at] = Some(places[before].2);
                overlaps[before].get_or_insert(number);
            }
            if farthest.is_none_or(|before| end(places[before].0, places[before].1) < end(start, length)) {
                farthest = Some(at);
            }
        }
        for (partition, overlap) in self.partitions.iter_mut().zip(overlaps) {
            partition.fault = if partition.size == 0 {
                Some(PartitionFault::Empty)
            } else if partition.start.checked_add(partition.size).is_none_or(|end| end > size) {
                Some(PartitionFault::BeyondDevice)
            } else if let Some(other) = overlap {
                Some(PartitionFault::Overlaps(other))
            } else if !partition.start.is_multiple_of(ALIGNMENT as u64) {
                Some(PartitionFault::Misaligned { start: partition.start })
            } else {
                None
            };
        }
        self
    }
}

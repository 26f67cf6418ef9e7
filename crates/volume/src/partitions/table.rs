//! A partition table of any format, and functions to read its bytes.

use ubtrfs_format::Physical;

use crate::device::Device;
use crate::device_part::DevicePart;
use crate::error::{Error, Result};
use crate::partition_fault::PartitionFault;

/// The kind of a partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// GUID partition table.
    Gpt,
    /// Master boot record, with extended boot records for logical partitions.
    Mbr,
}

impl TableKind {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        }
    }
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux counts: logical partitions of an MBR begin with 5.
    pub number: u32,
    /// Where it begins on the device, in bytes.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its name, which only a GPT has.
    pub name: String,
    /// Why it can't be used.
    pub fault: Option<PartitionFault>,
}

impl Partition {
    pub(super) fn new(number: u32, start: u64, size: u64) -> Self {
        Self { number, start, size, name: String::new(), fault: None }
    }

    /// Returns its range, if it can be used.
    pub fn part(&self) -> Option<DevicePart> {
        self.fault.is_none().then_some(DevicePart { start: self.start, size: Some(self.size) })
    }
}

/// A partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// Its kind.
    pub kind: TableKind,
    /// The size of the sectors in which the table counts, in bytes.
    pub sector_size: u32,
    /// The primary header of a GPT is bad, and this is its backup.
    pub is_backup: bool,
    /// Its partitions, in the order of their numbers.
    pub partitions: Vec<Partition>,
    /// What is wrong with the table. If something is, there may be more partitions than these.
    pub fault: Option<&'static str>,
}

/// Reads a range of the device, if the device is that large.
pub(super) fn read(device: &dyn Device, at: u64, len: usize) -> Result<Option<Vec<u8>>> {
    if at.checked_add(len as u64).is_none_or(|end| end > device.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    device.read_at(Physical(at), &mut bytes).map_err(Error::PartitionTableUnread)?;
    Ok(Some(bytes))
}

/// Returns the little-endian number at an offset.
pub(super) fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut whole = [0; 8];
    if let Some(from) = bytes.get(at..at + N) {
        whole[..N].copy_from_slice(from);
    }
    u64::from_le_bytes(whole)
}

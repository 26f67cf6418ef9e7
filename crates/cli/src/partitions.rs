//! The partitions of a disk image, and their contents.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use ubtrfs_format::Physical;
use ubtrfs_mkfs::existing_signature;
use ubtrfs_volume::{Device, Error, Partition, PartitionTable, Volume, WindowDevice, open_to_look};

use crate::failure::with_advice;
use crate::show;
use crate::size::show_size;

/// A partition table, for the text and for `--json`.
#[derive(Debug, Serialize)]
pub struct Partitions {
    #[serde(rename = "partition_table")]
    table: &'static str,
    sector_size: u32,
    /// The table was read from the backup header, since the primary one is bad.
    by_backup: bool,
    /// What is wrong with the table.
    fault: Option<&'static str>,
    #[serde(rename = "partitions")]
    list: Vec<Described>,
}

#[derive(Debug, Serialize)]
struct Described {
    number: u32,
    start: u64,
    size: u64,
    name: String,
    /// Why the partition can't be used.
    fault: Option<String>,
    /// The contents of the partition, if they are known.
    contents: Option<String>,
    label: Option<String>,
}

impl Partitions {
    /// Returns the partitions of a device, if it has a partition table.
    pub fn of(path: &Path) -> Result<Option<Self>, Error> {
        let device = open_to_look(path)?;
        let Some(table) = PartitionTable::read(&*device)? else { return Ok(None) };
        Ok(Some(Self {
            table: table.kind.name(),
            sector_size: table.sector_size,
            by_backup: table.is_backup,
            fault: table.fault,
            list: table.partitions.iter().map(|partition| Described::of(partition, &device)).collect(),
        }))
    }

    /// Describes the table, and which partitions hold btrfs, as the end of a sentence.
    pub fn as_hint(&self, of_mount: bool) -> String {
        let option = if of_mount { "-o partition=" } else { "--partition " };
        let with_btrfs = self.list.iter().filter(|one| one.is_btrfs());
        let options: Vec<_> = with_btrfs.map(|one| format!("{option}{}", one.number)).collect();
        let kind = self.table;
        match &*options {
            [] => format!(
                "it holds a partition table ({kind}), and none of the partitions is btrfs: 'ubtrfs info' lists them"
            ),
            [one] => format!("it holds a partition table ({kind}); {one} is btrfs"),
            several => format!("it holds a partition table ({kind}); {} are btrfs", several.join(" and ")),
        }
    }

    /// Returns a line for each partition.
    pub fn as_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<18} {value}");
        };
        let by = if self.by_backup { ", by its backup, since the primary header is bad" } else { "" };
        line("partition table", &format!("{}, sectors of {} bytes{by}", self.table, self.sector_size));
        if let Some(fault) = self.fault {
            line("damage", &format!("{fault}: there may be more partitions"));
        }
        for one in &self.list {
            let mut value = format!("{} at {}", show_size(one.size), one.start);
            if !one.name.is_empty() {
                let _ = write!(value, ", named '{}'", one.name);
            }
            match (&one.fault, &one.contents) {
                (Some(fault), _) => drop(write!(value, "; it can't be used: {fault}")),
                (None, Some(contents)) => drop(write!(value, ": {contents}")),
                (None, None) => value.push_str(": contents unknown"),
            }
            if let Some(label) = one.label.as_deref().filter(|label| !label.is_empty()) {
                let _ = write!(value, " '{label}'");
            }
            if one.is_btrfs() {
                let _ = write!(value, " (--partition {0}, -o partition={0})", one.number);
            }
            line(&format!("partition {}", one.number), &value);
        }
        text
    }
}

impl Described {
    fn of(partition: &Partition, device: &Arc<dyn Device>) -> Self {
        let inside =
            partition.part().and_then(|part| WindowDevice::new(Arc::clone(device), part.start, part.size).ok());
        let superblock = inside.as_ref().and_then(|inside| Volume::superblock_of(inside));
        let label = superblock.as_ref().map(|superblock| show::bytes(superblock.label_bytes()));
        let is_btrfs = superblock.is_some();
        let other = |inside: WindowDevice| {
            let mut read = |at: u64, buffer: &mut [u8]| inside.read_at(Physical(at), buffer);
            existing_signature(inside.size(), &mut read).ok().flatten()
        };
        let contents = if is_btrfs { Some("btrfs".into()) } else { inside.and_then(other) };
        Self {
            number: partition.number,
            start: partition.start,
            size: partition.size,
            name: show::bytes(partition.name.as_bytes()),
            fault: partition.fault.map(|fault| with_advice(&fault)),
            contents,
            label,
        }
    }

    fn is_btrfs(&self) -> bool {
        self.contents.as_deref() == Some("btrfs")
    }
}

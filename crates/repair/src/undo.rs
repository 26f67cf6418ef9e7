//! The file that keeps what a repair overwrites, and the writes of a repair.
//!
//! The file is a header, then a record for each run of blocks that was overwritten, then an end.
//! Each part has a checksum, so that a file that was cut off changes nothing.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use ubtrfs_format::{ChecksumType, MAX_CHECKSUM_SIZE, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock, Uuid};
use ubtrfs_volume::{Device, DeviceWrite};

use crate::error::{Error, Result};
use crate::plan::RepairPlan;

const MAGIC: [u8; 8] = *b"ubtrundo";
const VERSION: u32 = 1;
/// The most bytes of a record.
const MAX_RECORD: usize = 1 << 20;
/// The kind of a record: a device that the following records are of, blocks, or the end.
const DEVICE: u8 = 1;
const BLOCKS: u8 = 2;
const END: u8 = 3;

/// What an undo file has of a device.
struct Saved {
    /// The id of the device.
    uuid: Uuid,
    /// The checksum of the primary superblock that the repair has written.
    written: Vec<u8>,
    blocks: Vec<(u64, Vec<u8>)>,
}

impl Saved {
    /// Returns the checksum that the primary superblock had before the repair.
    fn superblock_before(&self) -> Option<&[u8]> {
        let at = SUPERBLOCK_COPIES[0].0;
        let holds = |(start, data): &&(u64, Vec<u8>)| *start <= at && at - start < data.len() as u64;
        let (start, data) = self.blocks.iter().find(holds)?;
        let from = (at - start) as usize;
        data.get(from..from + MAX_CHECKSUM_SIZE)
    }
}

impl RepairPlan {
    /// Writes the repair. With `undo`, a new file of this name first gets all blocks that will be
    /// overwritten.
    ///
    /// New blocks are durable before a superblock refers to them, so a crash leaves the volume as
    /// it was, or repaired.
    pub fn apply(&self, undo: Option<&Path>) -> Result<()> {
        if let Some(path) = undo {
            self.save(path)?;
        }
        let has_undo = undo.is_some();
        let failed = |source| Error::Interrupted { source, has_undo };
        let all: Vec<_> = self.devices.iter().map(|device| (device, device.writes(MAX_RECORD))).collect();
        for wants_superblocks in [false, true] {
            for (device, writes) in &all {
                let part: Vec<DeviceWrite> = writes
                    .iter()
                    .flat_map(split)
                    .filter(|write| is_superblock(write.at) == wants_superblocks)
                    .collect();
                write_all(&**device.base(), part).map_err(failed)?;
            }
            for (device, _) in &all {
                device.base().flush().map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Keeps all blocks that the repair overwrites in a new file.
    fn save(&self, path: &Path) -> Result<()> {
        let mut file = BufWriter::new(File::create_new(path)?);
        file.write_all(&MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        for device in &self.devices {
            let Some((uuid, written)) = identity(&**device) else { continue };
            record(&mut file, DEVICE, 0, &[&uuid.0[..], &written].concat())?;
            for write in device.writes(MAX_RECORD) {
                let mut before = vec![0; write.data.len()];
                device.base().read_at(write.at, &mut before)?;
                record(&mut file, BLOCKS, write.at.0, &before)?;
            }
        }
        record(&mut file, END, 0, &[])?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        if let Some(parent) = path.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    }
}

/// Puts back what a repair has overwritten, unless the volume has changed since. Returns how many
/// bytes that were.
pub fn undo(path: &Path, devices: &[Arc<dyn Device>]) -> Result<u64> {
    let saved = read(path)?;
    let (mut found, mut is_repaired) = (Vec::new(), false);
    for one in &saved {
        let device = devices.iter().find(|device| identity(&***device).is_some_and(|(uuid, _)| uuid == one.uuid));
        let device = device.ok_or(Error::BadUndo("is of other devices, or not all of its devices are named"))?;
        // A crash may have left the superblock of one device as it was before the repair.
        let is_ours = |(_, now): (Uuid, Vec<u8>)| now == one.written || one.superblock_before() == Some(&now[..]);
        if !identity(&**device).is_some_and(is_ours) {
            return Err(Error::BadUndo("is too old: the volume has changed since the repair"));
        }
        is_repaired |= identity(&**device).is_some_and(|(_, now)| now == one.written);
        found.push(device);
    }
    if !is_repaired {
        return Err(Error::BadUndo("is too old: the volume has changed since the repair"));
    }
    let mut bytes = 0;
    // The old superblocks refer to nothing that the repair overwrote, but the new ones may.
    for wants_superblocks in [false, true] {
        for (device, one) in found.iter().zip(&saved) {
            let writes =
                one.blocks.iter().map(|(at, data)| DeviceWrite { at: Physical(*at), data: data.clone().into() });
            let part: Vec<DeviceWrite> = writes
                .flat_map(|write| split(&write))
                .filter(|write| is_superblock(write.at) == wants_superblocks)
                .collect();
            bytes += part.iter().map(|write| write.data.len() as u64).sum::<u64>();
            write_all(&***device, part)?;
            device.flush()?;
        }
    }
    Ok(bytes)
}

/// Returns the id of a device and the checksum of its primary superblock.
fn identity(device: &dyn Device) -> Option<(Uuid, Vec<u8>)> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).ok()?;
    let superblock = Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).ok()?;
    Some((superblock.dev_item.uuid, bytes[..MAX_CHECKSUM_SIZE].to_vec()))
}

fn is_superblock(at: Physical) -> bool {
    SUPERBLOCK_COPIES.contains(&at)
}

/// Splits a write at the copies of the superblock.
fn split(write: &DeviceWrite) -> Vec<DeviceWrite> {
    let (start, end) = (write.at.0, write.at.0 + write.data.len() as u64);
    let size = SUPERBLOCK_SIZE as u64;
    let mut cuts = vec![start, end];
    for copy in SUPERBLOCK_COPIES {
        cuts.extend([copy.0, copy.0 + size].into_iter().filter(|cut| *cut > start && *cut < end));
    }
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|cut| DeviceWrite {
            at: Physical(cut[0]),
            data: write.data.slice((cut[0] - start) as usize..(cut[1] - start) as usize),
        })
        .collect()
}

fn write_all(device: &dyn Device, writes: Vec<DeviceWrite>) -> io::Result<()> {
    if writes.is_empty() {
        return Ok(());
    }
    device.submit(writes).wait().map_err(|error| error.source)
}

fn record(file: &mut impl Write, kind: u8, at: u64, data: &[u8]) -> io::Result<()> {
    let mut head = vec![kind];
    head.extend_from_slice(&at.to_le_bytes());
    head.extend_from_slice(&(data.len() as u32).to_le_bytes());
    let sum = ChecksumType::Crc32c.compute(&[&head[..], data].concat());
    file.write_all(&head)?;
    file.write_all(data)?;
    file.write_all(&sum.0[..4])
}

/// Reads a file that is whole.
fn read(path: &Path) -> Result<Vec<Saved>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut head = [0; 12];
    let is_short = |_| Error::BadUndo("is no undo file");
    file.read_exact(&mut head).map_err(is_short)?;
    if head[..8] != MAGIC || head[8..] != VERSION.to_le_bytes() {
        return Err(Error::BadUndo("is no undo file"));
    }
    let mut saved: Vec<Saved> = Vec::new();
    loop {
        let (kind, at, data) = read_record(&mut file)?;
        match (kind, saved.last_mut()) {
            (END, _) => return Ok(saved),
            (DEVICE, _) if data.len() == 16 + MAX_CHECKSUM_SIZE => {
                let mut uuid = [0; 16];
                uuid.copy_from_slice(&data[..16]);
                saved.push(Saved { uuid: Uuid(uuid), written: data[16..].to_vec(), blocks: Vec::new() });
            }
            (BLOCKS, Some(last)) => last.blocks.push((at, data)),
            _ => return Err(Error::BadUndo("is damaged")),
        }
    }
}

fn read_record(file: &mut impl Read) -> Result<(u8, u64, Vec<u8>)> {
    let is_cut = |_| Error::BadUndo("is damaged, or not whole");
    let mut head = [0; 13];
    file.read_exact(&mut head).map_err(is_cut)?;
    let mut word = [0; 8];
    word.copy_from_slice(&head[1..9]);
    let length = u32::from_le_bytes([head[9], head[10], head[11], head[12]]) as usize;
    if length > MAX_RECORD {
        return Err(Error::BadUndo("is damaged"));
    }
    let mut data = vec![0; length];
    file.read_exact(&mut data).map_err(is_cut)?;
    let mut sum = [0; 4];
    file.read_exact(&mut sum).map_err(is_cut)?;
    if ChecksumType::Crc32c.compute(&[&head[..], &data].concat()).0[..4] != sum {
        return Err(Error::BadUndo("is damaged"));
    }
    Ok((head[0], u64::from_le_bytes(word), data))
}

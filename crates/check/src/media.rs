//! Reads any copy of any logical address. The mapping from addresses to devices is the checker's
//! own, so that it is independent.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, STRIPE_LEN};
use ubtrfs_format::{Logical, Physical};
use ubtrfs_volume::Device;

use crate::windows::Windows;

/// The devices of a volume and their chunks.
pub(crate) struct Media {
    devices: BTreeMap<u64, Arc<dyn Device>>,
    chunks: BTreeMap<u64, ChunkItem>,
    /// What was read around the last tree blocks.
    windows: Mutex<Windows>,
}

impl Clone for Media {
    fn clone(&self) -> Self {
        Self { devices: self.devices.clone(), chunks: self.chunks.clone(), windows: Mutex::default() }
    }
}

/// The number of a chunk's data stripes, over which its addresses are distributed.
pub(crate) fn data_stripes(chunk: &ChunkItem) -> u64 {
    let stripes = chunk.stripes.len() as u64;
    match chunk.flags.profile() {
        BlockGroupFlags::RAID0 => stripes,
        BlockGroupFlags::RAID10 => stripes / 2,
        BlockGroupFlags::RAID5 => stripes.saturating_sub(1),
        BlockGroupFlags::RAID6 => stripes.saturating_sub(2),
        _ => 1,
    }
    .max(1)
}

/// How many copies of each byte a chunk has that can be read without parity.
fn copies(chunk: &ChunkItem) -> usize {
    match chunk.flags.profile() {
        BlockGroupFlags::DUP | BlockGroupFlags::RAID1 | BlockGroupFlags::RAID1C3 | BlockGroupFlags::RAID1C4 => {
            chunk.stripes.len()
        }
        BlockGroupFlags::RAID10 => 2,
        _ => 1,
    }
}

fn unmapped() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no chunk maps this address")
}

/// A copy that is on a missing device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missed {
    pub(crate) device: u64,
    /// Whether other devices have another copy, or parity to compute it from.
    pub(crate) has_other: bool,
}

impl Media {
    pub(crate) fn new(devices: BTreeMap<u64, Arc<dyn Device>>) -> Self {
        Self { devices, chunks: BTreeMap::new(), windows: Mutex::default() }
    }

    pub(crate) fn add_chunk(&mut self, start: Logical, chunk: ChunkItem) {
        self.chunks.insert(start.0, chunk);
    }

    pub(crate) fn device(&self, devid: u64) -> Option<&Arc<dyn Device>> {
        self.devices.get(&devid)
    }

    /// The chunks of RAID5 and RAID6 with a possible number of stripes, and their starts.
    pub(crate) fn chunks_with_parity(&self) -> impl Iterator<Item = (u64, &ChunkItem)> {
        let fits = |chunk: &ChunkItem| match chunk.flags.profile() {
            BlockGroupFlags::RAID5 => (2..=255).contains(&chunk.stripes.len()),
            BlockGroupFlags::RAID6 => (3..=255).contains(&chunk.stripes.len()),
            _ => false,
        };
        self.chunks.iter().map(|(start, chunk)| (*start, chunk)).filter(move |(_, chunk)| fits(chunk))
    }

    fn chunk_at(&self, at: u64) -> Option<(u64, &ChunkItem)> {
        let (start, chunk) = self.chunks.range(..=at).next_back()?;
        (at - start < chunk.length).then_some((*start, chunk))
    }

    /// How many copies of this address can be read; 0 if no chunk maps it.
    pub(crate) fn copies(&self, at: Logical) -> usize {
        self.chunk_at(at.0).map_or(0, |(_, chunk)| copies(chunk))
    }

    /// The end of the chunk that maps this address.
    pub(crate) fn chunk_end(&self, at: Logical) -> Option<u64> {
        self.chunk_at(at.0).map(|(start, chunk)| start.saturating_add(chunk.length))
    }

    /// Fills `buf` from copy number `copy`, counted from 0.
    pub(crate) fn read_copy(&self, at: Logical, copy: usize, buf: &mut [u8]) -> io::Result<()> {
        let mut at = at.0;
        let mut rest = buf;
        while !rest.is_empty() {
            let (devid, physical, run) = self.locate(at, copy).ok_or_else(unmapped)?;
            let len = usize::try_from(run).unwrap_or(usize::MAX).min(rest.len());
            let (piece, after) = rest.split_at_mut(len);
            let device = self
                .devices
                .get(&devid)
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("device {devid} is missing")))?;
            device.read_at(physical, piece)?;
            at = at.checked_add(len as u64).ok_or_else(unmapped)?;
            rest = after;
        }
        Ok(())
    }

    /// Fills `buf` from a copy of a tree block. Blocks of a tree mostly are near each other, so
    /// more is read than the block, and kept for the next ones.
    pub(crate) fn read_block(&self, at: Logical, copy: usize, buf: &mut [u8]) -> io::Result<()> {
        if let Some((devid, Physical(start), run)) = self.locate(at.0, copy)
            && run >= buf.len() as u64
            && let Some(device) = self.devices.get(&devid)
            && let Ok(mut windows) = self.windows.lock()
            && windows.read(devid, device.as_ref(), start, buf)
        {
            return Ok(());
        }
        self.read_copy(at, copy, buf)
    }

    /// Returns the missing device that has this copy of so many bytes, or a part of it.
    pub(crate) fn missed(&self, at: Logical, copy: usize, len: u64) -> Option<Missed> {
        let device = self.missing_device(at, copy, len)?;
        let is_there = |other: usize| other != copy && self.missing_device(at, other, len).is_none();
        let has_other = (0..self.copies(at)).any(is_there) || self.parity_is_enough(at);
        Some(Missed { device, has_other })
    }

    /// Returns whether the chunk at this address has parity for all of its missing devices.
    fn parity_is_enough(&self, at: Logical) -> bool {
        let Some((_, chunk)) = self.chunk_at(at.0) else { return false };
        let parity = match chunk.flags.profile() {
            BlockGroupFlags::RAID5 => 1,
            BlockGroupFlags::RAID6 => 2,
            _ => 0,
        };
        let missing = chunk.stripes.iter().filter(|stripe| !self.devices.contains_key(&stripe.devid.0));
        missing.count() <= parity
    }

    fn missing_device(&self, at: Logical, copy: usize, len: u64) -> Option<u64> {
        let (mut at, end) = (at.0, at.0.saturating_add(len));
        while at < end {
            let (devid, _, run) = self.locate(at, copy)?;
            if !self.devices.contains_key(&devid) {
                return Some(devid);
            }
            at = at.saturating_add(run);
        }
        None
    }

    /// The device and the physical address of one copy, and for how many bytes the following
    /// addresses are adjacent.
    fn locate(&self, at: u64, copy: usize) -> Option<(u64, Physical, u64)> {
        let (start, chunk) = self.chunk_at(at)?;
        let offset = at - start;
        let to_end = chunk.length - offset;
        let (row, column) = (offset / STRIPE_LEN / data_stripes(chunk), offset / STRIPE_LEN % data_stripes(chunk));
        let stripes = chunk.stripes.len() as u64;
        let (index, physical, run) = match chunk.flags.profile() {
            BlockGroupFlags::RAID0 | BlockGroupFlags::RAID10 | BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6 => {
                let inside = offset % STRIPE_LEN;
                let index = match chunk.flags.profile() {
                    BlockGroupFlags::RAID0 => column,
                    BlockGroupFlags::RAID10 => column * 2 + copy as u64,
                    // The stripes of a row are rotated by one device from row to row.
                    _ => (row + column) % stripes,
                };
                (index, row * STRIPE_LEN + inside, (STRIPE_LEN - inside).min(to_end))
            }
            _ => (copy as u64, offset, to_end),
        };
        let stripe = chunk.stripes.get(usize::try_from(index).ok()?)?;
        Some((stripe.devid.0, stripe.offset.plus(physical), run))
    }

    /// The logical addresses that the chunk maps to `physical` of device `devid`; none if that
    /// place has parity or another chunk.
    pub(crate) fn addresses_of(chunk_start: u64, chunk: &ChunkItem, devid: u64, physical: u64) -> Vec<u64> {
        let data = data_stripes(chunk);
        let stripes = chunk.stripes.len() as u64;
        let on_device = chunk.length / data;
        let mut found = Vec::new();
        for (index, stripe) in (0_u64..).zip(&chunk.stripes) {
            let Some(inside) = physical.checked_sub(stripe.offset.0) else { continue };
            if stripe.devid.0 != devid || inside >= on_device {
                continue;
            }
            let (row, rest) = (inside / STRIPE_LEN, inside % STRIPE_LEN);
            let column = match chunk.flags.profile() {
                BlockGroupFlags::RAID0 => index,
                BlockGroupFlags::RAID10 => index / 2,
                BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6 => (index + stripes - row % stripes) % stripes,
                _ => {
                    found.push(chunk_start.saturating_add(inside));
                    continue;
                }
            };
            if column < data {
                found.push(chunk_start.saturating_add((row * data + column) * STRIPE_LEN + rest));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_format::items::Stripe;
    use ubtrfs_format::{DeviceId, Uuid};

    fn chunk(profile: BlockGroupFlags, stripes: u64, rows: u64) -> ChunkItem {
        let mut chunk = ChunkItem {
            length: 0,
            owner: 2,
            stripe_len: STRIPE_LEN,
            flags: BlockGroupFlags::DATA.with(profile),
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 2,
            stripes: (0..stripes)
                .map(|index| Stripe {
                    devid: DeviceId(index + 1),
                    offset: Physical((index + 1) << 20),
                    dev_uuid: Uuid::NIL,
                })
                .collect(),
        };
        chunk.length = rows * STRIPE_LEN * data_stripes(&chunk);
        chunk
    }

    #[test]
    fn every_copy_of_every_address_maps_back_to_it() {
        for (profile, stripes) in [
            (BlockGroupFlags(0), 1),
            (BlockGroupFlags::RAID1, 2),
            (BlockGroupFlags::RAID1C3, 3),
            (BlockGroupFlags::RAID0, 3),
            (BlockGroupFlags::RAID10, 6),
            (BlockGroupFlags::RAID5, 4),
            (BlockGroupFlags::RAID6, 5),
        ] {
            let chunk = chunk(profile, stripes, 7);
            let mut media = Media::new(BTreeMap::new());
            let start = 1 << 30;
            media.add_chunk(Logical(start), chunk.clone());
            let mut seen = std::collections::HashSet::new();
            for at in (start..start + chunk.length).step_by(32 << 10) {
                for copy in 0..media.copies(Logical(at)) {
                    let (devid, physical, _) = media.locate(at, copy).unwrap();
                    assert!(seen.insert((devid, physical)), "{profile:?} {at}: place used twice");
                    assert_eq!(Media::addresses_of(start, &chunk, devid, physical.0), [at], "{profile:?}");
                }
            }
            assert!(media.locate(start + chunk.length, 0).is_none());
        }
    }
}

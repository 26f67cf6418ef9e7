//! Reserves the space for a step, and copies its data.

use ubtrfs_file::sum_runs;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{ItemType, Key, Logical, TreeId};
use ubtrfs_volume::{Buffer, CompletedWrites, Data, Write};

use super::Relocator;
use super::batch::Batch;
use crate::commit::DataTarget;
use crate::error::{Errno, Result};
use ubtrfs_space::Demand;

/// Bytes that are read and written at a time.
const PIECE: u64 = 1 << 20;

/// When a step is carried out it may need twice its present number of nodes, and this many more.
const MORE_NODES: usize = 32;

/// A step whose data is copied, and for which metadata is reserved.
pub(super) struct Prepared {
    pub(super) data: Vec<DataTarget>,
    pub(super) nodes: Vec<(Logical, u8)>,
    pub(super) written: CompletedWrites<Data>,
    pub(super) most_nodes: usize,
    /// Bytes of metadata.
    pub(super) reserved: u64,
}

impl Relocator {
    /// Reserves what a step needs, and copies its data. `EAGAIN` if one of its extents is gone.
    pub(super) fn prepare(&self, batch: Batch) -> Result<Prepared> {
        let Batch { data, nodes, moving_nodes, edits } = batch;
        let most_nodes = 2 * moving_nodes + MORE_NODES;
        let reserved = self.reserve_metadata(most_nodes as u64, edits, &data)?;
        let mut targets = Vec::with_capacity(data.len());
        match self.copy_all(&data, &mut targets) {
            Ok(written) => Ok(Prepared { data: targets, nodes, written, most_nodes, reserved }),
            Err(error) => {
                for target in &targets {
                    self.info.space.release(target.to, target.length);
                }
                self.info.space.lock().unreserve_relocation(reserved);
                Err(error)
            }
        }
    }

    /// Reserves metadata for the commit of a step: for the nodes that move, and the changes of the
    /// extent and checksum trees. Returns the bytes.
    fn reserve_metadata(&self, nodes: u64, edits: u64, data: &[(Logical, u64, bool)]) -> Result<u64> {
        /// Nodes that any commit writes.
        const ANY_COMMIT: u64 = 32;
        let node_size = self.info.space.node_size();
        let committed = self.info.committed();
        let extent_leaves = committed.needs().extent_nodes + edits.div_ceil(50);
        let sectors = data.iter().map(|(_, length, _)| length).sum::<u64>() / u64::from(self.info.volume.sector_size());
        let sum_nodes = sectors * self.info.volume.checksum().size() as u64 * 4 / node_size + 2 * data.len() as u64;
        drop(committed);
        let touched = edits.min(extent_leaves);
        // Each leaf adds its share of the nodes on its path.
        let bytes = (nodes + touched * 3 / 2 + sum_nodes + ANY_COMMIT) * node_size;
        self.take_room(BlockGroupFlags::METADATA, |space| space.reserve_relocation(bytes))?;
        Ok(bytes)
    }

    fn copy_all(&self, data: &[(Logical, u64, bool)], targets: &mut Vec<DataTarget>) -> Result<CompletedWrites<Data>> {
        let mut written = self.info.volume.writer().wait_all([])?;
        for (from, length, has_data) in data.iter().copied() {
            let to = self.place(length)?;
            targets.push(DataTarget { from, length, to, is_copied: has_data });
            if has_data {
                written = written.merge(self.copy(from, length, to)?);
            }
        }
        Ok(written)
    }

    /// Allocates a place for an extent, in one piece as before.
    fn place(&self, length: u64) -> Result<Logical> {
        let reservation = self.reserver.reserve_to_move(Demand { data: length, ..Demand::default() })?;
        let allocate = || self.info.space.allocate_whole_data(length, Logical(0));
        let mut place = allocate();
        if place.is_none() && self.reserver.add_chunk(BlockGroupFlags::DATA)? {
            place = allocate();
        }
        self.info.space.lock().unreserve_data(length);
        drop(reservation);
        place.ok_or_else(|| Errno::NOSPC.into())
    }

    /// Copies an extent's bytes as they are on the device. Data with checksums is verified.
    fn copy(&self, from: Logical, length: u64, to: Logical) -> Result<CompletedWrites<Data>> {
        let (committed, volume) = (self.info.committed(), &self.info.volume);
        let (checksum, sector) = (volume.checksum(), volume.sector_size());
        // Space that was freed since the step was chosen may be discarded, and its chunk may be
        // gone. What these roots refer to stays as long as they are held.
        if committed.tree(TreeId::EXTENT)?.get(&Key::new(from.0, ItemType::EXTENT_ITEM, length))?.is_none() {
            return Err(Errno::AGAIN.into());
        }
        let sums = sum_runs(&committed.tree(TreeId::CSUM)?, from, length, checksum, sector)?;
        let mut tickets = Vec::new();
        let mut at = 0;
        while at < length {
            let len = PIECE.min(length - at);
            let mut buffer = Buffer::for_reading(len as usize);
            let begin = from.plus(at);
            self.read_verified(begin, &mut buffer, &sums)?;
            tickets.push(volume.writer().submit(vec![Write { at: to.plus(at), data: buffer.share() }])?);
            at += len;
        }
        Ok(volume.writer().wait_all(tickets)?)
    }

    /// Reads data of which some sectors have checksums.
    fn read_verified(&self, at: Logical, buf: &mut [u8], sums: &[(Logical, Vec<u8>)]) -> Result<()> {
        let volume = &self.info.volume;
        let (sector, size) = (u64::from(volume.sector_size()), volume.checksum().size());
        let end = at.plus(buf.len() as u64);
        let mut next = at;
        for (start, run) in sums {
            let stop = start.plus((run.len() / size) as u64 * sector).min(end);
            let begin = (*start).max(at);
            if begin >= stop {
                continue;
            }
            let place = |address: Logical| (address.0 - at.0) as usize;
            if next < begin {
                volume.reader().read_data(next, &mut buf[place(next)..place(begin)], None)?;
            }
            let position = |address: Logical| ((address.0 - start.0) / sector) as usize * size;
            let part = run.get(position(begin)..position(stop));
            volume.reader().read_data(begin, &mut buf[place(begin)..place(stop)], part)?;
            next = stop;
        }
        if next < end {
            volume.reader().read_data(next, &mut buf[(next.0 - at.0) as usize..], None)?;
        }
        Ok(())
    }
}

//! Data that a caller reads by itself, for example with an `io_uring` of its own, and verifies
//! (invariant 11).

use std::fs::File;
use std::sync::Arc;

use ubtrfs_format::Logical;

use crate::chunk_map::IoStripe;
use crate::member::Reading;
use crate::proof::Proof;
use crate::read::{VolumeReader, place_of};

/// Where a range of data can be read.
#[derive(Clone, Debug)]
pub struct DirectRead {
    /// The device's file. Reads of it have address, length and memory aligned to 4096 bytes.
    pub file: Arc<File>,
    /// The physical address of the range in it, in bytes.
    pub at: u64,
    /// Counts as one of the device's reads until it is dropped, so that other reads prefer other
    /// copies.
    _reading: Arc<Reading>,
}

impl VolumeReader {
    /// Returns where `len` bytes of data at `at` are on the device that has the fewest reads in
    /// flight, for a caller that reads them by itself. Returns `None` if only [`Self::read_data`]
    /// can read them: if they are on several devices, not aligned to 4096 bytes, or on a device
    /// that is no file.
    pub fn direct_read(&self, at: Logical, len: usize) -> Option<DirectRead> {
        let pieces = self.pieces_to_read(at, len as u64, Proof::Nothing).ok()?;
        let [piece] = &pieces[..] else { return None };
        let IoStripe { devid, at } = place_of(piece, 0)?;
        let member = self.devices.member(devid).ok()?;
        let file = member.device.file_to_read(at, len)?;
        Some(DirectRead { file, at: at.0, _reading: Arc::new(member.begin_read()) })
    }

    /// Returns whether whole sectors of data match these checksums, in order.
    pub fn is_right_data(&self, sectors: &[u8], sums: &[u8]) -> bool {
        let (sector, sum) = (self.identity.sector_size() as usize, self.identity.checksum().size());
        sectors.len().is_multiple_of(sector)
            && sums.len() == sectors.len() / sector * sum
            && sectors
                .chunks_exact(sector)
                .zip(sums.chunks_exact(sum))
                .all(|(sector, sum)| self.is_right(sector, Some(sum)))
    }
}

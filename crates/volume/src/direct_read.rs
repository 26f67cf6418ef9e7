//! Data that a caller reads by itself, as with an `io_uring` of its own, and verifies
//! (invariant 11).

use std::fs::File;
use std::sync::Arc;

use ubtrfs_format::Logical;

use crate::chunk_map::IoStripe;
use crate::member::Reading;
use crate::proof::Proof;
use crate::read::place_of;
use crate::volume::Volume;

/// Where a range of data can be read.
#[derive(Clone, Debug)]
pub struct DirectRead {
    /// The device. Reads of it are aligned to 4096 bytes, in memory, too.
    pub file: Arc<File>,
    /// The physical address of the range in it, in bytes.
    pub at: u64,
    /// Counts as one of the device's reads until it is dropped: others go to other copies.
    _reading: Arc<Reading>,
}

impl Volume {
    /// Where `len` bytes of data at `at` are on the device that has the fewest reads under way, for
    /// a caller that reads them by itself. `None` where only [`Volume::read_data`] can read it: on
    /// several devices, at no multiples of 4096, from a device that is no file.
    pub fn direct_read(&self, at: Logical, len: usize) -> Option<DirectRead> {
        let pieces = self.pieces_to_read(at, len as u64, Proof::Nothing).ok()?;
        let [piece] = &pieces[..] else { return None };
        let IoStripe { devid, at } = place_of(piece, 0)?;
        let member = self.member(devid).ok()?;
        let file = member.device.file_to_read(at, len)?;
        Some(DirectRead { file, at: at.0, _reading: Arc::new(member.begin_read()) })
    }

    /// Whether whole sectors of data have these checksums, one after the other.
    pub fn is_right_data(&self, sectors: &[u8], sums: &[u8]) -> bool {
        let (sector, sum) = (self.sector_size() as usize, self.checksum().size());
        sectors.len().is_multiple_of(sector)
            && sums.len() == sectors.len() / sector * sum
            && sectors
                .chunks_exact(sector)
                .zip(sums.chunks_exact(sum))
                .all(|(sector, sum)| self.is_right(sector, Some(sum)))
    }
}

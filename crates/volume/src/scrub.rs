//! Comparing all copies of what is allocated with what they should be, and rewriting those that are
//! wrong.

use ubtrfs_format::{DeviceId, Generation, Logical, NodeExpectation};

use crate::buffer::Buffer;
use crate::chunk_map::{IoStripe, MappedRange};
use crate::error::{Error, Result};
use crate::open::read_copy;
use crate::read::{State, place_of};
use crate::volume::Volume;

/// What a scrub found. All counts are of copies: a block that two devices have is two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes that were read.
    pub bytes: u64,
    /// Reads that failed: tree blocks, and sectors of data.
    pub read_errors: u64,
    /// Tree blocks and sectors that were wrong.
    pub checksum_errors: u64,
    /// Copies that were rewritten.
    pub corrected: u64,
    /// Copies that are wrong and stay so.
    pub uncorrectable: u64,
}

impl Scrubbed {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            read_errors: self.read_errors + other.read_errors,
            checksum_errors: self.checksum_errors + other.checksum_errors,
            corrected: self.corrected + other.corrected,
            uncorrectable: self.uncorrectable + other.uncorrectable,
        }
    }

    fn note(&mut self, error: &Error) {
        match error {
            Error::Read { .. } => self.read_errors += 1,
            _ => self.checksum_errors += 1,
        }
    }

    /// So many of the copies found bad were rewritten.
    fn settle(&mut self, corrected: usize) {
        let bad = self.read_errors + self.checksum_errors;
        self.corrected = bad.min(corrected as u64);
        self.uncorrectable = bad - self.corrected;
    }
}

/// What is scrubbed, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubScope {
    /// Only the copies on this device.
    pub device: Option<DeviceId>,
    /// Nothing is rewritten.
    pub read_only: bool,
}

impl ScrubScope {
    fn covers(&self, place: Option<IoStripe>) -> bool {
        self.device.is_none_or(|device| place.is_some_and(|place| place.devid == device))
    }
}

impl Volume {
    /// Compares the copies of a tree block, of which level and generation are known.
    pub fn scrub_node(
        &self,
        at: Logical,
        level: Option<u8>,
        generation: Generation,
        scope: ScrubScope,
    ) -> Result<Scrubbed> {
        let fsid = self.metadata_fsid();
        let expected =
            NodeExpectation { bytenr: at, level, generation: Some(generation), owner: None, first_key: None, fsid };
        let pieces = self.map.read().pieces(at, self.node_size().into())?;
        let mut found = Scrubbed::default();
        let mut block = Buffer::for_reading(self.node_size() as usize);
        for copy in self.present_copies(&pieces, scope) {
            found.bytes += block.len() as u64;
            if let Err(error) = self.read_node_copy(&expected, &pieces, copy, &mut block) {
                found.note(&error);
                self.note_bad_copy(&pieces, copy, &error);
            }
        }
        if found.read_errors + found.checksum_errors > 0 {
            found.settle(if scope.read_only { 0 } else { self.repair_node(&expected) });
        }
        Ok(found)
    }

    /// Compares the copies of data, in whole sectors, with its checksums, one after the other. Of
    /// data without them, copies on devices that lag are rewritten from others.
    pub fn scrub_data(&self, at: Logical, len: u64, sums: Option<&[u8]>, scope: ScrubScope) -> Result<Scrubbed> {
        let sector = self.sector_size() as usize;
        let sum_size = self.checksum().size();
        let mut found = Scrubbed::default();
        let mut done = 0;
        for piece in self.map.read().pieces(at, len)? {
            let start = at.plus(done);
            let first = done as usize / sector;
            done += piece.len;
            let pieces = std::slice::from_ref(&piece);
            let mut part = Buffer::for_reading(piece.len as usize);
            let mut wrong = vec![0_usize; piece.len as usize / sector];
            for copy in self.present_copies(pieces, scope) {
                found.bytes += piece.len;
                let read = self.read_copy(pieces, copy, &mut part);
                if let Err(error) = &read {
                    self.note_bad_copy(pieces, copy, error);
                }
                for (number, bytes) in part.chunks_exact(sector).enumerate() {
                    let sum =
                        sums.and_then(|sums| sums.get((first + number) * sum_size..(first + number + 1) * sum_size));
                    let is_unproven = sum.is_none() && self.is_of_a_laggard(&piece, copy);
                    if read.is_ok() && !is_unproven && self.is_right(bytes, sum) {
                        continue;
                    }
                    wrong[number] += 1;
                    if read.is_err() {
                        found.read_errors += 1;
                    } else if !is_unproven {
                        found.checksum_errors += 1;
                        self.note_bad_copy(pieces, copy, &Error::Data { at: start.plus((number * sector) as u64) });
                    }
                }
            }
            for (number, wrong) in wrong.into_iter().enumerate().filter(|(_, wrong)| *wrong > 0) {
                let at = start.plus((number * sector) as u64);
                let sum = sums.and_then(|sums| sums.get((first + number) * sum_size..(first + number + 1) * sum_size));
                let corrected = if scope.read_only { 0 } else { self.repair_sector(at, sector, sum) };
                found.corrected += corrected.min(wrong) as u64;
                found.uncorrectable += wrong.saturating_sub(corrected) as u64;
            }
        }
        Ok(found)
    }

    /// Counts the copies of a device's superblock that are damaged; none of a device that is
    /// missing. The next commit rewrites them.
    pub fn damaged_superblocks(&self, devid: DeviceId) -> Result<u64> {
        let member = self.member(devid)?;
        if member.is_missing() {
            return Ok(0);
        }
        let size = member.device.size();
        let inside = |at: &&ubtrfs_format::Physical| at.0 + ubtrfs_format::SUPERBLOCK_SIZE as u64 <= size;
        let copies = ubtrfs_format::SUPERBLOCK_COPIES.iter().filter(inside);
        Ok(copies.filter(|at| read_copy(&*member.device, **at).is_err()).count() as u64)
    }

    /// The numbers of the copies that are to be read.
    fn present_copies(&self, pieces: &[MappedRange], scope: ScrubScope) -> Vec<usize> {
        let most = pieces.iter().map(|piece| piece.copies.len()).max().unwrap_or(0);
        let place = |copy: usize| pieces.first().and_then(|piece| place_of(piece, copy));
        let is_there = |copy: &usize| {
            place(*copy).is_some_and(|place| self.member(place.devid).is_ok_and(|member| !member.is_missing()))
        };
        (0..most).filter(is_there).filter(|copy| scope.covers(place(*copy))).collect()
    }

    fn is_of_a_laggard(&self, piece: &MappedRange, copy: usize) -> bool {
        place_of(piece, copy).is_some_and(|place| self.member(place.devid).is_ok_and(|member| member.lags()))
    }

    /// What makes a copy good of data that has no checksums: that its device has all that was
    /// written.
    pub(crate) fn state_without_sums(&self, pieces: &[MappedRange], copy: usize) -> State {
        if pieces.iter().any(|piece| self.is_of_a_laggard(piece, copy)) { State::Bad } else { State::Good }
    }
}

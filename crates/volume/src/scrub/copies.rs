//! Comparing the copies of tree blocks and of data.

use std::ops::Range;

use ubtrfs_format::{DeviceId, Generation, Logical, NodeExpectation};

use super::VolumeScrub;
use super::parity::ParityScrub;
use crate::buffer::Buffer;
use crate::chunk_map::{IoStripe, MappedRange};
use crate::error::{Error, Result};
use crate::read::repair_run::Run;
use crate::read::{copies_of, place_of};
use crate::scrubbed::{Repaired, ScrubScope, Scrubbed};
use crate::superblock_copy::read_copy;

impl VolumeScrub {
    /// Compares the copies of a tree block, whose level and generation are known. A device that
    /// lags may have a block of an interrupted attempt at the same commit, in which all of that is
    /// right. So its copy is compared with those of the other devices. Copies on devices that do
    /// not lag are compared with each other. If two differ and each is valid by itself, the devices
    /// were written apart, which superblocks do not always show, and both copies stay. Blocks and
    /// data have to come in the order of their addresses; `parity` has the row that they are in.
    pub fn node(
        &self,
        at: Logical,
        level: Option<u8>,
        generation: Generation,
        scope: ScrubScope,
        parity: &mut ParityScrub,
    ) -> Result<Scrubbed> {
        let fsid = self.identity.metadata_fsid();
        let expected =
            NodeExpectation { bytenr: at, level, generation: Some(generation), owner: None, first_key: None, fsid };
        let pieces = self.chunk_map.pieces(at, self.identity.node_size().into())?;
        let mut found = Scrubbed::default();
        let mut block = Buffer::for_reading(self.identity.node_size() as usize);
        let (mut first, mut differing): (Option<Buffer>, u64) = (None, 0);
        // A mount scrubs each of its devices separately.
        let read_first = |copy: usize, block: &Buffer| {
            let mut first = Buffer::for_reading(block.len());
            let is_there = copy > 0
                && !self.reader.has_laggard(&pieces, 0)
                && self.reader.read_node_copy(&expected, &pieces, 0, &mut first).is_ok();
            if is_there { first } else { Buffer::from(&block[..]) }
        };
        for copy in self.present_copies(&pieces, scope) {
            found.bytes += block.len() as u64;
            match self.reader.read_node_copy(&expected, &pieces, copy, &mut block) {
                Err(error) => {
                    found.note(&error);
                    self.reader.note_bad_copy(&pieces, copy, &error);
                    self.reader.note_fault(&pieces, at, copy, &error);
                }
                Ok(()) if self.reader.has_laggard(&pieces, copy) => {
                    let right = self.reader.read_node(&expected)?;
                    found.checksum_errors += u64::from(*right != *block);
                }
                Ok(()) => {
                    let first = first.get_or_insert_with(|| read_first(copy, &block));
                    if **first != *block {
                        let devid = pieces.first().and_then(|piece| place_of(piece, copy)).map(|place| place.devid.0);
                        tracing::error!(
                            device = devid,
                            "tree block {at}: another device has another one, and both are right by themselves: they \
                             were written apart, and what one of them has must be given up"
                        );
                        found.checksum_errors += 1;
                        found.uncorrectable += 1;
                        differing += 1;
                    }
                }
            }
        }
        let mut start = at;
        for piece in &pieces {
            if let Some(row) = self.row_to_compare(piece, start, scope) {
                let is_right = self.reader.read_node_copy(&expected, &pieces, 0, &mut block).is_ok();
                let sectors = (0..piece.len / u64::from(self.identity.sector_size())).map(|_| is_right);
                parity.note(self, (&row, scope), start, sectors);
            }
            start = start.plus(piece.len);
        }
        let bad = found.read_errors + found.checksum_errors - differing;
        if bad > 0 {
            found.settle(bad, if scope.read_only { Repaired::Unknown } else { self.reader.repair_node(&expected) });
        }
        Ok(found)
    }

    /// Compares the copies of data, in whole sectors, with their checksums. For data without
    /// checksums, copies on devices that lag are rewritten from others.
    pub fn data(
        &self,
        at: Logical,
        len: u64,
        sums: Option<&[u8]>,
        scope: ScrubScope,
        parity: &mut ParityScrub,
    ) -> Result<Scrubbed> {
        let sector = self.identity.sector_size() as usize;
        let sum_size = self.identity.checksum().size();
        let mut found = Scrubbed::default();
        let mut done = 0;
        let pieces = self.chunk_map.pieces(at, len)?;
        for piece in pieces {
            let start = at.plus(done);
            let first = done as usize / sector;
            done += piece.len;
            let pieces = std::slice::from_ref(&piece);
            let mut part = Buffer::for_reading(piece.len as usize);
            let mut wrong = vec![0_usize; piece.len as usize / sector];
            let copies = self.present_copies(pieces, scope);
            for copy in copies.iter().copied() {
                found.bytes += piece.len;
                let read = self.reader.read_copy(pieces, copy, &mut part);
                if let Err(error) = &read {
                    self.reader.note_bad_copy(pieces, copy, error);
                    self.reader.note_fault(pieces, start, copy, error);
                }
                for (number, bytes) in part.chunks_exact(sector).enumerate() {
                    let sum =
                        sums.and_then(|sums| sums.get((first + number) * sum_size..(first + number + 1) * sum_size));
                    let is_unproven = sum.is_none() && self.reader.is_of_a_laggard(&piece, copy);
                    if read.is_ok() && !is_unproven && self.reader.is_right(bytes, sum) {
                        continue;
                    }
                    wrong[number] += 1;
                    if read.is_err() {
                        found.read_errors += 1;
                    } else if !is_unproven {
                        found.checksum_errors += 1;
                        let at = start.plus((number * sector) as u64);
                        self.note_bad_sector(&piece, copy, start, at);
                    }
                }
            }
            if let (Some(row), Some(sums)) = (self.row_to_compare(&piece, start, scope), sums) {
                // If only other devices have the data, it is read for the parity alone.
                let is_read = !copies.is_empty() || self.reader.read_copy(pieces, 0, &mut part).is_ok();
                let sums = sums.chunks_exact(sum_size).skip(first);
                let sectors = part.chunks_exact(sector).zip(sums);
                let is_right = |(bytes, sum)| is_read && self.reader.is_right(bytes, Some(sum));
                parity.note(self, (&row, scope), start, sectors.map(is_right));
            }
            if !scope.read_only {
                self.settle_runs(&mut found, (start, sector), &mut wrong, |run: &Range<usize>| {
                    sums.and_then(|sums| sums.get((first + run.start) * sum_size..(first + run.end) * sum_size))
                });
            }
            for (number, wrong) in wrong.into_iter().enumerate().filter(|(_, wrong)| *wrong > 0) {
                let at = start.plus((number * sector) as u64);
                let sum = sums.and_then(|sums| sums.get((first + number) * sum_size..(first + number + 1) * sum_size));
                let repaired =
                    if scope.read_only { Repaired::Unknown } else { self.reader.repair_sector(at, sector, sum) };
                found.settle(wrong as u64, repaired);
            }
        }
        Ok(found)
    }

    /// Rewrites runs of sectors at once, as far as possible, and counts them. `wrong` has for each
    /// sector how many copies are wrong, and afterwards how many of those are left.
    fn settle_runs<'a>(
        &self,
        found: &mut Scrubbed,
        (start, sector): (Logical, usize),
        wrong: &mut [usize],
        sums: impl Fn(&Range<usize>) -> Option<&'a [u8]>,
    ) {
        let mut next = 0;
        while let Some(first) = (next..wrong.len()).find(|number| wrong[*number] > 0) {
            next = (first..wrong.len()).find(|number| wrong[*number] == 0).unwrap_or(wrong.len());
            let sectors = first..next;
            if sectors.len() == 1 {
                continue;
            }
            let (at, len) = (start.plus((first * sector) as u64), sectors.len() * sector);
            let Some(left) = self.reader.repair_run(&Run { at, len, sums: sums(&sectors) }) else { continue };
            let bad = wrong[sectors.clone()].iter().sum::<usize>() as u64;
            found.settle(bad, Repaired::Left(left as usize));
            wrong[sectors].fill(0);
        }
    }

    /// Returns how many copies of a device's superblock are damaged; 0 for a missing device. The
    /// next commit rewrites them.
    pub fn superblocks(&self, devid: DeviceId) -> Result<u64> {
        let member = self.devices.member(devid)?;
        if member.is_missing() {
            return Ok(0);
        }
        let size = member.device.size();
        let inside = |at: &&ubtrfs_format::Physical| at.0 + ubtrfs_format::SUPERBLOCK_SIZE as u64 <= size;
        let copies = ubtrfs_format::SUPERBLOCK_COPIES.iter().filter(inside);
        Ok(copies.filter(|at| read_copy(&*member.device, **at).is_err()).count() as u64)
    }

    /// Counts a sector of a copy that does not match its checksum. The copy begins at `start`.
    fn note_bad_sector(&self, piece: &MappedRange, copy: usize, start: Logical, at: Logical) {
        let (within, error) = (at.0 - start.0, Error::Data { at });
        let copies = piece.copies.iter().map(|stripe| IoStripe { at: stripe.at.plus(within), ..*stripe });
        let sector = MappedRange { len: self.identity.sector_size().into(), copies: copies.collect(), ..piece.clone() };
        let sector = std::slice::from_ref(&sector);
        self.reader.note_bad_copy(sector, copy, &error);
        self.reader.note_fault(sector, at, copy, &error);
    }

    /// Returns the numbers of the copies that are to be read.
    fn present_copies(&self, pieces: &[MappedRange], scope: ScrubScope) -> Vec<usize> {
        let most = copies_of(pieces);
        let place = |copy: usize| pieces.first().and_then(|piece| place_of(piece, copy));
        let is_there = |copy: &usize| {
            place(*copy).is_some_and(|place| self.devices.member(place.devid).is_ok_and(|member| !member.is_missing()))
        };
        (0..most).filter(is_there).filter(|copy| scope.covers(place(*copy))).collect()
    }
}

//! Rewriting many sectors of data at once, as is needed to bring a device up to the others: one
//! read of each copy, and one write for each run of sectors that are wrong.

use ubtrfs_format::Logical;

use crate::buffer::Buffer;
use crate::chunk_map::{IoStripe, MappedRange};
use crate::fault_log::Place;
use crate::proof::Proof;
use crate::read::{VolumeReader, place_of};

/// Sectors of data that follow each other, and their checksums.
pub(crate) struct Run<'a> {
    pub(crate) at: Logical,
    /// In bytes.
    pub(crate) len: usize,
    pub(crate) sums: Option<&'a [u8]>,
}

impl VolumeReader {
    /// Rewrites those sectors that are wrong in some copy, from a copy that has all of them right.
    /// Returns how many are still wrong, counted for each copy. Returns `None`, and has done
    /// nothing, if no copy has all of them right, if they are not in one piece, or if they could
    /// not be compared.
    pub(crate) fn repair_run(&self, run: &Run<'_>) -> Option<u64> {
        // `release` waits for the repair by this; or it came first, which the next check finds.
        let _alone = self.access.in_flight().begin_repair(run.at, run.len as u64)?;
        if !self.access.may_repair() {
            return None;
        }
        let _not_while_devices_change = self.devices.submitting();
        let proof = Proof::of_sums(run.sums);
        let pieces = self.pieces_to_read(run.at, run.len as u64, Proof::Checksums).ok()?;
        let [piece] = &pieces[..] else { return None };
        if !piece.writable {
            return None;
        }
        let mut right = Buffer::for_reading(run.len);
        let is_good = |copy: &usize| {
            self.is_believed(&pieces, *copy, proof)
                && self.read_copy(&pieces, *copy, &mut right).is_ok()
                && self.sectors_of(run, &right).all(|(_, is_right)| is_right)
        };
        let good = (0..piece.copies.len()).find(is_good)?;
        let mut left = 0;
        let right = right.share();
        let mut found = Buffer::for_reading(run.len);
        for copy in (0..piece.copies.len()).filter(|copy| *copy != good) {
            let wrong = match self.read_copy(&pieces, copy, &mut found) {
                Ok(()) => self.wrong_sectors(run, &pieces, copy, (&found, &right)),
                Err(_) => std::iter::once(0..run.len).collect(),
            };
            let Some(IoStripe { devid, at }) = place_of(piece, copy) else { continue };
            for bytes in wrong {
                let (offset, len) = (bytes.start as u64, bytes.len() as u64);
                let copies = len / u64::from(self.identity.sector_size());
                let place = Place { devid, physical: at.plus(offset), logical: run.at.plus(offset), len, copies };
                if !self.rewrite(place, right.slice(bytes), "data") {
                    left += copies;
                }
            }
        }
        Some(left)
    }

    /// Returns the sectors, and whether each has the right checksum.
    fn sectors_of<'a>(&self, run: &'a Run<'_>, found: &'a [u8]) -> impl Iterator<Item = (&'a [u8], bool)> {
        let (sector, size) = (self.identity.sector_size() as usize, self.identity.checksum().size());
        let sum = move |number: usize| run.sums.and_then(|sums| sums.get(number * size..(number + 1) * size));
        found.chunks_exact(sector).enumerate().map(move |(number, bytes)| (bytes, self.is_right(bytes, sum(number))))
    }

    /// Returns the runs of bytes to rewrite: those that are wrong, and on a device that lags those
    /// that differ.
    fn wrong_sectors(
        &self,
        run: &Run<'_>,
        pieces: &[MappedRange],
        copy: usize,
        (found, right): (&[u8], &[u8]),
    ) -> Vec<std::ops::Range<usize>> {
        let (sector, lags) = (self.identity.sector_size() as usize, self.has_laggard(pieces, copy));
        let mut wrong: Vec<std::ops::Range<usize>> = Vec::new();
        for (number, (bytes, is_right)) in self.sectors_of(run, found).enumerate() {
            let at = number * sector;
            if is_right && !(lags && right.get(at..at + sector) != Some(bytes)) {
                continue;
            }
            match wrong.last_mut() {
                Some(last) if last.end == at => last.end += sector,
                _ => wrong.push(at..at + sector),
            }
        }
        wrong
    }
}

//! Rewriting damaged copies of tree blocks and data sectors from a copy that is right.

use ubtrfs_errors::sentence;
use ubtrfs_format::{Error as FormatError, Header, Logical, NodeExpectation};

use crate::buffer::{Buffer, SharedBuffer};
use crate::chunk_map::{IoStripe, MappedRange};
use crate::device::DeviceWrite;
use crate::error::Error;
use crate::fault_log::{Outcome, Place};
use crate::member::DeviceErrorKind;
use crate::proof::Proof;
use crate::read::{VolumeReader, copies_of, place_of};
use crate::scrubbed::Repaired;

/// What a copy turned out to be.
pub(crate) enum CopyState {
    Good,
    Bad,
    Newer,
}

impl VolumeReader {
    /// Rewrites the damaged copies of a tree block.
    pub(crate) fn repair_node(&self, expected: &NodeExpectation) -> Repaired {
        let len = self.identity.node_size() as usize;
        let proof = Proof::Block(expected.generation);
        self.repair((expected.bytenr, len), "a tree block", proof, |pieces, copy, block| {
            match self.read_node_copy(expected, pieces, copy, block) {
                Ok(()) => CopyState::Good,
                // The block is whole, and newer than the caller expects.
                Err(Error::Node {
                    source: FormatError::WrongGeneration { .. } | FormatError::WrongLevel { .. },
                    ..
                }) if Header::parse(block)
                    .is_ok_and(|found| expected.generation.is_some_and(|expected| expected < found.generation)) =>
                {
                    CopyState::Newer
                }
                Err(_) => CopyState::Bad,
            }
        })
    }

    /// Rewrites the damaged copies of a data sector. Without checksums, the content of a device
    /// that lags always counts as wrong.
    pub(crate) fn repair_sector(&self, at: Logical, len: usize, sum: Option<&[u8]>) -> Repaired {
        let repaired = self.repair((at, len), "a data sector", Proof::Checksums, |pieces, copy, bytes| {
            match self.read_sector_copy(at, pieces, copy, bytes, sum) {
                Ok(()) if sum.is_none() => self.state_without_sums(pieces, copy),
                Ok(()) => CopyState::Good,
                Err(_) => CopyState::Bad,
            }
        });
        // Without this, old content of a lagging device would be read as right once the device is
        // current.
        if sum.is_none() && repaired == Repaired::Nowhere { Repaired::Unknown } else { repaired }
    }

    /// Rewrites damaged copies. The reader may have read during a write to the same address, or
    /// have an outdated expectation, so this reads everything again while nobody else may write.
    fn repair(
        &self,
        (at, len): (Logical, usize),
        what: &str,
        proof: Proof,
        examine: impl Fn(&[MappedRange], usize, &mut Buffer) -> CopyState,
    ) -> Repaired {
        // `release` waits for the repair by this; or it came first, which the next check finds.
        let Some(_alone) = self.access.in_flight().begin_repair(at, len as u64) else { return Repaired::Unknown };
        if !self.access.may_repair() {
            return Repaired::Unknown;
        }
        let _not_while_devices_change = self.devices.submitting();
        let pieces = match self.pieces_to_read(at, len as u64, Proof::Checksums) {
            Ok(pieces) if pieces.iter().all(|piece| piece.writable) => pieces,
            _ => return Repaired::Unknown,
        };
        let mut right = Buffer::for_reading(len);
        let is_good = |copy: &usize| {
            self.is_believed(&pieces, *copy, proof) && matches!(examine(&pieces, *copy, &mut right), CopyState::Good)
        };
        let good = (0..copies_of(&pieces)).find(is_good);
        let mut scratch = Buffer::for_reading(len);
        let Some(good) = good else {
            let is_bad = |copy| matches!(examine(&pieces, copy, &mut scratch), CopyState::Bad);
            // A copy that looks right on a device that lags may be right.
            return if (0..copies_of(&pieces)).all(is_bad) { Repaired::Nowhere } else { Repaired::Unknown };
        };
        let mut left = 0;
        let right = right.share();
        for copy in (0..copies_of(&pieces)).filter(|copy| *copy != good) {
            let is_bad = match examine(&pieces, copy, &mut scratch) {
                CopyState::Bad => true,
                // The device has missed a write that the others have.
                CopyState::Good => self.has_laggard(&pieces, copy) && *scratch != *right,
                // On a device that lags, a newer block belongs to a history that the other devices
                // don't have. These have everything that was written, so the caller's expectation
                // is right if one of them matches it. Otherwise the caller is behind.
                CopyState::Newer if self.has_laggard(&pieces, copy) && !self.has_laggard(&pieces, good) => true,
                CopyState::Newer => {
                    left += 1;
                    false
                }
            };
            if !is_bad {
                continue;
            }
            let (mut done, mut is_left) = (0, false);
            for piece in &pieces {
                let data = right.slice(done..done + piece.len as usize);
                let logical = at.plus(done as u64);
                done += piece.len as usize;
                let Some(IoStripe { devid, at: physical }) = place_of(piece, copy) else { continue };
                is_left |= !self.rewrite(Place { devid, physical, logical, len: piece.len, copies: 1 }, data, what);
            }
            left += usize::from(is_left);
        }
        Repaired::Left(left)
    }

    /// Overwrites a copy with the right content. Returns whether no wrong content is left.
    pub(crate) fn rewrite(&self, copy: Place, data: SharedBuffer, what: &str) -> bool {
        let Ok(member) = self.devices.member(copy.devid) else { return true };
        if !member.is_written() {
            return member.is_missing();
        }
        match member.device.submit(vec![DeviceWrite { at: copy.physical, data }]).wait() {
            Ok(()) => {
                self.count_repairs(copy.copies);
                self.devices.note_bad_copy(copy, Outcome::Rewritten, what, "");
                true
            }
            Err(error) => {
                member.note_error(DeviceErrorKind::Write);
                member.note_missed();
                let why = sentence(&error);
                self.devices.note_bad_copy(copy, Outcome::NotRewritten, what, &why);
                self.devices.note_fault(format!("device {}: {why}", copy.devid), copy.fault());
                false
            }
        }
    }

    /// Returns the state of a copy of data without checksums. The copy is good if its device has
    /// everything that was written.
    pub(crate) fn state_without_sums(&self, pieces: &[MappedRange], copy: usize) -> CopyState {
        if self.has_laggard(pieces, copy) { CopyState::Bad } else { CopyState::Good }
    }
}

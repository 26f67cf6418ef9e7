//! Reading. Every tree block and every data sector is verified before the caller gets it (invariant
//! 11). If a copy is bad, the next one is tried, and the bad copy is rewritten from a good one. If
//! no copy is left, chunks with parity still have the rest of the row (`rebuild`).

use std::sync::atomic::Ordering;

use ubtrfs_errors::sentence;
use ubtrfs_format::{Error as FormatError, Header, Logical, Node, NodeExpectation, verify_node_checksum};

use crate::buffer::{Buffer, SharedBuffer};
use crate::chunk_map::{IoStripe, MappedRange};
use crate::device::DeviceWrite;
use crate::error::{DeviceFault, Error, Result};
use crate::fault_log::{Outcome, Place};
use crate::member::DeviceErrorKind;
use crate::proof::Proof;
use crate::scrubbed::Repaired;
use crate::volume::Volume;

impl Volume {
    /// Reads a tree block, and checks that its checksum and structure are right and that it is the
    /// one that the caller expects.
    pub fn read_node(&self, expected: &NodeExpectation) -> Result<Buffer> {
        let len = u64::from(self.node_size());
        let proof = Proof::Block(expected.generation);
        let pieces = self.pieces_to_read(expected.bytenr, len, proof)?;
        let mut block = Buffer::for_reading(self.node_size() as usize);
        if let Some(node) = self.in_flight.node(expected.bytenr).filter(|node| node.len() == block.len()) {
            block.copy_from_slice(&node);
            self.check_node(expected, &block)?;
            return Ok(block);
        }
        let mut failures: Vec<(usize, Error)> = Vec::new();
        // An error that the caller gets is noted by the caller, so this notes only the others.
        let note_all = |failures: &[(usize, Error)]| {
            for (copy, error) in failures {
                self.note_fault(&pieces, expected.bytenr, *copy, error);
            }
        };
        for copy in 0..copies_of(&pieces) {
            match self.read_node_copy(expected, &pieces, copy, &mut block) {
                Ok(()) => {
                    if !failures.is_empty() {
                        note_all(&failures);
                        let _left = self.repair_node(expected);
                    }
                    return Ok(block);
                }
                Err(error) => {
                    self.note_bad_copy(&pieces, copy, &error);
                    failures.push((copy, error));
                }
            }
        }
        if self.rebuild(expected.bytenr, &mut block, proof, |block| self.check_node(expected, block).is_ok()) {
            note_all(&failures);
            return Ok(block);
        }
        if self.ignores_node_checksums.load(Ordering::Acquire) {
            for copy in 0..copies_of(&pieces) {
                let read = self.read_copy(&pieces, copy, &mut block);
                if read.is_ok() && self.check_structure(expected, &block).is_ok() {
                    return Ok(block);
                }
            }
        }
        // An error about the content of a copy is more useful than one about an unreadable copy.
        let is_of_content = |(_, error): &(usize, Error)| matches!(error, Error::Node { .. });
        let which = failures.iter().position(is_of_content).unwrap_or(0);
        let error = failures.into_iter().nth(which).map(|(_, error)| error);
        Err(error.unwrap_or(Error::Unmapped { at: expected.bytenr, len }))
    }

    pub(crate) fn read_node_copy(
        &self,
        expected: &NodeExpectation,
        pieces: &[MappedRange],
        copy: usize,
        block: &mut Buffer,
    ) -> Result<()> {
        self.read_copy(pieces, copy, block)?;
        self.check_node(expected, block)
    }

    fn check_node(&self, expected: &NodeExpectation, block: &[u8]) -> Result<()> {
        verify_node_checksum(block, self.checksum())
            .map_err(|source| Error::Node { at: expected.bytenr, source })
            .and_then(|()| self.check_structure(expected, block))
    }

    /// Checks everything in a block except its checksum.
    fn check_structure(&self, expected: &NodeExpectation, block: &[u8]) -> Result<()> {
        let mut expected = *expected;
        if let Ok(header) = Header::parse(block)
            && self.is_of_a_seed(header.fsid)
        {
            // The block is older than this volume, and has the seed's id.
            expected.fsid = header.fsid;
        }
        Node::check(block, &expected, self.sector_size())
            .map(|_| ())
            .map_err(|source| Error::Node { at: expected.bytenr, source })
    }

    /// Returns whether a node's header has this address and this volume's id.
    pub(crate) fn has_header_of(&self, at: Logical, block: &[u8]) -> bool {
        Header::parse(block).is_ok_and(|header| header.bytenr == at && header.fsid == self.metadata_fsid())
    }

    /// Returns whether a read would accept this node at this address.
    pub(crate) fn is_node_for(&self, at: Logical, block: &[u8]) -> bool {
        let (level, generation, owner, first_key) = (None, None, None, None);
        let fsid = self.metadata_fsid();
        self.check_node(&NodeExpectation { bytenr: at, level, generation, owner, first_key, fsid }, block).is_ok()
    }

    /// Reads data, aligned to sectors. `sums` holds the checksums of all its sectors, in order;
    /// without them nothing is verified.
    pub fn read_data(&self, at: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> Result<()> {
        let sector = self.sector_size() as usize;
        if !at.0.is_multiple_of(sector as u64) || !buf.len().is_multiple_of(sector) {
            return Err(Error::BadRequest("a data read is not aligned to sectors"));
        }
        let sum_size = self.checksum().size();
        if sums.is_some_and(|sums| sums.len() != buf.len() / sector * sum_size) {
            return Err(Error::BadRequest("not one checksum for each sector"));
        }
        let proof = Proof::of_sums(sums);
        let pieces = self.pieces_to_read(at, buf.len() as u64, proof)?;
        let mut done = 0;
        for piece in &pieces {
            let len = piece.len as usize;
            let Some(part) = buf.get_mut(done..done + len) else { break };
            let is_read = self.read_piece(at.plus(done as u64), piece, part, proof);
            for (index, bytes) in part.chunks_exact_mut(sector).enumerate() {
                let number = done / sector + index;
                let sum = sums.map(|sums| &sums[number * sum_size..(number + 1) * sum_size]);
                if !is_read || !self.is_right(bytes, sum) {
                    self.recover_sector(at.plus((number * sector) as u64), bytes, sum)?;
                }
            }
            done += len;
        }
        Ok(())
    }

    /// Reads the best copy of a piece, or rebuilds it from the rest of its row. Returns whether
    /// `part` has content that may be right.
    fn read_piece(&self, at: Logical, piece: &MappedRange, part: &mut [u8], proof: Proof) -> bool {
        let pieces = std::slice::from_ref(piece);
        if !piece.copies.is_empty() {
            match self.read_copy(pieces, 0, part) {
                Ok(()) => return true,
                Err(error) => {
                    self.note_bad_copy(pieces, 0, &error);
                    let is_rebuilt = self.rebuild(at, part, proof, |_| true);
                    if is_rebuilt {
                        self.note_fault(pieces, at, 0, &error);
                    }
                    return is_rebuilt;
                }
            }
        }
        self.rebuild(at, part, proof, |_| true)
    }

    pub(crate) fn is_right(&self, sector: &[u8], sum: Option<&[u8]>) -> bool {
        sum.is_none_or(|sum| self.checksum().matches(sector, sum))
    }

    /// Reads a sector from the first copy that is right, and rewrites the copies before it; or
    /// rebuilds it from the rest of its row.
    fn recover_sector(&self, at: Logical, bytes: &mut [u8], sum: Option<&[u8]>) -> Result<()> {
        let proof = Proof::of_sums(sum);
        let pieces = self.pieces_to_read(at, bytes.len() as u64, proof)?;
        let mut failures: Vec<(usize, Error)> = Vec::new();
        // An error that the caller gets is noted by the caller, so this notes only the others.
        let note_all = |failures: &[(usize, Error)]| {
            for (copy, error) in failures {
                self.note_fault(&pieces, at, *copy, error);
            }
        };
        for copy in 0..copies_of(&pieces) {
            match self.read_sector_copy(at, &pieces, copy, bytes, sum) {
                Ok(()) => {
                    if !failures.is_empty() {
                        note_all(&failures);
                        let _left = self.repair_sector(at, bytes.len(), sum);
                    }
                    return Ok(());
                }
                Err(error) => {
                    self.note_bad_copy(&pieces, copy, &error);
                    failures.push((copy, error));
                }
            }
        }
        if self.rebuild(at, bytes, proof, |bytes| self.is_right(bytes, sum)) {
            note_all(&failures);
            return Ok(());
        }
        let is_of_content = |(_, error): &(usize, Error)| matches!(error, Error::Data { .. });
        let which = failures.iter().position(is_of_content).or(failures.len().checked_sub(1));
        Err(which.map_or(Error::NoCurrentCopy { at }, |which| failures.swap_remove(which).1))
    }

    fn read_sector_copy(
        &self,
        at: Logical,
        pieces: &[MappedRange],
        copy: usize,
        bytes: &mut [u8],
        sum: Option<&[u8]>,
    ) -> Result<()> {
        self.read_copy(pieces, copy, bytes)?;
        if self.is_right(bytes, sum) { Ok(()) } else { Err(Error::Data { at }) }
    }

    /// Reads one copy of a range.
    pub(crate) fn read_copy(&self, pieces: &[MappedRange], copy: usize, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        for piece in pieces {
            let len = (piece.len as usize).min(rest.len());
            let (part, after) = rest.split_at_mut(len);
            rest = after;
            let Some(IoStripe { devid, at }) = place_of(piece, copy) else { continue };
            let member = self.member(devid)?;
            let reading = member.begin_read();
            let read = member.device.read_at(at, part);
            drop(reading);
            read.map_err(|source| {
                let logical = self.map.read().logical_of(devid, at);
                Error::Read { devid, at, logical, len, source }
            })?;
        }
        Ok(())
    }

    /// Returns where a range can be read, the best copy of each piece first: on devices that are
    /// there, that have everything that was written, and that have the least to do. Devices that
    /// lag are left out unless the proof suffices for them. If only they have a piece, this is an
    /// error, or the piece has no copy if it follows from the rest of its row.
    pub(crate) fn pieces_to_read(&self, at: Logical, len: u64, proof: Proof) -> Result<Vec<MappedRange>> {
        let mut pieces = self.map.read().pieces(at, len)?;
        let set = self.devices.load();
        if let [_] = set.members[..] {
            return Ok(pieces);
        }
        for piece in &mut pieces {
            let state = |stripe: &IoStripe| {
                set.member(stripe.devid).map_or((true, true, true, 0), |it| {
                    (it.is_missing(), it.lags(), set.avoids(stripe.devid), it.reads())
                })
            };
            piece.copies.sort_by_key(state);
            // Invariant 34.
            piece.copies.retain(|stripe| set.member(stripe.devid).is_ok_and(|member| proof.suffices_for(member)));
            if piece.copies.is_empty() && piece.writable {
                return Err(Error::NoCurrentCopy { at });
            }
        }
        Ok(pieces)
    }

    /// Returns whether a copy may be believed if this proof says that it is right.
    pub(crate) fn is_believed(&self, pieces: &[MappedRange], copy: usize, proof: Proof) -> bool {
        let member = |piece: &MappedRange| place_of(piece, copy).and_then(|place| self.member(place.devid).ok());
        pieces.iter().filter_map(member).all(|member| proof.suffices_for(&member))
    }

    /// Counts a copy that could not be read or is damaged.
    pub(crate) fn note_bad_copy(&self, pieces: &[MappedRange], copy: usize, error: &Error) {
        self.checksum_errors.fetch_add(1, Ordering::Relaxed);
        let kind = match error {
            Error::Read { .. } => DeviceErrorKind::Read,
            Error::Node { source: FormatError::WrongGeneration { .. }, .. } => DeviceErrorKind::Generation,
            Error::Node { .. } | Error::Data { .. } => DeviceErrorKind::Corruption,
            _ => return,
        };
        let of = |devid| self.member(devid).ok().filter(|member| !member.lags());
        if let Some(member) = pieces.first().and_then(|piece| place_of(piece, copy)).and_then(|place| of(place.devid)) {
            member.note_error(kind);
        }
    }

    /// Notes for the statistics what is wrong with a copy of this address. Ignores devices that
    /// lag, since bad copies are expected there.
    pub(crate) fn note_fault(&self, pieces: &[MappedRange], at: Logical, copy: usize, error: &Error) {
        let Some(IoStripe { devid, at: place }) = pieces.first().and_then(|piece| place_of(piece, copy)) else {
            return;
        };
        if self.has_laggard(pieces, copy) {
            return;
        }
        let len = pieces.iter().map(|piece| piece.len).sum();
        let of_copy = DeviceFault { devid, physical: Some(place), logical: Some(at), len };
        self.faults.note(sentence(&error), error.device_fault().unwrap_or(of_copy));
    }

    /// Rewrites the damaged copies of a tree block.
    pub(crate) fn repair_node(&self, expected: &NodeExpectation) -> Repaired {
        let len = self.node_size() as usize;
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
        let Some(_alone) = self.in_flight.begin_repair(at, len as u64) else { return Repaired::Unknown };
        if !self.may_repair() {
            return Repaired::Unknown;
        }
        let _not_while_devices_change = self.submissions.read();
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
        let Ok(member) = self.member(copy.devid) else { return true };
        if !member.is_written() {
            return member.is_missing();
        }
        match member.device.submit(vec![DeviceWrite { at: copy.physical, data }]).wait() {
            Ok(()) => {
                self.repairs.fetch_add(copy.copies, Ordering::Relaxed);
                self.faults.bad_copy(copy, Outcome::Rewritten, what, "");
                true
            }
            Err(error) => {
                member.note_error(DeviceErrorKind::Write);
                member.note_missed();
                let why = sentence(&error);
                self.faults.bad_copy(copy, Outcome::NotRewritten, what, &why);
                self.faults.note(format!("device {}: {why}", copy.devid), copy.fault());
                false
            }
        }
    }
}

/// What a copy turned out to be.
pub(crate) enum CopyState {
    Good,
    Bad,
    Newer,
}

/// Returns how many copies there are to try.
fn copies_of(pieces: &[MappedRange]) -> usize {
    pieces.iter().map(|piece| piece.copies.len()).max().unwrap_or(0)
}

/// Returns the location of a copy. If a range crosses into a chunk with fewer copies, these are
/// used in turn.
pub(crate) fn place_of(piece: &MappedRange, copy: usize) -> Option<IoStripe> {
    let index = copy.checked_rem(piece.copies.len())?;
    piece.copies.get(index).copied()
}

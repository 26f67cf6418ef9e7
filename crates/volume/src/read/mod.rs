//! Reading. Every tree block and every data sector is verified before the caller gets it (invariant
//! 11). If a copy is bad, the next one is tried, and the bad copy is rewritten from a good one. If
//! no copy is left, chunks with parity still have the rest of the row (`rebuild`).

pub(crate) mod direct_read;
mod rebuild;
mod repair;
pub(crate) mod repair_run;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_errors::sentence;
use ubtrfs_format::{Error as FormatError, Header, Logical, Node, NodeExpectation, verify_node_checksum};
use ubtrfs_threads::atomic::AtomicBool;

use crate::buffer::Buffer;
use crate::chunk_map::{IoStripe, MappedRange};
use crate::devices::VolumeDevices;
use crate::error::{DeviceFault, Error, Result};
use crate::identity::VolumeIdentity;
use crate::member::DeviceErrorKind;
use crate::proof::Proof;
use crate::shared_chunk_map::SharedChunkMap;
use crate::shared_state::SharedState;
use crate::write_access::WriteAccess;

/// Reads from a volume, and mends what it finds damaged. All methods may be called by many threads
/// at once.
#[derive(Debug)]
pub struct VolumeReader {
    identity: Arc<VolumeIdentity>,
    access: Arc<WriteAccess>,
    chunk_map: Arc<SharedChunkMap>,
    devices: Arc<VolumeDevices>,
    /// A tree block is returned whatever its checksum says if no copy is right.
    ignores_node_checksums: AtomicBool,
    checksum_errors: AtomicU64,
    repairs: AtomicU64,
}

impl VolumeReader {
    /// `checksum_errors` were found before.
    pub(crate) fn new(shared: SharedState, checksum_errors: u64) -> Self {
        let SharedState { identity, access, chunk_map, devices } = shared;
        Self {
            identity,
            access,
            chunk_map,
            devices,
            ignores_node_checksums: AtomicBool::new(false),
            checksum_errors: AtomicU64::new(checksum_errors),
            repairs: AtomicU64::new(0),
        }
    }

    /// From now on returns a tree block in spite of a wrong checksum, if everything else in it is
    /// right and no copy has a right checksum. For volumes that are only read.
    pub fn ignore_node_checksums(&self) {
        self.ignores_node_checksums.store(true, Ordering::Release);
    }

    /// Returns how many copies of tree blocks and data sectors were found bad.
    pub(crate) fn checksum_errors(&self) -> u64 {
        self.checksum_errors.load(Ordering::Relaxed)
    }

    /// Returns how many copies of tree blocks and data sectors were rewritten.
    pub(crate) fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }

    /// Counts copies that were rewritten.
    fn count_repairs(&self, copies: u64) {
        self.repairs.fetch_add(copies, Ordering::Relaxed);
    }

    /// Reads a tree block, and checks that its checksum and structure are right and that it is the
    /// one that the caller expects.
    pub fn read_node(&self, expected: &NodeExpectation) -> Result<Buffer> {
        let len = u64::from(self.identity.node_size());
        let proof = Proof::Block(expected.generation);
        let pieces = self.pieces_to_read(expected.bytenr, len, proof)?;
        let mut block = Buffer::for_reading(self.identity.node_size() as usize);
        if let Some(node) = self.access.in_flight().node(expected.bytenr).filter(|node| node.len() == block.len()) {
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
        verify_node_checksum(block, self.identity.checksum())
            .map_err(|source| Error::Node { at: expected.bytenr, source })
            .and_then(|()| self.check_structure(expected, block))
    }

    /// Checks everything in a block except its checksum.
    fn check_structure(&self, expected: &NodeExpectation, block: &[u8]) -> Result<()> {
        let mut expected = *expected;
        if let Ok(header) = Header::parse(block)
            && self.identity.is_of_a_seed(header.fsid)
        {
            // The block is older than this volume, and has the seed's id.
            expected.fsid = header.fsid;
        }
        Node::check(block, &expected, self.identity.sector_size())
            .map(|_| ())
            .map_err(|source| Error::Node { at: expected.bytenr, source })
    }

    /// Returns whether a node's header has this address and this volume's id.
    pub(crate) fn has_header_of(&self, at: Logical, block: &[u8]) -> bool {
        Header::parse(block).is_ok_and(|header| header.bytenr == at && header.fsid == self.identity.metadata_fsid())
    }

    /// Returns whether a read would accept this node at this address.
    pub(crate) fn is_node_for(&self, at: Logical, block: &[u8]) -> bool {
        let (level, generation, owner, first_key) = (None, None, None, None);
        let fsid = self.identity.metadata_fsid();
        self.check_node(&NodeExpectation { bytenr: at, level, generation, owner, first_key, fsid }, block).is_ok()
    }

    /// Reads data, aligned to sectors. `sums` holds the checksums of all its sectors, in order;
    /// without them nothing is verified.
    pub fn read_data(&self, at: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> Result<()> {
        let sector = self.identity.sector_size() as usize;
        if !at.0.is_multiple_of(sector as u64) || !buf.len().is_multiple_of(sector) {
            return Err(Error::BadRequest("a data read is not aligned to sectors"));
        }
        let sum_size = self.identity.checksum().size();
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
        sum.is_none_or(|sum| self.identity.checksum().matches(sector, sum))
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
            let member = self.devices.member(devid)?;
            let reading = member.begin_read();
            let read = member.device.read_at(at, part);
            drop(reading);
            read.map_err(|source| {
                let logical = self.chunk_map.logical_of(devid, at);
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
        let mut pieces = self.chunk_map.pieces(at, len)?;
        let set = self.devices.set();
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
        let member =
            |piece: &MappedRange| place_of(piece, copy).and_then(|place| self.devices.member(place.devid).ok());
        pieces.iter().filter_map(member).all(|member| proof.suffices_for(&member))
    }

    pub(crate) fn is_of_a_laggard(&self, piece: &MappedRange, copy: usize) -> bool {
        place_of(piece, copy).is_some_and(|place| self.devices.member(place.devid).is_ok_and(|member| member.lags()))
    }

    /// Returns whether a part of a copy is on a device that lags.
    pub(crate) fn has_laggard(&self, pieces: &[MappedRange], copy: usize) -> bool {
        pieces.iter().any(|piece| self.is_of_a_laggard(piece, copy))
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
        let of = |devid| self.devices.member(devid).ok().filter(|member| !member.lags());
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
        self.devices.note_fault(sentence(&error), error.device_fault().unwrap_or(of_copy));
    }
}

/// Returns how many copies there are to try.
pub(crate) fn copies_of(pieces: &[MappedRange]) -> usize {
    pieces.iter().map(|piece| piece.copies.len()).max().unwrap_or(0)
}

/// Returns the location of a copy. If a range crosses into a chunk with fewer copies, these are
/// used in turn.
pub(crate) fn place_of(piece: &MappedRange, copy: usize) -> Option<IoStripe> {
    let index = copy.checked_rem(piece.copies.len())?;
    piece.copies.get(index).copied()
}

//! Compression of dirty data before it gets its location, by the thread that writes back and by
//! helpers, never by a thread that must not block.
//!
//! A compressed piece gets two lengths here: the bytes that it takes on disk, and the bytes of the
//! file (invariant 31). Data that is compressed stays dirty until it is placed. Meanwhile the inode
//! is locked, but the gate is not held, since compression may take long.

use std::ops::Range;

use ubtrfs_file::{CompressionMethod, CompressionMode, DirtyData, Layout, MAX_PACKED, Packer, seems_compressible};
use ubtrfs_format::Generation;
use ubtrfs_format::items::{Compression, InodeFlags};
use ubtrfs_volume::{Buffer, SharedBuffer};

use super::cause::Cause;
use super::nocow::may_be_nocow;
use super::owner::Writeback;
use super::packers::{Packed, PackedPiece};
use crate::error::Result;
use crate::inode::{InodeId, InodeState};
use crate::xattr_names::COMPRESSION;

/// Number of pieces that are compressed before checking whether that was in vain.
const WAVE: usize = 32;

/// How the data of a file is compressed.
pub(super) struct Packing {
    /// The inode flags that apply to the writeback.
    flags: u64,
    method: CompressionMethod,
    /// Whether to compress even content that does not seem compressible.
    forced: bool,
    /// Whether a failed attempt is recorded in the inode.
    notes_failure: bool,
}

/// Whether inode flags allow that a file has compressed data at all.
fn may_be_compressed(flags: u64) -> bool {
    flags & (InodeFlags::NODATACOW | InodeFlags::NODATASUM) == 0
}

impl Writeback {
    /// Whether data of a file with these inode flags may be compressed as it is written.
    pub(crate) fn may_compress(&self, flags: u64) -> bool {
        let mode = self.info.file_defaults.compression();
        if !may_be_compressed(flags) {
            return false;
        }
        if mode.is_some_and(|mode| mode.force) {
            return true;
        }
        flags & InodeFlags::NOCOMPRESS == 0 && (mode.is_some() || flags & InodeFlags::COMPRESS != 0)
    }

    /// Returns how data of a file with these inode flags is compressed, or `None` if it is not. The
    /// file's property is looked up in all layers, so none of them may be missing from the state.
    /// Nothing is read of a subvolume that is being dropped, since parts of its tree may be gone.
    pub(super) fn packing_of(&self, id: InodeId, state: &InodeState, flags: u64) -> Result<Option<Packing>> {
        if !self.may_compress(flags) || !ubtrfs_tree::may_block() || self.info.is_being_dropped(id.subvolume) {
            return Ok(None);
        }
        let mode = self.info.file_defaults.compression();
        let property =
            if flags & InodeFlags::COMPRESS == 0 { None } else { self.info.view(id, state).xattr(COMPRESSION)? };
        let own = property.as_deref().and_then(CompressionMode::algorithm_of);
        let algorithm = own.or(mode.map(|mode| mode.algorithm)).unwrap_or(Compression::Zlib);
        let forced = mode.is_some_and(|mode| mode.force);
        Ok(Some(Packing {
            flags,
            method: CompressionMethod::new(algorithm, mode.map_or(0, |mode| mode.level)),
            forced,
            notes_failure: !forced && own.is_none(),
        }))
    }

    /// Compresses the data that is dirty in the open transaction.
    pub(crate) fn pack_pending(&self, id: InodeId, state: &InodeState, cause: Cause) -> Result<Packed> {
        let packing = self.packing_of(id, state, cause.flags(state.item.flags))?;
        let is_inline = cause == Cause::Fsync && self.may_be_for_metadata(&state.dirty, &state.item);
        self.pack_dirty(id, state, packing, is_inline)
    }

    /// Compresses the data that is dirty in the open transaction by this method, if the file may
    /// have compressed data at all.
    pub(crate) fn pack_pending_by(&self, id: InodeId, state: &InodeState, method: CompressionMethod) -> Result<Packed> {
        let flags = Cause::Defragmentation.flags(state.item.flags);
        let may_pack = may_be_compressed(state.item.flags) && ubtrfs_tree::may_block();
        let packing = may_pack.then_some(Packing { flags, method, forced: true, notes_failure: false });
        self.pack_dirty(id, state, packing, false)
    }

    fn pack_dirty(&self, id: InodeId, state: &InodeState, packing: Option<Packing>, is_inline: bool) -> Result<Packed> {
        let Some(packing) = packing else { return Ok(Packed::default()) };
        let generation = self.info.gate.current().generation;
        let inline = is_inline.then_some(state.item.size);
        self.pack(id, state, &packing, (generation, None), &state.dirty, inline)
    }

    /// Compresses dirty data of a transaction. If `inline` is set, the file may be inline, and this
    /// many bytes are its content.
    pub(super) fn pack(
        &self,
        id: InodeId,
        state: &InodeState,
        packing: &Packing,
        layer: (Generation, Option<&Layout>),
        dirty: &DirtyData,
        inline: Option<u64>,
    ) -> Result<Packed> {
        let mut packed = Packed::default();
        if dirty.is_empty() || !dirty.may_be_packed() {
            return Ok(packed);
        }
        if let Some(size) = inline {
            let mut content = vec![0; size as usize];
            dirty.overlay(0, &mut content);
            let room = self.info.largest_inline().min(dirty.inline_room()) as usize;
            let most = content.len().saturating_sub(1).min(room);
            let bytes = self.packers.with_packer(|packer| Some(packer.pack(packing.method, &content, most)?.to_vec()));
            packed.inline = bytes.map(|bytes| (packing.method.algorithm, bytes));
            return Ok(packed);
        }
        let mut ranges = Vec::new();
        for (start, len) in dirty.ranges() {
            if !may_be_nocow(packing.flags) {
                pieces_of(start..start + len, dirty.sector(), &mut ranges);
                continue;
            }
            let mut at = start;
            for part in self.parts_to_write(id, state, packing.flags, layer, start..start + len)? {
                if part.place.is_none() {
                    pieces_of(at..at + part.len, dirty.sector(), &mut ranges);
                }
                at += part.len;
            }
        }
        let mut tried = false;
        for wave in ranges.chunks(WAVE) {
            let done = self.packers.for_each(wave.len(), |packer, job| pack_piece(packer, packing, dirty, &wave[job]));
            for (job, outcome) in done {
                tried |= !matches!(outcome, Outcome::Passed);
                if let Outcome::Packed(data) = outcome {
                    let Range { start, end } = wave[job];
                    let piece = PackedPiece { len: end - start, compression: packing.method.algorithm, data };
                    packed.pieces.insert(start, piece);
                }
            }
            if tried && packed.pieces.is_empty() && packing.notes_failure {
                packed.in_vain = true;
                break;
            }
        }
        Ok(packed)
    }
}

/// The result of an attempt to compress a piece.
enum Outcome {
    /// The content did not seem compressible.
    Passed,
    /// The result takes as many sectors as before.
    Failed,
    Packed(SharedBuffer),
}

fn pack_piece(packer: &mut Packer, packing: &Packing, dirty: &DirtyData, range: &Range<u64>) -> Outcome {
    let (len, sector) = ((range.end - range.start) as usize, dirty.sector() as usize);
    let mut content = Buffer::for_reading(len);
    dirty.overlay(range.start, &mut content);
    if !packing.forced && !seems_compressible(&content) {
        return Outcome::Passed;
    }
    let Some(packed) = packer.pack(packing.method, &content, len - sector) else { return Outcome::Failed };
    let mut data = Buffer::for_reading(packed.len().next_multiple_of(sector));
    data[..packed.len()].copy_from_slice(packed);
    data[packed.len()..].fill(0);
    Outcome::Packed(data.share())
}

/// Divides a range into pieces that are compressed one by one. They end at multiples of their
/// largest size in the file, so that a file that is written again in the same steps replaces whole
/// extents. A single sector is left out, since it can't take less space.
fn pieces_of(range: Range<u64>, sector: u64, pieces: &mut Vec<Range<u64>>) {
    let mut at = range.start;
    while at < range.end {
        let end = (at + 1).next_multiple_of(MAX_PACKED).min(range.end);
        if end - at > sector {
            pieces.push(at..end);
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_multiples_of_their_size() {
        let mut pieces = Vec::new();
        pieces_of(4096..300 << 10, 4096, &mut pieces);
        pieces_of((384 << 10) - 4096..(384 << 10) + 8192, 4096, &mut pieces);
        assert_eq!(
            pieces,
            [4096..128 << 10, 128 << 10..256 << 10, 256 << 10..300 << 10, 384 << 10..(384 << 10) + 8192]
        );
    }
}

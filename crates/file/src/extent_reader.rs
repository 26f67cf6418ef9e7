//! Reading a file's content from the extents to which its map refers.

use std::collections::VecDeque;
use std::sync::Arc;

use ubtrfs_format::Logical;
use ubtrfs_format::items::Compression;
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_tree::Damage;
use ubtrfs_volume::{Buffer, Volume};

use crate::csums::Checksums;
use crate::decompress::unpack;
use crate::error::{DataError, PackedPlace, Result};
use crate::piece::{ExtentPiece, InlinePiece, MAX_PACKED, Mapped, Piece};

/// How many decompressed extents are cached: enough for the likely number of sequential readers of
/// small parts.
const REMEMBERED: usize = 4;
/// Reads that don't begin and end at sector boundaries go through a buffer of at most this many
/// bytes.
const BOUNCE: u64 = 1 << 20;

/// The source of the bytes of extents: a volume, except in tests.
pub trait DataSource {
    /// Reads from `at` on, aligned to sectors. Verifies the content if checksums are given.
    fn read_data(&self, at: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> Result<()>;
}

impl DataSource for Volume {
    fn read_data(&self, at: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> Result<()> {
        Ok(self.reader().read_data(at, buf, sums)?)
    }
}

/// Reads pieces of files, verified and unpacked.
#[derive(Debug)]
pub struct ExtentReader {
    sector_size: usize,
    /// The last extents that were unpacked, newest first.
    unpacked: Mutex<VecDeque<(ExtentPiece, Arc<[u8]>)>>,
}

/// The sources that a read needs besides the map.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// Where extents are read from.
    pub source: &'a dyn DataSource,
    /// Their checksums; `None` for files that have none (NODATASUM).
    pub checksums: Option<&'a dyn Checksums>,
    /// Where reads of data whose checksums are lost are noted. If this is `None`, such a read
    /// fails.
    pub damage: Option<&'a Damage>,
}

impl ReadContext<'_> {
    fn read(&self, at: Logical, buf: &mut [u8]) -> Result<()> {
        let sums = match (self.checksums.map(|checksums| checksums.lookup(at, buf.len() as u64)), self.damage) {
            (Some(Err(DataError::MissingChecksum(_) | DataError::Item { .. })), Some(damage)) => {
                damage.note_unverified();
                None
            }
            (sums, _) => sums.transpose()?,
        };
        self.source.read_data(at, buf, sums.as_deref())
    }
}

impl ExtentReader {
    /// A reader for a volume of this sector size.
    pub fn new(sector_size: u32) -> Self {
        Self { sector_size: sector_size as usize, unpacked: Mutex::with_default(Rank::UnpackedExtents) }
    }

    /// Reads the file from `at` on into `buf`. The `pieces` (in order, without gaps) cover all of
    /// it.
    ///
    /// # Panics
    ///
    /// If they don't: old bytes of the buffer would pass for content of the file.
    pub fn read(&self, context: ReadContext<'_>, pieces: &[Mapped], at: u64, buf: &mut [u8]) -> Result<()> {
        let range = at..at.saturating_add(buf.len() as u64);
        let mut rest = buf;
        let mut next = range.start;
        for piece in pieces.iter().cloned().filter_map(|piece| piece.clipped(&range)) {
            assert_eq!(piece.start, next, "the map of a file has a gap");
            let (part, after) = rest.split_at_mut(piece.len as usize);
            self.read_piece(context, &piece, part)?;
            rest = after;
            next = piece.end();
        }
        assert!(rest.is_empty(), "the map of a file ends too early");
        Ok(())
    }

    /// Reads the whole piece.
    pub(crate) fn read_piece(&self, context: ReadContext<'_>, piece: &Mapped, buf: &mut [u8]) -> Result<()> {
        assert_eq!(piece.len, buf.len() as u64, "a piece is read into a buffer of its size");
        match &piece.piece {
            Piece::Hole => buf.fill(0),
            Piece::Inline(inline) => self.read_inline(inline, piece.start, buf)?,
            Piece::Extent(extent) if extent.prealloc => buf.fill(0),
            Piece::Extent(extent) if extent.compression == Compression::None => {
                self.read_plain(context, extent, buf)?;
            }
            Piece::Extent(extent) => {
                let content = self.unpacked(context, extent)?;
                let from = usize::try_from(extent.offset).ok();
                let part = from.and_then(|from| content.get(from..from.checked_add(buf.len())?));
                buf.copy_from_slice(part.ok_or(DataError::BeyondExtent(extent.disk_bytenr))?);
            }
        }
        Ok(())
    }

    /// Drops the cached extents. This must be called when an extent is freed before the transaction
    /// that wrote it is committed, since another extent may get the same address and generation.
    pub fn forget(&self) {
        self.unpacked.lock().clear();
    }

    fn read_inline(&self, inline: &InlinePiece, start: u64, buf: &mut [u8]) -> Result<()> {
        let unpacked;
        let content = if inline.compression == Compression::None {
            &inline.data[..]
        } else {
            unpacked = self.unpack(inline.compression, &inline.data, inline.ram_bytes, PackedPlace::Inline)?;
            &unpacked
        };
        let from = content.len().min(usize::try_from(start).unwrap_or(usize::MAX));
        let part = &content[from..content.len().min(from.saturating_add(buf.len()))];
        let (filled, rest) = buf.split_at_mut(part.len());
        filled.copy_from_slice(part);
        rest.fill(0);
        Ok(())
    }

    fn read_plain(&self, context: ReadContext<'_>, extent: &ExtentPiece, buf: &mut [u8]) -> Result<()> {
        let beyond = || DataError::BeyondExtent(extent.disk_bytenr);
        let end = extent.offset.checked_add(buf.len() as u64).ok_or_else(beyond)?;
        if end > extent.disk_num_bytes || extent.disk_bytenr.0.checked_add(end).is_none() {
            return Err(beyond());
        }
        let sector = self.sector_size as u64;
        if extent.offset.is_multiple_of(sector) && end.is_multiple_of(sector) {
            return context.read(extent.disk_bytenr.plus(extent.offset), buf);
        }
        let mut at = extent.offset;
        while at < end {
            let first = at - at % sector;
            let stop = end.next_multiple_of(sector).min(first + BOUNCE);
            let mut bounce = Buffer::for_reading((stop - first) as usize);
            context.read(extent.disk_bytenr.plus(first), &mut bounce)?;
            let to = stop.min(end);
            buf[(at - extent.offset) as usize..(to - extent.offset) as usize]
                .copy_from_slice(&bounce[(at - first) as usize..(to - first) as usize]);
            at = to;
        }
        Ok(())
    }

    /// Returns the whole content of a packed extent.
    fn unpacked(&self, context: ReadContext<'_>, extent: &ExtentPiece) -> Result<Arc<[u8]>> {
        {
            let mut remembered = self.unpacked.lock();
            if let Some(found) = remembered.iter().position(|(other, _)| other.same_extent(extent)) {
                // The extent that was used last comes first, and is dropped last.
                remembered.make_contiguous()[..=found].rotate_right(1);
                if let Some((_, content)) = remembered.front() {
                    return Ok(Arc::clone(content));
                }
            }
        }
        if extent.disk_num_bytes > MAX_PACKED || extent.ram_bytes > MAX_PACKED {
            return Err(DataError::BeyondExtent(extent.disk_bytenr));
        }
        let mut packed = Buffer::for_reading(extent.disk_num_bytes as usize);
        context.read(extent.disk_bytenr, &mut packed)?;
        let place = PackedPlace::Extent(extent.disk_bytenr);
        let content: Arc<[u8]> = self.unpack(extent.compression, &packed, extent.ram_bytes, place)?.into();
        let mut remembered = self.unpacked.lock();
        remembered.truncate(REMEMBERED - 1);
        remembered.push_front((*extent, Arc::clone(&content)));
        Ok(content)
    }

    fn unpack(&self, how: Compression, packed: &[u8], len: u64, place: PackedPlace) -> Result<Vec<u8>> {
        let mut content = vec![0; len.min(MAX_PACKED) as usize];
        unpack(how, packed, &mut content, self.sector_size).map_err(|problem| DataError::Unpack { place, problem })?;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ubtrfs_format::Generation;

    use super::*;
    use crate::decompress::test_support::zstd;
    use crate::piece::test_support::extent;

    /// One extent at 1 MiB in memory.
    struct Memory {
        bytes: Vec<u8>,
        reads: AtomicUsize,
    }

    const BASE: u64 = 1 << 20;

    impl DataSource for Memory {
        fn read_data(&self, at: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> Result<()> {
            assert!(at.0.is_multiple_of(4096) && buf.len().is_multiple_of(4096));
            if let Some(sums) = sums {
                assert_eq!(sums.len(), buf.len() / 4096);
            }
            self.reads.fetch_add(1, Ordering::Relaxed);
            let from = (at.0 - BASE) as usize;
            buf.copy_from_slice(&self.bytes[from..from + buf.len()]);
            Ok(())
        }
    }

    /// Checksums of one byte per sector; none from 2 MiB on.
    struct Sums;

    impl Checksums for Sums {
        fn lookup(&self, at: Logical, len: u64) -> Result<Vec<u8>> {
            let end = at.0 + len;
            if end > 2 * BASE { Err(DataError::MissingChecksum(at)) } else { Ok(vec![0; (len / 4096) as usize]) }
        }
    }

    fn memory() -> Memory {
        Memory { bytes: (0..2_u32 << 20).map(|index| (index % 251) as u8).collect(), reads: AtomicUsize::new(0) }
    }

    #[test]
    fn reads_of_any_alignment_see_the_right_bytes() {
        let memory = memory();
        let reader = ExtentReader::new(4096);
        let context = ReadContext { source: &memory, checksums: Some(&Sums), damage: None };
        let map = [
            Mapped { start: 0, len: 8192, piece: Piece::Extent(extent(BASE, 4096)) },
            Mapped { start: 8192, len: 4096, piece: Piece::Hole },
            Mapped { start: 12288, len: 8192, piece: Piece::Extent(extent(BASE, 65536)) },
        ];
        let mut expected = memory.bytes[4096..12288].to_vec();
        expected.resize(12288, 0);
        expected.extend_from_slice(&memory.bytes[65536..65536 + 8192]);
        for (at, len) in [(0, 20480), (0, 100), (4095, 2), (5000, 10000), (8192, 4096), (12289, 8191), (3, 0)] {
            let mut buf = vec![0xEE; len];
            reader.read(context, &map, at as u64, &mut buf).unwrap();
            assert!(buf == expected[at..at + len], "{len} bytes at {at}");
        }
    }

    #[test]
    fn missing_checksums_and_short_extents_are_reported() {
        let memory = memory();
        let reader = ExtentReader::new(4096);
        let checked = ReadContext { source: &memory, checksums: Some(&Sums), damage: None };
        let mut buf = vec![0; 4096];
        let far = Mapped { start: 0, len: 4096, piece: Piece::Extent(extent(2 * BASE, 0)) };
        let result = reader.read_piece(checked, &far, &mut buf);
        assert!(matches!(result, Err(DataError::MissingChecksum(at)) if at == Logical(2 * BASE)));
        let unchecked = ReadContext { checksums: None, ..checked };
        reader.read_piece(unchecked, &far, &mut buf).unwrap();
        assert!(buf == memory.bytes[BASE as usize..][..4096]);
        let beyond = Mapped { start: 0, len: 4096, piece: Piece::Extent(extent(BASE, 1 << 20)) };
        assert!(matches!(reader.read_piece(checked, &beyond, &mut buf), Err(DataError::BeyondExtent(_))));
    }

    #[test]
    fn inline_content_is_zero_beyond_its_end() {
        let memory = memory();
        let reader = ExtentReader::new(4096);
        let context = ReadContext { source: &memory, checksums: Some(&Sums), damage: None };
        let text = b"some content that is written inline".repeat(20);
        let packed = zstd(&text);
        let plain = InlinePiece::plain(Arc::from(&text[..]), Generation(7));
        let packed = InlinePiece { data: Arc::from(&packed[..]), compression: Compression::Zstd, ..plain.clone() };
        for inline in [plain, packed] {
            let map = [Mapped { start: 0, len: 4096, piece: Piece::Inline(inline) }];
            let mut buf = vec![0xEE; 4000];
            reader.read(context, &map, 10, &mut buf).unwrap();
            assert!(buf[..text.len() - 10] == text[10..] && buf[text.len() - 10..].iter().all(|&byte| byte == 0));
            reader.read(context, &map, 2000, &mut buf[..100]).unwrap();
            assert!(buf[..100].iter().all(|&byte| byte == 0));
        }
        assert_eq!(memory.reads.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn small_sequential_reads_unpack_once() {
        let text = b"a line of the file\n".repeat(128 * 1024 / 19 + 1)[..128 << 10].to_vec();
        let mut packed = zstd(&text);
        packed.resize(packed.len().next_multiple_of(4096), 0);
        let packed_len = packed.len() as u64;
        let memory = Memory { bytes: packed, reads: AtomicUsize::new(0) };
        let reader = ExtentReader::new(4096);
        let context = ReadContext { source: &memory, checksums: Some(&Sums), damage: None };
        let piece = ExtentPiece {
            disk_num_bytes: packed_len,
            ram_bytes: 128 << 10,
            compression: Compression::Zstd,
            ..extent(BASE, 4096)
        };
        let map = [Mapped { start: 0, len: 124 << 10, piece: Piece::Extent(piece) }];
        for at in (0..124 << 10).step_by(1000) {
            let mut buf = vec![0; 1000.min((124 << 10) - at)];
            reader.read(context, &map, at as u64, &mut buf).unwrap();
            assert!(buf == text[4096 + at..][..buf.len()]);
        }
        assert_eq!(memory.reads.load(Ordering::Relaxed), 1);
        reader.forget();
        reader.read(context, &map, 0, &mut [0; 10]).unwrap();
        assert_eq!(memory.reads.load(Ordering::Relaxed), 2);
        let beyond = Mapped { start: 0, len: 8192, piece: Piece::Extent(ExtentPiece { offset: 124 << 10, ..piece }) };
        assert!(matches!(reader.read_piece(context, &beyond, &mut [0; 8192]), Err(DataError::BeyondExtent(_))));
    }
}

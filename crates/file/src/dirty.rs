//! The dirty data of one file: written by programs, but not submitted to the devices yet.
//!
//! It is kept in whole sectors, since only these can be written back. If a program wrote a part of
//! a sector, the sector must first get its old content ([`DirtyData::sectors_to_fill`]), unless it
//! has none.
//!
//! How the data may be written back is fixed when it is accepted, since metadata is reserved for
//! that: whether it may be compressed, and how many bytes of inline content it may become at most
//! (invariant 38).
//!
//! The memory is divided into windows of the file, whose sizes are the sector size times powers of
//! [`GROWTH`]. A file that is written in order gets larger and larger windows, one that is written
//! at random a window for each sector.

use std::collections::BTreeMap;
use std::ops::Range;

use ubtrfs_volume::{Buffer, SharedBuffer};

/// The size of the largest windows in bytes. No window crosses a multiple of it.
const BLOCK: usize = 64 * 1024;
/// The factor by which a full window grows when writing continues behind it, so that a file that is
/// written in small steps is rarely copied.
const GROWTH: usize = 4;

/// Dirty sectors of one file.
#[derive(Debug)]
pub struct DirtyData {
    /// Bytes of a sector: a power of two from 4 KiB to [`BLOCK`].
    sector: u32,
    /// The windows by their offset in the file, a multiple of their size. No two of them overlap.
    windows: BTreeMap<u64, Window>,
    /// The memory that the windows take, in bytes.
    bytes: usize,
    /// Some of the data must be written uncompressed.
    plain: bool,
    /// Bytes of metadata that are reserved for the data in case it becomes inline.
    inline_room: u64,
}

/// Adjacent dirty sectors, taken out of the dirty data for writeback.
#[derive(Clone, Debug)]
pub struct DirtyRun {
    /// Offset in the file.
    pub offset: u64,
    /// The content. The length of each buffer is a multiple of the sector size, and its memory is
    /// aligned for direct I/O.
    pub buffers: Vec<SharedBuffer>,
}

#[allow(clippy::len_without_is_empty, reason = "a run has at least one sector")]
impl DirtyRun {
    /// Returns the length of the run in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.len() as u64).sum()
    }

    /// Copies those bytes of the run that are in the file at `offset..offset + out.len()` to `out`,
    /// and leaves the rest of it unchanged, so that reads see data in flight.
    #[cfg(test)]
    pub fn overlay(&self, offset: u64, out: &mut [u8]) {
        let mut at = self.offset;
        for buffer in &self.buffers {
            copy_over(at, buffer, offset, out);
            at += buffer.len() as u64;
        }
    }
}

impl DirtyData {
    /// Returns the sector size in bytes.
    pub fn sector(&self) -> u64 {
        self.sector.into()
    }

    /// Returns the sector size in bytes, as a size in memory.
    fn sector_bytes(&self) -> usize {
        self.sector as usize
    }

    /// Empty dirty data of a file on a volume with this sector size.
    pub fn new(sector_size: u32) -> Self {
        let sector = sector_size.clamp(4096, BLOCK as u32).next_power_of_two();
        Self { sector, windows: BTreeMap::new(), bytes: 0, plain: false, inline_room: 0 }
    }

    /// Takes all dirty data, and leaves `self` empty.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self {
            sector: self.sector,
            windows: std::mem::take(&mut self.windows),
            bytes: std::mem::take(&mut self.bytes),
            plain: std::mem::take(&mut self.plain),
            inline_room: std::mem::take(&mut self.inline_room),
        }
    }

    /// Returns whether nothing is dirty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Notes that some of the data must be written uncompressed: it was written past the page
    /// cache, or nothing was reserved for the items of compressed extents.
    pub fn forbid_packing(&mut self) {
        self.plain = true;
    }

    /// Returns whether the data may be compressed in writeback.
    pub fn may_be_packed(&self) -> bool {
        !self.plain
    }

    /// Notes that more bytes of metadata are reserved, in the data's transaction, for inline
    /// content.
    pub fn add_inline_room(&mut self, bytes: u64) {
        self.inline_room += bytes;
    }

    /// Returns the most bytes that the data may take as inline content.
    #[inline]
    pub fn inline_room(&self) -> u64 {
        self.inline_room
    }

    /// Returns how many bytes of memory the data takes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the offsets of the sectors whose old content must be given to [`Self::fill`] before
    /// `len` bytes are written at `offset` of a file of `old_size` bytes: those that are not dirty
    /// and keep some of their old bytes.
    ///
    /// Before the file is truncated to a size inside a sector, call this with that size as `offset`
    /// and a length of 0.
    pub fn sectors_to_fill(&self, offset: u64, len: u64, old_size: u64) -> impl Iterator<Item = u64> + use<> {
        let sector = self.sector();
        let end = offset.saturating_add(len);
        let first = offset - offset % sector;
        let last = end - end % sector;
        let needs = |start: u64| {
            let old_end = start.saturating_add(sector).min(old_size);
            let keeps_some = start < old_end && (offset > start || end < old_end);
            (keeps_some && !self.covers(start..start + 1)).then_some(start)
        };
        let partial_last = (last != first && end > last).then_some(last);
        let partial_first = (offset > first || (last == first && end > first)).then_some(first);
        [partial_first.and_then(needs), partial_last.and_then(needs)].into_iter().flatten()
    }

    /// Makes the sector at `sector_offset` dirty with its old content, padded with zeros. A sector
    /// that is already dirty stays as it is, since its content is newer.
    ///
    /// # Panics
    ///
    /// If `sector_offset` is not aligned, or `content` is longer than a sector.
    pub fn fill(&mut self, sector_offset: u64, content: &[u8]) {
        assert!(sector_offset.is_multiple_of(self.sector()) && content.len() <= self.sector_bytes());
        if self.covers(sector_offset..sector_offset + 1) {
            return;
        }
        if content.is_empty() {
            self.write(sector_offset, &[0]);
        } else {
            self.write(sector_offset, &content[..content.len().min(self.sector_bytes())]);
        }
    }

    /// Returns how many bytes would become dirty if `len` bytes were written at `offset`. Space
    /// must be reserved for them.
    pub fn newly_dirty(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let sector = self.sector();
        let start = offset - offset % sector;
        let end = offset.saturating_add(len).div_ceil(sector).saturating_mul(sector);
        let mut dirty = 0;
        for (at, run) in self.ranges_from(start) {
            if at >= end {
                break;
            }
            dirty += (at + run).min(end) - at;
        }
        end - start - dirty
    }

    /// Writes `data` at `offset`. If a sector becomes dirty by this and is written only in part,
    /// the rest of it is zero.
    pub fn write(&mut self, offset: u64, mut data: &[u8]) {
        let mut at = offset;
        while !data.is_empty() {
            let (now, rest) = data.split_at(data.len().min(BLOCK - (at % BLOCK as u64) as usize));
            self.write_part(at, now);
            at += now.len() as u64;
            data = rest;
        }
    }

    /// Writes data that fits one window.
    fn write_part(&mut self, at: u64, data: &[u8]) {
        let sector = self.sector_bytes();
        let span = at..at + data.len() as u64;
        let held = self.held(at).filter(|(start, window)| span.end <= start + window.len() as u64);
        let start = if let Some((start, _)) = held {
            start
        } else {
            let place = self.new_place(&span);
            if place == span {
                return self.replace(place.start, data);
            }
            self.insert(place.start, Buffer::for_reading((place.end - place.start) as usize));
            place.start
        };
        if let Some(window) = self.windows.get_mut(&start) {
            window.write(sector, (at - start) as usize, data);
        }
    }

    /// Copies those dirty bytes that are in the file at `offset..offset + out.len()` to `out`, and
    /// leaves the rest of it unchanged.
    pub fn overlay(&self, offset: u64, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        for (start, window) in self.windows_in(offset..offset.saturating_add(out.len() as u64)) {
            for run in window.runs() {
                let run = run.start * self.sector_bytes()..run.end * self.sector_bytes();
                copy_over(start + run.start as u64, &window.bytes.as_slice()[run], offset, out);
            }
        }
    }

    /// Returns whether every sector that `range` touches is dirty.
    pub fn covers(&self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let mut at = range.start;
        for (start, len) in self.ranges_from(range.start) {
            if start > at {
                return false;
            }
            at = start + len;
            if at >= range.end {
                return true;
            }
        }
        false
    }

    /// Truncates the file to `size` bytes: sectors beyond are dropped, and the rest of the last one
    /// becomes zero. (If the last one isn't dirty and has old content, it has to be filled first,
    /// or its old tail would reappear.)
    pub fn truncate(&mut self, size: u64) {
        let sector = self.sector();
        let Some(keep) = size.checked_next_multiple_of(sector) else { return };
        self.discard(keep..u64::MAX);
        let held = self.held(size).map(|(start, _)| start);
        if keep != size
            && self.covers(size..size + 1)
            && let Some(start) = held
            && let Some(window) = self.windows.get_mut(&start)
        {
            window.own(self.sector as usize)[(size - start) as usize..(keep - start) as usize].fill(0);
        }
    }

    /// Drops the sectors in `range`, which starts and ends at sector boundaries.
    ///
    /// # Panics
    ///
    /// If it does not start at a sector boundary.
    pub fn discard(&mut self, range: Range<u64>) {
        assert!(range.start.is_multiple_of(self.sector()));
        if range.is_empty() {
            return;
        }
        let touched: Vec<u64> = self.windows_in(range.clone()).map(|(start, _)| start).collect();
        for start in touched {
            let Some(window) = self.windows.get_mut(&start) else { continue };
            let len = window.len();
            let from = range.start.saturating_sub(start) as usize / self.sector as usize;
            let to = (range.end.saturating_sub(start).min(len as u64) as usize).div_ceil(self.sector as usize);
            window.dirty &= !mask(from..to);
            if window.dirty == 0 {
                self.bytes -= len;
                self.windows.remove(&start);
            }
        }
    }

    /// Returns all dirty ranges in order, as offset and length; adjacent ones are joined.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges_from(0)
    }

    /// Returns the first dirty range that ends after `from`, as offset and length. It is clipped to
    /// start at `from` or later, and to have at most `max_len` bytes.
    pub fn next_run(&self, from: u64, max_len: u64) -> Option<(u64, u64)> {
        let mut run: Option<(u64, u64)> = None;
        for (start, len) in self.block_runs(from) {
            match &mut run {
                Some((offset, total)) if *offset + *total == start && *total < max_len => *total += len,
                Some(_) => break,
                None => run = Some((start, len)),
            }
        }
        run.map(|(offset, len)| (offset, len.min(max_len)))
    }

    /// Takes out the first dirty range, but at most `max_len` bytes (rounded down to sectors, at
    /// least one sector). The content is not copied: the dirty rest of a window shares its memory
    /// until it is written again.
    pub fn take_run(&mut self, max_len: u64) -> Option<DirtyRun> {
        let sector = self.sector();
        let (offset, len) = self.next_run(0, (max_len - max_len % sector).max(sector))?;
        let end = offset + len;
        let mut buffers = Vec::with_capacity(len as usize / BLOCK + 2);
        let mut at = offset;
        while at < end {
            let Some((start, window)) =
                self.held(at).map(|(start, _)| start).and_then(|start| Some((start, self.windows.remove(&start)?)))
            else {
                break;
            };
            let size = window.len();
            let stop = (end - start).min(size as u64) as usize;
            let (shared, rest) = window.take(self.sector_bytes(), (at - start) as usize..stop);
            buffers.push(shared);
            match rest {
                Some(rest) => drop(self.windows.insert(start, rest)),
                None => self.bytes -= size,
            }
            at = start + stop as u64;
        }
        Some(DirtyRun { offset, buffers })
    }

    /// Returns the dirty ranges from `from` on; adjacent ones are joined.
    fn ranges_from(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut runs = self.block_runs(from).peekable();
        std::iter::from_fn(move || {
            let (offset, mut total) = runs.next()?;
            while let Some((_, len)) = runs.next_if(|(start, _)| *start == offset + total) {
                total += len;
            }
            Some((offset, total))
        })
    }

    /// Returns the dirty ranges from `from` on, none longer than a window.
    fn block_runs(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let sector = self.sector_bytes();
        self.windows_in(from..u64::MAX).flat_map(move |(base, window)| {
            window.runs().filter_map(move |run| {
                let start = (base + (run.start * sector) as u64).max(from);
                let end = base + (run.end * sector) as u64;
                (start < end).then(|| (start, end - start))
            })
        })
    }

    /// Returns the window that holds a byte of the file, with its offset.
    fn held(&self, at: u64) -> Option<(u64, &Window)> {
        let (&start, window) = self.windows.range(..=at).next_back()?;
        (at - start < window.len() as u64).then_some((start, window))
    }

    /// Returns the windows that overlap a range, in order, with their offsets.
    fn windows_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Window)> {
        let first = self.held(range.start).map_or(range.start, |(start, _)| start);
        self.windows.range(first..range.end.max(first)).map(|(&start, window)| (start, window))
    }

    /// Returns the range of the new window that is to hold `span`, which no window holds.
    fn new_place(&self, span: &Range<u64>) -> Range<u64> {
        let start = span.start - span.start % self.sector();
        // The writer that filled the window before this one probably continues here.
        let before = start.checked_sub(1).and_then(|last| self.held(last));
        match before.filter(|(_, window)| window.is_full(self.sector_bytes())) {
            Some((_, window)) if start.is_multiple_of(BLOCK as u64) && window.len() == BLOCK => {
                start..start + BLOCK as u64
            }
            Some((before, _)) if !start.is_multiple_of(BLOCK as u64) => {
                place_of(self.sector_bytes(), &(before..span.end))
            }
            _ => place_of(self.sector_bytes(), span),
        }
    }

    /// Makes a window of `data`, all of it dirty, which replaces the windows within its range.
    fn replace(&mut self, start: u64, data: &[u8]) {
        let end = start + data.len() as u64;
        let inner: Vec<u64> = self.windows.range(start..end).map(|(&inner, _)| inner).collect();
        for at in inner {
            self.bytes -= self.windows.remove(&at).map_or(0, |inner| inner.len());
        }
        self.bytes += data.len();
        let window = Window { bytes: Bytes::Own(Buffer::from(data)), dirty: mask(0..data.len() / self.sector_bytes()) };
        self.windows.insert(start, window);
    }

    /// Makes a window, and moves into it the windows within its range.
    fn insert(&mut self, start: u64, bytes: Buffer) {
        let mut window = Window { bytes: Bytes::Own(bytes), dirty: 0 };
        let inner: Vec<u64> = self.windows_in(start..start + window.len() as u64).map(|(inner, _)| inner).collect();
        for at in inner {
            let Some(inner) = self.windows.remove(&at) else { continue };
            self.bytes -= inner.len();
            window.absorb(self.sector_bytes(), (at - start) as usize, &inner);
        }
        self.bytes += window.len();
        self.windows.insert(start, window);
    }
}

/// Copies `from`, which is at `at` in the file, to `out`, which is at `offset`, where they overlap.
fn copy_over(at: u64, from: &[u8], offset: u64, out: &mut [u8]) {
    let start = at.max(offset);
    let end = at.saturating_add(from.len() as u64).min(offset.saturating_add(out.len() as u64));
    if start < end {
        let from = &from[(start - at) as usize..(end - at) as usize];
        out[(start - offset) as usize..(end - offset) as usize].copy_from_slice(from);
    }
}

/// Returns the range of the smallest window that holds `span`. Its size is the sector size times a
/// power of [`GROWTH`] (or that of the largest window), and it starts at a multiple of its size.
fn place_of(sector: usize, span: &Range<u64>) -> Range<u64> {
    let mut len = sector as u64;
    while len < BLOCK as u64 && span.start / len != (span.end - 1) / len {
        len = (len * GROWTH as u64).min(BLOCK as u64);
    }
    let start = span.start / len * len;
    start..start + len
}

/// Returns the bits of these sectors of a window.
fn mask(sectors: Range<usize>) -> u32 {
    if sectors.is_empty() { 0 } else { ((1_u32 << sectors.len()) - 1) << sectors.start }
}

/// A part of a file, up to 64 KiB.
#[derive(Debug)]
struct Window {
    /// Its content. Bytes of clean sectors have no meaning.
    bytes: Bytes,
    /// A bit for each dirty sector.
    dirty: u32,
}

#[derive(Debug)]
enum Bytes {
    /// Memory that only this window uses.
    Own(Buffer),
    /// Memory of which a part is being written to disk, so it must not change.
    Shared(SharedBuffer),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Shared(buffer) => buffer,
        }
    }

    fn len(&self) -> usize {
        self.as_slice().len()
    }
}

impl Window {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether all of it is dirty.
    fn is_full(&self, sector: usize) -> bool {
        self.dirty == mask(0..self.len() / sector)
    }

    /// Returns the bytes to change them. If they are shared with I/O, they are copied first.
    fn own(&mut self, sector: usize) -> &mut [u8] {
        if let Bytes::Shared(shared) = &self.bytes {
            let mut buffer = Buffer::for_reading(shared.len());
            for run in self.runs() {
                let dirty = run.start * sector..run.end * sector;
                buffer[dirty.clone()].copy_from_slice(&shared[dirty]);
            }
            self.bytes = Bytes::Own(buffer);
        }
        match &mut self.bytes {
            Bytes::Own(buffer) => buffer,
            Bytes::Shared(_) => unreachable!("the buffer was made our own above"),
        }
    }

    /// Takes over the dirty sectors of a smaller window at byte `at` of this one.
    fn absorb(&mut self, sector: usize, at: usize, inner: &Self) {
        let bytes = self.own(sector);
        for run in inner.runs() {
            let run = run.start * sector..run.end * sector;
            bytes[at + run.start..at + run.end].copy_from_slice(&inner.bytes.as_slice()[run]);
        }
        self.dirty |= inner.dirty << (at / sector);
    }

    /// Writes `data` at byte `at`.
    fn write(&mut self, sector: usize, at: usize, data: &[u8]) {
        let end = at + data.len();
        let (first, last) = (at / sector, (end - 1) / sector);
        let (head, tail) = (first * sector, (last + 1) * sector);
        let clean_head = self.dirty & mask(first..first + 1) == 0;
        let clean_tail = self.dirty & mask(last..last + 1) == 0;
        let bytes = self.own(sector);
        if clean_head {
            bytes[head..at].fill(0);
        }
        if clean_tail {
            bytes[end..tail].fill(0);
        }
        bytes[at..end].copy_from_slice(data);
        self.dirty |= mask(first..last + 1);
    }

    /// Takes out this part, all of which is dirty. Also returns the window with the rest that
    /// remains dirty.
    fn take(mut self, sector: usize, part: Range<usize>) -> (SharedBuffer, Option<Self>) {
        let shared = match self.bytes {
            Bytes::Own(buffer) => buffer.share(),
            Bytes::Shared(shared) => shared,
        };
        let taken = shared.slice(part.clone());
        self.dirty &= !mask(part.start / sector..part.end / sector);
        let rest = (self.dirty != 0).then_some(Self { bytes: Bytes::Shared(shared), dirty: self.dirty });
        (taken, rest)
    }

    /// Returns the runs of adjacent dirty sectors.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let mut bits = self.dirty;
        std::iter::from_fn(move || {
            if bits == 0 {
                return None;
            }
            let start = bits.trailing_zeros() as usize;
            let run = start..start + (bits >> start).trailing_ones() as usize;
            bits &= !mask(run.clone());
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn a_small_file_takes_a_sector_and_a_sequential_one_whole_blocks() {
        let mut dirty = DirtyData::new(4096);
        dirty.write(0, b"hello");
        assert_eq!(dirty.bytes(), 4096);
        dirty.write(4096, &[1; 4096]);
        assert_eq!(dirty.bytes(), 16384);
        for offset in (8 * KIB..64 * KIB).step_by(4096) {
            dirty.write(offset, &[2; 4096]);
        }
        dirty.write(64 * KIB, &[3; 10]);
        assert_eq!(dirty.bytes(), 128 * 1024);
        dirty.write(1 << 40, &[3; 10]);
        assert_eq!(dirty.bytes(), 132 * 1024);
        assert_eq!(dirty.ranges().collect::<Vec<_>>(), [(0, 68 * KIB), (1 << 40, 4096)]);
    }

    #[test]
    fn sectors_at_random_take_no_more_memory_than_they_have() {
        let mut dirty = DirtyData::new(4096);
        for sector in [9, 3, 12, 0, 6] {
            dirty.write(sector * 4096, &[1; 4096]);
        }
        assert_eq!(dirty.bytes(), 5 * 4096);
        // A write over all of them is in one window.
        dirty.write(4096, &vec![2; 60 * 1024]);
        assert_eq!((dirty.bytes(), dirty.windows.len()), (64 * 1024, 1));
        let mut out = [0; 8192];
        dirty.overlay(0, &mut out);
        assert_eq!((out[0], out[4096]), (1, 2));
    }

    #[test]
    fn only_sectors_that_keep_old_bytes_need_filling() {
        let dirty = DirtyData::new(4096);
        let ask = |offset, len, size| dirty.sectors_to_fill(offset, len, size).collect::<Vec<_>>();
        assert_eq!(ask(0, 4096, 1 << 20), [0_u64; 0]);
        assert_eq!(ask(10, 10, 1 << 20), [0]);
        assert_eq!(ask(10, 8192, 1 << 20), [0, 8192]);
        assert_eq!(ask(0, 100, 50), [0_u64; 0], "all old bytes are overwritten");
        assert_eq!(ask(0, 100, 101), [0]);
        assert_eq!(ask(4096, 100, 4096), [0_u64; 0], "append");
        assert_eq!(ask(4100, 100, 4100), [4096], "append inside a sector");
        assert_eq!(ask(4096, 5000, 8192), [0_u64; 0], "the last sector lies beyond the old end");
        assert_eq!(ask(5000, 0, 1 << 20), [4096], "truncate");
        assert_eq!(ask(8192, 0, 1 << 20), [0_u64; 0]);
        let mut dirty = dirty;
        dirty.fill(0, b"old");
        assert_eq!(dirty.sectors_to_fill(1, 1, 3).count(), 0);
        dirty.write(1, b"L");
        dirty.fill(0, b"older");
        let mut out = [9; 6];
        dirty.overlay(0, &mut out);
        assert_eq!(&out, b"oLd\0\0\0");
    }

    #[test]
    fn taken_data_does_not_change_when_the_rest_is_written_again() {
        let mut dirty = DirtyData::new(4096);
        dirty.write(0, &[1; 16384]);
        let run = dirty.take_run(8192).unwrap();
        assert_eq!((run.offset, run.len(), run.buffers.len()), (0, 8192, 1));
        assert_eq!(dirty.ranges().collect::<Vec<_>>(), [(8192, 8192)]);
        dirty.write(0, &[2; 10000]);
        assert!(run.buffers[0].iter().all(|&byte| byte == 1));
        let rest = dirty.take_run(1 << 20).unwrap();
        assert_eq!((rest.offset, rest.len()), (0, 16384));
        assert!(rest.buffers[0][..10000].iter().all(|&byte| byte == 2));
        assert!(rest.buffers[0][10000..].iter().all(|&byte| byte == 1));
        assert!(dirty.is_empty() && dirty.bytes() == 0 && dirty.take_run(4096).is_none());
    }

    #[test]
    fn runs_are_aligned_for_direct_io_and_span_blocks() {
        let mut dirty = DirtyData::new(4096);
        dirty.write(60 * KIB + 5, &vec![7; 100_000]);
        let run = dirty.take_run(1 << 20).unwrap();
        assert_eq!((run.offset, run.len()), (60 * KIB, 102_400));
        for buffer in &run.buffers {
            assert!(buffer.len().is_multiple_of(4096) && (buffer.as_ptr() as usize).is_multiple_of(4096));
        }
        assert_eq!(run.buffers[0][..6], [0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn new_dirt_is_counted_by_sectors() {
        let mut dirty = DirtyData::new(4096);
        dirty.write(4096, &[1; 4096]);
        assert_eq!(dirty.newly_dirty(0, 0), 0);
        assert_eq!(dirty.newly_dirty(4095, 1), 4096);
        assert_eq!(dirty.newly_dirty(4096, 1), 0);
        assert_eq!(dirty.newly_dirty(10, 100_000), 98_304);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize, u8),
        Fill(u64, u8),
        Truncate(u64),
        Discard(u64, u64),
        TakeRun(u64),
        Take,
    }

    const SIZE: u64 = 320 * KIB;

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..SIZE - 70_000, 1..70_000_usize, 1..=255_u8).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
            6 => (0..SIZE - 5000, 1..5000_usize, 1..=255_u8).prop_map(|(at, len, byte)| Step::Write(at, len, byte)),
            2 => (0..SIZE, 1..=255_u8).prop_map(|(at, byte)| Step::Fill(at, byte)),
            1 => (0..SIZE).prop_map(Step::Truncate),
            2 => (0..SIZE, 0..SIZE).prop_map(|(a, b)| Step::Discard(a.min(b), a.max(b))),
            3 => (1..200 * KIB).prop_map(Step::TakeRun),
            1 => Just(Step::Take),
        ]
    }

    /// Every dirty sector with its content.
    type Model = std::collections::BTreeMap<u64, Vec<u8>>;

    fn model_write(model: &mut Model, sector: u64, at: u64, data: &[u8]) {
        for (position, byte) in (at..).zip(data) {
            let content = model.entry(position / sector).or_insert_with(|| vec![0; sector as usize]);
            content[(position % sector) as usize] = *byte;
        }
    }

    fn run_against_model(sector: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
        let mut dirty = DirtyData::new(sector as u32);
        let mut model = Model::new();
        let mut in_flight: Vec<(SharedBuffer, Vec<u8>)> = Vec::new();
        for step in steps {
            match step {
                Step::Write(at, len, byte) => {
                    prop_assert_eq!(
                        dirty.newly_dirty(at, len as u64),
                        (at / sector..=(at + len as u64 - 1) / sector).filter(|n| !model.contains_key(n)).count()
                            as u64
                            * sector
                    );
                    let data: Vec<u8> = (0..len).map(|index| byte.wrapping_add((index / 100) as u8)).collect();
                    dirty.write(at, &data);
                    model_write(&mut model, sector, at, &data);
                }
                Step::Fill(at, byte) => {
                    let number = at / sector;
                    let content = vec![byte; (at % sector) as usize];
                    dirty.fill(number * sector, &content);
                    let mut full = content;
                    full.resize(sector as usize, 0);
                    model.entry(number).or_insert(full);
                }
                Step::Truncate(size) => {
                    dirty.truncate(size);
                    model.retain(|number, _| number * sector < size);
                    if let Some(content) = model.get_mut(&(size / sector)) {
                        content[(size % sector) as usize..].fill(0);
                    }
                }
                Step::Discard(from, to) => {
                    let (from, to) = (from / sector, to / sector);
                    dirty.discard(from * sector..to * sector);
                    model.retain(|number, _| *number < from || *number >= to);
                }
                Step::TakeRun(max) => {
                    let Some(run) = dirty.take_run(max) else {
                        prop_assert!(model.is_empty());
                        continue;
                    };
                    prop_assert!(run.len() <= max.max(sector));
                    prop_assert_eq!(Some(run.offset / sector), model.keys().next().copied());
                    let mut in_run = vec![0xEE; 20_000];
                    run.overlay(run.offset.saturating_sub(5_000), &mut in_run);
                    for (index, byte) in in_run.into_iter().enumerate() {
                        let at = run.offset.saturating_sub(5_000) + index as u64;
                        let inside = (run.offset..run.offset + run.len()).contains(&at);
                        let old = model.get(&(at / sector)).filter(|_| inside);
                        prop_assert_eq!(byte, old.map_or(0xEE, |content| content[(at % sector) as usize]));
                    }
                    let mut number = run.offset / sector;
                    let whole = run.len() / sector;
                    for buffer in run.buffers {
                        let mut expected = Vec::new();
                        for _ in 0..buffer.len() as u64 / sector {
                            expected.extend(model.remove(&number).expect("a dirty sector"));
                            number += 1;
                        }
                        in_flight.push((buffer, expected));
                    }
                    let room = max.max(sector) / sector;
                    prop_assert!(whole == room || !model.contains_key(&number), "the run ends early");
                }
                Step::Take => {
                    let taken = dirty.take();
                    prop_assert!(dirty.is_empty() && dirty.bytes() == 0);
                    dirty = taken;
                }
            }
            for (buffer, expected) in &in_flight {
                prop_assert!(buffer[..] == expected[..], "a buffer in flight changed");
            }
            let mut seen = vec![0xEE; SIZE as usize + 70_000];
            dirty.overlay(0, &mut seen);
            let mut expected = vec![0xEE; seen.len()];
            for (number, content) in &model {
                let at = (number * sector) as usize;
                let end = expected.len().min(at + sector as usize);
                expected[at..end].copy_from_slice(&content[..end - at]);
            }
            prop_assert!(seen == expected);
            let mut part = vec![0xEE; 10_000];
            dirty.overlay(5_000, &mut part);
            prop_assert!(part == expected[5_000..15_000]);
            let covered: u64 = dirty.ranges().map(|(_, len)| len).sum();
            prop_assert_eq!(covered, model.len() as u64 * sector);
            prop_assert_eq!(dirty.is_empty(), model.is_empty());
            prop_assert_eq!(dirty.bytes(), dirty.windows.values().map(Window::len).sum::<usize>());
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_as_a_map_of_sectors(
            sector in prop::sample::select(vec![4096_u64, 8192, 16384, 65536]),
            steps in prop::collection::vec(step(), 1..40),
        ) {
            run_against_model(sector, steps)?;
        }

        /// After the requested sectors are filled, old and new bytes read back as from a plain
        /// file.
        #[test]
        fn filled_sectors_keep_old_bytes(old_size in 0_u64..20_000, at in 0_u64..20_000, len in 1_usize..9_000) {
            let old: Vec<u8> = (0..old_size).map(|index| (index % 251) as u8).collect();
            let mut dirty = DirtyData::new(4096);
            for sector in dirty.sectors_to_fill(at, len as u64, old_size) {
                let from = sector as usize;
                dirty.fill(sector, &old[from..old.len().min(from + 4096)]);
            }
            dirty.write(at, &vec![0xFF; len]);
            let size = (old_size as usize).max(at as usize + len);
            let mut expected = old.clone();
            expected.resize(size, 0);
            expected[at as usize..at as usize + len].fill(0xFF);
            let mut seen = old;
            seen.resize(size, 0);
            dirty.overlay(0, &mut seen);
            prop_assert!(seen == expected);
        }
    }
}

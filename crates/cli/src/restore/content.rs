//! Copies the content of one file: data, holes, and as much as possible around what can't be read.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use ubtrfs::{Damage, Errno, Filesystem, InodeId};
use ubtrfs_errors::sentence;

/// How many bytes are read at a time: the first size is for reads without errors, and a failed read
/// is repeated in pieces of the next smaller size.
const PIECES: [u64; 3] = [1 << 20, 64 << 10, 4 << 10];
/// After so many consecutive unreadable bytes only samples are read, at growing distances: a
/// damaged or hostile extent map may claim exabytes.
const STRETCH: u64 = 64 << 20;

/// The most ranges of a file that are kept. Of more, neighbours count as one.
const MAX_RANGES: usize = 1 << 16;

/// Ranges of a file in their order, which do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range that begins at the end of the last one or behind it.
    pub fn push(&mut self, range: Range<u64>) {
        let is_full = self.0.len() >= MAX_RANGES;
        match self.0.last_mut() {
            Some(last) if is_full || last.end >= range.start => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    /// Takes away everything from this offset on.
    fn cut(&mut self, at: u64) {
        self.0.retain(|range| range.start < at);
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(at);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }

    /// Returns the bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, range| sum.saturating_add(range.end - range.start))
    }
}

/// The result of a copy.
#[derive(Default)]
pub struct Outcome {
    /// The bytes of data that were copied.
    pub copied: u64,
    /// The bytes for which the map of the file has data, whether or not they were copied.
    pub mapped: u64,
    /// What was left as a hole because it can't be read.
    pub lost: Ranges,
    /// Where the map of the file has nothing.
    pub gaps: Ranges,
    /// The error of the first of these.
    pub why: Option<String>,
    /// Why the size could not be set, so that the file ends with its last data.
    pub size_error: Option<std::io::Error>,
}

/// Copies what can be read of a file of `size` bytes. Returns an error only if a write fails.
pub fn copy(fs: &Filesystem, damage: &Damage, id: InodeId, size: u64, to: &File) -> std::io::Result<Outcome> {
    let mut copy = Copy { fs, damage, id, to, outcome: Outcome::default(), lost_in_a_row: 0, skipped_from: None };
    copy.range(0..size)?;
    copy.outcome.size_error = to.set_len(size).err();
    Ok(copy.outcome)
}

/// Copies what can be read of some ranges of a file into an earlier copy of it, which keeps
/// everything else.
pub fn fill(fs: &Filesystem, damage: &Damage, id: InodeId, ranges: &Ranges, to: &File) -> std::io::Result<Outcome> {
    let mut copy = Copy { fs, damage, id, to, outcome: Outcome::default(), lost_in_a_row: 0, skipped_from: None };
    for range in ranges.iter() {
        copy.range(range)?;
    }
    Ok(copy.outcome)
}

/// Returns the reason for an error: a missing device, or what the error says.
fn reason(fs: &Filesystem, error: &ubtrfs::Error) -> String {
    let missing = fs.volume().devices().missing();
    match error.device_fault() {
        Some(fault) if missing.iter().any(|item| item.devid == fault.devid) => {
            format!("it is on device {}, which is missing", fault.devid)
        }
        _ => sentence(error),
    }
}

struct Copy<'a> {
    fs: &'a Filesystem,
    damage: &'a Damage,
    id: InodeId,
    to: &'a File,
    outcome: Outcome,
    lost_in_a_row: u64,
    /// Where the data begins that was skipped between the last two samples.
    skipped_from: Option<u64>,
}

impl Copy<'_> {
    fn range(&mut self, range: Range<u64>) -> std::io::Result<()> {
        let size = range.end;
        let mut at = range.start;
        while at < size {
            let Some(start) = self.seek_data(at, size) else {
                self.outcome.gaps.push(at..size);
                break;
            };
            if start > at {
                self.outcome.gaps.push(at..start);
            }
            let end = self.fs.files().seek_hole(self.id, start).unwrap_or(start.saturating_add(PIECES[0]));
            let end = end.min(size).max(start + 1);
            self.outcome.mapped = self.outcome.mapped.saturating_add(end - start);
            self.data(start, end)?;
            at = end;
        }
        Ok(())
    }

    /// Returns the offset of the next data. Where the map can't be read, continues at growing
    /// distances.
    fn seek_data(&mut self, from: u64, size: u64) -> Option<u64> {
        let mut at = from;
        let mut step = PIECES[2];
        while at < size {
            match self.fs.files().seek_data(self.id, at) {
                Ok(start) => return (start < size).then_some(start),
                Err(error) if error.errno() == Errno::NXIO => return None,
                Err(error) => {
                    let next = at.saturating_add(step).min(size);
                    self.lost(at..next, &error);
                    at = next;
                    step = step.saturating_mul(2);
                }
            }
        }
        None
    }

    fn data(&mut self, start: u64, end: u64) -> std::io::Result<()> {
        let mut at = start;
        while at < end {
            if self.lost_in_a_row >= STRETCH {
                at = self.sample(at, end);
                continue;
            }
            let next = (at - at % PIECES[0]).saturating_add(PIECES[0]).min(end);
            self.piece(at, next, 0)?;
            at = next;
        }
        Ok(())
    }

    /// Copies a piece, or the parts of it that can be read.
    fn piece(&mut self, start: u64, end: u64, size: usize) -> std::io::Result<()> {
        let unverified = self.damage.unverified();
        let read = self.fs.files().read(self.id, start, (end - start) as usize);
        let smaller = PIECES.get(size + 1).copied();
        match (read, smaller) {
            // A checksum is lost, so the data is read again sector by sector, to verify the sectors
            // that have one.
            (Ok(data), None) => self.write(start, &data),
            (Ok(data), Some(_)) if self.damage.unverified() == unverified => self.write(start, &data),
            (_, Some(smaller)) => {
                let mut at = start;
                while at < end {
                    let next = (at - at % smaller).saturating_add(smaller).min(end);
                    self.piece(at, next, size + 1)?;
                    at = next;
                }
                Ok(())
            }
            (Err(error), None) => {
                self.lost(start..end, &error);
                Ok(())
            }
        }
    }

    /// Reads one sector after a long unreadable range. Returns the offset at which to continue.
    fn sample(&mut self, at: u64, end: u64) -> u64 {
        if self.is_readable(at, end) {
            // Some of what was skipped before may be readable, too.
            let from = self.skipped_from.map_or(at, |skipped| self.first_readable(skipped, at));
            self.outcome.lost.cut(from);
            self.lost_in_a_row = 0;
            return from;
        }
        self.skipped_from = Some(at.saturating_add(PIECES[2]).min(end));
        let next = at.saturating_add((self.lost_in_a_row / 64).max(PIECES[0])).min(end);
        self.outcome.lost.push(at..next);
        self.lost_in_a_row = self.lost_in_a_row.saturating_add(next - at);
        next
    }

    fn is_readable(&self, at: u64, end: u64) -> bool {
        let next = at.saturating_add(PIECES[2]).min(end);
        self.fs.files().read(self.id, at, (next - at) as usize).is_ok()
    }

    /// Returns where the readable data begins that ends at `readable`, if everything before it,
    /// from `from` on, is unreadable.
    fn first_readable(&self, from: u64, readable: u64) -> u64 {
        let (mut unreadable, mut readable) = (from, readable);
        while readable.saturating_sub(unreadable) > PIECES[2] {
            let middle = unreadable + (readable - unreadable) / 2;
            let middle = (middle - middle % PIECES[2]).max(unreadable);
            if self.is_readable(middle, readable) {
                readable = middle;
            } else {
                unreadable = middle + PIECES[2];
            }
        }
        readable
    }

    fn write(&mut self, at: u64, data: &[u8]) -> std::io::Result<()> {
        (self.lost_in_a_row, self.skipped_from) = (0, None);
        self.outcome.copied += data.len() as u64;
        self.to.write_all_at(data, at)
    }

    fn lost(&mut self, range: Range<u64>, why: &ubtrfs::Error) {
        self.lost_in_a_row = self.lost_in_a_row.saturating_add(range.end - range.start);
        self.outcome.lost.push(range);
        let fs = self.fs;
        self.outcome.why.get_or_insert_with(|| reason(fs, why));
    }
}

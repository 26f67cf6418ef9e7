//! Copies the content of one file: data, holes, and as much as possible around what can't be read.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ubtrfs::{Damage, Errno, Filesystem, InodeId};
use ubtrfs_errors::sentence;

/// How many bytes are read at a time: the first size is for reads without errors, and a failed read
/// is repeated in pieces of the next smaller size.
const PIECES: [u64; 3] = [1 << 20, 64 << 10, 4 << 10];
/// After so many consecutive unreadable bytes only samples are read, at growing distances: a
/// damaged or hostile extent map may claim exabytes.
const STRETCH: u64 = 64 << 20;

/// The result of a copy.
#[derive(Default)]
pub struct Outcome {
    /// The bytes of data that were copied.
    pub copied: u64,
    /// The bytes that were left as a hole because they can't be read.
    pub lost: u64,
    /// The error of the first of these.
    pub why: Option<String>,
    /// Why the size could not be set, so that the file ends with its last data.
    pub size_error: Option<std::io::Error>,
}

/// Copies what can be read of a file of `size` bytes. Returns an error only if a write fails.
pub fn copy(fs: &Filesystem, damage: &Damage, id: InodeId, size: u64, to: &File) -> std::io::Result<Outcome> {
    let mut copy = Copy { fs, damage, id, to, outcome: Outcome::default(), lost_in_a_row: 0 };
    let mut at = 0;
    while at < size {
        let Some(start) = copy.seek_data(at, size) else { break };
        let end = fs.files().seek_hole(id, start).unwrap_or(start.saturating_add(PIECES[0])).min(size).max(start + 1);
        copy.data(start, end)?;
        at = end;
    }
    copy.outcome.size_error = to.set_len(size).err();
    Ok(copy.outcome)
}

struct Copy<'a> {
    fs: &'a Filesystem,
    damage: &'a Damage,
    id: InodeId,
    to: &'a File,
    outcome: Outcome,
    lost_in_a_row: u64,
}

impl Copy<'_> {
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
                    self.lost(next - at, &error);
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
                self.lost(end - start, &error);
                Ok(())
            }
        }
    }

    /// Reads one sector after a long unreadable range. Returns the offset at which to continue.
    fn sample(&mut self, at: u64, end: u64) -> u64 {
        let next = at.saturating_add(PIECES[2]).min(end);
        if self.fs.files().read(self.id, at, (next - at) as usize).is_ok() {
            self.lost_in_a_row = 0;
            return at;
        }
        let next = at.saturating_add((self.lost_in_a_row / 64).max(PIECES[0])).min(end);
        self.outcome.lost += next - at;
        self.lost_in_a_row += next - at;
        next
    }

    fn write(&mut self, at: u64, data: &[u8]) -> std::io::Result<()> {
        self.lost_in_a_row = 0;
        self.outcome.copied += data.len() as u64;
        self.to.write_all_at(data, at)
    }

    fn lost(&mut self, bytes: u64, why: &ubtrfs::Error) {
        self.outcome.lost = self.outcome.lost.saturating_add(bytes);
        self.lost_in_a_row = self.lost_in_a_row.saturating_add(bytes);
        self.outcome.why.get_or_insert_with(|| sentence(why));
    }
}

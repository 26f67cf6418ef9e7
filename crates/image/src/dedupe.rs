//! Stores equal data once: a run of blocks that a file of the same edit has already shares its
//! extents.
//!
//! A table maps hashes of blocks to the place where such a block was written first. A hit is only a
//! guess: before anything is shared, the bytes are compared, at that place and before and after it
//! as far as they are equal. So neither a collision nor a file that has been changed or removed
//! since does harm.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use ubtrfs::{Errno, Filesystem, InodeId};

use crate::content::{Target, write_all};

/// Files up to this size in bytes are not shared, since they are inline, or take hardly more.
const SMALL: u64 = 2048;
/// The shortest run in bytes that is shared, unless it is a whole piece. A shorter one saves
/// little, and files of many extents are slow to read.
const MIN: u64 = 16 << 10;
/// How many bytes are compared at once.
const COMPARED: u64 = 128 << 10;
/// The most bytes of a compressed extent, which is shared as a whole.
const COMPRESSED: u64 = 128 << 10;
/// The number of blocks in one half of the table. With so many, a hash map is full and would grow
/// next.
const HALF: usize = (1 << 21) / 8 * 7;

/// The first bytes of a block's hash. That is enough since the bytes are compared.
type Key = [u8; 16];

/// The place of a block: the index of its file in `files`, and the number of the sector in it.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: u32,
    sector: u32,
}

/// The data of an edit that may be shared.
#[derive(Debug)]
pub(crate) struct Dedupe {
    sector: u64,
    /// The length of a block in bytes. It begins at a multiple of that in its file.
    block: u64,
    key: fn(&[u8]) -> Key,
    files: Vec<InodeId>,
    /// The half with the blocks that were written last, and the half with those before.
    recent: HashMap<Key, Place>,
    older: HashMap<Key, Place>,
    /// How many blocks `recent` has before it becomes `older`.
    half: usize,
}

/// A run of bytes of an earlier file that are equal to those of a piece.
#[derive(Clone, Copy, Debug)]
struct Run {
    source: InodeId,
    from: u64,
    /// The offsets of its start and end in the file that is written.
    start: u64,
    end: u64,
}

impl Dedupe {
    /// Returns an empty table. Blocks are sectors or, where data is compressed, as long as
    /// compressed extents.
    pub(crate) fn new(fs: &Filesystem) -> Self {
        let sector = u64::from(fs.volume().sector_size());
        let block = if fs.compression().is_some() { COMPRESSED } else { sector };
        Self { sector, block, key, files: Vec::new(), recent: HashMap::new(), older: HashMap::new(), half: HALF }
    }

    /// Writes a piece of data at an offset of a file, or shares it. Returns how many bytes it has
    /// shared.
    pub(crate) fn write(&mut self, fs: &Filesystem, to: Target, at: u64, data: &[u8]) -> ubtrfs::Result<u64> {
        let end = at + data.len() as u64;
        if to.size <= SMALL || end > to.size {
            write_all(fs, to.id, at, data)?;
            return Ok(0);
        }
        let part = |from: u64, until: u64| &data[(from - at) as usize..(until - at) as usize];
        let (mut written, mut pos, mut all_shared) = (at, at, 0);
        let mut file = None;
        while pos < end {
            let next = (pos - pos % self.block + self.block).min(end);
            if !self.is_whole(pos, next, to.size) {
                pos = next;
                continue;
            }
            let key = (self.key)(part(pos, next));
            if let Some(place) = self.find(&key) {
                if self.files[place.file as usize] == to.id {
                    // The match is in this file itself, which so far has only what has been
                    // written.
                    write_all(fs, to.id, written, part(written, pos))?;
                    written = pos;
                }
                match self.run(fs, place, (written, pos, end), at, data) {
                    Some(run) if run.end - run.start >= MIN || (run.start, run.end) == (at, end) => {
                        write_all(fs, to.id, written, part(written, run.start))?;
                        let shared = share(fs, run, to)?;
                        all_shared += shared;
                        (written, pos) = (run.start + shared, run.end);
                    }
                    Some(run) => pos = run.end,
                    None => {
                        self.remember(key, to.id, &mut file, pos);
                        pos = next;
                    }
                }
            } else {
                self.remember(key, to.id, &mut file, pos);
                pos = next;
            }
        }
        write_all(fs, to.id, written, part(written, end))?;
        Ok(all_shared)
    }

    /// Returns whether a block consists of whole sectors, the last of which may end with the file.
    fn is_whole(&self, start: u64, end: u64, size: u64) -> bool {
        start.is_multiple_of(self.sector) && (end.is_multiple_of(self.sector) || end == size)
    }

    fn find(&self, key: &Key) -> Option<Place> {
        self.recent.get(key).or_else(|| self.older.get(key)).copied()
    }

    /// Adds a block of a file to the table. `file` keeps the file's number once it has one.
    fn remember(&mut self, key: Key, id: InodeId, file: &mut Option<u32>, at: u64) {
        let (Ok(sector), Ok(count)) = (u32::try_from(at / self.sector), u32::try_from(self.files.len())) else {
            return;
        };
        if file.is_none() && self.files.last() == Some(&id) {
            *file = Some(count - 1);
        }
        let number = *file.get_or_insert_with(|| {
            self.files.push(id);
            count
        });
        if self.recent.len() >= self.half {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, Place { file: number, sector });
    }

    /// Finds the run of equal blocks around the block at `pos` of a piece, which is likely to be at
    /// `place`; the run is within `written` and `end`. `None` if the guess was wrong.
    fn run(
        &self,
        fs: &Filesystem,
        place: Place,
        (written, pos, end): (u64, u64, u64),
        at: u64,
        data: &[u8],
    ) -> Option<Run> {
        let source = self.files[place.file as usize];
        let from = u64::from(place.sector) * self.sector;
        // The run ends at a hole of the source, so that data here does not become a hole.
        let until = (from + (end - pos)).min(fs.files().seek_hole(source, from).ok()?);
        let part = |from: u64, until: u64| &data[(from - at) as usize..(until - at) as usize];
        let mut equal = 0;
        while from + equal < until {
            let len = (until - from - equal).min(COMPARED);
            let found = fs.files().read(source, from + equal, len as usize).ok()?;
            let wanted = part(pos + equal, pos + equal + len);
            let same = if wanted == found { len } else { common(wanted, &found) };
            equal += same;
            if same < len {
                break;
            }
        }
        let mut run_end = pos + equal;
        if run_end < end {
            run_end -= run_end % self.block;
        }
        if run_end <= pos {
            return None;
        }
        let before = self.before(fs, (source, from), (written, pos), at, data);
        Some(Run { source, from: from - before, start: pos - before, end: run_end })
    }

    /// Returns how many bytes right before a block are equal to those of the source, in whole
    /// blocks.
    fn before(
        &self,
        fs: &Filesystem,
        (source, from): (InodeId, u64),
        (written, pos): (u64, u64),
        at: u64,
        data: &[u8],
    ) -> u64 {
        let most = (pos - written).min(from).min(COMPARED);
        let is_data = |start: u64| fs.files().seek_hole(source, start).is_ok_and(|hole| hole >= from);
        if most == 0 || !is_data(from - most) {
            return 0;
        }
        let Ok(found) = fs.files().read(source, from - most, most as usize) else { return 0 };
        let wanted = &data[(pos - most - at) as usize..(pos - at) as usize];
        let equal = wanted.iter().rev().zip(found.iter().rev()).take_while(|(a, b)| a == b).count() as u64;
        let start = (pos - equal).next_multiple_of(self.block);
        pos.saturating_sub(start)
    }
}

/// Shares a run as far as that is possible, and returns how many bytes are shared.
fn share(fs: &Filesystem, run: Run, to: Target) -> ubtrfs::Result<u64> {
    match fs.files().clone_range(run.source, run.from, to.id, run.start, run.end - run.start) {
        // Only one of the files has csums, or only one ends in the last sector; or the file with
        // the same data has been removed, but is not freed yet.
        Err(error) if matches!(error.errno(), Errno::OPNOTSUPP | Errno::NOENT) => Ok(0),
        shared => shared,
    }
}

/// Returns how many bytes are equal at the beginning.
fn common(one: &[u8], other: &[u8]) -> u64 {
    one.iter().zip(other).take_while(|(a, b)| a == b).count() as u64
}

fn key(block: &[u8]) -> Key {
    let mut key = Key::default();
    key.copy_from_slice(&Sha256::digest(block)[..16]);
    key
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ubtrfs::mkfs::{self, MkfsOptions};
    use ubtrfs::volume::MemoryDevice;
    use ubtrfs::{CompressionMode, Dir, Options, SetAttributes};

    use super::*;
    use crate::Session;

    const SIZE: usize = 256 << 20;

    fn session(compression: Option<&str>) -> Session {
        let device = Arc::new(MemoryDevice::new(SIZE));
        mkfs::make(&[&*device], &MkfsOptions::new(SIZE as u64)).unwrap();
        let compression = compression.and_then(|value| CompressionMode::parse(value, false).flatten());
        Session::open_with(vec![device], Options { compression, ..Options::default() }).unwrap()
    }

    /// Makes bytes that differ from block to block and can be compressed.
    fn content(seed: u64, len: usize) -> Vec<u8> {
        (0..len as u64)
            .map(|at| if at % 4096 < 16 { (seed ^ (at / 4096)).to_le_bytes()[at as usize % 8] } else { at as u8 / 16 })
            .collect()
    }

    /// Writes a file in pieces as copies do, and returns the bytes that were shared.
    fn write(session: &Session, dedupe: &mut Dedupe, name: &str, data: &[u8]) -> u64 {
        let fs = session.fs();
        let file = Dir::root(fs).create(name).unwrap();
        let size = data.len() as u64;
        fs.inodes().set_attributes(file.id(), &SetAttributes { size: Some(size), ..SetAttributes::default() }).unwrap();
        let to = Target { id: file.id(), size };
        let pieces = data.chunks(1 << 20).zip(0..);
        pieces.map(|(piece, number)| dedupe.write(fs, to, number << 20, piece).unwrap()).sum()
    }

    fn holds(session: &Session, name: &str, data: &[u8]) {
        assert!(Dir::root(session.fs()).read(name).unwrap() == data, "{name}");
    }

    #[test]
    fn equal_files_and_equal_parts_share_and_read_as_what_was_written() {
        for compression in [None, Some("zstd")] {
            let session = session(compression);
            let mut dedupe = Dedupe::new(session.fs());
            let first = content(1, 3_000_001);
            assert_eq!(write(&session, &mut dedupe, "first", &first), 0);
            assert_eq!(write(&session, &mut dedupe, "same", &first), 3_000_001, "{compression:?}");
            let mut other = first.clone();
            other[1_500_000] ^= 1;
            let shared = write(&session, &mut dedupe, "other", &other);
            let most = if compression.is_some() { 128 << 10 } else { 4096 };
            assert!(shared < 3_000_001 && shared + most >= 3_000_001, "{compression:?}: {shared}");
            // Data that has moved is shared as far as blocks begin there.
            let moved = [&content(9, 640 << 10)[..], &first[256 << 10..]].concat();
            let shared = write(&session, &mut dedupe, "moved", &moved);
            assert!(shared + (128 << 10) >= first.len() as u64 - (256 << 10), "{compression:?}: {shared}");
            for (name, data) in [("first", &first), ("same", &first), ("other", &other), ("moved", &moved)] {
                holds(&session, name, data);
            }
        }
    }

    #[test]
    fn a_file_shares_what_it_repeats_itself() {
        let session = session(None);
        let mut dedupe = Dedupe::new(session.fs());
        let part = content(3, 100 << 10);
        let data = [&part[..], &part, &part, b"tail"].concat();
        assert_eq!(write(&session, &mut dedupe, "repeated", &data), 2 * part.len() as u64);
        let one = vec![5; 1 << 20];
        write(&session, &mut dedupe, "one", &one);
        holds(&session, "repeated", &data);
        holds(&session, "one", &one);
    }

    #[test]
    fn hashes_that_collide_share_nothing_but_what_is_equal() {
        let session = session(None);
        let mut dedupe = Dedupe { key: |_| [0; 16], ..Dedupe::new(session.fs()) };
        let files: Vec<_> = (0..5).map(|seed| (format!("file{seed}"), content(1 << (8 * seed), 200_000))).collect();
        for (name, data) in &files {
            assert_eq!(write(&session, &mut dedupe, name, data), 0, "{name}");
        }
        let (_, last) = files.last().unwrap();
        // The table always knows only the place that was written last.
        assert_eq!(write(&session, &mut dedupe, "copy", last), 0);
        let again = [&last[..64 << 10], &last[60 << 10..64 << 10]].concat();
        write(&session, &mut dedupe, "again", &again);
        holds(&session, "again", &again);
        for (name, data) in &files {
            holds(&session, name, data);
        }
        holds(&session, "copy", last);
    }

    #[test]
    fn what_was_changed_or_removed_since_is_not_shared() {
        let session = session(None);
        let root = Dir::root(session.fs());
        let mut dedupe = Dedupe::new(session.fs());
        let data = content(4, 500_000);
        write(&session, &mut dedupe, "changed", &data);
        root.write("changed", content(5, 500_000)).unwrap();
        assert_eq!(write(&session, &mut dedupe, "second", &data), 0);
        assert_eq!(write(&session, &mut dedupe, "third", &data), 500_000, "of the second");
        root.remove_file("second").unwrap();
        root.remove_file("third").unwrap();
        write(&session, &mut dedupe, "fourth", &data);
        holds(&session, "fourth", &data);
    }

    #[test]
    fn holes_and_small_files_stay_as_they_are() {
        let session = session(None);
        let (fs, mut dedupe) = (session.fs(), Dedupe::new(session.fs()));
        let mut sparse = content(6, 64 << 10);
        let file = Dir::root(fs).create("sparse").unwrap();
        fs.inodes()
            .set_attributes(file.id(), &SetAttributes { size: Some(1 << 20), ..SetAttributes::default() })
            .unwrap();
        let to = Target { id: file.id(), size: 1 << 20 };
        dedupe.write(fs, to, 0, &sparse).unwrap();
        // Written zeros are data, even where the first file has a hole.
        sparse.resize(1 << 20, 0);
        write(&session, &mut dedupe, "full", &sparse);
        let full = Dir::root(fs).metadata("full").unwrap().id;
        assert_eq!(fs.files().seek_hole(full, 0).unwrap(), 1 << 20);
        holds(&session, "full", &sparse);
        for name in ["small", "small again"] {
            assert_eq!(write(&session, &mut dedupe, name, &content(7, 2000)), 0);
        }
    }

    #[test]
    fn the_table_forgets_what_is_long_ago() {
        let session = session(None);
        let mut dedupe = Dedupe { half: 16, ..Dedupe::new(session.fs()) };
        let files: Vec<_> = (0..3).map(|seed| content(seed << 32, 64 << 10)).collect();
        for (number, data) in files.iter().enumerate() {
            write(&session, &mut dedupe, &format!("file{number}"), data);
            assert!(dedupe.recent.len() <= 16 && dedupe.older.len() <= 16);
        }
        assert_eq!(write(&session, &mut dedupe, "last", &files[2]), 64 << 10);
        assert_eq!(write(&session, &mut dedupe, "first", &files[0]), 0);
        holds(&session, "first", &files[0]);
    }
}

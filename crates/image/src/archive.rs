//! Reads tar archives: the description of each entry's file, and its data.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use tar::Header;

use crate::archive_entry::{Described, Record};
use crate::archive_header::{Fields, Kind, number};
use crate::archive_records::{Additions, parse};
use crate::error::{Error, Result, outside};
use crate::sparse::SparseMap;

/// Bytes of a block of an archive.
pub(crate) const BLOCK: u64 = 512;
/// The most bytes of records and long names of an entry. The xattrs that the kernel supports need
/// less.
const MAX_RECORDS: u64 = 16 << 20;
/// The most bytes of records that apply to all entries, since each entry takes that much work (the
/// manual names this limit).
const MAX_COMMON: u64 = 64 << 10;
/// The most ranges of data of a sparse file.
const MAX_RANGES: u64 = 1 << 20;
/// The most bytes of a path (the manual names this limit).
const MAX_PATH: usize = 65_535;

/// An archive that is read from its beginning to its end.
#[derive(Debug)]
pub struct ArchiveReader<R> {
    reader: R,
    /// The bytes of the entry's data and padding that have not been read.
    data: u64,
    padding: u64,
    is_begun: bool,
    /// The records that apply to all entries.
    common: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl<R: Read> ArchiveReader<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, data: 0, padding: 0, is_begun: false, common: BTreeMap::new() }
    }

    /// Reads the next entry; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Described>> {
        let (mut records, mut path, mut target) = (Vec::new(), None, None);
        loop {
            self.skip()?;
            let mut header = Header::new_old();
            if !self.fill_header(&mut header)? || header.as_bytes().iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            self.check(&header)?;
            let fields = Fields::of(&header);
            let size = fields.size()?;
            match fields.kind() {
                b'x' | b'X' => records = parse(&self.whole(size)?)?,
                b'g' if size > MAX_COMMON => return Err(too_many_for_all()),
                b'g' => {
                    let common = parse(&self.whole(size)?)?;
                    self.note_common(common)?;
                }
                b'L' => path = Some(until_zero(&self.whole(size)?).to_vec()),
                b'K' => target = Some(until_zero(&self.whole(size)?).to_vec()),
                // This is the name of the volume, by `tar -V`.
                b'V' => self.begin_data(size),
                b'M' => return Err(refuse(&fields, "begins in another part of the archive")),
                b'N' => return Err(refuse(&fields, "is a list of names, which nobody has written since 1992")),
                b'A' => return Err(refuse(&fields, "has an ACL of Solaris, which btrfs can't have")),
                _ => return self.describe(&header, &records, path, target).map(Some),
            }
        }
    }

    /// Reads all of `buf` from the entry's data.
    pub fn read_data(&mut self, buf: &mut [u8]) -> Result<()> {
        self.data = self
            .data
            .checked_sub(buf.len() as u64)
            .ok_or_else(|| Error::Refused("the archive has a sparse file whose map is longer than its data".into()))?;
        self.fill(buf)
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<()> {
        self.reader.read_exact(buf).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => cut(),
            _ => broken(error),
        })
    }

    /// Reads a header. Returns `false` at the end of the file, since some programs write no zeros
    /// behind the last entry.
    fn fill_header(&mut self, header: &mut Header) -> Result<bool> {
        let (bytes, mut at) = (header.as_mut_bytes(), 0);
        while at < bytes.len() {
            match self.reader.read(&mut bytes[at..]) {
                Ok(0) if at == 0 && self.is_begun => return Ok(false),
                Ok(0) if at == 0 => return Err(Error::Refused("there is no archive: nothing can be read".into())),
                Ok(0) if !self.is_begun => return Err(no_archive()),
                Ok(0) => return Err(cut()),
                Ok(read) => at += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(true)
    }

    fn check(&mut self, header: &Header) -> Result<()> {
        let bytes = header.as_bytes();
        let others = || bytes[..148].iter().chain(&bytes[156..]);
        let blanks = 8 * u32::from(b' ');
        let sum: u32 = others().map(|byte| u32::from(*byte)).sum::<u32>() + blanks;
        // Some old programs have summed signed bytes.
        let signed: i64 = others().map(|byte| i64::from(*byte as i8)).sum::<i64>() + i64::from(blanks);
        let recorded = number(&bytes[148..156]);
        if recorded.is_some_and(|recorded| recorded == i64::from(sum) || recorded == signed) {
            self.is_begun = true;
            return Ok(());
        }
        Err(if self.is_begun { Error::Refused("the archive is damaged".into()) } else { no_archive() })
    }

    /// Keeps records that apply to all entries from here on.
    fn note_common(&mut self, records: Vec<Record>) -> Result<()> {
        self.common.extend(records);
        let bytes: usize = self.common.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes as u64 > MAX_COMMON { Err(too_many_for_all()) } else { Ok(()) }
    }

    /// Notes that the caller skips the entry's data by other means. Returns how many bytes that
    /// are, with the padding of the last block.
    pub fn pass_over(&mut self) -> u64 {
        let left = self.data.saturating_add(self.padding);
        (self.data, self.padding) = (0, 0);
        left
    }

    fn begin_data(&mut self, size: u64) {
        self.data = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    fn skip(&mut self) -> Result<()> {
        let mut buf = vec![0; 64 << 10];
        let mut left = self.data.saturating_add(self.padding);
        while left > 0 {
            let len = left.min(buf.len() as u64) as usize;
            self.fill(&mut buf[..len])?;
            left -= len as u64;
        }
        (self.data, self.padding) = (0, 0);
        Ok(())
    }

    fn whole(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_RECORDS {
            return Err(too_many_records());
        }
        self.begin_data(size);
        let mut buf = vec![0; size as usize];
        self.read_data(&mut buf)?;
        Ok(buf)
    }

    fn describe(
        &mut self,
        header: &Header,
        records: &[Record],
        path: Option<Vec<u8>>,
        target: Option<Vec<u8>>,
    ) -> Result<Described> {
        let fields = Fields::of(header);
        let mut of = Described::of(&fields)?;
        of.path = path.unwrap_or(of.path);
        of.target = target.unwrap_or(of.target);
        let mut additions = Additions::default();
        // An entry's own record overrides the common one, even if it only cancels that.
        let own: BTreeSet<&[u8]> = records.iter().map(|(key, _)| key.as_slice()).collect();
        for (key, value) in self.common.iter().filter(|(key, _)| !own.contains(key.as_slice())) {
            additions.take(&mut of, key, value)?;
        }
        for (key, value) in records {
            additions.take(&mut of, key, value)?;
        }
        additions.finish(&mut of)?;
        // For other kinds the size has no meaning. GNU tar's incremental archives have the names in
        // a directory as its data.
        let has_data = of.kind == Kind::Regular || fields.kind() == b'D';
        let size = if has_data { additions.size.map_or_else(|| fields.size(), Ok)? } else { 0 };
        of.size = size;
        of.ranges = vec![(0, size)];
        if fields.kind() == b'S' {
            self.old_map(header, &mut of)?;
        }
        self.begin_data(size);
        if let Some((real_size, map)) = additions.sparse.finish().map_err(|()| malformed())? {
            of.size = real_size;
            of.ranges = match map {
                SparseMap::Ranges(ranges) => ranges,
                SparseMap::BeforeData => self.map()?,
            };
        }
        let mut end = 0;
        for (start, len) in &of.ranges {
            let next = start.checked_add(*len).filter(|next| *start >= end && *next <= of.size);
            end = next.ok_or_else(malformed)?;
        }
        if of.kind == Kind::Symlink {
            // Symbolic links have no permissions, whatever the header says.
            of.mode = 0o777;
        }
        // Old archives mark directories by a slash.
        if of.kind == Kind::Regular && of.path.ends_with(b"/") {
            of.kind = Kind::Directory;
        }
        Ok(of)
    }

    /// Reads the map of a sparse file in GNU tar's old format, which is in the header and in blocks
    /// after it.
    fn old_map(&mut self, header: &Header, of: &mut Described) -> Result<()> {
        let gnu = header.as_gnu().ok_or_else(malformed)?;
        of.size = gnu.real_size().map_err(broken)?;
        of.ranges.clear();
        let mut add = |sparse: &tar::GnuSparseHeader| -> Result<()> {
            if !sparse.is_empty() {
                of.ranges.push((sparse.offset().map_err(broken)?, sparse.length().map_err(broken)?));
            }
            Ok(())
        };
        gnu.sparse.iter().try_for_each(&mut add)?;
        let mut has_more = gnu.is_extended();
        let mut blocks = 0;
        while has_more {
            let mut more = tar::GnuExtSparseHeader::new();
            self.fill(more.as_mut_bytes())?;
            more.sparse().iter().try_for_each(&mut add)?;
            has_more = more.is_extended();
            blocks += 1;
            if blocks > MAX_RANGES / 21 {
                return Err(malformed());
            }
        }
        Ok(())
    }

    /// Reads the map of a sparse file in the format 1.0 of GNU tar: numbers in lines before the
    /// data, then zeros to the end of the block.
    fn map(&mut self) -> Result<Vec<(u64, u64)>> {
        let (mut block, mut at) = ([0; BLOCK as usize], BLOCK as usize);
        let mut next_number = || -> Result<u64> {
            let mut value: u64 = 0;
            loop {
                if at == block.len() {
                    self.read_data(&mut block)?;
                    at = 0;
                }
                at += 1;
                match block[at - 1] {
                    b'\n' => return Ok(value),
                    digit @ b'0'..=b'9' => {
                        let next = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0')));
                        value = next.ok_or_else(malformed)?;
                    }
                    _ => return Err(malformed()),
                }
            }
        };
        let count = next_number()?;
        if count > MAX_RANGES {
            return Err(malformed());
        }
        (0..count).map(|_| Ok((next_number()?, next_number()?))).collect()
    }

    /// Reads what follows the end of the archive, so that nothing is left in a pipe.
    pub fn finish(mut self) -> Result<()> {
        std::io::copy(&mut self.reader, &mut std::io::sink()).map(drop).map_err(broken)
    }
}

fn broken(error: std::io::Error) -> Error {
    outside("the archive")(error)
}

/// An error about an entry that can't be read.
fn refuse(fields: &Fields<'_>, why: &str) -> Error {
    let path = fields.path();
    Error::Refused(format!("the archive's entry {} {why}", String::from_utf8_lossy(&path).escape_debug()))
}

fn cut() -> Error {
    Error::Refused("the archive has no end: it has been cut".into())
}

fn no_archive() -> Error {
    Error::Refused("this is no tar archive".into())
}

fn too_many_records() -> Error {
    Error::Refused("the archive has an entry with too many records".into())
}

fn too_many_for_all() -> Error {
    Error::Refused(format!("the archive has more than {MAX_COMMON} bytes of records that hold for all entries"))
}

fn malformed() -> Error {
    Error::Refused("the archive has a sparse file whose map is malformed".into())
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Splits a path of an archive into names. As with tar(1), the path begins in the directory that is
/// imported to, even if it has a leading slash.
pub fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.len() > MAX_PATH {
        return Err(Error::Refused(format!("the archive has a path of more than {MAX_PATH} bytes")));
    }
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if names.contains(&&b".."[..]) {
        let path = String::from_utf8_lossy(path);
        let path = path.escape_debug();
        return Err(Error::Refused(format!("the archive's entry {path} has '..' in its path")));
    }
    if path.contains(&0) {
        return Err(Error::Refused("the archive has a name with a zero byte".into()));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_nowhere_else() {
        assert_eq!(components(b"/etc//./passwd").unwrap(), [&b"etc"[..], b"passwd"]);
        assert!(components(b"./").unwrap().is_empty());
        for wrong in [&b"../x"[..], b"a/../b", b"..", b"a\0b"] {
            assert!(components(wrong).is_err());
        }
    }
}

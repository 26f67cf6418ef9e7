//! Reading tar archives: what an entry says of its file, and its data. The records of pax may have
//! any bytes, newlines too, as binary attributes do.

use std::io::Read;

use tar::{EntryType, Header};
use ubtrfs::format::items::Timespec;

use crate::error::{Error, Result, outside};
use crate::sparse::{SparseMap, SparseRecords, Taken};

/// Bytes of a block of an archive.
const BLOCK: u64 = 512;
/// Bytes of records and long names that an entry may have: the kernel's xattrs have less.
const MOST_RECORDS: u64 = 16 << 20;
/// Ranges of data that a sparse file may have.
const MOST_RANGES: u64 = 1 << 20;
/// What compressed archives begin with.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ", "xz"), (b"BZh", "bzip2")];

/// An archive that is read from its beginning to its end.
#[derive(Debug)]
pub struct ArchiveReader<R> {
    reader: R,
    /// Bytes of the entry's data and padding that have not been read.
    data: u64,
    padding: u64,
    is_begun: bool,
}

impl<R: Read> ArchiveReader<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, data: 0, padding: 0, is_begun: false }
    }

    /// The next entry; none at the end.
    pub fn next(&mut self) -> Result<Option<Described>> {
        let (mut records, mut path, mut target) = (Vec::new(), None, None);
        loop {
            self.skip()?;
            let mut header = Header::new_old();
            self.fill(header.as_mut_bytes())?;
            let bytes = header.as_bytes();
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            self.check(&header)?;
            let kind = header.entry_type();
            let size = header.entry_size().map_err(broken)?;
            match kind {
                EntryType::XHeader => records = parse_records(&self.whole(size)?)?,
                EntryType::XGlobalHeader => self.begin_data(size),
                EntryType::GNULongName => path = Some(until_zero(&self.whole(size)?).to_vec()),
                EntryType::GNULongLink => target = Some(until_zero(&self.whole(size)?).to_vec()),
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
            std::io::ErrorKind::UnexpectedEof => Error::Refused("the archive has no end: it has been cut".into()),
            _ => broken(error),
        })
    }

    fn check(&mut self, header: &Header) -> Result<()> {
        let bytes = header.as_bytes();
        let sum: u32 = bytes[..148].iter().chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum();
        if header.cksum().is_ok_and(|recorded| recorded == sum + 8 * u32::from(b' ')) {
            self.is_begun = true;
            return Ok(());
        }
        let by = COMPRESSED.iter().find(|(magic, _)| !self.is_begun && bytes.starts_with(magic));
        Err(Error::Refused(match by {
            Some((_, by)) => format!("the archive is compressed: '{by} -dc ARCHIVE | ubtrfs import …' reads it"),
            None if self.is_begun => "the archive is damaged".into(),
            None => "this is no tar archive".into(),
        }))
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
        if size > MOST_RECORDS {
            return Err(Error::Refused("the archive has an entry with too many records".into()));
        }
        self.begin_data(size);
        let mut buf = vec![0; size as usize];
        self.read_data(&mut buf)?;
        Ok(buf)
    }

    fn describe(
        &mut self,
        header: &Header,
        records: &[(Vec<u8>, Vec<u8>)],
        path: Option<Vec<u8>>,
        target: Option<Vec<u8>>,
    ) -> Result<Described> {
        let mut of = Described::of(header)?;
        of.path = path.unwrap_or(of.path);
        of.target = target.unwrap_or(of.target);
        let mut size = header.entry_size().map_err(broken)?;
        let mut sparse = SparseRecords::default();
        let mut sparse_name = None;
        for (key, value) in records {
            let wrong = || {
                let key = String::from_utf8_lossy(key);
                Error::Refused(format!("the archive has a record '{key}' with a value that it can't have"))
            };
            let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
            let id = || number().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong);
            match key.as_slice() {
                // Without a value a record takes back what others say, and the header's counts.
                b"path" | b"linkpath" if value.is_empty() => {}
                b"path" => of.path.clone_from(value),
                b"linkpath" => of.target.clone_from(value),
                b"mtime" => of.mtime = parse_time(value).ok_or_else(wrong)?,
                b"atime" => of.atime = Some(parse_time(value).ok_or_else(wrong)?),
                b"uid" => of.uid = id()?,
                b"gid" => of.gid = id()?,
                b"size" => size = number().ok_or_else(wrong)?,
                _ => match sparse.take(key, value) {
                    Taken::Name => sparse_name = Some(value),
                    Taken::Wrong => return Err(wrong()),
                    Taken::Done => {}
                    Taken::Other => {
                        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                            of.xattrs.push((name.to_vec(), value.clone()));
                        }
                    }
                },
            }
        }
        // The path is another one then, for programs that know nothing of holes.
        if let Some(name) = sparse_name {
            of.path.clone_from(name);
        }
        // Of links and directories the size says nothing.
        if !of.has_data() {
            size = 0;
        }
        of.size = size;
        of.ranges = vec![(0, size)];
        if of.kind == EntryType::GNUSparse {
            self.old_map(header, &mut of)?;
        }
        self.begin_data(size);
        if let Some((real_size, map)) = sparse.finish().map_err(|()| malformed())? {
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
        // Old archives mark directories so.
        if of.kind == EntryType::Regular && of.path.ends_with(b"/") {
            of.kind = EntryType::Directory;
        }
        Ok(of)
    }

    /// The map of a sparse file in GNU tar's old format: in the header and in blocks after it.
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
            if blocks > MOST_RANGES / 21 {
                return Err(malformed());
            }
        }
        Ok(())
    }

    /// The map of a sparse file in the format 1.0 of GNU tar: numbers in lines before the data,
    /// then zeros to the end of the block.
    fn map(&mut self) -> Result<Vec<(u64, u64)>> {
        let (mut block, mut at) = ([0; BLOCK as usize], BLOCK as usize);
        let mut number = || -> Result<u64> {
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
        let count = number()?;
        if count > MOST_RANGES {
            return Err(malformed());
        }
        (0..count).map(|_| Ok((number()?, number()?))).collect()
    }

    /// Reads what follows the end, so that it is not left in a pipe.
    pub fn finish(mut self) -> Result<()> {
        std::io::copy(&mut self.reader, &mut std::io::sink()).map(drop).map_err(broken)
    }
}

fn broken(error: std::io::Error) -> Error {
    outside("the archive")(error)
}

fn malformed() -> Error {
    Error::Refused("the archive has a sparse file whose map is malformed".into())
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Records `LENGTH KEY=VALUE\n`; values may have any bytes.
fn parse_records(mut bytes: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let parsed = (|| {
            let blank = bytes.iter().position(|byte| *byte == b' ')?;
            let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
            let record = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            Some((len, record[..equals].to_vec(), record[equals + 1..].to_vec()))
        })();
        let (len, key, value) = parsed.ok_or_else(|| Error::Refused("the archive has a malformed record".into()))?;
        records.push((key, value));
        bytes = &bytes[len..];
    }
    Ok(records)
}

/// What an entry's header and its records say.
#[derive(Debug)]
pub struct Described {
    pub path: Vec<u8>,
    pub kind: EntryType,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub mtime: Timespec,
    pub atime: Option<Timespec>,
    pub target: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The size of the file.
    pub size: u64,
    /// Where the file has the data that follows: offset and length, in order.
    pub ranges: Vec<(u64, u64)>,
}

impl Described {
    fn of(header: &Header) -> Result<Self> {
        let id = |id: std::io::Result<u64>| {
            let id = id.map_err(broken)?;
            u32::try_from(id).map_err(|_| Error::Refused(format!("the archive has an owner with the number {id}")))
        };
        let kind = header.entry_type();
        let number =
            |part: std::io::Result<Option<u32>>| -> Result<u64> { Ok(u64::from(part.map_err(broken)?.unwrap_or(0))) };
        let rdev = if matches!(kind, EntryType::Char | EntryType::Block) {
            let (major, minor) = (number(header.device_major())?, number(header.device_minor())?);
            if major >= 1 << 12 || minor >= 1 << 20 {
                return Err(Error::Refused(format!("the archive has a device with the numbers {major}, {minor}")));
            }
            major << 20 | minor
        } else {
            0
        };
        Ok(Self {
            path: header.path_bytes().into_owned(),
            kind,
            mode: header.mode().map_err(broken)? & 0o7777,
            uid: id(header.uid())?,
            gid: id(header.gid())?,
            rdev,
            mtime: Timespec { sec: header.mtime().map_err(broken)?, nsec: 0 },
            atime: None,
            target: header.link_name_bytes().map_or_else(Vec::new, std::borrow::Cow::into_owned),
            xattrs: Vec::new(),
            size: 0,
            ranges: Vec::new(),
        })
    }

    /// Whether data follows the header.
    fn has_data(&self) -> bool {
        use EntryType::{Block, Char, Directory, Fifo, Link, Symlink};
        !matches!(self.kind, Block | Char | Directory | Fifo | Link | Symlink)
    }

    /// The type in the mode of an inode.
    pub fn type_bits(&self) -> Option<u32> {
        Some(match self.kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => 0o100_000,
            EntryType::Directory => 0o040_000,
            EntryType::Symlink => 0o120_000,
            EntryType::Char => 0o020_000,
            EntryType::Block => 0o060_000,
            EntryType::Fifo => 0o010_000,
            _ => return None,
        })
    }
}

/// The names of a path in an archive. As with tar(1), it begins in the directory that is written
/// to, also with a slash before it.
pub fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if names.contains(&&b".."[..]) {
        let path = String::from_utf8_lossy(path);
        return Err(Error::Refused(format!("the archive's entry {path} has '..' in its path")));
    }
    if path.contains(&0) {
        return Err(Error::Refused("the archive has a name with a zero byte".into()));
    }
    Ok(names)
}

/// A time in a record of pax: a decimal number of seconds.
fn parse_time(text: &[u8]) -> Option<Timespec> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = seconds.parse().ok().filter(|seconds| *seconds >= 0)?;
    let nanoseconds: i64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let (sec, nsec) = match (is_negative, nanoseconds) {
        (false, nanoseconds) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, nanoseconds) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    };
    Some(Timespec { sec: sec as u64, nsec: nsec as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_records_are_read_to_the_nanosecond() {
        for (text, sec, nsec) in [
            ("0", 0, 0),
            ("12.5", 12, 500_000_000),
            ("1700000000.123456789123", 1_700_000_000, 123_456_789),
            ("-1.25", -2, 750_000_000),
            ("-3", -3, 0),
        ] {
            let expected = Timespec { sec: i64::from(sec) as u64, nsec };
            assert_eq!(parse_time(text.as_bytes()), Some(expected), "{text}");
        }
        for wrong in ["", "x", "1.x", "--1", "1e9", "99999999999999999999"] {
            assert_eq!(parse_time(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn paths_lead_nowhere_else() {
        assert_eq!(components(b"/etc//./passwd").unwrap(), [&b"etc"[..], b"passwd"]);
        assert!(components(b"./").unwrap().is_empty());
        for wrong in [&b"../x"[..], b"a/../b", b"..", b"a\0b"] {
            assert!(components(wrong).is_err());
        }
    }
}

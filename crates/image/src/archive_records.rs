//! Reads the records of a pax header, which describe a file. Their values may have any bytes, also
//! newlines, since binary attributes do.
//!
//! Besides those of POSIX there are records of star (`SCHILY.`), libarchive (`LIBARCHIVE.`) and GNU
//! tar (`GNU.`, and `RHT.` for labels). Records that describe rights are taken or refused, and
//! never left out silently.

use std::collections::BTreeMap;

use ubtrfs::format::items::{InodeFlags, Timespec};
use ubtrfs::xattr_names::SELINUX;

use crate::acl_text;
use crate::archive_entry::{Described, Record};
use crate::error::{Error, Result};
use crate::sparse::{SparseRecords, Taken};

const ACL_ACCESS: &[u8] = ubtrfs::acl::ACCESS;
const ACL_DEFAULT: &[u8] = ubtrfs::acl::DEFAULT;

/// The most records of one entry, since each takes memory besides its bytes. Sparse files have two
/// for each range.
const MAX_RECORDS: usize = 1 << 18;

/// Parses records of the form `LENGTH KEY=VALUE\n`; values may have any bytes.
pub fn parse(mut bytes: &[u8]) -> Result<Vec<Record>> {
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
        if records.len() >= MAX_RECORDS {
            return Err(Error::Refused("the archive has an entry with too many records".into()));
        }
        records.push((key, value));
        bytes = &bytes[len..];
    }
    Ok(records)
}

/// The contents of records that can be applied to the file only when all of them are known.
#[derive(Default)]
pub struct Additions {
    pub size: Option<u64>,
    pub sparse: SparseRecords,
    /// The name of a sparse file. Its path is another one, for programs that don't support holes.
    sparse_name: Option<Vec<u8>>,
    /// Extended attributes by name, since an entry may have very many.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Attributes of libarchive's records, which star's records override.
    others: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Attributes by ACLs in text, which override all others.
    acls: BTreeMap<Vec<u8>, Vec<u8>>,
    major: Option<u64>,
    minor: Option<u64>,
}

impl Additions {
    /// Takes a record.
    pub fn take(&mut self, of: &mut Described, key: &[u8], value: &[u8]) -> Result<()> {
        let wrong = || {
            let key = String::from_utf8_lossy(key);
            Error::Refused(format!("the archive has a record '{key}' with a value that it can't have"))
        };
        let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok()).ok_or_else(wrong);
        let id = || u32::try_from(number()?).ok().filter(|id| *id != u32::MAX).ok_or_else(wrong);
        let time = || parse_time(value).ok_or_else(wrong);
        match key {
            b"SCHILY.acl.ace" | b"SCHILY.acl.nfs4" => {
                return Err(about(of, "has an ACL of NFSv4, which btrfs can't have"));
            }
            b"GNU.volume.offset" => return Err(about(of, "begins in another part of the archive")),
            // A record without a value cancels other records, so that the header applies.
            _ if value.is_empty() && !key.starts_with(b"SCHILY.xattr.") => {}
            b"path" => of.path = value.to_vec(),
            b"linkpath" => of.target = value.to_vec(),
            b"mtime" => of.mtime = time()?,
            b"atime" => of.atime = Some(time()?),
            b"LIBARCHIVE.creationtime" => of.btime = Some(time()?),
            b"uid" => of.uid = id()?,
            b"gid" => of.gid = id()?,
            b"size" => self.size = Some(number()?),
            b"SCHILY.devmajor" => self.major = Some(number()?),
            b"SCHILY.devminor" => self.minor = Some(number()?),
            b"SCHILY.fflags" => of.flags = flags(value),
            b"SCHILY.acl.access" => self.take_acl(of, ACL_ACCESS, value)?,
            b"SCHILY.acl.default" => self.take_acl(of, ACL_DEFAULT, value)?,
            // The kernel stores labels with a zero byte at the end.
            b"RHT.security.selinux" => {
                let mut label = value.to_vec();
                if !label.ends_with(b"\0") {
                    label.push(0);
                }
                self.xattrs.insert(SELINUX.to_vec(), label);
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.insert(unescaped(name, &[b"3D", b"25"]), value.to_vec());
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    self.others.insert(unescaped(name, &[]), base64(value).ok_or_else(wrong)?);
                } else {
                    match self.sparse.take(key, value) {
                        Taken::Name => self.sparse_name = Some(value.to_vec()),
                        Taken::Wrong => return Err(wrong()),
                        Taken::Done | Taken::Other => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn take_acl(&mut self, of: &Described, name: &[u8], text: &[u8]) -> Result<()> {
        let list = acl_text::parse(text).map_err(|why| about(of, &format!("has an ACL that can't be set: {why}")))?;
        if let Some(list) = list {
            self.acls.insert(name.to_vec(), list.to_bytes());
        }
        Ok(())
    }

    /// Applies the collected contents to the file.
    pub fn finish(&mut self, of: &mut Described) -> Result<()> {
        let mut xattrs = std::mem::take(&mut self.others);
        xattrs.append(&mut self.xattrs);
        xattrs.append(&mut self.acls);
        of.xattrs = xattrs.into_iter().collect();
        if let Some(name) = self.sparse_name.take() {
            of.path = name;
        }
        if self.major.is_some() || self.minor.is_some() {
            let major = self.major.unwrap_or(of.rdev >> 20);
            let minor = self.minor.unwrap_or(of.rdev & 0xf_ffff);
            if major >= 1 << 12 || minor >= 1 << 20 {
                return Err(Error::Refused(format!("the archive has a device with the numbers {major}, {minor}")));
            }
            of.rdev = major << 20 | minor;
        }
        Ok(())
    }
}

fn about(of: &Described, why: &str) -> Error {
    Error::Refused(format!("the archive's entry {} {why}", String::from_utf8_lossy(&of.path).escape_debug()))
}

/// Decodes the escapes in a key: `%` and two digits. GNU tar has only the `known` escapes, and
/// others stand for themselves; if `known` is empty, all are decoded.
fn unescaped(mut name: &[u8], known: &[&[u8]]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some((first, rest)) = name.split_first() {
        let digits = rest.get(..2).filter(|digits| *first == b'%' && (known.is_empty() || known.contains(digits)));
        let byte = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(byte.unwrap_or(*first));
        name = if byte.is_some() { &rest[2..] } else { rest };
    }
    plain
}

/// Decodes base64, with padding or without.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(&text);
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for group in text.chunks(4) {
        let bits = group.iter().try_fold(0_u32, |bits, digit| {
            let digit = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            Some(bits << 6 | u32::from(digit))
        })?;
        match group.len() {
            4 => bytes.extend(&bits.to_be_bytes()[1..]),
            3 => bytes.extend(&(bits << 6).to_be_bytes()[1..3]),
            2 => bytes.extend(&(bits << 12).to_be_bytes()[1..2]),
            _ => return None,
        }
    }
    Some(bytes)
}

/// Parses libarchive's names of inode flags. Names of other systems are left out.
fn flags(value: &[u8]) -> u64 {
    let names = value.split(|byte| matches!(byte, b',' | b' ' | b'\t'));
    names.fold(0, |flags, name| {
        flags
            | match name {
                b"sappnd" | b"sappend" | b"uappnd" | b"uappend" => InodeFlags::APPEND,
                b"schg" | b"schange" | b"simmutable" | b"uchg" | b"uchange" | b"uimmutable" => InodeFlags::IMMUTABLE,
                b"nodump" => InodeFlags::NODUMP,
                b"noatime" => InodeFlags::NOATIME,
                b"dirsync" => InodeFlags::DIRSYNC,
                b"sync" => InodeFlags::SYNC,
                _ => 0,
            }
    })
}

/// Parses a time in a record: a decimal number of seconds.
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
    fn escapes_are_those_of_who_wrote_them() {
        let gnu = |name: &str| unescaped(name.as_bytes(), &[b"3D", b"25"]);
        assert_eq!(gnu("user.a%3Db%25%2Fc%3d%"), b"user.a=b%%2Fc%3d%");
        assert_eq!(unescaped(b"user.a%2Fb%zz%4", &[]), b"user.a/b%zz%4");
    }

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for (text, bytes) in
            [("", &b""[..]), ("AA==", b"\0"), ("AA", b"\0"), ("AQI=", b"\x01\x02"), ("/+8x", b"\xff\xef1")]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for wrong in ["A", "AAAAA", "A*==", "===="] {
            assert_eq!(base64(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn names_of_flags_are_libarchives() {
        assert_eq!(flags(b"nodump,schg"), InodeFlags::NODUMP | InodeFlags::IMMUTABLE);
        assert_eq!(flags(b"uarch"), 0);
    }
}

//! The mount table of this process.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is of interest of a mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number, unique while it is mounted.
    pub id: u64,
    /// Where.
    pub path: PathBuf,
}

/// All mounts, the later above the earlier.
pub fn lines() -> Vec<Line> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// The mount that is seen at `path`.
pub fn topmost(path: &Path) -> Option<Line> {
    lines().into_iter().rev().find(|line| line.path == path)
}

fn parse(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let path = unescape(fields.nth(3)?);
    Some(Line { id, path: PathBuf::from(OsStr::from_bytes(&path)) })
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescape(mut field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    while let [first, rest @ ..] = field {
        let octal = if *first == b'\\' { rest.get(..3) } else { None };
        let code = octal.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        out.push(code.unwrap_or(*first));
        field = if code.is_some() { rest.get(3..).unwrap_or_default() } else { rest };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line() {
        let line = br"36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(parse(line), Some(Line { id: 36, path: "/mnt two".into() }));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 98:0 /"), None);
        assert_eq!(unescape(br"a\13"), br"a\13");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(topmost("/".as_ref()).is_some());
    }
}

//! Formats values for people: times, modes, names.

use std::fmt::Write;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ubtrfs_format::items::Timespec;
use ubtrfs_format::posix::{self, SECONDS_PER_DAY};
pub use ubtrfs_image::harmless;
use ubtrfs_image::misleads;

/// Returns a time in UTC, with nanoseconds.
pub fn time(at: Timespec) -> String {
    format!("{}.{:09} UTC", clock(at), at.nsec)
}

/// Returns a time in the zone of the user (`TZ`, `/etc/localtime`), in whole seconds, with its
/// distance from UTC.
pub fn local(at: Timespec) -> String {
    let offset = Timestamp::from_second(at.sec.cast_signed()).map(|time| TimeZone::system().to_offset(time).seconds());
    // An image may contain a time that no calendar has.
    let Ok(offset) = offset else { return seconds(at) };
    let there = Timespec { sec: at.sec.wrapping_add_signed(offset.into()), nsec: 0 };
    let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs() / 60);
    format!("{} {sign}{:02}{:02}", clock(there), minutes / 60, minutes % 60)
}

/// Returns a time in UTC, in whole seconds.
pub fn seconds(at: Timespec) -> String {
    format!("{} UTC", clock(at))
}

fn clock(at: Timespec) -> String {
    let seconds = at.sec.cast_signed();
    let (days, rest) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Returns the year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
/// Years are counted from March, so that the leap day is the last day of a year; 400 years have
/// 146,097 days.
fn date(days: i64) -> (i64, i64, i64) {
    const CYCLE: i64 = 146_097;
    // Days since March 1 of the year 0.
    let days = days + 719_468;
    let (cycle, day) = (days.div_euclid(CYCLE), days.rem_euclid(CYCLE));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (cycle * 400 + year + next, month, day)
}

/// Returns a mode as `ls -l` shows it.
pub fn mode(mode: u32) -> String {
    let kind = match mode & posix::S_IFMT {
        posix::S_IFREG => '-',
        posix::S_IFDIR => 'd',
        posix::S_IFLNK => 'l',
        posix::S_IFCHR => 'c',
        posix::S_IFBLK => 'b',
        posix::S_IFIFO => 'p',
        posix::S_IFSOCK => 's',
        _ => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, small, large) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => small,
            (false, true) => large,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Returns a name or value for people: characters that could confuse a terminal or a reader are
/// escaped.
pub fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' | '"' => text.extend(['\\', c]),
                c if misleads(c) => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns a path for people, on a single line.
pub fn path(path: &Path) -> String {
    harmless(&path.to_string_lossy())
}

/// Returns bytes as hexadecimal digits, abbreviated if there are many.
pub fn hex(bytes: &[u8]) -> String {
    const MAX: usize = 32;
    let mut shown = String::new();
    for byte in bytes.iter().take(MAX) {
        let _ = write!(shown, "{byte:02x}");
    }
    if bytes.len() > MAX { format!("{shown}… ({} bytes)", bytes.len()) } else { shown }
}

/// Returns all bytes as hexadecimal digits.
pub fn all_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sec: i64, nsec: u32) -> String {
        time(Timespec { sec: sec.cast_unsigned(), nsec })
    }

    #[test]
    fn times_are_right() {
        assert_eq!(at(0, 0), "1970-01-01 00:00:00.000000000 UTC");
        assert_eq!(at(951_782_400, 1), "2000-02-29 00:00:00.000000001 UTC");
        assert_eq!(at(1_709_251_199, 0), "2024-02-29 23:59:59.000000000 UTC");
        assert_eq!(at(-1, 0), "1969-12-31 23:59:59.000000000 UTC");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01 00:00:00.000000000 UTC");
        // An image may contain any time.
        let _ = (at(i64::MAX, u32::MAX), at(i64::MIN, 0));
    }

    #[test]
    fn modes_are_right() {
        assert_eq!(mode(0o100_644), "-rw-r--r--");
        assert_eq!(mode(0o041_777), "drwxrwxrwt");
        assert_eq!(mode(0o106_644), "-rwSr-Sr--");
        assert_eq!(mode(0o120_777), "lrwxrwxrwx");
    }

    #[test]
    fn names_are_harmless() {
        assert_eq!(bytes("ä\x1b[31m\n\"\\".as_bytes()), "ä\\u{1b}[31m\\n\\\"\\\\");
        assert_eq!(bytes(b"a\xffb"), "a\\xffb");
        assert_eq!(harmless("a\u{202e}b\u{2028}"), "a\\u{202e}b\\u{2028}");
        assert_eq!(harmless("\"ä\x1b[31m\u{9b}"), "\"ä\\u{1b}[31m\\u{9b}");
        assert_eq!(hex(&[0xab; 33]), format!("{}… (33 bytes)", "ab".repeat(32)));
    }
}

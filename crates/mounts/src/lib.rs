//! Reads the tables of mounts in `/proc`, by which the kernel shows a process what is mounted
//! where.
//!
//! No other crate reads them (`proc_pid_mountinfo(5)`).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The table of this process's own mount namespace.
pub const TABLE: &str = "/proc/self/mountinfo";

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The number of the mount. Another mount may get it when this one has ended.
    pub number: u64,
    /// The device number, major and minor.
    pub device: (u32, u32),
    /// The mount point.
    pub point: PathBuf,
    /// The options of the mount itself.
    pub own_options: Vec<String>,
    /// The type, such as `fuse.ubtrfs`.
    pub kind: String,
    /// What is mounted, such as `/dev/loop0`.
    pub source: PathBuf,
    /// Whether the file system is read-only, through whatever mount.
    pub read_only: bool,
    /// The options of the mount and of the file system, in the form of the table.
    pub options: Vec<String>,
    /// The user who mounted it, if the options say so.
    pub user: Option<u32>,
    /// The user's group.
    pub group: Option<u32>,
}

impl Mounted {
    /// Returns whether ubtrfs mounted it.
    pub fn is_ours(&self) -> bool {
        matches!(self.kind.as_str(), "fuse.ubtrfs" | "fuseblk.ubtrfs")
    }

    /// Returns whether it is a volume of btrfs, mounted by ubtrfs or by the kernel's driver.
    pub fn is_btrfs(&self) -> bool {
        self.is_ours() || self.kind == "btrfs"
    }

    /// Returns whether the mount itself has this option, whether or not other mounts of the file
    /// system have it.
    pub fn has_own(&self, option: &str) -> bool {
        self.own_options.iter().any(|own| own == option)
    }

    /// Returns whether another program than ubtrfs mounted it from `device`. FUSE mounts of
    /// ordinary users don't count, since a user can give such a mount any source.
    pub fn is_of_others(&self, device: &Path) -> bool {
        let is_fuse = self.kind == "fuse" || self.kind.starts_with("fuse.");
        let is_users = is_fuse && self.user != Some(0);
        self.source == device && !self.is_ours() && !is_users
    }
}

/// All mounts, in the order of the table.
pub fn all() -> io::Result<Vec<Mounted>> {
    read(Path::new(TABLE))
}

/// All mounts that a process sees. `process` is its number, or `self`.
pub fn seen_by(process: &str) -> io::Result<Vec<Mounted>> {
    read(&Path::new("/proc").join(process).join("mountinfo"))
}

fn read(table: &Path) -> io::Result<Vec<Mounted>> {
    Ok(std::fs::read(table)?.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let words = |list: &[u8]| text(list).split(',').map(Into::into).collect::<Vec<String>>();
    let mut fields = line.split(|byte| *byte == b' ');
    let number = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    let point = path(fields.nth(1)?);
    let own_options = words(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = text(rest.next()?);
    let source = path(rest.next()?);
    let options = words(rest.next().unwrap_or_default());
    let number_of =
        |name: &str| options.iter().find_map(|option| option.strip_prefix(name)).and_then(|it| it.parse().ok());
    Some(Mounted {
        number,
        device: (major.parse().ok()?, minor.parse().ok()?),
        point,
        kind,
        source,
        read_only: options.iter().any(|option| option == "ro"),
        user: number_of("user_id="),
        group: number_of("group_id="),
        options: [own_options.as_slice(), &options].concat(),
        own_options,
    })
}

/// Undoes the table's escapes: a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(byte) = field.get(at) {
        let digits = field.get(at + 1..at + 4).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match digits {
            Some(digits) if *byte == b'\\' => {
                bytes.push(digits.iter().fold(0_u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                at += 4;
            }
            _ => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read() {
        let line = b"74 31 0:52 / /mnt/a\\040b rw,nosuid,nodev,relatime shared:38 - fuse.ubtrfs /x.img rw,user_id=7,group_id=8";
        let mounted = parse(line).unwrap();
        assert_eq!(mounted.point, Path::new("/mnt/a b"));
        assert_eq!(mounted.source, Path::new("/x.img"));
        assert_eq!(mounted.number, 74);
        assert!(mounted.has_own("nodev") && !mounted.has_own("user_id=7"));
        assert_eq!((mounted.device, mounted.user, mounted.group), ((0, 52), Some(7), Some(8)));
        assert!(mounted.is_ours() && !mounted.read_only);
        assert!(["nodev", "user_id=7"].iter().all(|option| mounted.options.contains(&(*option).into())));
        let other = parse(b"29 1 8:1 / / rw - ext4 /dev/root rw").unwrap();
        assert!(!other.is_ours());
        assert_eq!(other.user, None);
        assert!(parse(b"29 1 8:1 / / rw - ext4 /dev/root ro,errors=continue").unwrap().read_only);
        assert_eq!(parse(b"nonsense"), None);
        assert!(other.is_of_others(Path::new("/dev/root")) && !other.is_of_others(Path::new("/dev/sda")));
        let named = |kind: &str, user: u32| {
            let line = format!("74 31 0:52 / /mnt rw - {kind} /dev/loop0 rw,user_id={user}");
            parse(line.as_bytes()).unwrap().is_of_others(Path::new("/dev/loop0"))
        };
        assert_eq!(["fuse.foo", "fuse", "fuseblk"].map(|kind| named(kind, 1000)), [false, false, true]);
        assert_eq!(["fuse.foo", "fuse", "fuse.ubtrfs"].map(|kind| named(kind, 0)), [true, true, false]);
        assert_eq!(parse(b""), None);
    }
}

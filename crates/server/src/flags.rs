//! Flags of inodes: what `lsattr` shows and `chattr` sets, by both of the ioctls that there are for it.
//!
//! The kernel asks who may set them before it comes here. Compression is kept as the kernel's btrfs keeps it: a flag of the
//! inode, and the property that says how.

use ubtrfs::{InodeId, SETTABLE_FLAGS, XattrMode};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_fuse::Errno;
use ubtrfs_fuse::reply::ReplyIoctl;
use ubtrfs_fuse::request::Ioctl;

use crate::properties::COMPRESSION;
use crate::shared::{Shared, errno};

const GETFLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
const SETFLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;

/// Bytes of the argument of `FSGETXATTR`.
const FSXATTR_SIZE: usize = 28;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// A flag as the format, `GETFLAGS` and `FSGETXATTR` (0 where that does not know it) have it.
struct Names {
    ours: u64,
    flag: u32,
    xflag: u32,
}

const NAMES: [Names; 9] = [
    Names { ours: InodeFlags::SYNC, flag: 0x8, xflag: 0x20 },
    Names { ours: InodeFlags::IMMUTABLE, flag: 0x10, xflag: 0x8 },
    Names { ours: InodeFlags::APPEND, flag: 0x20, xflag: 0x10 },
    Names { ours: InodeFlags::NODUMP, flag: 0x40, xflag: 0x80 },
    Names { ours: InodeFlags::NOATIME, flag: 0x80, xflag: 0x40 },
    Names { ours: InodeFlags::DIRSYNC, flag: 0x1_0000, xflag: 0 },
    Names { ours: InodeFlags::NODATACOW, flag: 0x80_0000, xflag: 0 },
    Names { ours: InodeFlags::COMPRESS, flag: 0x4, xflag: 0 },
    Names { ours: InodeFlags::NOCOMPRESS, flag: 0x400, xflag: 0 },
];

/// What `chattr +c` makes of the property.
const DEFAULT_COMPRESSION: &[u8] = b"zlib";

fn shown(ours: u64, as_what: impl Fn(&Names) -> u32) -> u32 {
    NAMES.iter().filter(|names| ours & names.ours != 0).map(as_what).fold(0, |all, bit| all | bit)
}

/// The flags of the format that these stand for. `EOPNOTSUPP` if one stands for none.
fn meant(bits: u32, as_what: impl Fn(&Names) -> u32) -> Result<u64, Errno> {
    let known = NAMES.iter().map(&as_what).fold(0, |all, bit| all | bit);
    if bits & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(NAMES.iter().filter(|names| bits & as_what(names) != 0).map(|names| names.ours).fold(0, |all, bit| all | bit))
}

/// The 32-bit word at this place of an argument.
fn word(data: &[u8], number: usize) -> Result<u32, Errno> {
    data.get(number * 4..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(Errno::INVAL)
}

/// Whether an ioctl sets flags, which changes the ctime.
fn is_change(command: u32) -> bool {
    SETFLAGS.contains(&command) || command == FSSETXATTR
}

impl Shared {
    /// Whether an ioctl is about flags; then it is answered.
    pub(crate) fn flags_ioctl(&self, id: InodeId, what: &Ioctl<'_>) -> Option<Result<Vec<u8>, Errno>> {
        Some(match what.command {
            command if GETFLAGS.contains(&command) => self.flags_of(id).map(|flags| {
                let mut bytes = shown(flags, |names| names.flag).to_ne_bytes().to_vec();
                bytes.resize((what.reply_size as usize).min(8), 0);
                bytes
            }),
            command if SETFLAGS.contains(&command) => {
                word(what.data, 0).and_then(|bits| self.set_flags(id, bits)).map(|()| Vec::new())
            }
            FSGETXATTR => self.flags_of(id).map(|flags| {
                let mut bytes = shown(flags, |names| names.xflag).to_ne_bytes().to_vec();
                bytes.resize(FSXATTR_SIZE, 0);
                bytes
            }),
            FSSETXATTR => self.set_extended_flags(id, what.data).map(|()| Vec::new()),
            _ => return None,
        })
    }

    /// Answers an ioctl that is about flags.
    pub(crate) fn answer_flags(&self, node: u64, what: &Ioctl<'_>, result: Result<Vec<u8>, Errno>, reply: ReplyIoctl) {
        if result.is_ok() && is_change(what.command) {
            self.attributes_changed(node);
        }
        match result {
            Ok(data) => reply.result(0, &data),
            Err(errno) => reply.error(errno),
        }
    }

    /// Whether an ioctl forbids changes of a file that could be changed so far.
    pub(crate) fn begins_to_forbid(&self, id: InodeId, what: &Ioctl<'_>) -> bool {
        let wanted = match what.command {
            command if SETFLAGS.contains(&command) => {
                word(what.data, 0).and_then(|bits| meant(bits, |names| names.flag))
            }
            FSSETXATTR => word(what.data, 0).and_then(|bits| meant(bits, |names| names.xflag)),
            _ => return false,
        };
        match (wanted, self.flags_of(id)) {
            (Ok(wanted), Ok(old)) => wanted & !old & (InodeFlags::IMMUTABLE | InodeFlags::APPEND) != 0,
            _ => false,
        }
    }

    /// The flags of an inode, as the format has them.
    pub(crate) fn flags_of(&self, id: InodeId) -> Result<u64, Errno> {
        self.engine.flags(id).map_err(|error| errno(&error))
    }

    /// `SETFLAGS`: all flags that there are.
    fn set_flags(&self, id: InodeId, bits: u32) -> Result<(), Errno> {
        let attributes = self.engine.attributes(id).map_err(|error| errno(&error))?;
        let mut wanted = meant(bits, |names| names.flag)?;
        if attributes.mode & S_IFMT != S_IFDIR {
            wanted &= !InodeFlags::DIRSYNC;
        }
        self.engine.set_flags(id, wanted).map_err(|error| errno(&error))?;
        let has_property = self.xattr(id, COMPRESSION)?.is_some();
        let restricted = wanted & (InodeFlags::IMMUTABLE | InodeFlags::APPEND) != 0;
        match (wanted & InodeFlags::COMPRESS != 0, has_property) {
            _ if restricted => Ok(()),
            (true, false) => self.engine.set_xattr(id, COMPRESSION, DEFAULT_COMPRESSION, XattrMode::Set),
            (false, true) => self.engine.remove_xattr(id, COMPRESSION),
            _ => Ok(()),
        }
        .map_err(|error| errno(&error))
    }

    /// `FSSETXATTR`: the flags that it knows; the others stay.
    fn set_extended_flags(&self, id: InodeId, data: &[u8]) -> Result<(), Errno> {
        // Extent sizes and projects are nothing that btrfs has.
        if [1, 3, 4].into_iter().map(|number| word(data, number)).any(|word| word != Ok(0)) {
            return Err(Errno::OPNOTSUPP);
        }
        let known = NAMES.iter().filter(|names| names.xflag != 0).map(|names| names.ours).fold(0, |all, bit| all | bit);
        let others = self.flags_of(id)? & SETTABLE_FLAGS & !known;
        let wanted = meant(word(data, 0)?, |names| names.xflag)? | others;
        self.engine.set_flags(id, wanted).map_err(|error| errno(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_the_same_there_and_back() {
        for names in &NAMES {
            assert_eq!(meant(shown(names.ours, |names| names.flag), |names| names.flag), Ok(names.ours));
            if names.xflag != 0 {
                assert_eq!(meant(shown(names.ours, |names| names.xflag), |names| names.xflag), Ok(names.ours));
            }
        }
        assert_eq!(meant(1 << 31, |names| names.flag), Err(Errno::OPNOTSUPP));
        assert_eq!(NAMES.iter().fold(0, |all, names| all | names.ours), SETTABLE_FLAGS);
    }

    #[test]
    fn short_arguments_are_errors() {
        assert_eq!(word(&[1, 2, 3], 0), Err(Errno::INVAL));
        assert_eq!(word(&[0; 28], 7), Err(Errno::INVAL));
    }
}

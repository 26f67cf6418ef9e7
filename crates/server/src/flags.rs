//! Flags of inodes, which `lsattr` shows and `chattr` sets, by both pairs of ioctls.
//!
//! The server checks the permission to set them (invariant 27), since not all kernels check it
//! before they send the request. Kernels that do check it know whether the mount is read-only and
//! who owns the file there, which the server can't find out; so it serves no ioctl number that
//! bypasses their check. Compression is stored as by the kernel's btrfs: as a flag of the inode,
//! and a property with the algorithm.

use ubtrfs::xattr_names::COMPRESSION;
use ubtrfs::{Compression, CompressionMode, Flagged, InodeId, SETTABLE_FLAGS};
use ubtrfs_format::ioctl::{FSGETXATTR, FSSETXATTR, GETFLAGS, GETFLAGS_32, SETFLAGS, SETFLAGS_32, size_of};
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_fuse::abi::flags::IoctlFlags;
use ubtrfs_fuse::reply::ReplyIoctl;
use ubtrfs_fuse::request::Ioctl;
use ubtrfs_fuse::{Caller, Capabilities, Errno};

use crate::privileges::{Capability, Powers};
use crate::shared::{Shared, errno};

/// Bytes of the argument of `FSGETXATTR`.
const FSXATTR_SIZE: usize = size_of(FSGETXATTR);

/// A flag with its bits in the format, in `GETFLAGS` and in `FSGETXATTR` (0 if that does not have
/// it).
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

/// The most bytes of the property's value.
const PROPERTY_ROOM: usize = 32;
/// The algorithm that `chattr +c` sets if the mount has none.
const DEFAULT_COMPRESSION: Compression = Compression::Zlib;

fn shown(ours: u64, as_what: impl Fn(&Names) -> u32) -> u32 {
    NAMES.iter().filter(|names| ours & names.ours != 0).map(as_what).fold(0, |all, bit| all | bit)
}

/// The flags of the format for these bits. `EOPNOTSUPP` if there is none for one of them.
fn meant(bits: u32, as_what: impl Fn(&Names) -> u32) -> Result<u64, Errno> {
    let known = NAMES.iter().map(&as_what).fold(0, |all, bit| all | bit);
    if bits & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(NAMES.iter().filter(|names| bits & as_what(names) != 0).map(|names| names.ours).fold(0, |all, bit| all | bit))
}

/// The 32-bit number at this index of an argument.
fn word(data: &[u8], number: usize) -> Result<u32, Errno> {
    data.get(number * 4..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(Errno::INVAL)
}

/// An ioctl's number in its 64-bit form; `None` for a number that does not match the caller's word
/// size, since the kernel does not recognise that number and so does not check it.
fn command(what: &Ioctl<'_>) -> Option<u32> {
    match (what.command, what.flags.contains(IoctlFlags::BITS32)) {
        (GETFLAGS | SETFLAGS, true) | (GETFLAGS_32 | SETFLAGS_32, false) => None,
        (GETFLAGS_32, true) => Some(GETFLAGS),
        (SETFLAGS_32, true) => Some(SETFLAGS),
        (command, _) => Some(command),
    }
}

/// Returns whether an ioctl sets flags, which changes the ctime.
fn is_change(what: &Ioctl<'_>) -> bool {
    matches!(command(what), Some(SETFLAGS | FSSETXATTR))
}

/// What decides whether a caller may set flags. The decision is made with the inode locked, since
/// its owner and flags may change until then.
#[derive(Debug, Clone, Default)]
pub(crate) struct MaySet {
    powers: Powers,
    /// The kernel has checked that the caller owns the file as the mount shows it.
    known_to_own: bool,
    /// The owner that the mount shows for all files, if it overrides owners.
    shown_owner: Option<u32>,
}

impl MaySet {
    /// Returns `EPERM` unless the caller may change the flags of the inode `is` to `wanted`.
    fn check(&self, is: &Flagged, wanted: u64) -> Result<(), Errno> {
        let owns = self.known_to_own || self.powers.owns(self.shown_owner.unwrap_or(is.owner));
        let restricts = (is.flags ^ wanted) & InodeFlags::PROTECTING != 0;
        let may = owns && (!restricts || self.powers.has(Capability::Immutable));
        if !may {
            // By invariant 27: the kernel may have passed it on unchecked.
            return Err(Errno::PERM);
        }
        Ok(())
    }
}

impl Shared {
    /// Finds out what decides whether the caller of an ioctl may set flags. An ioctl that sets none
    /// gets no permission.
    pub(crate) fn may_set(&self, caller: &Caller<'_>, what: &Ioctl<'_>) -> MaySet {
        if !is_change(what) {
            return MaySet::default();
        }
        MaySet {
            powers: Powers::of(caller),
            // On an idmapped mount only the kernel knows that; kernels that support idmapped FUSE
            // mounts check it.
            known_to_own: self.has_capability(Capabilities::ALLOW_IDMAP),
            shown_owner: self.ownership().uid,
        }
    }

    /// Serves an ioctl that is about flags; `None` for other ioctls.
    pub(crate) fn flags_ioctl(&self, id: InodeId, what: &Ioctl<'_>, may: &MaySet) -> Option<Result<Vec<u8>, Errno>> {
        Some(match command(what)? {
            GETFLAGS => self.flags_of(id).map(|flags| {
                let mut bytes = shown(flags, |names| names.flag).to_ne_bytes().to_vec();
                bytes.resize((what.reply_size as usize).min(8), 0);
                bytes
            }),
            SETFLAGS => word(what.data, 0).and_then(|bits| self.set_flags(id, bits, may)).map(|()| Vec::new()),
            FSGETXATTR => self.flags_of(id).map(|flags| {
                let mut bytes = shown(flags, |names| names.xflag).to_ne_bytes().to_vec();
                bytes.resize(FSXATTR_SIZE, 0);
                bytes
            }),
            FSSETXATTR => self.set_extended_flags(id, what.data, may).map(|()| Vec::new()),
            _ => return None,
        })
    }

    /// Answers an ioctl that is about flags.
    pub(crate) fn answer_flags(&self, node: u64, what: &Ioctl<'_>, result: Result<Vec<u8>, Errno>, reply: ReplyIoctl) {
        if result.is_ok() && is_change(what) {
            self.attributes_changed(node);
        }
        match result {
            Ok(data) => reply.result(0, &data),
            Err(errno) => reply.error(errno),
        }
    }

    /// Returns whether an ioctl forbids changes of content that were allowed so far, and the caller
    /// may forbid them.
    pub(crate) fn adds_protection(&self, id: InodeId, what: &Ioctl<'_>, may: &MaySet) -> bool {
        let wanted = match command(what) {
            Some(SETFLAGS) => word(what.data, 0).and_then(|bits| meant(bits, |names| names.flag)),
            Some(FSSETXATTR) => word(what.data, 0).and_then(|bits| meant(bits, |names| names.xflag)),
            _ => return false,
        };
        let adds = match (wanted, self.flags_of(id)) {
            (Ok(wanted), Ok(old)) => {
                wanted & !old & InodeFlags::PROTECTING != 0 && may.powers.has(Capability::Immutable)
            }
            _ => false,
        };
        // A directory has no dirty pages.
        let is_directory = |id| self.engine.inodes().attributes(id).is_ok_and(|is| is.file_type == FileType::Directory);
        adds && !is_directory(id)
    }

    /// Serves `SETFLAGS`, which sets all flags that there are.
    fn set_flags(&self, id: InodeId, bits: u32, may: &MaySet) -> Result<(), Errno> {
        let wanted = meant(bits, |names| names.flag)?;
        let algorithm = self.engine.compression().map_or(DEFAULT_COMPRESSION, |mode| mode.algorithm);
        let usual = CompressionMode::property(algorithm).as_bytes();
        // The kernel, too, replaces whatever property there was.
        let plan = |is: &Flagged, _: Option<&[u8]>| {
            let wanted = if is.file_type == FileType::Directory { wanted } else { wanted & !InodeFlags::DIRSYNC };
            may.check(is, wanted)?;
            Ok((wanted, (wanted & InodeFlags::COMPRESS != 0).then(|| usual.to_vec())))
        };
        self.engine.inodes().set_flags_with(id, COMPRESSION, PROPERTY_ROOM, &plan).map_err(|error| errno(&error))
    }

    /// Serves `FSSETXATTR`, which sets the flags that it knows and keeps the others.
    fn set_extended_flags(&self, id: InodeId, data: &[u8], may: &MaySet) -> Result<(), Errno> {
        // btrfs has no extent size hints and no project ids.
        if [1, 3, 4].into_iter().map(|number| word(data, number)).any(|word| word != Ok(0)) {
            return Err(Errno::OPNOTSUPP);
        }
        let known = NAMES.iter().filter(|names| names.xflag != 0).map(|names| names.ours).fold(0, |all, bit| all | bit);
        let wanted = meant(word(data, 0)?, |names| names.xflag)?;
        self.set_flags_if_allowed(id, may, |is| wanted | is.flags & SETTABLE_FLAGS & !known)
    }

    fn set_flags_if_allowed(&self, id: InodeId, may: &MaySet, wanted: impl Fn(&Flagged) -> u64) -> Result<(), Errno> {
        let plan = |is: &Flagged| {
            let wanted = wanted(is);
            may.check(is, wanted)?;
            Ok(wanted)
        };
        self.engine.inodes().set_flags_as(id, &plan).map_err(|error| errno(&error))
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
    fn owners_set_flags_but_not_those_that_forbid_changes() {
        const CHANGES: [(u64, u64, bool); 5] = [
            (0, InodeFlags::NODUMP, true),
            (0, InodeFlags::IMMUTABLE, false),
            (InodeFlags::APPEND, 0, false),
            (InodeFlags::APPEND, InodeFlags::APPEND | InodeFlags::NODUMP, true),
            (InodeFlags::APPEND, InodeFlags::IMMUTABLE, false),
        ];
        let nobody = MaySet::default();
        let owner = MaySet { known_to_own: true, ..MaySet::default() };
        for (flags, wanted, may) in CHANGES {
            let is = Flagged { flags, owner: 0, file_type: FileType::Regular };
            assert_eq!(nobody.check(&is, wanted), Err(Errno::PERM), "{flags:x} to {wanted:x}");
            assert_eq!(owner.check(&is, wanted).is_ok(), may, "{flags:x} to {wanted:x}");
        }
    }

    #[test]
    fn numbers_count_for_callers_with_words_of_their_size() {
        let reported = |number, flags| {
            let (handle, argument, reply_size) = (0, 0, 0);
            command(&Ioctl { handle, flags, command: number, argument, data: &[], reply_size })
        };
        for (wide, narrow) in [(GETFLAGS, GETFLAGS_32), (SETFLAGS, SETFLAGS_32)] {
            for flags in [IoctlFlags::empty(), IoctlFlags::DIR, IoctlFlags::COMPAT] {
                assert_eq!((reported(wide, flags), reported(narrow, flags)), (Some(wide), None), "{flags:?}");
                let flags = flags | IoctlFlags::BITS32;
                assert_eq!((reported(wide, flags), reported(narrow, flags)), (None, Some(wide)), "{flags:?}");
            }
        }
        assert_eq!(reported(FSSETXATTR, IoctlFlags::BITS32), Some(FSSETXATTR));
    }

    #[test]
    fn short_arguments_are_errors() {
        assert_eq!(word(&[1, 2, 3], 0), Err(Errno::INVAL));
        assert_eq!(word(&[0; 28], 7), Err(Errno::INVAL));
    }
}

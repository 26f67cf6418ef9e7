//! The ioctls by which programs make, delete and look at subvolumes, as far as their arguments have
//! a fixed size.

use ubtrfs::Received;
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{Generation, Ino, TreeId, Uuid};
use ubtrfs_fuse::Errno;

use crate::btrfs_ioctls::u64_at;
use crate::control::RESET_SUBVOLUME;

/// What is asked of subvolumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubvolumeIoctl {
    /// `BTRFS_IOC_SUBVOL_CREATE`, `BTRFS_IOC_SUBVOL_CREATE_V2`. As by the kernel's driver, what is
    /// made is writable whatever the flags say.
    Create { name: Vec<u8> },
    /// `BTRFS_IOC_SNAP_CREATE`, `BTRFS_IOC_SNAP_CREATE_V2`: of the caller's open file `source`.
    Snapshot { source: i64, name: Vec<u8>, read_only: bool },
    /// `BTRFS_IOC_SNAP_DESTROY`, `BTRFS_IOC_SNAP_DESTROY_V2`: by a name in the ioctl's directory.
    Delete { name: Vec<u8> },
    /// `BTRFS_IOC_SNAP_DESTROY_V2` by the subvolume's number.
    DeleteById(TreeId),
    /// [`RESET_SUBVOLUME`], our own: to the caller's open file `source`.
    Reset { source: i64, name: Vec<u8> },
    /// `BTRFS_IOC_SUBVOL_GETFLAGS`.
    Flags,
    /// `BTRFS_IOC_SUBVOL_SETFLAGS`.
    SetFlags(u64),
    /// `BTRFS_IOC_SET_RECEIVED_SUBVOL`.
    SetReceived(Received),
    /// `BTRFS_IOC_GET_SUBVOL_INFO`.
    Info,
    /// `BTRFS_IOC_GET_SUBVOL_ROOTREF`: the subvolumes in that of the ioctl's file, from a number
    /// on.
    Children { least: TreeId },
    /// `BTRFS_IOC_INO_LOOKUP`: the path of an inode in its subvolume (0: that of the ioctl's file).
    Path { tree: TreeId, ino: Ino },
    /// `BTRFS_IOC_INO_LOOKUP_USER`: the name of a subvolume, and the path of its directory from
    /// that of the ioctl.
    PathOfSubvolume { dir: Ino, id: TreeId },
    /// `BTRFS_IOC_DEFAULT_SUBVOL`.
    SetDefault(TreeId),
    /// `BTRFS_IOC_SYNC`.
    Sync,
    /// `BTRFS_IOC_START_SYNC`.
    StartSync,
    /// `BTRFS_IOC_WAIT_SYNC`: 0 waits for all that there is.
    WaitSync(u64),
}

/// `_IOW(0x94, 1, struct btrfs_ioctl_vol_args)`.
pub(crate) const SNAP_CREATE: u32 = 0x5000_9401;
/// `_IO(0x94, 8)`.
pub(crate) const SYNC: u32 = 0x9408;
/// `_IOW(0x94, 14, struct btrfs_ioctl_vol_args)`.
pub(crate) const SUBVOL_CREATE: u32 = 0x5000_940e;
/// `_IOW(0x94, 15, struct btrfs_ioctl_vol_args)`.
pub(crate) const SNAP_DESTROY: u32 = 0x5000_940f;
/// `_IOWR(0x94, 18, struct btrfs_ioctl_ino_lookup_args)`.
const INO_LOOKUP: u32 = 0xd000_9412;
/// `_IOW(0x94, 19, __u64)`.
pub(crate) const DEFAULT_SUBVOL: u32 = 0x4008_9413;
/// `_IOW(0x94, 22, __u64)`.
const WAIT_SYNC: u32 = 0x4008_9416;
/// `_IOW(0x94, 23, struct btrfs_ioctl_vol_args_v2)`.
pub(crate) const SNAP_CREATE_V2: u32 = 0x5000_9417;
/// `_IOR(0x94, 24, __u64)`.
const START_SYNC: u32 = 0x8008_9418;
/// `_IOW(0x94, 24, struct btrfs_ioctl_vol_args_v2)`.
pub(crate) const SUBVOL_CREATE_V2: u32 = 0x5000_9418;
/// `_IOR(0x94, 25, __u64)`.
const SUBVOL_GETFLAGS: u32 = 0x8008_9419;
/// `_IOW(0x94, 26, __u64)`.
pub(crate) const SUBVOL_SETFLAGS: u32 = 0x4008_941a;
/// `_IOWR(0x94, 37, struct btrfs_ioctl_received_subvol_args)`.
pub(crate) const SET_RECEIVED_SUBVOL: u32 = 0xc0c8_9425;
/// `_IOR(0x94, 60, struct btrfs_ioctl_get_subvol_info_args)`.
const GET_SUBVOL_INFO: u32 = 0x81f8_943c;
/// `_IOWR(0x94, 61, struct btrfs_ioctl_get_subvol_rootref_args)`.
const GET_SUBVOL_ROOTREF: u32 = 0xd000_943d;
/// `_IOWR(0x94, 62, struct btrfs_ioctl_ino_lookup_user_args)`.
pub(crate) const INO_LOOKUP_USER: u32 = 0xd000_943e;
/// `_IOW(0x94, 63, struct btrfs_ioctl_vol_args_v2)`.
pub(crate) const SNAP_DESTROY_V2: u32 = 0x5000_943f;

/// Flags of the arguments of version 2; the flag of a subvolume, too.
pub(crate) const READ_ONLY: u64 = 1 << 1;
const BY_ID: u64 = 1 << 4;

/// The offsets of names in the arguments of both versions.
const NAME: usize = 8;
const NAME_V2: usize = 56;
/// The offset of the flags.
const FLAGS_V2: usize = 16;

impl SubvolumeIoctl {
    /// Reads a command; `None` if it isn't one of these, an error if its argument makes no sense.
    pub(crate) fn parse(command: u32, data: &[u8]) -> Option<Result<Self, Errno>> {
        let number = |at| u64_at(data, at).ok_or(Errno::INVAL);
        Some(match command {
            SUBVOL_CREATE => name_at(data, NAME).map(|name| Self::Create { name }),
            SUBVOL_CREATE_V2 => {
                flags_of(data, READ_ONLY).and_then(|_| Ok(Self::Create { name: name_at(data, NAME_V2)? }))
            }
            SNAP_CREATE => number(0).and_then(|source| {
                Ok(Self::Snapshot { source: source.cast_signed(), name: name_at(data, NAME)?, read_only: false })
            }),
            SNAP_CREATE_V2 => flags_of(data, READ_ONLY).and_then(|flags| {
                let (source, name) = (number(0)?.cast_signed(), name_at(data, NAME_V2)?);
                Ok(Self::Snapshot { source, name, read_only: flags & READ_ONLY != 0 })
            }),
            SNAP_DESTROY => name_at(data, NAME).map(|name| Self::Delete { name }),
            SNAP_DESTROY_V2 => flags_of(data, BY_ID).and_then(|flags| match flags {
                0 => name_at(data, NAME_V2).map(|name| Self::Delete { name }),
                _ => number(NAME_V2).map(|id| Self::DeleteById(TreeId(id))),
            }),
            RESET_SUBVOLUME => flags_of(data, 0)
                .and_then(|_| Ok(Self::Reset { source: number(0)?.cast_signed(), name: name_at(data, NAME_V2)? })),
            SUBVOL_GETFLAGS => Ok(Self::Flags),
            SUBVOL_SETFLAGS => number(0).map(Self::SetFlags),
            SET_RECEIVED_SUBVOL => received_at(data).map(Self::SetReceived).ok_or(Errno::INVAL),
            GET_SUBVOL_INFO => Ok(Self::Info),
            GET_SUBVOL_ROOTREF => number(0).map(|least| Self::Children { least: TreeId(least) }),
            INO_LOOKUP => number(0).and_then(|tree| Ok(Self::Path { tree: TreeId(tree), ino: Ino(number(8)?) })),
            INO_LOOKUP_USER => {
                number(0).and_then(|dir| Ok(Self::PathOfSubvolume { dir: Ino(dir), id: TreeId(number(8)?) }))
            }
            DEFAULT_SUBVOL => number(0).map(|id| Self::SetDefault(if id == 0 { TreeId::FS } else { TreeId(id) })),
            SYNC => Ok(Self::Sync),
            START_SYNC => Ok(Self::StartSync),
            WAIT_SYNC => number(0).map(Self::WaitSync),
            _ => return None,
        })
    }
}

/// A name that may be given to a new entry, or that an entry may have.
fn name_at(data: &[u8], at: usize) -> Result<Vec<u8>, Errno> {
    let name = data.get(at..).ok_or(Errno::INVAL)?;
    let end = name.iter().position(|byte| *byte == 0).ok_or(Errno::NAMETOOLONG)?;
    match &name[..end] {
        b"" => Err(Errno::ACCESS),
        name if name.contains(&b'/') => Err(Errno::INVAL),
        name => Ok(name.to_vec()),
    }
}

/// Bytes of `struct btrfs_ioctl_received_subvol_args`.
const RECEIVED_SIZE: usize = 200;

fn received_at(data: &[u8]) -> Option<Received> {
    let nsec = u32::from_le_bytes(*data.get(40..)?.first_chunk()?);
    let sent = Timespec { sec: u64_at(data, 32)?, nsec };
    Some(Received { uuid: Uuid(*data.first_chunk()?), transid: u64_at(data, 16)?, sent })
}

/// The argument as the ioctl leaves it, with the transaction and the time of the receipt.
pub(crate) fn answer_to_received(from: &Received, generation: Generation, time: Timespec) -> Vec<u8> {
    let mut answer = from.uuid.0.to_vec();
    answer.extend([from.transid, generation.0].into_iter().flat_map(u64::to_le_bytes));
    for Timespec { sec, nsec } in [from.sent, time] {
        answer.extend(sec.to_le_bytes());
        answer.extend(u64::from(nsec).to_le_bytes());
    }
    answer.resize(RECEIVED_SIZE, 0);
    answer
}

/// Flags, of which only these are known: what is to be inherited from quota groups is behind a
/// pointer, which FUSE does not follow.
fn flags_of(data: &[u8], known: u64) -> Result<u64, Errno> {
    let flags = u64_at(data, FLAGS_V2).ok_or(Errno::INVAL)?;
    if flags & !known == 0 { Ok(flags) } else { Err(Errno::OPNOTSUPP) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(flags: u64, name: &[u8]) -> Vec<u8> {
        let mut data = vec![0; 4096];
        data[..8].copy_from_slice(&7_i64.to_le_bytes());
        data[FLAGS_V2..FLAGS_V2 + 8].copy_from_slice(&flags.to_le_bytes());
        data[NAME_V2..NAME_V2 + name.len()].copy_from_slice(name);
        data
    }

    #[test]
    fn numbers_of_commands_encode_the_sizes_of_their_arguments() {
        let size = |command: u32| command >> 16 & 0x3fff;
        for command in [
            RESET_SUBVOLUME,
            SNAP_CREATE,
            SUBVOL_CREATE,
            SNAP_DESTROY,
            SNAP_CREATE_V2,
            SUBVOL_CREATE_V2,
            SNAP_DESTROY_V2,
        ] {
            assert_eq!(size(command), 4096);
        }
        assert_eq!([INO_LOOKUP, GET_SUBVOL_ROOTREF, INO_LOOKUP_USER].map(size), [4096; 3]);
        assert_eq!([DEFAULT_SUBVOL, SUBVOL_SETFLAGS, GET_SUBVOL_INFO].map(size), [8, 8, 504]);
        assert_eq!(size(SET_RECEIVED_SUBVOL) as usize, RECEIVED_SIZE);
    }

    #[test]
    fn arguments_are_read() {
        let snapshot = |read_only| SubvolumeIoctl::Snapshot { source: 7, name: b"name".to_vec(), read_only };
        let parse = |command, data: &[u8]| SubvolumeIoctl::parse(command, data).expect("it is known");
        assert_eq!(parse(SNAP_CREATE_V2, &v2(READ_ONLY, b"name")), Ok(snapshot(true)));
        assert_eq!(parse(SNAP_CREATE_V2, &v2(0, b"name")), Ok(snapshot(false)));
        assert_eq!(parse(SNAP_CREATE_V2, &v2(1 << 2, b"name")), Err(Errno::OPNOTSUPP));
        for (odd, errno) in [(&b""[..], Errno::ACCESS), (b"a/b", Errno::INVAL), (b"/", Errno::INVAL)] {
            assert_eq!(parse(SUBVOL_CREATE_V2, &v2(0, odd)), Err(errno));
        }
        assert_eq!(
            parse(RESET_SUBVOLUME, &v2(0, b"name")),
            Ok(SubvolumeIoctl::Reset { source: 7, name: b"name".to_vec() })
        );
        assert_eq!(parse(RESET_SUBVOLUME, &v2(READ_ONLY, b"name")), Err(Errno::OPNOTSUPP));
        assert_eq!(parse(SUBVOL_CREATE, &[b'x'; 4096]), Err(Errno::NAMETOOLONG));
        assert_eq!(parse(SUBVOL_CREATE, &[0; 8]), Err(Errno::NAMETOOLONG));
        let by_id = v2(BY_ID, &300_u64.to_le_bytes());
        assert_eq!(parse(SNAP_DESTROY_V2, &by_id), Ok(SubvolumeIoctl::DeleteById(TreeId(300))));
        assert_eq!(parse(DEFAULT_SUBVOL, &[0; 8]), Ok(SubvolumeIoctl::SetDefault(TreeId::FS)));
        for command in [DEFAULT_SUBVOL, SUBVOL_SETFLAGS, SET_RECEIVED_SUBVOL, INO_LOOKUP, SNAP_CREATE, SNAP_DESTROY_V2]
        {
            assert_eq!(parse(command, &[]), Err(Errno::INVAL));
        }
        assert_eq!(SubvolumeIoctl::parse(0x9409, &[]), None);
    }
}

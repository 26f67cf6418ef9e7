//! The ioctls by which programs make, delete and examine subvolumes, as far as their arguments have
//! a fixed size.

use ubtrfs::Received;
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{Generation, Ino, TreeId, Uuid};
use ubtrfs_fuse::Errno;

use crate::btrfs_ioctls::u64_at;

/// A request about subvolumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubvolumeIoctl {
    /// `BTRFS_IOC_SUBVOL_CREATE`, `BTRFS_IOC_SUBVOL_CREATE_V2`. As with the kernel's driver, a new
    /// subvolume is writable whatever the flags say.
    Create { name: Vec<u8> },
    /// `BTRFS_IOC_SNAP_CREATE`, `BTRFS_IOC_SNAP_CREATE_V2`: makes a snapshot of the subvolume of
    /// the caller's open file `source`.
    Snapshot { source: i64, name: Vec<u8>, read_only: bool },
    /// `BTRFS_IOC_SNAP_DESTROY`, `BTRFS_IOC_SNAP_DESTROY_V2`: deletes by a name in the ioctl's
    /// directory.
    Delete { name: Vec<u8> },
    /// `BTRFS_IOC_SNAP_DESTROY_V2` by the subvolume's number.
    DeleteById(TreeId),
    /// [`RESET_SUBVOLUME`](ubtrfs_format::ioctl::RESET_SUBVOLUME), our own: resets to the subvolume
    /// of the caller's open file `source`.
    Reset { source: i64, name: Vec<u8> },
    /// `BTRFS_IOC_SUBVOL_GETFLAGS`.
    Flags,
    /// `BTRFS_IOC_SUBVOL_SETFLAGS`.
    SetFlags(u64),
    /// `BTRFS_IOC_SET_RECEIVED_SUBVOL`.
    SetReceived(Received),
    /// `BTRFS_IOC_GET_SUBVOL_INFO`.
    Info,
    /// `BTRFS_IOC_GET_SUBVOL_ROOTREF`: lists the subvolumes in that of the ioctl's file, from a
    /// number on.
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
    /// `BTRFS_IOC_WAIT_SYNC`: waits for this transaction, or for the present one if it is 0.
    WaitSync(u64),
}

/// Flags of the arguments of version 2. `READ_ONLY` is also the flag of a subvolume.
pub(crate) const READ_ONLY: u64 = 1 << 1;
const BY_ID: u64 = 1 << 4;

/// The offsets of names in the arguments of both versions.
const NAME: usize = 8;
const NAME_V2: usize = 56;
/// The offset of the flags.
const FLAGS_V2: usize = 16;

/// Parses the arguments of these ioctls. Returns `EINVAL` if one makes no sense, `ENAMETOOLONG` for
/// a name without an end, and `EOPNOTSUPP` for unknown flags, as the kernel's driver does.
impl SubvolumeIoctl {
    pub(crate) fn create(data: &[u8]) -> Result<Self, Errno> {
        name_at(data, NAME).map(|name| Self::Create { name })
    }

    pub(crate) fn create_v2(data: &[u8]) -> Result<Self, Errno> {
        flags_of(data, READ_ONLY)?;
        Ok(Self::Create { name: name_at(data, NAME_V2)? })
    }

    pub(crate) fn snapshot(data: &[u8]) -> Result<Self, Errno> {
        let source = number(data, 0)?.cast_signed();
        Ok(Self::Snapshot { source, name: name_at(data, NAME)?, read_only: false })
    }

    pub(crate) fn snapshot_v2(data: &[u8]) -> Result<Self, Errno> {
        let flags = flags_of(data, READ_ONLY)?;
        let (source, name) = (number(data, 0)?.cast_signed(), name_at(data, NAME_V2)?);
        Ok(Self::Snapshot { source, name, read_only: flags & READ_ONLY != 0 })
    }

    pub(crate) fn delete(data: &[u8]) -> Result<Self, Errno> {
        name_at(data, NAME).map(|name| Self::Delete { name })
    }

    pub(crate) fn delete_v2(data: &[u8]) -> Result<Self, Errno> {
        match flags_of(data, BY_ID)? {
            0 => name_at(data, NAME_V2).map(|name| Self::Delete { name }),
            _ => number(data, NAME_V2).map(|id| Self::DeleteById(TreeId(id))),
        }
    }

    pub(crate) fn reset(data: &[u8]) -> Result<Self, Errno> {
        flags_of(data, 0)?;
        Ok(Self::Reset { source: number(data, 0)?.cast_signed(), name: name_at(data, NAME_V2)? })
    }

    pub(crate) fn set_flags(data: &[u8]) -> Result<Self, Errno> {
        number(data, 0).map(Self::SetFlags)
    }

    pub(crate) fn set_received(data: &[u8]) -> Result<Self, Errno> {
        received_at(data).map(Self::SetReceived).ok_or(Errno::INVAL)
    }

    pub(crate) fn children(data: &[u8]) -> Result<Self, Errno> {
        number(data, 0).map(|least| Self::Children { least: TreeId(least) })
    }

    pub(crate) fn path(data: &[u8]) -> Result<Self, Errno> {
        Ok(Self::Path { tree: TreeId(number(data, 0)?), ino: Ino(number(data, 8)?) })
    }

    pub(crate) fn path_of_subvolume(data: &[u8]) -> Result<Self, Errno> {
        Ok(Self::PathOfSubvolume { dir: Ino(number(data, 0)?), id: TreeId(number(data, 8)?) })
    }

    pub(crate) fn set_default(data: &[u8]) -> Result<Self, Errno> {
        number(data, 0).map(|id| Self::SetDefault(if id == 0 { TreeId::FS } else { TreeId(id) }))
    }

    pub(crate) fn wait_sync(data: &[u8]) -> Result<Self, Errno> {
        number(data, 0).map(Self::WaitSync)
    }
}

fn number(data: &[u8], at: usize) -> Result<u64, Errno> {
    u64_at(data, at).ok_or(Errno::INVAL)
}

/// Reads a name that an entry may have.
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

/// The argument as the ioctl returns it, with the transaction and the time of the receipt.
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

/// Reads the flags, of which only `known` are allowed. The flag to inherit quota groups is not,
/// since its data is behind a pointer, which FUSE does not follow.
fn flags_of(data: &[u8], known: u64) -> Result<u64, Errno> {
    let flags = u64_at(data, FLAGS_V2).ok_or(Errno::INVAL)?;
    if flags & !known == 0 { Ok(flags) } else { Err(Errno::OPNOTSUPP) }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::ioctl::{SET_RECEIVED_SUBVOL, size_of};

    use super::*;

    fn v2(flags: u64, name: &[u8]) -> Vec<u8> {
        let mut data = vec![0; 4096];
        data[..8].copy_from_slice(&7_i64.to_le_bytes());
        data[FLAGS_V2..FLAGS_V2 + 8].copy_from_slice(&flags.to_le_bytes());
        data[NAME_V2..NAME_V2 + name.len()].copy_from_slice(name);
        data
    }

    #[test]
    fn arguments_are_read() {
        let snapshot = |read_only| SubvolumeIoctl::Snapshot { source: 7, name: b"name".to_vec(), read_only };
        assert_eq!(SubvolumeIoctl::snapshot_v2(&v2(READ_ONLY, b"name")), Ok(snapshot(true)));
        assert_eq!(SubvolumeIoctl::snapshot_v2(&v2(0, b"name")), Ok(snapshot(false)));
        assert_eq!(SubvolumeIoctl::snapshot_v2(&v2(1 << 2, b"name")), Err(Errno::OPNOTSUPP));
        for (odd, errno) in [(&b""[..], Errno::ACCESS), (b"a/b", Errno::INVAL), (b"/", Errno::INVAL)] {
            assert_eq!(SubvolumeIoctl::create_v2(&v2(0, odd)), Err(errno));
        }
        let reset = SubvolumeIoctl::Reset { source: 7, name: b"name".to_vec() };
        assert_eq!(SubvolumeIoctl::reset(&v2(0, b"name")), Ok(reset));
        assert_eq!(SubvolumeIoctl::reset(&v2(READ_ONLY, b"name")), Err(Errno::OPNOTSUPP));
        assert_eq!(SubvolumeIoctl::create(&[b'x'; 4096]), Err(Errno::NAMETOOLONG));
        assert_eq!(SubvolumeIoctl::create(&[0; 8]), Err(Errno::NAMETOOLONG));
        let by_id = v2(BY_ID, &300_u64.to_le_bytes());
        assert_eq!(SubvolumeIoctl::delete_v2(&by_id), Ok(SubvolumeIoctl::DeleteById(TreeId(300))));
        assert_eq!(size_of(SET_RECEIVED_SUBVOL), RECEIVED_SIZE);
        assert_eq!(SubvolumeIoctl::set_received(&[0; RECEIVED_SIZE - 160]), Err(Errno::INVAL));
    }
}

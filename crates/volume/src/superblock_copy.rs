//! Reading the copies of a superblock that a device has, and choosing the one by which it is
//! opened.

use ubtrfs_format::{
    CompatRo, Error as FormatError, Incompat, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_MAGIC, SUPERBLOCK_MAGIC_AT,
    SUPERBLOCK_SIZE, Superblock, SuperblockFlags, Uuid,
};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};

/// The offset of the volume's id in a superblock.
const FSID: std::ops::Range<usize> = 32..48;
/// The smallest and the largest size of the system chunk array in bytes: one key and a chunk of one
/// stripe; what the superblock holds.
const SYS_CHUNK_ARRAY: std::ops::RangeInclusive<usize> = 97..=2048;
/// The fewest tree blocks that a volume uses.
const MIN_BLOCKS: u64 = 6;

/// The superblock of one device, and its bytes.
pub(crate) struct Found {
    pub(crate) superblock: Superblock,
    pub(crate) bytes: Buffer,
}

impl Found {
    /// Returns whether the device's volume is a seed.
    pub(crate) fn is_seed(&self) -> bool {
        self.superblock.flags.contains(SuperblockFlags::SEEDING)
    }

    /// Returns whether the device may belong to a seed from which the volume with this id was made.
    pub(crate) fn may_be_seed_of(&self, fsid: Uuid) -> bool {
        self.is_seed() && self.superblock.fsid != fsid
    }
}

/// Returns the superblock that a device is opened by.
pub(crate) fn find_superblock(device: &dyn Device, read_only: bool) -> Result<Found> {
    let primary = SUPERBLOCK_COPIES[0];
    let damage = match read_copy(device, primary) {
        Ok(found) => return Ok(found),
        Err(CopyError::Missing) => Error::NotBtrfs,
        Err(CopyError::Unread(source)) => Error::SuperblockUnread(source),
        Err(CopyError::Damaged(source)) => Error::Superblock(source),
    };
    let copies = SUPERBLOCK_COPIES[1..].iter().filter_map(|at| read_copy(device, *at).ok());
    match (copies.max_by_key(|found| found.superblock.generation), damage) {
        (None, damage) => Err(damage),
        // The volume may have been replaced on purpose, so the caller must confirm before the copy
        // is used.
        (Some(found), Error::NotBtrfs) => {
            Err(Error::PrimarySuperblock { copy: found.superblock.bytenr, source: FormatError::BadMagic })
        }
        (Some(found), _) if read_only && !is_of_another(device, &found.superblock) => Ok(found),
        (Some(found), Error::Superblock(source)) => {
            Err(Error::PrimarySuperblock { copy: found.superblock.bytenr, source })
        }
        (Some(_), unread) => Err(unread),
    }
}

/// Returns whether a copy has another id than the damaged primary superblock. It may be left over
/// from an older volume, which was larger.
fn is_of_another(device: &dyn Device, copy: &Superblock) -> bool {
    let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE);
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).is_ok() && bytes[FSID] != copy.fsid.0
}

pub(crate) enum CopyError {
    /// The magic of btrfs is not there.
    Missing,
    Unread(std::io::Error),
    Damaged(FormatError),
}

pub(crate) fn read_copy(device: &dyn Device, at: Physical) -> std::result::Result<Found, CopyError> {
    let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE);
    if device.size() < at.0 + SUPERBLOCK_SIZE as u64 {
        return Err(CopyError::Missing);
    }
    device.read_at(at, &mut bytes).map_err(CopyError::Unread)?;
    if bytes[SUPERBLOCK_MAGIC_AT..SUPERBLOCK_MAGIC_AT + SUPERBLOCK_MAGIC.len()] != SUPERBLOCK_MAGIC {
        return Err(CopyError::Missing);
    }
    let superblock = Superblock::parse(&bytes, at).map_err(CopyError::Damaged)?;
    check_superblock(&superblock).map_err(CopyError::Damaged)?;
    Ok(Found { superblock, bytes })
}

/// Checks what can be judged of a superblock beyond its single fields.
fn check_superblock(superblock: &Superblock) -> std::result::Result<(), FormatError> {
    let require = |holds: bool, what: &'static str, value: u64| {
        if holds { Ok(()) } else { Err(FormatError::BadValue { what, value }) }
    };
    let array = superblock.sys_chunk_array.len();
    require(SYS_CHUNK_ARRAY.contains(&array), "superblock sys_chunk_array_size", array as u64)?;
    require(superblock.stripe_size.is_power_of_two(), "superblock stripesize", superblock.stripe_size.into())?;
    require(
        superblock.bytes_used >= MIN_BLOCKS * u64::from(superblock.node_size),
        "superblock bytes_used",
        superblock.bytes_used,
    )?;
    if superblock.dev_item.fsid != superblock.metadata_fsid() {
        return Err(FormatError::WrongFsid);
    }
    let free_space_tree = CompatRo::FREE_SPACE_TREE.with(CompatRo::FREE_SPACE_TREE_VALID);
    let group_tree = superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
    require(
        !group_tree
            || (superblock.compat_ro.contains(free_space_tree) && superblock.incompat.contains(Incompat::NO_HOLES)),
        "superblock features (a block-group tree needs a free-space tree and NO_HOLES)",
        superblock.compat_ro.0,
    )
}

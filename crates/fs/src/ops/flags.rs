//! Inode flags that programs set (`chattr`), and the operations that some of them forbid.

use ubtrfs_format::items::{FileType, InodeFlags};

use super::checks::check_real;
use super::operations::InodeOperations;
use crate::error::{Errno, Result};
use crate::inode::InodeId;
use crate::item_sizes::{INODE_ITEM, xattr_item};
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// The flags that programs may set.
pub const SETTABLE_FLAGS: u64 = InodeFlags::SYNC
    | InodeFlags::IMMUTABLE
    | InodeFlags::APPEND
    | InodeFlags::NODUMP
    | InodeFlags::NOATIME
    | InodeFlags::DIRSYNC
    | InodeFlags::NODATACOW
    | InodeFlags::COMPRESS
    | InodeFlags::NOCOMPRESS;

/// The inode whose flags are about to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flagged {
    /// Its on-disk flags.
    pub flags: u64,
    /// Its owner.
    pub owner: u32,
    /// Its type.
    pub file_type: FileType,
}

/// Returns the new flags of an inode, or an error that refuses the change. It is called with the
/// inode locked, so its argument is valid until the flags are set.
pub type FlagsPlan<'a> = dyn Fn(&Flagged) -> Result<u64> + 'a;

/// Does the same for flags and an xattr that change together: it gets the value of the xattr and
/// returns the new one. `None` means that there is no xattr.
pub type FlagsAndXattrPlan<'a> = dyn Fn(&Flagged, Option<&[u8]>) -> Result<(u64, Option<Vec<u8>>)> + 'a;

/// The xattr that changes together with the flags.
struct Companion<'a> {
    name: &'a [u8],
    /// The size of the value, in bytes, that space is reserved for.
    room: usize,
}

impl InodeOperations {
    /// Sets the [`SETTABLE_FLAGS`] that are in `wanted` and clears the others. The nocow flag
    /// (`chattr +C`) changes only for empty files, and for directories, whose new files inherit it;
    /// other files keep theirs. `NODATASUM` alone can be set on empty files, and is never cleared.
    pub fn set_flags(&self, id: InodeId, wanted: u64) -> Result<()> {
        self.set_flags_as(id, &|_| Ok(wanted))
    }

    /// Does the same; `plan` returns the flags once the inode is locked.
    pub fn set_flags_as(&self, id: InodeId, plan: &FlagsPlan<'_>) -> Result<()> {
        self.info.check_writable(id.subvolume)?;
        check_real(id)?;
        let demand =
            Demand { edits: 1, item_bytes: INODE_ITEM, global_reserve: UseOfGlobalReserve::All, ..Demand::default() };
        self.reserver.with_reserved(demand, || self.set_flags_reserved(id, None, &|is, _| Ok((plan(is)?, None))))
    }

    /// Sets flags and an xattr, whose value has at most `room` bytes, in one transaction: both or
    /// neither (invariant 23).
    pub fn set_flags_with(&self, id: InodeId, name: &[u8], room: usize, plan: &FlagsAndXattrPlan<'_>) -> Result<()> {
        self.info.check_writable(id.subvolume)?;
        check_real(id)?;
        let bytes = xattr_item(name, room);
        let global_reserve = if room == 0 { UseOfGlobalReserve::All } else { UseOfGlobalReserve::None };
        let demand = Demand { edits: 3, item_bytes: INODE_ITEM + bytes, global_reserve, ..Demand::default() };
        self.reserver.with_reserved(demand, || self.set_flags_reserved(id, Some(Companion { name, room }), plan))
    }

    /// Whether writes of the file are to be durable when they return (`chattr +S`).
    pub fn is_synchronous(&self, id: InodeId) -> bool {
        self.info.inodes.get(id).is_some_and(|inode| inode.read().item.flags & InodeFlags::SYNC != 0)
    }

    fn set_flags_reserved(&self, id: InodeId, with: Option<Companion<'_>>, plan: &FlagsAndXattrPlan<'_>) -> Result<()> {
        const NOCOW: u64 = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        const PACKED: u64 = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
        let inode = self.info.inode(id)?;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let old = state.item.flags;
        let old_value = match &with {
            Some(with) => self.info.view(id, &state).xattr(with.name)?,
            None => None,
        };
        let is = Flagged { flags: old, owner: state.item.uid, file_type: state.file_type() };
        let (wanted, value) = plan(&is, old_value.as_deref())?;
        let xattr = with.filter(|_| value != old_value).map(|with| (with, value));
        if let Some((with, Some(value))) = &xattr {
            if value.len() > with.room {
                return Err(Errno::NOSPC.into());
            }
            self.room.check_xattr_fits(id, &state, with.name, value)?;
        }
        // The two compression flags can't be set together, nor COMPRESS together with nocow, and a
        // compression flag and nocow can't replace each other. But a file with none of them may get
        // both NOCOMPRESS and nocow, which both store the data as it is.
        let replaces = |a: u64, b: u64| old & a != 0 && wanted & b != 0;
        let is_packed_in_place = wanted & InodeFlags::COMPRESS != 0 && wanted & InodeFlags::NODATACOW != 0;
        if wanted & PACKED == PACKED
            || is_packed_in_place
            || replaces(InodeFlags::NODATACOW, PACKED)
            || replaces(PACKED, InodeFlags::NODATACOW)
        {
            return Err(Errno::INVAL.into());
        }
        let mut flags = old & !SETTABLE_FLAGS | wanted & SETTABLE_FLAGS;
        if state.file_type() == FileType::Regular {
            flags = if state.item.size > 0 {
                flags & !NOCOW | old & NOCOW
            } else if wanted & InodeFlags::NODATACOW != 0 {
                flags | NOCOW
            } else if old & InodeFlags::NODATACOW != 0 {
                flags & !NOCOW
            } else {
                flags
            };
            // NODATASUM can be set on an empty file without nocow, and is never cleared, since
            // chattr(1) has no such flag.
            if state.item.size == 0 && wanted & InodeFlags::NODATASUM != 0 && old & InodeFlags::NODATASUM == 0 {
                flags |= InodeFlags::NODATASUM;
            }
        }
        let transaction = self.info.gate.enter();
        state.join(&inode, &transaction);
        state.item.flags = flags;
        if let Some((with, value)) = xattr {
            state.no_xattrs &= value.is_none();
            state.pending.set_xattr(with.name.into(), value.map(Into::into));
        }
        state.attributes_changed(self.info.now());
        Ok(())
    }
}

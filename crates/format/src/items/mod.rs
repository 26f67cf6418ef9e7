//! The content of items, by type.

mod balance;
mod chunk;
mod csum;
mod dir;
mod extent;
mod file_extent;
mod inode;
mod inode_ref;
mod raid;
mod record;
mod root;
mod small;

pub use balance::{BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem, SINGLE};
pub use chunk::{BlockGroupFlags, ChunkItem, MAX_STRIPES, STRIPE_LEN, Stripe, encode_sys_chunk, sys_chunks};
pub use csum::CsumItem;
pub use dir::{DIR_ENTRY_HEADER, DirEntry, FileType, MAX_NAME_LEN, dir_entries, encode_dir_entry};
pub use extent::{
    DataRef, ExtentFlags, ExtentItem, InlineRef, decode_data_ref, decode_shared_data_ref, encode_data_ref,
};
pub use file_extent::{Compression, FileExtent, FileExtentKind, INLINE_DATA_OFFSET};
pub use inode::{InodeFlags, InodeItem, InodeItemBytes, Timespec, TimespecBytes};
pub use inode_ref::{
    EXTREF_HEADER, ExtRef, INODE_REF_HEADER, InodeRef, encode_extref, encode_inode_ref, extrefs, inode_backrefs,
    inode_refs,
};
pub use raid::RaidProfile;
pub use root::{RootFlags, RootItem, RootRef, uuid_key};
pub use small::{
    BlockGroupItem, BlockGroupItemBytes, DevExtent, DevExtentBytes, DevItem, DevItemBytes, DevReplaceItem,
    DevReplaceItemBytes, FreeSpaceHeader, FreeSpaceHeaderBytes, FreeSpaceInfo, FreeSpaceInfoBytes,
};

use crate::{Error, Result};

/// Returns `len` bytes of `bytes` at `at`, or an error that names `what`.
pub(crate) fn slice<'a>(bytes: &'a [u8], at: usize, len: usize, what: &'static str) -> Result<&'a [u8]> {
    at.checked_add(len).and_then(|end| bytes.get(at..end)).ok_or(Error::TooShort {
        what,
        need: at.saturating_add(len),
        have: bytes.len(),
    })
}

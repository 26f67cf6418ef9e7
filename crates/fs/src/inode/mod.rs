//! Inodes in memory.

mod batch;
mod changes;
mod changing;
mod entry_changes;
mod handle;
mod id;
mod lazy_box;
mod listing;
mod load;
mod logged;
mod name_changes;
mod ordered;
mod state;
mod table;
mod xattr_changes;

pub(crate) use batch::InodeBatch;
pub(crate) use changes::{EntryChange, LostName, Name, OrphanEdit, RefChange, Target};
pub(crate) use changing::Changing;
pub(crate) use handle::Inode;
pub use id::InodeId;
pub(crate) use id::{EMPTY_SUBVOLUME_INO, MAX_FILE_SIZE};
pub(crate) use lazy_box::LazyBox;
pub(crate) use listing::Listings;
pub(crate) use load::load_inode;
pub(crate) use logged::{Logged, LoggedAs};
pub(crate) use name_changes::NameChanges;
pub(crate) use ordered::{DataWrites, OrderedExtent, OrderedExtents, SharedTicket, new_ticket};
pub(crate) use state::{Frozen, InodeState, has_checksums};
pub(crate) use table::InodeTable;

//! Inodes in memory.

mod batch;
mod changing;
mod entry_changes;
mod lazy_box;
mod listing;
mod load;
mod logged;
mod name_changes;
mod state;
mod table;
mod xattr_changes;

use parking_lot::{RwLock, RwLockReadGuard};
use ubtrfs_format::{Ino, TreeId};

pub(crate) use batch::{EntryChange, InodeBatch, LostName, Name, OrphanEdit, RefChange, Target};
pub(crate) use changing::Changing;
pub(crate) use lazy_box::LazyBox;
pub(crate) use listing::Listings;
pub(crate) use load::load_inode;
pub(crate) use logged::{Logged, LoggedAs};
pub(crate) use name_changes::NameChanges;
pub(crate) use state::{Frozen, InodeState, OrderedExtent, SharedTicket, has_checksums};
pub(crate) use table::InodeTable;

/// The inode that stands for a subvolume that can't be reached where its entry is: an empty
/// directory.
pub(crate) const EMPTY_SUBVOLUME_INO: Ino = Ino(2);

/// The largest size that programs can ask for.
pub(crate) const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Names an inode in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The subvolume.
    pub subvolume: TreeId,
    /// The inode's number in it.
    pub ino: Ino,
}

impl InodeId {
    /// The inode `ino` of `subvolume`.
    pub fn new(subvolume: TreeId, ino: Ino) -> Self {
        Self { subvolume, ino }
    }

    /// The root directory of a subvolume.
    pub fn root_of(subvolume: TreeId) -> Self {
        Self { subvolume, ino: Ino::ROOT_DIR }
    }
}

/// An inode in memory.
pub(crate) struct Inode {
    pub(crate) id: InodeId,
    state: RwLock<InodeState>,
}

impl Inode {
    pub(crate) fn new(id: InodeId, state: InodeState) -> Self {
        Self { id, state: RwLock::new(state) }
    }

    /// The state, to look at.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read()
    }

    /// The state, to change.
    pub(crate) fn write(&self) -> Changing<'_> {
        Changing::new(self.state.write())
    }

    /// The state, to look at, if nobody changes it.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.state.try_read()
    }

    /// The state if nobody has it.
    pub(crate) fn try_write(&self) -> Option<Changing<'_>> {
        self.state.try_write().map(Changing::new)
    }
}

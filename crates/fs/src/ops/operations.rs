//! The operations of a mount, and the owners that they work with.

use std::collections::VecDeque;
use std::sync::Arc;

use ubtrfs_file::Verity;
use ubtrfs_threads::Mutex;

use crate::commit::Committer;
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::inode::InodeId;
use crate::log::Log;
use crate::names::Names;
use crate::reserve::Reserver;
use crate::writeback::Writeback;

/// The operations of a mount, and the owners that they work with.
pub(crate) struct Operations {
    pub(crate) info: Arc<FsInfo>,
    pub(crate) names: Arc<Names>,
    pub(crate) reader: Arc<FileReader>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) log: Arc<Log>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) inactivator: Arc<Inactivator>,
    pub(crate) reserver: Arc<Reserver>,
    /// Held by a rename that moves a directory to another one, so that no cycle can arise; and by
    /// what makes and deletes subvolumes, so that nothing comes into one that is being deleted.
    pub(crate) rename_lock: Mutex<()>,
    /// What proves the content of the last few files of fs-verity that were read, newest first.
    pub(crate) verities: Mutex<VecDeque<(InodeId, Arc<Verity>)>>,
}

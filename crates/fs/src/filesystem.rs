//! A mounted volume: what everything else of this crate works on.

use std::sync::Arc;

use parking_lot::Mutex;
use ubtrfs_format::{DirIndex, Generation};
use ubtrfs_volume::Volume;

use crate::commit::Committer;
use crate::discard::Discarder;
use crate::error::{Errno, Result};
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::inode::InodeId;
use crate::log::Log;
use crate::names::Names;
use crate::reserve::Reserver;
use crate::writeback::Writeback;

/// How often a commit is tried after which nothing has changed.
const ATTEMPTS_TO_STOP: u32 = 100;

/// A mounted volume.
pub struct Filesystem {
    pub(crate) info: Arc<FsInfo>,
    pub(crate) log: Arc<Log>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) inactivator: Arc<Inactivator>,
    pub(crate) reserver: Arc<Reserver>,
    pub(crate) discards: Arc<Discarder>,
    pub(crate) reader: Arc<FileReader>,
    pub(crate) writeback: Arc<Writeback>,
    /// What works in the background: the committer and the inactivator.
    pub(crate) threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    /// Held by a rename that moves a directory to another one: no cycle may come about.
    pub(crate) rename_lock: Mutex<()>,
    pub(crate) names: Arc<Names>,
}

impl std::fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filesystem").field("subvolume", &self.root().subvolume).finish_non_exhaustive()
    }
}

impl Filesystem {
    pub(crate) fn of(info: Arc<FsInfo>) -> Self {
        let reader = Arc::new(FileReader::new(info.clone()));
        let writeback = Arc::new(Writeback::new(info.clone(), reader.clone()));
        let log = Arc::new(Log::new(info.clone(), writeback.clone()));
        let discards = Arc::new(Discarder::new(info.clone()));
        let committer =
            Arc::new(Committer::new(info.clone(), reader.clone(), writeback.clone(), log.clone(), discards.clone()));
        let inactivator = Arc::new(Inactivator::new(info.clone(), committer.clone()));
        let reserver = Reserver::new(info.clone(), committer.clone(), discards.clone(), inactivator.clone());
        Self {
            reader,
            writeback,
            log,
            discards,
            committer,
            inactivator,
            reserver: Arc::new(reserver),
            threads: Mutex::default(),
            rename_lock: Mutex::default(),
            names: Arc::new(Names::new(info.clone())),
            info,
        }
    }

    /// The volume below.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.info.volume
    }

    /// The root directory of the subvolume that is mounted.
    pub fn root(&self) -> InodeId {
        self.info.root()
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.info.is_read_only()
    }

    /// The last commit's number.
    pub fn generation(&self) -> Generation {
        self.info.generation()
    }

    /// Why the file system turned read-only, if it did.
    pub fn abort_reason(&self) -> Option<String> {
        self.info.abort_reason()
    }

    /// Whether any subvolume of the volume is read-only.
    pub fn has_read_only_subvolumes(&self) -> bool {
        self.info.has_read_only_subvolumes()
    }

    /// Whether the inode is in a subvolume that is read-only.
    pub fn is_in_read_only_subvolume(&self, id: InodeId) -> bool {
        self.info.is_in_read_only_subvolume(id)
    }

    /// Whether somebody holds a reference to an inode: [`Self::lookup`] and the like give them,
    /// [`Self::forget`] takes them.
    pub fn is_referenced(&self, id: InodeId) -> bool {
        self.info.is_referenced(id)
    }

    /// Whether somebody works on an inode, perhaps for long: whoever only looks at it (or, `to_change`,
    /// changes it) might have to wait.
    pub fn is_busy(&self, id: InodeId, to_change: bool) -> bool {
        self.info.is_busy(id, to_change)
    }

    /// The directory that holds a directory: the inode that `..` refers to. The root of a subvolume
    /// is its own parent, or lies in the directory that holds the subvolume's entry.
    pub fn parent(&self, dir: InodeId) -> Result<InodeId> {
        self.names.parent(dir)
    }

    /// The highest entry number of a directory now: a listing that starts now stops there, so that
    /// entries renamed while it goes on don't come up again and again.
    pub fn last_index(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.last_index(dir)
    }

    /// Begins a listing that comes piece by piece, and remembers where it ends: at
    /// [`Self::last_index`] of now. A later beginning moves the end of those that go on: further
    /// out, so none loses a name.
    pub fn begin_listing(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.begin_listing(dir)
    }

    /// Where the listing ends that was begun last.
    pub fn listing_end(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.listing_end(dir)
    }

    /// A listing has been read to its end. Whether all that may be under way show the same names:
    /// none has changed since they began. If not, whoever joins what was read of several shows
    /// names that are gone, or lacks some, until [`Self::forget_listings`].
    pub fn is_listing_whole(&self, dir: InodeId) -> Result<bool> {
        self.names.is_listing_whole(dir)
    }

    /// Nobody has anything any more of what was listed so far.
    pub fn forget_listings(&self, dir: InodeId) -> Result<()> {
        self.names.forget_listings(dir)
    }

    /// Makes everything durable, and changes nothing from then on until [`Self::write_again`]. For
    /// a mount that the kernel has made read-only: who changes files must have ended before.
    pub fn stop_writing(&self) -> Result<()> {
        for _ in 0..ATTEMPTS_TO_STOP {
            self.sync()?;
            if self.info.is_read_only() {
                return Ok(());
            }
            let _turn = self.inactivator.pause();
            self.committer.commit()?;
            self.info.set_read_only();
            if self.info.gate.current().is_empty() {
                return Ok(());
            }
            // Somebody still changes files: what he was told is done is not left undone.
            self.info.set_writable()?;
        }
        Err(Errno::BUSY.into())
    }

    /// Ends what [`Self::stop_writing`] began. A volume that was opened read-only stays so, and so
    /// does one after an error.
    pub fn write_again(&self) -> Result<()> {
        self.info.set_writable()?;
        self.inactivator.go_on();
        Ok(())
    }

    /// The volume's label as of the last commit.
    pub fn label(&self) -> Vec<u8> {
        self.info.committed().superblock.label_bytes().to_vec()
    }

    /// Gives the volume a label, and commits. `EINVAL` for one that is too long, or that could not
    /// be shown in a line.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.committer.set_label(label)
    }

    /// Discards what is free: of block groups in the range of addresses `start..start + len` (`len`
    /// may be `u64::MAX`: all that follows), in pieces of at least `least` bytes; and, whatever the
    /// range, what no chunk has of the devices. Returns the number of the devices' bytes. `EINVAL`
    /// for a range that is none or less than a sector, `EOPNOTSUPP` if the device can't.
    pub fn trim(&self, start: u64, len: u64, least: u64) -> Result<u64> {
        self.discards.trim(start, len, least)
    }
}

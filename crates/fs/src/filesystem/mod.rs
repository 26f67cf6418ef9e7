//! A mounted volume: how it is opened and closed, and the objects that carry out its operations.

mod devices;
mod keep;
mod open;
#[cfg(test)]
mod panics_tests;
mod salvage;
mod search;
mod settings;
mod statfs;
mod stats;
mod volume;

use std::fs::File;
use std::sync::Arc;

use ubtrfs_threads::{Mutex, Rank};

use crate::commit::Committer;
use crate::discard::Discarder;
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::inode::InodeId;
use crate::log::Log;
use crate::names::Names;
use crate::ops::{
    DirectoryOperations, Durability, Engine, FileOperations, InodeOperations, Operations, References,
    SubvolumeOperations,
};
use crate::relocation::{Balancer, Relocator};
use crate::replace::Replacer;
use crate::reserve::Reserver;
use crate::scrub::Scrubber;
use crate::writeback::Writeback;

pub use keep::KeptCommit;
pub use salvage::{FoundInode, FoundSubvolume};
pub use search::FoundItem;
pub use statfs::FilesystemStats;
pub use stats::Stats;

/// A mounted volume.
pub struct Filesystem {
    pub(crate) info: Arc<FsInfo>,
    pub(crate) log: Arc<Log>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) inactivator: Arc<Inactivator>,
    pub(crate) ops: Operations,
    pub(crate) balancer: Arc<Balancer>,
    pub(crate) discards: Arc<Discarder>,
    pub(crate) scrubber: Arc<Scrubber>,
    pub(crate) replacer: Arc<Replacer>,
    pub(crate) writeback: Arc<Writeback>,
    /// The background threads, as those of the committer and the inactivator.
    pub(crate) threads: Mutex<Vec<ubtrfs_threads::thread::JoinHandle<()>>>,
    pub(crate) names: Arc<Names>,
    pub(crate) reserver: Arc<Reserver>,
    /// An exclusive open of a block device that is only read, which keeps the kernel from mounting
    /// it.
    pub(crate) claim: Option<File>,
}

impl std::fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filesystem").field("subvolume", &self.root().subvolume).finish_non_exhaustive()
    }
}

/// Access to the operations on a volume.
impl Filesystem {
    /// References to inodes.
    pub fn references(&self) -> &References {
        &self.ops.references
    }

    /// Attributes of inodes: owner, mode, times, size, flags, xattrs, ACLs.
    pub fn inodes(&self) -> &InodeOperations {
        &self.ops.inodes
    }

    /// The content of files.
    pub fn files(&self) -> &FileOperations {
        &self.ops.files
    }

    /// Names: looks them up, lists, creates, links, renames and removes them.
    pub fn directories(&self) -> &DirectoryOperations {
        &self.ops.directories
    }

    /// Subvolumes and snapshots.
    pub fn subvolumes(&self) -> &SubvolumeOperations {
        &self.ops.subvolumes
    }

    /// Makes changes durable, and ends writing.
    pub fn durability(&self) -> &Durability {
        &self.ops.durability
    }

    /// The balance of the volume.
    pub fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    /// Relocates chunks, also away from devices that are removed or shrunk.
    pub fn relocator(&self) -> &Relocator {
        self.balancer.relocator()
    }

    /// Replaces devices.
    pub fn replacer(&self) -> &Replacer {
        &self.replacer
    }

    /// Scrubs the volume, and rewrites on lagging devices what they lack.
    pub fn scrubber(&self) -> &Scrubber {
        &self.scrubber
    }

    /// Discards free space.
    pub fn discarder(&self) -> &Discarder {
        &self.discards
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
        let reserver = Arc::new(reserver);
        let relocator = Relocator::new(info.clone(), committer.clone(), reserver.clone(), inactivator.clone());
        let names = Arc::new(Names::new(info.clone()));
        let engine = Engine {
            info: info.clone(),
            names,
            reader,
            writeback: writeback.clone(),
            log: log.clone(),
            committer: committer.clone(),
            inactivator: inactivator.clone(),
            reserver,
        };
        let ops = Operations::new(&engine);
        let replacer = Arc::new(Replacer::new(info.clone(), committer.clone()));
        let scrubber = Arc::new(Scrubber::new(info.clone(), committer.clone()));
        Self {
            info,
            names: engine.names,
            reserver: engine.reserver,
            writeback,
            log,
            discards,
            scrubber,
            replacer,
            committer,
            inactivator,
            ops,
            balancer: Arc::new(Balancer::new(relocator)),
            threads: Mutex::with_default(Rank::EngineThreads),
            claim: None,
        }
    }

    /// The root directory of the subvolume that is mounted.
    pub fn root(&self) -> InodeId {
        self.info.root()
    }

    /// Shows the volume from its top level. The mounted subvolume is treated as any other from now
    /// on: it may be deleted and reset, and programs that have files of it open go on.
    pub fn show_whole(&self) {
        self.info.show_whole();
    }
}

/// An empty volume in memory.
#[cfg(test)]
pub(crate) fn new_volume() -> Arc<ubtrfs_volume::MemoryDevice> {
    use std::os::unix::fs::FileExt as _;

    const SIZE: usize = 128 << 20;
    let mut image = tempfile::tempfile().unwrap();
    image.set_len(SIZE as u64).unwrap();
    let layout = ubtrfs_mkfs::layout(&ubtrfs_mkfs::MkfsOptions::new(SIZE as u64)).unwrap();
    layout.write(&mut [&mut image]).unwrap();
    let mut bytes = vec![0; SIZE];
    image.read_exact_at(&mut bytes, 0).unwrap();
    Arc::new(ubtrfs_volume::MemoryDevice::from_bytes(bytes))
}

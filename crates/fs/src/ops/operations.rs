//! The operations of a mount, divided by what they touch. They are listed from the lowest ones to
//! those that use others.

use std::collections::VecDeque;
use std::sync::Arc;

use ubtrfs_file::Verity;
use ubtrfs_threads::{Mutex, Rank};

use super::access_times::AccessTimes;
use super::attribute_change::AttributePlanner;
use super::entries::Entries;
use super::references::References;
use super::room::ItemRoom;
use crate::commit::Committer;
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::inode::InodeId;
use crate::log::Log;
use crate::names::Names;
use crate::reserve::Reserver;
use crate::writeback::Writeback;

/// Makes changes durable, and ends writing.
pub struct Durability {
    pub(super) info: Arc<FsInfo>,
    pub(super) log: Arc<Log>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) committer: Arc<Committer>,
    pub(super) inactivator: Arc<Inactivator>,
    pub(super) reserver: Arc<Reserver>,
}

/// Operations on the content of files: reading, writing, reflinks, preallocation, holes, fs-verity.
pub struct FileOperations {
    pub(super) info: Arc<FsInfo>,
    pub(super) reader: Arc<FileReader>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) committer: Arc<Committer>,
    pub(super) inactivator: Arc<Inactivator>,
    pub(super) reserver: Arc<Reserver>,
    pub(super) access_times: Arc<AccessTimes>,
    /// Plans changes of attributes that accompany a change of the size.
    pub(super) plans: Arc<AttributePlanner>,
    pub(super) durability: Arc<Durability>,
    /// Merkle trees of the fs-verity files that were read last, newest first.
    pub(super) verities: Mutex<VecDeque<(InodeId, Arc<Verity>)>>,
}

/// Operations on the attributes of inodes: owner, mode, times, size, flags, xattrs, ACLs.
pub struct InodeOperations {
    pub(super) info: Arc<FsInfo>,
    pub(super) reserver: Arc<Reserver>,
    pub(super) room: Arc<ItemRoom>,
    pub(super) plans: Arc<AttributePlanner>,
    pub(super) files: Arc<FileOperations>,
}

/// Operations on subvolumes and snapshots.
pub struct SubvolumeOperations {
    pub(super) info: Arc<FsInfo>,
    pub(super) names: Arc<Names>,
    pub(super) committer: Arc<Committer>,
    pub(super) inactivator: Arc<Inactivator>,
    pub(super) reserver: Arc<Reserver>,
    pub(super) entries: Arc<Entries>,
    pub(super) references: Arc<References>,
}

/// Operations on names: lookup, listing, creation, link, rename, unlink.
pub struct DirectoryOperations {
    pub(super) info: Arc<FsInfo>,
    pub(super) names: Arc<Names>,
    pub(super) inactivator: Arc<Inactivator>,
    pub(super) reserver: Arc<Reserver>,
    pub(super) room: Arc<ItemRoom>,
    pub(super) access_times: Arc<AccessTimes>,
    pub(super) entries: Arc<Entries>,
    pub(super) references: Arc<References>,
    pub(super) inodes: Arc<InodeOperations>,
    pub(super) subvolumes: Arc<SubvolumeOperations>,
}

/// The parts of the engine that the operations use.
pub(crate) struct Engine {
    pub(crate) info: Arc<FsInfo>,
    pub(crate) names: Arc<Names>,
    pub(crate) reader: Arc<FileReader>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) log: Arc<Log>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) inactivator: Arc<Inactivator>,
    pub(crate) reserver: Arc<Reserver>,
}

/// The operations of a mount.
pub(crate) struct Operations {
    pub(crate) references: Arc<References>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) files: Arc<FileOperations>,
    pub(crate) inodes: Arc<InodeOperations>,
    pub(crate) subvolumes: Arc<SubvolumeOperations>,
    pub(crate) directories: DirectoryOperations,
}

impl Operations {
    pub(crate) fn new(engine: &Engine) -> Self {
        let Engine { info, names, reader, writeback, log, committer, inactivator, reserver } = engine;
        let room = Arc::new(ItemRoom { info: info.clone(), names: names.clone() });
        let access_times = Arc::new(AccessTimes { info: info.clone(), reserver: reserver.clone() });
        let plans = Arc::new(AttributePlanner { info: info.clone(), room: room.clone() });
        let references = Arc::new(References { info: info.clone(), inactivator: inactivator.clone() });
        let durability = Arc::new(Durability {
            info: info.clone(),
            log: log.clone(),
            writeback: writeback.clone(),
            committer: committer.clone(),
            inactivator: inactivator.clone(),
            reserver: reserver.clone(),
        });
        let files = Arc::new(FileOperations {
            info: info.clone(),
            reader: reader.clone(),
            writeback: writeback.clone(),
            committer: committer.clone(),
            inactivator: inactivator.clone(),
            reserver: reserver.clone(),
            access_times: access_times.clone(),
            plans: plans.clone(),
            durability: durability.clone(),
            verities: Mutex::with_default(Rank::Verities),
        });
        let inodes = Arc::new(InodeOperations {
            info: info.clone(),
            reserver: reserver.clone(),
            room: room.clone(),
            plans,
            files: files.clone(),
        });
        let entries = Arc::new(Entries {
            info: info.clone(),
            names: names.clone(),
            room: room.clone(),
            rename_lock: Mutex::with_default(Rank::Rename),
        });
        let subvolumes = Arc::new(SubvolumeOperations {
            info: info.clone(),
            names: names.clone(),
            committer: committer.clone(),
            inactivator: inactivator.clone(),
            reserver: reserver.clone(),
            entries: entries.clone(),
            references: references.clone(),
        });
        let directories = DirectoryOperations {
            info: info.clone(),
            names: names.clone(),
            inactivator: inactivator.clone(),
            reserver: reserver.clone(),
            room,
            access_times,
            entries,
            references: references.clone(),
            inodes: inodes.clone(),
            subvolumes: subvolumes.clone(),
        };
        Self { references, durability, files, inodes, subvolumes, directories }
    }
}

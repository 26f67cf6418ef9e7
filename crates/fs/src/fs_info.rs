//! What all parts of a mounted file system share: the volume and its trees as of the last commit,
//! space, transactions, inodes, and whether anything may be changed.
//!
//! Its part in invariant 13: [`FsInfo::abort`] turns the file system read-only for good.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use ubtrfs_format::items::INLINE_DATA_OFFSET;
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId, max_item_size};
use ubtrfs_tree::{Geometry, NodeCache, sentence};
use ubtrfs_volume::Volume;

use crate::commit_request::CommitRequest;
use crate::committed::{Committed, TreeRoot};
use crate::error::{Errno, Error, Result};
use crate::fsync_group::Durable;
use crate::inode::{Inode, InodeId, InodeState, InodeTable, load_inode};
use crate::options::Options;
use crate::space::{Demand, Reservation, Space};
use crate::transaction::{Gate, Transaction};

/// A subvolume's state that outlives its inodes' stay in memory.
pub(crate) struct Subvolume {
    pub(crate) read_only: bool,
    next_ino: AtomicU64,
}

impl Subvolume {
    /// A number that no inode of the subvolume has had.
    pub(crate) fn new_ino(&self) -> Result<Ino> {
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        // The kernel's driver leaves the last one free, too.
        if ino >= Ino::LAST_FREE.0 {
            self.next_ino.store(Ino::LAST_FREE.0, Ordering::Relaxed);
            return Err(Errno::NOSPC.into());
        }
        Ok(Ino(ino))
    }
}

/// Counts what a mount has done.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) commit_micros: AtomicU64,
    pub(crate) fsyncs: AtomicU64,
    pub(crate) fsyncs_without_work: AtomicU64,
    pub(crate) log_writes: AtomicU64,
    pub(crate) log_requests: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) log_searches: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_reserved: AtomicU64,
    pub(crate) bytes_placed: AtomicU64,
    pub(crate) bytes_cloned: AtomicU64,
    pub(crate) orphans_cleaned: AtomicU64,
    pub(crate) nodes_unshared: AtomicU64,
    pub(crate) leaves_written_early: AtomicU64,
}

/// What a mounted file system is made of.
pub(crate) struct FsInfo {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<NodeCache>,
    pub(crate) options: Options,
    pub(crate) space: Space,
    pub(crate) gate: Gate,
    pub(crate) inodes: InodeTable,
    pub(crate) counters: Counters,
    pub(crate) commit_request: CommitRequest,
    committed: RwLock<Arc<Committed>>,
    /// The transaction that is being committed.
    frozen: RwLock<Option<Arc<Transaction>>>,
    subvolumes: RwLock<HashMap<TreeId, Arc<Subvolume>>>,
    /// Nothing may be changed: from the beginning, after an error, or while a remount has it so.
    read_only: AtomicBool,
    /// The space of a volume that was opened to be read only is not known.
    began_read_only: bool,
    aborted: Mutex<Option<String>>,
    mounted_subvolume: TreeId,
}

impl FsInfo {
    /// Of a volume as its last commit left it.
    pub(crate) fn new(
        volume: Arc<Volume>,
        cache: Arc<NodeCache>,
        options: Options,
        committed: Committed,
        space: Space,
        read_only: bool,
        mounted_subvolume: TreeId,
    ) -> Self {
        // A generation that a crash left in a copy of the superblock alone stays that commit's.
        let skips = !read_only && volume.has_copy_ahead();
        let next = committed.generation.next();
        let first = if skips { next.next() } else { next };
        Self {
            inodes: InodeTable::new(options.memory / 8 / 1024),
            volume,
            cache,
            options,
            space,
            gate: Gate::new(first),
            counters: Counters::default(),
            commit_request: CommitRequest::default(),
            committed: RwLock::new(Arc::new(committed)),
            frozen: RwLock::default(),
            subvolumes: RwLock::default(),
            read_only: AtomicBool::new(read_only),
            began_read_only: read_only,
            aborted: Mutex::default(),
            mounted_subvolume,
        }
    }

    /// The root directory of the subvolume that is mounted.
    pub(crate) fn root(&self) -> InodeId {
        InodeId::root_of(self.mounted_subvolume)
    }

    /// Whether nothing may be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Whether nothing may be changed until the end of the mount: it began read-only, or an error
    /// made it so.
    pub(crate) fn is_read_only_for_good(&self) -> bool {
        self.is_read_only() && (self.began_read_only || self.abort_reason().is_some())
    }

    /// Whether nothing may be changed, without any error, and nothing waits to be made durable.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_read_only() && self.abort_reason().is_none() && (self.began_read_only || self.gate.current().is_empty())
    }

    /// The last commit's number.
    pub(crate) fn generation(&self) -> Generation {
        self.committed().generation
    }

    /// The last commit. Whoever holds it keeps the space of its trees from being used again: hold
    /// it for as long as something is looked up in them.
    pub(crate) fn committed(&self) -> Arc<Committed> {
        self.committed.read().clone()
    }

    /// The open transaction and the one that is being committed.
    pub(crate) fn open_transactions(&self) -> Vec<Arc<Transaction>> {
        let mut transactions = vec![self.gate.current()];
        transactions.extend(self.frozen.read().clone());
        transactions
    }

    /// Publishes a durable commit and returns the one before it.
    pub(crate) fn publish(&self, committed: Arc<Committed>) -> Arc<Committed> {
        std::mem::replace(&mut self.committed.write(), committed)
    }

    /// Whether whoever reads this volume leaves out what fails like this: noted then.
    pub(crate) fn passes_over(&self, error: &Error) -> bool {
        error.errno() != Errno::AGAIN && self.options.rescue.passes_over(error)
    }

    /// Turns read-only for good. Says why, once.
    pub(crate) fn abort(&self, error: &Error) {
        let mut aborted = self.aborted.lock();
        if aborted.is_none() {
            let reason = sentence(error);
            tracing::error!("turning read-only: {reason}");
            *aborted = Some(reason);
        }
        self.read_only.store(true, Ordering::Release);
        self.volume.set_read_only();
        self.commit_request.ask();
    }

    /// Why the file system turned read-only, if it did.
    pub(crate) fn abort_reason(&self) -> Option<String> {
        self.aborted.lock().clone()
    }

    /// An error if nothing may be changed in this subvolume.
    pub(crate) fn check_writable(&self, subvolume: TreeId) -> Result<Arc<Subvolume>> {
        if self.is_read_only() {
            return Err(match &*self.aborted.lock() {
                Some(reason) => Error::Aborted(reason.clone()),
                None => Errno::ROFS.into(),
            });
        }
        let subvolume = self.subvolume(subvolume)?;
        if subvolume.read_only { Err(Errno::ROFS.into()) } else { Ok(subvolume) }
    }

    /// Whether any subvolume of the volume is read-only.
    pub(crate) fn has_read_only_subvolumes(&self) -> bool {
        self.committed().subvolumes().any(TreeRoot::is_read_only)
    }

    /// Whether the inode is in a subvolume that is read-only.
    pub(crate) fn is_in_read_only_subvolume(&self, id: InodeId) -> bool {
        self.committed().trees.get(&id.subvolume).is_some_and(TreeRoot::is_read_only)
    }

    pub(crate) fn subvolume(&self, id: TreeId) -> Result<Arc<Subvolume>> {
        if let Some(found) = self.subvolumes.read().get(&id) {
            return Ok(found.clone());
        }
        let committed = self.committed();
        let root = committed.trees.get(&id).ok_or(Errno::NOENT)?;
        let highest = Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX);
        let last = committed.tree(id)?.last_at_or_before(&highest)?.map_or(0, |item| item.key.objectid);
        let subvolume = Arc::new(Subvolume {
            read_only: root.is_read_only(),
            next_ino: AtomicU64::new(last.max(Ino::FIRST_FREE.0) + 1),
        });
        Ok(self.subvolumes.write().entry(id).or_insert(subvolume).clone())
    }

    /// The inode, from memory or from the committed trees.
    pub(crate) fn inode(&self, id: InodeId) -> Result<Arc<Inode>> {
        loop {
            if let Some(inode) = self.inodes.get(id) {
                return Ok(inode);
            }
            let committed = self.committed();
            let loaded = Arc::new(load_inode(&committed, id)?);
            // If a commit was published meanwhile, the inode may have changed and left memory
            // again: load it anew. None is published before the inode is in the table.
            let published = self.committed.read();
            if Arc::ptr_eq(&committed, &published) {
                return Ok(self.inodes.insert(loaded));
            }
        }
    }

    /// Whether somebody holds a reference to an inode: [`Self::lookup`] and the like give them,
    /// [`Self::forget`] takes them.
    pub(crate) fn is_referenced(&self, id: InodeId) -> bool {
        self.inodes.is_referenced(id)
    }

    /// Whether somebody works on an inode, perhaps for long: whoever only looks at it (or,
    /// `to_change`, changes it) might have to wait.
    pub(crate) fn is_busy(&self, id: InodeId, to_change: bool) -> bool {
        self.inodes
            .get(id)
            .is_some_and(|inode| if to_change { inode.try_write().is_none() } else { inode.try_read().is_none() })
    }

    /// Reserves if that takes no more than looking: starts no I/O, waits for nothing. The caller
    /// may hold locks.
    pub(crate) fn try_reserve(&self, demand: Demand) -> Option<Reservation<'_>> {
        if self.changes() > self.most_changes() {
            self.commit_request.ask();
        }
        let mut space = self.space.lock();
        space.reserve(demand).ok().map(|()| Reservation::of(&self.space, &mut space, demand))
    }

    /// What the open transaction takes in memory, in bytes. Dirty data, of whatever transaction,
    /// counts a part of what it takes: it has a limit of its own, and no work is left for the
    /// commit once it is written out.
    pub(crate) fn changes(&self) -> u64 {
        const DIRTY_PART: (u64, u64) = (2, 7);
        let open = self.gate.current();
        open.memory().changes() + self.dirty_bytes_with(&open) * DIRTY_PART.0 / DIRTY_PART.1
    }

    /// Memory that dirty data takes, in bytes.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes_with(&self.gate.current())
    }

    fn dirty_bytes_with(&self, open: &Transaction) -> u64 {
        let frozen = self.frozen.read().as_ref().map_or(0, |transaction| transaction.memory().dirty());
        open.memory().dirty() + frozen
    }

    /// How many bytes of [changes](Self::changes) one transaction should hold; there may be half as
    /// many more (invariant 26).
    ///
    /// A commit works on the like of what its transaction holds, and the next transaction fills
    /// meanwhile: at the worst the two take five eighths of the memory. With three tenths for the
    /// node cache and an eighth for clean inodes that is all of it and a twentieth more; the three
    /// are `lazy_box` at their worst together.
    pub(crate) fn most_changes(&self) -> u64 {
        (self.options.memory / 7) as u64
    }

    /// Gives back data space that was reserved and is not needed.
    pub(crate) fn unreserve_data(&self, bytes: u64) {
        if bytes > 0 {
            self.space.lock().unreserve_data(bytes);
        }
    }

    pub(crate) fn most_of_item(&self) -> usize {
        max_item_size(self.volume.node_size() as usize)
    }

    /// Whether an item with so many bytes may come about.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.most_of_item() || self.options.unchecked_items
    }

    /// The size of the largest files that are kept within metadata: below a sector, and an item's.
    pub(crate) fn largest_inline(&self) -> u64 {
        let of_item = if self.options.unchecked_items { usize::MAX } else { self.most_of_item() - INLINE_DATA_OFFSET };
        self.options.max_inline.min(u64::from(self.volume.sector_size()) - 1).min(of_item as u64)
    }

    /// What all nodes of the volume have in common.
    pub(crate) fn geometry(&self) -> Geometry {
        let superblock = self.volume.superblock();
        Geometry {
            node_size: superblock.node_size,
            sector_size: superblock.sector_size,
            fsid: superblock.metadata_fsid(),
            chunk_tree_uuid: self.volume.chunk_tree_uuid(),
            checksum: superblock.checksum,
        }
    }

    /// Proof that what has not changed since an earlier superblock is durable. An error if the file
    /// system has turned read-only: then it is not known what is.
    pub(crate) fn already_durable(&self) -> Result<Durable> {
        Durable::already(self.aborted.lock().is_some())
    }

    /// Freezes what an inode has of older transactions, and says which one is open: a plan made now
    /// holds if that one is open still when it is carried out.
    pub(crate) fn freeze_older(&self, state: &mut InodeState) -> Generation {
        let transaction = self.gate.enter();
        state.freeze_before(transaction.generation);
        transaction.generation
    }

    /// The transaction that is being committed.
    pub(crate) fn frozen_transaction(&self) -> Option<Arc<Transaction>> {
        self.frozen.read().clone()
    }

    /// A commit begins, or has ended.
    pub(crate) fn set_frozen_transaction(&self, transaction: Option<Arc<Transaction>>) {
        *self.frozen.write() = transaction;
    }

    /// Lets nothing be changed for as long as a remount has it so.
    pub(crate) fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// Lets files be changed again after [`Self::set_read_only`]. A volume that was opened
    /// read-only stays so, and so does one after an error.
    pub(crate) fn set_writable(&self) -> Result<()> {
        let aborted = self.aborted.lock();
        match &*aborted {
            Some(reason) => Err(Error::Aborted(reason.clone())),
            None if self.began_read_only => Err(Errno::ROFS.into()),
            None => {
                self.read_only.store(false, Ordering::Release);
                Ok(())
            }
        }
    }
}

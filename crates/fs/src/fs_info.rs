//! The state that all parts of a mounted file system share: the volume and its trees as of the last
//! commit, space, transactions, inodes, and the read-only state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_format::items::{INLINE_DATA_OFFSET, Timespec};
use ubtrfs_format::{CompatRo, Generation, Ino, TreeId, Uuid, max_item_size};
use ubtrfs_space::{Demand, Reservation, Space};
use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::{Panics, Rank, RwLock};
use ubtrfs_tree::{Geometry, NodeCache};
use ubtrfs_volume::{Buffer, LockCounters, Published, Volume};

use crate::clock;
use crate::committed::Committed;
use crate::deleted_subvolumes::DeletedSubvolumes;
use crate::error::{Errno, Error, Result};
use crate::exclusive_op::ExclusiveOp;
use crate::faults::CommitFault;
use crate::file_defaults::FileDefaults;
use crate::fsync_group::Durable;
use crate::inode::{Inode, InodeId, InodeTable, load_inode};
use crate::options::Options;
use crate::published_roots::PublishedRoots;
use crate::subvolume_table::{Subvolume, SubvolumeTable};
use crate::transaction::{Gate, Transaction};
use crate::tree_roots::TreeRoot;
use crate::used_features::UsedFeatures;
use crate::work_request::WorkRequest;
use crate::writability::Writability;

/// Counts what a mount has done.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) commit_micros: AtomicU64,
    pub(crate) commit_bytes: AtomicU64,
    /// The part of `commit_bytes` that the last commit wrote.
    pub(crate) last_commit_bytes: AtomicU64,
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

/// The shared state of a mounted file system.
pub(crate) struct FsInfo {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<NodeCache>,
    pub(crate) options: Options,
    pub(crate) space: Space,
    pub(crate) gate: Gate,
    pub(crate) inodes: InodeTable,
    pub(crate) counters: Counters,
    pub(crate) commit_request: WorkRequest,
    /// Requests to resilver lagging devices.
    pub(crate) resilver_request: WorkRequest,
    pub(crate) exclusive_op: ExclusiveOp,
    /// Held shared from the first copy of extents that are moved until a commit contains them. If a
    /// device fails a write of such a copy, resilvering from commits can't supply it.
    pub(crate) uncommitted_copies: RwLock<()>,
    pub(crate) roots: PublishedRoots,
    pub(crate) subvolumes: SubvolumeTable,
    pub(crate) deleted: DeletedSubvolumes,
    pub(crate) writability: Writability,
    /// Panics of threads that commit or write a log.
    pub(crate) panics: Panics,
    mounted_subvolume: TreeId,
    /// Whether the mounted subvolume is treated like any other.
    shows_whole: AtomicBool,
    pub(crate) file_defaults: FileDefaults,
    pub(crate) features: UsedFeatures,
}

impl FsInfo {
    /// Creates the state of a volume as its last commit left it.
    pub(crate) fn new(
        volume: Arc<Volume>,
        cache: Arc<NodeCache>,
        options: Options,
        committed: Committed,
        space: Space,
        read_only: bool,
        mounted_subvolume: TreeId,
    ) -> Self {
        // If a crash left a generation only in a superblock copy, that generation is not used
        // again.
        let skips = !read_only && volume.superblocks().may_have_copy_ahead();
        let next = committed.generation.next();
        let first = if skips { next.next() } else { next };
        Self {
            inodes: InodeTable::new(options.memory / 8 / 1024),
            file_defaults: FileDefaults::new(options.compression, options.new_file_flags),
            features: UsedFeatures::default(),
            writability: Writability::new(read_only, options.begins_at_rest),
            volume,
            cache,
            options,
            space,
            gate: Gate::new(first),
            panics: Panics::default(),
            counters: Counters::default(),
            commit_request: WorkRequest::new(Rank::CommitRequest),
            resilver_request: WorkRequest::new(Rank::ResilverRequest),
            exclusive_op: ExclusiveOp::default(),
            uncommitted_copies: RwLock::with_default(Rank::UncommittedCopies),
            deleted: DeletedSubvolumes::found(&committed),
            roots: PublishedRoots::new(committed),
            subvolumes: SubvolumeTable::new(),
            mounted_subvolume,
            shows_whole: AtomicBool::new(false),
        }
    }

    /// The root directory of the subvolume that is mounted.
    pub(crate) fn root(&self) -> InodeId {
        InodeId::root_of(self.mounted_subvolume)
    }

    /// Shows the volume from its top level from now on.
    pub(crate) fn show_whole(&self) {
        self.shows_whole.store(true, Ordering::Release);
    }

    /// Whether a subvolume can't be deleted, since the mount shows nothing outside it.
    pub(crate) fn has_to_stay(&self, id: TreeId) -> bool {
        id == self.mounted_subvolume && !self.shows_whole.load(Ordering::Acquire)
    }

    /// Whether nothing may be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.writability.is_read_only()
    }

    /// Whether the mount is read-only without any error, and everything is durable.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_read_only()
            && self.aborted().is_none()
            && (self.writability.began_read_only() || self.is_all_committed())
    }

    /// Whether nothing has changed since the last commit that ended: neither in the open
    /// transaction nor in one that is being committed. The latter is checked last, since the open
    /// transaction becomes it.
    pub(crate) fn is_all_committed(&self) -> bool {
        self.gate.current().is_empty() && !self.roots.has_frozen()
    }

    /// Returns the time of a change made now.
    pub(crate) fn now(&self) -> Timespec {
        self.options.reproducible.map_or_else(clock::now, |fixed| fixed.time)
    }

    /// Returns the UUID of a new subvolume.
    pub(crate) fn new_uuid(&self, tree: TreeId) -> Uuid {
        let derive = |seed: Uuid| uuid::Uuid::new_v5(&uuid::Uuid::from_bytes(seed.0), &tree.0.to_le_bytes());
        let uuid = self.options.reproducible.map_or_else(uuid::Uuid::new_v4, |fixed| derive(fixed.seed));
        Uuid(uuid.into_bytes())
    }

    /// Whether fs-verity may protect any file.
    pub(crate) fn uses_verity(&self) -> bool {
        self.features.has_verity() || self.committed().superblock.compat_ro.contains(CompatRo::VERITY)
    }

    /// Returns the generation of the last commit.
    pub(crate) fn generation(&self) -> Generation {
        self.committed().generation
    }

    /// Returns the last commit. A reference to it keeps the space of its trees from being reused,
    /// and must be held during lookups in them.
    pub(crate) fn committed(&self) -> Arc<Committed> {
        self.roots.committed()
    }

    /// Counts how often the locks were taken that all requests may share. The inode table and the
    /// node cache have many locks, one for each shard.
    pub(crate) fn lock_counters(&self) -> impl Iterator<Item = (&'static str, LockCounters)> {
        [
            ("gate", self.gate.counters()),
            ("space", self.space.counters()),
            ("inode table", self.inodes.counters()),
            ("node cache", self.cache.lock_counters()),
            ("chunk map", self.volume.chunk_map().lock_counters()),
            ("buffer pool", Buffer::pool_counters()),
        ]
        .into_iter()
    }

    /// Returns the open transaction and the one that is being committed.
    pub(crate) fn open_transactions(&self) -> Vec<Arc<Transaction>> {
        let mut transactions = vec![self.gate.current()];
        transactions.extend(self.roots.frozen());
        transactions
    }

    /// Publishes a durable commit and returns the one before it.
    pub(crate) fn publish(&self, committed: &Arc<Committed>, published: &Published) -> Arc<Committed> {
        self.roots.publish(committed, published, || {
            if !self.options.faults().in_commit(CommitFault::ReadOnlyAfterPublish) {
                self.follow_read_only(committed);
            }
        })
    }

    /// Sets subvolumes read-only or writable in memory as the commit just published says. The
    /// operation that requested the change would do so too late, after operations that request the
    /// opposite in the open transaction.
    fn follow_read_only(&self, committed: &Committed) {
        let Some(ended) = self.roots.frozen() else { return };
        let changed: Vec<TreeId> = ended.subvolumes().read_only.keys().copied().collect();
        if changed.is_empty() {
            return;
        }
        // Only commits open another transaction.
        let open = self.gate.current();
        let open = open.subvolumes();
        for id in changed {
            let Some(subvolume) = self.subvolumes.get(id) else { continue };
            let is = committed.trees.get(id).is_some_and(TreeRoot::is_read_only);
            subvolume.set_read_only(is || open.read_only.get(&id) == Some(&true));
        }
    }

    /// Records in the open transaction that a subvolume becomes read-only or writable with its
    /// commit. A subvolume that becomes read-only must not change in later transactions, so it is
    /// read-only in memory from now on.
    pub(crate) fn change_read_only(transaction: &Transaction, id: TreeId, subvolume: &Subvolume, to: bool) {
        // Publishing accesses both under this lock.
        let mut changes = transaction.subvolumes();
        changes.read_only.insert(id, to);
        if to {
            subvolume.set_read_only(true);
        }
    }

    /// Whether a rescue mount skips parts that fail with this error; the error is noted then.
    pub(crate) fn passes_over(&self, error: &Error) -> bool {
        error.errno() != Errno::AGAIN && self.options.rescue.passes_over(error)
    }

    /// Makes the file system [read-only for good](Writability::abort).
    pub(crate) fn abort(&self, error: Error) -> Arc<Error> {
        let error = self.writability.abort(error, || self.volume.set_read_only());
        self.commit_request.ask();
        error
    }

    /// Returns the error by which the file system turned read-only, if it did.
    pub(crate) fn aborted(&self) -> Option<Arc<Error>> {
        self.writability.aborted()
    }

    /// Fails if a thread has panicked while it changed what commits and logs write. To be called
    /// before a superblock is written, since the changes of such a thread may be half done.
    pub(crate) fn check_panics(&self) -> Result<()> {
        let has_panicked = self.panics.any() || self.gate.has_panicked() || self.space.has_panicked();
        if has_panicked {
            // By invariant 56 none of it becomes durable.
            return Err(Error::Panicked);
        }
        Ok(())
    }

    /// Whether the subvolume was deleted.
    pub(crate) fn is_deleted(&self, subvolume: TreeId) -> bool {
        self.deleted.is_deleted(subvolume)
    }

    /// Whether it is the root directory of a deleted subvolume. Its entries can be looked up, but
    /// neither listed nor changed, as in a directory that was removed. The answer stays valid while
    /// the directory is locked.
    pub(crate) fn is_deleted_root(&self, dir: InodeId) -> bool {
        dir.ino == Ino::ROOT_DIR && self.is_deleted(dir.subvolume)
    }

    /// Whether parts of the subvolume's tree may be dropped, already or soon.
    pub(crate) fn is_being_dropped(&self, subvolume: TreeId) -> bool {
        self.deleted.is_released(subvolume) && !self.committed().has_subvolume(subvolume)
    }

    /// Marks the subvolumes that a commit has replaced as deleted. The commit has been published,
    /// and its inodes have no batch of it any more.
    pub(crate) fn end_replaced(&self, transaction: &Transaction) {
        let changes = transaction.subvolumes();
        for replaced in changes.new.iter().filter_map(|new| new.replaces) {
            self.deleted.add(replaced);
        }
    }

    /// Returns an id that no subvolume has had.
    pub(crate) fn new_tree_id(&self) -> Result<TreeId> {
        self.subvolumes.new_id(&self.committed(), self.deleted.last())
    }

    /// Returns the newest transaction before `generation` that contains a snapshot of a subvolume,
    /// which shares what the subvolume had then. The commit in flight counts, too.
    pub(crate) fn last_snapshot(&self, id: TreeId, generation: Generation) -> Generation {
        // This is read before the committed trees, which contain every transaction that is not in
        // flight any more.
        let in_flight = self.roots.frozen().filter(|frozen| frozen.generation < generation);
        if let Some(frozen) = in_flight.filter(|frozen| frozen.subvolumes().has_snapshot_of(id)) {
            return frozen.generation;
        }
        self.committed().trees.get(id).map_or(Generation(0), |tree| tree.item.last_snapshot)
    }

    /// Fails with `EROFS` if this subvolume is read-only; returns it otherwise.
    pub(crate) fn check_writable(&self, subvolume: TreeId) -> Result<Arc<Subvolume>> {
        self.writability.check()?;
        let subvolume = self.subvolume(subvolume)?;
        if subvolume.is_read_only() { Err(Errno::ROFS.into()) } else { Ok(subvolume) }
    }

    /// Whether the volume has a subvolume that is read-only.
    pub(crate) fn has_read_only_subvolumes(&self) -> bool {
        self.committed().trees.has_read_only()
    }

    /// Whether the inode is in a subvolume that is read-only.
    pub(crate) fn is_in_read_only_subvolume(&self, id: InodeId) -> bool {
        self.committed().trees.get(id.subvolume).is_some_and(TreeRoot::is_read_only)
    }

    /// Returns a subvolume, from memory or from the committed trees.
    pub(crate) fn subvolume(&self, id: TreeId) -> Result<Arc<Subvolume>> {
        if let Some(found) = self.subvolumes.get(id) {
            return Ok(found);
        }
        let load = |committed: &Arc<Committed>| Subvolume::load(committed, id).map(Arc::new);
        self.roots.load(load, |loaded| self.subvolumes.insert(id, &loaded))
    }

    /// Returns the inode, from memory or from the committed trees. `ESTALE` if its subvolume was
    /// deleted and no file of it is open.
    pub(crate) fn inode(&self, id: InodeId) -> Result<Arc<Inode>> {
        if self.deleted.is_released(id.subvolume) {
            return Err(Errno::STALE.into());
        }
        if let Some(inode) = self.inodes.get(id) {
            return Ok(inode);
        }
        let load = |committed: &Arc<Committed>| match load_inode(committed, id) {
            // Parts of its tree may be gone by now.
            Err(_) if self.deleted.is_released(id.subvolume) => Err(Errno::STALE.into()),
            loaded => loaded.map(Arc::new),
        };
        self.roots.load(load, |loaded| self.inodes.insert(loaded))
    }

    /// Whether an inode has references: lookups and others take them,
    /// [`References::forget`](crate::References::forget) drops them.
    pub(crate) fn is_referenced(&self, id: InodeId) -> bool {
        self.inodes.is_referenced(id)
    }

    /// Whether an inode is locked, perhaps for long, so that reading it (or changing it if
    /// `to_change` is set) might block.
    pub(crate) fn is_busy(&self, id: InodeId, to_change: bool) -> bool {
        self.inodes
            .get(id)
            .is_some_and(|inode| if to_change { inode.try_write().is_none() } else { inode.try_read().is_none() })
    }

    /// Reserves space if there is enough already. Starts no I/O, and does not block. The caller may
    /// hold locks.
    pub(crate) fn try_reserve(&self, demand: Demand) -> Option<Reservation<'_>> {
        if self.changes() > self.most_changes() {
            self.commit_request.ask();
        }
        let mut space = self.space.lock();
        space.reserve(demand).ok().map(|()| Reservation::of(&self.space, &mut space, demand))
    }

    /// Returns the memory of the open transaction, in bytes. Dirty data, of any transaction, counts
    /// with a part of its size: it has a limit of its own, and leaves no work for the commit once
    /// it is written back.
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
        open.memory().dirty() + self.roots.frozen_dirty_bytes()
    }

    /// The number of bytes of [changes](Self::changes) that one transaction should not exceed; it
    /// may exceed them by half (invariant 26).
    ///
    /// A commit needs about as much working memory as its transaction takes, while the next
    /// transaction fills: in the worst case the two take five eighths of the memory. With three
    /// tenths for the node cache and an eighth for clean inodes that is a twentieth more than all
    /// of it, but the three rarely reach their maximum together.
    pub(crate) fn most_changes(&self) -> u64 {
        (self.options.memory / 7) as u64
    }

    /// Returns data space that was reserved and is not needed.
    pub(crate) fn unreserve_data(&self, bytes: u64) {
        if bytes > 0 {
            self.space.lock().unreserve_data(bytes);
        }
    }

    pub(crate) fn most_of_item(&self) -> usize {
        max_item_size(self.volume.node_size() as usize)
    }

    /// Whether an item of `bytes` bytes fits in a leaf.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.most_of_item() || self.options.faults().has_unchecked_items()
    }

    /// Returns the size of the largest inline files: less than a sector, and at most what fits in
    /// an item.
    pub(crate) fn largest_inline(&self) -> u64 {
        let of_item = if self.options.faults().has_unchecked_items() {
            usize::MAX
        } else {
            self.most_of_item() - INLINE_DATA_OFFSET
        };
        self.options.max_inline.min(u64::from(self.volume.sector_size()) - 1).min(of_item as u64)
    }

    /// Returns what all nodes of the volume have in common.
    pub(crate) fn geometry(&self) -> Geometry {
        let superblock = self.volume.superblocks().current();
        Geometry {
            node_size: superblock.node_size,
            sector_size: superblock.sector_size,
            fsid: superblock.metadata_fsid(),
            chunk_tree_uuid: self.volume.chunk_tree_uuid(),
            checksum: superblock.checksum,
        }
    }

    /// Returns the proof that what has not changed since an earlier superblock is durable. If the
    /// file system has turned read-only, returns the error by which it did: then it is not known
    /// what is durable.
    pub(crate) fn already_durable(&self) -> std::result::Result<Durable, Arc<Error>> {
        Durable::already(self.aborted())
    }

    /// Replaces the addresses of extents that the commit just published has moved in all maps in
    /// memory. A thread that holds an inode's lock may have looked up old addresses, so this waits
    /// for each lock; afterwards no thread uses an old address any more (invariant 35).
    pub(crate) fn follow_moved(&self) {
        let Some(moved) = self.roots.moved() else { return };
        for inode in self.inodes.all() {
            let mut state = inode.write();
            if !state.pending.is_clean() && !state.pending.layout.is_empty() {
                state.pending.layout.follow(&moved);
            }
        }
        self.gate.current().follow_shared(&moved);
        self.roots.set_moved(None);
    }
}

//! A mounted volume: what everything else of this crate works on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_tree::{NodeCache, sentence};
use ubtrfs_volume::Volume;

use crate::committed::{Committed, TreeRoot};
use crate::discard::Discarder;
use crate::error::{Errno, Error, Refusal, Result};
use crate::inactivate::Inactivator;
use crate::inode::{Inode, InodeId, InodeTable, load_inode};
use crate::label::LABEL_SIZE;
use crate::log::Log;
use crate::ops::InFlight;
use crate::options::Options;
use crate::space::{Demand, Reservation, Shortage, Space};
use crate::subvolume_entries::MovedSubvolumes;
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

/// Who waits for the background committer, and why it should wake.
#[derive(Default)]
pub(crate) struct CommitterState {
    pub(crate) wanted: bool,
    pub(crate) stop: bool,
}

/// How often a commit is tried after which nothing has changed.
const ATTEMPTS_TO_STOP: u32 = 100;

/// A mounted volume.
pub struct Filesystem {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cache: Arc<NodeCache>,
    pub(crate) options: Options,
    committed: RwLock<Arc<Committed>>,
    /// The transaction that is being committed.
    pub(crate) frozen: RwLock<Option<Arc<Transaction>>>,
    pub(crate) space: Space,
    pub(crate) gate: Gate,
    pub(crate) inodes: InodeTable,
    pub(crate) log: Log,
    subvolumes: RwLock<HashMap<TreeId, Arc<Subvolume>>>,
    /// Held by the committer for a whole commit.
    pub(crate) commit_place: Mutex<()>,
    pub(crate) committer: Mutex<CommitterState>,
    pub(crate) committer_wakes: Condvar,
    pub(crate) inactivator: Inactivator,
    pub(crate) discards: Discarder,
    pub(crate) in_flight: InFlight,
    /// What works in the background: the committer and the inactivator.
    pub(crate) threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    /// Held by a rename that moves a directory to another one: no cycle may come about.
    pub(crate) rename_lock: Mutex<()>,
    pub(crate) moved_subvolumes: MovedSubvolumes,
    /// Nothing may be changed: from the beginning, after an error, or while a remount has it so.
    read_only: AtomicBool,
    /// The space of a volume that was opened to be read only is not known.
    began_read_only: bool,
    aborted: Mutex<Option<String>>,
    pub(crate) counters: Counters,
    pub(crate) reader: crate::file::extent_reader::ExtentReader,
    /// The volume's next label.
    pub(crate) new_label: Mutex<Option<[u8; LABEL_SIZE]>>,
    mounted_subvolume: TreeId,
}

impl std::fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filesystem").field("subvolume", &self.mounted_subvolume).finish_non_exhaustive()
    }
}

impl Filesystem {
    pub(crate) fn assemble(
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
        let gate = Gate::new(first);
        let reader = crate::file::extent_reader::ExtentReader::new(volume.sector_size());
        Self {
            inodes: InodeTable::new(options.memory / 8 / 1024),
            volume,
            cache,
            options,
            committed: RwLock::new(Arc::new(committed)),
            frozen: RwLock::default(),
            space,
            gate,
            log: Log::new(first),
            subvolumes: RwLock::default(),
            commit_place: Mutex::default(),
            committer: Mutex::default(),
            committer_wakes: Condvar::new(),
            inactivator: Inactivator::default(),
            discards: Discarder::default(),
            in_flight: InFlight::default(),
            threads: Mutex::default(),
            rename_lock: Mutex::default(),
            moved_subvolumes: MovedSubvolumes::default(),
            read_only: AtomicBool::new(read_only),
            began_read_only: read_only,
            aborted: Mutex::default(),
            counters: Counters::default(),
            reader,
            new_label: Mutex::default(),
            mounted_subvolume,
        }
    }

    /// The root directory of the subvolume that is mounted.
    pub fn root(&self) -> InodeId {
        InodeId::root_of(self.mounted_subvolume)
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
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

    /// Makes everything durable, and changes nothing from then on until [`Self::write_again`]. For
    /// a mount that the kernel has made read-only: who changes files must have ended before.
    pub fn stop_writing(&self) -> Result<()> {
        for _ in 0..ATTEMPTS_TO_STOP {
            self.sync()?;
            if self.is_read_only() {
                return Ok(());
            }
            let _turn = self.inactivator.pause();
            self.commit_once()?;
            self.read_only.store(true, Ordering::Release);
            if self.gate.current().is_empty() {
                return Ok(());
            }
            // Somebody still changes files: what he was told is done is not left undone.
            self.read_only.store(false, Ordering::Release);
        }
        Err(Errno::BUSY.into())
    }

    /// Ends what [`Self::stop_writing`] began. A volume that was opened read-only stays so, and so
    /// does one after an error.
    pub fn write_again(&self) -> Result<()> {
        let aborted = self.aborted.lock();
        match &*aborted {
            Some(reason) => Err(Error::Aborted(reason.clone())),
            None if self.began_read_only => Err(Errno::ROFS.into()),
            None => {
                self.read_only.store(false, Ordering::Release);
                drop(aborted);
                self.inactivator.go_on();
                Ok(())
            }
        }
    }

    /// The volume below.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The last commit's number.
    pub fn generation(&self) -> Generation {
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
        self.committer_wakes.notify_all();
    }

    /// Why the file system turned read-only, if it did.
    pub fn abort_reason(&self) -> Option<String> {
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
    pub fn has_read_only_subvolumes(&self) -> bool {
        self.committed().subvolumes().any(TreeRoot::is_read_only)
    }

    /// Whether the inode is in a subvolume that is read-only.
    pub fn is_in_read_only_subvolume(&self, id: InodeId) -> bool {
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
    pub fn is_referenced(&self, id: InodeId) -> bool {
        self.inodes.is_referenced(id)
    }

    /// Whether somebody works on an inode, perhaps for long: whoever only looks at it (or,
    /// `to_change`, changes it) might have to wait.
    pub fn is_busy(&self, id: InodeId, to_change: bool) -> bool {
        self.inodes
            .get(id)
            .is_some_and(|inode| if to_change { inode.try_write().is_none() } else { inode.try_read().is_none() })
    }

    /// Runs an operation with what it may need reserved; gives metadata back if it fails, for then
    /// it changed nothing. Called as [`Self::reserve`] is.
    pub(crate) fn with_reserved<T>(&self, demand: Demand, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let _reservation = self.reserve(demand)?;
        operation().inspect_err(|_| self.space.lock().unreserve_metadata(demand))
    }

    /// Reserves what an operation may need. Called before any inode is locked: a shortage is cured
    /// by a new chunk, by freeing what waits for that, or by commits, which free what is pinned.
    pub(crate) fn reserve(&self, demand: Demand) -> Result<Reservation<'_>> {
        const COMMITS: usize = 2;
        let mut commits = 0;
        self.limit_changes()?;
        let mut without_discards = None;
        loop {
            let shortage = {
                let mut space = self.space.lock();
                match space.reserve(demand) {
                    Ok(()) => return Ok(Reservation::of(&self.space, &mut space, demand)),
                    Err(shortage) => {
                        let kind = match shortage {
                            Shortage::Data => BlockGroupFlags::DATA,
                            Shortage::Metadata => BlockGroupFlags::METADATA,
                        };
                        let kind = if shortage == Shortage::Data && space.metadata_comes_first() {
                            BlockGroupFlags::METADATA
                        } else {
                            kind
                        };
                        let made = space.add_chunk(kind).or_else(|| {
                            // The room may do for a chunk of data that has one copy.
                            let other = shortage == Shortage::Data && kind != BlockGroupFlags::DATA;
                            if other { space.add_chunk(BlockGroupFlags::DATA) } else { None }
                        });
                        if let Some(made) = made {
                            self.volume.add_chunk(made.start, made.chunk)?;
                            continue;
                        }
                        space.want_empty_groups(shortage);
                        shortage
                    }
                }
            };
            ubtrfs_tree::ensure_may_block()?;
            tracing::debug!(?shortage, commits, "space is short");
            if without_discards.is_none() {
                // What is being discarded is withheld.
                without_discards = Some(self.discards.hold_off());
                continue;
            }
            if !self.free_some()?.freed {
                if commits == COMMITS {
                    return Err(Errno::NOSPC.into());
                }
                commits += 1;
            }
            self.commit_once()?;
            self.space.unpin();
        }
    }

    /// Reserves if that takes no more than looking: starts no I/O, waits for nothing. The caller
    /// may hold locks.
    pub(crate) fn try_reserve(&self, demand: Demand) -> Option<Reservation<'_>> {
        if self.changes() > self.most_changes() {
            self.wake_committer();
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
    /// are seldom at their worst together.
    pub(crate) fn most_changes(&self) -> u64 {
        (self.options.memory / 7) as u64
    }

    /// Holds operations back when the open transaction has grown too large for the memory budget.
    fn limit_changes(&self) -> Result<()> {
        let budget = self.most_changes();
        let changes = self.changes();
        if changes > budget + budget / 2 {
            ubtrfs_tree::ensure_may_block()?;
            return self.commit();
        }
        if changes > budget {
            self.wake_committer();
        }
        Ok(())
    }

    /// Gives back data space that was reserved and is not needed.
    pub(crate) fn unreserve_data(&self, bytes: u64) {
        if bytes > 0 {
            self.space.lock().unreserve_data(bytes);
        }
    }

    /// Opens the subvolume named by a path or an id.
    pub(crate) fn find_subvolume(committed: &Committed, options: &Options) -> Result<TreeId> {
        if let Some(id) = options.subvolume_id {
            let id = if id == 0 { TreeId::FS } else { TreeId(id) };
            return if committed.has_subvolume(id) {
                Ok(id)
            } else {
                Err(Error::Refused(Refusal::NoSubvolume(format!("with the id {id}"))))
            };
        }
        let Some(path) = &options.subvolume else {
            let id = committed.default_subvolume()?;
            return if committed.has_subvolume(id) { Ok(id) } else { Ok(TreeId::FS) };
        };
        crate::dir::subvolume_at(committed, path)?
            .ok_or_else(|| Error::Refused(Refusal::NoSubvolume(format!("at '{path}'"))))
    }
}

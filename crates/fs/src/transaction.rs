//! The open transaction and the gate through which operations enter it.
//!
//! An operation changes memory while it holds the gate shared. A commit holds the gate exclusively
//! for the instant in which it replaces the open transaction by a new one. All that an operation
//! changes within one passage of the gate is therefore in one transaction (invariant 5). The next
//! transaction is closed only after the commit of this one has ended (invariant 6).
//!
//! ```text
//!            InodeState::join, under Gate::enter
//!                        ┌──┐
//!                        │  ▼
//! Gate::new,  ────────▶  open ── Gate::swap ──▶ frozen ── FsInfo::forget_frozen_transaction ──▶ durable
//! Gate::swap                                       │
//!                                                  └──── FsInfo::abort ──▶ lost; read-only for good
//! ```
//!
//! An extent that a transaction allocated is not allocated again in the same transaction
//! (invariant 4), even if all references to it are removed again.
//!
//! The core of the order of locks (`ubtrfs_threads::Rank`, invariant 7) is: the rename lock;
//! inodes, by subvolume and number; the gate; everything else (space, tables, lists), which is held
//! for memory work only.

use std::collections::{BTreeMap, HashSet};
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

use ubtrfs_file::change_memory::{self, Account, TransactionMemory};
use ubtrfs_file::{MovedExtents, SumMap};
use ubtrfs_format::{Generation, Logical, TreeId};
use ubtrfs_threads::atomic::{AtomicBool, AtomicU64, Ordering};
use ubtrfs_threads::{ArcSwap, Mutex, Panics, Rank, RwLockReadGuard, WatchPanics, is_held};
use ubtrfs_volume::{CountedRwLock, LockCounters};

use crate::error::Result;
use crate::inode::{Inode, InodeId, InodeState};
use crate::subvolume_changes::SubvolumeChanges;
use crate::subvolume_entries::EntryLocation;

/// A data extent allocated in a transaction.
#[derive(Debug)]
pub(crate) struct NewExtent {
    /// Bytes on disk.
    pub(crate) length: u64,
    /// Checksums of its sectors; `None` for a file without checksums, and for space whose data is
    /// written later.
    pub(crate) sums: Option<Vec<u8>>,
    /// Bytes from the start whose checksums the log has: the extent's length when the log got its
    /// newest item that refers to it.
    pub(crate) logged: u64,
    /// The file that appended data to it in place. It was the only user of the extent until then.
    pub(crate) grown_by: Option<InodeId>,
}

impl NewExtent {
    /// An extent of which the log has nothing.
    pub(crate) fn new(length: u64, sums: Option<Vec<u8>>) -> Self {
        Self { length, sums, logged: 0, grown_by: None }
    }
}

/// The changes since the last transaction was closed, except for those that are in the inodes
/// themselves.
pub(crate) struct Transaction {
    /// The generation that its commit will have.
    pub(crate) generation: Generation,
    dirty_inodes: Mutex<Vec<Arc<Inode>>>,
    new_extents: Mutex<BTreeMap<Logical, NewExtent>>,
    /// Inodes whose names in the log are outdated: the log has a name that the inode lost, or lacks
    /// one that it got.
    renamed: Mutex<Vec<Arc<Inode>>>,
    /// Checksums of sectors whose data was written later than their extent.
    later_sums: Mutex<Option<SumMap>>,
    /// Checksums of data that was written in place and whose checksums are not in the log.
    unlogged_sums: Mutex<Option<SumMap>>,
    /// Extents that got a reference of a second file, or of a second offset of a file.
    shared: Mutex<HashSet<Logical>>,
    subvolumes: Mutex<SubvolumeChanges>,
    /// Whether a change happened that a log can't express.
    forbids_log: AtomicBool,
    changed_inodes: AtomicU64,
    new_extent_count: AtomicU64,
    memory: Arc<TransactionMemory>,
}

impl Transaction {
    pub(crate) fn new(generation: Generation) -> Self {
        Self {
            generation,
            dirty_inodes: Mutex::with_default(Rank::DirtyInodes),
            new_extents: Mutex::with_default(Rank::NewExtents),
            renamed: Mutex::with_default(Rank::RenamedInodes),
            later_sums: Mutex::with_default(Rank::LaterSums),
            unlogged_sums: Mutex::with_default(Rank::UnloggedSums),
            shared: Mutex::with_default(Rank::SharedExtents),
            subvolumes: Mutex::with_default(Rank::SubvolumeChanges),
            forbids_log: AtomicBool::new(false),
            changed_inodes: AtomicU64::new(0),
            new_extent_count: AtomicU64::new(0),
            memory: Arc::default(),
        }
    }

    /// Notes that an inode has something to commit.
    pub(crate) fn add_inode(&self, inode: Arc<Inode>) {
        self.dirty_inodes.lock().push(inode);
        self.changed_inodes.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes an extent whose data is in flight.
    pub(crate) fn add_extent(&self, start: Logical, extent: NewExtent) {
        self.memory.add(change_memory::EXTENT + extent.sums.as_ref().map_or(0, Vec::len));
        let mut extents = self.new_extents.lock();
        let ends_before = |(at, old): (&Logical, &NewExtent)| at.0 + old.length <= start.0;
        // Most extents lie behind all others. Otherwise only the last one that begins before the
        // end of the new extent can overlap it.
        let is_free = extents.last_key_value().is_none_or(ends_before)
            || extents.range(..start.plus(extent.length)).next_back().is_none_or(ends_before);
        assert!(is_free, "invariant 4: {start} is allocated twice in one transaction");
        extents.insert(start, extent);
        drop(extents);
        self.new_extent_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets an extent of `length` bytes grow by data of `file` that is written where it ends.
    /// Returns `false`, and changes nothing, if the extent is not of this transaction, if another
    /// file refers to it, or if only one of the extent and the data has checksums.
    pub(crate) fn grow_extent(&self, start: Logical, length: u64, file: InodeId, by: u64, sums: Option<&[u8]>) -> bool {
        if self.is_shared(start) {
            return false;
        }
        let mut extents = self.new_extents.lock();
        let Some(extent) = extents.get_mut(&start).filter(|extent| extent.length == length) else { return false };
        match (&mut extent.sums, sums) {
            (Some(all), Some(more)) => {
                all.extend_from_slice(more);
                self.memory.add(more.len());
            }
            (None, None) => {}
            _ => return false,
        }
        extent.length += by;
        extent.grown_by = Some(file);
        true
    }

    /// Notes that an inode which the log has got or lost a name.
    pub(crate) fn add_renamed(&self, inode: Arc<Inode>) {
        self.renamed.lock().push(inode);
    }

    /// Returns the number of inodes whose names changed since the log had them.
    pub(crate) fn count_renamed(&self) -> usize {
        self.renamed.lock().len()
    }

    /// Takes the inodes whose names changed since the log had them.
    pub(crate) fn take_renamed(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut self.renamed.lock())
    }

    /// Notes where the entry of a subvolume is now. The caller holds the locks of both directories.
    pub(crate) fn move_subvolume(&self, id: TreeId, entry: EntryLocation) {
        self.forbid_log();
        self.subvolumes.lock().moved.insert(id, entry);
    }

    /// Notes that a subvolume's entry is removed: a log can express neither this nor the reuse of
    /// its name. The caller holds the lock of the directory.
    pub(crate) fn forbid_log(&self) {
        self.forbids_log.store(true, Ordering::Release);
    }

    /// Whether no log may be written. Must be called after everything for the log is gathered: if
    /// that includes a change made after a [`Self::forbid_log`], this sees the call, too.
    pub(crate) fn forbids_log(&self) -> bool {
        self.forbids_log.load(Ordering::Acquire)
    }

    /// The changes of subvolumes.
    pub(crate) fn subvolumes(&self) -> ubtrfs_threads::MutexGuard<'_, SubvolumeChanges> {
        self.subvolumes.lock()
    }

    /// The account of the memory that the transaction takes.
    pub(crate) fn memory(&self) -> &Arc<TransactionMemory> {
        &self.memory
    }

    /// The amount of changes, in inodes; `EXTENTS_OF_A_CHANGE` extents count as one inode.
    pub(crate) fn changes(&self) -> u64 {
        const EXTENTS_OF_A_CHANGE: u64 = 3;
        let extents = self.new_extent_count.load(Ordering::Relaxed);
        self.changed_inodes.load(Ordering::Relaxed) + extents / EXTENTS_OF_A_CHANGE
    }

    /// Whether nothing has changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.changed_inodes.load(Ordering::Relaxed) == 0 && self.subvolumes.lock().is_empty()
    }

    /// Takes the inodes that changed.
    pub(crate) fn take_inodes(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut self.dirty_inodes.lock())
    }

    /// The inodes that changed so far.
    pub(crate) fn inodes(&self) -> Vec<Arc<Inode>> {
        self.dirty_inodes.lock().clone()
    }

    /// The extents that were allocated.
    pub(crate) fn extents(&self) -> ubtrfs_threads::MutexGuard<'_, BTreeMap<Logical, NewExtent>> {
        self.new_extents.lock()
    }

    /// Notes checksums of data that a replayed log contained, whether the extents of the data are
    /// new or not.
    pub(crate) fn set_logged_sums(&self, sums: SumMap) {
        *self.later_sums.lock() = Some(sums).filter(|sums| !sums.is_empty());
    }

    /// Notes the checksums of data that is being written in place. `none` makes the empty map for
    /// the first ones.
    pub(crate) fn put_sums(&self, at: Logical, sums: &[u8], none: impl Fn() -> SumMap) {
        for map in [&self.later_sums, &self.unlogged_sums] {
            let mut map = map.lock();
            let map = map.get_or_insert_with(&none);
            let before = map.bytes();
            map.put(at, sums);
            self.memory.replace(before, map.bytes());
        }
        self.new_extent_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the checksums of data in a range that was written in place and whose checksums the log
    /// lacks. The caller logs them now.
    pub(crate) fn take_unlogged_sums(&self, at: Logical, len: u64) -> Vec<(Logical, Vec<u8>)> {
        self.unlogged_sums.lock().as_mut().map_or_else(Vec::new, |sums| {
            let before = sums.bytes();
            let taken = sums.take(at, len);
            self.memory.replace(before, sums.bytes());
            taken
        })
    }

    /// Checksums, by address, of sectors whose data was written later than their extent: from a
    /// log, or written in place. They take precedence over the checksums of the extents.
    pub(crate) fn later_sums(&self) -> ubtrfs_threads::MutexGuard<'_, Option<SumMap>> {
        self.later_sums.lock()
    }

    /// Notes that an extent got a reference of another file or another offset.
    pub(crate) fn add_shared(&self, extent: Logical) {
        if self.shared.lock().insert(extent) {
            self.memory.add(change_memory::SHARED);
        }
    }

    /// Marks the new places of moved extents as shared where [`Self::add_shared`] marked the old
    /// ones.
    pub(crate) fn follow_shared(&self, moved: &MovedExtents) {
        let mut shared = self.shared.lock();
        let new: Vec<Logical> = shared.iter().filter_map(|extent| moved.get(*extent)).collect();
        shared.extend(new);
    }

    /// Whether [`Self::add_shared`] was called for an extent.
    pub(crate) fn is_shared(&self, extent: Logical) -> bool {
        self.shared.lock().contains(&extent)
    }

    /// Returns the checksums of the `len` bytes from `at` on, or `None` if they are not in an
    /// extent with checksums that this transaction allocated.
    pub(crate) fn new_sums(&self, at: Logical, len: u64) -> Option<Vec<u8>> {
        let extents = self.new_extents.lock();
        let (start, extent) = extents.range(..=at).next_back()?;
        let offset = at.0 - start.0;
        let end = offset.checked_add(len).filter(|end| *end <= extent.length)?;
        let sums = extent.sums.as_ref()?;
        // Sums are of equal size, one for each sector: positions in them are proportional to
        // positions in the extent.
        let scale = |bytes: u64| (u128::from(bytes) * sums.len() as u128 / u128::from(extent.length)) as usize;
        sums.get(scale(offset)..scale(end)).map(<[u8]>::to_vec)
    }
}

/// A count of how often this thread had inodes join a transaction, for assertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined(u64);

#[cfg(debug_assertions)]
ubtrfs_threads::thread_local! {
    static JOINED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Joined {
    /// Returns the count until now, which is always zero where debug assertions are off.
    pub(crate) fn by_now() -> Self {
        #[cfg(debug_assertions)]
        return Self(JOINED.with(std::cell::Cell::get));
        #[cfg(not(debug_assertions))]
        Self(0)
    }

    /// Whether this thread had no inode join a transaction since.
    pub(crate) fn is_all(self) -> bool {
        self == Self::by_now()
    }
}

impl InodeState {
    /// Puts the inode's pending batch into `transaction`: freezes changes of an older transaction
    /// first, and adds the inode to the transaction's list. Must be called, inside the gate, before
    /// anything of the inode is changed.
    pub(crate) fn join(&mut self, inode: &Arc<Inode>, transaction: &Transaction) {
        debug_assert!(is_held(Rank::Gate), "invariant 5: what changes belongs to one passage of the gate");
        #[cfg(debug_assertions)]
        JOINED.with(|joined| joined.set(joined.get() + 1));
        self.join_alone(inode, transaction);
    }

    /// Does the same where no commit can begin meanwhile, as while a log is replayed.
    pub(crate) fn join_alone(&mut self, inode: &Arc<Inode>, transaction: &Transaction) {
        if self.pending.generation == transaction.generation {
            return;
        }
        self.freeze_before(transaction.generation);
        self.pending.generation = transaction.generation;
        self.pending.account = Account::with(transaction.memory());
        self.item.transid = transaction.generation;
        transaction.add_inode(inode.clone());
    }
}

/// Locked inodes whose older batches can be frozen.
pub(crate) trait Freeze {
    /// Freezes pending batches of transactions before `generation`.
    fn freeze_before(&mut self, generation: Generation);
}

impl Freeze for InodeState {
    fn freeze_before(&mut self, generation: Generation) {
        Self::freeze_before(self, generation);
    }
}

/// A passage of the gate. It gives access to the transaction that is open, and keeps it open.
pub(crate) struct Passage<'a> {
    // This field is dropped first, so before a commit gets the lock.
    _watch: WatchPanics<'a>,
    open: RwLockReadGuard<'a, Arc<Transaction>>,
}

impl Deref for Passage<'_> {
    type Target = Arc<Transaction>;

    fn deref(&self) -> &Arc<Transaction> {
        &self.open
    }
}

/// The lock through which operations enter the open transaction.
pub(crate) struct Gate {
    open: CountedRwLock<Arc<Transaction>>,
    /// The open transaction for readers, who may be in a passage already: a second passage would
    /// wait for the swap that waits for the first.
    shown: ArcSwap<Transaction>,
    panics: Panics,
}

impl Gate {
    pub(crate) fn new(generation: Generation) -> Self {
        let first = Arc::new(Transaction::new(generation));
        Self {
            open: CountedRwLock::new(Rank::Gate, first.clone()),
            shown: ArcSwap::new(first),
            panics: Panics::default(),
        }
    }

    /// Enters the open transaction. The caller must not wait for a device until it drops the guard.
    pub(crate) fn enter(&self) -> Passage<'_> {
        let open = self.open.read();
        Passage { _watch: self.panics.watch(), open }
    }

    /// Whether a thread has panicked during its passage: its operation may be half done.
    pub(crate) fn has_panicked(&self) -> bool {
        self.panics.any()
    }

    /// Freezes what locked inodes have of older transactions, and returns the generation of the
    /// open one. A plan made now holds if that transaction is still open when the plan is applied.
    pub(crate) fn freeze_older(&self, states: &mut impl Freeze) -> Generation {
        let transaction = self.enter();
        states.freeze_before(transaction.generation);
        transaction.generation
    }

    /// Changes locked inodes in one transaction. `plan` looks at the inodes and reads what it
    /// needs; it gets the generation of the transaction, and may fail or break off with a result.
    /// `apply` changes memory only, inside the gate, and can't fail. If a commit closes the
    /// transaction in between, dirty data and pending edits may be frozen, so the plan is made
    /// again.
    pub(crate) fn transact<S: Freeze, P, T>(
        &self,
        states: &mut S,
        mut plan: impl FnMut(&mut S, Generation) -> Result<ControlFlow<T, P>>,
        apply: impl FnOnce(&mut S, P, &Transaction) -> T,
    ) -> Result<T> {
        loop {
            let generation = self.freeze_older(states);
            let planned = match plan(states, generation)? {
                ControlFlow::Continue(planned) => planned,
                ControlFlow::Break(result) => return Ok(result),
            };
            let transaction = self.enter();
            if transaction.generation == generation {
                return Ok(apply(states, planned, &transaction));
            }
        }
    }

    /// Counts how often the gate was entered and waited for.
    pub(crate) fn counters(&self) -> LockCounters {
        self.open.counters()
    }

    /// Returns the open transaction, for looking only.
    pub(crate) fn current(&self) -> Arc<Transaction> {
        self.shown.load_full()
    }

    /// Closes the open transaction, opens the next and returns the closed one. Calls `at_the_swap`
    /// with the closed one while no operation is inside the gate.
    pub(crate) fn swap(&self, at_the_swap: impl FnOnce(&Arc<Transaction>)) -> Arc<Transaction> {
        self.swap_to(Generation::next, at_the_swap)
    }

    /// Does the same, but leaves out one generation, for a commit in between.
    pub(crate) fn swap_over_one(&self, at_the_swap: impl FnOnce(&Arc<Transaction>)) -> Arc<Transaction> {
        self.swap_to(|closed| closed.next().next(), at_the_swap)
    }

    fn swap_to(
        &self,
        next: impl FnOnce(Generation) -> Generation,
        at_the_swap: impl FnOnce(&Arc<Transaction>),
    ) -> Arc<Transaction> {
        let mut open = self.open.write();
        at_the_swap(&open);
        let next = Arc::new(Transaction::new(next(open.generation)));
        self.shown.store(next.clone());
        std::mem::replace(&mut open, next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// By invariant 7 an operation may look at the open transaction during its passage while a
    /// commit waits to close it, as writeback in place does.
    #[test]
    fn who_is_inside_the_gate_may_look_while_a_commit_waits_to_close_it() {
        let gate = Arc::new(Gate::new(Generation(7)));
        let passage = gate.enter();
        let committer = std::thread::spawn({
            let gate = gate.clone();
            move || gate.swap(|_| {}).generation
        });
        while gate.open.uncounted().try_read().is_some() {
            std::thread::yield_now();
        }
        let (sender, receiver) = channel();
        let looker = std::thread::spawn({
            let gate = gate.clone();
            move || sender.send(gate.current().generation)
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)).unwrap(), Generation(7));
        drop(passage);
        assert_eq!(committer.join().unwrap(), Generation(7));
        assert_eq!(gate.current().generation, Generation(8));
        looker.join().unwrap().unwrap();
    }
}

#[cfg(all(test, debug_assertions))]
mod assertions {
    use ubtrfs_format::Ino;
    use ubtrfs_format::items::InodeItem;

    use super::*;

    /// Without invariant 4, data in flight would be overwritten.
    #[test]
    #[should_panic(expected = "invariant 4")]
    fn an_extent_is_allocated_once_in_a_transaction() {
        let transaction = Transaction::new(Generation(7));
        transaction.add_extent(Logical(1 << 20), NewExtent::new(8192, None));
        transaction.add_extent(Logical((1 << 20) + 8192), NewExtent::new(4096, None));
        transaction.add_extent(Logical((1 << 20) + 4096), NewExtent::new(4096, None));
    }

    /// The same for an extent that overlaps the next one.
    #[test]
    #[should_panic(expected = "invariant 4")]
    fn an_extent_does_not_reach_into_the_next_of_a_transaction() {
        let transaction = Transaction::new(Generation(7));
        transaction.add_extent(Logical((1 << 20) + 4096), NewExtent::new(4096, None));
        transaction.add_extent(Logical(1 << 20), NewExtent::new(4096, None));
        transaction.add_extent(Logical((1 << 20) - 4096), NewExtent::new(8192, None));
    }

    /// Without invariant 5, a commit could come between two changes of an operation.
    #[test]
    #[should_panic(expected = "invariant 5")]
    fn an_inode_joins_the_transaction_inside_the_gate() {
        let gate = Gate::new(Generation(7));
        let state = InodeState::new(InodeItem::default(), false, true, 4096);
        let inode = Arc::new(Inode::new(InodeId::new(TreeId::FS, Ino(257)), state));
        {
            let mut state = inode.write();
            state.join(&inode, &gate.enter());
        }
        let other = Gate::new(Generation(8));
        inode.write().join(&inode, &other.current());
    }
}

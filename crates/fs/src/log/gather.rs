//! Finds the inodes that must be logged together with those that were fsynced.
//!
//! Each inode in the log is logged with all its names, and the names that it lost since the last
//! commit are logged as deleted. So that replay loses nothing, other inodes must be logged too:
//! - new directories, up to one that the commit has;
//! - an inode that had, at the commit, a name that another inode in the log has now: it must not
//!   vanish with that name;
//! - the inode that now has a name that an inode in the log lost, since the name must not vanish;
//!   or, if there is none, the inode that had the name at the commit, since it must not reappear
//!   under it;
//! - inodes that left a directory whose deletion is logged.
//!
//! Some changes can't be logged; they need a commit instead, for a [reason](Reason).
//!
//! Inodes are examined one by one, each under its own lock. An inode whose names change after it
//! was examined is put on the transaction's list. Once the list is found empty, all names in the
//! log are those of that point in time (invariant 15). If an extent has grown, all items that refer
//! to it are logged again (invariant 21).

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Incompat, Ino, ItemType, Key, TreeId, objectid};
use ubtrfs_tree::{EditBatch, Snapshot};

use super::exists::exists_item;
use super::queue::Log;
use super::reason::{OrElse, Reason, Stop};
use super::tree_log::TreeLog;
use crate::backrefs::NameItems;
use crate::committed::Committed;
use crate::faults::LogFault;
use crate::fsync_group::FsyncGroup;
use crate::inode::{
    EntryChange, Inode, InodeId, InodeState, Logged, LoggedAs, Name, OrderedExtent, OrphanEdit, RefChange, Target,
};
use crate::transaction::Transaction;

pub(super) type Result<T> = std::result::Result<T, Stop>;

/// The most inodes besides the fsynced ones that one write of the log may include.
const MAX_INODES: usize = 10_000;
/// The most rounds in which names that changed in the meantime are gathered again.
const MAX_ROUNDS: usize = 100;

/// How much of an inode has to be in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// Content, attributes, entries.
    Whole,
    /// The existence of the inode, and its names.
    Names,
}

/// The additions of one write to the log.
pub(super) struct Gathered {
    /// Edits of the log trees, by subvolume.
    pub(super) edits: BTreeMap<TreeId, EditBatch>,
    /// Data that the log refers to and that may still be in flight.
    pub(super) ordered: Vec<Arc<OrderedExtent>>,
}

pub(super) struct Gatherer<'a> {
    pub(super) log: &'a Log,
    /// The commit that the log follows.
    pub(super) base: &'a Arc<Committed>,
    pub(super) transaction: &'a Arc<Transaction>,
    pub(super) gathered: Gathered,
    group: &'a Arc<FsyncGroup>,
    pub(super) tree_log: &'a mut TreeLog,
    trees: BTreeMap<TreeId, Snapshot>,
    work: VecDeque<(Arc<Inode>, Want)>,
    /// Inodes whose items in the log have an old length of an extent that has grown since.
    stale: Vec<Arc<Inode>>,
    taken_in: usize,
}

/// A name that was added or removed, and whether its item in the log records the removal.
struct NameFact {
    parent: Ino,
    name: Name,
    change: RefChange,
    removal_logged: bool,
}

/// Findings about an inode that may require other inodes in the log.
#[derive(Default)]
struct Facts {
    names: Vec<NameFact>,
    /// Entries of a directory that were logged, or logged as deleted.
    entries: Vec<EntryChange>,
    /// The directory is deleted: only inodes that left it matter.
    gone: bool,
}

/// Whether the commit before the open transaction has the inode.
pub(super) fn is_known(state: &InodeState) -> bool {
    state.committed || state.frozen.as_ref().is_some_and(|frozen| !frozen.batch.gone)
}

impl<'a> Gatherer<'a> {
    pub(super) fn new(
        log: &'a Log,
        base: &'a Arc<Committed>,
        transaction: &'a Arc<Transaction>,
        group: &'a Arc<FsyncGroup>,
        tree_log: &'a mut TreeLog,
    ) -> Self {
        Self {
            log,
            base,
            transaction,
            gathered: Gathered { edits: BTreeMap::new(), ordered: Vec::new() },
            group,
            tree_log,
            trees: BTreeMap::new(),
            work: VecDeque::new(),
            stale: Vec::new(),
            taken_in: 0,
        }
    }

    /// Gathers the items that make `inodes` durable.
    #[inline(never)]
    pub(super) fn gather(mut self, inodes: &[Arc<Inode>]) -> Result<Gathered> {
        self.work.extend(inodes.iter().map(|inode| (inode.clone(), Want::Whole)));
        for _ in 0..MAX_ROUNDS {
            while let Some((inode, want)) = self.work.pop_front() {
                self.look_at(&inode, want)?;
            }
            let renamed = self.transaction.take_renamed();
            if renamed.is_empty() {
                // This is checked last: the change may have happened during the gathering, and may
                // be part of the result.
                let is_complete = !self.transaction.forbids_log();
                assert!(
                    self.stale.iter().all(|inode| self.is_logged_again(inode)),
                    "invariant 21: an item of an extent that grew stays as it was"
                );
                return if is_complete { Ok(self.gathered) } else { Err(Reason::Subvolume.into()) };
            }
            self.work.extend(renamed.into_iter().map(|inode| (inode, Want::Names)));
        }
        Err(Reason::BusyNames.into())
    }

    /// Includes an inode whose items in the log have an old length of an extent.
    pub(super) fn log_again(&mut self, id: InodeId) -> Result<()> {
        let inode = self.log.info.inodes.get(id).ok_or(Reason::Unreadable)?;
        self.stale.push(inode.clone());
        self.work.push_back((inode, Want::Whole));
        Ok(())
    }

    /// Whether this write of the log includes the newest part of an inode, if the log has it.
    fn is_logged_again(&self, inode: &Inode) -> bool {
        let state = inode.read();
        // For an inode without names the log has no items that refer to an extent.
        let is_current = |logged: &Logged| logged.is_nameless() || Arc::ptr_eq(&logged.group, self.group);
        state.pending.logged.as_deref().is_none_or(is_current)
    }

    pub(super) fn gets_wrong(&self, fault: LogFault) -> bool {
        self.log.info.options.faults().in_log(fault)
    }

    fn edits(&mut self, subvolume: TreeId) -> &mut EditBatch {
        self.gathered.edits.entry(subvolume).or_default()
    }

    pub(super) fn put(&mut self, subvolume: TreeId, key: Key, item: Vec<u8>) {
        self.edits(subvolume).put(key, item);
    }

    /// Deletes the log's items in a range, including those that were gathered just now.
    pub(super) fn clear(&mut self, subvolume: TreeId, range: RangeInclusive<Key>) {
        let edits = self.edits(subvolume);
        let gathered: Vec<Key> = edits.range(range.clone()).map(|(key, _)| *key).collect();
        for key in gathered {
            edits.remove(&key);
        }
        edits.delete_range(range);
    }

    /// Returns the tree that the commit before the open transaction has for a subvolume.
    pub(super) fn tree(&mut self, subvolume: TreeId) -> Result<Snapshot> {
        if let Some(tree) = self.trees.get(&subvolume) {
            return Ok(tree.clone());
        }
        let tree = self.base.tree(subvolume).or_commit()?;
        self.trees.insert(subvolume, tree.clone());
        Ok(tree)
    }

    pub(super) fn count_searches(&self, searches: u64) {
        self.log.info.counters.log_searches.fetch_add(searches, Ordering::Relaxed);
    }

    fn look_at(&mut self, inode: &Arc<Inode>, want: Want) -> Result<()> {
        let facts = {
            let mut state = inode.write();
            if state.pending.generation != self.transaction.generation {
                // The inode has no change in the transaction.
                return Ok(());
            }
            if state.pending.verity.is_some() {
                // Kernels replay the inode flag but not the verity items.
                return Err(Reason::Verity.into());
            }
            if state.item.nlink == 0 || state.pending.gone {
                self.nameless(inode.id, &mut state, want)?
            } else {
                self.named(inode, &mut state, want)?
            }
        };
        for fact in &facts.names {
            self.follow_name(inode.id, fact)?;
        }
        for change in facts.entries {
            self.follow_entry(inode.id.subvolume, change, facts.gone);
        }
        Ok(())
    }

    fn take_in(&mut self) -> Result<()> {
        self.taken_in += 1;
        if self.taken_in > MAX_INODES { Err(Reason::ManyInodes.into()) } else { Ok(()) }
    }

    /// Gathers an inode that has names.
    fn named(&mut self, inode: &Arc<Inode>, state: &mut InodeState, want: Want) -> Result<Facts> {
        let id = inode.id;
        let known = is_known(state);
        let before = state.pending.logged.take();
        let was_synced = before.as_ref().is_some_and(|logged| logged.is_nameless() && logged.is_synced());
        let before = before.filter(|logged| !logged.is_nameless());
        let first = before.is_none();
        let mut logged = before.unwrap_or_else(|| Box::new(Logged::new(LoggedAs::Named, self.group.clone())));
        if first {
            state.pending.layout.forget_changed();
        }
        let whole = want == Want::Whole || was_synced;
        if !first && !whole && !logged.names_changed {
            logged.listed = false;
            state.pending.logged = Some(logged);
            return Ok(Facts::default());
        }
        self.take_in()?;
        self.check_no_orphan(id, state, known)?;
        let mut facts = Facts::default();
        if first || logged.names_changed {
            facts.names = self.names(id, state, known, first)?;
        }
        if whole && (first || logged.xattrs_changed) {
            self.xattrs(id, state, known, true)?;
            logged.xattrs_changed = false;
        } else if first {
            // If the last commit has the inode, nothing else of it is logged, either.
            let now = !known || self.gets_wrong(LogFault::AnticipateXattr);
            self.xattrs(id, state, known, now)?;
            logged.xattrs_changed = !now && !state.pending.xattrs.is_empty();
        }
        if whole {
            facts.entries = self.whole(inode, state, &mut logged, known)?;
        } else if first {
            self.exists(id, state, known)?;
        }
        logged.names_changed = false;
        logged.listed = false;
        logged.group = self.group.clone();
        state.pending.logged = Some(logged);
        Ok(facts)
    }

    /// Refuses an inode with names that is an orphan in the last commit. A log can't record that it
    /// is not an orphan any more, so replay would have to clean up an orphan, for which there may
    /// be no space.
    fn check_no_orphan(&mut self, id: InodeId, state: &InodeState, known: bool) -> Result<()> {
        if !known || state.pending.orphan != OrphanEdit::Remove || self.gets_wrong(LogFault::KeepOrphan) {
            return Ok(());
        }
        let orphan = Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, id.ino.0);
        if self.tree(id.subvolume)?.get(&orphan).or_commit()?.is_some() { Err(Reason::Orphan.into()) } else { Ok(()) }
    }

    /// Gathers the items of the names that changed since the last commit.
    fn names(&mut self, id: InodeId, state: &InodeState, known: bool, first: bool) -> Result<Vec<NameFact>> {
        let refs = &state.pending.refs;
        if known && state.is_dir() {
            let parent = |now: bool| {
                let found = refs.iter().find(|(_, change)| if now { change.now } else { change.base }.is_some());
                found.map(|((parent, _), _)| *parent)
            };
            if parent(false) != parent(true) {
                return Err(Reason::MovedDirectory.into());
            }
        }
        let superblock = &self.base.superblock;
        let (extended, node_size) =
            (superblock.incompat.contains(Incompat::EXTENDED_IREF), superblock.node_size as usize);
        let has_siblings = known && !refs.is_empty() && !self.gets_wrong(LogFault::ForgetSiblingName);
        let tree = if has_siblings { Some(self.tree(id.subvolume)?) } else { None };
        let items = NameItems::after(id.ino, tree.as_ref(), refs, extended, node_size).or_commit()?;
        self.count_searches(items.searches);
        if !items.are_replayable(node_size) {
            return Err(Reason::CrowdedItem.into());
        }
        if !first {
            let key = |item_type, offset| Key::new(id.ino.0, item_type, offset);
            self.clear(id.subvolume, key(ItemType::INODE_REF, 0)..=key(ItemType::INODE_EXTREF, u64::MAX));
        }
        for (key, item) in items.iter() {
            if let Some(item) = item {
                self.put(id.subvolume, key, item);
            }
        }
        let fact = |((parent, name), change): (&(Ino, Name), &RefChange)| NameFact {
            parent: *parent,
            name: name.clone(),
            change: *change,
            removal_logged: items.records_removal_of(*parent, name),
        };
        Ok(refs.iter().map(fact).collect())
    }

    /// Gathers the existence of an inode, and what replay needs to know to leave the rest of it
    /// alone.
    fn exists(&mut self, id: InodeId, state: &InodeState, known: bool) -> Result<()> {
        let item = exists_item(state, known, self.transaction.generation);
        self.put(id.subvolume, Key::new(id.ino.0, ItemType::INODE_ITEM, 0), item.to_bytes().to_vec());
        match state.file_type() {
            FileType::Symlink if !known => self.pieces(id, state, &[(0, u64::MAX)]),
            FileType::Regular if known => self.committed_prealloc(id, state),
            _ => Ok(()),
        }
    }

    /// Gathers for an inode without names that it lost the names that the last commit has.
    fn nameless(&mut self, id: InodeId, state: &mut InodeState, want: Want) -> Result<Facts> {
        let known = is_known(state);
        let is_dir = state.is_dir();
        let mut before = state.pending.logged.take();
        let synced = want == Want::Whole || before.as_ref().is_some_and(|logged| logged.is_synced());
        if let Some(logged) = before.as_mut().filter(|logged| logged.is_nameless() && !logged.names_changed) {
            logged.how = LoggedAs::Nameless { synced };
            state.pending.logged = before;
            return Ok(Facts::default());
        }
        self.take_in()?;
        if before.is_some_and(|logged| !logged.is_nameless()) {
            // If a directory has to be replayed in order to be removed, its inode item and its
            // ranges stay.
            let last = if known && is_dir { ItemType::INODE_EXTREF } else { ItemType(u8::MAX) };
            let first = if known && is_dir { ItemType::INODE_REF } else { ItemType(0) };
            let range = Key::new(id.ino.0, first, 0)..=Key::new(id.ino.0, last, u64::MAX);
            self.clear(id.subvolume, range);
        }
        state.pending.logged = Some(Box::new(Logged::new(LoggedAs::Nameless { synced }, self.group.clone())));
        let fact = |((parent, name), change): (&(Ino, Name), &RefChange)| NameFact {
            parent: *parent,
            name: name.clone(),
            change: *change,
            removal_logged: false,
        };
        let names = state.pending.refs.iter().map(fact).collect();
        let entries =
            if known && is_dir { state.pending.entries.by_name.values().copied().collect() } else { Vec::new() };
        Ok(Facts { names, entries, gone: true })
    }

    /// Includes the inodes that conflict with a name that was added or removed.
    fn follow_name(&mut self, id: InodeId, fact: &NameFact) -> Result<()> {
        let Some(parent) = self.log.info.inodes.get(InodeId::new(id.subvolume, fact.parent)) else { return Ok(()) };
        let (entry, parent_known) = {
            let state = parent.read();
            let changed = state.pending.generation == self.transaction.generation;
            let entry = state.pending.entries.by_name.get(&fact.name).copied().filter(|_| changed);
            (entry, is_known(&state))
        };
        let other = |target: Option<Target>| target.filter(|target| target.location.objectid != id.ino.0);
        if fact.change.now.is_some() {
            if !parent_known && !self.gets_wrong(LogFault::ForgetParent) {
                self.work.push_back((parent, Want::Names));
            }
            self.pull(id.subvolume, other(entry.and_then(|entry| entry.base)));
        } else {
            if let Some(index) = fact.change.base.filter(|_| !fact.removal_logged && parent_known) {
                self.removed_entry(&parent, index)?;
            }
            let (before, now) = entry.map_or((None, None), |entry| (entry.base, entry.now.map(|(_, target)| target)));
            self.pull(id.subvolume, other(now));
            if now.is_none()
                && let Some(before) = other(before).and_then(|before| self.inode_of(id.subvolume, before))
            {
                // As long as the inode had the name, its log item implied that no other inode has
                // it.
                self.work.push_back((before, Want::Names));
            }
        }
        Ok(())
    }

    /// Includes the inodes to which an entry referred before, and refers now.
    fn follow_entry(&mut self, subvolume: TreeId, change: EntryChange, gone: bool) {
        let now = change.now.map(|(_, target)| target);
        if let Some(before) = change.base.filter(|before| gone || now.is_none_or(|now| now.location != before.location))
        {
            if gone {
                self.pull(subvolume, Some(before));
            } else if let Some(inode) = self.inode_of(subvolume, before) {
                self.work.push_back((inode, Want::Names));
            }
        }
        if let Some(now) = now.filter(|_| !gone)
            && let Some(inode) = self.inode_of(subvolume, now)
        {
            let is_new_dir = {
                let state = inode.read();
                state.is_dir() && !is_known(&state)
            };
            self.work.push_back((inode, if is_new_dir { Want::Whole } else { Want::Names }));
        }
    }

    fn inode_of(&self, subvolume: TreeId, target: Target) -> Option<Arc<Inode>> {
        if target.location.item_type != ItemType::INODE_ITEM {
            return None;
        }
        self.log.info.inodes.get(InodeId::new(subvolume, Ino(target.location.objectid)))
    }

    /// Includes an inode that has or had a name. A deleted inode is ignored, unless it is a
    /// directory that other inodes left before, or it has more names in the last commit, under
    /// which it must not go on existing.
    fn pull(&mut self, subvolume: TreeId, target: Option<Target>) {
        let Some(inode) = target.and_then(|target| self.inode_of(subvolume, target)) else { return };
        let concerns = {
            let state = inode.read();
            let has_more = || state.pending.refs.iter().filter(|(_, change)| change.base.is_some()).nth(1).is_some();
            state.pending.generation == self.transaction.generation
                && (state.item.nlink > 0 || (state.is_dir() && is_known(&state)) || has_more())
        };
        if concerns {
            self.work.push_back((inode, Want::Names));
        }
    }

    /// Logs that a committed directory has lost a committed entry.
    fn removed_entry(&mut self, dir: &Arc<Inode>, index: DirIndex) -> Result<()> {
        if self.gets_wrong(LogFault::ForgetRemovedName) {
            return Ok(());
        }
        let id = dir.id;
        let Some((first, last)) = self.tree_log.ranges.entry(id).or_default().insert(index.0) else { return Ok(()) };
        let key = Key::new(id.ino.0, ItemType::DIR_LOG_INDEX, first);
        self.put(id.subvolume, key, last.to_le_bytes().to_vec());
        // Replay uses the range only if the log has the directory.
        let state = dir.read();
        let is_there = state.pending.logged.as_ref().is_some_and(|logged| !logged.is_nameless());
        if !is_there && self.tree_log.holders.insert(id) {
            let item = exists_item(&state, true, self.transaction.generation);
            self.put(id.subvolume, Key::new(id.ino.0, ItemType::INODE_ITEM, 0), item.to_bytes().to_vec());
            self.xattrs(id, &state, true, false)?;
        }
        Ok(())
    }
}

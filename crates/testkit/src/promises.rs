//! What a writer may rely on after its file system has died: a model of names, inodes and contents
//! that remembers every version of a session, and the operation up to which each is durable.
//!
//! A [`Writer`] works alone on its own names (concurrently with others, in the same directories).
//! It adds every operation to its [`Promises`] before it performs it, and every fsync when it has
//! returned. Afterwards each name, and each inode with all of its names, must have the state of one
//! point in time: the last one that was made durable, or any later one.

mod blocks;
mod history;
mod read_back;
mod tops;
mod verdict;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use blocks::{BLOCK, BlocksState};
use history::History;
pub use tops::TOPS;
pub use writer::Writer;

/// A name: the inode number of its directory, and the entry.
pub type Name = (u64, String);

/// The placeholder for the inode number of a file whose creation was in progress.
const UNKNOWN: u64 = 0;

/// Operations that a message lists.
const LISTED: usize = 40;

/// All versions of a file or directory.
#[derive(Debug, Clone)]
struct Inode {
    /// The id of the file in its blocks; 0 for a directory.
    id: u64,
    is_dir: bool,
    /// The operation that made it; `None` if it was there before the session.
    born: Option<u64>,
    names: History<BTreeSet<Name>>,
    content: History<BlocksState>,
    mode: History<u32>,
    mark: History<u32>,
}

/// Everything that one writer did in a session, and how far it is durable.
#[derive(Debug, Clone, Default)]
pub struct Promises {
    sequence: u64,
    /// The number of ids of files, and of versions of blocks, that were assigned so far.
    ids: u64,
    versions: u32,
    names: BTreeMap<Name, History<Option<u64>>>,
    inodes: BTreeMap<u64, Inode>,
    /// The operations, one per line.
    book: Vec<String>,
}

impl Promises {
    /// Returns the sequence number of the next operation, which does `what`.
    fn begin(&mut self, what: &str) -> u64 {
        self.sequence += 1;
        self.book.push(format!("{}: {what}", self.sequence));
        self.sequence
    }

    fn new_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn new_version(&mut self) -> u32 {
        self.versions += 1;
        self.versions
    }

    /// Returns the inode that has `name` now.
    fn holder(&self, name: &Name) -> Option<u64> {
        *self.names.get(name)?.now()
    }

    fn inode(&self, number: u64) -> &Inode {
        &self.inodes[&number]
    }

    fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("an inode of the model")
    }

    fn state(&self, number: u64) -> &BlocksState {
        self.inode(number).content.now()
    }

    fn set_name(&mut self, sequence: u64, name: &Name, holder: Option<u64>) {
        self.names.entry(name.clone()).or_insert_with(|| History::new(None)).push(sequence, holder);
    }

    fn set_names(&mut self, sequence: u64, number: u64, lost: Option<&Name>, gained: Option<&Name>) {
        let names = &mut self.inode_mut(number).names;
        let mut set = names.now().clone();
        if let Some(name) = lost {
            set.remove(name);
        }
        set.extend(gained.cloned());
        names.push(sequence, set);
    }

    /// Notes that the creation of an inode at `name` begins.
    fn creating(&mut self, sequence: u64, name: &Name) {
        self.set_name(sequence, name, Some(UNKNOWN));
    }

    /// Notes that a creation has ended and made the inode `number`; `name` is `None` if the inode
    /// has no name.
    fn created(&mut self, sequence: u64, name: Option<&Name>, number: u64, is_dir: bool, mode: u32) -> u64 {
        let id = if is_dir { 0 } else { self.new_id() };
        let inode = Inode {
            id,
            is_dir,
            born: Some(sequence),
            names: History::new(BTreeSet::new()),
            content: History::new(BlocksState::default()),
            mode: History::new(mode),
            mark: History::new(0),
        };
        let before = self.inodes.insert(number, inode);
        assert!(before.is_none(), "inode number {number} was given a second time");
        if let Some(name) = name {
            self.names.get_mut(name).expect("a name whose creation began").correct(Some(number));
            self.set_names(sequence, number, None, Some(name));
        }
        if let Some(line) = self.book.last_mut() {
            let _ = write!(line, " (inode {number})");
        }
        id
    }

    fn linking(&mut self, sequence: u64, number: u64, name: &Name) {
        self.set_name(sequence, name, Some(number));
        self.set_names(sequence, number, None, Some(name));
    }

    fn unlinking(&mut self, sequence: u64, name: &Name) {
        let number = self.holder(name).expect("a name that is there");
        self.set_name(sequence, name, None);
        self.set_names(sequence, number, Some(name), None);
    }

    fn renaming(&mut self, sequence: u64, from: &Name, to: &Name) {
        let number = self.holder(from).expect("a name that is there");
        if let Some(over) = self.holder(to) {
            self.set_names(sequence, over, Some(to), None);
        }
        self.set_name(sequence, from, None);
        self.set_name(sequence, to, Some(number));
        self.set_names(sequence, number, Some(from), Some(to));
    }

    fn exchanging(&mut self, sequence: u64, one: &Name, two: &Name) {
        let first = self.holder(one).expect("a name that is there");
        let second = self.holder(two).expect("a name that is there");
        self.set_name(sequence, one, Some(second));
        self.set_name(sequence, two, Some(first));
        self.set_names(sequence, first, Some(one), Some(two));
        self.set_names(sequence, second, Some(two), Some(one));
    }

    fn changing(&mut self, sequence: u64, number: u64, state: BlocksState) {
        self.inode_mut(number).content.push(sequence, state);
    }

    /// Notes that an fsync or fdatasync of an inode has returned, which has not changed since
    /// `sequence`.
    fn synced(&mut self, sequence: u64, number: u64) {
        let inode = self.inode_mut(number);
        // A name that was added and removed since has the state of this time or a later one, like
        // any other: its presence was not promised.
        let heard_of = inode.names.allowed().first().map(|(_, names)| names.clone()).unwrap_or_default();
        inode.content.promise(sequence);
        inode.mode.promise(sequence);
        inode.mark.promise(sequence);
        inode.names.promise(sequence);
        let is_dir = inode.is_dir;
        let names = inode.names.now().clone();
        let lost: Vec<(u64, Name)> = inode
            .names
            .steps()
            .flat_map(|(_, before, when, after)| before.difference(after).map(move |name| (when, name.clone())))
            .filter(|(_, name)| heard_of.contains(name) && !names.contains(name))
            .collect();
        for (when, name) in lost {
            self.promise_name(when, &name);
        }
        for name in &names {
            self.promise_name(sequence, name);
            self.promise_way(name.0);
        }
        if is_dir {
            self.entries_synced(sequence, number);
        }
    }

    /// Notes that the entries of a directory are durable up to `sequence`.
    fn entries_synced(&mut self, sequence: u64, dir: u64) {
        for (_, history) in self.names.range_mut((dir, String::new())..(dir + 1, String::new())) {
            history.promise(sequence);
        }
    }

    fn promise_name(&mut self, sequence: u64, name: &Name) {
        self.names.get_mut(name).expect("a name of the model").promise(sequence);
    }

    /// Notes that a new directory, and the new ones above it, are there since they were made.
    fn promise_way(&mut self, dir: u64) {
        let Some(inode) = self.inodes.get_mut(&dir) else { return };
        let Some(born) = inode.born else { return };
        inode.names.promise(born);
        let above: Vec<u64> = inode.names.now().iter().map(|name| name.0).collect();
        for dir in above {
            self.promise_way(dir);
        }
    }

    /// Notes that everything is durable up to `sequence`.
    fn all_synced(&mut self, sequence: u64) {
        for history in self.names.values_mut() {
            history.promise(sequence);
        }
        for inode in self.inodes.values_mut() {
            inode.names.promise(sequence);
            inode.content.promise(sequence);
            inode.mode.promise(sequence);
            inode.mark.promise(sequence);
        }
    }

    /// Returns the number of operations in this session.
    pub fn operations(&self) -> u64 {
        self.sequence
    }

    /// Returns the last operations, one per line.
    pub fn recent(&self) -> String {
        self.book[self.book.len().saturating_sub(LISTED)..].join("\n")
    }

    /// Returns all operations of the session, one per line.
    pub fn book(&self) -> String {
        self.book.join("\n")
    }
}

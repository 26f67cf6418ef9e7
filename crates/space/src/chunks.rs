//! Chunks that are made, and those that leave the volume, between the commits that write them to
//! the trees (invariant 18).

use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{ITEM_HEADER_SIZE, Logical, Uuid};

use crate::demand::Shortage;

/// No chunk is shorter.
pub(crate) const MIN_CHUNK: u64 = 1 << 20;

/// A chunk that was made since the last commit.
#[derive(Clone, Debug)]
pub struct NewChunk {
    /// Its first logical address.
    pub start: Logical,
    /// Its item in the chunk tree.
    pub chunk: ChunkItem,
}

/// The commit whose trees get the chunks that are made now.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ChunksJoin {
    /// The one in flight, if there is any.
    #[default]
    CommitInFlight,
    /// The one after it: that in flight has taken its chunks, and its nodes can be in no others.
    NextCommit,
}

/// Chunks that are made and removed.
#[derive(Default)]
pub(crate) struct Chunks {
    /// Those that the next commit adds to the trees.
    new: Vec<NewChunk>,
    /// How many come to the trees, and the bytes of their items there: with the next commit, and
    /// with the one in progress.
    coming: (u64, u64),
    taken: (u64, u64),
    join: ChunksJoin,
    /// Those that the commit in progress removes.
    leaving: Vec<(Logical, ChunkItem)>,
    made: u64,
    removed: u64,
    /// The most bytes of a new chunk, if it is given.
    max_length: Option<u64>,
    tree_uuid: Uuid,
    /// The kind of space that was short since the last commit, so that empty chunks of the other
    /// one go at once.
    wanted: Option<Shortage>,
    /// The empty group that a commit looked at last.
    looked_at: (u64, Logical),
}

impl Chunks {
    pub(crate) fn new(tree_uuid: Uuid, max_length: Option<u64>) -> Self {
        Self { max_length, tree_uuid, ..Self::default() }
    }

    /// Whether the next commit has chunks to add.
    pub(crate) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// The most bytes of a new chunk, if it is given.
    pub(crate) fn max_length(&self) -> Option<u64> {
        self.max_length
    }

    /// The commit whose trees get the chunks that are made now.
    pub(crate) fn join(&self) -> ChunksJoin {
        self.join
    }

    /// A commit has ended: the next one takes what is made from now on.
    pub(crate) fn commit_ends(&mut self) {
        self.taken = (0, 0);
        self.join = ChunksJoin::CommitInFlight;
    }

    /// The commit in progress removes a chunk.
    pub(crate) fn leave(&mut self, start: Logical, chunk: ChunkItem) {
        self.leaving.push((start, chunk));
    }

    /// The commit that removes chunks is durable: they have left.
    pub(crate) fn take_leaving(&mut self) -> Vec<(Logical, ChunkItem)> {
        self.removed += self.leaving.len() as u64;
        std::mem::take(&mut self.leaving)
    }

    /// Where chunks begin that the next commit adds.
    pub(crate) fn starts_of_new(&self) -> impl Iterator<Item = Logical> {
        self.new.iter().map(|new| new.start)
    }

    /// A chunk was made.
    pub(crate) fn add(&mut self, made: NewChunk) {
        let bytes = (ITEM_HEADER_SIZE + made.chunk.to_bytes().len()) as u64;
        self.coming = (self.coming.0 + 1, self.coming.1 + bytes);
        self.new.push(made);
        self.made += 1;
    }

    /// Takes those that the commit in progress adds; it adds none that is made later.
    pub(crate) fn take_new(&mut self) -> Vec<NewChunk> {
        self.join = ChunksJoin::NextCommit;
        self.taken = std::mem::take(&mut self.coming);
        std::mem::take(&mut self.new)
    }

    /// How many come to the trees and leave them, with the next commit and the one in progress.
    pub(crate) fn changes(&self) -> u64 {
        self.coming.0 + self.taken.0 + self.leaving.len() as u64
    }

    /// Bytes by which the items of those that come let the chunk tree grow, at the least.
    pub(crate) fn coming_bytes(&self) -> u64 {
        self.coming.1 + self.taken.1
    }

    /// Those that the commit in progress removes.
    pub(crate) fn leaving(&self) -> &[(Logical, ChunkItem)] {
        &self.leaving
    }

    /// How many were made, and removed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.made, self.removed)
    }

    /// The UUID of the chunk tree.
    pub(crate) fn tree_uuid(&self) -> Uuid {
        self.tree_uuid
    }

    /// The kind of space for which empty chunks go at once.
    pub(crate) fn wanted(&self) -> Option<Shortage> {
        self.wanted
    }

    pub(crate) fn set_wanted(&mut self, wanted: Option<Shortage>) {
        self.wanted = wanted;
    }

    /// The empty group that a commit looked at last, by type and address.
    pub(crate) fn looked_at(&self) -> (u64, Logical) {
        self.looked_at
    }

    pub(crate) fn set_looked_at(&mut self, group: (u64, Logical)) {
        self.looked_at = group;
    }
}

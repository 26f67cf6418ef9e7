//! Chunks that are made and removed, between the commits that write that to the trees (invariant
//! 18).

use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{ITEM_HEADER_SIZE, Logical, Uuid};

use crate::demand::Shortage;

/// The least bytes of a chunk.
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
    /// The commit in flight, if there is one.
    #[default]
    CommitInFlight,
    /// The commit after that. The one in flight has taken its chunks, and its nodes can be in no
    /// others.
    NextCommit,
}

/// The chunks that are made and removed.
#[derive(Default)]
pub(crate) struct Chunks {
    /// The chunks that the next commit adds to the trees.
    new: Vec<NewChunk>,
    /// How many chunks are added to the trees, and the bytes of their items there: by the next
    /// commit (`coming`) and by the one in progress (`taken`).
    coming: (u64, u64),
    taken: (u64, u64),
    join: ChunksJoin,
    /// The chunks that the commit in progress removes.
    leaving: Vec<(Logical, ChunkItem)>,
    made: u64,
    removed: u64,
    /// The most bytes of a new chunk, if that is limited.
    max_length: Option<u64>,
    tree_uuid: Uuid,
    /// The kind of space that has been short since the last commit. Empty chunks of the other kind
    /// are then removed at once.
    wanted: Option<Shortage>,
    /// The empty group that a commit considered last.
    looked_at: (u64, Logical),
}

impl Chunks {
    pub(crate) fn new(tree_uuid: Uuid, max_length: Option<u64>) -> Self {
        Self { max_length, tree_uuid, ..Self::default() }
    }

    /// Returns whether the next commit has chunks to add.
    pub(crate) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// Returns the most bytes of a new chunk, if that is limited.
    pub(crate) fn max_length(&self) -> Option<u64> {
        self.max_length
    }

    /// Returns the commit whose trees get the chunks that are made now.
    pub(crate) fn join(&self) -> ChunksJoin {
        self.join
    }

    /// Notes that a commit has ended: the next one takes the chunks that are made from now on.
    pub(crate) fn commit_ends(&mut self) {
        self.taken = (0, 0);
        self.join = ChunksJoin::CommitInFlight;
    }

    /// Notes that the commit in progress removes a chunk.
    pub(crate) fn leave(&mut self, start: Logical, chunk: ChunkItem) {
        self.leaving.push((start, chunk));
    }

    /// Takes the removed chunks, once the commit that removes them is durable.
    pub(crate) fn take_leaving(&mut self) -> Vec<(Logical, ChunkItem)> {
        self.removed += self.leaving.len() as u64;
        std::mem::take(&mut self.leaving)
    }

    /// Returns the start addresses of the chunks that the next commit adds.
    pub(crate) fn starts_of_new(&self) -> impl Iterator<Item = Logical> {
        self.new.iter().map(|new| new.start)
    }

    /// Adds a chunk that was made.
    pub(crate) fn add(&mut self, made: NewChunk) {
        let bytes = (ITEM_HEADER_SIZE + made.chunk.to_bytes().len()) as u64;
        self.coming = (self.coming.0 + 1, self.coming.1 + bytes);
        self.new.push(made);
        self.made += 1;
    }

    /// Takes the chunks that the commit in progress adds. It adds none that is made later.
    pub(crate) fn take_new(&mut self) -> Vec<NewChunk> {
        self.join = ChunksJoin::NextCommit;
        self.taken = std::mem::take(&mut self.coming);
        std::mem::take(&mut self.new)
    }

    /// Returns how many chunks the next commit and the one in progress add to and remove from the
    /// trees.
    pub(crate) fn changes(&self) -> u64 {
        self.coming.0 + self.taken.0 + self.leaving.len() as u64
    }

    /// Returns the least number of bytes by which the items of new chunks make the chunk tree grow.
    pub(crate) fn coming_bytes(&self) -> u64 {
        self.coming.1 + self.taken.1
    }

    /// Returns the chunks that the commit in progress removes.
    pub(crate) fn leaving(&self) -> &[(Logical, ChunkItem)] {
        &self.leaving
    }

    /// Returns how many chunks were made and removed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.made, self.removed)
    }

    /// Returns the UUID of the chunk tree.
    pub(crate) fn tree_uuid(&self) -> Uuid {
        self.tree_uuid
    }

    /// Returns the kind of space for which empty chunks of the other kind are removed at once.
    pub(crate) fn wanted(&self) -> Option<Shortage> {
        self.wanted
    }

    pub(crate) fn set_wanted(&mut self, wanted: Option<Shortage>) {
        self.wanted = wanted;
    }

    /// Returns the empty group that a commit considered last, by type and address.
    pub(crate) fn looked_at(&self) -> (u64, Logical) {
        self.looked_at
    }

    pub(crate) fn set_looked_at(&mut self, group: (u64, Logical)) {
        self.looked_at = group;
    }
}

//! What operations ask of space, what has been promised, and what has to stay free.

/// What an operation may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Bytes of data, whole sectors.
    pub(crate) data: u64,
    /// Items put, changed or deleted.
    pub(crate) edits: u64,
    /// Bytes of new items.
    pub(crate) item_bytes: u64,
    /// What it may use of the metadata that is kept free.
    pub(crate) kept: UseOfKept,
}

/// What an operation may use of the metadata that is kept free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UseOfKept {
    /// Nothing: the operation may make metadata grow.
    #[default]
    None,
    /// Half: it frees data, yet may leave more items than there were.
    Half,
    /// All: it leaves no more than there was, or a name's worth.
    All,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Data,
    Metadata,
}

/// Promises that have not become allocations yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserved {
    /// Bytes of data.
    pub(crate) data: u64,
    /// Edits and item bytes of the open transaction.
    pub(super) pending: Demand,
    /// … and of the commit in flight.
    pub(super) frozen: Demand,
    /// What of it operations hold that may not have joined a transaction yet.
    pub(super) held: Demand,
}

/// What the last commit says of the cost of changes and of what has to stay free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Subvolumes that may share nodes with others.
    pub(crate) subvolumes: u64,
    /// Nodes of the extent tree.
    pub(crate) extent_nodes: u64,
    /// Bytes of the checksum of a sector.
    pub(crate) checksum_size: u64,
    /// Bytes of metadata that the kernel sets aside when it mounts.
    pub(crate) global_reserve: u64,
}

/// Bytes of metadata that stay free; they change with commits and chunks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// By all but what frees space.
    pub(super) bytes: u64,
    /// The room without which a transaction is not worth its commit. Whoever finds less than that
    /// when nothing is pending is told that the volume is full: otherwise the last of it would be
    /// used up by commits of a few operations each.
    pub(super) least_transaction: u64,
    /// Bytes that were free of metadata at the last commit.
    pub(super) free: u64,
}

//! The demand of operations for space, the reservations, and the space that must stay free.

/// What an operation may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Bytes of data, whole sectors.
    pub(crate) data: u64,
    /// Items put, changed or deleted.
    pub(crate) edits: u64,
    /// Bytes of new items.
    pub(crate) item_bytes: u64,
    /// How much of the free metadata reserve it may use.
    pub(crate) kept: UseOfKept,
}

/// How much of the free metadata reserve an operation may use.
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

/// The kind of space that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Data,
    Metadata,
}

/// Reservations that have not become allocations yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserved {
    /// Bytes of data.
    pub(crate) data: u64,
    /// Edits and item bytes of the open transaction.
    pub(super) pending: Demand,
    /// … and of the commit in flight.
    pub(super) frozen: Demand,
    /// Bytes of metadata for a step of relocation.
    pub(super) relocation: u64,
    /// The part that belongs to operations that may not have joined a transaction yet.
    pub(super) held: Demand,
}

/// Estimates from the last commit: the cost of changes, and the space that must stay free.
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
    /// The room without which a transaction is not worth its commit. An operation that finds less
    /// when nothing is pending fails with `ENOSPC`: otherwise the last space would be used up by
    /// commits of a few operations each.
    pub(super) least_transaction: u64,
    /// Bytes of metadata that were free at the last commit.
    pub(super) free: u64,
}

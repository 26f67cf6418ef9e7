//! The demand of operations for space, the reservations, and the space that must stay free.

/// The space that an operation may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Bytes of data, whole sectors.
    pub data: u64,
    /// Items put, changed or deleted.
    pub edits: u64,
    /// Bytes of new items.
    pub item_bytes: u64,
    /// How much of the global reserve the operation may use.
    pub global_reserve: UseOfGlobalReserve,
}

/// How much of the global reserve an operation may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum UseOfGlobalReserve {
    /// Nothing, since the operation may make metadata grow.
    #[default]
    None,
    /// Half, since the operation frees data, yet may leave more items than there were.
    Half,
    /// All, since the operation leaves no more than there was, or only a name more.
    All,
}

/// The kind of space that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Space in data block groups.
    Data,
    /// Space in metadata block groups.
    Metadata,
}

/// Reservations that have not become allocations yet, and other space that has to stay free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserved {
    /// Bytes of data.
    pub(crate) data: u64,
    /// Edits and item bytes of the open transaction.
    pub(crate) pending: Demand,
    /// Edits and item bytes of the commit in flight.
    pub(crate) frozen: Demand,
    /// Bytes of the nodes that the commit in flight has allocated so far, outside of system chunks.
    pub(crate) frozen_nodes: u64,
    /// Bytes of metadata for a step of relocation.
    pub(crate) relocation: u64,
    /// The part of the reservations that belongs to operations that may not have joined a
    /// transaction yet.
    pub(crate) held: Demand,
    pub(crate) needs: Needs,
    pub(crate) global_reserve: GlobalReserve,
    /// Metadata may be filled up without regard to kernels that would mount the volume.
    pub(crate) forgets_global_reserve: bool,
}

/// Estimates from the last commit: the cost of changes, and the space that must stay free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// How many subvolumes may share nodes with others.
    pub subvolumes: u64,
    /// How many nodes the extent tree has.
    pub extent_nodes: u64,
    /// Bytes of the checksum of a sector.
    pub checksum_size: u64,
    /// Bytes of metadata that the kernel sets aside when it mounts.
    pub global_reserve: u64,
}

/// Bytes of metadata that stay free. They change with commits and chunks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GlobalReserve {
    /// Bytes that only operations that free space may use.
    pub(crate) bytes: u64,
    /// The bytes without which a transaction is not worth its commit. An operation that finds less
    /// when nothing is pending fails with `ENOSPC`. Otherwise commits of a few operations each
    /// would use up the last space.
    pub(crate) least_transaction: u64,
    /// Bytes of metadata that were free at the last commit.
    pub(crate) free: u64,
}

//! Reservations: no commit may run out of space, so operations ask before they change anything.
//!
//! Metadata is reserved for a whole transaction: twice the bytes of its new items, and for each leaf that may be touched
//! (never more than there are) the leaf and a share of its path and of the extent tree. Data is reserved by the
//! sector when a write is taken, and given back when write-out has allocated it.

use ubtrfs_format::items::BlockGroupFlags;

use super::SpaceInner;

/// What an operation may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Bytes of data, whole sectors.
    pub(crate) data: u64,
    /// Items put, changed or deleted.
    pub(crate) edits: u64,
    /// Bytes of new items.
    pub(crate) item_bytes: u64,
    /// May use the reserve that lets deletions succeed.
    pub(crate) frees: bool,
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
    pending: Demand,
    /// … and of the commit in flight.
    frozen: Demand,
}

/// What snapshots add to the cost of changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sharing {
    /// Subvolumes that may share nodes with others.
    pub(crate) subvolumes: u64,
    /// Nodes of the extent tree.
    pub(crate) extent_nodes: u64,
}

impl SpaceInner {
    /// Bytes of metadata in use: an upper bound of what commits can touch.
    fn metadata_used(&self) -> u64 {
        let metadata = self.groups.values().filter(|group| group.flags.contains(BlockGroupFlags::METADATA));
        metadata.map(|group| group.recorded_used).sum()
    }

    fn available(&self, kind: BlockGroupFlags) -> u64 {
        let groups = self.groups.values().filter(|group| group.flags.contains(kind));
        groups.map(|group| group.available.total()).sum()
    }

    /// Bytes of metadata that a commit of these edits may need at the worst.
    fn metadata_need(&self, demand: Demand) -> u64 {
        // A node that several trees use may be written anew by each.
        let leaves = (self.metadata_used() / self.node_size + 4).saturating_mul(self.sharing.subvolumes.max(1));
        let touched = (demand.edits * 2).min(leaves);
        // A touched leaf is written anew together with its share of the path above it and of the extent and
        // free-space trees' leaves that note both: one more node for two leaves covers what was measured.
        2 * demand.item_bytes + (touched + touched / 2 + self.unsharing_need(touched)) * self.node_size
    }

    /// Nodes of the extent tree that are written when so many nodes that snapshots may share are replaced.
    fn unsharing_need(&self, replaced: u64) -> u64 {
        /// Entries of a node, each of which may lead to another leaf of the extent tree.
        const ENTRIES: u64 = 500;
        if self.sharing.subvolumes == 0 || replaced == 0 {
            return 0;
        }
        // New references take less than the entries that lead to them.
        replaced + self.extent_nodes().min(replaced.saturating_mul(ENTRIES)) * 3 / 2
    }

    fn extent_nodes(&self) -> u64 {
        self.sharing.extent_nodes.min(self.metadata_used() / self.node_size)
    }

    /// Room that only operations that free space may use.
    fn deletion_reserve(&self) -> u64 {
        let size: u64 =
            self.groups.values().filter(|g| g.flags.contains(BlockGroupFlags::METADATA)).map(|g| g.length).sum();
        let unsharing = if self.sharing.subvolumes == 0 { 0 } else { self.extent_nodes() * 3 / 2 * self.node_size };
        (size / 16).clamp(32 * self.node_size, 64 << 20) + unsharing
    }

    /// Reserves, or says what is short. A shortage may be cured by a new chunk or a commit.
    pub(crate) fn reserve(&mut self, demand: Demand) -> std::result::Result<(), Shortage> {
        let data = self.reserved.data + demand.data;
        if demand.data > 0 && data > self.available(BlockGroupFlags::DATA) {
            return Err(Shortage::Data);
        }
        let pending = Demand {
            edits: self.reserved.pending.edits + demand.edits,
            item_bytes: self.reserved.pending.item_bytes + demand.item_bytes,
            ..Demand::default()
        };
        let mut need = self.metadata_need(pending) + self.metadata_need(self.reserved.frozen);
        if !demand.frees {
            need += self.deletion_reserve();
        }
        if self.mixed {
            need += data;
        }
        if need > self.available(BlockGroupFlags::METADATA) {
            return Err(Shortage::Metadata);
        }
        self.reserved.pending = pending;
        self.reserved.data = data;
        Ok(())
    }

    /// Bytes of metadata space that neither commits nor deletions may need.
    pub(crate) fn spare_metadata(&self) -> u64 {
        let mut need = self.metadata_need(self.reserved.pending) + self.metadata_need(self.reserved.frozen);
        need += self.deletion_reserve();
        if self.mixed {
            need += self.reserved.data;
        }
        self.available(BlockGroupFlags::METADATA).saturating_sub(need)
    }

    /// Whether the commit that begins may need more metadata space than there is.
    pub(crate) fn is_metadata_short(&self) -> bool {
        self.metadata_need(self.reserved.frozen) + self.deletion_reserve() > self.available(BlockGroupFlags::METADATA)
    }

    /// Whether the chunk tree has little room to grow.
    pub(crate) fn is_system_short(&self) -> bool {
        self.available(BlockGroupFlags::SYSTEM) < 8 * self.node_size
    }

    /// Bytes of data that are promised space and have none yet: what is dirty, and what is being written.
    pub(crate) fn reserved_data(&self) -> u64 {
        self.reserved.data
    }

    /// Gives back data space: it has been allocated, or it won't be.
    pub(crate) fn unreserve_data(&mut self, bytes: u64) {
        debug_assert!(self.reserved.data >= bytes, "{} reserved, {bytes} given back", self.reserved.data);
        self.reserved.data = self.reserved.data.saturating_sub(bytes);
    }

    /// Gives back what an operation that failed had reserved of metadata.
    pub(crate) fn unreserve_metadata(&mut self, demand: Demand) {
        // The transaction that it was reserved in may be closed already; then the one after it has a little less.
        let pending = &mut self.reserved.pending;
        pending.edits = pending.edits.saturating_sub(demand.edits);
        pending.item_bytes = pending.item_bytes.saturating_sub(demand.item_bytes);
    }

    /// The open transaction becomes the commit in flight.
    pub(crate) fn freeze_reservations(&mut self) {
        self.reserved.frozen = std::mem::take(&mut self.reserved.pending);
    }

    /// Nothing was changed since the last commit.
    pub(crate) fn drop_pending_reservations(&mut self) {
        self.reserved.pending = Demand::default();
    }

    /// The commit in flight is done.
    pub(crate) fn drop_frozen_reservations(&mut self) {
        self.reserved.frozen = Demand::default();
    }
}

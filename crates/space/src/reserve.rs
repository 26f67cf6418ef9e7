//! Reservations: no commit may run out of space, so operations reserve it before they change
//! anything (invariant 8).
//!
//! Metadata is reserved for a whole transaction: twice the bytes of its new items, and for each
//! leaf that may be touched (at most as many as there are) the leaf and a share of its path and of
//! the extent tree. Data is reserved by the sector when a write is accepted, and released when
//! writeback has allocated it.
//!
//! Metadata is never filled up. The space that the kernel's driver needs to mount the volume stays
//! free (invariant 25), and so does the space that deletions may need here. Only operations that
//! free space may use it.

use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_volume::Published;

use crate::chunks::ChunksJoin;
use crate::demand::{Demand, GlobalReserve, Needs, Shortage, UseOfGlobalReserve};
use crate::space::{Space, SpaceState};

/// How many nodes even the smallest commit may write: the paths of all trees that record it. If the
/// nodes that it replaces become free again, these need no reservation.
const MIN_COMMIT: u64 = 32;

/// An operation's reservation of metadata. It is held until the operation has joined a transaction,
/// and counts in that one, even if commits begin or find nothing to do in the meantime.
#[must_use = "what is reserved has to be held until a transaction is joined"]
pub struct Reservation<'a> {
    space: &'a Space,
    demand: Demand,
}

impl<'a> Reservation<'a> {
    /// Takes ownership of the reservation that was made just now.
    pub fn of(space: &'a Space, inner: &mut SpaceState, demand: Demand) -> Self {
        let held = &mut inner.reserved.held;
        held.edits += demand.edits;
        held.item_bytes += demand.item_bytes;
        held.global_reserve = held.global_reserve.max(demand.global_reserve);
        Self { space, demand }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let held = &mut self.space.lock().reserved.held;
        held.edits -= self.demand.edits;
        held.item_bytes -= self.demand.item_bytes;
        if held.edits == 0 {
            held.global_reserve = UseOfGlobalReserve::None;
        }
    }
}

impl SpaceState {
    /// Returns how many bytes the trees use, as the superblock counts them.
    pub fn bytes_used(&self) -> u64 {
        self.groups.sums_where(|_| true).used
    }

    /// Returns how many bytes of metadata are in use, an upper bound of what commits can touch.
    fn metadata_used(&self) -> u64 {
        self.groups.sums(BlockGroupFlags::METADATA).used
    }

    pub(crate) fn available(&self, kind: BlockGroupFlags) -> u64 {
        self.groups.sums(kind).available
    }

    /// Returns how many bytes of all block groups can be allocated now.
    pub fn available_bytes(&self) -> u64 {
        let kinds = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA, BlockGroupFlags::SYSTEM];
        kinds.into_iter().map(|kind| self.available(kind)).sum()
    }

    /// Returns how many bytes of metadata a commit of these edits may need at most.
    fn metadata_need(&self, demand: Demand) -> u64 {
        // Each tree that shares a node may copy it.
        let leaves = (self.metadata_used() / self.node_size + 4).saturating_mul(self.reserved.needs.subvolumes.max(1));
        let touched = (demand.edits * 2).min(leaves);
        // A touched leaf is rewritten together with its share of the path above it and of the
        // leaves of the extent and free-space trees that record both. One more node for two leaves
        // covers the measured cost.
        2 * demand.item_bytes + (touched + touched / 2 + self.unsharing_need(touched)) * self.node_size
    }

    /// Returns how many nodes of the extent tree are written when so many possibly shared nodes are
    /// replaced.
    fn unsharing_need(&self, replaced: u64) -> u64 {
        /// How many entries a node has. Each may change another leaf of the extent tree.
        const ENTRIES: u64 = 500;
        if self.reserved.needs.subvolumes == 0 || replaced == 0 {
            return 0;
        }
        // New references take less than the entries that refer to them.
        replaced + self.extent_nodes().min(replaced.saturating_mul(ENTRIES)) * 3 / 2
    }

    fn extent_nodes(&self) -> u64 {
        self.reserved.needs.extent_nodes.min(self.metadata_used() / self.node_size)
    }

    /// Returns the bytes that must stay free if `size` bytes can become metadata.
    fn reserve_of(&self, size: u64) -> GlobalReserve {
        /// The most bytes that a transaction needs to be worth its commit.
        const WORTH_IT: u64 = 8 << 20;
        let kernel = if self.reserved.forgets_global_reserve { 0 } else { self.kernel_needs() };
        let deletions = (size / 16).clamp(32 * self.node_size, 64 << 20);
        let unsharing =
            if self.reserved.needs.subvolumes == 0 { 0 } else { self.extent_nodes() * 3 / 2 * self.node_size };
        let of_deletions = deletions + unsharing;
        GlobalReserve {
            bytes: deletions.max(kernel) + unsharing,
            least_transaction: (of_deletions / 2).min(WORTH_IT),
            free: self.reserved.global_reserve.free,
        }
    }

    /// Sets the estimates of the volume.
    pub fn set_needs(&mut self, needs: Needs) {
        self.reserved.needs = needs;
        self.reserved.global_reserve.free = self.free_metadata();
        self.count_reserve();
    }

    /// Ends the reservations of the commit in flight, and sets the estimates that it made.
    pub fn commit_ends(&mut self, needs: Needs, _published: &Published) {
        if cfg!(debug_assertions) {
            self.groups.check_indexes();
        }
        debug_assert!(
            self.reserved.frozen.global_reserve != UseOfGlobalReserve::None
                || self.reserved.forgets_global_reserve
                || self.free_metadata() >= self.reserved.global_reserve.free.min(self.reserved.needs.global_reserve),
            "invariant 25: {} bytes of metadata are free, {} were; the global reserve is {}",
            self.free_metadata(),
            self.reserved.global_reserve.free,
            self.reserved.needs.global_reserve,
        );
        self.reserved.frozen = Demand::default();
        self.reserved.frozen_nodes = 0;
        self.chunks.commit_ends();
        self.set_needs(needs);
    }

    /// Lets the open transaction use all of the global reserve, whatever it has reserved.
    pub fn may_use_all_of_global_reserve(&mut self) {
        self.reserved.pending.global_reserve = UseOfGlobalReserve::All;
    }

    /// Lets metadata be filled up without regard to kernels that would mount the volume.
    pub fn forget_global_reserve(&mut self) {
        self.reserved.forgets_global_reserve = true;
        self.count_reserve();
    }

    /// Recomputes the space that must stay free, after block groups were added or removed.
    pub(crate) fn count_reserve(&mut self) {
        self.reserved.global_reserve = self.reserve_of(self.groups.sums(BlockGroupFlags::METADATA).length);
    }

    /// Returns how many bytes of metadata space operations can get once nothing is pending: zero if
    /// hardly another transaction could begin. In mixed groups new chunks can add `more`.
    pub(crate) fn usable_metadata(&self, more: u64) -> u64 {
        let mut kept = self.reserved.global_reserve;
        if more > 0 {
            kept = self.reserve_of(self.groups.sums(BlockGroupFlags::METADATA).length + more);
        }
        let free = self.free_metadata() + more;
        let last = kept.least_transaction * if self.profiles.is_mixed() { 1 } else { 2 };
        if free < kept.bytes + last {
            return 0;
        }
        // The last transaction may begin with the least and uses about half of it.
        free - kept.bytes - kept.least_transaction / 2
    }

    /// Returns how many bytes of metadata are missing for operations that take `wanted` bytes.
    pub(crate) fn missing_metadata(&self, wanted: u64) -> u64 {
        (wanted + self.reserved.global_reserve.bytes + self.last_transactions()).saturating_sub(self.free_metadata())
    }

    /// Returns the bytes of metadata that the last transactions leave in addition to the reserve:
    /// none begins with less than the least.
    pub(crate) fn last_transactions(&self) -> u64 {
        2 * self.reserved.global_reserve.least_transaction
    }

    /// Returns how many bytes of metadata block groups are free according to the trees.
    pub(crate) fn free_metadata(&self) -> u64 {
        let metadata = self.groups.sums(BlockGroupFlags::METADATA);
        metadata.length - metadata.used
    }

    /// Reserves a demand, or returns the kind of space that is short. A new chunk or a commit may
    /// cure a shortage.
    pub fn reserve(&mut self, demand: Demand) -> std::result::Result<(), Shortage> {
        if demand.global_reserve == UseOfGlobalReserve::All {
            self.unpin();
        }
        let (pending, data) = self.with_demand(demand)?;
        self.reserved.pending = pending;
        self.reserved.data = data;
        Ok(())
    }

    /// Returns what would be reserved for changes and for data with a further demand, or the kind
    /// of space that is short.
    pub(crate) fn with_demand(&self, demand: Demand) -> std::result::Result<(Demand, u64), Shortage> {
        let data = self.reserved.data + demand.data;
        if demand.data > 0 && data > self.available(BlockGroupFlags::DATA) {
            return Err(Shortage::Data);
        }
        let pending = Demand {
            edits: self.reserved.pending.edits + demand.edits,
            item_bytes: self.reserved.pending.item_bytes + demand.item_bytes,
            global_reserve: self.reserved.pending.global_reserve.max(demand.global_reserve),
            data: 0,
        };
        let mut need = self.metadata_need(pending);
        match demand.global_reserve {
            UseOfGlobalReserve::None => {
                if self.reserved.pending.edits == 0 {
                    need = need.max(self.reserved.global_reserve.least_transaction);
                }
                need += self.reserved.global_reserve.bytes;
            }
            UseOfGlobalReserve::Half => need += self.reserved.global_reserve.bytes / 2,
            UseOfGlobalReserve::All if self.is_held_back() => need += MIN_COMMIT * self.node_size,
            UseOfGlobalReserve::All => {}
        }
        need += self.metadata_need(self.reserved.frozen) + self.reserved.relocation;
        if self.profiles.is_mixed() {
            need += data;
        }
        if need > self.available(BlockGroupFlags::METADATA) {
            return Err(Shortage::Metadata);
        }
        Ok((pending, data))
    }

    /// Returns whether space that commits have freed is not available yet, since somebody reads the
    /// trees of an older commit. Then space that the next commits free will not be available when
    /// it is needed, either.
    fn is_held_back(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Returns whether a commit may free something without a reservation, by the reserve for
    /// operations that free space. It may if what it takes of that becomes available again after
    /// it, or if the reserve is whole.
    pub fn may_free_unreserved(&mut self) -> bool {
        self.unpin();
        let need = self.metadata_need(self.reserved.pending) + self.metadata_need(self.reserved.frozen);
        let whole = need + self.reserved.global_reserve.bytes + self.reserved.relocation + MIN_COMMIT * self.node_size;
        !self.is_held_back() || self.available(BlockGroupFlags::METADATA) >= whole
    }

    /// Returns how many bytes of metadata space neither commits nor deletions may need.
    pub fn spare_metadata(&self) -> u64 {
        let in_flight =
            self.metadata_need(self.reserved.frozen) + self.reserved.global_reserve.bytes + self.reserved.relocation;
        let mut need = self.metadata_need(self.reserved.pending) + in_flight;
        if self.profiles.is_mixed() {
            need += self.reserved.data;
        }
        let spare = self.available(BlockGroupFlags::METADATA).saturating_sub(need);
        match self.chunks.join() {
            ChunksJoin::CommitInFlight => spare,
            ChunksJoin::NextCommit => spare.min(self.taken_metadata().saturating_sub(in_flight)),
        }
    }

    /// Returns how many bytes of metadata the commit in flight, which has taken its chunks, can
    /// still get.
    fn taken_metadata(&self) -> u64 {
        self.groups.sums(BlockGroupFlags::METADATA).available_in_old
    }

    /// Returns whether data may take `data` bytes of groups that the commit in flight needs for the
    /// nodes that it has not allocated yet, too, and `more` bytes remain.
    pub(crate) fn leaves_nodes_room(&self, data: u64, more: u64) -> bool {
        let nodes = || self.metadata_need(self.reserved.frozen).saturating_sub(self.reserved.frozen_nodes);
        !self.profiles.is_mixed()
            || self.chunks.join() == ChunksJoin::CommitInFlight
            || self.taken_metadata() >= data + nodes() + more
    }

    /// Notes that the commit in flight has allocated a node, or has given one back.
    pub(crate) fn note_commit_node(&mut self, is_allocated: bool) {
        let nodes = &mut self.reserved.frozen_nodes;
        *nodes = if is_allocated { *nodes + self.node_size } else { nodes.saturating_sub(self.node_size) };
    }

    /// Returns how many bytes of block groups of this kind are dispensable: reservations can be
    /// satisfied without them.
    pub(crate) fn spare(&self, flags: BlockGroupFlags) -> u64 {
        let of = |kind, spare: u64| if flags.contains(kind) { spare } else { u64::MAX };
        let data = self.available(BlockGroupFlags::DATA).saturating_sub(self.reserved.data);
        let system = if flags.contains(BlockGroupFlags::SYSTEM) { 0 } else { u64::MAX };
        system.min(of(BlockGroupFlags::METADATA, self.dispensable_metadata())).min(of(BlockGroupFlags::DATA, data))
    }

    /// Returns whether the commit that begins may need more metadata space than there is.
    pub fn is_metadata_short(&self) -> bool {
        let need =
            self.metadata_need(self.reserved.frozen) + self.reserved.global_reserve.bytes + self.reserved.relocation;
        need > self.available(BlockGroupFlags::METADATA)
    }

    /// Returns how many bytes of system chunks the commit in progress and the next may need for the
    /// chunks that they add and remove, in addition to what any commit needs: new leaves are at
    /// least half full, and each of the others may be rewritten.
    pub(crate) fn system_need(&self) -> u64 {
        const FEW: u64 = 8;
        let leaves = self.groups.sums(BlockGroupFlags::SYSTEM).used / self.node_size;
        let again = leaves.min(self.chunks.changes());
        2 * self.chunks.coming_bytes() + (again + FEW) * self.node_size
    }

    /// Returns whether the chunk tree may not find room to grow by a few more chunks.
    pub(crate) fn is_system_short(&self) -> bool {
        self.available(BlockGroupFlags::SYSTEM) < self.system_need()
    }

    /// Returns how many bytes of data have a reservation but no extent: dirty data, and data of
    /// writes in progress.
    pub fn reserved_data(&self) -> u64 {
        self.reserved.data
    }

    /// Returns whether so many bytes of data could not be reserved now.
    pub fn is_data_short(&self, bytes: u64) -> bool {
        self.reserved.data + bytes > self.available(BlockGroupFlags::DATA)
    }

    /// Counts data as reserved that already has an extent.
    pub fn promise_placed_data(&mut self, bytes: u64) {
        self.reserved.data += bytes;
    }

    /// Releases data space: it has been allocated, or it won't be.
    pub fn unreserve_data(&mut self, bytes: u64) {
        debug_assert!(
            self.reserved.data >= bytes,
            "invariant 8: {} bytes of data are reserved, {bytes} given back",
            self.reserved.data
        );
        self.reserved.data = self.reserved.data.saturating_sub(bytes);
    }

    /// Releases the metadata reservation of an operation that failed.
    pub fn unreserve_metadata(&mut self, demand: Demand) {
        // The transaction of the reservation may be closed already. Then the next one has a little
        // less.
        let pending = &mut self.reserved.pending;
        pending.edits = pending.edits.saturating_sub(demand.edits);
        pending.item_bytes = pending.item_bytes.saturating_sub(demand.item_bytes);
    }

    /// Makes the reservations of the open transaction those of the commit in flight. What
    /// operations still hold counts in the next transaction, too, since they may join that.
    pub fn freeze_reservations(&mut self) {
        self.reserved.frozen = std::mem::replace(&mut self.reserved.pending, self.reserved.held);
        self.reserved.frozen_nodes = 0;
    }

    /// Drops the reservations of a transaction without changes, except those that operations in
    /// progress hold.
    pub fn drop_pending_reservations(&mut self) {
        self.reserved.pending = self.reserved.held;
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::items::{ChunkItem, STRIPE_LEN, Stripe};
    use ubtrfs_format::{DeviceId, Logical, Physical, Uuid};

    use super::*;
    use crate::chunks::NewChunk;
    use crate::profiles::Profiles;

    fn pending(space: &Space) -> (u64, u64) {
        let pending = space.lock().reserved.pending;
        (pending.edits, pending.item_bytes)
    }

    fn reserve(space: &Space, edits: u64) -> Reservation<'_> {
        let mut inner = space.lock();
        let demand = Demand { edits, item_bytes: 100 * edits, ..Demand::default() };
        inner.reserved.pending.edits += demand.edits;
        inner.reserved.pending.item_bytes += demand.item_bytes;
        Reservation::of(space, &mut inner, demand)
    }

    /// Of invariant 8: chunks that are made during a commit must not count on space that the commit
    /// needs for its own.
    #[test]
    fn room_for_the_items_of_chunks_is_kept_until_their_commit_ends() {
        let mut state = SpaceState::empty(4096, 4096);
        let few = state.system_need();
        let add = |state: &mut SpaceState| {
            let stripe = Stripe { devid: DeviceId(1), offset: Physical(0), dev_uuid: Uuid::NIL };
            let chunk = ChunkItem {
                length: 1 << 20,
                owner: 2,
                stripe_len: STRIPE_LEN,
                flags: BlockGroupFlags::DATA,
                io_align: 4096,
                io_width: 4096,
                sector_size: 4096,
                sub_stripes: 1,
                stripes: vec![stripe; 2],
            };
            state.chunks.add(NewChunk { start: Logical(0), chunk });
        };
        add(&mut state);
        let one = state.system_need() - few;
        assert_eq!(one, 2 * (25 + 48 + 2 * 32));
        state.take_new_chunks();
        add(&mut state);
        assert_eq!(state.system_need(), few + 2 * one);
        state.chunks.commit_ends();
        assert_eq!(state.system_need(), few + one);
    }

    /// Of invariant 8: in mixed groups the nodes that the commit in flight has allocated are part
    /// of what it has reserved.
    #[test]
    fn nodes_of_a_commit_count_once_in_mixed_groups() {
        let mut state = SpaceState::empty(4096, 4096);
        let both = BlockGroupFlags(BlockGroupFlags::DATA.0 | BlockGroupFlags::METADATA.0);
        state.profiles = Profiles::new(both, both, BlockGroupFlags::SYSTEM, true);
        state.take_new_chunks();
        assert!(state.chunks.join() == ChunksJoin::NextCommit && state.taken_metadata() == 0);
        assert!(state.leaves_nodes_room(0, 0), "the commit needs nothing");
        state.reserved.frozen = Demand { edits: 1, ..Demand::default() };
        let nodes = state.metadata_need(state.reserved.frozen) / state.node_size;
        for _ in 0..nodes {
            assert!(!state.leaves_nodes_room(0, 0), "the commit needs another node");
            state.note_commit_node(true);
        }
        assert!(state.leaves_nodes_room(0, 0), "the commit has all its nodes");
        assert!(!state.leaves_nodes_room(1, 0), "data needs more than there is");
        state.note_commit_node(false);
        assert!(!state.leaves_nodes_room(0, 0), "the commit has given a node back");
    }

    #[test]
    fn a_reservation_counts_until_a_transaction_is_joined() {
        let space = Space::unknown(&[], 4096, 4096);
        let ended = reserve(&space, 3);
        let held = reserve(&space, 5);
        drop(ended);
        assert_eq!(pending(&space), (8, 800), "it has joined the open transaction");
        space.lock().drop_pending_reservations();
        assert_eq!(pending(&space), (5, 500), "a commit with nothing to do takes it from nobody");
        space.lock().freeze_reservations();
        assert_eq!(pending(&space), (5, 500), "it may join the next transaction");
        drop(held);
        space.lock().drop_pending_reservations();
        assert_eq!(pending(&space), (0, 0));
    }
}

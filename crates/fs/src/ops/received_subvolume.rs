//! Records what a subvolume was received from.

use ubtrfs_format::items::{Timespec, uuid_key};
use ubtrfs_format::{Generation, ItemType, TreeId, Uuid};

use super::operations::SubvolumeOperations;
use crate::error::{Errno, Result};
use crate::subvolume_changes::Received;
use ubtrfs_space::Demand;

/// Upper bound of the bytes of a root item and of two UUID items that list received subvolumes.
fn bytes_at_most(most_of_item: usize) -> u64 {
    464 + 2 * (most_of_item as u64 + 25)
}

impl SubvolumeOperations {
    /// Records what a subvolume was received from. This is durable when the call returns. Returns
    /// the transaction and the time of the receipt. `EROFS` if the subvolume is read-only,
    /// `EOVERFLOW` if too many subvolumes were received from the same one.
    pub fn set_received(&self, id: TreeId, received: &Received) -> Result<(Generation, Timespec)> {
        self.check_subvolume(id)?;
        self.info.check_writable(id)?;
        let time = self.info.now();
        let demand = Demand { edits: 4, item_bytes: bytes_at_most(self.info.most_of_item()), ..Demand::default() };
        let generation = self.reserver.with_reserved(demand, || {
            let _no_deletion = self.entries.lock_renames()?;
            self.check_subvolume(id)?;
            self.info.check_writable(id)?;
            self.check_room_among_received(received.uuid)?;
            let transaction = self.info.gate.enter();
            transaction.forbid_log();
            transaction.subvolumes().received.insert(id, (*received, time));
            Ok(transaction.generation)
        })?;
        self.committer.commit_through(generation)?;
        Ok((generation, time))
    }

    fn check_room_among_received(&self, uuid: Uuid) -> Result<()> {
        let committed = self.info.committed();
        if !committed.has_tree(TreeId::UUID) {
            return Ok(());
        }
        let item = committed.tree(TreeId::UUID)?.get(&uuid_key(ItemType::UUID_KEY_RECEIVED_SUBVOL, &uuid))?;
        let fits = item.is_none_or(|item| item.len() + 8 <= self.info.most_of_item());
        if fits { Ok(()) } else { Err(Errno::OVERFLOW.into()) }
    }
}

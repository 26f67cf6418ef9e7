//! The item that records that a balance is in progress or paused. The next commit writes it.

use ubtrfs_format::items::BalanceItem;
use ubtrfs_format::{ItemType, Key, objectid};
use ubtrfs_tree::EditBatch;

use super::owner::Committer;
use super::requests::BalanceEdit;
use crate::error::{Errno, Result};

/// The item's key in the root tree.
pub(crate) const BALANCE: Key = Key::new(objectid::BALANCE, ItemType::TEMPORARY_ITEM, 0);

impl Committer {
    /// Records which balance is in progress, if any, and commits.
    pub(crate) fn set_balance_item(&self, item: Option<&BalanceItem>) -> Result<()> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        self.requests.edit_balance(match item {
            Some(item) => BalanceEdit::Put(Box::new(*item)),
            None => BalanceEdit::Remove,
        });
        self.commit()
    }

    /// Takes the edit of the root tree that writes or removes the item.
    pub(super) fn take_balance_edit(&self, edits: &mut EditBatch) {
        match self.requests.take_balance_edit() {
            Some(BalanceEdit::Put(item)) => edits.put(BALANCE, item.to_bytes()),
            Some(BalanceEdit::Remove) => edits.delete(BALANCE),
            None => {}
        }
    }
}

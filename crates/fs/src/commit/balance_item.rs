//! The item that says that a balance is under way, or paused: the next commit writes it.

use ubtrfs_format::items::BalanceItem;
use ubtrfs_format::{ItemType, Key, objectid};
use ubtrfs_tree::EditBatch;

use super::owner::Committer;
use super::requests::BalanceEdit;
use crate::error::{Errno, Result};

/// The item's key in the root tree.
pub(crate) const BALANCE: Key = Key::new(objectid::BALANCE, ItemType::TEMPORARY_ITEM, 0);

impl Committer {
    /// Notes which balance is under way, if any, and commits.
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

    /// The edit of the root tree for that.
    pub(super) fn take_balance_edit(&self, edits: &mut EditBatch) {
        match self.requests.take_balance_edit() {
            Some(BalanceEdit::Put(item)) => edits.put(BALANCE, item.to_bytes()),
            Some(BalanceEdit::Remove) => edits.delete(BALANCE),
            None => {}
        }
    }
}

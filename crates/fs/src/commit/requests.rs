//! Requests to the next commit besides its transaction and the changes of space.

use ubtrfs_format::LABEL_SIZE;
use ubtrfs_format::items::BalanceItem;
use ubtrfs_threads::{Mutex, Rank};

/// A label as the superblock has it.
pub(super) type Label = [u8; LABEL_SIZE];

/// The change of the balance item in the next commit.
pub(super) enum BalanceEdit {
    Put(Box<BalanceItem>),
    Remove,
}

#[derive(Default)]
struct Asked {
    /// Whether the commit is made even if nothing has changed.
    anyway: bool,
    label: Option<Label>,
    balance: Option<BalanceEdit>,
    /// Whether the leftovers of a balance by the kernel are dropped.
    drops_reloc_trees: bool,
}

/// Requests to the next commit.
pub(super) struct CommitRequests(Mutex<Asked>);

impl CommitRequests {
    pub(super) fn new() -> Self {
        Self(Mutex::with_default(Rank::CommitRequests))
    }

    /// Whether there is any request. A request for a commit without changes is taken by this call.
    pub(super) fn take_whether_any(&self) -> bool {
        let mut asked = self.0.lock();
        std::mem::take(&mut asked.anyway) || asked.label.is_some() || asked.balance.is_some()
    }

    /// Requests that the next commit is made even if nothing has changed.
    pub(super) fn ask_anyway(&self) {
        self.0.lock().anyway = true;
    }

    /// Lets commits write this label.
    pub(super) fn set_label(&self, label: Label) {
        self.0.lock().label = Some(label);
    }

    /// Returns the label that commits write, if it differs from the present one.
    pub(super) fn label(&self) -> Option<Label> {
        self.0.lock().label
    }

    /// Ends the request to write this label, after the commit for it. A later label stays
    /// requested.
    pub(super) fn label_ends(&self, label: &Label) {
        let mut asked = self.0.lock();
        asked.label = asked.label.filter(|other| other != label);
    }

    /// Lets the next commit change the balance item.
    pub(super) fn edit_balance(&self, edit: BalanceEdit) {
        self.0.lock().balance = Some(edit);
    }

    /// Takes the change that the commit in progress makes to the balance item.
    pub(super) fn take_balance_edit(&self) -> Option<BalanceEdit> {
        self.0.lock().balance.take()
    }

    /// Sets whether commits drop the leftovers of a balance by the kernel.
    pub(super) fn set_drops_reloc_trees(&self, drops: bool) {
        self.0.lock().drops_reloc_trees = drops;
    }

    /// Whether the commit in progress drops these leftovers.
    pub(super) fn drops_reloc_trees(&self) -> bool {
        self.0.lock().drops_reloc_trees
    }
}

//! What is asked of the next commit beside its transaction and the changes of space.

use ubtrfs_format::LABEL_SIZE;
use ubtrfs_format::items::BalanceItem;
use ubtrfs_threads::{Mutex, Rank};

/// A label as the superblock has it.
pub(super) type Label = [u8; LABEL_SIZE];

/// What the next commit does with the item of a balance.
pub(super) enum BalanceEdit {
    Put(Box<BalanceItem>),
    Remove,
}

#[derive(Default)]
struct Asked {
    /// The commit is made even if nothing has changed.
    anyway: bool,
    label: Option<Label>,
    balance: Option<BalanceEdit>,
    /// What a balance of the kernel has left is dropped.
    drops_reloc_trees: bool,
}

/// What is asked of the next commit.
pub(super) struct CommitRequests(Mutex<Asked>);

impl CommitRequests {
    pub(super) fn new() -> Self {
        Self(Mutex::with_default(Rank::CommitRequests))
    }

    /// Whether anything is asked. A commit that was asked for without any change counts once.
    pub(super) fn take_whether_any(&self) -> bool {
        let mut asked = self.0.lock();
        std::mem::take(&mut asked.anyway) || asked.label.is_some() || asked.balance.is_some()
    }

    /// The next commit is made even if nothing has changed.
    pub(super) fn ask_anyway(&self) {
        self.0.lock().anyway = true;
    }

    /// Commits write this label.
    pub(super) fn set_label(&self, label: Label) {
        self.0.lock().label = Some(label);
    }

    /// The label that commits write, if they write another one.
    pub(super) fn label(&self) -> Option<Label> {
        self.0.lock().label
    }

    /// The commit that should write this label has ended. A later one stays.
    pub(super) fn label_ends(&self, label: &Label) {
        let mut asked = self.0.lock();
        asked.label = asked.label.filter(|other| other != label);
    }

    /// The next commit changes the item of a balance.
    pub(super) fn edit_balance(&self, edit: BalanceEdit) {
        self.0.lock().balance = Some(edit);
    }

    /// Takes what the commit in progress does with the item of a balance.
    pub(super) fn take_balance_edit(&self) -> Option<BalanceEdit> {
        self.0.lock().balance.take()
    }

    /// Commits drop what a balance of the kernel has left, from now on or no more.
    pub(super) fn set_drops_reloc_trees(&self, drops: bool) {
        self.0.lock().drops_reloc_trees = drops;
    }

    /// Whether the commit in progress drops that.
    pub(super) fn drops_reloc_trees(&self) -> bool {
        self.0.lock().drops_reloc_trees
    }
}

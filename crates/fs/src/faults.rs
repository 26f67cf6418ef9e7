//! What goes wrong on purpose, for tests of the tests, and hooks into a commit.
//!
//! The switches are there with the feature `testing` only. Without it the questions that the engine
//! asks here have constant answers, and nothing of the faults is left in a program.

/// Something that the log gets wrong on purpose: tests of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFault {
    /// A new directory is not logged with what lies in it.
    ForgetParent,
    /// Names that an inode lost are not logged.
    ForgetRemovedName,
    /// Of names that share an item only those are logged that changed.
    ForgetSiblingName,
    /// Xattrs of the last commit are left out.
    ForgetXattr,
    /// Of an inode of which only the names were asked for xattrs are logged as they are now, and
    /// nothing else.
    AnticipateXattr,
    /// Checksums of data that was written into reserved space are left out.
    ForgetPlacedSums,
    /// A file that was an orphan at the last commit is logged, though that can't say that it is
    /// none any more.
    KeepOrphan,
    /// Log nodes are overwritten while a durable superblock refers to them.
    ReusePinned,
    /// If an extent has grown since it was logged, only the fsynced file is logged again.
    ForgetGrownExtent,
    /// Compressed extents are taken to have as many bytes on disk as in the file.
    MistakePackedLength,
    /// Who needs the tree log while a log is in flight waits for the thread that leads its group.
    LeaveToLeader,
}

/// Something that a commit gets wrong on purpose: tests of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// Data of a frozen inode is written by the newest flags of the inode.
    NewestFlags,
    /// Fsyncs that joined the log of a commit are answered before its superblock is written.
    AnswerEarly,
    /// What the root node of a snapshot points to has no reference more than before.
    ForgetSharedReferences,
    /// The source of a snapshot does not note that it shares its nodes from here on.
    ForgetLastSnapshot,
    /// A snapshot gets its entry before its source is copied.
    EntryFirst,
    /// A reset removes the subvolume in one commit, and the next one puts another in its place.
    ResetInTwoSteps,
    /// Subvolumes are dropped without a reservation though readers hold back what that frees.
    FreeUnreserved,
    /// A subvolume becomes writable in memory by the operation that asked for it, after the commit.
    ReadOnlyAfterPublish,
    /// Deleted subvolumes are released though somebody has something of them open.
    ReleaseOpen,
    /// Chunks get the room by which a device grows before the volume has the device so.
    GrowAtOnce,
}

/// Something that bringing devices up to the others gets wrong on purpose: tests of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResilverFault {
    /// A device gets all but what a balance has copied for the next commit.
    OverlookCopies,
    /// What is compared is what is kept in memory of devices that are far away.
    CompareKept,
    /// A device that takes writes again stays behind until the next mount.
    LeaveBehind,
    /// A device lags as long as anything is missing on it, also what no other one has.
    MissWhatNobodyHas,
}

/// How far a commit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// Its transaction is frozen; nothing of it has been written.
    Frozen,
    /// Its chunks are in the chunk tree, and no others will be; other trees are not merged.
    ChunksTaken,
    /// Its trees are merged; no node has been written.
    Merged,
}

#[cfg(feature = "testing")]
mod switches {
    use std::sync::Arc;

    use super::{CommitFault, CommitStep, LogFault, ResilverFault};

    /// What a test does at each step of a commit.
    type AtStep = dyn Fn(CommitStep) + Send + Sync;

    /// What a test has to do while a commit is under way, in the thread that commits.
    #[derive(Clone)]
    pub struct CommitHook(pub Arc<AtStep>);

    impl std::fmt::Debug for CommitHook {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("CommitHook")
        }
    }

    /// What goes wrong on purpose in a mount.
    #[derive(Clone, Debug, Default)]
    #[allow(clippy::struct_excessive_bools, reason = "each goes wrong by itself")]
    pub struct Faults {
        /// What the log gets wrong.
        pub log: Option<LogFault>,
        /// What commits get wrong.
        pub commit: Option<CommitFault>,
        /// What bringing devices up to the others gets wrong.
        pub resilver: Option<ResilverFault>,
        /// What happens while a commit is under way.
        pub hook: Option<CommitHook>,
        /// Nobody looks whether what an operation adds still fits the item that it goes to.
        pub unchecked_items: bool,
        /// Fill metadata up as if no kernel would ever mount the volume.
        pub forget_global_reserve: bool,
        /// Dirty data becomes what options and flags ask for when it is written back, whether that
        /// was reserved or not.
        pub forget_forms: bool,
        /// A reflink within a file adds what it shares in flight to the file once more.
        pub repeat_in_flight: bool,
        /// To punch a hole, data that the commit in flight has yet to write is a hole already.
        pub overlook_frozen: bool,
        /// What moves is looked up as if all of a half-dropped subvolume were there.
        pub overlook_drops: bool,
    }

    impl Faults {
        pub(crate) fn in_log(&self, fault: LogFault) -> bool {
            self.log == Some(fault)
        }

        pub(crate) fn in_commit(&self, fault: CommitFault) -> bool {
            self.commit == Some(fault)
        }

        pub(crate) fn commit_reached(&self, step: CommitStep) {
            if let Some(hook) = &self.hook {
                (hook.0)(step);
            }
        }

        pub(crate) fn has_unchecked_items(&self) -> bool {
            self.unchecked_items
        }

        pub(crate) fn forgets_global_reserve(&self) -> bool {
            self.forget_global_reserve
        }

        pub(crate) fn forgets_forms(&self) -> bool {
            self.forget_forms
        }

        pub(crate) fn repeats_in_flight(&self) -> bool {
            self.repeat_in_flight
        }

        pub(crate) fn overlooks_frozen(&self) -> bool {
            self.overlook_frozen
        }

        pub(crate) fn overlooks_drops(&self) -> bool {
            self.overlook_drops
        }

        pub(crate) fn in_resilver(&self, fault: ResilverFault) -> bool {
            self.resilver == Some(fault)
        }
    }
}

#[cfg(not(feature = "testing"))]
mod switches {
    use super::{CommitFault, CommitStep, LogFault, ResilverFault};

    /// Nothing goes wrong on purpose.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Faults;

    #[allow(clippy::unused_self, reason = "with the feature there is something to look at")]
    impl Faults {
        pub(crate) fn in_log(self, _: LogFault) -> bool {
            false
        }

        pub(crate) fn in_commit(self, _: CommitFault) -> bool {
            false
        }

        pub(crate) fn commit_reached(self, _: CommitStep) {}

        pub(crate) fn has_unchecked_items(self) -> bool {
            false
        }

        pub(crate) fn forgets_global_reserve(self) -> bool {
            false
        }

        pub(crate) fn forgets_forms(self) -> bool {
            false
        }

        pub(crate) fn repeats_in_flight(self) -> bool {
            false
        }

        pub(crate) fn overlooks_frozen(self) -> bool {
            false
        }

        pub(crate) fn overlooks_drops(self) -> bool {
            false
        }

        pub(crate) fn in_resilver(self, _: ResilverFault) -> bool {
            false
        }
    }
}

#[cfg(feature = "testing")]
pub use switches::{CommitHook, Faults};

#[cfg(not(feature = "testing"))]
pub(crate) use switches::Faults;

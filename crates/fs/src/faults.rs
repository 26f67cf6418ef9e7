//! Faults that tests inject to test the tests, and hooks into a commit.
//!
//! The switches exist only with the feature `testing`. Without it the engine's queries here have
//! constant answers, and no fault is left in a program.

/// A fault of the log, to test the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFault {
    /// A new directory is not logged together with an inode in it.
    ForgetParent,
    /// Names that an inode lost are not logged.
    ForgetRemovedName,
    /// Of the names that share an item, only the changed ones are logged.
    ForgetSiblingName,
    /// Xattrs of the last commit are not logged.
    ForgetXattr,
    /// If only the names of an inode have to be logged, its xattrs are logged in their present
    /// state, and nothing else.
    AnticipateXattr,
    /// Checksums of data that was written to preallocated space are not logged.
    ForgetPlacedSums,
    /// A file that was an orphan at the last commit is logged, although the log can't say that it
    /// is not an orphan any more.
    KeepOrphan,
    /// Log nodes are overwritten while a durable superblock refers to them.
    ReusePinned,
    /// If an extent has grown since it was logged, only the fsynced file is logged again.
    ForgetGrownExtent,
    /// Compressed extents are taken to have as many bytes on disk as in the file.
    MistakePackedLength,
    /// A thread that needs the tree log while a log is in flight waits for the leader of its group.
    LeaveToLeader,
}

/// A fault of a commit, to test the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// Data of a frozen inode is written by the newest flags of the inode.
    NewestFlags,
    /// Fsyncs that joined the log of a commit are answered before its superblock is written.
    AnswerEarly,
    /// The children of a snapshot's root node get no additional reference.
    ForgetSharedReferences,
    /// The source of a snapshot does not record that it shares its nodes from then on.
    ForgetLastSnapshot,
    /// A snapshot gets its entry before its source is copied.
    EntryFirst,
    /// A reset removes the subvolume in one commit, and the next commit puts the other one in its
    /// place.
    ResetInTwoSteps,
    /// Subvolumes are dropped without a reservation although readers hold back the freed space.
    FreeUnreserved,
    /// After the commit, the operation that makes a subvolume writable also does so in memory.
    ReadOnlyAfterPublish,
    /// Deleted subvolumes are released although programs have files of them open.
    ReleaseOpen,
    /// Chunks may use the new space of a device that grows before the volume has the new size.
    GrowAtOnce,
}

/// A fault of the resilvering of lagging devices, to test the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResilverFault {
    /// A device gets everything except the copies that a balance has made for the next commit.
    OverlookCopies,
    /// For distant devices, the comparison uses what is cached in memory.
    CompareKept,
    /// A device that accepts writes again lags until the next mount.
    LeaveBehind,
    /// A device lags as long as anything is missing on it, even if no other device has it.
    MissWhatNobodyHas,
}

/// A point that a commit has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// The transaction is frozen; nothing of it has been written.
    Frozen,
    /// The chunk tree contains the commit's chunks, and gets no others; other trees are not merged.
    ChunksTaken,
    /// The trees are merged; no node has been written.
    Merged,
}

#[cfg(feature = "testing")]
mod switches {
    use std::sync::Arc;

    use super::{CommitFault, CommitStep, LogFault, ResilverFault};

    /// The action of a test at each step of a commit.
    type AtStep = dyn Fn(CommitStep) + Send + Sync;

    /// The action of a test during a commit, in the thread that commits.
    #[derive(Clone)]
    pub struct CommitHook(pub Arc<AtStep>);

    impl std::fmt::Debug for CommitHook {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("CommitHook")
        }
    }

    /// The injected faults of a mount.
    #[derive(Clone, Debug, Default)]
    #[allow(clippy::struct_excessive_bools, reason = "each goes wrong by itself")]
    pub struct Faults {
        /// The fault of the log.
        pub log: Option<LogFault>,
        /// The fault of commits.
        pub commit: Option<CommitFault>,
        /// The fault of resilvering.
        pub resilver: Option<ResilverFault>,
        /// The action during commits.
        pub hook: Option<CommitHook>,
        /// Nothing checks whether what an operation adds still fits in the item that it goes to.
        pub unchecked_items: bool,
        /// Metadata is filled up as if no kernel would ever mount the volume.
        pub forget_global_reserve: bool,
        /// Dirty data takes the form that options and flags require when it is written back,
        /// whether space for that form was reserved or not.
        pub forget_forms: bool,
        /// A reflink within a file adds the ordered extents that it shares to the file once more.
        pub repeat_in_flight: bool,
        /// Hole punching takes data that the commit in flight has yet to write for a hole.
        pub overlook_frozen: bool,
        /// Relocation looks up half-dropped subvolumes as if they were complete.
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

    /// The absence of faults.
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

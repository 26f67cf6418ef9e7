//! How a volume is mounted.

use std::sync::Arc;
use std::time::Duration;

use ubtrfs_tree::Damage;

/// Something that the log gets wrong on purpose: tests of the tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFault {
    /// A new directory is not logged with what lies in it.
    ForgetParent,
    /// Names that an inode lost are not told of.
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
    /// Log nodes are overwritten while a durable superblock leads to them.
    ReusePinned,
    /// Of an extent that has grown since it was logged, only who is asked for is logged anew.
    ForgetGrownExtent,
    /// Compressed extents are taken to have as many bytes on disk as in the file.
    MistakePackedLength,
}

/// Something that a commit gets wrong on purpose: tests of the tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// Data of a frozen inode is written by the newest flags of the inode.
    NewestFlags,
    /// Fsyncs that joined the log of a commit are answered before its superblock is written.
    AnswerEarly,
}

/// How far a commit has come.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// Its transaction is frozen; nothing of it has been written.
    Frozen,
    /// Its trees are merged; no node has been written.
    Merged,
}

/// What a test does at each step of a commit.
type AtStep = dyn Fn(CommitStep) + Send + Sync;

/// What a test has to do while a commit is under way, in the thread that commits.
#[doc(hidden)]
#[derive(Clone)]
pub struct CommitHook(pub Arc<AtStep>);

impl std::fmt::Debug for CommitHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CommitHook")
    }
}

/// How much is freed at a time of what nobody refers to any more.
#[derive(Clone, Copy, Debug)]
pub struct FreeingLimits {
    /// An inode whose content takes no more bytes than this is freed at once.
    pub at_once: u64,
    /// Extents that one transaction frees of larger ones: the commit takes some 3 µs for each,
    /// which an fsync may have to wait for.
    pub per_transaction: u64,
    /// Extents that the last transaction of a mount frees, when nobody waits for an fsync any more.
    pub at_the_end: u64,
    /// Inodes that may wait to be freed before those who unlink have to wait as well.
    pub queue: usize,
}

impl Default for FreeingLimits {
    fn default() -> Self {
        Self { at_once: 1 << 20, per_transaction: 2000, at_the_end: 20_000, queue: 4096 }
    }
}

/// How to read a volume that is damaged; for those who write nothing.
#[derive(Clone, Debug, Default)]
pub struct Rescue {
    /// Leave out what can't be read of trees, and read data whose checksums are lost, instead of
    /// failing. Noted here.
    pub pass_over: Option<Arc<Damage>>,
    /// Take data as it is, whatever its checksums say.
    pub ignore_data_checksums: bool,
}

impl Rescue {
    /// Whether to leave out what fails like this, which is noted then.
    pub(crate) fn passes_over(&self, error: &dyn std::error::Error) -> bool {
        self.pass_over.as_ref().is_some_and(|damage| {
            damage.note(error);
            true
        })
    }
}

/// Options of a mount.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Options {
    /// Change nothing, not one byte of the devices.
    pub read_only: bool,
    /// Look at the last commit of a volume that holds a log, without the log.
    pub no_log_replay: bool,
    /// Longest time from a change to the start of the commit that makes it durable.
    pub commit_interval: Duration,
    /// Memory for caches and dirty data, in bytes.
    pub memory: usize,
    /// The subvolume to mount, by path below the top level.
    pub subvolume: Option<String>,
    /// The subvolume to mount, by id.
    pub subvolume_id: Option<u64>,
    /// Keep access times as `relatime` does not: never change them.
    pub no_atime: bool,
    /// Commit in the background. Off in tests that decide themselves when a commit happens.
    pub background_commits: bool,
    /// Make fsyncs durable through the log; without it each is a commit.
    pub tree_log: bool,
    /// What the log gets wrong.
    #[doc(hidden)]
    pub log_fault: Option<LogFault>,
    /// What commits get wrong.
    #[doc(hidden)]
    pub commit_fault: Option<CommitFault>,
    /// What happens while a commit is under way.
    #[doc(hidden)]
    pub commit_hook: Option<CommitHook>,
    /// Nobody looks whether what an operation adds still fits the item that it goes to.
    #[doc(hidden)]
    pub unchecked_items: bool,
    /// Fill metadata up as if no kernel would ever mount the volume: for tests of the tests.
    #[doc(hidden)]
    pub forget_global_reserve: bool,
    /// The most bytes of a file whose content is kept in its inode's leaf.
    pub max_inline: u64,
    /// How much is freed at a time of what nobody refers to any more.
    pub freeing: FreeingLimits,
    /// Tell the devices, some time after the commit, what it freed.
    pub discard: bool,
    /// Believe neither block groups nor devices nor the free-space tree about what is used: count
    /// it anew, and have the next commit write all of that.
    pub recount_space: bool,
    /// How to read a damaged volume: only together with `read_only`.
    pub rescue: Rescue,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            no_log_replay: false,
            commit_interval: Duration::from_secs(5),
            memory: 256 << 20,
            subvolume: None,
            subvolume_id: None,
            no_atime: false,
            background_commits: true,
            tree_log: true,
            log_fault: None,
            commit_fault: None,
            commit_hook: None,
            unchecked_items: false,
            forget_global_reserve: false,
            max_inline: 2048,
            freeing: FreeingLimits::default(),
            discard: false,
            recount_space: false,
            rescue: Rescue::default(),
        }
    }
}

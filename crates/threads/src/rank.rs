//! The order of all locks of the engine and the server (invariant 7).

/// The rank of a lock. A thread that holds a lock waits only for locks that come after it in this
/// list; taking one without waiting for it is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    // Tests and simulations.
    /// The part of a simulated history that one thread performs.
    Part,
    /// What a test holds others up with.
    TestGate,

    // The server: tables of requests and of what the kernel knows.
    /// The rings of a session, until it ends.
    SessionRings,
    /// The device of a session, until it ends.
    SessionDevice,
    /// How the mount has ended.
    ServerEnded,
    /// The loop device by which syncs arrive, until it has ended.
    SyncLoopDevice,
    /// Its page, as long as it is kept dirty.
    SyncDevice,
    /// Threads that serve a session's requests.
    SessionThreads,
    /// WRITEs of `/dev/fuse`.
    SessionWrites,
    /// Markers that have arrived.
    Arrivals,
    /// Threads that have the kernel write pages.
    MappedPages,
    /// Requests from rings to the threads that may block.
    RingBacklog,
    /// The first error of a session's rings.
    RingError,
    /// Until when a forced unmount is expected.
    ForceExpected,
    /// Jobs of users that wait for a thread.
    UsersPool,
    /// Jobs of a pool.
    Pool,
    /// Ioctls under way that a signal may end.
    LongIoctls,
    /// Nodes that were shown to have capabilities.
    Refusals,
    /// Deleted subvolumes whose names the kernel may have.
    DeletedNames,
    /// Whether work that is repeated is wanted, and its thread.
    Repeated,
    /// Nodes whose entries are being dropped.
    Listings,
    /// Nodes whose pages are to be dropped.
    ToInvalidate,
    /// Names that the kernel is to forget.
    ChangedNames,
    /// Whether the kernel has forgotten a name.
    NameIsDone,
    /// Numbers of nodes, as the kernel knows them.
    Nodes,
    /// Which numbers belong to which subvolume.
    NodeWindows,
    /// Comparisons, streams and merges under way.
    Streams,
    /// How many threads they have.
    StreamTurns,
    /// What one of them has made.
    Stream,
    /// Scrubs that run.
    ScrubsRunning,
    /// Scrubs that were cancelled.
    ScrubsCancelled,
    /// How far a scrub is.
    ScrubProgress,
    /// Paths of devices by their numbers.
    DeviceNumbers,
    /// Paths of devices, as they were given.
    DevicePaths,

    // The engine: work that goes on for long.
    /// The engine's threads, until they are joined.
    EngineThreads,
    /// The replacement of a device that runs.
    ReplaceRunning,
    /// The balance, removal, resizing or replacement that runs.
    ExclusiveOperation,
    /// The balance that runs.
    Balance,
    /// What the copy of a device pauses by.
    ReplacePause,
    /// What a scrub pauses by.
    ScrubPause,
    /// Copies of extents that are moved, which no commit has yet.
    UncommittedCopies,
    /// The turn of discards.
    DiscardTurn,
    /// Whether discards end.
    DiscardStop,

    // The engine: operations and commits.
    /// Renames of directories.
    Rename,
    /// The turn of freeing what was deleted.
    InactivationTurn,
    /// The commit.
    Commit,
    /// What is asked of the next commit.
    CommitRequests,
    /// The tree log.
    TreeLog,
    /// The log whose nodes are under way.
    LogInFlight,
    /// The replacement item, as commits write it.
    Replacement,
    /// An inode. Several are locked by subvolume and number.
    Inode,
    /// The gate of the open transaction.
    Gate,

    // The engine: tables and lists, which are held for work in memory only.
    /// Trees of hashes that are kept.
    Verities,
    /// Blocks of a tree of hashes that were proved.
    ProvedVerity,
    /// Compressed extents that are kept unpacked.
    UnpackedExtents,
    /// Fsyncs that the next commit ends.
    LogNeedCommit,
    /// The group of fsyncs that is open.
    LogGathering,
    /// Fsyncs that follow a group.
    LogFollowers,
    /// The members of a group.
    FsyncMembers,
    /// Checksums of data that is written later.
    LaterSums,
    /// Checksums that the log does not have.
    UnloggedSums,
    /// Extents that were shared in a transaction.
    SharedExtents,
    /// Extents that were allocated in a transaction.
    NewExtents,
    /// Nodes of which is known whether they are shared.
    SharedNodes,
    /// Inodes that were renamed in a transaction.
    RenamedInodes,
    /// Inodes that a transaction has changed.
    DirtyInodes,
    /// The number of the next subvolume.
    NextTreeId,
    /// Subvolumes whose entries were renamed.
    MovedSubvolumes,
    /// Who looks at the published roots while they change.
    PublishedRoots,
    /// Changes of subvolumes in a transaction.
    SubvolumeChanges,
    /// How data is compressed.
    Compression,
    /// Threads that compress, and are idle.
    IdlePackers,
    /// Files whose data is under way.
    FilesInFlight,
    /// The I/O of ordered extents.
    DataWrites,
    /// Block groups, free space and reservations.
    Space,
    /// What was deleted and is yet to be freed.
    Inactivation,
    /// Why the mount is read-only for good.
    Aborted,
    /// Subvolumes whose trees are yet to be dropped.
    UndroppedSubvolumes,
    /// Subvolumes that were deleted.
    DeletedSubvolumes,
    /// A shard of the table of inodes. All are locked from the first to the last.
    InodeTable,
    /// Whether a commit is asked for.
    CommitRequest,
    /// Whether devices are to be brought up to the others.
    ResilverRequest,
    /// The last errors of devices.
    LastErrors,
    /// How an fsync has ended.
    FsyncEnd,
    /// The progress of a ring's entry.
    RingEntry,
    /// What other threads send to a ring's thread.
    Mailbox,

    // Trees and the volume.
    /// Nodes that are read ahead.
    NodeReadAhead,
    /// A shard of the cache of nodes.
    NodeCache,
    /// What could not be read.
    Damage,
    /// The target of a replacement that was found at the mount.
    FoundTarget,
    /// Who gives all devices one superblock before the first write.
    LevelingSuperblocks,
    /// Who writes superblocks.
    VolumePublishing,
    /// Who changes the set of devices.
    ChangingDevices,
    /// Writes that are being submitted, while a range is to be free of them.
    Submissions,
    /// Who gives up a device.
    GivingUp,
    /// How far a device was brought up to the others.
    Resilvered,
    /// When devices were looked for last.
    LastLook,
    /// The map of chunks.
    ChunkMap,
    /// The superblock.
    Superblock,
    /// The item of a device.
    MemberItem,
    /// The primary superblock of a device.
    MemberPrimary,
    /// Errors of a device, as they are saved.
    MemberErrors,
    /// Ranges with writes under way.
    VolumeInFlight,
    /// Faults of devices that cost nothing.
    FaultLog,

    // Devices.
    /// Superblocks that are not written yet.
    DeferredSuperblocks,
    /// What a device far away keeps of what it read.
    ReadAheadKept,
    /// The rate of a device in tests.
    ThrottledDevice,
    /// Faults of a device in tests.
    FaultyDevice,
    /// What a device in tests keeps to itself.
    LyingDevice,
    /// The recording of a device in tests.
    RecordingDevice,
    /// The mark of who writes to a device.
    ProtectedDevice,
    /// What a writer knows of its mark.
    WriterLease,
    /// The ticket of writes that are submitted later.
    DeferredWrite,
    /// An image in memory over another.
    OverlayDevice,
    /// A device in memory.
    MemoryDevice,
    /// The queue of a pool of writers.
    WritePoolQueue,
    /// Where writers take jobs.
    WritePoolJobs,
    /// Who submits to a ring of devices.
    UringSubmission,
    /// What is under way on such a ring.
    UringState,
    /// The first error of a group of writes there.
    UringError,
    /// Requests to an NBD server.
    NbdSession,
    /// Requests to be sent on a connection.
    NbdLane,
    /// The answers that a write waits for.
    NbdRequests,
    /// The answer to a read.
    NbdAnswer,
    /// The state of a TLS connection.
    Tls,
    /// Writes that are waited for together.
    WriteGroup,
    /// Buffers to be used again.
    BufferPool,
}

//! The order of all locks of the engine and the server (invariant 7).

/// The rank of a lock. A thread that holds a lock waits only for locks that come after it in this
/// list. Taking a lock without waiting for it is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    // Tests and simulations.
    /// The part of a simulated history that one thread performs.
    Part,
    /// A lock by which a test blocks other threads.
    TestGate,

    // The server: tables of requests and of what the kernel knows.
    /// The rings of a session, until it ends.
    SessionRings,
    /// The device of a session, until it ends.
    SessionDevice,
    /// The result with which the mount has ended.
    ServerEnded,
    /// The loop device by which syncs arrive, until it has ended.
    SyncLoopDevice,
    /// The page of that loop device, as long as it is kept dirty.
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
    /// The time until which a forced unmount is expected.
    ForceExpected,
    /// Jobs of users that wait for a thread.
    UsersPool,
    /// Jobs of a pool.
    Pool,
    /// Ioctls in progress that a signal may end.
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
    /// The numbers of nodes that belong to each subvolume.
    NodeWindows,
    /// Comparisons, streams and merges in progress.
    Streams,
    /// How many threads comparisons, streams and merges have.
    StreamTurns,
    /// The output of one of them.
    Stream,
    /// Scrubs that run.
    ScrubsRunning,
    /// Scrubs that were cancelled.
    ScrubsCancelled,
    /// The progress of a scrub.
    ScrubProgress,
    /// Paths of devices by their numbers.
    DeviceNumbers,
    /// Paths of devices, as they were given.
    DevicePaths,

    // The engine: work that goes on for long.
    /// The engine's threads, until they are joined.
    EngineThreads,
    /// The running replacement of a device.
    ReplaceRunning,
    /// The running balance, removal, resizing or replacement.
    ExclusiveOperation,
    /// The running balance.
    Balance,
    /// The pause of the copy of a device.
    ReplacePause,
    /// The pause of a scrub.
    ScrubPause,
    /// Copies of moved extents that no commit has yet.
    UncommittedCopies,
    /// The turn of discards.
    DiscardTurn,
    /// Whether discards are to stop.
    DiscardStop,

    // The engine: operations and commits.
    /// Renames of directories.
    Rename,
    /// The turn of the inactivator, which frees deleted inodes.
    InactivationTurn,
    /// The commit.
    Commit,
    /// Requests to the next commit.
    CommitRequests,
    /// The tree log.
    TreeLog,
    /// The log whose nodes are in flight.
    LogInFlight,
    /// The replacement item, as commits write it.
    Replacement,
    /// An inode. Several are locked by subvolume and number.
    Inode,
    /// The gate of the open transaction.
    Gate,

    // The engine: tables and lists, which are held for work in memory only.
    /// The cached trees of hashes.
    Verities,
    /// The verified blocks of a tree of hashes.
    ProvedVerity,
    /// Cached decompressed extents.
    UnpackedExtents,
    /// Fsyncs that wait for the next commit.
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
    /// Nodes for which it is known whether they are shared.
    SharedNodes,
    /// Inodes that were renamed in a transaction.
    RenamedInodes,
    /// Inodes that a transaction has changed.
    DirtyInodes,
    /// The number of the next subvolume.
    NextTreeId,
    /// Subvolumes whose entries were renamed.
    MovedSubvolumes,
    /// Held shared while a loaded inode or subvolume enters its table, and exclusively while a
    /// commit is published.
    PublishedRoots,
    /// Changes of subvolumes in a transaction.
    SubvolumeChanges,
    /// How data is compressed.
    Compression,
    /// Threads that compress, and are idle.
    IdlePackers,
    /// Files whose data is in flight.
    FilesInFlight,
    /// The I/O of ordered extents.
    DataWrites,
    /// Block groups, free space and reservations.
    Space,
    /// Deleted inodes that are still to be freed.
    Inactivation,
    /// Why the mount is read-only for good.
    Aborted,
    /// Subvolumes whose trees are still to be dropped.
    UndroppedSubvolumes,
    /// Subvolumes that were deleted.
    DeletedSubvolumes,
    /// A shard of the table of inodes. All are locked from the first to the last.
    InodeTable,
    /// Whether a commit is requested.
    CommitRequest,
    /// Whether devices are to be brought up to the others.
    ResilverRequest,
    /// The last errors of devices.
    LastErrors,
    /// The result of an fsync.
    FsyncEnd,
    /// The progress of a ring's entry.
    RingEntry,
    /// Messages of other threads to a ring's thread.
    Mailbox,

    // Trees and the volume.
    /// Nodes that are read ahead.
    NodeReadAhead,
    /// A shard of the cache of nodes.
    NodeCache,
    /// Notes about what could not be read.
    Damage,
    /// The target of a replacement that was found at the mount.
    FoundTarget,
    /// Held while all devices get the same superblock before the first write.
    LevelingSuperblocks,
    /// Held while superblocks are written.
    VolumePublishing,
    /// Held while the set of devices changes.
    ChangingDevices,
    /// Held shared by submissions of writes, and exclusively to keep a range free of them.
    Submissions,
    /// Held while it is decided whether to give up a device.
    GivingUp,
    /// How far a device was brought up to the others.
    Resilvered,
    /// When the superblocks on the devices were last compared with ours.
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
    /// Ranges with writes in flight.
    VolumeInFlight,
    /// Faults of devices that lost nothing.
    FaultLog,

    // Devices.
    /// Superblocks that are not written yet.
    DeferredSuperblocks,
    /// The data of reads and writes that a device far away keeps.
    ReadAheadKept,
    /// The rate of a device in tests.
    ThrottledDevice,
    /// Faults of a device in tests.
    FaultyDevice,
    /// The state of a device in tests that lies.
    LyingDevice,
    /// The recording of a device in tests.
    RecordingDevice,
    /// The state of a device that is protected by a writer's mark.
    ProtectedDevice,
    /// The state of a writer's mark and lease.
    WriterLease,
    /// The ticket of writes that are submitted later.
    DeferredWrite,
    /// The writes that are kept in memory over a device.
    StagedDevice,
    /// An image in memory over another.
    OverlayDevice,
    /// A device in memory.
    MemoryDevice,
    /// The queue of a pool of writers.
    WritePoolQueue,
    /// The end of the queue at which writers take jobs.
    WritePoolJobs,
    /// Held while writes are submitted to a device's ring.
    UringSubmission,
    /// The writes in flight on such a ring.
    UringState,
    /// The first error of a group of writes on such a ring.
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

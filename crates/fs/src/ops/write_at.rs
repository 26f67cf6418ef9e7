//! Where a write goes.

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file at the time of the write.
    End,
    /// At this offset, by a descriptor that only appends: append-only files accept nothing else.
    Appending(u64),
}

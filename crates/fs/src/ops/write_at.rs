//! Where a write goes.

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file at the time of the write.
    End,
    /// At this offset, by a descriptor with `O_APPEND`. Append-only files accept only this and
    /// `End`.
    Appending(u64),
}

//! Where a write goes.

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, whatever that is by then.
    End,
    /// At this offset, by a descriptor that only appends: append-only files take nothing else.
    Appending(u64),
}

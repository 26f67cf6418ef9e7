//! The names of the promises.

/// A promise of a device about one or several of its methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// `size` is what `find_size` returned, and stays so until the next call of that.
    Size,
    /// Reads of any address and length show what was written.
    Reads,
    /// Reads beyond the end fail with `UnexpectedEof`; empty ones within the device succeed.
    ReadBounds,
    /// Batches are written as a whole: neighbours, many writes, large ones, urgent ones.
    Writes,
    /// Batches with a write that is not aligned, or reaches beyond the end, are refused as a whole.
    WriteRules,
    /// Each sector that several writes of one batch have in common is as one of them wrote it.
    Overlaps,
    /// Writes complete though nobody waits for their ticket.
    DroppedTickets,
    /// Writes that had completed before a barrier are durable after it.
    Flush,
    /// Writes with FUA are durable as they complete.
    Fua,
    /// Discards change nothing around their range, fail beyond the device's end, and their range
    /// can be written again.
    Discards,
    /// What is outside of the data ranges reads as zeros.
    DataRanges,
    /// `file_to_read` returns a file with the content that `read_at` shows, and only for aligned
    /// ranges.
    FileToRead,
    /// Many threads at once read what they wrote.
    Threads,
    /// Comparisons see what is on the device, not what was kept of reads and writes.
    Comparing,
    /// Operations are counted, and counters only grow.
    Counters,
    /// A device that is read-only refuses writes and discards, and changes nothing.
    ReadOnly,
    /// After another size was found, everything within it can be read and written, and nothing
    /// beyond it.
    Resizes,
    /// Requests that failed are reported, and do not spoil what is written afterwards.
    Failures,
    /// A device that was released can be read, and so can one after `stop_waiting`.
    Release,
}

//! The promises, by their names.

/// What a device promises, method by method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// `size` is that of `find_size`, and stays so until the next look.
    Size,
    /// Reads of any address and length show what was written.
    Reads,
    /// Reads beyond the end are `UnexpectedEof`; empty ones within the device are done.
    ReadBounds,
    /// Batches are written as a whole: neighbours, many writes, large ones, urgent ones.
    Writes,
    /// Batches with a write that is not aligned, or reaches beyond the end, are refused as a whole.
    WriteRules,
    /// What writes of one batch have in common is as one of them wrote it, sector by sector.
    Overlaps,
    /// Writes complete though nobody waits for their ticket.
    DroppedTickets,
    /// Writes that had completed before a barrier are durable after it.
    Flush,
    /// Writes with FUA are durable as they complete.
    Fua,
    /// Discards change nothing around their range, keep to the device, and are written over.
    Discards,
    /// What is outside of the data ranges reads as zeros.
    DataRanges,
    /// The file to read shows what `read_at` shows, and is offered for aligned ranges only.
    FileToRead,
    /// Many threads at once read what they wrote.
    Threads,
    /// Comparisons see what is on the device, not what was kept of reads and writes.
    Comparing,
    /// What was done is counted, and counters only grow.
    Counters,
    /// A device that is read-only refuses writes and discards, and changes nothing.
    ReadOnly,
    /// After another size was found, all within it can be read and written, and nothing beyond.
    Resizes,
    /// Requests that failed are reported, and do not spoil what is written afterwards.
    Failures,
    /// A device that was released can be read, and so can one that nobody waits for.
    Release,
}

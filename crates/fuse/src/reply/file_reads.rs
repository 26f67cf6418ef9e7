//! Answers that the transport completes by reading files.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// A part of an answer, and the place in a file from which it is read.
#[derive(Debug)]
pub struct FileRead {
    /// The file. If it is open with `O_DIRECT`, `at` and `range` are aligned as it requires. The
    /// buffer is aligned to 4096 bytes.
    pub file: Arc<File>,
    /// The offset in the file, in bytes.
    pub at: u64,
    /// The bytes of the buffer that it fills.
    pub range: Range<usize>,
}

/// Decides whether a buffer has the right content.
pub type Check = Box<dyn FnOnce(&[u8]) -> bool + Send>;

/// An answer that is complete once files are read.
pub struct FileReads {
    /// Bytes of the answer.
    pub length: usize,
    /// The reads. If there are none, the answer is sent at once.
    pub reads: Vec<FileRead>,
    /// Decides whether the buffer has the right content after the reads. If it has not, or a read
    /// has failed, the request is served again by a thread that may block.
    pub check: Check,
}

//! Bytes of an answer that the transport reads from files by itself.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// A part of an answer, and where it is read from.
#[derive(Debug)]
pub struct FileRead {
    /// The file. With `O_DIRECT`, `at` and `range` are aligned as it requires; the buffer is to
    /// 4096 bytes.
    pub file: Arc<File>,
    /// Where in it, in bytes.
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
    /// What is read; with nothing to read the answer is sent at once.
    pub reads: Vec<FileRead>,
    /// Whether the buffer has the right content now. If it has not, or a read has failed, the
    /// request is served again, by a thread that may block.
    pub check: Check,
}

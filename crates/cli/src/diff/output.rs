//! The interface of the formats in which changes are shown.

use std::io;

use ubtrfs::FileChange;

/// Writes changes in one format.
pub trait Output {
    /// Writes one change.
    fn change(&mut self, change: &FileChange) -> io::Result<()>;
    /// Writes the end.
    fn finish(&mut self) -> io::Result<()>;
}

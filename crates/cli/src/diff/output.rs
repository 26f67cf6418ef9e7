//! The forms in which changes are shown.

use std::io;

use ubtrfs::FileChange;

/// What shows changes.
pub trait Output {
    /// Shows one.
    fn change(&mut self, change: &FileChange) -> io::Result<()>;
    /// Ends.
    fn finish(&mut self) -> io::Result<()>;
}

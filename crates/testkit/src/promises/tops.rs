//! The directories that all writers share, and the attribute that marks files.

/// The directories that all writers share.
pub const TOPS: [&str; 3] = ["one", "two", "three"];

/// The attribute that holds a file's mark.
pub(super) const MARK: &str = "user.mark";

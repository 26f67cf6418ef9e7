//! The exit statuses of a check.

/// Faults were found.
pub const FAULTY: u8 = 1;
/// The check could not be made.
pub const NOT_CHECKED: u8 = 2;

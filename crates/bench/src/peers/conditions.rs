//! What a volume is made on.

use std::time::Duration;

/// What the devices of all volumes of a run are like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The blocks of images were written before: the file system below allocates none.
    pub written: bool,
    /// Bytes in a second that a device reads at the most, and that it writes.
    pub throttle: Option<u64>,
    /// How late the answers of the server come that has the image, if one has it.
    pub delay: Option<Duration>,
}

//! What a volume is made on.

/// What the devices of all volumes of a run are like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The blocks of images were written before: the file system below allocates none.
    pub written: bool,
    /// Bytes in a second that a device reads at the most, and that it writes.
    pub throttle: Option<u64>,
}

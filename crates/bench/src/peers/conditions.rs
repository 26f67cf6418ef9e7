//! What a volume is made on.

use std::time::Duration;

use ubtrfs_mkfs::Profile;

/// The devices of a volume, and the profile of its data and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// How many devices.
    pub devices: usize,
    /// The profile.
    pub profile: Profile,
}

impl Default for Layout {
    fn default() -> Self {
        Self { devices: 1, profile: Profile::Single }
    }
}

/// What the devices of all volumes of a run are like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The blocks of images were written before: the file system below allocates none.
    pub written: bool,
    /// The devices, each of the same size.
    pub layout: Layout,
    /// Bytes in a second that each device reads at the most, and that it writes.
    pub throttle: Option<u64>,
    /// How late the answers of the server come that has the image, if one has it.
    pub delay: Option<Duration>,
}

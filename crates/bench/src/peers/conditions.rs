//! The devices of volumes, and their properties.

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

/// Properties of the devices of all volumes of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The blocks of images were written before, so that the file system below allocates none.
    pub written: bool,
    /// The devices, each of the same size.
    pub layout: Layout,
    /// Bytes per second to which reads and writes of each device are limited, separately.
    pub throttle: Option<u64>,
    /// The delay of the server's answers, if a server has the image.
    pub delay: Option<Duration>,
}

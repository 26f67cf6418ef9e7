/// A result of this crate.
pub type Result<T> = std::result::Result<T, MkfsError>;

/// Why no volume can be made with these options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// The device is too small.
    #[error("{size} bytes are too small for a volume with these profiles; the minimum is {minimum} bytes ({} MiB)", minimum >> 20)]
    TooSmall {
        /// Bytes of the device.
        size: u64,
        /// The least bytes that are enough.
        minimum: u64,
    },
    /// One of several devices is too small.
    #[error("{size} bytes of device {devid} are too small for a volume with these profiles; the minimum is {minimum} bytes ({} MiB)", minimum >> 20)]
    DeviceTooSmall {
        /// The device's number.
        devid: u64,
        /// Its bytes.
        size: u64,
        /// The least bytes that are enough.
        minimum: u64,
    },
    /// A profile that needs more devices.
    #[error("the profile {profile} needs at least {least} devices, not {devices}")]
    TooFewDevices {
        /// The profile's name.
        profile: &'static str,
        /// How many devices there are.
        devices: usize,
        /// How many it needs.
        least: usize,
    },
    /// A node size that the format does not have.
    #[error("node size {0} is impossible: it must be 4096, 8192, 16384, 32768 or 65536")]
    NodeSize(u32),
    /// A sector size that the format does not have.
    #[error("sector size {0} is impossible: it must be 4096, 8192, 16384, 32768 or 65536")]
    SectorSize(u32),
    /// Nodes smaller than a sector.
    #[error("a node size of {node_size} is less than the sector size of {sector_size}")]
    NodeBelowSector {
        /// The requested node size.
        node_size: u32,
        /// The sector size.
        sector_size: u32,
    },
    /// Mixed groups with nodes larger than a sector.
    #[error("mixed block groups need a node size equal to the sector size ({sector_size}), not {node_size}")]
    MixedNodeSize {
        /// The requested node size.
        node_size: u32,
        /// The sector size.
        sector_size: u32,
    },
    /// Mixed groups with two profiles.
    #[error("mixed block groups need the same profile for data and metadata")]
    MixedProfiles,
    /// A block-group tree without the features that it requires.
    #[error("a block-group tree needs the free-space tree and no-holes")]
    BlockGroupTree,
    /// A label that is too long.
    #[error("the label has {0} bytes; at most 255 are possible")]
    LabelTooLong(usize),
    /// A label with a byte that would end it or a line.
    #[error("the label contains a zero byte or a line break")]
    LabelByte,
    /// A structure could not be written.
    #[error("cannot lay out the volume")]
    Format(#[from] ubtrfs_format::Error),
}

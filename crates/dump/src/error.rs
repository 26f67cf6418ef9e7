//! Why a dump can't be made or restored.

use std::io;

use ubtrfs_format::Logical;

/// A failed dump or restore.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device has a superblock that is good.
    #[error("no device has a good superblock")]
    NoSuperblock,
    /// The devices are not of one volume.
    #[error("the devices are of different volumes")]
    OtherVolume,
    /// The dump could not be written.
    #[error("the dump can't be written")]
    Output(#[source] io::Error),
    /// The dump could not be read.
    #[error("the dump can't be read at byte {at}")]
    Input {
        /// Where, in bytes from the beginning of the file.
        at: u64,
        /// The failure.
        source: io::Error,
    },
    /// The file has no dump.
    #[error("this is no dump of metadata")]
    NotDump,
    /// The dump ends too early.
    #[error("the dump is cut off: it ends in the cluster at byte {cluster}")]
    Truncated {
        /// The beginning of the cluster, in bytes from the beginning of the file.
        cluster: u64,
    },
    /// A cluster is not as the format has it.
    #[error("the dump is damaged: the cluster at byte {cluster} has {what}")]
    Cluster {
        /// The beginning of the cluster, in bytes from the beginning of the file.
        cluster: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The content of an item can't be decompressed, or is too large.
    #[error("the dump is damaged: what it has of address {at} can't be decompressed")]
    Compressed {
        /// The address of the item.
        at: Logical,
    },
    /// The dump's superblock.
    #[error("the superblock in the dump is bad")]
    Superblock(#[source] ubtrfs_format::Error),
    /// The dump names no device.
    #[error("the dump names no device that it could be restored to")]
    NoDevice,
    /// There are more or fewer targets than devices.
    #[error("the dump is of {devices} devices, and {targets} targets were given")]
    Targets {
        /// How many devices the dumped volume has.
        devices: usize,
        /// How many targets there are.
        targets: usize,
    },
    /// A target could not be read or written.
    #[error("the target of device {device} can't be written at byte {at}")]
    Target {
        /// The number of the device.
        device: u64,
        /// Where, in bytes from the beginning of the device.
        at: u64,
        /// The failure.
        source: io::Error,
    },
    /// The user wants it to end.
    #[error("interrupted")]
    Interrupted,
}

/// The result of a step of a dump or restore.
pub type Result<T> = std::result::Result<T, Error>;

use std::io;
use std::path::PathBuf;

use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Generation, Logical, Physical, Uuid};

use crate::device_user::User;
use crate::partition_fault::PartitionFault;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One of two devices that were written without each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// The device.
    pub devid: DeviceId,
    /// Its last commit.
    pub generation: Generation,
    /// The last commit before those that only it has, and when these began, in seconds since 1970.
    /// `None` if that was not noted.
    pub since: Option<(Generation, u64)>,
}

impl std::fmt::Display for Half {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.since {
            Some((before, _)) => write!(f, "device {} after commit {} up to {}", self.devid, before, self.generation),
            None => write!(f, "device {} up to commit {}", self.devid, self.generation),
        }
    }
}

/// Why a volume can't be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device file could not be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Only devices that lack something have this address, and no checksum could tell whether their
    /// content is right.
    #[error(
        "what is at {at} is only on devices that are missing or behind the others, and no checksum \
         tells whether theirs is right"
    )]
    NoCurrentCopy {
        /// The logical address.
        at: Logical,
    },
    /// Some devices are missing or stale, and no other device has all of their data.
    #[error(
        "{} and what it has is not all on other devices: the volume can only be read",
        missing_or_stale(.0)
    )]
    MissingData(Vec<DeviceId>),
    /// Another process uses the device.
    #[error("{} is in use by {}", path.display(), by.as_deref().unwrap_or("another program"))]
    Held {
        /// The device.
        path: PathBuf,
        /// Who uses it, if that is known.
        by: Option<String>,
    },
    /// The kernel uses the device through a loop device, or may do so.
    #[error("{}", by.of(path))]
    Attached {
        /// The device.
        path: PathBuf,
        /// Who uses it.
        by: User,
    },
    /// The device is no block device and no regular file.
    #[error("{} is neither a block device nor an image file", path.display())]
    NotADevice {
        /// The path.
        path: PathBuf,
    },
    /// A device has a partition table that can't be used.
    #[error("the partition table is damaged: {0}")]
    PartitionTable(&'static str),
    /// The partition table can't be read.
    #[error("the partition table cannot be read")]
    PartitionTableUnread(#[source] io::Error),
    /// The partition table has no partition of that number.
    #[error("there is no partition {number}{}", if numbers.is_empty() { String::new() } else { format!("; there are: {numbers}") })]
    NoPartition {
        /// The number.
        number: u32,
        /// The numbers that it has.
        numbers: String,
    },
    /// A partition can't be used.
    #[error("partition {number}")]
    BadPartition {
        /// Its number.
        number: u32,
        /// Why.
        #[source]
        fault: PartitionFault,
    },
    /// A volume was opened without any device.
    #[error("no device given")]
    NoDevice,
    /// There is no btrfs on the device.
    #[error("no btrfs found: the superblock's magic is missing")]
    NotBtrfs,
    /// The primary superblock is damaged, and no other copy is good either.
    #[error("the superblock is damaged")]
    Superblock(#[source] ubtrfs_format::Error),
    /// The primary superblock can't be read.
    #[error("the superblock cannot be read")]
    SuperblockUnread(#[source] io::Error),
    /// The primary superblock is damaged, but another copy is good, which suffices for reading
    /// only.
    #[error("the primary superblock is damaged (the copy at {} MiB is good)", copy.0 >> 20)]
    PrimarySuperblock {
        /// Where the good copy is.
        copy: Physical,
        /// What is wrong with the primary.
        source: ubtrfs_format::Error,
    },
    /// Devices of different volumes were given.
    #[error("devices of different volumes: {expected} and {found}")]
    ForeignDevice {
        /// The first device's volume.
        expected: Uuid,
        /// The other one's.
        found: Uuid,
    },
    /// Two devices claim the same number: one is probably a copy of the other.
    #[error("two devices both say they are device {0} of the volume")]
    DuplicateDevice(DeviceId),
    /// Devices were written without each other: each has what the other one lacks.
    #[error(
        "devices {} and {} were each written without the other one, {} and {}: nothing says which of them counts, so \
         the volume is only read",
        .0[0].devid, .0[1].devid, .0[0], .0[1]
    )]
    Apart(Box<[Half; 2]>),
    /// One device was to be given up, though the others have nothing that it lacks.
    #[error("device {ahead} has all that device {behind} has, and what was written since: nothing of it is given up")]
    OthersLag {
        /// The device that was to be given up.
        ahead: DeviceId,
        /// One that has less.
        behind: DeviceId,
    },
    /// All devices were to be given up.
    #[error("all devices that are given were to be given up: one of them has to count")]
    AllGivenUp,
    /// The volume has more devices than were given.
    #[error(
        "the volume has {need} devices, {have} given: name {}{}",
        if have > need { "no others" } else { "all of them" },
        list_missing(.missing)
    )]
    MissingDevices {
        /// Devices given.
        have: u64,
        /// Devices of the volume.
        need: u64,
        /// The missing ones, as far as the given devices list them.
        missing: Vec<DevItem>,
    },
    /// A stripe is on a device that was not given.
    #[error("device {0} of the volume is missing")]
    MissingDevice(DeviceId),
    /// The device that was to replace another one is gone: it was given up, or released.
    #[error("the device that was to replace another one is no longer written to")]
    NoTarget,
    /// Data without checksums can't be copied, since it is being written again and again.
    #[error("the data at {at} is being written")]
    Busy {
        /// The logical address.
        at: Logical,
    },
    /// A device is too small for what is asked of it.
    #[error("the device has {have} bytes, {need} are needed")]
    SmallDevice {
        /// Its bytes.
        have: u64,
        /// The least that it must have.
        need: u64,
    },
    /// A device has the number of another device of the volume.
    #[error("device {0} is not the one that the volume knows by this number")]
    WrongDevice(DeviceId),
    /// A device that the volume does not list.
    #[error("device {0} no longer belongs to the volume")]
    UnlistedDevice(DeviceId),
    /// A device is smaller than its item in the volume says.
    #[error("device {devid} is truncated: {have} bytes of {need}; open read-only to read what is left")]
    Truncated {
        /// The device.
        devid: DeviceId,
        /// Its size in bytes.
        have: u64,
        /// Bytes that belong to the volume.
        need: u64,
    },
    /// The volume is a seed, from which other volumes are made.
    #[error("it is a seed, from which other volumes are made: it can only be read")]
    Seed,
    /// A write to a device that belongs to a seed.
    #[error("device {0} is one of a seed, to which nothing is written")]
    SeedDevice(DeviceId),
    /// The volume or its device is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// A chunk is invalid.
    #[error("chunk {chunk}: {what}")]
    BadChunk {
        /// Where the chunk starts.
        chunk: Logical,
        /// What is wrong.
        what: &'static str,
    },
    /// A chunk item's content is malformed.
    #[error("chunk {chunk}")]
    ChunkItem {
        /// Where the chunk starts.
        chunk: Logical,
        /// What is wrong.
        source: ubtrfs_format::Error,
    },
    /// Two chunks claim the same addresses.
    #[error("chunks {first} and {second} overlap")]
    OverlappingChunks {
        /// The lower chunk.
        first: Logical,
        /// The higher one.
        second: Logical,
    },
    /// The chunk tree is malformed.
    #[error("chunk tree, block {block}: {what}")]
    ChunkTree {
        /// The block in which that was found.
        block: Logical,
        /// What is wrong.
        what: &'static str,
    },
    /// No chunk holds the address.
    #[error("no chunk holds {len} bytes at {at}")]
    Unmapped {
        /// The first address without a chunk.
        at: Logical,
        /// The number of bytes from there.
        len: u64,
    },
    /// Chunks of this profile can be read only.
    #[error("writing to {profile} chunks is not supported")]
    Unwritable {
        /// The profile.
        profile: &'static str,
    },
    /// All copies of a tree block are bad.
    #[error("tree block {at}")]
    Node {
        /// The block.
        at: Logical,
        /// What is wrong with the first copy that could be read.
        source: ubtrfs_format::Error,
    },
    /// All copies of a data sector fail their checksum.
    #[error("data sector {at}: checksum does not match")]
    Data {
        /// The sector.
        at: Logical,
    },
    /// A device could not be read.
    #[error("device {devid}: reading {len} bytes at {at}{}", also(*logical))]
    Read {
        /// The device.
        devid: DeviceId,
        /// Where.
        at: Physical,
        /// The logical address of that place; `None` for a superblock.
        logical: Option<Logical>,
        /// How much.
        len: usize,
        /// Why.
        source: io::Error,
    },
    /// A device could not be written.
    #[error("device {devid}: writing {len} bytes at {at}{}", also(*logical))]
    Write {
        /// The device.
        devid: DeviceId,
        /// The physical address. If neighbours were written together, that of the first of them.
        at: Physical,
        /// The logical address of that place; `None` for a superblock.
        logical: Option<Logical>,
        /// How much.
        len: usize,
        /// Why.
        source: io::Error,
    },
    /// A device could not make its writes durable.
    #[error("device {devid}: flushing")]
    Flush {
        /// The device.
        devid: DeviceId,
        /// Why.
        source: io::Error,
    },
    /// A device could not discard.
    #[error("device {devid}: discarding {len} bytes at {at}")]
    Discard {
        /// The device.
        devid: DeviceId,
        /// Where.
        at: Physical,
        /// How much.
        len: u64,
        /// Why.
        source: io::Error,
    },
    /// Where we wrote a superblock, the device has none, or an earlier one of ours.
    #[error(
        "device {devid}: the superblock that we wrote is gone (generation {expected}, found {found:?}), and with it \
         perhaps all that was written since: the device has lost it, or another program has written there"
    )]
    LostSuperblock {
        /// The device.
        devid: DeviceId,
        /// The generation that we wrote.
        expected: Generation,
        /// The generation found, if there is a superblock at all.
        found: Option<Generation>,
    },
    /// The superblock on the device isn't the one that we wrote last: another process writes this
    /// volume.
    #[error(
        "device {devid}: its superblock is not the one we wrote (generation {expected}, found {found:?}): \
         another program writes this volume; it is read-only now"
    )]
    ForeignWriter {
        /// The device.
        devid: DeviceId,
        /// The generation that we wrote.
        expected: Generation,
        /// The generation found, if there is a superblock at all.
        found: Option<Generation>,
    },
    /// The caller's request is invalid.
    #[error("bad request: {0}")]
    BadRequest(&'static str),
    /// The superblock to write has no room for its content.
    #[error("cannot encode the superblock")]
    Encode(#[source] ubtrfs_format::Error),
}

impl Error {
    /// Returns the error of a write to a device at this logical address.
    pub(crate) fn writing(devid: DeviceId, error: WriteError, logical: Option<Logical>) -> Self {
        let WriteError { at, len, source } = error;
        Self::Write { devid, at, logical, len, source }
    }

    /// Returns whether a discard got no answer, so that the device may still carry it out at any
    /// time.
    pub fn is_unanswered_discard(&self) -> bool {
        matches!(self, Self::Discard { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }

    /// Returns where a device failed, if this error is due to a device.
    pub fn device_fault(&self) -> Option<DeviceFault> {
        match self {
            Self::Read { devid, at, logical, len, .. } | Self::Write { devid, at, logical, len, .. } => {
                Some(DeviceFault { devid: *devid, physical: Some(*at), logical: *logical, len: *len as u64 })
            }
            Self::Flush { devid, .. } | Self::ForeignWriter { devid, .. } | Self::LostSuperblock { devid, .. } => {
                Some(DeviceFault { devid: *devid, physical: None, logical: None, len: 0 })
            }
            Self::Discard { devid, at, len, .. } => {
                Some(DeviceFault { devid: *devid, physical: Some(*at), logical: None, len: *len })
            }
            _ => None,
        }
    }
}

/// A write that failed. If the device has joined it with neighbours, address and length are those
/// of the whole run.
#[derive(Debug, thiserror::Error)]
#[error("writing {len} bytes at {at}")]
pub struct WriteError {
    /// The physical address.
    pub at: Physical,
    /// How many bytes.
    pub len: usize,
    /// The device's error.
    pub source: io::Error,
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// Where a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    /// The device.
    pub devid: DeviceId,
    /// The physical address; `None` if a flush failed.
    pub physical: Option<Physical>,
    /// The logical address of that place, if a chunk has it.
    pub logical: Option<Logical>,
    /// How many bytes were to be read, written or discarded.
    pub len: u64,
}

/// Returns the subject and verb of a message.
fn missing_or_stale(devices: &[DeviceId]) -> String {
    let numbers: Vec<String> = devices.iter().map(|devid| devid.0.to_string()).collect();
    let (noun, verb) = if devices.len() == 1 { ("device", "is") } else { ("devices", "are") };
    format!("{noun} {} {verb} missing or too old,", numbers.join(", "))
}

/// Returns the end of a message.
fn list_missing(devices: &[DevItem]) -> String {
    let describe =
        |item: &DevItem| format!("device {} (UUID {}, {} MiB)", item.devid, item.uuid, item.total_bytes >> 20);
    let list: Vec<String> = devices.iter().map(describe).collect();
    if list.is_empty() { String::new() } else { format!("; missing: {}", list.join(", ")) }
}

/// Returns the part of a message that adds the logical address to the physical one.
fn also(logical: Option<Logical>) -> String {
    logical.map_or_else(String::new, |at| format!(" (logical {at})"))
}

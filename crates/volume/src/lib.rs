//! The devices of a volume as one logical address space: chunks, mirrors, checksums, barriers.
//!
//! Crates above this one don't know how many devices there are or how a profile spreads data over
//! them. They learn that something is durable only from the tokens that [`Volume`] gives:
//! [`CompletedWrites`] after a wait, and [`Flushed`] after a barrier that follows it. A superblock
//! can be written only with a [`Flushed`].
//!
//! The feature `testing` adds devices for tests: `FaultyDevice` fails on demand, `RecordingDevice`
//! shows what a crash could leave, `OverlayDevice` shares an image with others, `ThrottledDevice`
//! has a limited bandwidth. `conformance` tests that a device, of any crate, does what the trait
//! [`Device`] promises.

mod absent_device;
mod buffer;
mod chunk_map;
mod comparison;
#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(test)]
mod conformance_tests;
mod counted_lock;
mod deferred_superblocks;
mod deferred_writes;
mod device;
mod device_part;
mod device_set;
mod device_user;
mod devices;
mod error;
mod exclusive;
mod fault_log;
mod faults;
#[cfg(feature = "testing")]
mod faulty_device;
mod file_device;
mod identity;
mod image_lock;
mod in_flight;
mod kept_file;
mod loop_devices;
mod member;
mod membership;
mod memory_device;
pub mod mount_table;
mod named_device;
mod nbd_device;
mod old_roots;
mod open;
#[cfg(feature = "testing")]
mod overlay_device;
mod page;
pub mod parity;
mod partition_fault;
mod partitions;
mod primary_superblock;
mod proof;
mod protected_device;
mod read;
mod read_ahead_device;
#[cfg(feature = "testing")]
mod recording_device;
mod replace;
mod replacing;
mod rescue;
mod runs;
mod scan;
mod scrub;
mod scrubbed;
mod shared_chunk_map;
mod shared_state;
mod staged_device;
mod superblock_copy;
mod superblock_order;
mod superblocks;
#[cfg(feature = "testing")]
mod throttled_device;
mod uring;
mod volume;
mod window_device;
mod write;
mod write_access;
mod write_group;
mod write_pool;
mod writer_lease;
mod writer_mark;
mod written;

pub use buffer::{ALIGNMENT, Buffer, SharedBuffer};
pub use chunk_map::{ChunkMap, IoStripe, MappedRange, Row};
pub use comparison::Comparison;
pub use counted_lock::{CountedMutex, CountedRwLock, LockCounters};
pub use deferred_superblocks::DeferredSuperblocks;
pub use device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites, check_writes};
pub use device_part::DevicePart;
pub use device_user::User;
pub use devices::VolumeDevices;

pub use error::{DeviceFault, Error, Half, Result, WriteError};
pub use exclusive::{check_unmounted, claim, open_exclusively, open_part_exclusively, patiently};
pub use fault_log::FaultRecord;
#[cfg(feature = "testing")]
pub use faults::{SuperblockFault, with_fault};
#[cfg(feature = "testing")]
pub use faulty_device::{FaultyDevice, Lasting, Operation};
pub use file_device::{Engine, Exclusive, FileDevice, OpenMode, backing_file, whole_disk};
pub use kept_file::{keep_from_use, keep_image_from_use};
pub use loop_devices::SOURCE_LABEL;
pub use member::{DeviceErrorKind, DeviceErrors};
pub use membership::{MIN_DEVICE, Membership, wipe};
pub use memory_device::MemoryDevice;
#[cfg(feature = "testing")]
pub use named_device::{LeaseCheck, open_elsewhere};
pub use named_device::{Opening, absolute_name, is_remote, is_same_export, open_named, open_to_look};
pub use nbd_device::{NbdDevice, USUAL_TIMEOUT};
pub use open::OpenOptions;
#[cfg(feature = "testing")]
pub use overlay_device::OverlayDevice;
pub use partition_fault::PartitionFault;
pub use partitions::{Partition, PartitionTable, TableKind};
pub use read::VolumeReader;
pub use read::direct_read::DirectRead;
pub use read_ahead_device::ReadAheadDevice;
#[cfg(feature = "testing")]
pub use recording_device::{Event, Fate, OpenWrite, RecordedWrite, RecordingDevice, random_fates};
pub use replace::{Copied, DeviceReplacement};
pub use replacing::TARGET;
pub use rescue::{Candidate, Origin};
pub use scan::{FoundDevice, scan_devices};
pub use scrub::VolumeScrub;
pub use scrub::parity::ParityScrub;
pub use scrubbed::{ScrubScope, Scrubbed};
pub use shared_chunk_map::SharedChunkMap;
pub use staged_device::StagedDevice;
pub use superblocks::publish::Published;
pub use superblocks::{Copies, Superblocks};
#[cfg(feature = "testing")]
pub use throttled_device::ThrottledDevice;
#[cfg(feature = "testing")]
pub use ubtrfs_nbd::{BootTime, Clock};
#[cfg(feature = "testing")]
pub use ubtrfs_random::Rng;
pub use volume::{Volume, VolumeCounters};
pub use window_device::WindowDevice;
pub use write::{Ticket, VolumeWriter, Write};
#[cfg(feature = "testing")]
pub use writer_lease::Timing as WriterTiming;
pub use written::{CompletedWrites, Data, Flushed, Nodes};

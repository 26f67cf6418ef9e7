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
mod add_device;
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
mod direct_read;
mod error;
mod exclusive;
mod fault_log;
mod faults;
#[cfg(feature = "testing")]
mod faulty_device;
mod file_device;
mod image_lock;
mod in_flight;
mod kept_file;
mod looks;
mod loop_devices;
mod member;
mod memory_device;
pub mod mount_table;
mod named_device;
mod nbd_device;
mod old_roots;
mod open;
#[cfg(feature = "testing")]
mod overlay_device;
mod parity;
mod partition_fault;
mod partitions;
mod primary;
mod proof;
mod protected_device;
mod publish;
mod read;
mod read_ahead_device;
mod rebuild;
#[cfg(feature = "testing")]
mod recording_device;
mod redundancy;
mod remove_device;
mod repair_run;
mod replace;
mod replacing;
mod rescue;
mod runs;
mod scan;
mod scrub;
mod scrub_parity;
mod scrubbed;
mod staleness;
#[cfg(feature = "testing")]
mod throttled_device;
mod uring;
mod volume;
mod window_device;
mod write;
mod write_group;
mod write_pool;
mod writer_lease;
mod writer_mark;

pub use add_device::{MIN_DEVICE, wipe};
pub use buffer::{ALIGNMENT, Buffer, SharedBuffer};
pub use comparison::Comparison;
pub use counted_lock::{CountedMutex, CountedRwLock, LockCounters};
pub use deferred_superblocks::DeferredSuperblocks;
pub use device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites, check_writes};
pub use device_part::DevicePart;
pub use device_user::User;
pub use direct_read::DirectRead;
pub use error::{DeviceFault, Error, Half, Result, WriteError};
pub use exclusive::{check_unmounted, claim, open_exclusively, open_part_exclusively, patiently};
pub use fault_log::FaultRecord;
#[cfg(feature = "testing")]
pub use faults::{SuperblockFault, with_fault};
#[cfg(feature = "testing")]
pub use faulty_device::{FaultyDevice, Lasting, Operation};
pub use file_device::{Engine, Exclusive, FileDevice, OpenMode, backing_file, whole_disk};
pub use kept_file::keep_from_use;
pub use loop_devices::SOURCE_LABEL;
pub use member::{DeviceErrorKind, DeviceErrors};
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
pub use publish::{Copies, Published};
pub use read_ahead_device::ReadAheadDevice;
#[cfg(feature = "testing")]
pub use recording_device::{Event, Fate, OpenWrite, RecordedWrite, RecordingDevice, random_fates};
pub use replace::Copied;
pub use replacing::TARGET;
pub use rescue::{Candidate, Origin};
pub use scan::{FoundDevice, scan_devices};
pub use scrub_parity::ParityScrub;
pub use scrubbed::{ScrubScope, Scrubbed};
#[cfg(feature = "testing")]
pub use throttled_device::ThrottledDevice;
#[cfg(feature = "testing")]
pub use ubtrfs_nbd::{BootTime, Clock};
#[cfg(feature = "testing")]
pub use ubtrfs_random::Rng;
pub use volume::{Volume, VolumeCounters};
pub use window_device::WindowDevice;
pub use write::{CompletedWrites, Data, Flushed, Nodes, Ticket, Write};
#[cfg(feature = "testing")]
pub use writer_lease::Timing as WriterTiming;

//! Devices as one logical address space: chunks, mirrors, checksums, barriers.
//!
//! Nothing above this crate knows how many devices there are, how a profile spreads data over them,
//! or when something is durable other than by the tokens that [`Volume`] gives:
//! [`CompletedWrites`] from waiting, [`Flushed`] from a barrier after it, and only with that a
//! superblock can be written.

mod buffer;
mod chunk_map;
mod device;
mod error;
mod faulty_device;
mod file_device;
mod in_flight;
mod memory_device;
mod open;
mod overlay_device;
mod publish;
mod read;
mod recording_device;
mod rescue;
mod runs;
mod split_mix;
mod uring;
mod volume;
mod window_device;
mod write;
mod write_pool;

pub use buffer::{ALIGNMENT, Buffer, SharedBuffer};
pub use device::{Device, DeviceCounters, DeviceTicket, DeviceWrite, PendingWrites};
pub use error::{Error, Result};
pub use faulty_device::{FaultyDevice, Lasting, Operation};
pub use file_device::{Engine, Exclusive, FileDevice, OpenMode, backing_file, whole_disk};
pub use memory_device::MemoryDevice;
pub use open::OpenOptions;
pub use overlay_device::OverlayDevice;
pub use publish::{Copies, Published};
pub use recording_device::{Event, Fate, OpenWrite, RecordedWrite, RecordingDevice, random_fates};
pub use rescue::Candidate;
pub use split_mix::SplitMix64;
pub use volume::{Volume, VolumeCounters};
pub use window_device::WindowDevice;
pub use write::{CompletedWrites, Flushed, Ticket, Write};

//! The volume: devices as one logical address space. Each part of its state has an owner here:
//!
//! ```text
//! VolumeReader, VolumeWriter, VolumeScrub, Membership, DeviceReplacement
//!      Superblocks ── the superblock that counts, and who got it
//!      VolumeDevices ── which devices there are, and what each of them lacks
//!      SharedChunkMap ── where logical addresses are on the devices
//!      WriteAccess ── whether the volume may be written, and what is being written
//!      VolumeIdentity ── ids and sizes
//! ```
//!
//! An owner uses only those below it. Writes become durable in these steps. Each step gives the
//! proof that the next one takes (invariant 1):
//!
//! ```text
//! submitted ── VolumeWriter::wait, wait_all ──▶ completed ── VolumeWriter::flush ──▶ flushed
//!     ▲                                                                                │
//!     │ VolumeWriter::submit: data, submit_nodes                    Superblocks::write │
//!     │                                                                                ▼
//! in memory                                                                        published
//!
//! any of them, if a flush or a superblock fails ── Volume::set_read_only ──▶ read-only for good
//! ```
//!
//! After a failed flush it is not known what is durable, so nothing is written any more (invariant
//! 13).

use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{ChecksumType, Generation, Logical, Superblock, Uuid};

use crate::chunk_map::ChunkMap;
use crate::device::DeviceCounters;
use crate::device_set::DeviceSet;
use crate::devices::VolumeDevices;
use crate::error::Result;
use crate::fault_log::FaultLog;
use crate::identity::VolumeIdentity;
use crate::member::Member;
use crate::membership::Membership;
use crate::read::VolumeReader;
use crate::replace::DeviceReplacement;
use crate::scrub::VolumeScrub;
use crate::shared_chunk_map::SharedChunkMap;
use crate::shared_state::SharedState;
use crate::superblocks::Superblocks;
use crate::write::VolumeWriter;
use crate::write_access::WriteAccess;

/// How long the release of a volume waits for operations in flight to end before it keeps the
/// devices.
const TIME_TO_END: Duration = Duration::from_secs(5);

/// Devices as one logical address space. All methods may be called by many threads at once.
#[derive(Debug)]
pub struct Volume {
    shared: SharedState,
    superblocks: Arc<Superblocks>,
    reader: Arc<VolumeReader>,
    writer: VolumeWriter,
    membership: Membership,
    replacement: DeviceReplacement,
    scrub: VolumeScrub,
}

/// The parts from which a volume is assembled when it is opened.
pub(crate) struct Parts {
    pub(crate) identity: VolumeIdentity,
    pub(crate) superblock: Superblock,
    pub(crate) devices: DeviceSet,
    /// Devices that belong only to a newer commit, which does not count.
    pub(crate) about_to_join: Vec<Arc<Member>>,
    /// If the superblock counts another number of devices than its chunk tree has: its commit, and
    /// the number in the chunk tree.
    pub(crate) corrected_count: Option<(Generation, u64)>,
    pub(crate) map: ChunkMap,
    pub(crate) read_only: bool,
    /// The chunk tree has been read. Before that nothing is repaired.
    pub(crate) is_open: bool,
    /// The faults that were found before.
    pub(crate) faults: Arc<FaultLog>,
    /// The copies that were found bad before.
    pub(crate) checksum_errors: u64,
}

/// How much a volume has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounters {
    /// The sum over all devices.
    pub devices: DeviceCounters,
    /// Copies of tree blocks and data sectors that were found bad.
    pub checksum_errors: u64,
    /// Copies of tree blocks and data sectors that were rewritten.
    pub repairs: u64,
}

impl Volume {
    pub(crate) fn assemble(parts: Parts) -> Self {
        let identity = Arc::new(parts.identity);
        let access = Arc::new(WriteAccess::new(parts.read_only, parts.is_open));
        let chunk_map = Arc::new(SharedChunkMap::new(parts.map));
        let devices =
            Arc::new(VolumeDevices::new(parts.devices, Arc::clone(&chunk_map), Arc::clone(&access), parts.faults));
        let shared = SharedState { identity, access, chunk_map, devices };
        let superblocks =
            Superblocks::new(shared.clone(), parts.superblock, parts.about_to_join, parts.corrected_count);
        let superblocks = Arc::new(superblocks);
        let reader = Arc::new(VolumeReader::new(shared.clone(), parts.checksum_errors));
        Self {
            writer: VolumeWriter::new(shared.clone(), Arc::clone(&superblocks), Arc::clone(&reader)),
            membership: Membership::new(shared.clone(), Arc::clone(&superblocks)),
            replacement: DeviceReplacement::new(shared.clone(), Arc::clone(&superblocks), Arc::clone(&reader)),
            scrub: VolumeScrub::new(shared.clone(), Arc::clone(&reader)),
            shared,
            superblocks,
            reader,
        }
    }

    /// Returns the owner of the map of chunks.
    pub fn chunk_map(&self) -> &SharedChunkMap {
        &self.shared.chunk_map
    }

    /// Returns the owner of the devices.
    pub fn devices(&self) -> &VolumeDevices {
        &self.shared.devices
    }

    /// Returns the owner of the superblock.
    pub fn superblocks(&self) -> &Superblocks {
        &self.superblocks
    }

    /// Returns what reads and mends.
    pub fn reader(&self) -> &VolumeReader {
        &self.reader
    }

    /// Returns what writes and flushes.
    pub fn writer(&self) -> &VolumeWriter {
        &self.writer
    }

    /// Returns what adds and removes devices.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns what replaces a device.
    pub fn replacement(&self) -> &DeviceReplacement {
        &self.replacement
    }

    /// Returns what compares all copies.
    pub fn scrub(&self) -> &VolumeScrub {
        &self.scrub
    }

    pub(crate) fn identity(&self) -> &VolumeIdentity {
        &self.shared.identity
    }

    /// Returns the size of a tree block in bytes.
    pub fn node_size(&self) -> u32 {
        self.shared.identity.node_size()
    }

    /// Returns the size of a data sector in bytes.
    pub fn sector_size(&self) -> u32 {
        self.shared.identity.sector_size()
    }

    /// Returns the checksum algorithm of tree blocks and data.
    pub fn checksum(&self) -> ChecksumType {
        self.shared.identity.checksum()
    }

    /// Returns the id that users see.
    pub fn fsid(&self) -> Uuid {
        self.shared.identity.fsid()
    }

    /// Returns the id that tree blocks carry.
    pub fn metadata_fsid(&self) -> Uuid {
        self.shared.identity.metadata_fsid()
    }

    /// Returns the id of the chunk tree, which every tree block carries.
    pub fn chunk_tree_uuid(&self) -> Uuid {
        self.shared.identity.chunk_tree_uuid()
    }

    /// Returns whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.shared.access.is_read_only()
    }

    /// Refuses all writes from now on. There is no way back.
    pub fn set_read_only(&self) {
        self.shared.access.set_read_only();
    }

    /// Stops all writes, also repairs, and gives the devices up once the operations in flight have
    /// ended. Waits for these for a limited time. If they take longer, the devices are held until
    /// this process has ended.
    pub fn release(&self) {
        if self.shared.access.end_within(TIME_TO_END) {
            self.shared.devices.release();
        } else {
            tracing::warn!("the devices are held until this process ends: something is still being written to them");
        }
    }

    /// Adds a chunk to the map, so that its addresses can be written and read.
    pub fn add_chunk(&self, start: Logical, chunk: ChunkItem) -> Result<()> {
        let device_bytes = |devid| self.shared.devices.bytes_of(devid);
        self.shared.chunk_map.insert(start, chunk, self.sector_size(), device_bytes)
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> VolumeCounters {
        VolumeCounters {
            devices: self.shared.devices.counters(),
            checksum_errors: self.reader.checksum_errors(),
            repairs: self.reader.repairs(),
        }
    }
}

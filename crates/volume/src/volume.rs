//! The volume: its devices, its chunks, and what is known of both.
//!
//! Writes become durable in these steps. Each step gives the proof that the next one takes
//! (invariant 1):
//!
//! ```text
//! submitted ── Volume::wait, Volume::wait_all ──▶ completed ── Volume::flush ──▶ flushed
//!     ▲                                                                            │
//!     │ Volume::submit: data, Volume::submit_nodes          Volume::write_superblock
//!     │                                                                            ▼
//! in memory                                                                    published
//!
//! any of them, if a flush or a superblock fails ── Volume::set_read_only ──▶ read-only for good
//! ```
//!
//! After a failed flush it is not known what is durable, so nothing is written any more (invariant
//! 13).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ubtrfs_format::items::{ChunkItem, DevItem};
use ubtrfs_format::{ChecksumType, DeviceId, Generation, Logical, Physical, Resilvered, Superblock, Uuid};
use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::{ArcSwap, Mutex, Rank, RwLock};

use crate::chunk_map::ChunkMap;
use crate::counted_lock::{CountedRwLock, LockCounters};
use crate::device::DeviceCounters;
use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::fault_log::{FaultLog, FaultRecord};
use crate::in_flight::{InFlight, Registration};
use crate::looks::Looks;
use crate::member::Member;

/// How long the release of a volume waits for operations in flight to end before it keeps the
/// devices.
const TIME_TO_END: Duration = Duration::from_secs(5);

/// Devices as one logical address space. All methods may be called by many threads at once.
#[derive(Debug)]
pub struct Volume {
    pub(crate) devices: ArcSwap<DeviceSet>,
    /// Held while devices are added or removed.
    pub(crate) changing_devices: Mutex<()>,
    /// A device that was to replace another one when the volume was last written.
    pub(crate) found_target: Mutex<Option<Arc<Member>>>,
    /// Devices may be missing.
    degraded: bool,
    /// If a superblock counts another number of devices than its chunk tree has: its commit, and
    /// the number in the chunk tree.
    pub(crate) corrected_count: Option<(Generation, u64)>,
    pub(crate) map: CountedRwLock<ChunkMap>,
    pub(crate) superblock: RwLock<Superblock>,
    node_size: u32,
    sector_size: u32,
    checksum: ChecksumType,
    fsid: Uuid,
    metadata_fsid: Uuid,
    chunk_tree_uuid: Uuid,
    /// The volumes from which this one was made, whose blocks carry their ids.
    seeds: Vec<Uuid>,
    read_only: AtomicBool,
    /// A tree block is returned whatever its checksum says if no copy is right.
    pub(crate) ignores_node_checksums: AtomicBool,
    /// The volume has been opened. Before that nothing is repaired, so that nothing is written
    /// before the caller has seen what the volume is.
    is_open: bool,
    /// All devices have the same superblock; no crash has left some of them with another one.
    pub(crate) is_level: AtomicBool,
    /// Devices that belong only to a newer commit, which does not count.
    pub(crate) about_to_join: Mutex<Vec<Arc<Member>>>,
    /// Writes that have been submitted and not yet waited for.
    pub(crate) in_flight: Arc<InFlight>,
    /// Held shared by writes and repairs, and exclusively while devices are added or removed.
    pub(crate) submissions: RwLock<()>,
    /// Held while superblocks are written. Has the devices that did not get the last one.
    pub(crate) publishing: Mutex<Vec<DeviceId>>,
    /// Held while it is decided whether the volume can do without a device.
    pub(crate) giving_up: Mutex<()>,
    /// How far a device that lags has been brought up, and how often it had missed writes then.
    pub(crate) resilvered: Mutex<Option<(Resilvered, u64)>>,
    /// When the superblocks on the devices were last compared with ours.
    pub(crate) looks: Mutex<Looks>,
    pub(crate) checksum_errors: AtomicU64,
    pub(crate) repairs: AtomicU64,
    pub(crate) faults: FaultLog,
}

/// The parts from which a volume is assembled when it is opened.
pub(crate) struct Parts {
    pub(crate) superblock: Superblock,
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) map: ChunkMap,
    pub(crate) read_only: bool,
    /// Devices may be missing.
    pub(crate) degraded: bool,
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
        let superblock = parts.superblock;
        let seeds = parts.members.iter().filter(|member| member.is_seed());
        Self {
            seeds: seeds.map(|member| member.item.lock().fsid).collect(),
            devices: ArcSwap::from_pointee(DeviceSet { members: parts.members, replacing: None }),
            changing_devices: Mutex::new(Rank::ChangingDevices, ()),
            found_target: Mutex::with_default(Rank::FoundTarget),
            degraded: parts.degraded,
            corrected_count: None,
            map: CountedRwLock::new(Rank::ChunkMap, parts.map),
            node_size: superblock.node_size,
            sector_size: superblock.sector_size,
            checksum: superblock.checksum,
            fsid: superblock.fsid,
            metadata_fsid: superblock.metadata_fsid(),
            chunk_tree_uuid: Uuid::NIL,
            superblock: RwLock::new(Rank::Superblock, superblock),
            read_only: AtomicBool::new(parts.read_only),
            ignores_node_checksums: AtomicBool::new(false),
            is_open: false,
            is_level: AtomicBool::new(false),
            about_to_join: Mutex::with_default(Rank::LevelingSuperblocks),
            in_flight: Arc::default(),
            submissions: RwLock::new(Rank::Submissions, ()),
            publishing: Mutex::with_default(Rank::VolumePublishing),
            giving_up: Mutex::new(Rank::GivingUp, ()),
            resilvered: Mutex::with_default(Rank::Resilvered),
            looks: Mutex::with_default(Rank::LastLook),
            checksum_errors: AtomicU64::new(0),
            repairs: AtomicU64::new(0),
            faults: FaultLog::default(),
        }
    }

    /// Adopts the chunks of the chunk tree, which replace those of the superblock.
    pub(crate) fn adopt_chunk_tree(
        &mut self,
        chunk_tree_uuid: Uuid,
        chunks: Vec<(Logical, ChunkItem)>,
        devices: &[DevItem],
    ) -> Result<()> {
        let mut set = DeviceSet::clone(&self.devices.load());
        for item in devices {
            if self.degraded && self.member(item.devid).is_err() {
                if item.fsid != self.metadata_fsid {
                    self.seeds.push(item.fsid);
                }
                set.members.push(Arc::new(Member::missing(*item)));
                continue;
            }
            let member = self.member(item.devid)?;
            let own = *member.item.lock();
            let fsid = if member.is_seed() { own.fsid } else { self.metadata_fsid };
            if (own.uuid, fsid) != (item.uuid, item.fsid) {
                return Err(Error::WrongDevice(item.devid));
            }
            if !self.is_read_only() && member.device.size() < item.total_bytes {
                let have = member.device.size();
                return Err(Error::Truncated { devid: item.devid, have, need: item.total_bytes });
            }
            *member.item.lock() = *item;
        }
        let is_listed = |member: &Arc<Member>| devices.iter().any(|item| item.devid == member.devid());
        let (members, unlisted): (Vec<_>, Vec<_>) = set.members.into_iter().partition(is_listed);
        set.members = members;
        for member in unlisted {
            let (own, counts) = (member.generation(), Some(self.superblock.read().generation));
            if member.is_seed() || own == counts {
                return Err(Error::UnlistedDevice(member.devid()));
            }
            let is_newer = own > counts;
            let why = if is_newer { "was added by a commit that does not count" } else { "was removed" };
            tracing::warn!(device = member.devid().0, "it {why}: left out");
            if is_newer {
                self.about_to_join.lock().push(member);
            }
        }
        self.devices = ArcSwap::from_pointee(set);
        let mut map = ChunkMap::default();
        for (start, item) in chunks {
            map.insert(start, item, self.sector_size, |devid| self.device_bytes(devid))?;
        }
        for (chunk, item) in self.map.read().iter() {
            if map.get(chunk) != Some(item) {
                return Err(Error::BadChunk {
                    chunk,
                    what: "the superblock's system chunk is not that of the chunk tree",
                });
            }
        }
        self.map = CountedRwLock::new(Rank::ChunkMap, map);
        self.chunk_tree_uuid = chunk_tree_uuid;
        self.is_open = true;
        Ok(())
    }

    /// Returns the superblock as last read or written.
    pub fn superblock(&self) -> Superblock {
        self.superblock.read().clone()
    }

    /// Returns the size of a tree block in bytes.
    pub fn node_size(&self) -> u32 {
        self.node_size
    }

    /// Returns the size of a data sector in bytes.
    pub fn sector_size(&self) -> u32 {
        self.sector_size
    }

    /// Returns the checksum algorithm of tree blocks and data.
    pub fn checksum(&self) -> ChecksumType {
        self.checksum
    }

    /// Returns the id that users see.
    pub fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// Returns the id that tree blocks carry.
    pub fn metadata_fsid(&self) -> Uuid {
        self.metadata_fsid
    }

    /// Returns the id of the chunk tree, which every tree block carries.
    pub fn chunk_tree_uuid(&self) -> Uuid {
        self.chunk_tree_uuid
    }

    /// Returns whether this is the id of a seed from which this volume was made.
    pub(crate) fn is_of_a_seed(&self, fsid: Uuid) -> bool {
        self.seeds.contains(&fsid)
    }

    /// From now on returns a tree block in spite of a wrong checksum, if everything else in it is
    /// right and no copy has a right checksum. For volumes that are only read.
    pub fn ignore_node_checksums(&self) {
        self.ignores_node_checksums.store(true, Ordering::Release);
    }

    /// Returns whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Refuses all writes from now on. There is no way back.
    pub fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// Stops all writes, also repairs, and gives the devices up once the operations in flight have
    /// ended. Waits for these for a limited time. If they take longer, the devices are held until
    /// this process has ended.
    pub fn release(&self) {
        self.set_read_only();
        if !self.in_flight.is_empty_within(TIME_TO_END) {
            tracing::warn!("the devices are held until this process ends: something is still being written to them");
            return;
        }
        let set = self.devices.load();
        let target = set.replacing.iter().map(|replacing| &replacing.target);
        set.members.iter().chain(target).for_each(|member| member.device.release());
    }

    pub(crate) fn may_repair(&self) -> bool {
        self.is_open && !self.is_read_only()
    }

    /// Registers an operation that needs the devices, without addresses, and then checks that it
    /// may write. So [`Self::release`] waits for the operation, or came first and is found here.
    pub(crate) fn begin(&self) -> Result<Registration> {
        self.begin_as(self.in_flight.register_unaddressed())
    }

    /// As [`Self::begin`], for an operation that is registered already.
    pub(crate) fn begin_as(&self, registration: Registration) -> Result<Registration> {
        self.require_writable()?;
        assert!(self.is_level(), "invariant 54: the devices have one superblock before anything is written");
        Ok(registration)
    }

    /// Fails if nothing may be written. Otherwise does what has to be done before the first write.
    fn require_writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.level_superblocks()
    }

    pub(crate) fn member(&self, devid: DeviceId) -> Result<Arc<Member>> {
        self.devices.load().member(devid).map(Arc::clone)
    }

    fn device_bytes(&self, devid: DeviceId) -> Option<u64> {
        self.member(devid).ok().map(|member| member.item.lock().total_bytes)
    }

    /// Adds a chunk to the map, so that its addresses can be written and read.
    pub fn add_chunk(&self, start: Logical, chunk: ChunkItem) -> Result<()> {
        self.map.write().insert(start, chunk, self.sector_size, |devid| self.device_bytes(devid))
    }

    /// Returns how often the lock of the map of chunks was taken.
    pub fn map_lock_counters(&self) -> LockCounters {
        self.map.counters()
    }

    /// Removes the chunk that starts at `start` from the map. Fails with `Unmapped` if there is
    /// none.
    pub fn remove_chunk(&self, start: Logical) -> Result<()> {
        if self.map.write().remove(start) { Ok(()) } else { Err(Error::Unmapped { at: start, len: 0 }) }
    }

    /// Returns the chunk that starts at `start`.
    pub fn chunk(&self, start: Logical) -> Option<ChunkItem> {
        self.map.read().get(start).cloned()
    }

    /// Returns all chunks, by address.
    pub fn chunks(&self) -> Vec<(Logical, ChunkItem)> {
        self.map.read().iter().map(|(start, item)| (start, item.clone())).collect()
    }

    /// Returns the logical ranges of the chunk at `start` that must stay unused, since copies of
    /// the superblock overlap them. They are sorted and disjoint.
    pub fn superblock_ranges(&self, start: Logical) -> Vec<Range<Logical>> {
        let ranges = self.map.read().reserved(start);
        ranges.into_iter().map(|range| Logical(range.start)..Logical(range.end)).collect()
    }

    /// Returns how many reads are best in flight at a time before what they read is needed, or 0 if
    /// all devices are near.
    pub fn reads_ahead(&self) -> usize {
        self.devices.load().members.iter().map(|member| member.device.reads_ahead()).max().unwrap_or_default()
    }

    /// Returns the items of all devices, also of missing ones, by device number.
    pub fn devices(&self) -> Vec<DevItem> {
        self.devices.load().members.iter().map(|member| *member.item.lock()).collect()
    }

    /// Returns the present size of a device in bytes, of which the volume may use less.
    pub fn device_size(&self, devid: DeviceId) -> Result<u64> {
        let member = self.member(devid)?;
        let failed = |source| Error::Read { devid, at: Physical(0), logical: None, len: 0, source };
        member.device.find_size().map_err(failed)
    }

    /// Returns the items of the devices that are missing. What only they have can't be read.
    pub fn missing_devices(&self) -> Vec<DevItem> {
        let devices = self.devices.load();
        devices.members.iter().filter(|member| member.is_missing()).map(|member| *member.item.lock()).collect()
    }

    /// Returns the devices on which nothing can be allocated: missing ones and those of seeds.
    pub fn closed_devices(&self) -> Vec<DeviceId> {
        let set = self.devices.load();
        set.members.iter().filter(|member| !member.is_written()).map(|member| member.devid()).collect()
    }

    /// Returns whether the volume was made from a seed.
    pub fn has_seeds(&self) -> bool {
        !self.seeds.is_empty()
    }

    /// Returns the devices of the seeds from which this volume was made. They are only read.
    pub fn seed_devices(&self) -> Vec<DeviceId> {
        let set = self.devices.load();
        set.members.iter().filter(|member| member.is_seed()).map(|member| member.devid()).collect()
    }

    /// Sets a device's item (bytes used, size), which its next superblock and [`Volume::devices`]
    /// will show.
    pub fn set_device_item(&self, item: DevItem) -> Result<()> {
        let member = self.member(item.devid)?;
        if member.device.size() < item.total_bytes {
            let have = member.device.size();
            return Err(Error::Truncated { devid: item.devid, have, need: item.total_bytes });
        }
        *member.item.lock() = item;
        Ok(())
    }

    /// Has requests to devices that are away fail soon instead of waiting.
    pub fn stop_waiting(&self) {
        self.devices.load().present().for_each(|member| member.device.stop_waiting());
    }

    /// Returns how many faults of devices there were that lost nothing or made a tree block
    /// unreadable, and the last of them, the newest at the end. Errors that a caller gets anyway
    /// are not counted.
    pub fn last_faults(&self) -> (u64, Vec<FaultRecord>) {
        self.faults.get()
    }

    /// Writes to the log what has not been logged yet about bad copies.
    pub fn say_bad_copies(&self) {
        self.faults.say_rest(true);
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> VolumeCounters {
        let set = self.devices.load();
        let devices = set.members.iter().map(|member| member.device.counters());
        VolumeCounters {
            devices: devices.fold(DeviceCounters::default(), DeviceCounters::plus),
            checksum_errors: self.checksum_errors.load(Ordering::Relaxed),
            repairs: self.repairs.load(Ordering::Relaxed),
        }
    }
}

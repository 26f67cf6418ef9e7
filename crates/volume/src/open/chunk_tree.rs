//! Reading the chunk tree, which tells which chunks and devices a volume has.

use std::collections::HashSet;
use std::sync::Arc;

use ubtrfs_format::items::{ChunkItem, DevItem, sys_chunks};
use ubtrfs_format::{Generation, Header, ItemType, Logical, Node, NodeExpectation, Superblock, TreeId, Uuid, objectid};

use crate::chunk_map::ChunkMap;
use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::member::Member;
use crate::volume::{Parts, Volume};

/// The most bytes that the devices of a volume have together: the kernel's offsets are signed.
const MAX_BYTES: u64 = i64::MAX as u64;

impl Volume {
    /// Reads the chunk tree through the chunks of the superblock, and returns the volume that it
    /// describes.
    pub(super) fn with_chunk_tree(&self, degraded: bool) -> Result<Self> {
        let superblock = self.superblocks().current();
        let mut walk = Walk { volume: self, seen: HashSet::new(), items: Vec::new(), devices: Vec::new(), last: None };
        let root = NodeExpectation {
            bytenr: superblock.chunk_root,
            level: Some(superblock.chunk_root_level),
            generation: Some(superblock.chunk_root_generation),
            owner: Some(TreeId::CHUNK),
            first_key: None,
            fsid: superblock.metadata_fsid(),
        };
        let chunk_tree_uuid = walk.visit(&root)?;
        let Walk { items: chunks, devices, .. } = walk;
        if devices.iter().fold(0, |sum: u64, item| sum.saturating_add(item.total_bytes)) > MAX_BYTES {
            let what = "the devices have more than 8 EiB together";
            return Err(Error::ChunkTree { block: superblock.chunk_root, what });
        }
        let Listed { set, about_to_join, missing_seeds } = self.listed_devices(&devices, degraded)?;
        let mut map = ChunkMap::default();
        for (start, item) in chunks {
            map.insert(start, item, self.sector_size(), |devid| set.bytes_of(devid))?;
        }
        for (chunk, item) in self.chunk_map().all() {
            if map.get(chunk) != Some(&item) {
                return Err(Error::BadChunk {
                    chunk,
                    what: "the superblock's system chunk is not that of the chunk tree",
                });
            }
        }
        Ok(Self::assemble(Parts {
            identity: self.identity().clone().with_chunk_tree(chunk_tree_uuid, missing_seeds),
            corrected_count: corrected_count(&superblock, set.members.len() as u64),
            superblock,
            devices: set,
            about_to_join,
            map,
            read_only: self.is_read_only(),
            is_open: true,
            faults: self.devices().faults(),
            checksum_errors: self.counters().checksum_errors,
        }))
    }

    /// Compares the devices that were given with the items of the chunk tree. Without `degraded`
    /// none may be missing.
    fn listed_devices(&self, items: &[DevItem], degraded: bool) -> Result<Listed> {
        let given = self.devices().set();
        let mut set = DeviceSet::clone(&given);
        let mut missing_seeds = Vec::new();
        for item in items {
            if degraded && given.member(item.devid).is_err() {
                if item.fsid != self.metadata_fsid() {
                    missing_seeds.push(item.fsid);
                }
                set.members.push(Arc::new(Member::missing(*item)));
                continue;
            }
            let member = given.member(item.devid)?;
            let own = *member.item.lock();
            let fsid = if member.is_seed() { own.fsid } else { self.metadata_fsid() };
            if (own.uuid, fsid) != (item.uuid, item.fsid) {
                return Err(Error::WrongDevice(item.devid));
            }
            if !self.is_read_only() && member.device.size() < item.total_bytes {
                let have = member.device.size();
                return Err(Error::Truncated { devid: item.devid, have, need: item.total_bytes });
            }
            *member.item.lock() = *item;
        }
        let is_listed = |member: &Arc<Member>| items.iter().any(|item| item.devid == member.devid());
        let (members, unlisted): (Vec<_>, Vec<_>) = set.members.into_iter().partition(is_listed);
        set.members = members;
        let mut about_to_join = Vec::new();
        for member in unlisted {
            let (own, counts) = (member.generation(), Some(self.superblocks().generation()));
            if member.is_seed() || own == counts {
                return Err(Error::UnlistedDevice(member.devid()));
            }
            let is_newer = own > counts;
            let why = if is_newer { "was added by a commit that does not count" } else { "was removed" };
            tracing::warn!(device = member.devid().0, "it {why}: left out");
            if is_newer {
                about_to_join.push(member);
            }
        }
        Ok(Listed { set, about_to_join, missing_seeds })
    }
}

/// The devices of a volume by its chunk tree.
struct Listed {
    set: DeviceSet,
    /// Devices that belong only to a newer commit, which does not count.
    about_to_join: Vec<Arc<Member>>,
    /// The ids of seeds whose devices are missing.
    missing_seeds: Vec<Uuid>,
}

/// Returns the chunks of the superblock, which has those of the chunk tree.
pub(super) fn system_chunks(superblock: &Superblock) -> Result<ChunkMap> {
    let mut map = ChunkMap::default();
    for (key, item) in sys_chunks(&superblock.sys_chunk_array).map_err(Error::Superblock)? {
        let start = Logical(key.offset);
        if key.objectid != objectid::FIRST_CHUNK_TREE {
            return Err(Error::BadChunk { chunk: start, what: "system chunk with a wrong object id" });
        }
        // The bounds of its stripes are checked when the chunk tree shows the chunk again, with the
        // devices' items.
        map.insert(start, item, superblock.sector_size, |_| Some(u64::MAX))?;
    }
    Ok(map)
}

/// Returns the commit and the number of devices in its chunk tree, if the superblock counts another
/// number.
fn corrected_count(superblock: &Superblock, listed: u64) -> Option<(Generation, u64)> {
    let counted = superblock.num_devices;
    if counted == listed {
        return None;
    }
    tracing::warn!("the superblock counts {counted} devices of {listed}: the next commit corrects it");
    Some((superblock.generation, listed))
}

/// A walk over the chunk tree that visits each block at most once, so what the devices hold bounds
/// its size.
struct Walk<'a> {
    volume: &'a Volume,
    seen: HashSet<Logical>,
    items: Vec<(Logical, ChunkItem)>,
    devices: Vec<DevItem>,
    last: Option<ubtrfs_format::Key>,
}

impl Walk<'_> {
    /// Visits a block and all blocks below it. It ends, since the level falls by one each time.
    /// Returns the chunk tree's id.
    fn visit(&mut self, expected: &NodeExpectation) -> Result<Uuid> {
        let at = expected.bytenr;
        if !self.seen.insert(at) {
            return Err(Error::ChunkTree { block: at, what: "referenced more than once" });
        }
        let block = self.volume.reader().read_node(expected)?;
        let malformed = |source| Error::Node { at, source };
        let header = Header::parse(&block).map_err(malformed)?;
        match Node::view(&block).map_err(malformed)? {
            Node::Leaf(leaf) => {
                for (key, data) in leaf.iter() {
                    if self.last.is_some_and(|last| last >= key) {
                        return Err(Error::ChunkTree { block: at, what: "keys out of order" });
                    }
                    self.last = Some(key);
                    match (key.objectid, key.item_type) {
                        (objectid::DEV_ITEMS, ItemType::DEV_ITEM) => {
                            let item = DevItem::parse(data).map_err(malformed)?;
                            if item.devid.0 != key.offset {
                                return Err(Error::ChunkTree { block: at, what: "a device item's key has another id" });
                            }
                            self.devices.push(item);
                        }
                        (objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM) => {
                            let chunk = Logical(key.offset);
                            let item = ChunkItem::parse(data).map_err(|source| Error::ChunkItem { chunk, source })?;
                            self.items.push((chunk, item));
                        }
                        _ => {}
                    }
                }
            }
            Node::Internal(internal) => {
                let level = header.level.checked_sub(1);
                for child in internal.iter() {
                    self.visit(&NodeExpectation {
                        bytenr: child.bytenr,
                        level,
                        generation: Some(child.generation),
                        first_key: Some(child.key),
                        ..*expected
                    })?;
                }
            }
        }
        Ok(header.chunk_tree_uuid)
    }
}

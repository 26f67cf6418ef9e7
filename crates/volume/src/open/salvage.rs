//! Finds the chunks of a volume whose chunk tree can't be read as a whole. The superblock has the
//! chunks that hold the chunk tree, so all its leaves that are left are found there, older ones as
//! well: a commit writes a leaf elsewhere, and the space of the old one is reused only later. What
//! is read through such chunks is verified by its checksum as always.

use std::collections::HashSet;
use std::sync::Arc;

use ubtrfs_format::items::{ChunkItem, DevItem};
use ubtrfs_format::{DeviceId, Header, ItemType, Logical, Node, NodeExpectation, TreeId, Uuid, objectid};

use crate::chunk_map::ChunkMap;
use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::member::Member;
use crate::volume::{Parts, Volume};

/// The size that a device is taken to have if nothing says it, in bytes: the largest that one may
/// have.
const UNKNOWN_SIZE: u64 = i64::MAX as u64;

/// What a leaf of the chunk tree has.
struct FoundLeaf {
    header: Header,
    chunks: Vec<(Logical, ChunkItem)>,
    devices: Vec<DevItem>,
}

impl Volume {
    /// Returns the volume with the chunks of all leaves of its chunk tree that are found; of
    /// several versions of a chunk the newest counts. Devices that were not given are missing.
    /// Nothing is written to such a volume.
    ///
    /// # Errors
    ///
    /// [`Error::MissingDevices`] if no leaf is left, and if a device that the newest leaves list is
    /// another one than the one that was given, [`Error::WrongDevice`].
    pub(super) fn with_salvaged_chunks(&self) -> Result<Self> {
        let superblock = self.superblocks().current();
        let mut leaves = self.leaves_of_chunk_tree();
        leaves.sort_by_key(|leaf| std::cmp::Reverse(leaf.header.generation));
        let Some(newest) = leaves.first() else {
            let have = self.devices().set().members.len() as u64;
            return Err(Error::MissingDevices { have, need: superblock.num_devices, missing: Vec::new() });
        };
        let chunk_tree_uuid = newest.header.chunk_tree_uuid;
        let items = || leaves.iter().flat_map(|leaf| &leaf.devices);
        let chunks = || leaves.iter().flat_map(|leaf| &leaf.chunks);
        let stripes = chunks().flat_map(|(_, chunk)| chunk.stripes.iter().map(|stripe| stripe.devid));
        let (set, missing_seeds) = self.salvaged_devices(items(), stripes)?;
        let sector_size = self.sector_size();
        let mut map = ChunkMap::default();
        // What the superblock says was enough to find the leaves.
        for (start, chunk) in self.chunk_map().all() {
            map.insert(start, chunk, sector_size, |_| Some(u64::MAX))?;
        }
        for (start, chunk) in chunks() {
            // An older version of a chunk overlaps the newer one, and a damaged chunk is none.
            let _ = map.insert(*start, chunk.clone(), sector_size, |devid| set.bytes_of(devid));
        }
        Ok(Self::assemble(Parts {
            identity: self.identity().clone().with_chunk_tree(chunk_tree_uuid, missing_seeds),
            superblock,
            devices: set,
            about_to_join: Vec::new(),
            corrected_count: None,
            map,
            read_only: true,
            is_open: true,
            faults: self.devices().faults(),
            checksum_errors: self.counters().checksum_errors,
        }))
    }

    /// Returns the leaves of the chunk tree, of this commit and of older ones, that are in the
    /// chunks which the superblock lists. Reads no more than the devices have.
    fn leaves_of_chunk_tree(&self) -> Vec<FoundLeaf> {
        let superblock = self.superblocks().current();
        let node_size = u64::from(self.node_size());
        // A hostile volume may have many chunks at the same place.
        let mut left: u64 =
            self.devices().set().members.iter().fold(0, |sum, member| member.device.size().saturating_add(sum));
        let mut leaves = Vec::new();
        for (start, chunk) in self.chunk_map().all() {
            let length = chunk.length.min(left);
            left -= length;
            for at in (0..length - length % node_size).step_by(self.node_size() as usize) {
                leaves.extend(self.leaf_at(start.plus(at)).filter(|leaf| {
                    // A newer commit does not count, or was interrupted.
                    leaf.header.generation <= superblock.generation
                }));
            }
        }
        leaves
    }

    /// Returns the leaf of the chunk tree at this address, if one of its copies is good.
    fn leaf_at(&self, at: Logical) -> Option<FoundLeaf> {
        let expected = NodeExpectation {
            bytenr: at,
            level: Some(0),
            generation: None,
            owner: Some(TreeId::CHUNK),
            first_key: None,
            fsid: self.metadata_fsid(),
        };
        let block = self.reader().read_node(&expected).ok()?;
        let header = Header::parse(&block).ok()?;
        let Ok(Node::Leaf(leaf)) = Node::view(&block) else { return None };
        let (mut chunks, mut devices) = (Vec::new(), Vec::new());
        for (key, data) in leaf.iter() {
            match (key.objectid, key.item_type) {
                (objectid::DEV_ITEMS, ItemType::DEV_ITEM) => {
                    devices.extend(DevItem::parse(data).ok().filter(|item| item.devid.0 == key.offset));
                }
                (objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM) => {
                    chunks.extend(ChunkItem::parse(data).ok().map(|chunk| (Logical(key.offset), chunk)));
                }
                _ => {}
            }
        }
        Some(FoundLeaf { header, chunks, devices })
    }

    /// Returns the devices of the volume: those that were given, those of the items, of which the
    /// first of each number counts, and those that stripes are on; and the ids of seeds whose
    /// devices are missing.
    fn salvaged_devices<'a>(
        &self,
        items: impl Iterator<Item = &'a DevItem>,
        stripes: impl Iterator<Item = DeviceId>,
    ) -> Result<(DeviceSet, Vec<Uuid>)> {
        let mut set = DeviceSet::clone(&self.devices().set());
        let mut missing_seeds = Vec::new();
        let mut listed: HashSet<DeviceId> = HashSet::new();
        for item in items.filter(|item| listed.insert(item.devid)) {
            let Ok(member) = set.member(item.devid) else {
                if item.fsid != self.metadata_fsid() {
                    missing_seeds.push(item.fsid);
                }
                set.members.push(Arc::new(Member::missing(*item)));
                continue;
            };
            let mut own = member.item.lock();
            if own.uuid != item.uuid {
                return Err(Error::WrongDevice(item.devid));
            }
            *own = *item;
        }
        // The item of such a device is lost.
        let unknown = |devid| DevItem { devid, total_bytes: UNKNOWN_SIZE, ..self.superblocks().current().dev_item };
        for devid in stripes {
            if set.member(devid).is_err() {
                set.members.push(Arc::new(Member::missing(unknown(devid))));
            }
        }
        set.members.sort_by_key(|member| member.devid());
        Ok((set, missing_seeds))
    }
}

//! Tree blocks that are found by reading all space of metadata, whatever refers to them.

use std::collections::BTreeMap;

use ubtrfs_format::items::{BlockGroupFlags, RootItem};
use ubtrfs_format::{Generation, Header, ItemType, Key, Logical, Node, NodeExpectation, TreeId, Uuid};
use ubtrfs_tree::Geometry;
use ubtrfs_volume::Volume;

/// How much is read at a time, in bytes.
const STEP: u64 = 1 << 20;

/// The items of the root tree that leaves of it have, wherever they are: of each item the newest.
#[derive(Debug, Default)]
pub struct FoundRootTree {
    pub items: BTreeMap<Key, (Generation, Vec<u8>)>,
}

impl FoundRootTree {
    /// Reads all space of metadata. Blocks that are newer than the superblock don't count.
    pub fn scan(volume: &Volume, geometry: &Geometry) -> Self {
        let mut found = Self::default();
        let newest = volume.superblocks().current().generation;
        for (start, chunk) in volume.chunk_map().all() {
            if !chunk.flags.contains(BlockGroupFlags::METADATA) {
                continue;
            }
            let end = start.0.saturating_add(chunk.length);
            for from in (start.0..end).step_by(STEP as usize) {
                let mut bytes = vec![0; STEP.min(end - from) as usize];
                // A part that can't be read has nothing to find.
                if volume.reader().read_data(Logical(from), &mut bytes, None).is_err() {
                    continue;
                }
                for (index, sector) in bytes.chunks(geometry.sector_size as usize).enumerate() {
                    let at = Logical(from + index as u64 * u64::from(geometry.sector_size));
                    if let Some(header) = header_of(sector, at, geometry.fsid)
                        && header.owner == TreeId::ROOT
                        && header.level == 0
                        && header.generation <= newest
                    {
                        found.take(volume, &header, geometry.fsid);
                    }
                }
            }
        }
        found.leave_out_lost_roots();
        found
    }

    fn take(&mut self, volume: &Volume, header: &Header, fsid: Uuid) {
        let Some(block) = read(volume, header.bytenr, (TreeId::ROOT, header.generation, 0), fsid) else { return };
        let Ok(Node::Leaf(leaf)) = Node::view(&block) else { return };
        for (key, data) in leaf.iter() {
            let is_older = self.items.get(&key).is_some_and(|(known, _)| *known >= header.generation);
            // An older root item counts if the tree of the newer one can't be read.
            let is_usable = key.item_type != ItemType::ROOT_ITEM || is_sound(volume, &key, data, fsid);
            if !is_older && is_usable {
                self.items.insert(key, (header.generation, data.to_vec()));
            }
        }
    }

    /// Leaves out references about trees of which no root item counts.
    fn leave_out_lost_roots(&mut self) {
        let has_root = |items: &BTreeMap<Key, (Generation, Vec<u8>)>, tree: u64| {
            let range = Key::new(tree, ItemType::ROOT_ITEM, 0)..=Key::new(tree, ItemType::ROOT_ITEM, u64::MAX);
            items.range(range).next().is_some()
        };
        let lost: Vec<Key> = self
            .items
            .keys()
            .filter(|key| matches!(key.item_type, ItemType::ROOT_REF | ItemType::ROOT_BACKREF))
            .filter(|key| !has_root(&self.items, key.objectid) || !has_root(&self.items, key.offset))
            .copied()
            .collect();
        for key in &lost {
            self.items.remove(key);
        }
    }
}

/// Returns the header in the first sector of a tree block of this place, if it is one.
fn header_of(sector: &[u8], at: Logical, fsid: Uuid) -> Option<Header> {
    Header::parse(sector).ok().filter(|header| header.bytenr == at && header.fsid == fsid)
}

/// Whether the tree of a root item has its root block.
fn is_sound(volume: &Volume, key: &Key, data: &[u8], fsid: Uuid) -> bool {
    let Ok(item) = RootItem::parse(data) else { return false };
    read(volume, item.bytenr, (TreeId(key.objectid), item.generation, item.level), fsid).is_some()
}

fn read(volume: &Volume, bytenr: Logical, what: (TreeId, Generation, u8), fsid: Uuid) -> Option<Vec<u8>> {
    let (tree, generation, level) = what;
    let owner = (!tree.is_subvolume()).then_some(tree);
    let (level, generation) = (Some(level), Some(generation));
    let expected = NodeExpectation { bytenr, level, generation, owner, first_key: None, fsid };
    volume.reader().read_node(&expected).ok().map(|block| block.to_vec())
}

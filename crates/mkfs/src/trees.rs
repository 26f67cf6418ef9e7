//! The items of every tree of a new volume.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use ubtrfs_format::items::uuid_key;
use ubtrfs_format::items::{
    BlockGroupItem, DevExtent, DevItem, DirEntry, ExtentFlags, ExtentItem, FileType, FreeSpaceInfo, InlineRef,
    InodeItem, InodeRef, RootItem, Timespec, encode_dir_entry, encode_inode_ref,
};
use ubtrfs_format::{DeviceId, DirIndex, Generation, Ino, ItemType, Key, Logical, TreeId, Uuid, name_hash, objectid};

use crate::blocks::{Items, PlacedTree};
use crate::chunks::{Chunk, Chunks};
use crate::options::{MkfsOptions, NewDevice, Quotas};

/// The only transaction of a new volume.
pub(crate) const GENERATION: Generation = Generation(1);

/// The bytes of a `DEV_STATS` item: five counters.
const DEV_STATS_BYTES: usize = 40;
/// Words of a `QGROUP_STATUS` item, as mkfs.btrfs 7.3 and the kernel write them [seen].
const QGROUP_STATUS_VERSION: u64 = 1;
const QGROUP_STATUS_ON: u64 = 1;
const QGROUP_STATUS_SIMPLE: u64 = 8;

const DIRECTORY_MODE: u32 = 0o040_755;
const DEFAULT_NAME: &[u8] = b"default";

/// A new volume: its chunks, and its trees with their places (the chunk tree first, the root tree
/// second).
pub(crate) struct Volume<'a> {
    pub options: &'a MkfsOptions,
    pub chunks: &'a Chunks,
    pub trees: &'a [PlacedTree],
}

/// Returns the trees of a volume with these options, the chunk tree and the root tree first.
pub(crate) fn tree_ids(options: &MkfsOptions) -> Vec<TreeId> {
    let always = [
        TreeId::CHUNK,
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::DEV,
        TreeId::FS,
        TreeId::CSUM,
        TreeId::UUID,
        TreeId::DATA_RELOC,
    ];
    let free_space = options.free_space_tree.then_some(TreeId::FREE_SPACE);
    let block_group = options.block_group_tree.then_some(TreeId::BLOCK_GROUP);
    let quota = options.quotas.map(|_| TreeId::QUOTA);
    always.into_iter().chain(free_space).chain(block_group).chain(quota).collect()
}

impl Volume<'_> {
    /// Returns the items of a tree, ascending.
    pub fn items(&self, tree: TreeId) -> Items {
        let mut items = match tree {
            TreeId::CHUNK => self.chunk_tree(),
            TreeId::ROOT => self.root_tree(),
            TreeId::EXTENT => self.extent_tree(),
            TreeId::DEV => self.device_tree(),
            TreeId::FS => self.root_directory(self.options.root_owner),
            TreeId::DATA_RELOC => self.root_directory((0, 0)),
            TreeId::UUID => self.uuid_tree(),
            TreeId::FREE_SPACE => self.free_space_tree(),
            TreeId::BLOCK_GROUP => self.block_groups(),
            TreeId::QUOTA => self.options.quotas.map_or_else(Items::new, |quotas| self.quota_tree(quotas)),
            _ => Items::new(),
        };
        items.sort_by_key(|(key, _)| *key);
        items
    }

    /// Returns how many bytes of a chunk blocks take. They are at its start.
    pub fn used(&self, chunk: &Chunk) -> u64 {
        let end = chunk.start.plus(chunk.length);
        let blocks = self.trees.iter().flat_map(|tree| &tree.blocks);
        let inside = blocks.filter(|block| (chunk.start..end).contains(*block)).count() as u64;
        inside * u64::from(self.options.node_size())
    }

    /// Returns the item of a device, for the chunk tree and its superblock.
    pub fn device(&self, devid: DeviceId, device: NewDevice) -> DevItem {
        let sector_size = self.options.sector_size;
        let stripes = self.chunks.all.iter().map(|chunk| {
            let own = chunk.stripes.iter().filter(|(id, _)| *id == devid).count() as u64;
            own * chunk.stripe_length()
        });
        DevItem {
            devid,
            total_bytes: self.options.whole_sectors(device.total_bytes),
            bytes_used: stripes.sum(),
            io_align: sector_size,
            io_width: sector_size,
            sector_size,
            uuid: device.uuid,
            fsid: self.options.fsid,
            ..DevItem::default()
        }
    }

    fn now(&self) -> Timespec {
        timespec(self.options.now)
    }

    fn chunk_tree(&self) -> Items {
        let devices = self.options.devices().map(|(devid, device)| {
            let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, devid.0);
            (key, self.device(devid, device).to_bytes().to_vec())
        });
        let chunks = self.chunks.all.iter().map(|chunk| (chunk_key(chunk), chunk.item(self.options).to_bytes()));
        devices.chain(chunks).collect()
    }

    fn device_tree(&self) -> Items {
        let extents = self.chunks.all.iter().flat_map(|chunk| chunk.stripes.iter().map(move |stripe| (chunk, stripe)));
        let statistics = self.options.devices().map(|(devid, _)| {
            let key = Key::new(objectid::DEV_STATS, ItemType::PERSISTENT_ITEM, devid.0);
            (key, vec![0; DEV_STATS_BYTES])
        });
        let extents = extents.map(|(chunk, (devid, at))| {
            let extent = DevExtent {
                chunk_tree: TreeId::CHUNK.0,
                chunk_objectid: objectid::FIRST_CHUNK_TREE,
                chunk_offset: chunk.start,
                length: chunk.stripe_length(),
                chunk_tree_uuid: self.options.chunk_tree_uuid,
            };
            (Key::new(devid.0, ItemType::DEV_EXTENT, at.0), extent.to_bytes().to_vec())
        });
        statistics.chain(extents).collect()
    }

    fn extent_tree(&self) -> Items {
        let mut items = self.extents(&BTreeMap::new());
        if !self.options.skinny_metadata {
            // The keys of the extent tree's own blocks depend on its items' keys and sizes only.
            let mut first_keys = BTreeMap::new();
            for tree in self.trees {
                let own = if tree.id == TreeId::EXTENT { &items } else { &self.items(tree.id) };
                first_keys.extend(tree.first_keys(own, self.options.node_size() as usize));
            }
            items = self.extents(&first_keys);
        }
        items
    }

    /// Returns the items of the extent tree, ascending. Without skinny metadata they have the first
    /// key of each block.
    fn extents(&self, first_keys: &BTreeMap<Logical, Key>) -> Items {
        let mut items = if self.options.block_group_tree { Items::new() } else { self.block_groups() };
        let node_size = u64::from(self.options.node_size());
        for tree in self.trees {
            for (bytenr, level) in tree.levels() {
                let first_key = first_keys.get(&bytenr).copied().unwrap_or_default();
                let (key, tree_block) = if self.options.skinny_metadata {
                    (Key::new(bytenr.0, ItemType::METADATA_ITEM, level.into()), None)
                } else {
                    (Key::new(bytenr.0, ItemType::EXTENT_ITEM, node_size), Some((first_key, level)))
                };
                let extent = ExtentItem {
                    refs: 1,
                    generation: GENERATION,
                    flags: ExtentFlags::TREE_BLOCK,
                    tree_block,
                    inline_refs: vec![InlineRef::TreeBlock { root: tree.id }],
                };
                items.push((key, extent.to_bytes()));
            }
        }
        items.sort_by_key(|(key, _)| *key);
        items
    }

    fn block_groups(&self) -> Items {
        let group = |chunk: &Chunk| {
            let item = BlockGroupItem {
                used: self.used(chunk),
                chunk_objectid: objectid::FIRST_CHUNK_TREE,
                flags: chunk.flags.0,
            };
            (Key::new(chunk.start.0, ItemType::BLOCK_GROUP_ITEM, chunk.length), item.to_bytes().to_vec())
        };
        self.chunks.all.iter().map(group).collect()
    }

    fn free_space_tree(&self) -> Items {
        let mut items = Items::new();
        for chunk in &self.chunks.all {
            let used = self.used(chunk);
            let info = FreeSpaceInfo { extent_count: 1, flags: 0 };
            items.push((Key::new(chunk.start.0, ItemType::FREE_SPACE_INFO, chunk.length), info.to_bytes().to_vec()));
            let free = Key::new(chunk.start.plus(used).0, ItemType::FREE_SPACE_EXTENT, chunk.length - used);
            items.push((free, Vec::new()));
        }
        items
    }

    /// Returns the items of a tree's root directory: an inode whose only name is `..` in itself.
    fn root_directory(&self, owner: (u32, u32)) -> Items {
        self.directory(Ino::ROOT_DIR, owner)
    }

    fn directory(&self, ino: Ino, owner: (u32, u32)) -> Items {
        let now = self.now();
        let (uid, gid) = owner;
        let inode = InodeItem {
            generation: GENERATION,
            nbytes: self.options.node_size().into(),
            nlink: 1,
            uid,
            gid,
            mode: DIRECTORY_MODE,
            atime: now,
            ctime: now,
            mtime: now,
            otime: now,
            ..InodeItem::default()
        };
        vec![
            (Key::new(ino.0, ItemType::INODE_ITEM, 0), inode.to_bytes().to_vec()),
            (Key::new(ino.0, ItemType::INODE_REF, ino.0), inode_ref(b"..")),
        ]
    }

    fn root_tree(&self) -> Items {
        let directory = Ino(TreeId::ROOT_TREE_DIR.0);
        let mut items = self.directory(directory, (0, 0));
        let mut entry = Vec::new();
        encode_dir_entry(
            &mut entry,
            &DirEntry {
                location: Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, u64::MAX),
                transid: Generation(0),
                file_type: FileType::Directory,
                name: DEFAULT_NAME,
                value: b"",
            },
        );
        items.push((Key::new(directory.0, ItemType::DIR_ITEM, name_hash(DEFAULT_NAME)), entry));
        items.push((Key::new(TreeId::FS.0, ItemType::INODE_REF, directory.0), inode_ref(DEFAULT_NAME)));
        let listed = self.trees.iter().filter(|tree| !matches!(tree.id, TreeId::ROOT | TreeId::CHUNK));
        items.extend(listed.map(|tree| (Key::new(tree.id.0, ItemType::ROOT_ITEM, 0), self.root_item(tree))));
        items
    }

    fn root_item(&self, tree: &PlacedTree) -> Vec<u8> {
        let node_size = u64::from(self.options.node_size());
        let is_top_level = tree.id == TreeId::FS;
        let created = if is_top_level { self.now() } else { Timespec::default() };
        let has_directory = is_top_level || tree.id == TreeId::DATA_RELOC;
        let item = RootItem {
            inode: InodeItem {
                generation: GENERATION,
                size: 3,
                nbytes: node_size,
                nlink: 1,
                mode: DIRECTORY_MODE,
                ..InodeItem::default()
            },
            generation: GENERATION,
            root_dirid: if has_directory { Ino::ROOT_DIR } else { Ino(0) },
            bytenr: tree.root(),
            byte_limit: 0,
            bytes_used: tree.blocks.len() as u64 * node_size,
            last_snapshot: Generation(0),
            flags: 0,
            refs: 1,
            drop_progress: Key::default(),
            drop_level: 0,
            level: tree.level(),
            generation_v2: GENERATION,
            uuid: if is_top_level { self.options.subvolume_uuid } else { Uuid::NIL },
            parent_uuid: Uuid::NIL,
            received_uuid: Uuid::NIL,
            transids: [0; 4],
            times: [created, created, Timespec::default(), Timespec::default()],
        };
        item.to_bytes()
    }

    fn quota_tree(&self, quotas: Quotas) -> Items {
        let node_size = u64::from(self.options.node_size());
        let generation = GENERATION.0;
        let (flags, since) = match quotas {
            Quotas::Qgroups => (QGROUP_STATUS_ON, 0),
            Quotas::Simple => (QGROUP_STATUS_ON | QGROUP_STATUS_SIMPLE, generation),
        };
        let qgroup = TreeId::FS.0;
        let words = |words: [u64; 5]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        vec![
            (Key::new(0, ItemType::QGROUP_STATUS, 0), words([QGROUP_STATUS_VERSION, generation, flags, 0, since])),
            // The subvolume's only tree block, referenced and exclusive, as stored and as
            // uncompressed.
            (
                Key::new(0, ItemType::QGROUP_INFO, qgroup),
                words([generation, node_size, node_size, node_size, node_size]),
            ),
            (Key::new(0, ItemType::QGROUP_LIMIT, qgroup), words([0; 5])),
        ]
    }

    fn uuid_tree(&self) -> Items {
        let key = uuid_key(ItemType::UUID_KEY_SUBVOL, &self.options.subvolume_uuid);
        vec![(key, TreeId::FS.0.to_le_bytes().to_vec())]
    }
}

/// Returns the key of a chunk's item.
pub(crate) fn chunk_key(chunk: &Chunk) -> Key {
    Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, chunk.start.0)
}

/// Returns the address of block number `index` after `start`.
pub(crate) fn block_at(start: Logical, index: usize, node_size: u32) -> Logical {
    start.plus(index as u64 * u64::from(node_size))
}

fn inode_ref(name: &[u8]) -> Vec<u8> {
    let mut item = Vec::new();
    encode_inode_ref(&mut item, InodeRef { index: DirIndex(0), name });
    item
}

fn timespec(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec { sec: since.as_secs(), nsec: since.subsec_nanos() },
        // A clock before 1970 is a clock that was never set.
        Err(_) => Timespec::default(),
    }
}

//! Reads the whole log and checks it before it is applied: it must be that of the transaction after
//! the last commit (invariant 16), each extent must have only one length (invariant 21), and
//! nothing else may use the space that it uses (invariant 3).

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::{
    BlockGroupFlags, DirEntry, FileExtent, FileExtentKind, InodeItem, RootItem, dir_entries, inode_backrefs,
};
use ubtrfs_format::{
    DirIndex, Generation, Header, Ino, ItemContext, ItemType, Key, Leaf, Logical, Node, TreeId, check_header,
    check_leaf,
};
use ubtrfs_tree::{Block, NodeRef, Root, Snapshot, Walk};

use super::found::{damaged, is_without_links, misplaced};
use super::replayer::Replayer;
use crate::error::{Error, Result};
use crate::inode::MAX_FILE_SIZE;
use crate::ops::check_name;
use crate::transaction::NewExtent;

/// The log of a volume.
pub(super) struct FoundLog {
    /// The logs of existing subvolumes, from the highest id down.
    pub(super) subvolumes: Vec<SubvolumeLog>,
    /// All blocks of the log.
    pub(super) blocks: Vec<Logical>,
}

/// The log of one subvolume.
pub(super) struct SubvolumeLog {
    pub(super) id: TreeId,
    pub(super) tree: Snapshot,
}

impl FoundLog {
    /// Reads the log and excludes the space that it uses from allocation. Extents that only the log
    /// contains become new ones of the open transaction.
    pub(super) fn read(fs: &Replayer) -> Result<Self> {
        let committed = fs.info.committed();
        let superblock = &committed.superblock;
        let generation = superblock.generation.next();
        let mut reader = Reader {
            context: ItemContext::from(superblock),
            fs,
            blocks: BTreeSet::new(),
            extents: BTreeMap::new(),
            dead: None,
        };
        let root =
            Root { owner: TreeId::LOG, bytenr: superblock.log_root, generation, level: superblock.log_root_level };
        let roots = Snapshot::new(fs.info.cache.clone(), root);
        reader.walk(&roots, false)?;
        let mut subvolumes = Vec::new();
        let all =
            Key::new(TreeId::LOG.0, ItemType::ROOT_ITEM, 0)..=Key::new(TreeId::LOG.0, ItemType::ROOT_ITEM, u64::MAX);
        for item in roots.range_rev(all) {
            let item = item?;
            let id = TreeId(item.key.offset);
            let root = logged_root(&item.key, &RootItem::parse(&item)?, generation)?;
            let tree = Snapshot::new(fs.info.cache.clone(), root);
            let exists = id.is_subvolume() && committed.trees.get(id).is_some_and(|tree| tree.item.refs > 0);
            reader.walk(&tree, exists)?;
            if exists {
                subvolumes.push(SubvolumeLog { id, tree });
            }
        }
        let Reader { blocks, extents, .. } = reader;
        let blocks: Vec<Logical> = blocks.into_iter().collect();
        exclude(fs, &blocks, &extents)?;
        Ok(Self { subvolumes, blocks })
    }
}

fn logged_root(key: &Key, item: &RootItem, generation: Generation) -> Result<Root> {
    if item.generation != generation {
        // By invariant 16 no log remains that another commit has followed.
        return Err(damaged(key, "the log is of another transaction than the one after the last commit"));
    }
    Ok(Root { owner: TreeId::LOG, bytenr: item.bytenr, generation, level: item.level })
}

/// Excludes blocks and extents of a log from allocation.
fn exclude(fs: &Replayer, blocks: &[Logical], extents: &BTreeMap<Logical, u64>) -> Result<()> {
    let known = fs.info.space.is_known();
    for block in blocks.iter().filter(|_| known) {
        if fs.info.space.exclude(*block, fs.info.space.node_size(), BlockGroupFlags::METADATA) != Some(false) {
            return Err(misplaced(*block, "a block of the log lies where something else is, or may not be"));
        }
    }
    let transaction = fs.info.gate.current();
    for (start, length) in extents.iter().filter(|_| known) {
        let allocated = fs.info.space.exclude(*start, *length, BlockGroupFlags::DATA);
        let allocated =
            allocated.ok_or_else(|| misplaced(*start, "an extent of the log lies where something else is"))?;
        if !allocated {
            transaction.add_extent(*start, NewExtent::new(*length, None));
        } else if !fs.info.is_read_only() {
            let key = Key::new(start.0, ItemType::EXTENT_ITEM, *length);
            if fs.info.committed().tree(TreeId::EXTENT)?.get(&key)?.is_none() {
                return Err(misplaced(*start, "an extent of the log lies where something else is"));
            }
        }
    }
    Ok(())
}

/// Collects the blocks and extents that a log uses.
struct Reader<'a> {
    fs: &'a Replayer,
    context: ItemContext,
    blocks: BTreeSet<Logical>,
    /// Data extents that the log refers to, with their lengths.
    extents: BTreeMap<Logical, u64>,
    /// The inode without links whose items are skipped.
    dead: Option<u64>,
}

impl Reader<'_> {
    /// Reads a tree of the log. `replayed` says that its items will be replayed.
    fn walk(&mut self, tree: &Snapshot, replayed: bool) -> Result<()> {
        self.dead = None;
        let mut outcome = Ok(());
        tree.walk(&mut |at, block| {
            outcome = block.map_err(Error::from).and_then(|block| self.block(at, block, replayed));
            if outcome.is_ok() { Walk::Descend } else { Walk::Stop }
        });
        outcome
    }

    fn block(&mut self, at: &NodeRef, block: &Block, replayed: bool) -> Result<()> {
        let header = Header::parse(block)?;
        check_header(&header, self.fs.info.volume.chunk_tree_uuid())?;
        if header.owner != TreeId::LOG {
            return Err(misplaced(at.bytenr, "the block is of another tree"));
        }
        // A block with two parents could be read exponentially often.
        if !self.blocks.insert(at.bytenr) {
            return Err(misplaced(at.bytenr, "the log has the block twice"));
        }
        if let Node::Leaf(leaf) = Node::view(block)? {
            let fault = |fault| Error::MalformedItem { block: at.bytenr, fault };
            check_leaf(TreeId::LOG, &leaf, &self.context).map_err(fault)?;
            if replayed {
                self.leaf(&leaf)?;
            }
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf<'_>) -> Result<()> {
        for (key, item) in leaf.iter() {
            if is_without_links(&key, item)? {
                self.dead = Some(key.objectid);
            }
            if self.dead == Some(key.objectid) || key > super::found::last_key_of_inodes() {
                continue;
            }
            check(&key, item)?;
            if key.item_type == ItemType::EXTENT_DATA {
                self.extent(&key, item)?;
            }
        }
        Ok(())
    }

    fn extent(&mut self, key: &Key, item: &[u8]) -> Result<()> {
        let sector = self.context.sector_size.into();
        let extent = FileExtent::parse(item)?;
        super::content::mapped(key, &extent, sector)?;
        if let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, .. } = extent.kind
            && disk_bytenr.0 != 0
            && self.extents.insert(disk_bytenr, disk_num_bytes).is_some_and(|other| other != disk_num_bytes)
        {
            // By invariant 21 the log is wrong about one of the lengths.
            return Err(damaged(key, "the extent has two lengths"));
        }
        Ok(())
    }
}

/// Checks rules for items that replay relies on, beyond those for items of any tree.
fn check(key: &Key, item: &[u8]) -> Result<()> {
    let name_fits = |name: &[u8]| check_name(name).map_err(|_| damaged(key, "there is a name that nothing can have"));
    let index_fits = |index: DirIndex| {
        let fits = index >= DirIndex::FIRST && index.0 < i64::MAX as u64;
        if fits { Ok(()) } else { Err(damaged(key, "a name has a number that none can have")) }
    };
    match key.item_type {
        ItemType::INODE_ITEM if InodeItem::parse(item)?.size > MAX_FILE_SIZE => {
            Err(damaged(key, "the size is larger than any file's"))
        }
        // This is the root directory's own reference; no other inode is its own parent.
        ItemType::INODE_REF if key.objectid == key.offset => Ok(()),
        ItemType::INODE_REF | ItemType::INODE_EXTREF if key.objectid == Ino::ROOT_DIR.0 => {
            Err(damaged(key, "the root directory has a name"))
        }
        ItemType::INODE_REF | ItemType::INODE_EXTREF => inode_backrefs(key, item).try_for_each(|entry| {
            let entry = entry?;
            name_fits(entry.name)?;
            index_fits(entry.index)
        }),
        ItemType::DIR_INDEX => {
            let entry = only_entry(key, item)?;
            name_fits(entry.name)?;
            if entry.location.item_type == ItemType::INODE_ITEM && entry.location.objectid == Ino::ROOT_DIR.0 {
                return Err(damaged(key, "an entry refers to the root directory"));
            }
            index_fits(DirIndex(key.offset))
        }
        _ => Ok(()),
    }
}

/// Returns the entry of a `DIR_INDEX` item, which contains exactly one.
pub(super) fn only_entry<'a>(key: &Key, item: &'a [u8]) -> Result<DirEntry<'a>> {
    let mut entries = dir_entries(item);
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry?),
        _ => Err(damaged(key, "the item does not hold one entry")),
    }
}

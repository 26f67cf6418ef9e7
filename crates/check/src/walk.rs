//! Walks trees block by block. On its first visit, a block is read from every copy, and its uses of
//! other extents are noted. Blocks that snapshots share are visited again for each tree, but
//! checked and counted only once.

use std::collections::{BTreeSet, HashMap, HashSet};

use ubtrfs_errors::sentence;
use ubtrfs_format::items::{DataRef, FileExtent, FileExtentKind};
use ubtrfs_format::{
    BACKREF_REV_MIXED, Generation, Header, Ino, ItemContext, ItemType, Key, Leaf, Logical, Node, NodeExpectation,
    NodeFlags, TreeId, Uuid, check_item, verify_node_checksum,
};
use ubtrfs_volume::Buffer;

use crate::fault::{FaultKind, Location};
use crate::media::Media;
use crate::placement;
use crate::report::{Faults, Progress};
use crate::sharing::Sharing;
use crate::uses::{User, Uses};

/// The properties that all blocks of a volume have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) node_size: u32,
    pub(crate) sector_size: u32,
    pub(crate) checksum: ubtrfs_format::ChecksumType,
    /// The id in all metadata.
    pub(crate) fsid: Uuid,
    /// The volume's last transaction.
    pub(crate) generation: Generation,
}

/// A tree to walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeRoot {
    pub(crate) tree: TreeId,
    pub(crate) bytenr: Logical,
    pub(crate) generation: Generation,
    pub(crate) level: u8,
    /// The progress of the tree's deletion: children before this key have been dropped.
    pub(crate) dropped_to: Option<Key>,
    /// The user of the root block.
    pub(crate) user: User,
}

impl TreeRoot {
    pub(crate) fn new(tree: TreeId, bytenr: Logical, generation: Generation, level: u8) -> Self {
        Self { tree, bytenr, generation, level, dropped_to: None, user: User::tree(tree) }
    }

    /// Returns whether the tree's blocks may be in other trees too.
    fn shares(&self) -> bool {
        self.tree.is_subvolume() || self.tree == TreeId::DATA_RELOC || self.tree == TreeId::RELOC
    }
}

/// The properties of a block that are remembered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) generation: Generation,
    pub(crate) owner: TreeId,
    pub(crate) level: u8,
    /// Whether no copy was good.
    pub(crate) bad: bool,
    /// Whether relocation wrote the block. It refers to its children by its own address, whatever
    /// tree it is in.
    pub(crate) relocated: bool,
}

/// Receives the blocks and items of a walk, in the order of keys.
pub(crate) trait Visitor {
    /// Visits the leaf at `block`.
    fn leaf(&mut self, block: Logical, leaf: &Leaf<'_>, faults: &mut Faults);
    /// Notes that something between the last leaf and the next one could not be read.
    fn gap(&mut self) {}
}

/// A visitor from a closure over items, which ignores gaps.
pub(crate) struct Items<F>(pub(crate) F);

impl<F: FnMut(Logical, Key, &[u8], &mut Faults)> Visitor for Items<F> {
    fn leaf(&mut self, block: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter() {
            (self.0)(block, key, data, faults);
        }
    }
}

/// A visitor that does nothing, for trees of which only the blocks are checked.
pub(crate) struct BlocksOnly;

impl Visitor for BlocksOnly {
    fn leaf(&mut self, _: Logical, _: &Leaf<'_>, _: &mut Faults) {}
}

/// Walks trees and remembers their blocks.
pub(crate) struct Walker<'a> {
    pub(crate) media: Media,
    pub(crate) geometry: Geometry,
    /// The context for the rules of items.
    items: ItemContext,
    /// The ids in blocks of the volumes (seeds) from which this one was made.
    seeds: Vec<Uuid>,
    pub(crate) blocks: HashMap<Logical, Block>,
    pub(crate) uses: Uses,
    /// Blocks whose children have backrefs by the block's address, by the extent tree.
    pub(crate) full_backref: HashSet<Logical>,
    /// The chunk tree UUID, once a block with it is read.
    chunk_tree_uuid: Option<Uuid>,
    pub(crate) progress: Option<&'a dyn Progress>,
    pub(crate) phase: &'static str,
    /// An estimate of all blocks, for the progress.
    pub(crate) expected_blocks: u64,
    copies_read: u64,
    /// The trees that reach each bad block besides the one whose fault it is.
    pub(crate) bad_users: HashMap<Logical, BTreeSet<TreeId>>,
    /// Which subvolumes refer to which extents, if that is to be known.
    pub(crate) sharing: Option<Sharing>,
}

struct Frame {
    block: Buffer,
    slot: usize,
    /// All keys of the block are below this.
    end: Option<Key>,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(
        media: Media,
        geometry: Geometry,
        items: ItemContext,
        progress: Option<&'a dyn Progress>,
    ) -> Self {
        Self {
            media,
            geometry,
            items,
            seeds: Vec::new(),
            blocks: HashMap::new(),
            uses: Uses::default(),
            full_backref: HashSet::new(),
            chunk_tree_uuid: None,
            progress,
            phase: "trees",
            expected_blocks: 0,
            copies_read: 0,
            bad_users: HashMap::new(),
            sharing: None,
        }
    }

    /// Sets the ids of the volumes from which this one was made.
    pub(crate) fn with_seeds(self, seeds: Vec<Uuid>) -> Self {
        Self { seeds, ..self }
    }

    /// The ids in blocks of the volumes from which this one was made.
    pub(crate) fn seeds(&self) -> &[Uuid] {
        &self.seeds
    }

    /// How many copies of blocks were read so far.
    pub(crate) fn copies_read(&self) -> u64 {
        self.copies_read
    }

    /// Walks a tree, and checks blocks at their first visit. Returns `false` if some part could not
    /// be read.
    pub(crate) fn walk(&mut self, root: &TreeRoot, visitor: &mut dyn Visitor, faults: &mut Faults) -> bool {
        self.uses.block(root.bytenr, root.user);
        if let Some(sharing) = self.sharing.as_mut().filter(|_| root.tree.is_subvolume()) {
            sharing.begin(root.tree);
        }
        let fsid = self.geometry.fsid;
        let mut load = |expected: &NodeExpectation, end, faults: &mut Faults| self.enter(root, expected, end, faults);
        let complete = descend(root, fsid, visitor, faults, &mut load);
        if !complete {
            self.uses.incomplete = true;
        }
        complete
    }

    /// Walks a tree that was walked before, without reporting anything about its blocks.
    pub(crate) fn walk_again(&self, root: &TreeRoot, visitor: &mut dyn Visitor, faults: &mut Faults) -> bool {
        let mut load = |expected: &NodeExpectation, _: Option<Key>, _: &mut Faults| self.read_any(expected);
        descend(root, self.geometry.fsid, visitor, faults, &mut load)
    }

    /// Reads a block during the descent. Returns `None` if it can't be used, which has been
    /// reported then.
    fn enter(
        &mut self,
        root: &TreeRoot,
        expected: &NodeExpectation,
        end: Option<Key>,
        faults: &mut Faults,
    ) -> Option<Buffer> {
        let place = Location::tree(root.tree).in_block(expected.bytenr);
        let place = Location { inodes: inodes_between(root.tree, expected.first_key, end), ..place };
        let block = match self.blocks.get(&expected.bytenr).copied() {
            Some(block) if block.bad => {
                self.bad_users.entry(expected.bytenr).or_default().insert(root.tree);
                return None;
            }
            Some(_) if !root.shares() => {
                faults.add(FaultKind::BlockReachedTwice, place);
                return None;
            }
            Some(_) => match self.read_checked(expected) {
                Ok(block) => block,
                Err(reason) => {
                    faults.add(FaultKind::BadBlock { reason }, place);
                    return None;
                }
            },
            None => self.first_visit(root, expected, &place, faults)?,
        };
        let place = Location { inodes: None, ..place };
        let last = match Node::view(&block) {
            Ok(Node::Leaf(leaf)) => leaf.len().checked_sub(1).and_then(|slot| leaf.key(slot)),
            Ok(Node::Internal(node)) => node.len().checked_sub(1).and_then(|slot| node.key(slot)),
            Err(_) => None,
        };
        if let (Some(last), Some(end)) = (last, end)
            && last >= end
        {
            faults.add(FaultKind::KeyBeyondParent, place);
            return None;
        }
        if let Some(sharing) = self.sharing.as_mut().filter(|_| root.tree.is_subvolume()) {
            sharing.note(expected.bytenr, self.geometry.node_size.into());
            if let Ok(Node::Leaf(leaf)) = Node::view(&block) {
                sharing.note_data(&leaf);
            }
        }
        Some(block)
    }

    fn first_visit(
        &mut self,
        root: &TreeRoot,
        expected: &NodeExpectation,
        place: &Location,
        faults: &mut Faults,
    ) -> Option<Buffer> {
        let block = self.read_every_copy(expected, place, faults);
        let place = &Location { inodes: None, ..place.clone() };
        let header = block.as_ref().and_then(|block| Header::parse(block).ok());
        let Some((block, header)) = block.zip(header) else {
            let bad = Block { generation: Generation(0), owner: root.tree, level: 0, bad: true, relocated: false };
            self.blocks.insert(expected.bytenr, bad);
            return None;
        };
        self.judge_header(root, &header, place, faults);
        let known = Block {
            generation: header.generation,
            owner: header.owner,
            level: header.level,
            bad: false,
            relocated: header.flags & NodeFlags::RELOC != 0,
        };
        self.blocks.insert(expected.bytenr, known);
        self.note_uses(root, &header, &block);
        self.judge_items(place, &block, faults);
        if self.blocks.len().is_multiple_of(256)
            && let Some(progress) = self.progress
        {
            let done = self.blocks.len() as u64;
            progress.report(self.phase, done, self.expected_blocks.max(done));
        }
        Some(block)
    }

    /// Reads all copies, reports each bad one, and returns a good one.
    fn read_every_copy(&mut self, expected: &NodeExpectation, place: &Location, faults: &mut Faults) -> Option<Buffer> {
        let copies = self.media.copies(expected.bytenr);
        let mut good: Option<Buffer> = None;
        let mut bad = Vec::new();
        let mut is_missed = false;
        let size = u64::from(self.geometry.node_size);
        for copy in 0..copies {
            if let Some(missed) = self.media.missed(expected.bytenr, copy, size) {
                faults.not_read(missed, size);
                is_missed = true;
                continue;
            }
            self.copies_read += 1;
            match self.read_one(expected, copy) {
                Ok(block) => match &good {
                    Some(first) if first[..] != block[..] => faults.add(FaultKind::CopiesDiffer, place.clone()),
                    Some(_) => {}
                    None => good = Some(block),
                },
                Err(reason) => bad.push((copy, reason)),
            }
        }
        if good.is_some() {
            let place = Location { inodes: None, ..place.clone() };
            for (copy, reason) in bad {
                faults.add(FaultKind::BadCopy { copy: copy as u64, reason }, place.clone());
            }
        } else if !bad.is_empty() || !is_missed {
            let reason =
                bad.into_iter().next().map_or_else(|| "no chunk maps its address".to_owned(), |(_, reason)| reason);
            faults.add(FaultKind::BadBlock { reason }, place.clone());
        }
        good
    }

    fn read_one(&self, expected: &NodeExpectation, copy: usize) -> Result<Buffer, String> {
        let mut block = Buffer::zeroed(self.geometry.node_size as usize);
        self.media.read_block(expected.bytenr, copy, &mut block).map_err(|error| sentence(&error))?;
        verify_node_checksum(&block, self.geometry.checksum).map_err(|error| sentence(&error))?;
        let mut expected = *expected;
        if let Some(fsid) = Header::parse(&block).ok().map(|header| header.fsid).filter(|id| self.seeds.contains(id)) {
            expected.fsid = fsid;
        }
        Node::check(&block, &expected, self.geometry.sector_size).map_err(|error| sentence(&error))?;
        Ok(block)
    }

    fn read_checked(&self, expected: &NodeExpectation) -> Result<Buffer, String> {
        let mut reason = "no chunk maps its address".to_owned();
        for copy in 0..self.media.copies(expected.bytenr) {
            match self.read_one(expected, copy) {
                Ok(block) => return Ok(block),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Reads any good copy, without reporting bad ones.
    pub(crate) fn read_any(&self, expected: &NodeExpectation) -> Option<Buffer> {
        self.read_checked(expected).ok()
    }

    fn judge_header(&mut self, root: &TreeRoot, header: &Header, place: &Location, faults: &mut Faults) {
        let mut odd = |what| faults.add(FaultKind::BlockHeader { what }, place.clone());
        if header.flags & NodeFlags::WRITTEN == 0 {
            odd("not marked as written");
        }
        if header.flags >> 56 << 56 != BACKREF_REV_MIXED {
            odd("unknown revision of back references");
        }
        if *self.chunk_tree_uuid.get_or_insert(header.chunk_tree_uuid) != header.chunk_tree_uuid {
            odd("another chunk tree's id");
        }
        if header.owner == TreeId(0) || (root.shares() && !is_shared_owner(header.owner)) {
            odd("impossible owner");
        }
        let newest = self.geometry.generation;
        if header.generation > newest {
            let kind = FaultKind::GenerationTooNew { found: header.generation.0, newest: newest.0 };
            faults.add(kind, place.clone());
        }
        if header.nritems == 0 && never_empty(root.tree) {
            faults.add(FaultKind::EmptyTree, place.clone());
        }
    }

    fn judge_items(&self, place: &Location, block: &[u8], faults: &mut Faults) {
        let Ok(Node::Leaf(leaf)) = Node::view(block) else { return };
        let tree = place.tree;
        let mut has_inode_cache = false;
        for (key, data) in leaf.iter() {
            let place = || Location { key: Some(key), ..place.clone() };
            if let Some(kind) = tree.and_then(|tree| placement::fault_of(tree, &key)) {
                // The items of one cache are one fault.
                if kind != FaultKind::InodeCache || !std::mem::replace(&mut has_inode_cache, true) {
                    faults.add(kind, place());
                }
                continue;
            }
            if let Err(error) = check_item(&key, data, &self.items) {
                faults.add(FaultKind::BadItem { reason: sentence(&error) }, place());
            }
        }
    }

    /// Notes which blocks and data extents this block uses.
    fn note_uses(&mut self, root: &TreeRoot, header: &Header, block: &[u8]) {
        let full = self.full_backref.contains(&header.bytenr);
        match Node::view(block) {
            Ok(Node::Internal(node)) => {
                let first = root.dropped_to.as_ref().map_or(0, |key| node.slot_for(key));
                let user = if full { User::block(header.bytenr) } else { User::tree(header.owner) };
                for child in node.iter().skip(first) {
                    self.uses.block(child.bytenr, user);
                }
            }
            Ok(Node::Leaf(leaf)) if root.shares() || root.tree == TreeId::ROOT => {
                for (key, data) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA) {
                    let Ok(FileExtent {
                        kind: FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, .. },
                        ..
                    }) = FileExtent::parse(data)
                    else {
                        continue;
                    };
                    if disk_bytenr.0 == 0 {
                        continue;
                    }
                    let user = if full {
                        User::leaf(header.bytenr)
                    } else {
                        let offset = key.offset.wrapping_sub(offset);
                        User::file(DataRef { root: header.owner, ino: Ino(key.objectid), offset })
                    };
                    let sectors = disk_num_bytes.div_ceil(self.geometry.sector_size.into());
                    self.uses.data(disk_bytenr, user, sectors);
                }
            }
            _ => {}
        }
    }

    /// The first item of the tree at or after `key`, with its data.
    pub(crate) fn first_from(&self, root: &TreeRoot, key: &Key) -> Option<(Key, Vec<u8>)> {
        let mut from = *key;
        // Each round finds an item or moves on to the next leaf, since an empty leaf inside a tree
        // is never accepted.
        for _ in 0..2 {
            let mut expected = NodeExpectation {
                bytenr: root.bytenr,
                level: Some(root.level),
                generation: Some(root.generation),
                owner: (!root.shares()).then_some(root.tree),
                first_key: None,
                fsid: self.geometry.fsid,
            };
            let mut next_leaf = None;
            loop {
                let block = self.read_any(&expected)?;
                match Node::view(&block).ok()? {
                    Node::Internal(node) => {
                        let slot = node.slot_for(&from);
                        next_leaf = node.key(slot + 1).or(next_leaf);
                        let child = node.child(slot)?;
                        expected.bytenr = child.bytenr;
                        expected.level = Some(Header::parse(&block).ok()?.level.checked_sub(1)?);
                        expected.generation = Some(child.generation);
                        expected.first_key = Some(child.key);
                    }
                    Node::Leaf(leaf) => {
                        let slot = leaf.search(&from).unwrap_or_else(|slot| slot);
                        if let Some((found, data)) = leaf.item(slot) {
                            return Some((found, data.to_vec()));
                        }
                        break;
                    }
                }
            }
            from = next_leaf?;
        }
        None
    }

    /// The data of the item with this key.
    pub(crate) fn find(&self, root: &TreeRoot, key: &Key) -> Option<Vec<u8>> {
        self.first_from(root, key).filter(|(found, _)| found == key).map(|(_, data)| data)
    }
}

/// The function by which a walk reads an expected block, whose keys must all be below the given
/// one.
type Load<'l> = dyn FnMut(&NodeExpectation, Option<Key>, &mut Faults) -> Option<Buffer> + 'l;

fn descend(root: &TreeRoot, fsid: Uuid, visitor: &mut dyn Visitor, faults: &mut Faults, load: &mut Load<'_>) -> bool {
    let mut complete = true;
    let mut stack: Vec<Frame> = Vec::new();
    let expected = NodeExpectation {
        bytenr: root.bytenr,
        level: Some(root.level),
        generation: Some(root.generation),
        owner: (!root.shares()).then_some(root.tree),
        first_key: None,
        fsid,
    };
    let mut next = Some((expected, None));
    loop {
        if let Some((expected, end)) = next.take() {
            if let Some(block) = load(&expected, end, faults) {
                stack.push(Frame { block, slot: 0, end });
            } else {
                complete = false;
                visitor.gap();
            }
        }
        let Some(frame) = stack.last_mut() else { return complete };
        match Node::view(&frame.block) {
            Ok(Node::Internal(node)) => {
                if frame.slot == 0
                    && let Some(key) = &root.dropped_to
                {
                    frame.slot = node.slot_for(key);
                }
                let Some(child) = node.child(frame.slot) else {
                    stack.pop();
                    continue;
                };
                let level = Header::parse(&frame.block).map_or(0, |header| header.level).checked_sub(1);
                frame.slot += 1;
                let end = node.key(frame.slot).or(frame.end);
                let expected = NodeExpectation {
                    bytenr: child.bytenr,
                    level,
                    generation: Some(child.generation),
                    owner: (!root.shares()).then_some(root.tree),
                    first_key: Some(child.key),
                    fsid,
                };
                next = Some((expected, end));
            }
            Ok(Node::Leaf(leaf)) => {
                let bytenr = Header::parse(&frame.block).map_or(Logical(0), |header| header.bytenr);
                visitor.leaf(bytenr, &leaf, faults);
                stack.pop();
            }
            Err(_) => {
                stack.pop();
            }
        }
    }
}

/// The inodes of a subvolume that may have items from one key to another.
fn inodes_between(tree: TreeId, first: Option<Key>, end: Option<Key>) -> Option<(u64, u64)> {
    if !tree.is_subvolume() {
        return None;
    }
    let first = first.map_or(Ino::FIRST_FREE.0, |key| key.objectid);
    let last = end.map_or(Ino::LAST_FREE.0, |end| {
        let has_items = end > Key::new(end.objectid, ItemType::INODE_ITEM, 0);
        if has_items { end.objectid } else { end.objectid.saturating_sub(1) }
    });
    Some((first, last.min(Ino::LAST_FREE.0)))
}

/// Returns whether blocks of subvolumes may have this owner.
fn is_shared_owner(owner: TreeId) -> bool {
    owner.is_subvolume() || owner == TreeId::DATA_RELOC || owner == TreeId::RELOC
}

fn never_empty(tree: TreeId) -> bool {
    [TreeId::ROOT, TreeId::EXTENT, TreeId::CHUNK, TreeId::DEV, TreeId::FS, TreeId::DATA_RELOC].contains(&tree)
}

//! The commit of a repair: edits of trees become new blocks in free space, the trees that record
//! space are made to agree with them, and a superblock refers to all of it.
//!
//! Nothing that a tree of the volume uses is overwritten, so until the superblock is written the
//! volume is as it was (invariant 57).

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::{BlockGroupFlags, DevExtent, DevItem, InlineRef, RootItem, encode_sys_chunk};
use ubtrfs_format::{BackupRoot, CompatRo, Generation, Ino, ItemType, Key, Logical, TreeId, objectid};
use ubtrfs_tree::{DirtyNodes, EditBatch, Root, merge};
use ubtrfs_volume::{CompletedWrites, Copies, Nodes, Write};

use crate::error::{Error, Result};
use crate::extents::{Extent, ExtentEdits, Present, wanted};
use crate::prune::Pruned;
use crate::session::{Session, next_generation};
use crate::space::{
    FreeNodes, Group, Ranges, add_named, add_use, device_extents, free_space_items, group_items, group_items_of,
    groups, used_by,
};
use crate::survey::Survey;

/// The most rounds in which the trees that record space are changed until they record themselves.
const MAX_ROUNDS: usize = 64;

/// What a commit changes besides space.
#[derive(Debug, Default)]
pub struct Edits {
    /// The edits of subvolumes, of the checksum tree and the UUID tree.
    pub trees: BTreeMap<TreeId, EditBatch>,
    /// The edits of the root tree.
    pub root_tree: EditBatch,
    /// Trees that are rebuilt from the edits alone.
    pub rebuilt: BTreeSet<TreeId>,
    /// Trees that are given up.
    pub dropped: BTreeSet<TreeId>,
}

impl Edits {
    /// Has a tree rebuilt of these items.
    pub fn rebuild(&mut self, tree: TreeId, items: EditBatch) {
        self.trees.insert(tree, items);
        self.rebuilt.insert(tree);
    }
}

/// What a commit has changed of the records of space.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceChanges {
    /// Extents whose item says something else now.
    pub extents_changed: u64,
    /// Extents that have an item now.
    pub extents_added: u64,
    /// Addresses that have none any more.
    pub extents_removed: u64,
    /// Items of block groups.
    pub groups: u64,
    /// Device extents.
    pub device_extents: u64,
}

/// A commit in progress.
struct Commit<'a> {
    session: &'a Session,
    generation: Generation,
    dirty: DirtyNodes,
    nodes: FreeNodes,
    /// The roots of trees that have changed.
    roots: BTreeMap<TreeId, Root>,
    root_tree: EditBatch,
    /// Trees that are given up.
    dropped: BTreeSet<TreeId>,
}

/// Writes a commit with these edits to addresses that are not `reserved`. Adds those to them that
/// the trees use or name before it.
pub fn commit(session: &Session, mut edits: Edits, reserved: &mut Ranges) -> Result<SpaceChanges> {
    if session.roots.keys().any(|key| key.objectid == TreeId::RELOC.0) {
        return Err(Error::Refused(
            "a balance was interrupted: mount the volume once, which ends that, and then repair it",
        ));
    }
    let survey = Survey::of(session);
    let node_size = u64::from(session.geometry.node_size);
    for at in survey.blocks.keys().chain(survey.unreadable.keys()) {
        reserved.insert(at.0, at.0.saturating_add(node_size));
    }
    for data in &survey.data_uses {
        reserved.insert(data.extent.0, data.extent.0.saturating_add(data.length));
    }
    add_named(session, reserved);
    let generation = next_generation(session, survey.newest);
    let mut commit = Commit {
        session,
        generation,
        dirty: DirtyNodes::new(generation, session.geometry),
        nodes: FreeNodes::of(session, reserved),
        roots: BTreeMap::new(),
        root_tree: std::mem::take(&mut edits.root_tree),
        dropped: BTreeSet::new(),
    };
    if let Some(items) = &session.found_root_tree {
        let mut whole = EditBatch::new();
        for (key, bytes) in items {
            whole.put(*key, bytes.clone());
        }
        whole.append(std::mem::take(&mut commit.root_tree))?;
        commit.root_tree = whole;
    }
    let found = session.found.iter().filter_map(|tree| session.root_of(*tree));
    commit.roots.extend(found.map(|root| (root.owner, root)));
    commit.drop_trees(&edits.dropped);
    if survey.is_incomplete() {
        commit.prune(&survey)?;
    }
    for (tree, batch) in &edits.trees {
        commit.change(*tree, batch, edits.rebuilt.contains(tree))?;
    }
    let _ = commit.submit()?;
    commit.record_space(&survey)
}

impl Commit<'_> {
    /// Removes these trees and the subvolumes whose deletion is under way from the root tree. Their
    /// blocks are free then, unless others use them.
    fn drop_trees(&mut self, trees: &BTreeSet<TreeId>) {
        self.dropped.clone_from(trees);
        for (key, item) in &self.session.roots {
            if crate::session::is_deleted(key, item) || trees.contains(&TreeId(key.objectid)) {
                self.root_tree.delete(*key);
                self.root_tree.delete(Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, key.objectid));
            }
        }
    }

    /// Removes blocks that can't be read from subvolumes; trees that can be derived are rebuilt.
    fn prune(&mut self, survey: &Survey) -> Result<()> {
        let mut pruned = Pruned::new(survey, self.generation);
        for root in self.session.all_roots() {
            if !root.owner.is_subvolume() && root.owner != TreeId::DATA_RELOC {
                continue;
            }
            if let Some(new) = pruned.tree(self.session, root, &mut self.nodes)? {
                self.set_root(new);
            }
        }
        Ok(())
    }

    fn root(&self, tree: TreeId) -> Option<Root> {
        self.roots.get(&tree).copied().or_else(|| self.session.root_of(tree))
    }

    fn set_root(&mut self, root: Root) {
        self.roots.insert(root.owner, root);
    }

    /// Merges edits into a tree, or makes it of them.
    fn change(&mut self, tree: TreeId, batch: &EditBatch, rebuilt: bool) -> Result<()> {
        let before = if rebuilt { None } else { self.root(tree) };
        let mut removed = |_: &Key, _: &[u8]| {};
        let (cache, nodes) = (&self.session.cache, &mut self.nodes);
        let root = merge(cache, before, tree, batch, &mut self.dirty, nodes, Generation(0), &mut removed)?;
        if Some(root) != before {
            self.set_root(root);
        }
        Ok(())
    }

    /// Writes the new blocks so far.
    fn submit(&mut self) -> Result<CompletedWrites<Nodes>> {
        let writer = self.session.volume.writer();
        let write = |(at, block): (Logical, ubtrfs_tree::Block)| Write { at, data: block.share() };
        let ticket = writer.submit_nodes(self.dirty.take_all().into_iter().map(write).collect())?;
        Ok(writer.wait(ticket)?)
    }

    /// A view of the volume by the new roots.
    fn changed_session(&self) -> Session {
        let mut roots = self.session.roots.clone();
        roots.retain(|key, item| {
            !crate::session::is_deleted(key, item) && !self.dropped.contains(&TreeId(key.objectid))
        });
        for root in self.roots.values() {
            if self.session.root_item(root.owner).is_none() {
                let (bytenr, generation, level) = (root.bytenr, root.generation, root.level);
                let item = RootItem { bytenr, generation, level, ..new_root_item(root.owner) };
                roots.insert(Key::new(root.owner.0, ItemType::ROOT_ITEM, 0), item);
            }
            let found = roots.iter_mut().find(|(key, _)| key.objectid == root.owner.0);
            if let Some((_, item)) = found {
                (item.bytenr, item.level, item.generation) = (root.bytenr, root.level, root.generation);
            }
        }
        self.session.with_roots(roots)
    }

    /// Makes the trees that record space agree with the blocks and the data that the trees use, and
    /// writes the superblock.
    fn record_space(mut self, before: &Survey) -> Result<SpaceChanges> {
        let compat = self.session.superblock.compat_ro;
        let has_group_tree = compat.contains(CompatRo::BLOCK_GROUP_TREE);
        let has_free_space_tree = compat.contains(CompatRo::FREE_SPACE_TREE);
        let present = Present::read(self.session, before);
        let mut rebuilt: BTreeSet<TreeId> =
            [TreeId::BLOCK_GROUP, TreeId::DEV].into_iter().filter(|tree| before.is_unreadable(*tree)).collect();
        rebuilt.extend(present.is_incomplete.then_some(TreeId::EXTENT));
        rebuilt.extend(has_free_space_tree.then_some(TreeId::FREE_SPACE));
        let has_lost_roots = self.session.found_root_tree.is_some();
        rebuilt.extend(has_lost_roots.then_some(TreeId::ROOT));

        let changed = self.changed_session();
        let survey = Survey::of(&changed);
        let owner_of = |extent: &Extent| extent.block.and_then(|_| survey.blocks.get(&extent.start)).map(|at| at.owner);
        let (own, external): (Vec<Extent>, Vec<Extent>) = wanted(&changed, &survey, &present)
            .into_iter()
            .partition(|extent| owner_of(extent).is_some_and(records_space));
        // Blocks of trees that are rebuilt are no longer used.
        let stays = |extent: &Extent| owner_of(extent).is_none_or(|owner| !rebuilt.contains(&owner));
        let own: BTreeMap<Logical, Extent> =
            own.into_iter().filter(stays).map(|extent| (extent.start, extent)).collect();

        let group_tree = if has_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
        let root = |tree: TreeId| self.root(tree).filter(|_| !rebuilt.contains(&tree));
        let mut records = Records {
            groups: root(group_tree).map_or(Ok(BTreeMap::new()), |root| group_items(self.session, root))?,
            own: own.clone(),
            ..Records::default()
        };
        let external_groups = groups(self.session, &external);
        let external_use = used_by(external.iter());
        let all = sorted(external.iter().chain(own.values()));
        let first = ExtentEdits::between(self.session, root(TreeId::EXTENT), &all)?;
        let mut changes = SpaceChanges {
            extents_changed: first.changed,
            extents_added: first.added,
            extents_removed: first.removed,
            device_extents: self.edit_devices(rebuilt.contains(&TreeId::DEV))?,
            ..SpaceChanges::default()
        };
        let mut extent_edits = first.batch;
        for round in 0..MAX_ROUNDS {
            let is_first = round == 0;
            let now = self.own_blocks(&own);
            extent_edits.append(self.own_extents(&records.own, &now))?;
            records.own = now;
            let mut all_groups = external_groups.clone();
            add_use(&mut all_groups, records.own.values());
            let group_items = group_items_of(&all_groups);
            let group_edits = difference(&records.groups, &group_items);
            if is_first {
                changes.groups = group_edits.len() as u64;
            }
            records.groups = group_items;
            let mut has_changed = is_first || !extent_edits.is_empty() || !group_edits.is_empty();
            if has_group_tree {
                self.change(TreeId::BLOCK_GROUP, &group_edits, is_first && rebuilt.contains(&TreeId::BLOCK_GROUP))?;
            } else {
                extent_edits.append(group_edits)?;
            }
            self.change(TreeId::EXTENT, &extent_edits, is_first && rebuilt.contains(&TreeId::EXTENT))?;
            extent_edits = EditBatch::new();
            if has_free_space_tree {
                let mut used = external_use.clone();
                records.own.values().for_each(|extent| used.insert(extent.start.0, extent.end()));
                let items = free_space_items(&all_groups, &used);
                let edits = difference(&records.free_space, &items);
                has_changed |= !edits.is_empty();
                records.free_space = items;
                self.change(TreeId::FREE_SPACE, &edits, is_first)?;
            }
            let mut edits = std::mem::take(&mut self.root_tree);
            let items = self.root_items();
            edits.append(difference(&records.roots, &items))?;
            records.roots = items;
            has_changed |= !edits.is_empty();
            self.change(TreeId::ROOT, &edits, is_first && has_lost_roots)?;
            if !has_changed {
                self.publish(&all_groups)?;
                return Ok(changes);
            }
        }
        Err(Error::NoSpace)
    }

    /// Returns the blocks of the trees that record space, as they are by now.
    fn own_blocks(&self, before: &BTreeMap<Logical, Extent>) -> BTreeMap<Logical, Extent> {
        let mut blocks = before.clone();
        for node in &self.nodes.replaced {
            blocks.remove(&node.bytenr);
        }
        for (at, (owner, level)) in self.nodes.new.iter().filter(|(_, (owner, _))| records_space(*owner)) {
            let node = self.dirty.get(*at).and_then(|block| Some(block.node().ok()?.first_key()));
            let extent = Extent {
                start: *at,
                length: self.session.geometry.node_size.into(),
                block: Some((*level, node.flatten().unwrap_or_default())),
                generation: self.generation,
                refs: vec![InlineRef::TreeBlock { root: *owner }],
                is_full: false,
            };
            blocks.insert(*at, extent);
        }
        blocks
    }

    /// Returns the edits of the extent tree for blocks that came, went or changed.
    fn own_extents(&self, before: &BTreeMap<Logical, Extent>, now: &BTreeMap<Logical, Extent>) -> EditBatch {
        let has_skinny_metadata = self.session.has_skinny_metadata();
        let items = |extent: &Extent| extent.items(has_skinny_metadata, self.session.geometry.node_size, None);
        let mut edits = EditBatch::new();
        for (at, extent) in before {
            if now.get(at) != Some(extent) {
                for (key, _) in items(extent) {
                    edits.delete(key);
                }
            }
        }
        for (at, extent) in now {
            if before.get(at) != Some(extent) {
                for (key, bytes) in items(extent) {
                    edits.put(key, bytes);
                }
            }
        }
        edits
    }

    /// Makes the device extents those of the chunks, and the device items agree with them. Returns
    /// how many extents that changed.
    fn edit_devices(&mut self, rebuilt: bool) -> Result<u64> {
        let wanted = device_extents(self.session);
        let mut present = BTreeMap::new();
        let mut others = EditBatch::new();
        if let Some(root) = self.session.root_of(TreeId::DEV) {
            for item in self.session.tree(root, rebuilt).range(Key::MIN..=Key::MAX) {
                let item = item?;
                if item.key.item_type == ItemType::DEV_EXTENT {
                    present.insert(item.key, item.to_vec());
                } else {
                    others.put(item.key, item.to_vec());
                }
            }
        }
        let mut edits = difference(&present, &wanted);
        let count = edits.len() as u64;
        if rebuilt {
            edits = difference(&BTreeMap::new(), &wanted);
            edits.append(others)?;
        }
        self.change(TreeId::DEV, &edits, rebuilt)?;
        self.edit_device_items(&wanted)?;
        Ok(count)
    }

    /// Makes the items of devices in the chunk tree say how much of each device is in use.
    fn edit_device_items(&mut self, extents: &BTreeMap<Key, Vec<u8>>) -> Result<()> {
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        for (key, bytes) in extents {
            let length = DevExtent::parse(bytes).map_or(0, |extent| extent.length);
            *used.entry(key.objectid).or_default() += length;
        }
        let mut edits = EditBatch::new();
        for item in self.session.volume.devices().items() {
            let bytes_used = used.get(&item.devid.0).copied().unwrap_or_default();
            let right = DevItem { bytes_used, ..item };
            if right != item {
                let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, item.devid.0);
                edits.put(key, right.to_bytes());
                self.session.volume.devices().set_item(right)?;
            }
        }
        self.change(TreeId::CHUNK, &edits, false)
    }

    /// Returns the root items of all trees that have changed.
    fn root_items(&self) -> BTreeMap<Key, Vec<u8>> {
        let mut items = BTreeMap::new();
        for root in self.roots.values().filter(|root| ![TreeId::ROOT, TreeId::CHUNK].contains(&root.owner)) {
            let known = self.session.root_item(root.owner);
            let (key, mut item) = known.map_or_else(
                || (Key::new(root.owner.0, ItemType::ROOT_ITEM, 0), new_root_item(root.owner)),
                |(key, item)| (*key, item.clone()),
            );
            let is_current = item.generation_v2 == item.generation;
            (item.bytenr, item.level, item.generation) = (root.bytenr, root.level, root.generation);
            if is_current {
                item.generation_v2 = root.generation;
            }
            items.insert(key, item.to_bytes());
        }
        items
    }

    /// Makes the new blocks durable, and then the superblock that refers to them.
    fn publish(mut self, groups: &[Group]) -> Result<()> {
        let nodes = self.submit()?;
        let volume = &self.session.volume;
        let writer = volume.writer();
        let flushed = writer.flush(writer.wait_all([])?, nodes)?;

        let mut next = self.session.superblock.clone();
        let was_current = |generation: Generation| generation == self.session.superblock.generation;
        if was_current(next.uuid_tree_generation) {
            next.uuid_tree_generation = self.generation;
        }
        next.generation = self.generation;
        if let Some(root) = self.root(TreeId::ROOT) {
            (next.root, next.root_level) = (root.bytenr, root.level);
        }
        if let Some(root) = self.root(TreeId::CHUNK) {
            next.chunk_root = root.bytenr;
            (next.chunk_root_level, next.chunk_root_generation) = (root.level, root.generation);
        }
        next.bytes_used = groups.iter().map(|group| group.used).sum();
        let items = volume.devices().items();
        next.num_devices = items.len() as u64;
        next.total_bytes = items.iter().map(|item| item.total_bytes).sum();
        next.sys_chunk_array = Vec::new();
        for (start, chunk) in volume.chunk_map().all() {
            if chunk.flags.contains(BlockGroupFlags::SYSTEM) {
                let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0);
                encode_sys_chunk(&mut next.sys_chunk_array, key, &chunk);
            }
        }
        if next.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
            next.compat_ro = next.compat_ro.with(CompatRo::FREE_SPACE_TREE_VALID);
        }
        // The trees of earlier commits may have been damaged in the same way.
        next.backup_roots = Default::default();
        let backup = |tree| {
            self.root(tree).map_or((Logical(0), Generation(0), 0), |root| (root.bytenr, root.generation, root.level))
        };
        let trees = [TreeId::ROOT, TreeId::CHUNK, TreeId::EXTENT, TreeId::FS, TreeId::DEV, TreeId::CSUM];
        next.backup_roots[0] = BackupRoot {
            trees: trees.map(backup),
            total_bytes: next.total_bytes,
            bytes_used: next.bytes_used,
            num_devices: next.num_devices,
        };
        let _ = volume.superblocks().write(&next, Copies::All, flushed)?;
        Ok(())
    }
}

/// What the trees that record space say by now, as far as this commit has written it.
#[derive(Default)]
struct Records {
    /// Blocks of these trees themselves.
    own: BTreeMap<Logical, Extent>,
    groups: BTreeMap<Key, Vec<u8>>,
    free_space: BTreeMap<Key, Vec<u8>>,
    roots: BTreeMap<Key, Vec<u8>>,
}

/// The root item of a tree that had none.
fn new_root_item(tree: TreeId) -> RootItem {
    let root_dirid = if tree == TreeId::DATA_RELOC { Ino::ROOT_DIR } else { Ino(0) };
    RootItem { refs: 1, root_dirid, ..RootItem::default() }
}

/// Whether the blocks of this tree change while space is recorded.
fn records_space(tree: TreeId) -> bool {
    [TreeId::ROOT, TreeId::EXTENT, TreeId::CHUNK, TreeId::DEV, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP].contains(&tree)
}

fn sorted<'a>(extents: impl Iterator<Item = &'a Extent>) -> Vec<Extent> {
    let mut all: Vec<Extent> = extents.cloned().collect();
    all.sort_by_key(|extent| extent.start);
    all
}

/// Returns the edits that make some items others.
fn difference(before: &BTreeMap<Key, Vec<u8>>, after: &BTreeMap<Key, Vec<u8>>) -> EditBatch {
    let mut edits = EditBatch::new();
    for key in before.keys().filter(|key| !after.contains_key(key)) {
        edits.delete(*key);
    }
    for (key, bytes) in after.iter().filter(|(key, bytes)| before.get(key) != Some(bytes)) {
        edits.put(*key, bytes.clone());
    }
    edits
}

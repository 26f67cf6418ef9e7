//! Changes, copies and drops trees that share nodes at random. The references in the extent tree
//! must be those that a walk over all trees finds (invariant 20).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use ubtrfs_format::items::{
    Compression, DataRef, ExtentFlags, ExtentItem, FileExtent, FileExtentKind, InlineRef, decode_data_ref,
    decode_shared_data_ref,
};
use ubtrfs_format::{
    ChecksumType, Generation, Header, Ino, InternalBuilder, ItemType, Key, LeafBuilder, Logical, Node, NodeExpectation,
    TreeId, Uuid,
};
use ubtrfs_tree::{
    Block, BoxError, DirtyNodes, EditBatch, FreedNode, Geometry, NodeAllocator, NodeCache, NodeSource, Root, Snapshot,
    Walk, merge,
};

use super::block_refs::BlockRefs;
use super::data_refs::{By, DataRefDeltas, change_extent, put_new_extent};
use super::extent_refs::User;

const NODE: u32 = 4096;
const DATA: u64 = 1 << 40;

#[derive(Default)]
struct Disk(Mutex<HashMap<Logical, Vec<u8>>>);

impl NodeSource for Disk {
    fn read_node(&self, expected: &NodeExpectation) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.lock().get(&expected.bytenr).cloned().ok_or("no such block")?)
    }
}

/// Allocates the nodes of one commit. Old nodes are freed through `refs`; nodes of the extent tree
/// itself, which has none, are not counted.
struct Nodes<'a, 'b> {
    next: &'a mut u64,
    refs: Option<&'a mut BlockRefs<'b>>,
    new: BTreeMap<Logical, (TreeId, u8)>,
}

impl NodeAllocator for Nodes<'_, '_> {
    fn allocate(&mut self, owner: TreeId, level: u8) -> ubtrfs_tree::Result<Logical> {
        *self.next += u64::from(NODE);
        self.new.insert(Logical(*self.next), (owner, level));
        Ok(Logical(*self.next))
    }

    fn free(&mut self, node: FreedNode) -> ubtrfs_tree::Result<()> {
        if node.born_in_this_commit {
            self.new.remove(&node.bytenr);
        } else if let Some(refs) = &mut self.refs {
            refs.free(&node).map_err(ubtrfs_tree::Error::allocator)?;
        }
        Ok(())
    }

    fn unshare(&mut self, tree: TreeId, node: &Block) -> ubtrfs_tree::Result<()> {
        let refs = self.refs.as_mut().expect("the extent tree shares nothing");
        refs.unshare(tree, node).map(drop).map_err(ubtrfs_tree::Error::allocator)
    }
}

/// A subvolume, and the content that it must have.
#[derive(Clone)]
struct Subvolume {
    root: Root,
    last_snapshot: Generation,
    items: BTreeMap<Key, Vec<u8>>,
}

struct Bed {
    disk: Arc<Disk>,
    cache: Arc<NodeCache>,
    geometry: Geometry,
    generation: Generation,
    next: u64,
    next_data: u64,
    next_tree: u64,
    extents: Root,
    trees: BTreeMap<TreeId, Subvolume>,
}

/// A change of one subvolume in a commit: so many keys from the first one on.
#[derive(Clone, Debug)]
struct Change {
    tree: usize,
    from: u64,
    count: u64,
    delete: bool,
    seed: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Change>),
    Snapshot(usize),
    Drop(usize),
}

fn key(number: u64) -> Key {
    let kind = if number.is_multiple_of(3) { ItemType::EXTENT_DATA } else { ItemType::XATTR_ITEM };
    Key::new(256 + number, kind, 0)
}

fn extent_item(at: u64, generation: Generation) -> Vec<u8> {
    let kind = FileExtentKind::Regular {
        disk_bytenr: Logical(at),
        disk_num_bytes: 4096,
        offset: 0,
        num_bytes: 4096,
        prealloc: false,
    };
    FileExtent { generation, ram_bytes: 4096, compression: Compression::None, kind }.to_bytes()
}

impl Bed {
    fn new() -> Self {
        let geometry = Geometry {
            node_size: NODE,
            sector_size: 4096,
            fsid: Uuid::NIL,
            chunk_tree_uuid: Uuid::NIL,
            checksum: ChecksumType::Crc32c,
        };
        let disk = Arc::new(Disk::default());
        let cache = Arc::new(NodeCache::new(disk.clone(), geometry, 16 << 20));
        let extents = Root { owner: TreeId::EXTENT, bytenr: Logical(0), generation: Generation(0), level: 0 };
        let mut bed = Self {
            disk,
            cache,
            geometry,
            generation: Generation(5),
            next: 1 << 20,
            next_data: DATA,
            next_tree: 256,
            extents,
            trees: BTreeMap::new(),
        };
        let mut dirty = DirtyNodes::new(bed.generation, geometry);
        let mut nodes = Nodes { next: &mut bed.next, refs: None, new: BTreeMap::new() };
        let mut make = |owner| {
            let edits = EditBatch::new();
            merge(&bed.cache, None, owner, &edits, &mut dirty, &mut nodes, Generation(0), &mut |_, _| {}).unwrap()
        };
        bed.extents = make(TreeId::EXTENT);
        let root = make(TreeId::FS);
        bed.trees.insert(TreeId::FS, Subvolume { root, last_snapshot: Generation(0), items: BTreeMap::new() });
        bed.submit(dirty);
        let mut edits = EditBatch::new();
        put_block(&mut edits, root.bytenr, (TreeId::FS, 0), bed.generation);
        bed.change_extents(&edits);
        bed
    }

    fn submit(&self, dirty: DirtyNodes) {
        let blocks = dirty.into_sealed();
        self.disk.0.lock().extend(blocks.into_iter().map(|(at, block)| (at, block.to_vec())));
    }

    fn extent_tree(&self) -> Snapshot {
        Snapshot::new(self.cache.clone(), self.extents)
    }

    fn change_extents(&mut self, edits: &EditBatch) {
        self.generation = self.generation.next();
        let mut dirty = DirtyNodes::new(self.generation, self.geometry);
        let mut nodes = Nodes { next: &mut self.next, refs: None, new: BTreeMap::new() };
        let (root, none) = (Some(self.extents), Generation(0));
        self.extents =
            merge(&self.cache, root, TreeId::EXTENT, edits, &mut dirty, &mut nodes, none, &mut |_, _| {}).unwrap();
        self.submit(dirty);
    }

    fn pick(&self, number: usize) -> TreeId {
        *self.trees.keys().nth(number % self.trees.len()).unwrap()
    }

    /// Returns edits of one subvolume, and applies them to its model.
    fn edits(&mut self, change: &Change, generation: Generation, deltas: &mut DataRefDeltas) -> (TreeId, EditBatch) {
        let id = self.pick(change.tree);
        let known: Vec<u64> =
            self.trees.values().flat_map(|tree| tree.items.values()).filter_map(|i| data_of(i)).collect();
        let tree = self.trees.get_mut(&id).unwrap();
        let mut edits = EditBatch::new();
        if change.delete {
            let (first, last) = (key(change.from), Key::new(256 + change.from + change.count, ItemType(255), u64::MAX));
            tree.items.retain(|key, _| *key < first || *key > last);
            edits.delete_range(first..=last);
            return (id, edits);
        }
        for number in change.from..change.from + change.count.min(12) {
            let key = key(number);
            let item = if key.item_type == ItemType::EXTENT_DATA {
                let reused = known.get((change.seed as usize).wrapping_add(number as usize) % (2 * known.len().max(1)));
                let at = reused.copied().unwrap_or_else(|| {
                    self.next_data += 4096;
                    self.next_data
                });
                let user = User::File(DataRef { root: id, ino: Ino(key.objectid), offset: 0 });
                deltas.add(Logical(at), 4096, user, 1);
                extent_item(at, generation)
            } else {
                vec![change.seed as u8; 1 + (change.seed % 900) as usize]
            };
            tree.items.insert(key, item.clone());
            edits.put(key, item);
        }
        (id, edits)
    }

    fn commit(&mut self, changes: &[Change]) {
        let generation = self.generation.next();
        let mut deltas = DataRefDeltas::default();
        let batches: Vec<_> = changes.iter().map(|change| self.edits(change, generation, &mut deltas)).collect();
        self.merge_all(&batches, deltas, |_, _| {});
    }

    /// Merges the batches, in this order, and changes the extent tree. `more` may make further
    /// changes of references.
    fn merge_all(
        &mut self,
        batches: &[(TreeId, EditBatch)],
        mut deltas: DataRefDeltas,
        more: impl FnOnce(&mut Self, &mut BlockRefs<'_>),
    ) {
        self.generation = self.generation.next();
        let generation = self.generation;
        let extent_tree = self.extent_tree();
        let mut refs = BlockRefs::new(&extent_tree, NODE as usize);
        let mut dirty = DirtyNodes::new(generation, self.geometry);
        let mut next = self.next;
        let mut nodes = Nodes { next: &mut next, refs: Some(&mut refs), new: BTreeMap::new() };
        for (id, edits) in batches {
            let tree = self.trees.get_mut(id).unwrap();
            tree.root = merge(
                &self.cache,
                Some(tree.root),
                *id,
                edits,
                &mut dirty,
                &mut nodes,
                tree.last_snapshot,
                &mut |key, item| {
                    if key.item_type == ItemType::EXTENT_DATA {
                        deltas.item_removed(*id, key, item).unwrap();
                    }
                },
            )
            .unwrap();
        }
        let new = nodes.new;
        self.next = next;
        self.submit(dirty);
        more(self, &mut refs);
        let mut edits = EditBatch::new();
        for (at, node) in new {
            put_block(&mut edits, at, node, generation);
        }
        deltas.append(std::mem::take(&mut refs.data));
        for delta in deltas.take_sums().extents() {
            let key = Key::new(delta.start.0, ItemType::EXTENT_ITEM, delta.length);
            if extent_tree.get(&key).unwrap().is_some() {
                change_extent(&extent_tree, &delta, NODE as usize, &mut edits).unwrap();
            } else {
                put_new_extent(&delta, generation, NODE as usize, &mut edits).unwrap();
            }
        }
        refs.take_edits(&mut edits);
        self.change_extents(&edits);
    }

    /// Creates a tree that begins with a copy of another one's root, as a snapshot does.
    fn snapshot(&mut self, number: usize) {
        let (source, new) = (self.pick(number), TreeId(self.next_tree));
        self.next_tree += 1;
        self.next += u64::from(NODE);
        let at = Logical(self.next);
        let generation = self.generation.next();
        let mut copy = self.trees[&source].clone();
        let bytes = copied(&self.disk.0.lock()[&copy.root.bytenr], at, new, generation);
        let level = copy.root.level;
        copy.root = Root { owner: new, bytenr: at, generation, level };
        copy.last_snapshot = generation;
        self.trees.get_mut(&source).unwrap().last_snapshot = generation;
        let block = Block::from(bytes.clone());
        self.disk.0.lock().insert(at, bytes);
        self.trees.insert(new, copy);
        self.merge_all(&[], DataRefDeltas::default(), |_, refs| {
            refs.change_children(&block.node().unwrap(), level, By::Tree(new), 1).unwrap();
        });
        let mut edits = EditBatch::new();
        put_block(&mut edits, at, (new, level), generation);
        self.change_extents(&edits);
    }

    /// Deletes all items of a tree, and then the tree.
    fn drop_tree(&mut self, number: usize) {
        if self.trees.len() == 1 {
            return;
        }
        let id = self.pick(number);
        let mut edits = EditBatch::new();
        edits.delete_range(Key::MIN..=Key::MAX);
        self.merge_all(&[(id, edits)], DataRefDeltas::default(), |_, _| {});
        let Root { bytenr, generation, level, .. } = self.trees.remove(&id).unwrap().root;
        self.merge_all(&[], DataRefDeltas::default(), |_, refs| {
            let node = FreedNode { bytenr, tree: id, generation, level, born_in_this_commit: false };
            assert!(refs.free(&node).unwrap());
        });
    }

    /// Returns the records of the extent tree: flags and users of each extent.
    fn recorded(&self) -> BTreeMap<u64, (u64, BTreeMap<User, u64>)> {
        let mut extents: BTreeMap<u64, (u64, u64, BTreeMap<User, u64>)> = BTreeMap::new();
        for item in self.extent_tree().range(Key::MIN..=Key::MAX) {
            let item = item.unwrap();
            let Key { objectid, item_type, offset } = item.key;
            if matches!(item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
                let extent = ExtentItem::parse(&item.key, &item).unwrap();
                assert!(item.len() <= ExtentItem::max_inline_size(NODE as usize));
                let users = extent.inline_refs.iter().map(|reference| match *reference {
                    InlineRef::TreeBlock { root } => (User::Tree(root), 1),
                    InlineRef::SharedBlock { parent } => (User::Block(parent), 1),
                    InlineRef::Data { data, count } => (User::File(data), count.into()),
                    InlineRef::SharedData { parent, count } => (User::Leaf(parent), count.into()),
                    InlineRef::Owner { .. } => panic!("nobody made that"),
                });
                let before = extents.insert(objectid, (extent.refs, extent.flags, users.collect()));
                assert!(before.is_none(), "two items of one extent");
                continue;
            }
            let (user, count) = match item_type {
                ItemType::TREE_BLOCK_REF => (User::Tree(TreeId(offset)), 1),
                ItemType::SHARED_BLOCK_REF => (User::Block(Logical(offset)), 1),
                ItemType::SHARED_DATA_REF => (User::Leaf(Logical(offset)), decode_shared_data_ref(&item).unwrap()),
                _ => {
                    let (data, count) = decode_data_ref(&item).unwrap();
                    (User::File(data), count)
                }
            };
            let users = &mut extents.get_mut(&objectid).expect("a reference without an extent").2;
            assert!(users.insert(user, count.into()).is_none(), "two references of one user");
        }
        extents
            .into_iter()
            .map(|(at, (refs, flags, users))| {
                assert_eq!(refs, users.values().sum::<u64>(), "references of {at}");
                (at, (flags, users))
            })
            .collect()
    }

    /// Compares the extent tree with all trees, and each tree with its model.
    fn check(&self) {
        let recorded = self.recorded();
        let mut found: BTreeMap<u64, BTreeMap<User, u64>> = BTreeMap::new();
        let mut seen = std::collections::BTreeSet::new();
        for (id, tree) in &self.trees {
            let snapshot = Snapshot::new(self.cache.clone(), tree.root);
            let items: BTreeMap<Key, Vec<u8>> = snapshot
                .range(Key::MIN..=Key::MAX)
                .map(|item| item.map(|item| (item.key, item.to_vec())).unwrap())
                .collect();
            assert_eq!(items, tree.items, "tree {id}");
            *found.entry(tree.root.bytenr.0).or_default().entry(User::Tree(*id)).or_default() += 1;
            snapshot.walk(&mut |at, block| {
                if !seen.insert(at.bytenr) {
                    return Walk::Skip;
                }
                let block = block.unwrap();
                let owner = block.header().unwrap().owner;
                let full = recorded[&at.bytenr.0].0 & ExtentFlags::FULL_BACKREF != 0;
                match block.node().unwrap() {
                    Node::Leaf(leaf) => {
                        for (key, item) in leaf.iter() {
                            let Some(data) = data_of(item) else { continue };
                            let file = DataRef { root: owner, ino: Ino(key.objectid), offset: 0 };
                            let user = if full { User::Leaf(at.bytenr) } else { User::File(file) };
                            *found.entry(data).or_default().entry(user).or_default() += 1;
                        }
                    }
                    Node::Internal(node) => {
                        for child in node.iter() {
                            let user = if full { User::Block(at.bytenr) } else { User::Tree(owner) };
                            *found.entry(child.bytenr.0).or_default().entry(user).or_default() += 1;
                        }
                    }
                }
                Walk::Descend
            });
        }
        let recorded: BTreeMap<_, _> = recorded.into_iter().map(|(at, (_, users))| (at, users)).collect();
        assert_eq!(recorded, found);
    }
}

fn data_of(item: &[u8]) -> Option<u64> {
    match FileExtent::parse(item).ok()?.kind {
        FileExtentKind::Regular { disk_bytenr, .. } if disk_bytenr.0 > DATA && disk_bytenr.0 < 2 * DATA => {
            Some(disk_bytenr.0)
        }
        _ => None,
    }
}

/// Returns a copy of a node for another tree.
fn copied(block: &[u8], at: Logical, owner: TreeId, generation: Generation) -> Vec<u8> {
    let header = Header { bytenr: at, owner, generation, ..Header::parse(block).unwrap() };
    let mut bytes = vec![0; NODE as usize];
    match Node::view(block).unwrap() {
        Node::Leaf(leaf) => {
            let mut builder = LeafBuilder::new(&mut bytes);
            leaf.iter().for_each(|(key, item)| builder.push(key, item).unwrap());
            builder.finish(header);
        }
        Node::Internal(node) => {
            let mut builder = InternalBuilder::new(&mut bytes);
            node.iter().for_each(|child| builder.push(child).unwrap());
            builder.finish(header);
        }
    }
    bytes
}

fn put_block(edits: &mut EditBatch, at: Logical, (owner, level): (TreeId, u8), generation: Generation) {
    let item = ExtentItem {
        refs: 1,
        generation,
        flags: ExtentFlags::TREE_BLOCK,
        tree_block: None,
        inline_refs: vec![InlineRef::TreeBlock { root: owner }],
    };
    edits.put(Key::new(at.0, ItemType::METADATA_ITEM, level.into()), item.to_bytes());
}

fn change() -> impl Strategy<Value = Change> {
    (any::<usize>(), 0..1200_u64, 1..60_u64, prop::bool::weighted(0.3), any::<u64>())
        .prop_map(|(tree, from, count, delete, seed)| Change { tree, from, count, delete, seed })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(change(), 1..4).prop_map(Step::Commit),
        3 => any::<usize>().prop_map(Step::Snapshot),
        1 => any::<usize>().prop_map(Step::Drop),
    ]
}

/// Creates a tree of three levels.
fn filled() -> Bed {
    let mut bed = Bed::new();
    for from in (0..1200).step_by(12) {
        bed.commit(&[Change { tree: 0, from, count: 12, delete: false, seed: 880 }]);
    }
    assert_eq!(bed.trees[&TreeId::FS].root.level, 2);
    bed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn references_are_those_that_the_trees_make(steps in prop::collection::vec(step(), 1..25)) {
        let mut bed = filled();
        for step in &steps {
            match step {
                Step::Commit(changes) => bed.commit(changes),
                Step::Snapshot(number) => bed.snapshot(*number),
                Step::Drop(number) => bed.drop_tree(*number),
            }
            bed.check();
        }
    }
}

/// There are more references than an item can hold inline.
#[test]
fn many_snapshots_of_one_tree_change_and_go() {
    let mut bed = filled();
    (0..40).for_each(|_| bed.snapshot(0));
    bed.check();
    for tree in 0..40 {
        bed.commit(&[Change { tree, from: 100 + 3 * tree as u64, count: 6, delete: tree % 2 == 1, seed: 7 }]);
    }
    bed.check();
    while bed.trees.len() > 1 {
        bed.drop_tree(bed.trees.len() / 2);
    }
    bed.check();
}

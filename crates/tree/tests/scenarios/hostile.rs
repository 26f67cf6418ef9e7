//! Damaged and malicious trees give values or errors, in bounded time, never a panic (invariant
//! 14), and no node is used that does not fit its place (invariant 11).

use std::sync::Arc;

use crate::common::{Bed, Disk, Space, geometry};
use parking_lot::Mutex;
use ubtrfs_format::{
    BACKREF_REV_MIXED, ChildPointer, Generation, Header, InternalBuilder, ItemType, Key, LeafBuilder, Logical, Node,
    NodeFlags, TreeId,
};
use ubtrfs_random::Rng;
use ubtrfs_tree::{Damage, DirtyNodes, EditBatch, Error, NodeAllocator, NodeCache, Root, Snapshot, Walk, merge};

const NODE_SIZE: u32 = 4096;

fn key(objectid: u64) -> Key {
    Key::new(objectid, ItemType::EXTENT_DATA, 0)
}

fn header(bytenr: u64, owner: TreeId, level: u8) -> Header {
    let geometry = geometry(NODE_SIZE);
    Header {
        fsid: geometry.fsid,
        bytenr: Logical(bytenr),
        flags: NodeFlags::WRITTEN | BACKREF_REV_MIXED,
        chunk_tree_uuid: geometry.chunk_tree_uuid,
        generation: Generation(7),
        owner,
        nritems: 0,
        level,
    }
}

/// A disk that does not verify checksums.
struct Forged {
    disk: Arc<Disk>,
    cache: Arc<NodeCache>,
}

impl Forged {
    fn new() -> Self {
        let geometry = geometry(NODE_SIZE);
        let disk = Arc::new(Disk { blocks: Mutex::default(), checksums: false, geometry });
        Self { cache: Arc::new(NodeCache::new(disk.clone(), geometry, 0)), disk }
    }

    fn leaf(&self, bytenr: u64, owner: TreeId, keys: &[u64]) {
        let mut block = vec![0; NODE_SIZE as usize];
        let mut builder = LeafBuilder::new(&mut block);
        for objectid in keys {
            builder.push(key(*objectid), b"item").unwrap();
        }
        builder.finish(header(bytenr, owner, 0));
        self.disk.blocks.lock().insert(Logical(bytenr), block);
    }

    fn internal(&self, bytenr: u64, level: u8, children: &[(u64, u64)]) {
        let mut block = vec![0; NODE_SIZE as usize];
        let mut builder = InternalBuilder::new(&mut block);
        for (objectid, child) in children {
            let pointer = ChildPointer { key: key(*objectid), bytenr: Logical(*child), generation: Generation(7) };
            builder.push(pointer).unwrap();
        }
        builder.finish(header(bytenr, TreeId::FS, level));
        self.disk.blocks.lock().insert(Logical(bytenr), block);
    }

    fn tree(&self, owner: TreeId, bytenr: u64, level: u8) -> Snapshot {
        let root = Root { owner, bytenr: Logical(bytenr), generation: Generation(7), level };
        Snapshot::new(self.cache.clone(), root)
    }
}

#[test]
fn a_leaf_that_reaches_into_its_neighbours_range_is_refused() {
    let forged = Forged::new();
    forged.leaf(4096, TreeId::FS, &[1, 2, 9]);
    forged.leaf(8192, TreeId::FS, &[5, 6]);
    forged.internal(12288, 1, &[(1, 4096), (5, 8192)]);
    let tree = forged.tree(TreeId::FS, 12288, 1);
    assert!(matches!(tree.get(&key(1)), Err(Error::KeyBeyondRange { key: found, .. }) if found == key(9)));
    assert!(tree.get(&key(6)).unwrap().is_some());
    let mut shown = Vec::new();
    tree.walk(&mut |at, block| {
        shown.push((at.bytenr.0, block.is_ok()));
        Walk::Descend
    });
    assert_eq!(shown, [(12288, true), (4096, false), (8192, true)]);
}

#[test]
fn levels_that_do_not_descend_are_refused_also_when_the_node_is_cached() {
    let forged = Forged::new();
    forged.internal(4096, 1, &[(1, 4096)]);
    let tree = forged.tree(TreeId::FS, 4096, 1);
    let mut blocks = 0;
    assert!(tree.get(&key(1)).is_err());
    assert!(tree.range(Key::MIN..=Key::MAX).take(10).next().unwrap().is_err());
    assert_eq!(tree.range(Key::MIN..=Key::MAX).take(10).count(), 1, "nothing follows an error");
    tree.walk(&mut |_, _| {
        blocks += 1;
        Walk::Descend
    });
    assert_eq!(blocks, 2);
    for level in [0, 2, 8, 255] {
        assert!(forged.tree(TreeId::FS, 4096, level).get(&key(1)).is_err());
    }
}

#[test]
fn owners_must_fit_the_tree() {
    let forged = Forged::new();
    forged.leaf(4096, TreeId(300), &[1]);
    assert!(forged.tree(TreeId(300), 4096, 0).get(&key(1)).is_ok());
    assert!(forged.tree(TreeId::FS, 4096, 0).get(&key(1)).is_ok(), "subvolumes share nodes");
    assert!(forged.tree(TreeId::EXTENT, 4096, 0).get(&key(1)).is_err());
    forged.leaf(8192, TreeId::CSUM, &[1]);
    assert!(forged.tree(TreeId::CSUM, 8192, 0).get(&key(1)).is_ok());
    assert!(forged.tree(TreeId::FS, 8192, 0).get(&key(1)).is_err());
    assert!(forged.tree(TreeId::EXTENT, 8192, 0).get(&key(1)).is_err());
}

#[test]
fn an_empty_leaf_is_only_a_root() {
    let forged = Forged::new();
    forged.leaf(4096, TreeId::FS, &[]);
    forged.internal(8192, 1, &[(1, 4096)]);
    assert!(forged.tree(TreeId::FS, 4096, 0).get(&key(1)).unwrap().is_none());
    assert!(forged.tree(TreeId::FS, 8192, 1).get(&key(1)).is_err());
}

#[test]
fn a_tree_whose_nodes_have_many_parents_is_walked_in_linear_time() {
    // Every node points to nearly all nodes of the level below. A naive walk would take 100^6
    // paths.
    let forged = Forged::new();
    let place = |level: u64, number: u64| (level * 1000 + number + 1) * 4096;
    for number in 0..100 {
        forged.leaf(place(0, number), TreeId::FS, &[number]);
        for level in 1..7 {
            let children: Vec<_> = (number..100).map(|child| (child, place(level - 1, child))).collect();
            forged.internal(place(level, number), level as u8, &children);
        }
    }
    let children: Vec<_> = (0..100).map(|child| (child, place(6, child))).collect();
    forged.internal(4096 * 9999, 7, &children);
    let mut shown = 0;
    forged.tree(TreeId::FS, 4096 * 9999, 7).walk(&mut |_, _| {
        shown += 1;
        Walk::Descend
    });
    assert!(shown <= 800, "{shown} nodes were shown of 701 that there are");

    // A comparison also takes linear time, up to the first node that reaches too far.
    let tree = forged.tree(TreeId::FS, 4096 * 9999, 7);
    forged.leaf(4096 * 10_000, TreeId::FS, &[1000]);
    let other = forged.tree(TreeId::FS, 4096 * 10_000, 0);
    let before = forged.cache.counters();
    assert!(tree.differences(&other, &(Key::MIN..=Key::MAX)).take(200).count() <= 102);
    let after = forged.cache.counters();
    assert!(after.hits + after.misses - before.hits - before.misses <= 800);
}

#[test]
fn a_walk_skips_and_stops_as_its_visitor_decides() {
    let mut bed = Bed::new(NODE_SIZE);
    let mut batch = EditBatch::new();
    (0..10_000).for_each(|item| batch.put(key(item), [0; 100]));
    bed.commit(&[batch]).unwrap();
    let count = |wanted: &dyn Fn(usize, u8) -> Walk| {
        let mut shown = 0;
        bed.snapshot().walk(&mut |at, _| {
            shown += 1;
            wanted(shown, at.level)
        });
        shown
    };
    let all = count(&|_, _| Walk::Descend);
    assert_eq!(all, bed.space.live.len());
    let internal = bed.space.live.values().filter(|(_, level)| *level > 0).count();
    assert_eq!(count(&|_, level| if level == 1 { Walk::Skip } else { Walk::Descend }), internal);
    assert_eq!(count(&|shown, _| if shown == 50 { Walk::Stop } else { Walk::Descend }), 50);
}

#[test]
fn damaged_nodes_give_values_or_errors() {
    let mut bed = Bed::new(NODE_SIZE);
    let mut batch = EditBatch::new();
    (0..3000).for_each(|item| batch.put(key(item * 3), vec![0; item as usize % 150]));
    bed.commit(&[batch]).unwrap();
    let (root, intact) = (bed.root.unwrap(), bed.disk.blocks.lock().clone());
    let mut random = Rng::new(4711);
    let (mut errors, mut merged) = (0, 0);
    for _ in 0..300 {
        let mut blocks = intact.clone();
        let addresses: Vec<_> = blocks.keys().copied().collect();
        for _ in 0..=random.below(6) {
            let bytenr = addresses[random.below(addresses.len() as u64) as usize];
            let block = blocks.get_mut(&bytenr).unwrap();
            // Most of the structure is at the beginning.
            let at = if random.below(2) == 0 { random.below(300) } else { random.below(NODE_SIZE.into()) } as usize;
            block[at] ^= 1 << random.below(8);
        }
        // The structure is checked as a volume does it, but all checksums are taken for right.
        let disk = Arc::new(Disk { blocks: Mutex::new(blocks), checksums: false, geometry: bed.geometry });
        let cache = Arc::new(NodeCache::new(disk, bed.geometry, 1 << 20));
        let snapshot = Snapshot::new(cache.clone(), root);
        let _ = snapshot.get(&key(random.below(9000)));
        errors += snapshot.range(Key::MIN..=Key::MAX).filter(Result::is_err).count();
        errors += snapshot.range_rev(Key::MIN..=Key::MAX).filter(Result::is_err).count();
        let sound = bed.snapshot();
        for (old, new) in [(&snapshot, &sound), (&sound, &snapshot)] {
            let found: Vec<_> = old.differences(new, &(Key::MIN..=Key::MAX)).take(6002).collect();
            assert!(found.len() <= 6001, "a comparison shows more than there is");
        }
        assert!(snapshot.written_since(Generation(0), &(Key::MIN..=Key::MAX)).count() <= 3001);
        snapshot.walk(&mut |_, block| {
            if let Ok(Node::Leaf(leaf)) = block.map(|block| block.node().unwrap()) {
                assert!(leaf.iter().count() == leaf.len());
            }
            Walk::Descend
        });
        let mut batch = EditBatch::new();
        (0..100).for_each(|_| batch.put(key(random.below(9000)), [1; 50]));
        batch.delete_range(key(random.below(4000))..=key(random.below(9000)));
        let mut dirty = DirtyNodes::new(Generation(50), bed.geometry);
        let result = merge(
            &cache,
            Some(root),
            TreeId::FS,
            &batch,
            &mut dirty,
            &mut Lenient(Space::new(NODE_SIZE)),
            Generation(0),
            &mut |_, _| {},
        );
        merged += usize::from(result.is_ok());
    }
    assert!(errors > 100 && merged > 20, "{errors} errors, {merged} merges went through");
}

/// Damaged pointers may free what was never allocated.
struct Lenient(Space);

impl NodeAllocator for Lenient {
    fn allocate(&mut self, owner: TreeId, level: u8) -> Result<Logical, Error> {
        self.0.allocate(owner, level)
    }

    fn free(&mut self, _: ubtrfs_tree::FreedNode) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn a_range_may_skip_unreadable_nodes_and_notes_them() {
    let forged = Forged::new();
    forged.leaf(4096, TreeId::FS, &[1, 2]);
    forged.leaf(8192, TreeId::FS, &[5, 6]);
    // The node 12288 is missing; 16384 holds keys that belong to its neighbour.
    forged.leaf(16384, TreeId::FS, &[20, 99]);
    forged.leaf(20480, TreeId::FS, &[30, 31]);
    forged.internal(40960, 1, &[(1, 4096), (5, 8192), (10, 12288), (20, 16384), (30, 20480)]);
    let damage = Arc::new(Damage::default());
    let cache = NodeCache::new(forged.disk.clone(), geometry(NODE_SIZE), 0).passing_over(damage.clone());
    let root = Root { owner: TreeId::FS, bytenr: Logical(40960), generation: Generation(7), level: 1 };
    let tree = Snapshot::new(Arc::new(cache), root);
    let all = Key::MIN..=Key::MAX;
    let up: Vec<_> = tree.range(all.clone()).map(|item| item.unwrap().key.objectid).collect();
    assert_eq!(up, [1, 2, 5, 6, 30, 31]);
    assert_eq!((damage.count(), damage.sentences().len()), (2, 2));
    let mut down: Vec<_> = tree.range_rev(all.clone()).map(|item| item.unwrap().key.objectid).collect();
    down.reverse();
    assert_eq!(down, up);
    assert_eq!((damage.count(), damage.sentences().len()), (4, 2), "noted each time, reported once");
    assert_eq!(tree.last_at_or_before(&key(25)).unwrap().unwrap().key, key(6));
    assert!(tree.get(&key(20)).is_err(), "a single item is there, or not, or lost");
    // Without that option it is an error.
    let strict = forged.tree(TreeId::FS, 40960, 1);
    assert!(strict.range(all.clone()).any(|item| item.is_err()));
    // Even the root may be lost.
    forged.disk.blocks.lock().remove(&Logical(40960));
    let cache = NodeCache::new(forged.disk.clone(), geometry(NODE_SIZE), 0).passing_over(damage.clone());
    assert_eq!(Snapshot::new(Arc::new(cache), root).range(all).count(), 0);
    assert_eq!(damage.sentences().len(), 3);
}

//! The nodes that a merge touches, and the loops and states of a commit.

use crate::common::{Bed, scan};
use proptest::prelude::*;
use ubtrfs_format::items::FileType;
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId, max_item_size};
use ubtrfs_random::Rng;
use ubtrfs_tree::{
    DirtyNodes, EditBatch, Error, FreedNode, NodeAllocator, Patch, Root, WorkingTree, merge, patch_in_place,
};

fn key(objectid: u64) -> Key {
    Key::new(objectid, ItemType::EXTENT_DATA, 0)
}

fn filled(node_size: u32, items: u64) -> Bed {
    let mut bed = Bed::new(node_size);
    let mut batch = EditBatch::new();
    (0..items).for_each(|item| batch.put(key(item * 10), vec![item as u8; 100]));
    bed.commit(&[batch]).unwrap();
    bed
}

#[test]
fn a_new_tree_is_one_empty_leaf_and_becomes_that_again() {
    let mut bed = Bed::new(4096);
    bed.commit(&[EditBatch::new()]).unwrap();
    assert_eq!((bed.root.unwrap().level, bed.space.live.len()), (0, 1));
    assert!(scan(&bed.snapshot()).is_empty());
    assert!(bed.snapshot().last_at_or_before(&Key::MAX).unwrap().is_none());

    let mut bed = filled(4096, 10_000);
    assert_eq!(bed.root.unwrap().level, 2);
    let mut batch = EditBatch::new();
    batch.delete_range(Key::MIN..=Key::MAX);
    assert_eq!(bed.commit(&[batch]).unwrap().len(), 10_000);
    bed.check();
    assert_eq!((bed.root.unwrap().level, bed.space.live.len()), (0, 1));
}

#[test]
fn one_put_reads_and_writes_one_path() {
    let mut bed = filled(4096, 10_000);
    let snapshot = bed.cold_snapshot();
    bed.cache = snapshot.cache().clone();
    let before = (bed.space.allocated, bed.space.freed);
    let mut batch = EditBatch::new();
    batch.put(key(40_000), [9; 100]);
    bed.commit(&[batch]).unwrap();
    assert_eq!((bed.space.allocated, bed.space.freed), (before.0 + 3, before.1 + 3));
    assert_eq!(bed.cache.counters().misses, 3);
    bed.check();
}

#[test]
fn a_deleted_range_leaves_the_nodes_beside_it_alone() {
    let mut bed = filled(4096, 10_000);
    let mut addresses = Vec::new();
    bed.snapshot().walk(&mut |at, _| {
        addresses.push((at.level, at.first_key, at.upper, at.bytenr));
        ubtrfs_tree::Walk::Descend
    });
    let leaves: Vec<_> = addresses.into_iter().filter(|(level, ..)| *level == 0).collect();
    // Exactly the leaves 10..=200, from boundary to boundary.
    let (first, last) = (leaves[10].1.unwrap(), leaves[200].2.unwrap());
    let last = Key::new(last.objectid - 1, ItemType(255), u64::MAX);
    let allocated = bed.space.allocated;
    let mut batch = EditBatch::new();
    batch.delete_range(first..=last);
    bed.commit(&[batch]).unwrap();
    bed.check();
    let kept: Vec<_> = leaves[..10].iter().chain(&leaves[201..]).map(|leaf| leaf.3).collect();
    assert!(kept.iter().all(|bytenr| bed.space.live.contains_key(bytenr)));
    assert!(bed.space.allocated - allocated <= 4, "only internal nodes are written");
}

#[test]
fn edits_that_change_nothing_write_nothing() {
    let mut bed = filled(4096, 10_000);
    let (root, allocated) = (bed.root, bed.space.allocated);
    let mut batch = EditBatch::new();
    batch.delete(key(5));
    batch.put(key(50), [5; 100]);
    batch.delete_range(key(61)..=key(69));
    batch.patch(Key::new(1, ItemType::XATTR_ITEM, 1), Patch::RemoveEntry { name: b"gone".into() }).unwrap();
    let removed = bed.commit(&[batch]).unwrap();
    assert_eq!((bed.root, bed.space.allocated), (root, allocated));
    assert_eq!(removed, [(key(50), vec![5; 100])], "a put counts as a replacement even with the same bytes");
}

#[test]
fn nodes_of_the_commit_keep_their_address_and_others_move() {
    let mut bed = filled(4096, 1000);
    let mut dirty = DirtyNodes::new(Generation(100), bed.geometry);
    let mut first = EditBatch::new();
    first.put(key(500), [1; 100]);
    bed.merge(&first, &mut dirty, &mut Vec::new()).unwrap();
    let (root, counts) = (bed.root, (bed.space.allocated, bed.space.freed));
    let mut second = EditBatch::new();
    second.put(key(500), [2; 100]);
    bed.merge(&second, &mut dirty, &mut Vec::new()).unwrap();
    assert_eq!((bed.root, (bed.space.allocated, bed.space.freed)), (root, counts));

    let working = WorkingTree::new(&bed.cache, &dirty, root.unwrap());
    assert_eq!(&*working.get(&key(500)).unwrap().unwrap(), [2; 100]);
    assert_eq!(working.range(Key::MIN..=Key::MAX).count(), 1000);
    patch_in_place(&root.unwrap(), &key(500), &[3; 100], &mut dirty).unwrap();
    for (key, len) in [(key(500), 99), (key(501), 100), (key(9990), 100)] {
        let refused = patch_in_place(&root.unwrap(), &key, &vec![3; len], &mut dirty);
        assert!(matches!(refused, Err(Error::NotInPlace { .. })));
    }
    bed.submit(dirty);
    bed.check();
    assert_eq!(&*bed.cold_snapshot().get(&key(500)).unwrap().unwrap(), [3; 100]);
}

#[test]
fn an_item_held_from_a_working_tree_does_not_change_under_its_reader() {
    let mut bed = Bed::new(4096);
    let mut dirty = DirtyNodes::new(Generation(9), bed.geometry);
    let mut batch = EditBatch::new();
    batch.put(key(1), [1; 8]);
    bed.merge(&batch, &mut dirty, &mut Vec::new()).unwrap();
    let root = bed.root.unwrap();
    let item = WorkingTree::new(&bed.cache, &dirty, root).get(&key(1)).unwrap().unwrap();
    patch_in_place(&root, &key(1), &[2; 8], &mut dirty).unwrap();
    assert_eq!(&*item, [1; 8]);
}

#[test]
fn items_up_to_the_largest_fit_and_larger_ones_are_refused() {
    let mut bed = Bed::new(4096);
    let max = max_item_size(4096);
    let mut batch = EditBatch::new();
    (0..5).for_each(|item| batch.put(key(item), vec![1; max]));
    bed.commit(&[batch]).unwrap();
    bed.check();
    assert_eq!(scan(&bed.snapshot()).len(), 5);
    let mut batch = EditBatch::new();
    batch.put(key(1), vec![1; max + 1]);
    assert!(matches!(bed.commit(&[batch]), Err(Error::ItemTooLarge { size, .. }) if size == max + 1));
}

#[test]
fn nodes_that_a_snapshot_may_share_are_not_changed() {
    let mut bed = filled(4096, 1000);
    bed.last_snapshot = bed.generation;
    let mut batch = EditBatch::new();
    batch.delete(key(5));
    bed.commit(&[batch.clone()]).unwrap();
    batch.put(key(5), [0; 10]);
    assert!(matches!(bed.commit(&[batch]), Err(Error::Shared { .. })));
}

#[test]
fn a_malformed_item_is_not_patched() {
    let mut bed = Bed::new(4096);
    let place = Key::new(256, ItemType::DIR_ITEM, 7);
    let mut batch = EditBatch::new();
    batch.put(place, *b"junk");
    bed.commit(&[batch]).unwrap();
    let mut batch = EditBatch::new();
    let patch = Patch::PutEntry {
        location: key(1),
        transid: Generation(1),
        file_type: FileType::Regular,
        name: b"a".into(),
        value: Vec::new(),
    };
    batch.patch(place, patch).unwrap();
    let leaf = bed.root.unwrap().bytenr;
    let refused = bed.commit(&[batch]).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { key, bytenr, .. } if key == place && bytenr == leaf), "{refused:?}");
}

/// An extent tree, which records each block that it allocates or frees as an edit of itself.
struct ExtentTree {
    pending: EditBatch,
    live: std::collections::BTreeMap<Logical, u8>,
    free: Vec<Logical>,
    /// Addresses that this commit has freed. Only the next commit reuses them.
    pinned: Vec<Logical>,
}

fn block_key(bytenr: Logical, level: u8) -> Key {
    Key::new(bytenr.0, ItemType::METADATA_ITEM, level.into())
}

impl NodeAllocator for ExtentTree {
    fn allocate(&mut self, _owner: TreeId, level: u8) -> Result<Logical, Error> {
        let bytenr = self.free.pop().ok_or_else(|| Error::allocator("full"))?;
        self.live.insert(bytenr, level);
        self.pending.put(block_key(bytenr, level), [3; 33]);
        Ok(bytenr)
    }

    fn free(&mut self, node: FreedNode) -> Result<(), Error> {
        assert_eq!(self.live.remove(&node.bytenr), Some(node.level));
        self.pending.delete(block_key(node.bytenr, node.level));
        if node.born_in_this_commit { &mut self.free } else { &mut self.pinned }.push(node.bytenr);
        Ok(())
    }
}

/// Merges until nothing is left to merge, and returns how many rounds that took.
fn settle(bed: &Bed, extents: &mut ExtentTree, root: &mut Option<Root>, dirty: &mut DirtyNodes) -> usize {
    let mut rounds = 0;
    while root.is_none() || !extents.pending.is_empty() {
        rounds += 1;
        assert!(rounds < 50, "the extent tree never settles");
        let batch = std::mem::take(&mut extents.pending);
        let owner = TreeId::EXTENT;
        let merged = merge(&bed.cache, *root, owner, &batch, dirty, extents, Generation(0), &mut |_, _| {});
        *root = Some(merged.unwrap());
    }
    rounds
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn an_extent_tree_that_describes_its_own_blocks_settles(seed in 1..u64::MAX) {
        let mut random = Rng::new(seed);
        let mut bed = Bed::new(4096);
        let mut addresses: Vec<_> = (1..5000_u64).map(|block| Logical(block << 14)).collect();
        for last in (1..addresses.len()).rev() {
            addresses.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut extents = ExtentTree {
            pending: EditBatch::new(),
            live: std::collections::BTreeMap::new(),
            free: addresses,
            pinned: Vec::new(),
        };
        let mut root = None;
        let data_key = |place: u64| Key::new((place << 14) + 4096, ItemType::EXTENT_ITEM, 4096);
        for commit in 0..12 {
            let mut dirty = DirtyNodes::new(Generation(10 + commit), bed.geometry);
            let (edits, deletes) = (random.below(2000), random.below(100));
            for _ in 0..edits {
                let data = data_key(random.below(5000));
                if random.below(100) < deletes {
                    extents.pending.delete(data);
                } else {
                    extents.pending.put(data, [4; 53]);
                }
            }
            let rounds = settle(&bed, &mut extents, &mut root, &mut dirty);
            prop_assert!(rounds <= 16, "{rounds} rounds");
            bed.submit(dirty);
            bed.root = root;
            let described: Vec<_> = bed
                .cold_snapshot()
                .range(Key::MIN..=Key::MAX)
                .map(|item| item.unwrap().key)
                .filter(|key| key.item_type == ItemType::METADATA_ITEM)
                .collect();
            let live: Vec<_> = extents.live.iter().map(|(bytenr, level)| block_key(*bytenr, *level)).collect();
            prop_assert_eq!(described, live);
            bed.owner = TreeId::EXTENT;
            bed.space.live = extents.live.iter().map(|(bytenr, level)| (*bytenr, (TreeId::EXTENT, *level))).collect();
            bed.check();
            extents.free.splice(0..0, extents.pinned.drain(..));
        }
    }
}

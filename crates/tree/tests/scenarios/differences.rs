//! The differences of two trees equal those of a naive comparison, and their cost depends on what
//! differs.

use std::collections::BTreeMap;

use crate::common::{Bed, scan};
use proptest::prelude::*;
use ubtrfs_format::{Generation, ItemType, Key};
use ubtrfs_random::Rng;
use ubtrfs_tree::{Difference, EditBatch, Snapshot, Walk};

type Items = BTreeMap<Key, Vec<u8>>;
type Shown = Vec<(Key, Option<Vec<u8>>, Option<Vec<u8>>)>;

fn key(number: u64) -> Key {
    Key::new(number / 16, ItemType::EXTENT_DATA, number % 16)
}

fn shown(old: &Snapshot, new: &Snapshot, first: Key, last: Key) -> Shown {
    let bytes = |item: Option<ubtrfs_tree::Item>| item.map(|item| item.to_vec());
    let found = old.differences(new, &(first..=last)).map(|difference| {
        let Difference { key, old, new } = difference.unwrap();
        (key, bytes(old), bytes(new))
    });
    found.collect()
}

fn naive(old: &Items, new: &Items, first: Key, last: Key) -> Shown {
    let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    let keys = keys.into_iter().filter(|key| (first..=last).contains(key) && old.get(key) != new.get(key));
    keys.map(|key| (key, old.get(&key).cloned(), new.get(&key).cloned())).collect()
}

/// Makes random changes: single items, runs of them that split leaves, ranges that empty leaves.
fn changes(random: &mut Rng, most: u64) -> EditBatch {
    let mut batch = EditBatch::new();
    for _ in 0..random.below(3) {
        let first = random.below(most);
        batch.delete_range(key(first)..=key(first + random.below(most / 6)));
    }
    for _ in 0..random.below(6) {
        let (first, fill) = (random.below(most), random.below(256) as u8);
        for number in first..first + random.below(1 + most / 40) {
            batch.put(key(number), vec![fill; random.below(300) as usize]);
        }
    }
    for _ in 0..random.below(20) {
        batch.delete(key(random.below(most)));
        batch.put(key(random.below(most)), vec![1; random.below(300) as usize]);
    }
    batch
}

/// Items of leaves that this generation or a later one wrote.
fn naive_since(snapshot: &Snapshot, generation: Generation) -> Vec<Key> {
    let mut keys = Vec::new();
    snapshot.walk(&mut |_, block| {
        let block = block.unwrap();
        if let ubtrfs_format::Node::Leaf(leaf) = block.node().unwrap()
            && block.header().unwrap().generation >= generation
        {
            keys.extend(leaf.iter().map(|(key, _)| key));
        }
        Walk::Descend
    });
    keys
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn differences_equal_a_naive_comparison(seed in 1..u64::MAX, most in 1_u64..6000, from in 0_u64..7000, to in 0_u64..7000) {
        let mut random = Rng::new(seed);
        let mut bed = Bed::new(4096);
        let mut states = Vec::new();
        for _ in 0..5 {
            let mut batch = changes(&mut random, most + 6);
            if states.is_empty() {
                for number in 0..random.below(most) {
                    batch.put(key(number), vec![9; random.below(200) as usize]);
                }
            }
            bed.commit(&[batch]).unwrap();
            let snapshot = bed.cold_snapshot();
            states.push((scan(&snapshot), snapshot, bed.generation));
        }
        for (old_items, old, generation) in &states {
            for (new_items, new, _) in &states {
                prop_assert_eq!(shown(old, new, Key::MIN, Key::MAX), naive(old_items, new_items, Key::MIN, Key::MAX));
                let (first, last) = (key(from), key(to));
                prop_assert_eq!(shown(old, new, first, last), naive(old_items, new_items, first, last));
                let found = new.written_since(*generation, &(Key::MIN..=Key::MAX));
                let found: Vec<_> = found.map(|item| item.unwrap().key).collect();
                prop_assert_eq!(found, naive_since(new, *generation));
            }
        }
    }
}

#[test]
fn ten_changes_in_a_big_tree_cost_few_reads() {
    let mut bed = Bed::new(4096);
    let mut batch = EditBatch::new();
    for number in 0..200_000 {
        batch.put(key(number), vec![number as u8; 40]);
    }
    bed.commit(&[batch]).unwrap();
    let before = bed.root.unwrap();
    let mut batch = EditBatch::new();
    for change in 0..10 {
        batch.put(key(change * 19_999 + 7), vec![0xee; 41]);
    }
    bed.commit(&[batch]).unwrap();

    let new = bed.cold_snapshot();
    let old = Snapshot::new(new.cache().clone(), before);
    assert_eq!(shown(&old, &new, Key::MIN, Key::MAX).len(), 10);
    let reads = new.cache().counters().misses;
    // Each change may cost a path in each tree.
    let most = 2 * 10 * (1 + u64::from(before.level));
    assert!(reads <= most, "{reads} nodes were read instead of {most} at most");
    assert!(bed.space.live.len() > 2000, "the tree is small");

    let new = bed.cold_snapshot();
    let since = new.written_since(bed.generation, &(Key::MIN..=Key::MAX));
    assert!(since.count() >= 10);
    assert!(new.cache().counters().misses <= most / 2);

    let same = bed.cold_snapshot();
    assert_eq!(shown(&same, &same.clone(), Key::MIN, Key::MAX), []);
    assert_eq!(same.cache().counters().misses, 0, "a tree was compared to itself by reading it");
}

#[test]
fn a_change_of_height_is_no_difference() {
    let mut bed = Bed::new(4096);
    let mut batch = EditBatch::new();
    for number in 0..20 {
        batch.put(key(number), vec![number as u8; 100]);
    }
    bed.commit(&[batch]).unwrap();
    let small = (bed.snapshot(), scan(&bed.snapshot()));
    let mut batch = EditBatch::new();
    for number in 20..40_000 {
        batch.put(key(number), vec![number as u8; 100]);
    }
    bed.commit(&[batch]).unwrap();
    let big = (bed.snapshot(), scan(&bed.snapshot()));
    assert!(big.0.root().level > small.0.root().level + 1);
    for ((old, old_items), (new, new_items)) in [(&small, &big), (&big, &small)] {
        assert!(shown(old, new, Key::MIN, Key::MAX) == naive(old_items, new_items, Key::MIN, Key::MAX));
    }
}

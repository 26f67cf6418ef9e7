//! Compares random batches with a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Bed, scan};
use proptest::prelude::*;
use ubtrfs_format::items::{InodeRef, encode_inode_ref, inode_refs};
use ubtrfs_format::{DirIndex, ItemType, Key, leaf_data_size, max_item_size};
use ubtrfs_random::Rng;
use ubtrfs_tree::{Edit, EditBatch, NodeCache, Patch, Snapshot};

type Model = BTreeMap<Key, Vec<u8>>;

#[derive(Clone, Debug)]
enum Op {
    Put { key: Key, len: usize, fill: u8 },
    PutRef { key: Key, name: u8, index: u64 },
    Delete(Key),
    DeleteRange(Key, Key),
    Patch { key: Key, name: u8, put: Option<u64> },
}

fn ref_item(names: &[(u64, u8)]) -> Vec<u8> {
    let mut item = Vec::new();
    for (index, name) in names {
        encode_inode_ref(&mut item, InodeRef { index: DirIndex(*index), name: &[*name; 40] });
    }
    item
}

fn names(item: &[u8]) -> Vec<(u64, u8)> {
    inode_refs(item).map(|found| found.map(|found| (found.index.0, found.name[0])).unwrap()).collect()
}

/// Sorts names, since patches of different names may come in any order.
fn sorted(model: &Model) -> Model {
    let sort = |(key, item): (&Key, &Vec<u8>)| {
        if key.item_type != ItemType::INODE_REF {
            return (*key, item.clone());
        }
        let mut names = names(item);
        names.sort_unstable();
        (*key, ref_item(&names))
    };
    model.iter().map(sort).collect()
}

fn apply_to_batch(op: &Op, batch: &mut EditBatch) {
    match op {
        Op::Put { key, len, fill } => batch.put(*key, vec![*fill; *len]),
        Op::PutRef { key, name, index } => batch.put(*key, ref_item(&[(*index, *name)])),
        Op::Delete(key) => batch.delete(*key),
        Op::DeleteRange(first, last) => batch.delete_range(*first..=*last),
        Op::Patch { key, name, put } => {
            let name = vec![*name; 40];
            let patch = match put {
                Some(index) => Patch::PutRef { index: DirIndex(*index), name },
                None => Patch::RemoveRef { name },
            };
            batch.patch(*key, patch).unwrap();
        }
    }
}

fn apply_to_model(ops: &[Op], model: &mut Model) {
    for op in ops {
        if let Op::DeleteRange(first, last) = op {
            model.retain(|key, _| key < first || key > last);
        }
    }
    for op in ops {
        match op {
            Op::Put { key, len, fill } => drop(model.insert(*key, vec![*fill; *len])),
            Op::PutRef { key, name, index } => drop(model.insert(*key, ref_item(&[(*index, *name)]))),
            Op::Delete(key) => drop(model.remove(key)),
            Op::DeleteRange(..) => {}
            Op::Patch { key, name, put } => {
                let mut all = model.get(key).map(|item| names(item)).unwrap_or_default();
                all.retain(|(_, old)| old != name);
                all.extend(put.map(|index| (index, *name)));
                if all.is_empty() {
                    model.remove(key);
                } else {
                    model.insert(*key, ref_item(&all));
                }
            }
        }
    }
}

fn any_key() -> impl Strategy<Value = Key> {
    (0..30_u64, 0..40_u64).prop_map(|(objectid, offset)| Key::new(objectid, ItemType::EXTENT_DATA, offset))
}

fn ref_key() -> impl Strategy<Value = Key> {
    (0..30_u64, 0..4_u64).prop_map(|(objectid, offset)| Key::new(objectid, ItemType::INODE_REF, offset))
}

fn any_op(max: usize) -> impl Strategy<Value = Op> {
    let len = prop_oneof![8 => 0..max / 20, 2 => 0..max / 3, 1 => 0..=max];
    prop_oneof![
        20 => (any_key(), len, any::<u8>()).prop_map(|(key, len, fill)| Op::Put { key, len, fill }),
        8 => any_key().prop_map(Op::Delete),
        1 => (any_key(), any_key()).prop_map(|(a, b)| Op::DeleteRange(a.min(b), a.max(b))),
        2 => (any_key(), 0..20_u64).prop_map(|(key, more)| {
            Op::DeleteRange(key, Key { offset: key.offset + more, ..key })
        }),
        2 => (ref_key(), 0..6_u8, 0..3_u64).prop_map(|(key, name, index)| Op::PutRef { key, name, index }),
        6 => (ref_key(), 0..6_u8, proptest::option::of(0..3_u64)).prop_map(|(key, name, put)| Op::Patch { key, name, put }),
    ]
}

/// Generates commits of batches of edits.
fn any_history(node_size: u32) -> impl Strategy<Value = Vec<Vec<Vec<Op>>>> {
    let max = max_item_size(node_size as usize);
    let batch = prop_oneof![
        3 => proptest::collection::vec(any_op(max), 0..20),
        1 => proptest::collection::vec(any_op(max), 100..400),
    ];
    let commit = proptest::collection::vec(batch, 1..4);
    proptest::collection::vec(commit, 1..8)
}

/// Generates the number of nodes that a commit keeps in memory, if there is a limit.
fn any_limit() -> impl Strategy<Value = Option<usize>> {
    proptest::option::of(0..8_usize)
}

fn run(node_size: u32, history: &[Vec<Vec<Op>>], early: Option<usize>) {
    let mut bed = Bed::writing_early(node_size, early);
    let mut model = Model::new();
    let mut older = Vec::new();
    for commit in history {
        let before = bed.root.map(|_| scan(&bed.snapshot())).unwrap_or_default();
        let mut batches = Vec::new();
        for ops in commit {
            let mut batch = EditBatch::new();
            // Half of the edits come from a second batch.
            let mut second = EditBatch::new();
            let (first_half, second_half) = ops.split_at(ops.len() / 2);
            for op in first_half {
                apply_to_batch(op, &mut batch);
            }
            for op in second_half {
                apply_to_batch(op, &mut second);
            }
            batch.append(second).unwrap();
            apply_to_model(ops, &mut model);
            batches.push(batch);
        }
        let mut removed = bed.commit(&batches).unwrap();
        bed.check();
        let after = scan(&bed.snapshot());
        assert_eq!(sorted(&after), sorted(&model));
        let reversed: Model = bed
            .snapshot()
            .range_rev(Key::MIN..=Key::MAX)
            .map(|item| {
                let item = item.unwrap();
                (item.key, item.to_vec())
            })
            .collect();
        assert_eq!(reversed, after);
        if let [batch] = &batches[..] {
            removed.sort();
            let gone = before.iter().filter(|(key, bytes)| match batch.get(key) {
                _ if batch.deletes(key) => true,
                Some(Edit::Put(_) | Edit::Delete) => true,
                Some(Edit::Patch(_)) => after.get(key) != Some(bytes),
                None => false,
            });
            assert_eq!(removed, gone.map(|(key, bytes)| (*key, bytes.clone())).collect::<Vec<_>>());
        }
        older.push((bed.snapshot(), after));
    }
    for (snapshot, content) in older {
        assert_eq!(scan(&snapshot), content, "an older snapshot changed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn small_nodes_equal_the_model(history in any_history(4096), early in any_limit()) {
        run(4096, &history, early);
    }

    #[test]
    fn usual_nodes_equal_the_model(history in any_history(16384), early in any_limit()) {
        run(16384, &history, early);
    }

    #[test]
    fn large_nodes_equal_the_model(history in any_history(65536), early in any_limit()) {
        run(65536, &history, early);
    }

    #[test]
    fn lookups_and_ranges_equal_the_model(seed in 1..u64::MAX, from in any_key(), to in any_key()) {
        let mut random = Rng::new(seed);
        let mut bed = Bed::new(4096);
        let mut batch = EditBatch::new();
        let mut model = Model::new();
        for _ in 0..random.below(800) {
            let key = Key::new(random.below(30), ItemType::EXTENT_DATA, random.below(40));
            batch.put(key, key.offset.to_le_bytes().repeat(20));
            model.insert(key, key.offset.to_le_bytes().repeat(20));
        }
        bed.commit(&[batch]).unwrap();
        let snapshot = bed.cold_snapshot();
        for key in [from, to, Key::MIN, Key::MAX] {
            prop_assert_eq!(snapshot.get(&key).unwrap().map(|item| item.to_vec()), model.get(&key).cloned());
            let last = snapshot.last_at_or_before(&key).unwrap().map(|item| item.key);
            prop_assert_eq!(last, model.range(..=key).next_back().map(|(key, _)| *key));
        }
        let keys: Vec<_> = snapshot.range(from..=to).map(|item| item.unwrap().key).collect();
        let mut reversed: Vec<_> = snapshot.range_rev(from..=to).map(|item| item.unwrap().key).collect();
        reversed.reverse();
        let expected: Vec<_> = model.keys().copied().filter(|key| (from..=to).contains(key)).collect();
        prop_assert_eq!(&keys, &expected);
        prop_assert_eq!(&reversed, &expected);
    }
}

#[test]
fn deep_trees_equal_the_model_and_leaves_stay_half_full() {
    for (node_size, items) in [(4096, 20_000), (16384, 40_000)] {
        let mut random = Rng::new(77);
        let mut bed = Bed::new(node_size);
        let (mut model, mut levels) = (Model::new(), 0);
        for round in 0..40 {
            let mut batches = Vec::new();
            for _ in 0..=round % 3 {
                let mut batch = EditBatch::new();
                let first = Key::new(random.below(items), ItemType::EXTENT_DATA, 0);
                let last = Key { objectid: first.objectid + random.below(items / 50), ..first };
                batch.delete_range(first..=last);
                model.retain(|key, _| *key < first || *key > last);
                for _ in 0..items / 20 {
                    let key = Key::new(random.below(items), ItemType::EXTENT_DATA, 0);
                    // The tree grows first, then shrinks.
                    if random.below(40) >= round {
                        let item = vec![round as u8; random.below(200) as usize];
                        batch.put(key, item.clone());
                        model.insert(key, item);
                    } else {
                        batch.delete(key);
                        model.remove(&key);
                    }
                }
                batches.push(batch);
            }
            bed.commit(&batches).unwrap();
            let fill = bed.check();
            assert!(fill > 50 || bed.space.live.len() < 4, "leaves are {fill} % full after round {round}");
            assert!(scan(&bed.snapshot()) == model, "content differs after round {round}");
            levels = levels.max(bed.root.unwrap().level);
        }
        assert_eq!(levels, if node_size == 4096 { 2 } else { 1 });
    }
}

#[test]
fn threads_read_one_tree_through_a_cache_that_is_too_small() {
    let mut bed = Bed::new(4096);
    let mut batch = EditBatch::new();
    (0..20_000_u64).for_each(|item| batch.put(Key::new(item, ItemType::EXTENT_DATA, 0), item.to_le_bytes().repeat(10)));
    bed.commit(&[batch]).unwrap();
    let cache = Arc::new(NodeCache::new(bed.disk.clone(), bed.geometry, 0));
    let snapshot = Snapshot::new(cache.clone(), bed.root.unwrap());
    std::thread::scope(|scope| {
        for seed in 1..5 {
            let snapshot = snapshot.clone();
            scope.spawn(move || {
                let mut random = Rng::new(seed * 1_000_003);
                for _ in 0..5000 {
                    let wanted = random.below(25_000);
                    let item = snapshot.get(&Key::new(wanted, ItemType::EXTENT_DATA, 0)).unwrap();
                    let expected = (wanted < 20_000).then(|| wanted.to_le_bytes().repeat(10));
                    assert_eq!(item.map(|item| item.to_vec()), expected);
                }
            });
        }
    });
    let counters = cache.counters();
    assert!(counters.bytes <= 64 * 4096 && counters.hits > 5000 && counters.misses > 5000, "{counters:?}");
}

#[test]
fn appends_leave_full_leaves_behind() {
    let mut bed = Bed::new(16384);
    let mut next = 0;
    for round in 0..200 {
        let mut batch = EditBatch::new();
        for _ in 0..97 {
            next += 1;
            batch.put(Key::new(next, ItemType::INODE_ITEM, 0), [0; 160]);
        }
        bed.commit(&[batch]).unwrap();
        let fill = bed.check();
        assert!(round < 20 || fill > 93, "leaves are {fill} % full after round {round}");
    }
    let full = leaf_data_size(16384) / 185;
    assert!(bed.space.live.len() <= next as usize / full + 3);
}

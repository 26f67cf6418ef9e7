//! If reading a node takes long, nodes that will be needed are read at the same time, and none of
//! them twice.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use ubtrfs_format::{ItemType, Key, Logical, NodeExpectation};
use ubtrfs_tree::{BoxError, EditBatch, NodeCache, NodeSource, Snapshot};

use crate::common::{Bed, Disk};

const NODE: u32 = 4096;
const ITEMS: u64 = 2000;

/// A disk whose first reads of leaves end only when this many are in flight.
struct Far {
    disk: Arc<Disk>,
    ahead: usize,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    reads: HashMap<Logical, usize>,
    under_way: usize,
    most: usize,
}

impl NodeSource for Far {
    fn read_node(&self, expected: &NodeExpectation) -> Result<Vec<u8>, BoxError> {
        const TIMEOUT: Duration = Duration::from_secs(20);
        if expected.level == Some(0) {
            let mut state = self.state.lock();
            *state.reads.entry(expected.bytenr).or_default() += 1;
            state.under_way += 1;
            state.most = state.most.max(state.under_way);
            self.more.notify_all();
            while state.most < self.ahead.min(3) && !self.more.wait_for(&mut state, TIMEOUT).timed_out() {}
            state.under_way -= 1;
        }
        self.disk.read_node(expected)
    }

    fn reads_ahead(&self) -> usize {
        self.ahead
    }
}

fn key(number: u64) -> Key {
    Key::new(number, ItemType::INODE_ITEM, 0)
}

/// Returns a tree of many leaves on such a disk.
fn tree(ahead: usize) -> (Arc<Far>, Snapshot) {
    let mut bed = Bed::new(NODE);
    let mut batch = EditBatch::new();
    (0..ITEMS).for_each(|number| batch.put(key(number), vec![7; 100]));
    bed.commit(&[batch]).unwrap();
    let far = Arc::new(Far { disk: bed.disk.clone(), ahead, state: Mutex::default(), more: Condvar::new() });
    let cache = Arc::new(NodeCache::new(far.clone(), bed.geometry, 64 << 20));
    (far, Snapshot::new(cache, bed.root.unwrap()))
}

fn most_at_a_time(far: &Far) -> usize {
    let state = far.state.lock();
    assert!(state.reads.values().all(|count| *count == 1), "a leaf is read twice: {:?}", state.reads);
    state.most
}

#[test]
fn ranges_read_the_leaves_that_come_next() {
    let (far, tree) = tree(4);
    assert_eq!(tree.range(Key::MIN..=Key::MAX).map(Result::unwrap).count() as u64, ITEMS);
    assert!(most_at_a_time(&far) >= 3);
}

#[test]
fn parts_of_a_tree_have_all_of_its_items_in_order() {
    let (far, tree) = tree(0);
    let parts = tree.parts(8, 16).unwrap();
    assert!(far.state.lock().reads.is_empty(), "no leaf is read to divide the tree");
    assert_eq!(parts.len(), 8);
    let items = |part: &RangeInclusive<Key>| tree.range(part.clone()).map(|item| item.unwrap().key).collect::<Vec<_>>();
    let found: Vec<Vec<Key>> = parts.iter().map(items).collect();
    let count = |keys: &Vec<Key>| keys.len() as u64;
    assert!(found.iter().all(|keys| (ITEMS / 16..ITEMS / 4).contains(&count(keys))), "{:?}", found.iter().map(count));
    assert_eq!(found.concat(), (0..ITEMS).map(key).collect::<Vec<_>>());
    assert_eq!(tree.parts(8, ITEMS as usize).unwrap(), [Key::MIN..=Key::MAX]);
}

#[test]
fn ranges_read_nothing_beyond_their_end() {
    let (far, tree) = tree(0);
    assert_eq!(tree.range(key(0)..=key(5)).map(Result::unwrap).count(), 6);
    assert_eq!(far.state.lock().reads.len(), 1);
    let (far, tree) = self::tree(1);
    assert_eq!(tree.range(key(0)..=key(5)).map(Result::unwrap).count(), 6);
    assert_eq!(far.state.lock().reads.len(), 1);
}

#[test]
fn leaves_of_keys_are_read_at_the_same_time() {
    let (far, tree) = tree(8);
    let keys = || (0..ITEMS).step_by(97).map(key);
    tree.prefetch(keys()).unwrap();
    keys().for_each(|key| assert!(tree.get(&key).unwrap().is_some()));
    assert!(most_at_a_time(&far) >= 3);
}

/// A disk whose reads of leaves panic the first time.
struct Panicking {
    disk: Arc<Disk>,
    reads: Mutex<HashMap<Logical, usize>>,
}

impl NodeSource for Panicking {
    fn read_node(&self, expected: &NodeExpectation) -> Result<Vec<u8>, BoxError> {
        let is_first = {
            let mut reads = self.reads.lock();
            let count = reads.entry(expected.bytenr).or_default();
            *count += 1;
            *count == 1
        };
        let reads_ahead = std::thread::current().name() == Some("read-ahead");
        assert!(expected.level != Some(0) || !is_first || !reads_ahead, "a fault on purpose");
        self.disk.read_node(expected)
    }

    fn reads_ahead(&self) -> usize {
        2
    }
}

#[test]
fn nobody_waits_for_a_reader_that_has_panicked() {
    let (far, tree) = tree(0);
    let source = Arc::new(Panicking { disk: far.disk.clone(), reads: Mutex::default() });
    let cache = Arc::new(NodeCache::new(source, *tree.cache().geometry(), 64 << 20));
    let tree = Snapshot::new(cache, *tree.root());
    for _ in 0..2 {
        let keys = || (0..ITEMS).step_by(97).map(key);
        tree.prefetch(keys()).unwrap();
        keys().for_each(|key| assert!(tree.get(&key).unwrap().is_some()));
    }
}

#[test]
fn what_can_not_be_read_is_an_error_for_who_needs_it() {
    let (far, tree) = tree(8);
    let mut blocks = far.disk.blocks.lock();
    let root = tree.root().bytenr;
    blocks.retain(|bytenr, _| *bytenr == root);
    drop(blocks);
    tree.prefetch((0..ITEMS).step_by(97).map(key)).unwrap();
    (0..ITEMS).step_by(97).for_each(|number| assert!(tree.get(&key(number)).is_err()));
    assert!(tree.range(Key::MIN..=Key::MAX).next().unwrap().is_err());
}

//! Measures how much processor time lookups and merges take:
//! `cargo run --release -p ubtrfs-tree --example speed`.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ubtrfs_format::{ChecksumType, Generation, ItemType, Key, Logical, NodeExpectation, TreeId, Uuid};
use ubtrfs_tree::{
    BoxError, DirtyNodes, EditBatch, FreedNode, Geometry, NodeAllocator, NodeCache, NodeSource, Result, Root, Snapshot,
    merge,
};

const ITEMS: u64 = 1_000_000;
const LOOKUPS: u64 = 2_000_000;
const PUTS: u64 = 100_000;

/// The time that this thread has run, which other threads on the machine do not affect.
struct Clock(Duration);

impl Clock {
    fn start() -> Self {
        Self(Self::now())
    }

    fn now() -> Duration {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let nanoseconds = schedstat.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or_default();
        Duration::from_nanos(nanoseconds)
    }

    fn elapsed(&self) -> Duration {
        Self::now().saturating_sub(self.0)
    }
}

#[derive(Default)]
struct Memory(Mutex<HashMap<Logical, Vec<u8>>>);

impl NodeSource for Memory {
    fn read_node(&self, expected: &NodeExpectation) -> std::result::Result<Vec<u8>, BoxError> {
        let blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.get(&expected.bytenr).cloned().ok_or_else(|| "no such block".into())
    }
}

struct Bump(u64);

impl NodeAllocator for Bump {
    fn allocate(&mut self, _: TreeId, _: u8) -> Result<Logical> {
        self.0 += 16384;
        Ok(Logical(self.0))
    }

    fn free(&mut self, _: FreedNode) -> Result<()> {
        Ok(())
    }
}

struct Bench {
    geometry: Geometry,
    memory: Arc<Memory>,
    cache: Arc<NodeCache>,
    space: Bump,
    root: Option<Root>,
    generation: Generation,
}

impl Bench {
    fn commit(&mut self, what: &str, batch: &EditBatch) -> Result<()> {
        self.generation = self.generation.next();
        let mut dirty = DirtyNodes::new(self.generation, self.geometry);
        let start = Clock::start();
        let none = Generation(0);
        let root = merge(&self.cache, self.root, TreeId::FS, batch, &mut dirty, &mut self.space, none, &mut |_, _| {})?;
        let merged = start.elapsed();
        let nodes = dirty.into_sealed();
        let sealed = start.elapsed().saturating_sub(merged);
        println!("{what}: merge {merged:.1?}, seal {sealed:.1?}, {} nodes written", nodes.len());
        self.root = Some(root);
        let mut blocks = self.memory.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (bytenr, block) in nodes {
            blocks.insert(bytenr, block.to_vec());
            self.cache.insert(bytenr, self.generation, block);
        }
        Ok(())
    }
}

fn key(number: u64) -> Key {
    Key::new(256 + number / 4, ItemType::DIR_INDEX, number % 4)
}

/// Returns the numbers below `ITEMS` in a scattered order.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % ITEMS
}

fn main() -> Result<()> {
    let geometry = Geometry {
        node_size: 16384,
        sector_size: 4096,
        fsid: Uuid::NIL,
        chunk_tree_uuid: Uuid::NIL,
        checksum: ChecksumType::Crc32c,
    };
    let memory = Arc::new(Memory::default());
    let cache = Arc::new(NodeCache::new(memory.clone(), geometry, 1 << 30));
    let mut bench = Bench { geometry, memory, cache, space: Bump(1 << 20), root: None, generation: Generation(1) };

    let mut batch = EditBatch::new();
    let start = Clock::start();
    (0..ITEMS).for_each(|number| batch.put(key(number), [7; 64]));
    println!("filling a batch with {ITEMS} puts: {:.1?}", start.elapsed());
    bench.commit(&format!("{ITEMS} items into a new tree"), &batch)?;

    let root = bench.root.unwrap_or_else(|| unreachable!("the commit made a root"));
    let snapshot = Snapshot::new(bench.cache.clone(), root);
    for (what, step) in [("scattered", true), ("ascending", false)] {
        let start = Clock::start();
        for number in 0..LOOKUPS {
            let wanted = if step { scattered(number) } else { number % ITEMS };
            black_box(snapshot.get(&key(wanted))?);
        }
        println!("get, {what} keys: {} ns", start.elapsed().as_nanos() / u128::from(LOOKUPS));
    }
    let start = Clock::start();
    let bytes: usize = snapshot.range(Key::MIN..=Key::MAX).map(|item| item.map_or(0, |item| item.len())).sum();
    println!("full range: {} ns per item ({bytes} bytes)", start.elapsed().as_nanos() / u128::from(ITEMS));

    let mut batch = EditBatch::new();
    (0..PUTS).for_each(|number| batch.put(key(scattered(number)), [8; 64]));
    bench.commit(&format!("{PUTS} scattered puts over old items"), &batch)?;
    let mut batch = EditBatch::new();
    (0..PUTS).for_each(|number| batch.put(Key { offset: 9, ..key(scattered(number)) }, [8; 64]));
    bench.commit(&format!("{PUTS} scattered new items"), &batch)?;
    let mut batch = EditBatch::new();
    (0..PUTS).for_each(|number| batch.put(key(ITEMS + number), [8; 64]));
    bench.commit(&format!("{PUTS} items appended"), &batch)?;
    let mut batch = EditBatch::new();
    (0..100).for_each(|number| batch.put(key(scattered(number * 7)), [9; 64]));
    bench.commit("100 scattered puts", &batch)?;
    println!("cache: {:?}", bench.cache.counters());
    Ok(())
}

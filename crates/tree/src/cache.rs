//! The cache of nodes.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ubtrfs_format::{Generation, Logical, NodeExpectation};
use ubtrfs_threads::Rank;
use ubtrfs_volume::{CountedRwLock, LockCounters};

use crate::node_id::NodeId;
use crate::read_ahead::ReadAhead;
use crate::{Block, BoxError, Damage, Error, Geometry, NodeRef, Result, SeededHash};

/// The source of nodes that are not in the cache.
pub trait NodeSource: Send + Sync {
    /// Reads a node. Returns its bytes, as many as the node size, after its checksum has been
    /// verified and [`Node::check`](ubtrfs_format::Node::check) has found it to be as `expected`.
    fn read_node(&self, expected: &NodeExpectation) -> std::result::Result<Vec<u8>, BoxError>;

    /// Returns how many nodes are best read at a time before they are needed, or 0 if reading one
    /// takes little time.
    fn reads_ahead(&self) -> usize {
        0
    }
}

/// The counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Lookups that found their node.
    pub hits: u64,
    /// Lookups that had to read their node.
    pub misses: u64,
    /// Bytes of the nodes in the cache.
    pub bytes: u64,
}

/// Verified nodes up to a budget of bytes, shared by all trees of a volume.
///
/// Hits take a shared lock on one of many shards. When a shard is full, a clock hand evicts a node
/// that was not used since the hand last passed. Concurrent misses of one node may read it twice.
pub struct NodeCache {
    source: Arc<dyn NodeSource>,
    geometry: Geometry,
    hasher: SeededHash,
    /// The shards, whose number is a power of two.
    shards: Box<[Shard]>,
    /// Where readers of ranges note nodes that they skip. If it is `None`, such a node is an error.
    damage: Option<Arc<Damage>>,
    read_ahead: Arc<ReadAhead>,
    /// The most threads that read ahead.
    reads_ahead: usize,
}

struct Shard {
    nodes: CountedRwLock<Clock>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl NodeCache {
    /// The least number of nodes that a shard holds, so that uneven shares of the budget do not
    /// matter.
    const NODES_PER_SHARD: usize = 64;
    const MAX_SHARDS: usize = 64;

    /// A cache in front of `source` of at most `budget` bytes of nodes (but with a minimal number
    /// of nodes).
    pub fn new(source: Arc<dyn NodeSource>, geometry: Geometry, budget: usize) -> Self {
        let nodes = (budget / (geometry.node_size as usize).max(1)).max(Self::NODES_PER_SHARD);
        let shards = (nodes / Self::NODES_PER_SHARD).min(Self::MAX_SHARDS).next_power_of_two();
        let hasher = SeededHash::new();
        let shard = || Shard {
            nodes: CountedRwLock::new(
                Rank::NodeCache,
                Clock { capacity: nodes.div_ceil(shards), ..Clock::new(hasher) },
            ),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        let shards = std::iter::repeat_with(shard).take(shards).collect();
        let (reads_ahead, read_ahead) = (source.reads_ahead(), Arc::default());
        Self { source, geometry, hasher, shards, damage: None, read_ahead, reads_ahead }
    }

    /// Has ranges skip nodes that can't be read or don't fit, and note each in `damage`. This is
    /// for volumes that are only read.
    #[must_use]
    pub fn passing_over(self, damage: Arc<Damage>) -> Self {
        Self { damage: Some(damage), ..self }
    }

    /// Returns whether a range continues after this error of one of its nodes. If it does, the
    /// error is noted.
    pub(crate) fn passes_over(&self, error: &Error) -> bool {
        match &self.damage {
            Some(damage) if !matches!(error, Error::WouldBlock) => {
                damage.note(error);
                true
            }
            _ => false,
        }
    }

    /// Returns what all nodes have in common.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the node at this position, from memory or from the source, after checking that it
    /// fits the position.
    pub fn get(&self, at: &NodeRef) -> Result<Block> {
        let block = self.fetch(at)?;
        at.view(&block)?;
        Ok(block)
    }

    /// As [`get`](Self::get), but the caller checks that the node fits its position.
    pub(crate) fn fetch(&self, at: &NodeRef) -> Result<Block> {
        let id = NodeId::of(at);
        let shard = self.shard(id);
        let known = shard.nodes.read().get(id);
        if let Some(block) = known {
            shard.hits.fetch_add(1, Relaxed);
            return Ok(block);
        }
        crate::ensure_may_block()?;
        shard.misses.fetch_add(1, Relaxed);
        if self.reads_ahead > 0 {
            self.read_ahead.wait_for(id);
            let known = shard.nodes.read().get(id);
            if let Some(block) = known {
                return Ok(block);
            }
        }
        self.read(at)
    }

    /// Has nodes read ahead that will be needed soon, if reading takes long.
    pub(crate) fn prefetch(self: &Arc<Self>, nodes: impl Iterator<Item = NodeRef>) {
        if self.reads_ahead > 0 {
            let is_missing = |node: &NodeRef| {
                let id = NodeId::of(node);
                self.shard(id).nodes.read().get(id).is_none()
            };
            let cache = Arc::downgrade(self);
            // An error is ignored: the thread that needs the node reads it again, and gets the
            // error.
            let read = move |node: &NodeRef| cache.upgrade().map(|cache| drop(cache.read(node))).is_some();
            self.read_ahead.read(nodes.filter(is_missing), self.reads_ahead, read);
        }
    }

    /// Returns whether nodes are read ahead.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.reads_ahead > 0
    }

    /// Reads a node into the cache.
    fn read(&self, at: &NodeRef) -> Result<Block> {
        let id = NodeId::of(at);
        let bytes = self.source.read_node(&at.expectation(self.geometry.fsid)).map_err(|source| Error::Read {
            tree: at.tree,
            bytenr: at.bytenr,
            source,
        })?;
        if bytes.len() != self.geometry.node_size as usize {
            let need = self.geometry.node_size as usize;
            return Err(at.bad(ubtrfs_format::Error::WrongLength { what: "tree block", need, have: bytes.len() }));
        }
        let block = Block::from(bytes);
        self.shard(id).nodes.write().insert(id, block.clone());
        Ok(block)
    }

    /// Adds a node that was just written, or replaces it.
    pub fn insert(&self, bytenr: Logical, generation: Generation, block: Block) {
        let id = NodeId { bytenr: bytenr.0, generation: generation.0 };
        self.shard(id).nodes.write().insert(id, block);
    }

    /// Drops a node from the cache whose space another node of the same generation will reuse (as
    /// in log trees).
    pub fn forget(&self, bytenr: Logical, generation: Generation) {
        let id = NodeId { bytenr: bytenr.0, generation: generation.0 };
        self.shard(id).nodes.write().remove(id);
    }

    /// Returns how often locks of shards were taken.
    pub fn lock_counters(&self) -> LockCounters {
        self.shards.iter().map(|shard| shard.nodes.counters()).sum()
    }

    /// Returns hits, misses and the bytes in the cache.
    pub fn counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        for shard in &self.shards {
            sum.hits += shard.hits.load(Relaxed);
            sum.misses += shard.misses.load(Relaxed);
            sum.bytes += shard.nodes.read().nodes.values().map(|cached| cached.block.len() as u64).sum::<u64>();
        }
        sum
    }

    fn shard(&self, id: NodeId) -> &Shard {
        // The maps in the shards use the low bits and the top seven, so the shard is chosen by
        // others.
        let hash = (self.hasher.hash_one(id) >> 40) as usize;
        &self.shards[hash & (self.shards.len() - 1)]
    }
}

impl std::fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeCache").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Clock {
    capacity: usize,
    nodes: HashMap<NodeId, Cached, SeededHash>,
    /// All nodes, in the order in which the hand visits them.
    ring: Vec<NodeId>,
    hand: usize,
}

struct Cached {
    block: Block,
    used: AtomicBool,
}

impl Clock {
    fn new(hasher: SeededHash) -> Self {
        Self { nodes: HashMap::with_hasher(hasher), ..Self::default() }
    }

    fn get(&self, id: NodeId) -> Option<Block> {
        let cached = self.nodes.get(&id)?;
        // A store dirties the cache line for all processors, so this stores only if the value
        // changes.
        if !cached.used.load(Relaxed) {
            cached.used.store(true, Relaxed);
        }
        Some(cached.block.clone())
    }

    fn insert(&mut self, id: NodeId, block: Block) {
        if self.nodes.insert(id, Cached { block, used: AtomicBool::new(false) }).is_some() {
            return;
        }
        if self.ring.len() < self.capacity {
            self.ring.push(id);
            return;
        }
        while let Some(old) = self.nodes.get_mut(&self.ring[self.hand])
            && std::mem::take(old.used.get_mut())
        {
            self.hand = (self.hand + 1) % self.ring.len();
        }
        self.nodes.remove(&self.ring[self.hand]);
        self.ring[self.hand] = id;
        self.hand = (self.hand + 1) % self.ring.len();
    }

    fn remove(&mut self, id: NodeId) {
        if self.nodes.remove(&id).is_some() {
            self.ring.retain(|other| *other != id);
            self.hand = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(bytenr: u64) -> NodeId {
        NodeId { bytenr, generation: 1 }
    }

    #[test]
    fn the_clock_keeps_what_is_used_and_never_grows_past_its_capacity() {
        let mut clock = Clock { capacity: 4, ..Clock::new(SeededHash::new()) };
        for bytenr in 0..4 {
            clock.insert(id(bytenr), Block::zeroed(16));
        }
        for bytenr in 4..100 {
            assert!(clock.get(id(0)).is_some(), "the node in use was evicted before {bytenr}");
            clock.insert(id(bytenr), Block::zeroed(16));
            assert_eq!((clock.ring.len(), clock.nodes.len()), (4, 4));
        }
        assert!(clock.get(id(99)).is_some());
        assert!(clock.get(id(50)).is_none());
    }

    #[test]
    fn removal_leaves_the_other_nodes() {
        let mut clock = Clock { capacity: 4, ..Clock::new(SeededHash::new()) };
        for bytenr in 0..4 {
            clock.insert(id(bytenr), Block::zeroed(bytenr as usize));
        }
        clock.remove(id(1));
        clock.remove(id(7));
        assert!(clock.get(id(1)).is_none());
        for bytenr in [0, 2, 3] {
            assert_eq!(clock.get(id(bytenr)).map(|block| block.len()), Some(bytenr as usize));
        }
        (10..20).for_each(|bytenr| clock.insert(id(bytenr), Block::zeroed(1)));
        assert_eq!((clock.ring.len(), clock.nodes.len()), (4, 4));
    }

    #[test]
    fn ids_that_differ_in_few_bits_spread_over_the_shards() {
        let hasher = SeededHash::new();
        let mut counts = [0_u32; 16];
        for block in 0..16_000_u64 {
            counts[(hasher.hash_one(id(block << 14)) >> 40) as usize & 15] += 1;
        }
        assert!(counts.iter().all(|count| (500..2000).contains(count)), "{counts:?}");
    }
}

//! What a dump or a restore has found and done.

use serde::Serialize;

/// How many problems are kept. All are counted.
pub const MAX_PROBLEMS: usize = 1000;

/// Problems of a volume or a dump, which did not end the work.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Problems {
    /// How many there are.
    pub count: u64,
    /// The first ones, each as a sentence.
    pub first: Vec<String>,
}

impl Problems {
    /// Adds one.
    pub(crate) fn add(&mut self, problem: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < MAX_PROBLEMS {
            self.first.push(problem());
        }
    }
}

/// What a dump has.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Dumped {
    /// Tree blocks.
    pub blocks: u64,
    /// Bytes of them, and of free-space caches.
    pub bytes: u64,
    /// Bytes of the dump.
    pub file_bytes: u64,
    /// Tree blocks that are damaged. They are in the dump as they are.
    pub bad_blocks: u64,
    /// Names that were replaced, counted wherever they are: a name is in several items.
    pub replaced: u64,
    /// Names that were kept since no other of the same length fits, counted in the same way.
    pub kept: u64,
    /// What was found to be damaged.
    pub problems: Problems,
}

/// What was restored from a dump.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Restored {
    /// Items of the dump.
    pub items: u64,
    /// Bytes of them, each counted once.
    pub bytes: u64,
    /// Bytes that were not written because no chunk has their address.
    pub unmapped: u64,
    /// What was found to be damaged.
    pub problems: Problems,
}

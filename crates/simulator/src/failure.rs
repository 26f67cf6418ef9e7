//! A failure, with all that is needed to reproduce it.

use std::fmt;

use crate::{CrashPoint, Operation};

/// A failed simulation.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the history.
    pub seed: u64,
    /// The operations up to the failure, each with the number of device events before it.
    pub operations: Vec<(usize, Operation)>,
    /// The point of the power cut; `None` for an earlier failure.
    pub crash: Option<CrashPoint>,
    /// The first difference.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} ({} operations):", self.seed, self.operations.len())?;
        for (events, operation) in &self.operations {
            writeln!(f, "  [{events:5}] {operation:?}")?;
        }
        if let Some(crash) = &self.crash {
            writeln!(f, "power was lost after event {} ({:?})", crash.event, crash.fates)?;
        }
        writeln!(f, "{}", self.what)?;
        write!(f, "again: UBTRFS_SEEDS={} cargo test --profile proof -p ubtrfs-simulator", self.seed)
    }
}

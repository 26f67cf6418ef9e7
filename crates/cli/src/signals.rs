//! Signals that end what a command does in a volume that is not mounted, so that it stops between
//! two steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Result};

/// Whether one has come.
pub struct Signals(Arc<AtomicBool>);

impl Signals {
    /// From now on they end no process.
    pub fn listen() -> Result<Self> {
        let has_come = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let registered = signal_hook::flag::register(signal, Arc::clone(&has_come));
            registered.map_err(|error| Failure::about("signals", &error))?;
        }
        Ok(Self(has_come))
    }

    /// Whether one has come.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

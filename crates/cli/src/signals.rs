//! Handles signals that end a command on a volume that is not mounted: the command stops between
//! two steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Result};

/// Records whether such a signal has arrived.
pub struct Signals(Arc<AtomicBool>);

impl Signals {
    /// Installs the handlers. From then on these signals do not end the process.
    pub fn listen() -> Result<Self> {
        let has_come = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let registered = signal_hook::flag::register(signal, Arc::clone(&has_come));
            registered.map_err(|error| Failure::about("signals", &error))?;
        }
        Ok(Self(has_come))
    }

    /// Whether a signal has arrived.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

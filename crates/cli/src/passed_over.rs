//! What the reading commands have skipped because it can't be read. A command reads on, and the
//! program says at its end what was skipped, and returns the exit status of a failure.

use std::sync::{Arc, Mutex, PoisonError};

use ubtrfs::Damage;

/// How many different sentences are printed.
const MAX_SENTENCES: usize = 20;

/// The notes about the volumes that were opened.
static WATCHED: Mutex<Vec<Arc<Damage>>> = Mutex::new(Vec::new());

/// Has the end of the program report what is noted here.
pub fn watch(damage: &Arc<Damage>) {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(damage));
}

/// Returns sentences about what was skipped. There are none if everything was read and verified.
pub fn sentences() -> Vec<String> {
    let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<String> = watched.iter().flat_map(|damage| damage.sentences()).collect();
    all.sort();
    all.dedup();
    if all.len() > MAX_SENTENCES {
        let more = all.len() - MAX_SENTENCES;
        all.truncate(MAX_SENTENCES);
        all.push(format!("… and {more} more"));
    }
    if watched.iter().any(|damage| damage.unverified() > 0) {
        all.push("the checksums of some data are lost: it was read as it is".into());
    }
    all
}

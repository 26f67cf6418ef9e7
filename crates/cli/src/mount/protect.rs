//! Protects a server from the kernel's OOM killer: if it dies, all users of its mount lose what was
//! not synced.

/// The score with which the kernel kills other programs before this one when memory runs out. With
/// -1000 it would never kill this one, and the system might hang instead.
const LAST_BUT_NOT_NEVER: &str = "-999";

/// Sets the score, which requires `CAP_SYS_RESOURCE`. Without that the mount works all the same.
pub fn from_shortage_of_memory() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", LAST_BUT_NOT_NEVER) {
        tracing::debug!("the server may be ended when memory runs out: {error}");
    }
}

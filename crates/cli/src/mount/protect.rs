//! A server that dies loses everything that was not synced, for all users of its mount.

/// Has the kernel end other programs before this one when memory runs out, but not so that it would
/// hang instead, as with -1000.
const LAST_BUT_NOT_NEVER: &str = "-999";

/// Requests that from the kernel, which requires `CAP_SYS_RESOURCE`; without it the mount works all
/// the same.
pub fn from_shortage_of_memory() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", LAST_BUT_NOT_NEVER) {
        tracing::debug!("the server may be ended when memory runs out: {error}");
    }
}

//! A server that dies takes with it what nobody has synced, for all who use its mount.

/// Has the kernel end other programs before this one when memory runs out, though not rather than
/// itself hang: that is what -1000 would ask for.
const LAST_BUT_NOT_NEVER: &str = "-999";

/// Asks the kernel for that. Only who may administer resources is granted it; without, the mount
/// works all the same.
pub fn from_shortage_of_memory() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", LAST_BUT_NOT_NEVER) {
        tracing::debug!("the server may be ended when memory runs out: {error}");
    }
}

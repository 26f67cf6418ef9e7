//! The mount table, which shows who has mounted a device.

use std::path::Path;

pub use ubtrfs_mounts::{Mounted, TABLE, all};

/// Returns whether this mount namespace shows a mount of `device` that is not ours.
pub(crate) fn is_source_of_others(device: &Path) -> bool {
    all().is_ok_and(|all| all.iter().any(|mounted| mounted.is_of_others(device)))
}

/// Returns whether this mount namespace shows a mount of ours that has claimed `device` as its
/// source. Mounts of the type `fuse` claim nothing, since any user may give them any source.
pub(crate) fn is_source_of_ours(device: &Path) -> bool {
    all().is_ok_and(|all| all.iter().any(|mounted| mounted.source == device && mounted.kind == "fuseblk.ubtrfs"))
}

//! The mount table: who has mounted a device.

use std::path::Path;

pub use ubtrfs_mounts::{Mounted, TABLE, all};

/// Whether something that is not ours is mounted from `device`, as this mount namespace tells.
pub(crate) fn is_source_of_others(device: &Path) -> bool {
    all().is_ok_and(|all| all.iter().any(|mounted| mounted.is_of_others(device)))
}

/// Whether a mount of ours has claimed `device` as its source, as this mount namespace tells. Those
/// of the type `fuse` claim none: any user may give them any source.
pub(crate) fn is_source_of_ours(device: &Path) -> bool {
    all().is_ok_and(|all| all.iter().any(|mounted| mounted.source == device && mounted.kind == "fuseblk.ubtrfs"))
}

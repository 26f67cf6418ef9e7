//! What is mounted where.

use std::path::{Path, PathBuf};

use ubtrfs_volume::mount_table;
pub use ubtrfs_volume::mount_table::Mounted;

use crate::failure::{Failure, Result};

/// Everything that is mounted.
pub fn all() -> std::io::Result<Vec<Mounted>> {
    mount_table::all()
}

/// What is mounted on `path` and seen there.
pub fn mounted_on(path: &Path) -> Result<Option<Mounted>> {
    let all = all().map_err(|error| Failure::about("/proc/self/mountinfo", &error))?;
    // Of several on one another the last is seen.
    Ok(all.into_iter().rfind(|mounted| mounted.point == path))
}

/// Whether anything of this device number is mounted.
pub fn is_mounted_anywhere(device: (u32, u32)) -> Result<bool> {
    Ok(!points_of(device)?.is_empty())
}

/// The places where the mount table shows a file system.
pub fn points_of(device: (u32, u32)) -> Result<Vec<PathBuf>> {
    let all = all().map_err(|error| Failure::about("/proc/self/mountinfo", &error))?;
    Ok(all.into_iter().filter(|mounted| mounted.device == device).map(|mounted| mounted.point).collect())
}

/// The path as the mount table has it, though what is mounted there may be dead.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| Failure::about(path.display(), &error);
    let absolute = std::path::absolute(path).map_err(failed)?;
    if let Ok(resolved) = absolute.canonicalize() {
        return Ok(resolved);
    }
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(failed)?.join(name)),
        _ => Ok(absolute),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_on(Path::new("/")).unwrap().is_some());
        assert!(mounted_on(Path::new("/no/such/place")).unwrap().is_none());
    }
}

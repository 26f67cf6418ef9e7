//! The mounts of the system, as the mount table lists them.

use std::path::{Path, PathBuf};

pub use ubtrfs_mounts::{Mounted, TABLE};

use crate::failure::{Failure, Result};

/// Returns everything that is mounted.
pub fn all() -> std::io::Result<Vec<Mounted>> {
    ubtrfs_mounts::all()
}

/// Returns the mount at `path` that is visible there.
pub fn mounted_on(path: &Path) -> Result<Option<Mounted>> {
    let all = all().map_err(|error| Failure::about(TABLE, &error))?;
    // If several are mounted on one another, the last one is visible.
    Ok(all.into_iter().rfind(|mounted| mounted.point == path))
}

/// Returns the mount that a path is on, according to the mount table, so that no server is asked.
pub fn holding(path: &Path) -> Option<Mounted> {
    let path = resolve(path).ok()?;
    let holds = all().ok()?.into_iter().filter(|mounted| path.starts_with(&mounted.point));
    // If several are mounted on one another, the last one is visible.
    holds.max_by_key(|mounted| mounted.point.components().count())
}

/// Returns the failure about a place that is on another file system.
pub fn not_on_btrfs(place: &str) -> Failure {
    let hint = "name a directory on the mount of one, or IMAGE:PATH in one that is not mounted";
    let found = holding(Path::new(place))
        .map(|mounted| format!(", but on {} (mounted on {})", mounted.kind, mounted.point.display()));
    Failure::new(format!("{place} is not on a btrfs volume{}; {hint}", found.unwrap_or_default()))
}

/// Returns who has mounted it, if the mount table says so.
pub fn mounter_of(mounted: &Mounted) -> Option<String> {
    mounted.user.map(|user| if user == 0 { "root".into() } else { format!("user {user}") })
}

/// Whether a file system with this device number is mounted anywhere.
pub fn is_mounted_anywhere(device: (u32, u32)) -> Result<bool> {
    Ok(!points_of(device)?.is_empty())
}

/// Returns the mount points of a file system.
pub fn points_of(device: (u32, u32)) -> Result<Vec<PathBuf>> {
    let all = all().map_err(|error| Failure::about(TABLE, &error))?;
    Ok(all.into_iter().filter(|mounted| mounted.device == device).map(|mounted| mounted.point).collect())
}

/// Returns the path as the mount table has it, even if the server of the mount there has died.
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
        assert_eq!(holding(Path::new("/proc/self/mountinfo")).unwrap().point, Path::new("/proc"));
    }
}

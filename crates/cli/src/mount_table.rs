//! What is mounted where.

use std::path::{Path, PathBuf};

pub use ubtrfs_mounts::{Mounted, TABLE};

use crate::failure::{Failure, Result};

/// Everything that is mounted.
pub fn all() -> std::io::Result<Vec<Mounted>> {
    ubtrfs_mounts::all()
}

/// What is mounted on `path` and seen there.
pub fn mounted_on(path: &Path) -> Result<Option<Mounted>> {
    let all = all().map_err(|error| Failure::about(TABLE, &error))?;
    // Of several on one another the last is seen.
    Ok(all.into_iter().rfind(|mounted| mounted.point == path))
}

/// The mount that a path is on, as the mount table tells, so that no server is asked.
pub fn holding(path: &Path) -> Option<Mounted> {
    let path = resolve(path).ok()?;
    let holds = all().ok()?.into_iter().filter(|mounted| path.starts_with(&mounted.point));
    // Of several on one another the last is seen.
    holds.max_by_key(|mounted| mounted.point.components().count())
}

/// Fails because a place is on another file system, which is named.
pub fn not_on_btrfs(place: &str) -> Failure {
    let hint = "name a directory on the mount of one, or IMAGE:PATH in one that is not mounted";
    let found = holding(Path::new(place))
        .map(|mounted| format!(", but on {} (mounted on {})", mounted.kind, mounted.point.display()));
    Failure::new(format!("{place} is not on a btrfs volume{}; {hint}", found.unwrap_or_default()))
}

/// Who has mounted it, if the table says so.
pub fn mounter_of(mounted: &Mounted) -> Option<String> {
    mounted.user.map(|user| if user == 0 { "root".into() } else { format!("user {user}") })
}

/// Whether anything of this device number is mounted.
pub fn is_mounted_anywhere(device: (u32, u32)) -> Result<bool> {
    Ok(!points_of(device)?.is_empty())
}

/// The places where the mount table shows a file system.
pub fn points_of(device: (u32, u32)) -> Result<Vec<PathBuf>> {
    let all = all().map_err(|error| Failure::about(TABLE, &error))?;
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
        assert_eq!(holding(Path::new("/proc/self/mountinfo")).unwrap().point, Path::new("/proc"));
    }
}

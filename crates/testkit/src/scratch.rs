//! Temporary directories whose names have the id of the process that made them, so that a later
//! test can recognise and remove the mounts and loop devices of one that was killed.

use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::run::{command, run};
use ubtrfs_mounts::Mounted;

const PREFIX: &str = "ubtrfs-test-";

/// Makes an empty directory, which is removed on drop. First removes what earlier, killed tests
/// left mounted or attached.
pub fn scratch_dir() -> tempfile::TempDir {
    static SWEEP: Once = Once::new();
    SWEEP.call_once(sweep);
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir()
        .expect("a temporary directory")
}

/// Returns the directories where something is mounted, as `/proc/self/mountinfo` shows them.
pub fn mount_points() -> Vec<PathBuf> {
    mount_table().into_iter().map(|m| m.dir).collect()
}

/// One line of the mount table.
pub(crate) struct MountLine {
    /// The mount point.
    pub dir: PathBuf,
    /// `major:minor` of the mounted file system.
    pub device: String,
}

pub(crate) fn mount_table() -> Vec<MountLine> {
    let line = |mounted: Mounted| MountLine {
        dir: mounted.point,
        device: format!("{}:{}", mounted.device.0, mounted.device.1),
    };
    ubtrfs_mounts::all().unwrap_or_default().into_iter().map(line).collect()
}

/// Returns the process that made `path`, if it is in a directory of [`scratch_dir`].
fn maker(path: &Path) -> Option<u32> {
    path.components().find_map(|part| {
        let rest = part.as_os_str().to_str()?.strip_prefix(PREFIX)?;
        rest.split('-').next()?.parse().ok()
    })
}

fn is_orphaned(path: &Path) -> bool {
    maker(path).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn sweep() {
    for dir in mount_points().into_iter().filter(|dir| is_orphaned(dir)) {
        run(command("umount", &["-l"]).arg(&dir));
    }
    let listed = run(&mut command("losetup", &["--list", "--noheadings", "--raw", "-O", "NAME,BACK-FILE"]));
    for line in listed.stdout.lines() {
        if let Some((device, file)) = line.split_once(' ')
            && is_orphaned(Path::new(file))
        {
            run(&mut command("losetup", &["-d", device]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_is_read_from_the_name() {
        let dir = scratch_dir();
        assert_eq!(maker(dir.path()), Some(std::process::id()));
        assert!(!is_orphaned(dir.path()));
        assert!(is_orphaned(Path::new("/tmp/ubtrfs-test-4294967290-abc/x")));
        assert!(!is_orphaned(Path::new("/tmp/other")));
    }

    #[test]
    fn the_root_is_a_mount_point() {
        assert!(mount_points().iter().any(|dir| dir == Path::new("/")));
    }
}

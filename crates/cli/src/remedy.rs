//! Says what to do about a device that can't be opened, where that is known.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ubtrfs_fuse::mount::is_dead;
use ubtrfs_volume::{Error, absolute_name, backing_file, is_remote, mount_table};

use crate::failure::{Failure, Result};

/// The text about a mount whose server has died.
pub const NO_SERVER: &str = "the server of this mount is no more";

/// Returns the failure about a mount whose server has died, and what to do about it.
pub fn about_dead_mount(subject: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{subject}: {NO_SERVER}; `ubtrfs umount` clears the mount"))
}

/// Returns an error if a mount is one of the kernel's, for what only mounts of ubtrfs can do.
pub fn only_on_ours(what: &str, place: &Path, is_of_the_kernel: bool) -> Result<()> {
    if !is_of_the_kernel {
        return Ok(());
    }
    Err(Failure::new(format!("{}: it is a mount of the kernel's: {what} is for mounts of ubtrfs", place.display())))
}

/// Returns the error about what only a mounted volume can do.
pub fn only_on_mounts(what: &str) -> Failure {
    Failure::new(format!("{what} is for volumes that are mounted: name a directory on the mount"))
}

/// Returns the failure about a device that can't be opened, and what to do about it.
pub fn about_device(error: &Error) -> Failure {
    let remedy = match error {
        Error::NotADevice { path } if is_dead(path) => {
            return about_dead_mount(path.display());
        }
        Error::NotADevice { path } if path.is_dir() => Some("it is a directory: name the image or the device".into()),
        Error::Open { path, source } if is_remote(path) => of_server(source.kind()).map(Into::into),
        Error::Open { path, source } if source.kind() == ErrorKind::PermissionDenied => Some(permission(path)),
        Error::Open { source, .. } if source.kind() == ErrorKind::ReadOnlyFilesystem => Some(READ_ONLY.into()),
        Error::Held { path, .. } => mounted_at(path).map(|point| {
            let point = point.display();
            format!("it is mounted on {point}: work on that, or end it with 'ubtrfs umount {point}'")
        }),
        _ => None,
    };
    let failure = Failure::of(error);
    match remedy {
        Some(remedy) => failure.map_sentence(|sentence| format!("{sentence}; {remedy}")),
        None => failure,
    }
}

const READ_ONLY: &str = "commands that only read, and mounts with -o ro, work all the same";

/// Returns what to do about a server that can't be reached, or refuses writes.
fn of_server(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::ReadOnlyFilesystem => Some(READ_ONLY),
        ErrorKind::ConnectionRefused => Some("no server listens there: start it, or name its port or its socket"),
        ErrorKind::NotFound => Some("there is no such socket: start the server, or name the socket that it has"),
        ErrorKind::PermissionDenied => Some("the socket belongs to somebody else: its owner can let you ('chmod')"),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            Some("the server does not answer; it may serve another client, and no more than one at a time")
        }
        _ => None,
    }
}

/// Why no chunk can be moved off a device, and what to do about it.
pub const WITHOUT_FREE_SPACE_TREE: &str =
    "the volume has no free-space tree, so no chunk goes: a mount by the kernel with -o space_cache=v2 makes one";

/// What to do about a volume whose trees can't be read: the end of a sentence.
pub const OF_DAMAGE: &str = "; 'ubtrfs restore' copies what can be read, 'ubtrfs history' lists older commits, and a mount \
     with -o ro,rescue=all shows what is left";

fn permission(path: &Path) -> String {
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()) {
        return "root may open it (sudo), or a member of the group that the device belongs to".into();
    }
    // On another user's mount not even root has access.
    let holding = crate::mount_table::holding(path).filter(|on| on.kind.starts_with("fuse"));
    if let Some(user) =
        holding.as_ref().and_then(|on| on.user).filter(|user| *user != rustix::process::geteuid().as_raw())
    {
        return format!("it is on a mount of user {user}, whom alone it is for unless it was mounted with allow_other");
    }
    "its owner can let you ('chmod'), or root can do this (sudo)".into()
}

/// Returns where ubtrfs has mounted a device, image or export in this mount namespace.
fn mounted_at(path: &Path) -> Option<PathBuf> {
    if is_remote(path) {
        let uri = absolute_name(path).ok()?;
        return find_ours(|source| source == uri);
    }
    let wanted = std::fs::metadata(path).ok()?;
    let is_it = |source: &Path| {
        let Ok(found) = std::fs::metadata(source) else { return false };
        if (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()) {
            return true;
        }
        // The source of a mount by root is a loop device.
        let image = backing_file(found.rdev()).and_then(|image| std::fs::metadata(image).ok());
        image.is_some_and(|image| (image.dev(), image.ino()) == (wanted.dev(), wanted.ino()))
    };
    find_ours(is_it)
}

/// Returns where ubtrfs has mounted the first source for which `is_meant` is true.
fn find_ours(is_meant: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let all = mount_table::all().ok()?;
    all.into_iter().find(|mounted| mounted.is_ours() && is_meant(&mounted.source)).map(|mounted| mounted.point)
}

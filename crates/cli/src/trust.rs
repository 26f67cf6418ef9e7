//! Finds out, by the kernel, whose mount something is on. A server that is neither root's nor ours
//! may give any answer: what it names is neither opened nor connected to (invariant 39).

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

use crate::failure::{Failure, Result};
use crate::mount_table::{self, Mounted};

/// Whether root or the user of this process serves a mount.
pub fn is_trusted(mounted: &Mounted) -> bool {
    let is_trusted = |user: u32| user == 0 || user == rustix::process::geteuid().as_raw();
    // In the mount table of another user namespace the user numbers are those of that namespace.
    mounted.user.is_some_and(is_trusted) && !is_in_namespace_of_others()
}

/// Returns an error unless root or the user of this process serves the mount that `directory` is
/// on.
pub fn require_trusted(directory: &Path) -> Result<()> {
    // The kernel knows the device number without the server.
    let found = rustix::fs::statx(CWD, directory, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    let found = found.map_err(|errno| Failure::about(directory.display(), &std::io::Error::from(errno)))?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    let is_trusted = |all: Vec<Mounted>| {
        let mut of_device = all.iter().filter(|mounted| mounted.device == device).peekable();
        of_device.peek().is_some() && of_device.all(is_trusted)
    };
    let all = mount_table::all().map_err(|error| Failure::about(mount_table::TABLE, &error))?;
    let is_served = |mounted: &Mounted| mounted.kind.starts_with("fuse") || mounted.kind == "btrfs";
    if all.iter().any(|mounted| mounted.device == device && !is_served(mounted)) {
        return Err(mount_table::not_on_btrfs(&directory.display().to_string()));
    }
    if !is_trusted(all) {
        let why =
            "another user serves this mount, and the devices that it names are not opened for you: that user can ask";
        // By invariant 39: what the server names would be opened with our rights.
        return Err(Failure::new(format!("{}: {why}", directory.display())));
    }
    Ok(())
}

/// Whether the mount namespace of this process belongs to a user namespace below that of the
/// process, as that of a container which root has entered.
fn is_in_namespace_of_others() -> bool {
    let Ok(namespace) = File::open("/proc/self/ns/mnt") else { return true };
    // SAFETY: this command has no argument, and returns a new descriptor.
    match unsafe { ioctl(&namespace, OwnerOfNamespace) } {
        Ok(owner) => {
            let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino())).ok();
            let own = File::open("/proc/self/ns/user").ok();
            own.as_ref().and_then(identity) != identity(&File::from(owner))
        }
        // The mount namespace belongs to a user namespace above that of the process, where only
        // privileged users can mount.
        Err(Errno::PERM) => false,
        Err(_) => true,
    }
}

/// `NS_GET_USERNS`: returns the user namespace that owns a namespace.
struct OwnerOfNamespace;

// SAFETY: the command has no argument, and its result is a new descriptor, which has no other
// owner.
unsafe impl Ioctl for OwnerOfNamespace {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        0xb701
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel has just opened the descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mount_namespace_belongs_to_our_user_namespace() {
        assert!(!is_in_namespace_of_others());
    }

    /// Invariant 39.
    #[test]
    fn what_no_table_has_is_not_trusted() {
        assert!(require_trusted(Path::new("/no/such/place")).is_err());
        assert!(require_trusted(Path::new("/proc")).is_err(), "its table names no user");
    }
}

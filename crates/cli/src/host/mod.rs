//! The host's files, as what commands write: no other module of the program writes to any of them,
//! but for devices and image files themselves.

pub mod destination;
pub mod replacement;
pub mod sources;
pub mod target;

/// Permissions that new files don't get (umask(2)). There are no other threads yet that make files.
pub fn umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

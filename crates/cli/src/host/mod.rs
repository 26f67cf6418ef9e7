//! The files of the host that commands write. No other module of the program writes to them, except
//! to devices and image files themselves.

pub mod destination;
pub mod replacement;
pub mod sources;
pub mod target;

/// Returns the permissions that new files don't get (umask(2)). It must be called before other
/// threads make files, since it changes the mask briefly.
pub fn umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

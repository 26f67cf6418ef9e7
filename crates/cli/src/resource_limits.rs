//! The resource limits (`ulimit`) that this process has inherited.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;

use crate::failure::{Failure, Result};

/// The number of open files that a server needs besides those of its devices. Without them it could
/// start, but could not end properly.
const DESCRIPTORS: u64 = 64;

/// Has a write beyond the limit of the file size fail, like one to a full disk. Otherwise the
/// signal that comes with it would end the process in the middle of its work.
pub fn fail_at_file_size() {
    // The flag is not read; it only serves to have a handler.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Raises the limits of a server as far as possible, since all users of the mount share them.
/// Returns an error if a limit is still too low: the mount would turn read-only, or could not end
/// properly.
pub fn raise_for_server(files: &[PathBuf], may_write: bool) -> Result<()> {
    let needed = DESCRIPTORS + files.len() as u64;
    if raised(Resource::Nofile).is_some_and(|most| most < needed) {
        return Err(Failure::new(format!(
            "the limit of open files (ulimit -n) is too low for a mount, which takes up to {needed}"
        )));
    }
    let Some(bytes) = raised(Resource::Fsize).filter(|_| may_write) else { return Ok(()) };
    let is_beyond = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|is| is.is_file() && is.len() > bytes);
    match files.iter().find(is_beyond) {
        Some(file) => Err(Failure::new(format!(
            "{} is larger than the limit of a file's size (ulimit -f), which is {bytes} bytes: writes behind that would \
             fail; raise the limit, or mount with -o ro",
            file.display()
        ))),
        None => Ok(()),
    }
}

/// Raises a limit as far as possible, and returns it; `None` if there is no limit.
fn raised(resource: Resource) -> Option<u64> {
    let limit = getrlimit(resource);
    // Only a process with CAP_SYS_RESOURCE can raise the hard limit.
    let unlimited = Rlimit { current: None, maximum: None };
    if resource != Resource::Nofile && setrlimit(resource, unlimited).is_ok() {
        return None;
    }
    let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    getrlimit(resource).current
}

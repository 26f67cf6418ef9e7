//! The resource limits of this process (`ulimit`), which it has inherited.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;

use crate::failure::{Failure, Result};

/// Open files that a server needs besides those of its devices: without them it could begin, and
/// then not end.
const DESCRIPTORS: u64 = 64;

/// Has a write behind the limit of a file's size fail, as one to a full disk, where the signal that
/// comes with it would end the process in the middle of what it does.
pub fn fail_at_file_size() {
    // What the flag says is of no use; that there is a handler is.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Raises the limits of a server to what may be had, for all who use the mount share them. An error
/// if a limit is still too low: the mount would turn read-only, or its end would fail.
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

/// A limit, after it was raised as far as it may be; `None` if there is none.
fn raised(resource: Resource) -> Option<u64> {
    let limit = getrlimit(resource);
    // Only a process with CAP_SYS_RESOURCE raises what it can't have otherwise.
    let unlimited = Rlimit { current: None, maximum: None };
    if resource != Resource::Nofile && setrlimit(resource, unlimited).is_ok() {
        return None;
    }
    let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    getrlimit(resource).current
}

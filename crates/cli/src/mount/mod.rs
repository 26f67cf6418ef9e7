//! `ubtrfs mount`: in the foreground, or by a server in the background whose start this waits for.

mod background;
mod ending;
pub mod helper;
mod ignored;
mod log;
mod notify;
mod options;
mod protect;
mod serve;

use std::path::{Path, PathBuf};

use crate::args;
use crate::failure::{Failure, Result};
use options::MountRequest;
use serve::Job;

/// `ubtrfs mount`
pub fn run(arguments: &args::Mount) -> Result<()> {
    let request = MountRequest::parse(&arguments.options)?;
    let Some((directory, devices)) = arguments.places.split_last() else {
        return Err(Failure::new("a device and a directory are needed"));
    };
    // A server in the background is given all devices as such.
    let more = if arguments.server { &[] } else { &*request.devices };
    let devices = devices.iter().chain(more);
    let job = Job {
        devices: devices.map(|path| absolute(path)).collect::<Result<_>>()?,
        directory: absolute(directory)?,
        request,
    };
    if arguments.server {
        background::detach()?;
        log::to_system_log();
        serve::serve(&job, background::ready)
    } else if arguments.foreground {
        log::to_standard_error();
        serve::serve(&job, || Ok(()))
    } else {
        background::start(&arguments.options, &job)
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::about(path.display(), &error))
}

/// When a process started, in the clock ticks of the kernel: the 22nd field of its `stat`, the second of which (the name, in
/// parentheses) may hold anything.
pub fn started(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_started_once() {
        let own = super::started("self");
        assert!(own.is_some());
        assert_eq!(own, super::started(&std::process::id().to_string()));
        assert_eq!(super::started("0"), None);
    }
}

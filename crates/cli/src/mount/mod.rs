//! `ubtrfs mount`: in the foreground, or by a server in the background whose start this waits for.

mod background;
mod ending;
pub mod helper;
mod ignored;
mod log;
mod notify;
mod options;
mod protect;
mod remount;
mod serve;

use std::path::{Path, PathBuf};

use crate::args;
use crate::failure::{Failure, Result};
use options::MountRequest;
use serve::Job;

/// `ubtrfs mount`
pub fn run(arguments: &args::Mount) -> Result<()> {
    if let (true, Some(directory)) = (remount::is_wanted(&arguments.options), arguments.places.last()) {
        return remount::run(&arguments.options, directory);
    }
    let request = MountRequest::parse(&arguments.options)?;
    let [devices @ .., directory] = &*arguments.places else {
        return Err(Failure::new("a device and a directory are needed"));
    };
    if devices.is_empty() {
        return Err(Failure::new("a device and a directory are needed"));
    }
    // A server in the background is given all devices as such.
    let more = if arguments.server { &[] } else { &*request.devices };
    let devices = devices.iter().chain(more);
    let job = Job {
        devices: devices.map(|path| absolute(path)).collect::<Result<_>>()?,
        directory: absolute(directory)?,
        options: each(&arguments.options).map(Into::into).collect(),
        request,
    };
    if !arguments.server {
        for option in &job.options {
            if let Some(remark) = ignored::remark(option) {
                eprintln!("ubtrfs: mount option '{option}' has no effect: {remark}");
            }
        }
    }
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

/// The options in lists of them.
fn each(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::about(path.display(), &error))
}

/// When a process started, in the clock ticks of the kernel: the 22nd field of its `stat`, the
/// second of which (the name, in parentheses) may hold anything.
pub fn started(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_alone_is_not_enough_to_mount() {
        let arguments =
            args::Mount { options: Vec::new(), foreground: false, server: false, places: vec!["dir".into()] };
        let refused = run(&arguments);
        assert!(matches!(refused, Err(Failure::Sentence(sentence, _)) if sentence.contains("are needed")));
    }

    #[test]
    fn a_process_has_started_once() {
        let own = super::started("self");
        assert!(own.is_some());
        assert_eq!(own, super::started(&std::process::id().to_string()));
        assert_eq!(super::started("0"), None);
    }
}

//! `ubtrfs mount`: mounts in the foreground, or starts a server in the background and waits until
//! the mount is ready.

mod aborted;
mod again;
mod background;
mod ending;
pub mod helper;
mod log;
mod log_limit;
pub mod near;
mod notify;
mod offers;
mod option;
mod option_table;
mod options;
mod protect;
mod remount;
mod request;
mod serve;
mod syncs;
#[cfg(test)]
mod table_tests;
mod tied;
mod watcher;

use std::path::{Path, PathBuf};

use ubtrfs_volume::is_remote;

use crate::args;
use crate::device::{all_of_volume, all_that_is_there, is_seed, superblock_on};
use crate::failure::{Failure, Result};
use crate::members::add_of_options;
use crate::output::note;
pub use near::offered as offered_options;
use options::each;
use request::MountRequest;
use serve::Job;

/// The directory that exists if the kernel's security module `SELinux` is active.
const SELINUX: &str = "/sys/fs/selinux";

/// `ubtrfs mount`
pub fn run(arguments: &args::Mount) -> Result<()> {
    if arguments.watcher {
        return watcher::run();
    }
    if let (true, Some(directory)) = (remount::is_wanted(&arguments.options), arguments.places.last()) {
        return remount::run(&arguments.options, directory);
    }
    let mut request = MountRequest::parse(&arguments.options)?;
    request.given_up =
        arguments.discard_device.iter().map(|device| number_or_absolute(device)).collect::<Result<_>>()?;
    let [devices @ .., directory] = &*arguments.places else {
        return Err(Failure::new("a device and a directory are needed: ubtrfs mount DEVICE DIR").with_status(2));
    };
    if devices.is_empty() {
        return Err(Failure::new("a device and a directory are needed: ubtrfs mount DEVICE DIR").with_status(2));
    }
    if request.read_only && !request.given_up.is_empty() {
        return Err(Failure::new("--discard-device makes a device as the others are, which takes a mount that writes"));
    }
    if let (Some(option), false) = (request.security.first(), Path::new(SELINUX).exists()) {
        return Err(Failure::new(format!("mount option '{option}' is not possible: SELinux is not on in this kernel")));
    }
    let all_absolute = |paths: &[PathBuf]| paths.iter().map(|path| absolute(path)).collect::<Result<Vec<_>>>();
    let mut devices = all_absolute(devices)?;
    // A server in the background gets all devices as arguments.
    if !arguments.server {
        add_of_options(&mut devices, all_absolute(&request.devices)?);
    }
    let window = request.window();
    let devices = match &request {
        _ if arguments.server => devices,
        MountRequest { degraded: true, timeout, .. } => all_that_is_there(&devices, window, *timeout)?,
        _ => all_of_volume(&devices, window)?,
    };
    let mut options = arguments.options.clone();
    if !request.read_only && !arguments.server && is_seed(&devices, window) {
        note!("ubtrfs: the volume is a seed, which is only read: it is mounted with ro");
        options.push("ro".into());
        request.read_only = true;
    }
    let directory = absolute(directory)?;
    let is_own_process = arguments.server || arguments.foreground || arguments.tied_to.is_some();
    let may_be_shared = rustix::process::geteuid().is_root() && !is_own_process && serve::can_be_shared(&request);
    // No server is asked for the superblock of its export, which is identified by its name.
    let superblock_of = |device: &PathBuf| if is_remote(device) { None } else { superblock_on(device, window) };
    let is_there = |device: &&PathBuf| !request.degraded || is_remote(device) || superblock_of(device).is_some();
    let first = devices.iter().find(is_there).filter(|_| may_be_shared);
    let superblock = first.and_then(superblock_of);
    let may_be_again = superblock.is_some() || first.is_some_and(is_remote);
    let mut turns = Vec::new();
    if may_be_again {
        serve::check_mount_point(&directory)?;
        turns = again::wait_for_turn(&devices, superblock.as_ref());
        let (given, request, superblock) = (&*options, &request, superblock.as_ref());
        let options = &serve::mount_options(&devices, request, true);
        let (devices, directory) = (&*devices, &*directory);
        if again::mount(&again::Wanted { devices, superblock, directory, given, request, options })? {
            return Ok(());
        }
    }
    let job = Job {
        devices,
        directory,
        options: each(&options).map(Into::into).collect(),
        request,
        tied_to: arguments.tied_to,
    };
    if !arguments.server {
        let is_root = rustix::process::geteuid().is_root();
        for option in &job.options {
            if let Some(remark) = option_table::find(option).and_then(|given| given.remark(is_root)) {
                note!("ubtrfs: mount option '{option}' has no effect: {remark}");
            }
        }
    }
    if arguments.server {
        background::detach()?;
        log::to_system_log();
        let served = serve::serve(&job, background::ready);
        log_limit::say_what_was_left_out();
        served
    } else if arguments.foreground {
        log::to_standard_error();
        let served = serve::serve(&job, || Ok(()));
        log_limit::say_what_was_left_out();
        served
    } else {
        let started = background::start(&options, &job);
        drop(turns);
        started
    }
}

/// Returns the number of a device, or its path as an absolute one.
fn number_or_absolute(device: &str) -> Result<String> {
    let is_number = device.parse::<u64>().is_ok();
    if is_number { Ok(device.into()) } else { Ok(absolute(Path::new(device))?.display().to_string()) }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    ubtrfs_volume::absolute_name(path).map_err(|error| Failure::of(&error))
}

/// Returns the part of its devices that a mount with these options uses.
pub fn window_of_options(options: &[String]) -> Result<args::Window> {
    MountRequest::parse(options).map(|request| request.window())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_alone_is_not_enough_to_mount() {
        let arguments = args::Mount {
            options: Vec::new(),
            foreground: false,
            discard_device: Vec::new(),
            server: false,
            tied_to: None,
            watcher: false,
            places: vec!["dir".into()],
        };
        let refused = run(&arguments);
        assert!(matches!(refused, Err(Failure::Sentence(sentence, _)) if sentence.contains("are needed")));
    }
}

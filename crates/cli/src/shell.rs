//! `ubtrfs shell`: runs a command as root on a mounted image, in namespaces of its own.
//!
//! The caller becomes root in a user namespace with the subordinate ids of the caller (subuid(5)),
//! as with `podman unshare`. There other owners, ACLs, set-id bits and capabilities of the volume's
//! files can be set and have their effect, which the kernel refuses on an ordinary user's mount.
//! The mount is in a mount namespace that ends with the command. unshare(1) makes both namespaces,
//! since newuidmap(1), which is set-uid, assigns the ids.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use ubtrfs_fuse::mount::{Unmount, unmount};

use ubtrfs_volume::{absolute_name, is_remote};

use crate::args;
use crate::failure::{Failure, Result};
use crate::output::note;

/// A shell returns this number plus that of the signal for a program that a signal ended.
const ENDED_BY_SIGNAL: i32 = 128;

/// `ubtrfs shell`
pub fn run(arguments: &args::Shell) -> Result<()> {
    if arguments.inside { inside(arguments) } else { Err(enter(arguments)?) }
}

/// Enters the namespaces. Returns only if that fails, with the failure.
fn enter(arguments: &args::Shell) -> Result<Failure> {
    let image = if is_remote(&arguments.image) {
        absolute_name(&arguments.image).map_err(|error| Failure::of(&error))?
    } else {
        std::fs::canonicalize(&arguments.image).map_err(|error| Failure::about(arguments.image.display(), &error))?
    };
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private"]);
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
        if !arguments.single_id {
            if !has_subordinate_ids() {
                return Err(Failure::new(
                    "you have no subordinate ids, by which files could belong to others than root: root gives you some with \
                     'usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER', and installs newuidmap \
                     (Debian: uidmap); or be the only user there, with --single-id",
                ));
            }
            unshare.arg("--map-auto");
        }
    }
    let own = std::env::current_exe().map_err(|error| Failure::about("/proc/self/exe", &error))?;
    unshare.arg("--").arg(own).args(["shell", "--inside"]);
    if let Some(options) = &arguments.options {
        unshare.arg("-o").arg(options);
    }
    unshare.arg("--").arg(image).args(&arguments.command);
    Ok(Failure::about("unshare(1), of util-linux", &unshare.exec()))
}

/// Whether newuidmap(1) gives the caller ids, according to `/etc/subuid`.
fn has_subordinate_ids() -> bool {
    let user = rustix::process::getuid().as_raw().to_string();
    let name = std::fs::read_to_string("/etc/passwd").ok().and_then(|users| {
        let mut users = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        users.find(|fields| fields.get(2) == Some(&user.as_str())).map(|fields| fields[0].to_owned())
    });
    let has = |file: &str| {
        std::fs::read_to_string(file).is_ok_and(|ranges| {
            let owners = ranges.lines().filter_map(|line| line.split(':').next().map(str::to_owned));
            let mut owners = owners.into_iter();
            owners.any(|owner| owner == user || Some(&owner) == name.as_ref())
        })
    };
    let has_program = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(name).exists())
    };
    has("/etc/subuid") && has("/etc/subgid") && has_program("newuidmap") && has_program("newgidmap")
}

/// Mounts the image, runs the command in it, and unmounts it.
fn inside(arguments: &args::Shell) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("ubtrfs-").tempdir();
    let directory = directory.map_err(|error| Failure::about(std::env::temp_dir().display(), &error))?;
    // The directory must never be removed recursively: as long as the volume is mounted there, its
    // content is the volume's.
    let directory = directory.keep();
    let done = in_mount(arguments, &directory);
    if let Err(error) = std::fs::remove_dir(&directory) {
        note!("ubtrfs: {} stays: {error}", directory.display());
    }
    let status = done?;
    match status.code().or_else(|| status.signal().map(|signal| ENDED_BY_SIGNAL + signal)) {
        Some(0) => Ok(()),
        code => Err(Failure::Said(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
    }
}

fn in_mount(arguments: &args::Shell, directory: &Path) -> Result<ExitStatus> {
    // Set-id programs of the volume have their effect within the namespace.
    let mut options = OsString::from("suid");
    if let Some(more) = &arguments.options {
        options.push(",");
        options.push(more);
    }
    // If this process is killed, the server unmounts once all processes that the command has
    // started have ended.
    let tied = format!("--tied-to={}", std::process::id());
    let mut mount: Vec<OsString> = vec!["mount".into(), tied.into(), "-o".into(), options];
    mount.extend([arguments.image.clone().into(), directory.into()]);
    own_command(&mount)?;
    let done = run_in(directory, &arguments.command);
    if let Err(failure) = own_command(&["umount".into(), directory.into()]) {
        // Processes that the command has left running keep the mount in use; the server ends with
        // the last of them.
        unmount(directory, Unmount::Lazy).map_err(|error| Failure::about(directory.display(), &error))?;
        note!("ubtrfs: the volume stays in use until what the command has left running ends");
        return Err(failure);
    }
    done
}

/// Runs a command of this program, which reports its own failure.
fn own_command(arguments: &[OsString]) -> Result<()> {
    let own = std::env::current_exe().map_err(|error| Failure::about("/proc/self/exe", &error))?;
    let status = Command::new(&own).args(arguments).status().map_err(|error| Failure::about(own.display(), &error))?;
    if status.success() { Ok(()) } else { Err(Failure::Said(1)) }
}

/// Runs the command, or the user's shell, in the mount.
fn run_in(directory: &Path, command: &[OsString]) -> Result<ExitStatus> {
    // Signals of the terminal are meant for the command, and the volume must be unmounted in any
    // case.
    for signal in [SIGINT, SIGQUIT, SIGTERM, SIGHUP] {
        let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).map_err(|error| Failure::about("signals", &error))?;
    }
    let shell = || vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())];
    let command = if command.is_empty() { shell() } else { command.to_vec() };
    let mut line = Command::new(&command[0]);
    line.args(&command[1..]).current_dir(directory).env("UBTRFS_MOUNT", directory);
    line.status().map_err(|error| Failure::about(Path::new(&command[0]).display(), &error).with_status(127))
}

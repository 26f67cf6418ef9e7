//! Talking to the server of a mount: `ubtrfs sync`, and what `stats` and `umount` ask.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use ubtrfs_server::control::{READ_ONLY, Report, STATS, SYNC, WRITABLE};
use ubtrfs_tree::sentence;

use crate::args;
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::mount_table::{self, Mounted};

/// What is said of a mount that nobody serves.
const DEAD: &str = "the server of this mount is no more";
/// Room for an answer.
const ROOM: usize = 64 << 10;

/// How long is waited for what the kernel writes.
const TIMEOUT: Duration = Duration::from_secs(2);

/// `ubtrfs sync`: the kernel writes what it holds of changes, mapped pages among them, and then the
/// server commits. On mounts of the type `fuse` the kernel does not ask it to, nor does it wait for
/// what it writes.
pub fn sync(arguments: &args::Directory) -> Result<()> {
    let path = &arguments.directory;
    if let Ok(open) = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        rustix::fs::syncfs(&open).map_err(|errno| failure(path, errno))?;
        let found = rustix::fs::statx(&open, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        // A number without a block device: the type is `fuse`.
        if let Ok(found) = found
            && found.stx_dev_major == 0
        {
            Connection::of((found.stx_dev_major, found.stx_dev_minor)).is_idle_within(TIMEOUT);
        }
    }
    ask(path, SYNC).map(drop).map_err(|errno| failure(path, errno))
}

/// The statistics of the server of the mount at `path`, as JSON.
pub fn statistics(path: &Path) -> std::result::Result<Vec<u8>, Errno> {
    ask(path, STATS)
}

/// The same, parsed.
pub fn report(path: &Path) -> std::result::Result<Report, Errno> {
    serde_json::from_slice(&statistics(path)?).map_err(|_| Errno::PROTO)
}

/// Has the server of the mount at `path`, which the kernel has made read-only, stop all writing
/// once what was changed is durable.
pub fn stop_writing(path: &Path) -> std::result::Result<(), Errno> {
    ask(path, READ_ONLY).map(drop)
}

/// Has the server write again.
pub fn write_again(path: &Path) -> std::result::Result<(), Errno> {
    ask(path, WRITABLE).map(drop)
}

/// Makes everything durable on the mount at `path`.
pub fn sync_mount(path: &Path) -> std::result::Result<(), Errno> {
    ask(path, SYNC).map(drop)
}

fn ask(path: &Path, name: &str) -> std::result::Result<Vec<u8>, Errno> {
    let mut answer = vec![0; ROOM];
    match rustix::fs::getxattr(path, name, &mut answer[..]) {
        Ok(length) => {
            answer.truncate(length);
            Ok(answer)
        }
        Err(Errno::ACCESS) if matches!(name, STATS | SYNC) && rustix::process::geteuid().is_root() => {
            ask_as_owner(path, name)
        }
        Err(errno) => Err(errno),
    }
}

/// Without `allow_other` not even root may look into another user's mount: asks in that user's
/// name.
fn ask_as_owner(path: &Path, name: &str) -> std::result::Result<Vec<u8>, Errno> {
    let mounted = mount_table::resolve(path).ok().and_then(|path| mount_table::mounted_on(&path).ok()).flatten();
    let Some(Mounted { user: Some(user), group: Some(group), .. }) = mounted else { return Err(Errno::ACCESS) };
    if user == 0 {
        return Err(Errno::ACCESS);
    }
    let mut command = Command::new("/proc/self/exe");
    match name {
        SYNC => command.arg("sync"),
        _ => command.args(["stats", "--json"]),
    };
    let output = command.arg("--").arg(path).uid(user).gid(group).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains(DEAD) => Err(Errno::NOTCONN),
        _ => Err(Errno::IO),
    }
}

/// Why the server at `path` doesn't answer.
pub fn failure(path: &Path, errno: Errno) -> Failure {
    let path = path.display();
    Failure::new(match errno {
        Errno::OPNOTSUPP | Errno::NODATA => format!("{path} is not on a volume that ubtrfs has mounted"),
        Errno::NOTCONN => format!("{path}: {DEAD}; `ubtrfs umount` clears the mount"),
        Errno::ACCESS => format!("{path}: permission denied"),
        Errno::NOENT => format!("{path}: no such file or directory"),
        errno => format!("{path}: {}", sentence(&std::io::Error::from(errno))),
    })
}

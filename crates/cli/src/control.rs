//! Communication with the server of a mount: `ubtrfs sync`, and the requests of `stats` and
//! `umount`. Some mounts get the requests from another user (invariant 53).

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid, dumpable_behavior, geteuid, getuid, set_dumpable_behavior, setsid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use ubtrfs_errors::sentence;
use ubtrfs_fuse::Connection;
use ubtrfs_server::control::{Report, STATS};

use crate::args;
use crate::failure::{Failure, Result};
use crate::ioctls::Mounted as OpenFile;
use crate::mount_table::{self, Mounted};
use crate::process;
use crate::remedy::{NO_SERVER, about_dead_mount};

/// The size of the buffer for statistics, in bytes.
const ROOM: usize = 64 << 10;
/// The requests that [`answer_as`] serves.
const SYNC: &str = "sync";
const STATISTICS: &str = "stats";

type Done<T> = std::result::Result<T, Errno>;

/// How long the kernel's writeback is waited for.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long root waits for the server of another user's mount.
pub const TIMEOUT_OF_OTHERS: Duration = Duration::from_secs(60);

/// `ubtrfs sync`: the kernel writes its dirty pages back, mapped ones included, and then the server
/// commits. On mounts of the type `fuse` the kernel neither requests the commit nor waits for its
/// writes.
pub fn sync(arguments: &args::Directory) -> Result<()> {
    let path = &arguments.directory;
    if let Ok(open) = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        rustix::fs::syncfs(&open).map_err(|errno| failure(path, errno))?;
        let found = rustix::fs::statx(&open, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
        // A device number without a block device means that the mount has the type `fuse`.
        if let Ok(found) = found
            && found.stx_dev_major == 0
        {
            Connection::of((found.stx_dev_major, found.stx_dev_minor)).is_idle_within(TIMEOUT);
        }
    }
    sync_mount(path).map_err(|errno| failure(path, errno))
}

/// Returns the statistics of the server of the mount at `path`, as JSON.
pub fn statistics(path: &Path) -> Done<Vec<u8>> {
    let mut answer = vec![0; ROOM];
    match rustix::fs::getxattr(path, STATS, &mut answer[..]) {
        Ok(length) => {
            answer.truncate(length);
            Ok(answer)
        }
        Err(Errno::ACCESS) if geteuid().is_root() => ask_as_owner(path, STATISTICS),
        Err(errno) => Err(errno),
    }
}

/// Returns the statistics of the server of the mount at `path`, parsed.
pub fn report(path: &Path) -> Done<Report> {
    serde_json::from_slice(&statistics(path)?).map_err(|_| Errno::PROTO)
}

/// Has the server of the mount at `path`, which the kernel has made read-only, commit what was
/// changed and then stop all writing.
pub fn stop_writing(path: &Path) -> Done<()> {
    command(path, |mount| mount.change_mount("ro"))
}

/// Returns `Ok` if the server of the mount at `path` would do its part of a remount.
pub fn may_remount(path: &Path) -> Done<()> {
    command(path, |mount| mount.change_mount(""))
}

/// Has the server allow writing again.
pub fn write_again(path: &Path) -> Done<()> {
    command(path, |mount| mount.change_mount("rw"))
}

/// Has the server write data as this mount option says.
pub fn change(path: &Path, option: &str) -> Done<()> {
    command(path, |mount| mount.change_mount(option))
}

/// Announces to the server of the mount at `path` that its connection will be aborted.
pub fn expect_force(path: &Path) -> Done<()> {
    command(path, OpenFile::expect_force)
}

/// Makes everything durable on the mount at `path`.
pub fn sync_mount(path: &Path) -> Done<()> {
    match OpenFile::open_file(path).and_then(|mount| mount.sync_volume()) {
        Err(Errno::ACCESS) if geteuid().is_root() => ask_as_owner(path, SYNC).map(drop),
        done => done,
    }
}

/// Sends the server of a mount a request that only root, or the user who mounted it, may make.
fn command(path: &Path, send: impl Fn(&OpenFile) -> Done<()> + Send + Sync) -> Done<()> {
    let send = || OpenFile::open_file(path).and_then(|mount| send(&mount));
    match send() {
        Err(Errno::ACCESS) if geteuid().is_root() => with_power(path, send),
        done => done,
    }
}

/// Returns the user and the group of another user's mount.
fn owner(path: &Path) -> Option<(u32, u32)> {
    let path = mount_table::resolve(path).ok()?;
    match mount_table::mounted_on(&path).ok()?? {
        Mounted { user: Some(user), group: Some(group), .. } if user != 0 => Some((user, group)),
        _ => None,
    }
}

/// Sends a request that needs `CAP_SYS_ADMIN` to a mount that not even root may access: a thread
/// sends it with the owner's ids and that capability. Linux keeps both for each thread.
fn with_power(path: &Path, send: impl FnOnce() -> Done<()> + Send) -> Done<()> {
    let (user, group) = owner(path).ok_or(Errno::ACCESS)?;
    let send = || {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_keep_capabilities(true)?;
        set_thread_res_uid(user, user, user)?;
        let only = CapabilitySet::SYS_ADMIN;
        let sets = CapabilitySets { effective: only, permitted: only, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets)?;
        send()
    };
    thread::scope(|scope| scope.spawn(send).join()).unwrap_or(Err(Errno::IO))
}

/// Has a child process send the request as the owner of the mount ([`answer_as`]). Without
/// `allow_other` not even root may access another user's mount.
fn ask_as_owner(path: &Path, name: &str) -> Done<Vec<u8>> {
    let (user, group) = owner(path).ok_or(Errno::ACCESS)?;
    let path = mount_table::resolve(path).map_err(|_| Errno::ACCESS)?;
    process::keep_descriptors();
    let mut command = Command::new("/proc/self/exe");
    command.env_clear().current_dir("/").args(["ask-as", &format!("{user}:{group}"), name]);
    command.arg("--").arg(path).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|_| Errno::IO)?;
    // Another user's server may be hostile, so only the child makes requests of it, and this
    // process waits for a limited time.
    let deadline = Instant::now() + TIMEOUT_OF_OTHERS;
    let (out, err) = (read_apart(child.stdout.take()), read_apart(child.stderr.take()));
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                return Err(Errno::TIMEDOUT);
            }
        }
    };
    let [out, err] = [out, err].map(|read| read.recv_timeout(TIMEOUT).unwrap_or_default());
    match status.success() {
        true => Ok(out),
        false if String::from_utf8_lossy(&err).contains(NO_SERVER) => Err(Errno::NOTCONN),
        false => Err(Errno::IO),
    }
}

/// `ubtrfs ask-as`, the child of [`ask_as_owner`]. Once it has the user's ids it executes no
/// program, so the kernel lets the user neither trace it nor reach what root has given it
/// (invariant 53); and it has left root's terminal.
pub fn answer_as(arguments: &args::AskAs) -> Result<()> {
    let path = &arguments.directory;
    become_user(arguments.owner).map_err(|errno| failure(path, errno))?;
    let answer = match &*arguments.name {
        SYNC => return sync(&args::Directory { directory: path.clone() }),
        STATISTICS => statistics(path).map_err(|errno| failure(path, errno))?,
        _ => return Err(failure(path, Errno::ACCESS)),
    };
    io::stdout().write_all(&answer).map_err(|error| Failure::about("the standard output", &error))
}

/// Changes the ids of this process, which has one thread, to those of a user and a group, for good.
fn become_user((user, group): (u32, u32)) -> Done<()> {
    // Otherwise the user's process could type into the terminal of the caller, who is root.
    setsid()?;
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    // The change of the ids has done so, unless the kernel is set up otherwise
    // (`fs.suid_dumpable`).
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let is_left = dumpable_behavior()? == DumpableBehavior::NotDumpable && getuid() == user && geteuid() == user;
    assert!(is_left, "invariant 53: root's process would be another user's");
    Ok(())
}

/// Reads a child's output in a thread of its own, up to the size of an answer.
fn read_apart(from: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.map(|from| from.take(ROOM as u64).read_to_end(&mut bytes));
        let _ = sender.send(bytes);
    });
    receiver
}

/// Describes why the server at `path` does not answer.
pub fn failure(path: &Path, errno: Errno) -> Failure {
    let path = path.display();
    Failure::new(match errno {
        Errno::OPNOTSUPP | Errno::NODATA | Errno::NOTTY => format!("{path} is not on a volume that ubtrfs has mounted"),
        Errno::NOTCONN => return about_dead_mount(path),
        Errno::ACCESS => format!("{path}: permission denied"),
        Errno::NOENT => format!("{path}: no such file or directory"),
        errno => format!("{path}: {}", sentence(&std::io::Error::from(errno))),
    })
}

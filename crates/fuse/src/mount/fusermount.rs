//! Mounts without root, by the set-user-id program `fusermount3`.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use super::error::{MountError, Unmount};
use super::options::MountOptions;
use crate::device::Device;

const PROGRAM: &str = "fusermount3";
/// How often to try to run the program again when the limit of processes is reached.
const ATTEMPTS: u32 = 100;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);
/// The environment variable with the number of the socket to which the program must send the open
/// `/dev/fuse`.
const SOCKET: &str = "_FUSE_COMMFD";

/// Mounts on `path`.
pub fn mount(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let failed = |error: io::Error| MountError::Mount(path.into(), error);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed(errno.into()))?;
    let number = theirs.as_raw_fd();
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(options.fusermount_options()?).arg("--").arg(path);
    command.env(SOCKET, number.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let inherit = move || {
        // SAFETY: `theirs` is open until the child has been started, and the child has a copy of it
        // under the same number.
        let theirs = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_setfd(theirs, FdFlags::empty())?)
    };
    // SAFETY: between fork and exec, the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(inherit) };
    let child = command.spawn().map_err(MountError::NoFusermount)?;
    drop(theirs);
    // The descriptor is received first: the program exits only after it has sent it. If the program
    // fails, the socket just ends.
    let device = receive(&ours);
    let output = child.wait_with_output().map_err(MountError::NoFusermount)?;
    match device {
        Ok(Some(fd)) if output.status.success() => Ok(Device::from(fd)),
        Err(error) if output.status.success() => Err(failed(error)),
        _ => Err(MountError::Fusermount(complaint(&output.stderr))),
    }
}

/// Unmounts what is mounted on `path`.
pub fn unmount(path: &Path, how: Unmount) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if how == Unmount::Lazy {
        command.arg("-z");
    }
    command.arg("--").arg(path).stdin(Stdio::null());
    let mut attempts = 0..ATTEMPTS;
    let output = loop {
        match command.output() {
            // The limit of processes is reached. Threads of a mount that has failed end soon.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempts.next().is_some() => {
                std::thread::sleep(BETWEEN_ATTEMPTS);
            }
            output => break output.map_err(MountError::NoFusermount)?,
        }
    };
    if output.status.success() { Ok(()) } else { Err(MountError::Fusermount(complaint(&output.stderr))) }
}

/// The descriptor that comes over `socket`, if one comes before it ends.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(fds.next().and_then(|mut fds| fds.next()))
}

/// What the program said, without its own name before it.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    text.strip_prefix("fusermount3: ").unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::identity;

    #[test]
    fn the_device_comes_over_the_socket() {
        if Command::new(PROGRAM).arg("--version").output().is_err() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped the_device_comes_over_the_socket: needs fusermount3 and /dev/fuse");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let before = identity::of(dir.path());
        let options = MountOptions { name: "a, b\\".into(), subtype: "ubtrfs".into(), ..MountOptions::default() };
        let device = mount(dir.path(), &options).unwrap();
        assert_ne!(identity::of(dir.path()), before);
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(
            table.lines().any(|line| line.starts_with("a,\\040b\\134 ") && line.contains(" fuse.ubtrfs ")),
            "{table}"
        );
        let mut message = [0; 8192];
        let length = device.receive(&mut message).unwrap().unwrap();
        let header = crate::request::header(&message[..length]).unwrap();
        assert_eq!(header.opcode, crate::abi::opcode::INIT);
        unmount(dir.path(), Unmount::Lazy).unwrap();
        assert_eq!(identity::of(dir.path()), before);
        assert!(matches!(unmount(dir.path(), Unmount::Now), Err(MountError::Fusermount(_))));
    }

    #[test]
    fn refusals_say_why() {
        if Command::new(PROGRAM).arg("--version").output().is_err() {
            eprintln!("skipped refusals_say_why: needs fusermount3");
            return;
        }
        let refused = mount("/does/not/exist".as_ref(), &MountOptions::default()).unwrap_err();
        assert!(matches!(&refused, MountError::Fusermount(why) if why.contains("/does/not/exist")), "{refused}");
    }
}

//! The offers of root's servers for further mounts: each server reports on a socket what it serves,
//! with all devices of its volume, and passes the connection, which the kernel's `fuse` needs for a
//! further mount. For `fuseblk`, and the device that the mount table shows, the kernel itself knows
//! all that is needed (`super::again`).
//!
//! The sockets are in a directory that only root can access, so what answers there is a server of
//! root's (invariant 51). A server answers without a request to its own mount, and a server that
//! does not answer is passed over.

use std::fs::{DirBuilder, Permissions, read_dir, remove_file, rename, set_permissions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};
use serde::{Deserialize, Serialize};

use crate::process;

/// The directory of the sockets.
const DIRECTORY: &str = "/run/ubtrfs/served";
/// The first character of the name of a socket that is not yet listened on.
const NEW: &str = ".";
/// How long a server, or its caller, may send nothing.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The greatest length of an answer in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The description of what a server serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// All devices of the volume, by absolute paths and URIs.
    pub devices: Vec<PathBuf>,
    /// The options that it was mounted with.
    pub options: Vec<String>,
    /// The device number of the mount, major and minor.
    pub device: (u32, u32),
}

/// The server's side of an offer, which ends when it is dropped.
pub struct Offer {
    socket: PathBuf,
}

impl Offer {
    /// Starts to answer. `connection` returns a duplicate of the mount's `/dev/fuse`, as long as
    /// the mount is served.
    pub fn new(
        served: impl Fn() -> Served + Send + 'static,
        connection: impl Fn() -> Option<OwnedFd> + Send + 'static,
    ) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).recursive(true).create(DIRECTORY)?;
        set_permissions(DIRECTORY, Permissions::from_mode(0o700))?;
        if !is_roots_alone() {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        clear();
        // No later process has the same name, since it contains the start time of this process.
        let name = format!("{}-{}", std::process::id(), process::started("self").unwrap_or_default());
        let (socket, new) = (Path::new(DIRECTORY).join(&name), Path::new(DIRECTORY).join(format!("{NEW}{name}")));
        // The socket gets its name when it is listened on: other processes take one that is not for
        // the remains of a dead server.
        let listener = UnixListener::bind(&new)?;
        rename(&new, &socket).inspect_err(|_| drop(remove_file(&new)))?;
        let answer = move || {
            for caller in listener.incoming() {
                let answered = caller.and_then(|caller| {
                    let said = serde_json::to_vec(&served())?;
                    tell(&caller, &said, connection().as_ref())
                });
                if let Err(error) = answered {
                    tracing::debug!(%error, "a caller got no answer");
                    // If no descriptor is available, that may last for a while.
                    thread::sleep(TIMEOUT / 100);
                }
            }
        };
        thread::Builder::new().name("offer".into()).spawn(answer).inspect_err(|_| drop(remove_file(&socket)))?;
        Ok(Self { socket })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = remove_file(&self.socket);
    }
}

/// Connects to the server that listens there, without blocking: the queue of a server that is
/// stopped may be full of callers.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = UnixStream::from(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?);
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Removes the sockets that servers have left which were killed.
fn clear() {
    let is_left = |path: &PathBuf| connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    sockets().filter(is_left).for_each(|path| drop(remove_file(path)));
}

fn sockets() -> impl Iterator<Item = PathBuf> {
    let entries = read_dir(DIRECTORY).into_iter().flatten().flatten();
    entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(NEW.as_bytes())).map(|entry| entry.path())
}

fn is_roots_alone() -> bool {
    std::fs::metadata(DIRECTORY).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o7777 == 0o700)
}

fn tell(mut caller: &UnixStream, said: &[u8], connection: Option<&OwnedFd>) -> io::Result<()> {
    caller.set_write_timeout(Some(TIMEOUT))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let connection = connection.map(|connection| [connection.as_fd()]);
    if let Some(connection) = &connection {
        control.push(SendAncillaryMessage::ScmRights(connection));
    }
    let sent = sendmsg(caller, &[IoSlice::new(said)], &mut control, SendFlags::NOSIGNAL)?;
    caller.write_all(&said[sent..])
}

/// Returns what all servers serve that answer, each with its connection.
pub fn all() -> Vec<(Served, Option<OwnedFd>)> {
    if !is_roots_alone() {
        return Vec::new();
    }
    // All at the same time, so that a silent server does not delay the others.
    let asked: Vec<_> = sockets().map(|path| thread::spawn(move || ask(&path).ok())).collect();
    asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
}

fn ask(path: &Path) -> io::Result<(Served, Option<OwnedFd>)> {
    let server = connect(path)?;
    server.set_read_timeout(Some(TIMEOUT))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut said = vec![0; 4096];
    let received = recvmsg(&server, &mut [IoSliceMut::new(&mut said)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    said.truncate(received.bytes);
    let connection = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    server.take(MAX_BYTES).read_to_end(&mut said)?;
    Ok((serde_json::from_slice(&said)?, connection))
}

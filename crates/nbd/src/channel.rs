//! A connection's bytes: over TCP or a Unix domain socket, encrypted or not.
//!
//! One thread reads and others write at the same time. Bytes are encrypted under a lock that nobody
//! holds while waiting for the socket, since a server may stop reading until its answers are read.
//!
//! Bytes that the kernel has taken must not arrive after the end of the lease under which they were
//! sent (invariant 55). So the kernel is set to take little that it can't send at once, to give up
//! a connection over which nothing moves, and to drop unsent bytes when the connection or its
//! process ends. All of that applies to TCP only: bytes in a Unix domain socket have reached the
//! server already.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendmsg, socket_with,
    sockopt,
};
use rustls::ClientConnection;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Mutex, Rank};

use crate::error::Error;
use crate::lease::Lease;
use crate::negotiate::Line;
use crate::tls;
use crate::uri::{Address, Uri};

/// How many bytes are encrypted, given to the socket, or read from it at once: so few that even a
/// slow server takes them within the time in which something has to move.
const PIECE: usize = 64 << 10;
/// How long to wait for a socket that takes nothing before the lease is checked again.
const LOOK: Duration = Duration::from_millis(200);
/// How long TCP keeps trying to send a writer's bytes while the server takes none. This is less
/// than the time from the end of a lease to the earliest moment at which another writer may come.
const UNTAKEN: Duration = Duration::from_secs(10);
/// How many bytes TCP takes that it can't send yet.
static UNSENT: libc::c_int = 128 << 10;

/// Both directions of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Socket,
    tls: Option<Mutex<ClientConnection>>,
    /// How many bytes the socket took.
    sent: AtomicU64,
    /// How many bytes the socket gave.
    received: AtomicU64,
    /// When the channel was made.
    begun: Instant,
    /// The deadline for all sending and receiving, in milliseconds since then; 0 means none.
    deadline: AtomicU64,
    is_ended: AtomicBool,
}

/// How many bytes have gone over a channel so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes from the server.
    pub(crate) received: u64,
    /// Bytes that the socket took …
    pub(crate) sent: u64,
    /// … and about how many of these the socket still has, since the server has not taken them.
    pub(crate) waiting: u64,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Channel {
    /// Connects to a server.
    fn connect(address: &Address, deadline: Instant) -> io::Result<Socket> {
        Ok(match address {
            Address::Tcp(host, port) => {
                let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
                for place in (host.as_str(), *port).to_socket_addrs()? {
                    result = TcpStream::connect_timeout(&place, left(deadline)?);
                    if result.is_ok() {
                        break;
                    }
                }
                let stream = result?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
            Address::Unix(path) => Socket::Unix(connect_to(path, deadline)?),
        })
    }

    /// Sends all these bytes in order, as long as the lease lasts. The caller makes sure that
    /// nobody else sends meanwhile.
    pub(crate) fn send(&self, parts: &[&[u8]], lease: Option<&Lease>) -> io::Result<()> {
        let Some(tls) = &self.tls else { return self.send_all(parts, lease) };
        let mut encrypted = Vec::with_capacity(PIECE + 1024);
        for piece in parts.iter().flat_map(|part| part.chunks(PIECE)) {
            encrypted.clear();
            let mut tls = tls.lock();
            tls.writer().write_all(piece)?;
            while tls.wants_write() {
                tls.write_tls(&mut encrypted)?;
            }
            drop(tls);
            self.send_all(&[&encrypted], lease)?;
        }
        Ok(())
    }

    /// Sends all parts with few system calls, none of which has so many bytes that a slow server
    /// would seem to take nothing meanwhile.
    fn send_all(&self, parts: &[&[u8]], lease: Option<&Lease>) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().flat_map(|part| part.chunks(PIECE)).map(IoSlice::new).collect();
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            let mut bytes = 0;
            let fits = |slice: &&IoSlice<'_>| {
                bytes += slice.len();
                bytes <= PIECE
            };
            let count = slices.iter().take_while(fits).count().max(1);
            // The call below must not wait, since it would send its bytes even if this process was
            // stopped before and continues after the lease has ended.
            lease.map_or(Ok(()), Lease::check)?;
            match self.socket.send_now(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.sent.fetch_add(sent as u64, Relaxed);
                    IoSlice::advance_slices(&mut slices, sent);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for_room(lease)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the socket takes bytes again.
    fn wait_for_room(&self, lease: Option<&Lease>) -> io::Result<()> {
        loop {
            let mut socket = [PollFd::new(&self.socket, PollFlags::OUT)];
            match poll(&mut socket, Some(&LOOK.try_into().map_err(io::Error::other)?)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            self.deadline().map_or(Ok(()), |deadline| left(deadline).map(drop))?;
            if self.is_ended.load(Relaxed) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            lease.map_or(Ok(()), Lease::check)?;
        }
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline() {
            self.socket.limit(Some(left(deadline)?))?;
        }
        let received = (&self.socket).read(buf)?;
        self.received.fetch_add(received as u64, Relaxed);
        Ok(received)
    }

    /// How many bytes have gone over the channel.
    pub(crate) fn moved(&self) -> Moved {
        let waiting = self.socket.waiting();
        Moved { received: self.received.load(Relaxed), sent: self.sent.load(Relaxed), waiting }
    }

    /// The number of bytes from the server and of bytes that the socket took. Makes no system call,
    /// unlike [`Self::moved`].
    pub(crate) fn exchanged(&self) -> u64 {
        self.received.load(Relaxed) + self.sent.load(Relaxed)
    }

    /// Has the kernel send all that it was given before the connection ends.
    pub(crate) fn is_polite(&self) {
        if let Socket::Tcp(socket) = &self.socket {
            // If this fails, the server just gets no goodbye.
            let _ = sockopt::set_socket_linger(socket, None);
        }
    }

    /// Ends the connection. Threads that read or send fail, and when the last of them drops the
    /// channel, the kernel drops what it has not sent.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Relaxed);
        // An error means that the connection is broken already.
        let _ = match &self.socket {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Both),
        };
    }

    /// Limits the total time of all sending and receiving from now on, even if some bytes come;
    /// `None` means no limit.
    pub(crate) fn limit(&self, limit: Option<Duration>) -> io::Result<()> {
        let deadline = limit.map_or(0, |limit| (self.begun.elapsed() + limit).as_millis().max(1) as u64);
        self.deadline.store(deadline, Relaxed);
        self.socket.limit(limit)
    }

    fn deadline(&self) -> Option<Instant> {
        let deadline = self.deadline.load(Relaxed);
        (deadline > 0).then(|| self.begun + Duration::from_millis(deadline))
    }
}

/// Connects to a Unix domain socket. Waits until the deadline for a server that accepts no
/// connection.
fn connect_to(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = match path.as_os_str().as_bytes() {
        [0, name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(path)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(left(deadline)?))?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// The time that is left until the deadline, as a limit for a socket. Returns `TimedOut` if there
/// is none.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The bytes that arrive on a channel, for the thread that reads them.
#[derive(Debug)]
pub(crate) struct Incoming {
    channel: Arc<Channel>,
    /// Encrypted bytes; those in `start..end` are not decrypted yet.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    pub(crate) fn new(channel: Arc<Channel>) -> Self {
        let buffer = if channel.tls.is_some() { vec![0; PIECE] } else { Vec::new() };
        Self { channel, buffer, start: 0, end: 0 }
    }
}

impl Read for Incoming {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.channel.tls else { return self.channel.receive(buf) };
        loop {
            let mut session = tls.lock();
            match session.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.start < self.end {
                self.start += session.read_tls(&mut &self.buffer[self.start..self.end])?;
                let failed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
                session.process_new_packets().map_err(failed)?;
                continue;
            }
            drop(session);
            (self.start, self.end) = (0, self.channel.receive(&mut self.buffer)?);
            if self.end == 0 {
                return Ok(0);
            }
        }
    }
}

/// A connection during the handshake, in which the client never sends while it waits for an answer.
#[derive(Debug)]
pub(crate) struct Handshake<'a> {
    line: Limited,
    tls: Option<Box<ClientConnection>>,
    uri: &'a Uri,
}

impl<'a> Handshake<'a> {
    /// Connects to the server of a URI. `writes` says that the client may write. The whole
    /// handshake ends at the deadline.
    pub(crate) fn begin(uri: &'a Uri, writes: bool, deadline: Instant) -> Result<Self, Error> {
        let socket = Channel::connect(&uri.address, deadline)
            .and_then(|socket| if writes { socket.keeps_little().map(|()| socket) } else { Ok(socket) })
            .map_err(|source| Error::Connect { address: uri.address.to_string(), source })?;
        Ok(Self { line: Limited { socket, deadline }, tls: None, uri })
    }

    /// The channel, when the handshake is over.
    pub(crate) fn finish(self) -> Arc<Channel> {
        Arc::new(Channel {
            socket: self.line.socket,
            tls: self.tls.map(|tls| Mutex::new(Rank::Tls, *tls)),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            begun: Instant::now(),
            deadline: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
        })
    }
}

impl Line for Handshake<'_> {
    fn start_tls(&mut self) -> Result<(), Error> {
        let mut tls = Box::new(tls::client(self.uri)?);
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            tls.complete_io(&mut self.line).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => tls::failed(&error),
                _ => Error::Broken(error),
            })?;
        }
        self.tls = Some(tls);
        Ok(())
    }
}

impl Read for Handshake<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.line).read(buf),
            None => self.line.read(buf),
        }
    }
}

impl Write for Handshake<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.line).write(buf),
            None => self.line.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.line).flush(),
            None => Ok(()),
        }
    }
}

/// A socket whose use ends at the deadline, even if some bytes come.
#[derive(Debug)]
struct Limited {
    socket: Socket,
    deadline: Instant,
}

impl Read for Limited {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.limit(Some(left(self.deadline)?))?;
        (&self.socket).read(buf)
    }
}

impl Write for Limited {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.limit(Some(left(self.deadline)?))?;
        (&self.socket).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket {
    /// Has the kernel keep few unsent bytes, and not for long.
    fn keeps_little(&self) -> io::Result<()> {
        let Self::Tcp(socket) = self else { return Ok(()) };
        sockopt::set_socket_linger(socket, Some(Duration::ZERO))?;
        sockopt::set_tcp_user_timeout(socket, UNTAKEN.as_millis() as u32)?;
        // SAFETY: the descriptor is open, and the option is a number of its size.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NOTSENT_LOWAT,
                (&raw const UNSENT).cast(),
                size_of_val(&UNSENT) as libc::socklen_t,
            )
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Gives the kernel as many bytes as it takes without waiting.
    fn send_now(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(self, slices, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_read_timeout(limit).and_then(|()| socket.set_write_timeout(limit)),
            Self::Unix(socket) => socket.set_read_timeout(limit).and_then(|()| socket.set_write_timeout(limit)),
        }
    }
}

impl Socket {
    fn descriptor(&self) -> RawFd {
        match self {
            Self::Tcp(socket) => socket.as_raw_fd(),
            Self::Unix(socket) => socket.as_raw_fd(),
        }
    }

    /// About how many bytes the server has not taken yet: over TCP those that its machine has not
    /// acknowledged, over a Unix domain socket those that it has not read, including the kernel's
    /// overhead.
    fn waiting(&self) -> u64 {
        let mut waiting: libc::c_int = 0;
        // SAFETY: the descriptor is open as long as the socket, and the kernel writes one number.
        let asked = unsafe { libc::ioctl(self.descriptor(), libc::TIOCOUTQ, &raw mut waiting) };
        if asked == 0 { u64::try_from(waiting).unwrap_or(0) } else { 0 }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).read(buf),
            Socket::Unix(socket) => (&*socket).read(buf),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).write(buf),
            Socket::Unix(socket) => (&*socket).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Of invariant 55: bytes that the kernel got while the server took none do not arrive later.
    #[test]
    fn what_tcp_has_not_sent_is_dropped_with_the_connection_of_a_writer() {
        for writes in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let uri = Uri::parse(format!("nbd://127.0.0.1:{port}/")).unwrap();
            let handshake = Handshake::begin(&uri, writes, Instant::now() + Duration::from_secs(60)).unwrap();
            let channel = handshake.finish();
            let (mut server, _) = listener.accept().unwrap();
            // This sends more than any buffer of the kernel holds, to a server that reads nothing.
            let sending = Arc::clone(&channel);
            let sender = std::thread::spawn(move || sending.send(&[&vec![7; 256 << 20]], None));
            let (mut sent, mut still) = (0, 0);
            while still < 20 {
                std::thread::sleep(Duration::from_millis(10));
                let now = channel.moved().sent;
                still = if now > 0 && now == sent { still + 1 } else { 0 };
                sent = now;
            }
            channel.end();
            assert!(sender.join().unwrap().is_err());
            sent = channel.moved().sent;
            drop(channel);
            let (mut arrived, mut piece) = (0, vec![0; PIECE]);
            while let Ok(count @ 1..) = server.read(&mut piece) {
                arrived += count as u64;
            }
            assert_eq!(arrived < sent, writes, "invariant 55: {arrived} of {sent} bytes have arrived");
        }
    }

    /// A server that sends a byte now and then can't prolong a call beyond the limit.
    #[test]
    fn what_has_a_limit_ends_by_it_however_often_a_byte_comes() {
        const LIMIT: Duration = Duration::from_millis(300);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let uri = Uri::parse(format!("nbd://127.0.0.1:{port}/")).unwrap();
        let mut handshake = Handshake::begin(&uri, false, Instant::now() + LIMIT).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let dripping = std::thread::spawn(move || {
            while server.write_all(&[7]).is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let mut bytes = vec![0; 1 << 20];
        assert!(handshake.read_exact(&mut bytes).is_err(), "that would take hours");
        let channel = handshake.finish();
        channel.limit(Some(LIMIT)).unwrap();
        assert!(Incoming::new(Arc::clone(&channel)).read_exact(&mut bytes).is_err());
        assert!(channel.moved().received > 0);
        drop(channel);
        dripping.join().unwrap();
    }
}

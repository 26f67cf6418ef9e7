//! Programs that serve NBD, nbdkit and qemu-nbd, which tests kill, pause and restart.

use std::ffi::OsString;
use std::fs::DirEntry;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::threads_of::state_of;

/// How long a server may take to start.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A server; killed on drop.
#[derive(Debug)]
pub struct NbdServer {
    program: &'static str,
    arguments: Vec<OsString>,
    address: Address,
    child: Option<Child>,
}

#[derive(Debug)]
enum Address {
    Unix(PathBuf),
    Tcp(u16),
}

impl NbdServer {
    /// Starts nbdkit with these arguments (filters, plugin, parameters), on a socket.
    pub fn nbdkit(socket: &Path, arguments: &[&str]) -> Self {
        let mut all: Vec<OsString> = vec!["--foreground".into(), "--unix".into(), socket.into()];
        all.extend(arguments.iter().map(Into::into));
        Self::start("nbdkit", all, Address::Unix(socket.into()))
    }

    /// Starts nbdkit with these arguments on a port of this machine.
    pub fn nbdkit_on_tcp(arguments: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let mut all: Vec<OsString> = vec!["--foreground".into(), "--ipaddr".into(), "127.0.0.1".into()];
        all.extend(["--port".into(), port.to_string().into()]);
        all.extend(arguments.iter().map(Into::into));
        Self::start("nbdkit", all, Address::Tcp(port))
    }

    /// Starts qemu-nbd with an image of this format, on a socket.
    pub fn qemu(socket: &Path, image: &Path, format: &str, arguments: &[&str]) -> Self {
        let mut all: Vec<OsString> = ["--persistent", "--shared=8", "--cache=writeback"].map(Into::into).into();
        all.extend(["--format".into(), format.into(), "--socket".into(), socket.into()]);
        all.extend(arguments.iter().map(Into::into));
        all.push(image.into());
        Self::start("qemu-nbd", all, Address::Unix(socket.into()))
    }

    fn start(program: &'static str, arguments: Vec<OsString>, address: Address) -> Self {
        let mut server = Self { program, arguments, address, child: None };
        server.restart();
        server
    }

    /// Returns the URI of its export with this name.
    pub fn uri(&self, export: &str) -> String {
        match &self.address {
            Address::Unix(socket) => format!("nbd+unix:///{export}?socket={}", socket.display()),
            Address::Tcp(port) => format!("nbd://127.0.0.1:{port}/{export}"),
        }
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().and_then(|()| child.wait()).expect("kill a server");
        }
    }

    /// Starts it again if it does not run, and waits until it answers.
    pub fn restart(&mut self) {
        if self.child.is_some() {
            return;
        }
        if let Address::Unix(socket) = &self.address {
            let _ = std::fs::remove_file(socket);
        }
        let mut line = Command::new(self.program);
        line.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let child = self.child.insert(line.spawn().expect("start a server"));
        let start = Instant::now();
        loop {
            let answers = match &self.address {
                Address::Unix(socket) => UnixStream::connect(socket).is_ok(),
                Address::Tcp(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
            };
            if answers {
                return;
            }
            let ended = child.try_wait().expect("the server's state");
            assert!(ended.is_none(), "{} {:?}: {ended:?}", self.program, self.arguments);
            assert!(start.elapsed() < TIMEOUT, "{} does not start", self.program);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops it in the middle of whatever it does, and waits until all of its threads are stopped:
    /// the signal reaches one thread, which may have to wait for a processor before it stops the
    /// others.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.child.as_ref().expect("a server that runs").id());
        let is_stopped = |thread: DirEntry| state_of(&thread.path()) == Some('T');
        let start = Instant::now();
        while !std::fs::read_dir(&threads).expect("its threads").flatten().all(is_stopped) {
            assert!(start.elapsed() < TIMEOUT, "{} does not stop", self.program);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets it continue.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a server that runs");
        kill_process(Pid::from_child(child), signal).expect("a signal");
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

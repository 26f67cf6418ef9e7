//! A link to a server on a Unix domain socket that is slow, or that stops for a while.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The bytes that are moved at once.
const PIECE: usize = 16 << 10;

/// The link. New connections end when it is dropped.
#[derive(Debug)]
pub struct SlowLink {
    shared: Arc<Shared>,
    socket: PathBuf,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes per second in each direction of all connections together; `None` for no limit.
    rate: Option<u64>,
    /// For each direction, the lock of the connection that waits for what it moves.
    turn: [Mutex<()>; 2],
    is_paused: Mutex<bool>,
    resumed: Condvar,
    connections: AtomicUsize,
    is_over: AtomicBool,
}

impl SlowLink {
    /// Makes a link from a new socket to that of a server.
    pub fn start(socket: &Path, server: &Path, rate: Option<u64>) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let shared = Arc::new(Shared { rate, ..Shared::default() });
        let (accepting, server) = (Arc::clone(&shared), server.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.is_over.load(SeqCst) {
                    return;
                }
                accepting.connections.fetch_add(1, SeqCst);
                if let Ok(server) = UnixStream::connect(&server) {
                    // Each connection ends on its own, by an error or not.
                    let _ = join(&accepting, &client, &server);
                }
            }
        });
        Self { shared, socket: socket.to_owned() }
    }

    /// Returns the URI of the server's export.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// Moves nothing until [`Self::resume`].
    pub fn pause(&self) {
        *self.shared.is_paused.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Moves data again.
    pub fn resume(&self) {
        *self.shared.is_paused.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.shared.resumed.notify_all();
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        self.resume();
        // This connection wakes the listener, which then ends.
        let _ = UnixStream::connect(&self.socket);
    }
}

fn join(shared: &Arc<Shared>, client: &UnixStream, server: &UnixStream) -> io::Result<()> {
    for (direction, from, to) in [(0, client, server), (1, server, client)] {
        let (from, to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(shared));
        thread::spawn(move || shared.forward(direction, from, to));
    }
    Ok(())
}

impl Shared {
    fn forward(&self, direction: usize, mut from: UnixStream, mut to: UnixStream) {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let mut is_paused = self.is_paused.lock().unwrap_or_else(PoisonError::into_inner);
            while *is_paused {
                is_paused = self.resumed.wait(is_paused).unwrap_or_else(PoisonError::into_inner);
            }
            drop(is_paused);
            if let Some(rate) = self.rate {
                let turn = self.turn[direction].lock().unwrap_or_else(PoisonError::into_inner);
                thread::sleep(Duration::from_micros(count as u64 * 1_000_000 / rate));
                drop(turn);
            }
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        for end in [from, to] {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

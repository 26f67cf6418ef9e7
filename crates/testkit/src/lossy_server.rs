//! An NBD server that loses whatever it may: a crash keeps some of the writes that were not
//! flushed, and drops the others. It speaks as much of the protocol as the client of ubtrfs needs.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ubtrfs_random::Rng;

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE_WITHOUT_ZEROES: u16 = 3;
/// The usual flags of the export: it supports flushes, discards, zeros, and several connections.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | TRIM | WRITE_ZEROES | 1 << 8;
/// The flag of an export that supports discards.
pub const TRIM: u16 = 1 << 5;
/// The flag of an export that supports zeros without their bytes.
pub const WRITE_ZEROES: u16 = 1 << 6;
/// The flag of an export that supports writes that are durable when they are answered.
pub const FUA: u16 = 1 << 3;
/// The flag of an export that supports flushes.
pub const FLUSH: u16 = 1 << 2;
/// The flag of a read-only export.
pub const READ_ONLY: u16 = 1 << 1;
const ACK: u32 = 1;
const INFO: u32 = 3;
const UNSUPPORTED: u32 = (1 << 31) + 1;

/// The server and its disk. It ends when it is dropped.
#[derive(Debug)]
pub struct LossyServer {
    shared: Arc<Mutex<State>>,
    socket: PathBuf,
}

/// How a server refuses a request.
#[derive(Clone, Copy, Debug)]
pub enum Refusing {
    /// It does not answer, and goes on with the next request.
    Silently,
    /// It ends the connection.
    ByTheEnd,
}

#[derive(Debug, Default)]
struct State {
    /// The content that a crash does not take away.
    durable: Vec<u8>,
    /// The content that reads return.
    cached: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
    /// The number of crashes so far: connections from before the last one are dead.
    life: u64,
    connections: Vec<UnixStream>,
    reads: u64,
    writes: u64,
    flushes: u64,
    /// The next flush fails.
    fails_flush: bool,
    /// The byte whose reads get no answer.
    refused_read: Option<(usize, Refusing)>,
    /// Connections up to this life are not served, and stay open.
    hangs_until: Option<u64>,
    is_over: bool,
    /// The flags of its export.
    flags: u16,
    /// The maximum length of a request in bytes, if the export has one.
    largest: Option<u32>,
    /// Bytes per second that it writes; 0 for no limit.
    rate: u64,
    /// The delay of discards.
    discards_after: Option<Duration>,
    discards: u64,
    accepted: usize,
}

impl LossyServer {
    /// Serves this content on a socket.
    pub fn start(socket: &Path, content: Vec<u8>) -> Self {
        Self::start_with(socket, content, false)
    }

    /// Serves this content on a socket, with support for FUA writes.
    pub fn start_with_fua(socket: &Path, content: Vec<u8>) -> Self {
        Self::start_with(socket, content, true)
    }

    fn start_with(socket: &Path, content: Vec<u8>, fua: bool) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let flags = EXPORT_FLAGS | if fua { FUA } else { 0 };
        let state = State { cached: content.clone(), durable: content, flags, ..State::default() };
        let shared = Arc::new(Mutex::new(state));
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut state = lock(&serving);
                if state.is_over {
                    return;
                }
                let life = state.life;
                state.accepted += 1;
                state.connections.extend(stream.try_clone());
                drop(state);
                let shared = Arc::clone(&serving);
                // The thread ends with the connection.
                thread::spawn(move || drop(serve(&shared, stream, life)));
            }
        });
        Self { shared, socket: socket.to_owned() }
    }

    /// Returns the URI of its export.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Crashes, and restarts at once: each write that was not flushed is kept or lost.
    pub fn crash(&self, rng: &mut Rng) {
        lock(&self.shared).crash(rng);
    }

    /// Crashes, and restarts with another content.
    pub fn come_back_with(&self, content: Vec<u8>) {
        let mut state = lock(&self.shared);
        state.durable = content;
        state.restart();
    }

    /// Crashes, and restarts without these flags, for requests of at most so many bytes.
    pub fn come_back_without(&self, flags: u16, largest: u32, rng: &mut Rng) {
        let mut state = lock(&self.shared);
        state.flags &= !flags;
        state.largest = Some(largest);
        state.crash(rng);
    }

    /// Crashes, and restarts with the flags `with` and without the flags `without`.
    pub fn come_back_otherwise(&self, with: u16, without: u16, rng: &mut Rng) {
        let mut state = lock(&self.shared);
        state.flags = (state.flags | with) & !without;
        state.crash(rng);
    }

    /// Stops answering on all present connections. Later connections are served.
    pub fn hang(&self) {
        let mut state = lock(&self.shared);
        state.hangs_until = Some(state.life);
        state.life += 1;
    }

    /// Answers the next flush with an error, and drops the writes that it was for.
    pub fn fail_next_flush(&self) {
        lock(&self.shared).fails_flush = true;
    }

    /// From now on, does not answer reads of this byte, or ends the connection at them.
    pub fn refuse_reads_of(&self, at: u64, how: Refusing) {
        lock(&self.shared).refused_read = Some((at as usize, how));
    }

    /// From now on, carries out and answers discards after this delay, even if their connection has
    /// ended. Meanwhile it serves everything else.
    pub fn delay_discards(&self, delay: Duration) {
        lock(&self.shared).discards_after = Some(delay);
    }

    /// Returns the number of discard requests so far.
    pub fn discards(&self) -> u64 {
        lock(&self.shared).discards
    }

    /// From now on, takes at most so many bytes per second of writes.
    pub fn slow_down(&self, rate: u64) {
        lock(&self.shared).rate = rate;
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        lock(&self.shared).accepted
    }

    /// Returns the content that a crash can't take away.
    pub fn durable(&self) -> Vec<u8> {
        lock(&self.shared).durable.clone()
    }

    /// Returns the number of reads so far.
    pub fn reads(&self) -> u64 {
        lock(&self.shared).reads
    }

    /// Returns the number of writes so far.
    pub fn writes(&self) -> u64 {
        lock(&self.shared).writes
    }

    /// Returns the number of flushes so far.
    pub fn flushes(&self) -> u64 {
        lock(&self.shared).flushes
    }
}

impl Drop for LossyServer {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.is_over = true;
        state.restart();
        drop(state);
        // This connection wakes the listener, which then ends.
        let _ = UnixStream::connect(&self.socket);
    }
}

impl State {
    fn crash(&mut self, rng: &mut Rng) {
        for (at, data) in std::mem::take(&mut self.unflushed) {
            if rng.below(2) == 0 {
                self.durable[at..at + data.len()].copy_from_slice(&data);
            }
        }
        self.restart();
    }

    fn restart(&mut self) {
        self.life += 1;
        self.unflushed.clear();
        self.cached.clone_from(&self.durable);
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn write(&mut self, at: usize, data: Vec<u8>) {
        self.writes += 1;
        self.cached[at..at + data.len()].copy_from_slice(&data);
        self.unflushed.push((at, data));
    }

    /// Performs a write that no crash takes away; nor can an older write that is still unflushed
    /// overwrite it.
    fn write_fua(&mut self, at: usize, data: &[u8]) {
        self.writes += 1;
        let end = at + data.len();
        self.cached[at..end].copy_from_slice(data);
        self.durable[at..end].copy_from_slice(data);
        for (start, older) in &mut self.unflushed {
            let (from, to) = (at.max(*start), end.min(*start + older.len()));
            if from < to {
                older[from - *start..to - *start].copy_from_slice(&data[from - at..to - at]);
            }
        }
    }

    /// Flushes, and returns whether that succeeds. A flush that fails drops the writes that it was
    /// for; reads still return them until a crash, as from the page cache of Linux.
    fn flush(&mut self) -> bool {
        self.flushes += 1;
        if std::mem::take(&mut self.fails_flush) {
            self.unflushed.clear();
            return false;
        }
        for (at, data) in std::mem::take(&mut self.unflushed) {
            self.durable[at..at + data.len()].copy_from_slice(&data);
        }
        true
    }
}

fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one connection to its end.
fn serve(shared: &Arc<Mutex<State>>, mut stream: UnixStream, life: u64) -> io::Result<()> {
    stream.write_all(&[&GREETING[..], &FIXED_NEWSTYLE_WITHOUT_ZEROES.to_be_bytes()].concat())?;
    stream.read_exact(&mut [0; 4])?;
    let mut structured = false;
    loop {
        let [_, _, option, len] = words::<4>(&mut stream)?;
        stream.read_exact(&mut vec![0; len as usize])?;
        let reply = |kind: u32, data: &[u8]| {
            let header = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
            [&OPTION_REPLY.to_be_bytes()[..], &header, data].concat()
        };
        match option {
            7 => {
                let state = lock(shared);
                let size = state.cached.len() as u64;
                let (flags, largest) = (state.flags, state.largest);
                drop(state);
                let info = [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
                let blocks = largest.map(|largest| [1, largest.min(4096), largest].map(u32::to_be_bytes).concat());
                let blocks = blocks.map(|blocks| reply(INFO, &[&[0, 3][..], &blocks].concat())).unwrap_or_default();
                stream.write_all(&[reply(INFO, &info), blocks, reply(ACK, &[])].concat())?;
                break;
            }
            8 => {
                structured = true;
                stream.write_all(&reply(ACK, &[]))?;
            }
            _ => stream.write_all(&reply(UNSUPPORTED, &[]))?,
        }
    }
    loop {
        let [_, flags_and_command, cookie_high, cookie_low, at_high, at_low, len] = words::<7>(&mut stream)?;
        let cookie = [cookie_high, cookie_low].map(u32::to_be_bytes).concat();
        let (is_fua, command) = (flags_and_command >> 16 & 1 == 1, flags_and_command & 0xffff);
        let at = (u64::from(at_high) << 32 | u64::from(at_low)) as usize;
        let len = len as usize;
        let mut data = vec![0; if command == 1 { len } else { 0 }];
        stream.read_exact(&mut data)?;
        let mut state = lock(shared);
        if state.hangs_until >= Some(life) {
            // Requests on this connection are never carried out.
            continue;
        }
        if state.life != life {
            return Ok(());
        }
        if state.rate > 0 && command == 1 {
            // Sleeps with the lock held, since all connections share the rate.
            thread::sleep(Duration::from_micros(len as u64 * 1_000_000 / state.rate));
        }
        let may_change = command == 0 || state.flags & READ_ONLY == 0;
        let is_offered = may_change
            && match command {
                4 => state.flags & TRIM != 0,
                6 => state.flags & WRITE_ZEROES != 0,
                3 => state.flags & FLUSH != 0,
                1 => !is_fua || state.flags & FUA != 0,
                _ => true,
            };
        if !is_offered || state.largest.is_some_and(|largest| len > largest as usize && matches!(command, 0 | 1)) {
            drop(state);
            let invalid = 22_u32.to_be_bytes();
            stream.write_all(&[&0x6744_6698_u32.to_be_bytes()[..], &invalid, &cookie].concat())?;
            continue;
        }
        if let (0, Some((refused, how))) = (command, state.refused_read)
            && (at..at + len).contains(&refused)
        {
            match how {
                Refusing::Silently => continue,
                Refusing::ByTheEnd => return stream.shutdown(Shutdown::Both),
            }
        }
        state.discards += u64::from(command == 4);
        if let (4, Some(delay)) = (command, state.discards_after) {
            drop(state);
            let (shared, mut stream) = (Arc::clone(shared), stream.try_clone()?);
            thread::spawn(move || {
                thread::sleep(delay);
                lock(&shared).write(at, vec![0; len]);
                // The client may have gone.
                let _ = stream.write_all(&[&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &cookie].concat());
            });
            continue;
        }
        let mut error = 0_u32;
        match command {
            0 if structured => {
                state.reads += 1;
                let header = [&0x668e_33ef_u32.to_be_bytes()[..], &[0, 1, 0, 1], &cookie].concat();
                data = [&header[..], &(len as u32 + 8).to_be_bytes(), &(at as u64).to_be_bytes()].concat();
                data.extend_from_slice(&state.cached[at..at + len]);
                drop(state);
                stream.write_all(&data)?;
                continue;
            }
            1 if is_fua => state.write_fua(at, &data),
            1 => state.write(at, data),
            // A discard makes zeros, as with some servers.
            4 | 6 => state.write(at, vec![0; len]),
            3 if state.flush() => {}
            3 => error = 5,
            _ => return Ok(()),
        }
        drop(state);
        stream.write_all(&[&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie].concat())?;
    }
}

fn words<const N: usize>(stream: &mut UnixStream) -> io::Result<[u32; N]> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes)?;
        *word = u32::from_be_bytes(bytes);
    }
    Ok(words)
}

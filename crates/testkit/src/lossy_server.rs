//! An NBD server that loses whatever it may: a crash keeps any of the writes that were not flushed,
//! and drops the others. It speaks as much of the protocol as a client of ubtrfs asks for.

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
/// It has flags; it takes flushes, discards, zeros, and several connections.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | TRIM | WRITE_ZEROES | 1 << 8;
/// It takes discards, …
pub const TRIM: u16 = 1 << 5;
/// … and zeros without their bytes.
pub const WRITE_ZEROES: u16 = 1 << 6;
/// It takes writes that are durable when they are answered, …
pub const FUA: u16 = 1 << 3;
/// … and flushes.
pub const FLUSH: u16 = 1 << 2;
/// It takes no changes.
pub const READ_ONLY: u16 = 1 << 1;
const ACK: u32 = 1;
const INFO: u32 = 3;
const UNSUPPORTED: u32 = (1 << 31) + 1;

/// The server, and what it has on its disk. Ends when it is dropped.
#[derive(Debug)]
pub struct LossyServer {
    shared: Arc<Mutex<State>>,
    socket: PathBuf,
}

/// What a server does instead of answering.
#[derive(Clone, Copy, Debug)]
pub enum Refusing {
    /// Nothing: it goes on with what comes after.
    Silently,
    /// It ends the connection.
    ByTheEnd,
}

#[derive(Debug, Default)]
struct State {
    /// What is on the disk for good.
    durable: Vec<u8>,
    /// What reads show.
    cached: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
    /// Crashes so far: connections of earlier lives are dead.
    life: u64,
    connections: Vec<UnixStream>,
    reads: u64,
    writes: u64,
    flushes: u64,
    /// The next flush fails.
    fails_flush: bool,
    /// A read that gets no answer.
    refused_read: Option<(usize, Refusing)>,
    /// Connections of this life and earlier ones are not served, and stay.
    hangs_until: Option<u64>,
    is_over: bool,
    /// What it offers, …
    flags: u16,
    /// … and the most bytes of a request, if it says that.
    largest: Option<u32>,
    /// Bytes a second that it writes; 0: as fast as it goes.
    rate: u64,
    /// How long discards take.
    discards_after: Option<Duration>,
    discards: u64,
    accepted: usize,
}

impl LossyServer {
    /// Serves this content by a socket.
    pub fn start(socket: &Path, content: Vec<u8>) -> Self {
        Self::start_with(socket, content, false)
    }

    /// The same, where single writes may be durable.
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
                // It ends with the connection.
                thread::spawn(move || drop(serve(&shared, stream, life)));
            }
        });
        Self { shared, socket: socket.to_owned() }
    }

    /// The URI of its export.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Crashes, and is there again at once: of what was not flushed each write is kept or lost.
    pub fn crash(&self, rng: &mut Rng) {
        lock(&self.shared).crash(rng);
    }

    /// The same, where it comes back with another content.
    pub fn come_back_with(&self, content: Vec<u8>) {
        let mut state = lock(&self.shared);
        state.durable = content;
        state.restart();
    }

    /// Crashes, and is there again without these flags, for requests of so many bytes at most.
    pub fn come_back_without(&self, flags: u16, largest: u32, rng: &mut Rng) {
        let mut state = lock(&self.shared);
        state.flags &= !flags;
        state.largest = Some(largest);
        state.crash(rng);
    }

    /// Crashes, and is there again with these flags and without those.
    pub fn come_back_otherwise(&self, with: u16, without: u16, rng: &mut Rng) {
        let mut state = lock(&self.shared);
        state.flags = (state.flags | with) & !without;
        state.crash(rng);
    }

    /// Answers nothing any more over the connections that there are. Those that come later are
    /// served.
    pub fn hang(&self) {
        let mut state = lock(&self.shared);
        state.hangs_until = Some(state.life);
        state.life += 1;
    }

    /// Answers the next flush with an error, and drops what it was for.
    pub fn fail_next_flush(&self) {
        lock(&self.shared).fails_flush = true;
    }

    /// Never answers reads of this byte from now on, or ends the connection by them.
    pub fn refuse_reads_of(&self, at: u64, how: Refusing) {
        lock(&self.shared).refused_read = Some((at as usize, how));
    }

    /// Answers discards after so long from now on, and does them then, though their connection has
    /// ended; meanwhile it serves all else.
    pub fn delay_discards(&self, delay: Duration) {
        lock(&self.shared).discards_after = Some(delay);
    }

    /// Discards that were asked for so far.
    pub fn discards(&self) -> u64 {
        lock(&self.shared).discards
    }

    /// Takes its time from now on: for so many bytes that are written to it a second.
    pub fn slow_down(&self, rate: u64) {
        lock(&self.shared).rate = rate;
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        lock(&self.shared).accepted
    }

    /// What a crash can't take away.
    pub fn durable(&self) -> Vec<u8> {
        lock(&self.shared).durable.clone()
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        lock(&self.shared).reads
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        lock(&self.shared).writes
    }

    /// Flushes so far.
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
        // The listener notices when somebody comes.
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

    /// A write that no crash takes away, nor puts what was there before in its place.
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

    /// Whether it succeeds. One that fails drops what it was for, which reads show all the same
    /// until a crash, as the page cache of Linux does.
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

/// One connection, to its end.
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
            // What was sent over it is never done.
            continue;
        }
        if state.life != life {
            return Ok(());
        }
        if state.rate > 0 && command == 1 {
            // With the lock: all connections share its time.
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
                // Perhaps nobody listens any more.
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
            // It makes zeros of what is not needed any more, as some do.
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

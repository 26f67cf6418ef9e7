//! A queue of bytes between a thread that has to read them quickly and one that takes them when it
//! can, as for a pager. A part is in memory, and the rest in a temporary file.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::OFlags;

/// The most bytes in memory.
const MAX_IN_MEMORY: usize = 4 << 20;
/// The most bytes in the file: beyond that it is better to wait than to fill a disk.
const MAX_IN_FILE: u64 = 2 << 30;
/// How many bytes are read from the file at a time.
const PIECE: u64 = 64 << 10;

/// A queue of pieces of bytes.
#[derive(Default)]
pub struct Spool {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The pieces that follow those in memory.
    file: Option<Rest>,
    /// No file can be made, or it is full, so only memory is used.
    has_no_file: bool,
    /// The writer adds no more pieces.
    is_ended: bool,
    /// The reader takes no more pieces.
    is_closed: bool,
}

/// The part of the file that was not taken yet.
struct Rest {
    file: File,
    from: u64,
    to: u64,
}

/// Why a piece was not added.
#[derive(Debug, PartialEq, Eq)]
pub enum NotPut {
    /// There is no room, and there was none during the wait.
    Full(Vec<u8>),
    /// The reader takes no more.
    Closed,
}

impl Spool {
    /// Returns a queue without a file.
    #[cfg(test)]
    fn in_memory() -> Self {
        Self { state: Mutex::new(State { has_no_file: true, ..State::default() }), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece. If there is no room, waits at most `wait`; that happens only without a file.
    pub fn put(&self, piece: Vec<u8>, wait: Duration) -> Result<(), NotPut> {
        let mut state = self.state();
        if !state.is_closed && !state.has_room() {
            if state.add_to_file(&piece) {
                self.changed.notify_all();
                return Ok(());
            }
            let waited = self.changed.wait_timeout_while(state, wait, |state| !state.is_closed && !state.has_room());
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return Err(NotPut::Closed);
        }
        if !state.has_room() {
            return Err(NotPut::Full(piece));
        }
        state.bytes += piece.len();
        state.pieces.push_back(piece);
        self.changed.notify_all();
        Ok(())
    }

    /// Marks the end: no more pieces follow.
    pub fn end(&self) {
        self.state().is_ended = true;
        self.changed.notify_all();
    }

    /// Closes the queue: the reader takes no more.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        (state.pieces, state.file) = (VecDeque::new(), None);
        self.changed.notify_all();
    }

    /// Waits for the next piece and returns it; `None` at the end.
    pub fn take(&self) -> io::Result<Option<Vec<u8>>> {
        let state = self.state();
        let state = self.changed.wait_while(state, |state| state.is_empty() && !state.is_ended);
        let taken = state.unwrap_or_else(PoisonError::into_inner).next();
        self.changed.notify_all();
        taken
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.file.is_none()
    }

    /// Whether a piece may be added in memory. If there is a file, what is in it comes first.
    fn has_room(&self) -> bool {
        self.file.is_none() && (self.bytes < MAX_IN_MEMORY || self.pieces.is_empty())
    }

    /// Adds a piece to the file. Returns whether that succeeded.
    fn add_to_file(&mut self, piece: &[u8]) -> bool {
        let is_full = self.file.as_ref().is_some_and(|rest| rest.to >= MAX_IN_FILE);
        if self.has_no_file || is_full {
            return false;
        }
        let mut rest = match self.file.take() {
            Some(rest) => Some(rest),
            None => temporary_file().map(|file| Rest { file, from: 0, to: 0 }).ok(),
        };
        let is_there = rest.as_mut().is_some_and(|rest| {
            let is_written = rest.file.write_all_at(piece, rest.to).is_ok();
            if is_written {
                rest.to += piece.len() as u64;
            }
            is_written
        });
        self.has_no_file = !is_there;
        self.file = rest.filter(|rest| rest.from < rest.to);
        is_there
    }

    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if let Some(piece) = self.pieces.pop_front() {
            self.bytes -= piece.len();
            return Ok(Some(piece));
        }
        let Some(rest) = &mut self.file else { return Ok(None) };
        let mut piece = vec![0; (rest.to - rest.from).min(PIECE) as usize];
        rest.file.read_exact_at(&mut piece, rest.from)?;
        rest.from += piece.len() as u64;
        if rest.from == rest.to {
            self.file = None;
        }
        Ok(Some(piece))
    }
}

/// Opens a file without a name, in a directory for large temporary files.
fn temporary_file() -> io::Result<File> {
    let chosen = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dirs = chosen.into_iter().chain(["/var/tmp".into(), "/tmp".into()]);
    let mut error = io::ErrorKind::NotFound.into();
    for dir in dirs {
        match unnamed(&dir) {
            Ok(file) => return Ok(file),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

fn unnamed(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::TMPFILE.bits().cast_signed());
    options.open(dir)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::thread;

    use super::*;

    const NO_TIME: Duration = Duration::ZERO;

    fn piece(number: u32) -> Vec<u8> {
        number.to_le_bytes().repeat(1 + number as usize % 20_000)
    }

    fn all(spool: &Spool) -> Vec<u8> {
        std::iter::from_fn(|| spool.take().unwrap()).flatten().collect()
    }

    #[test]
    fn what_nobody_takes_is_put_without_waiting_and_comes_in_order() {
        let spool = Spool::default();
        let mut expected = Vec::new();
        for number in 0..4000 {
            expected.extend(piece(number));
            spool.put(piece(number), NO_TIME).unwrap();
        }
        assert!(expected.len() > 5 * MAX_IN_MEMORY && spool.state().bytes <= MAX_IN_MEMORY + 80_000);
        spool.end();
        assert!(all(&spool) == expected);
    }

    #[test]
    fn both_may_go_on_at_any_time() {
        let spool = Spool::default();
        let numbers = 0..4000;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in numbers.clone() {
                    spool.put(piece(number), NO_TIME).unwrap();
                }
                spool.end();
            });
            let expected: Vec<u8> = numbers.clone().flat_map(piece).collect();
            assert!(all(&spool) == expected);
        });
    }

    #[test]
    fn without_a_file_there_is_as_much_room_as_memory_has() {
        let spool = Spool::in_memory();
        let most = (0..100_u8).find(|number| spool.put(vec![*number; 1 << 20], NO_TIME).is_err()).unwrap();
        assert_eq!(usize::from(most), MAX_IN_MEMORY >> 20);
        assert_eq!(spool.take().unwrap().unwrap()[0], 0);
        spool.put(vec![7], NO_TIME).unwrap();
        spool.close();
        assert_eq!(spool.put(vec![8], NO_TIME), Err(NotPut::Closed));
    }
}

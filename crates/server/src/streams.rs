//! Answers that are longer than one reply. A thread of its own makes each of them, and the reader
//! takes it piece by piece.
//!
//! The bytes that have been made but not taken are limited, so a thread waits for a slow reader. It
//! gives up a reader that has ended, or is silent for long, since the state of the volume from
//! which the answer is made takes space until then.
//!
//! A stream may be begun at any time, and waits for its turn: only so many are made at once, not
//! counting those that wait for their readers. So a reader that stalls keeps nobody else waiting,
//! and yet threads, memory and waiting requests are bounded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use ubtrfs_fuse::Errno;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::pool::Pool;

/// How many streams there may be at a time. Of so many, most wait for their turn.
const MAX: usize = 1024;
/// How many streams may have begun and not have ended. Each has a thread, and may wait for its
/// reader.
const MAX_BEGUN: usize = 64;
/// How many streams may be made at a time, without those that wait for their readers.
const MAX_MADE: usize = 8;
/// How many bytes of a stream may wait for its reader.
const ROOM: usize = 256 << 10;
/// How many bytes are added at once. A long record is divided, and may wait for the reader in its
/// middle.
const PIECE: usize = 64 << 10;
/// How long a reader may be silent.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// How long a reader waits for one answer. After that it asks again, so that it can be interrupted
/// in between.
const WAIT: Duration = Duration::from_secs(1);
/// How often a thread that waits for its reader checks whether that is still there.
const LOOK: Duration = Duration::from_millis(500);

/// The first byte of an answer: there may be more.
pub const MORE: u8 = 0;
/// The first byte of the last answer.
pub const LAST: u8 = 1;

/// The streams of a mount.
pub(crate) struct Streams {
    all: Mutex<All>,
    threads: Pool,
    turns: Arc<Turns>,
}

/// The turns of the threads that make streams.
struct Turns {
    taken: Mutex<usize>,
    given_back: Condvar,
}

impl Default for Turns {
    fn default() -> Self {
        Self { taken: Mutex::with_default(Rank::StreamTurns), given_back: Condvar::new() }
    }
}

#[derive(Default)]
struct All {
    streams: BTreeMap<u64, Arc<Stream>>,
    next: u64,
}

/// A stream.
pub(crate) struct Stream {
    state: Mutex<State>,
    changed: Condvar,
    turns: Arc<Turns>,
    /// The reader's thread.
    pid: u32,
}

struct State {
    bytes: Vec<u8>,
    /// Set once nothing follows, with an error if the stream is incomplete.
    end: Option<Result<(), Errno>>,
    /// When the reader last asked.
    asked: Instant,
    /// Whether the thread that makes it has a turn.
    has_turn: bool,
    /// Whether that thread ever had one.
    has_begun: bool,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self { all: Mutex::with_default(Rank::Streams), threads: Pool::new(MAX_BEGUN), turns: Arc::default() }
    }

    /// Begins a stream that `make` makes for the thread `pid` when its turn comes, and returns its
    /// number. `EBUSY` if too many streams wait.
    pub(crate) fn begin(
        &self,
        pid: u32,
        make: impl FnOnce(&Stream) -> Result<(), Errno> + Send + 'static,
    ) -> Result<u64, Errno> {
        let mut all = self.all.lock();
        if all.streams.len() >= MAX {
            // Streams that nobody reads any more make room.
            all.streams.retain(|_, stream| stream.is_read(&stream.state.lock()));
        }
        if all.streams.len() >= MAX {
            return Err(Errno::BUSY);
        }
        all.next += 1;
        let number = all.next;
        let state = State { bytes: Vec::new(), end: None, asked: Instant::now(), has_turn: false, has_begun: false };
        let turns = Arc::clone(&self.turns);
        let stream = Arc::new(Stream { state: Mutex::new(Rank::Stream, state), changed: Condvar::new(), turns, pid });
        all.streams.insert(number, Arc::clone(&stream));
        drop(all);
        self.threads.run(move || {
            let ended = Ended(&stream);
            let end = if stream.await_turn() { make(&stream) } else { Err(Errno::TIMEDOUT) };
            stream.end(end);
            drop(ended);
        });
        Ok(number)
    }

    /// Takes the next piece, of at most so many bytes. Waits for it, but not long, and not for the
    /// turn of a stream, since a waiting reader occupies a thread. `ENXIO` if there is no such
    /// stream (any more).
    pub(crate) fn take(&self, number: u64, most: usize) -> Result<Vec<u8>, Errno> {
        let stream = self.all.lock().streams.get(&number).cloned().ok_or(Errno::NXIO)?;
        let taken = stream.take(most);
        if !matches!(&taken, Ok(answer) if answer.first() == Some(&MORE)) {
            self.all.lock().streams.remove(&number);
        }
        taken
    }

    /// Notes that a stream's reader is still there.
    pub(crate) fn keep(&self, number: u64) -> Result<(), Errno> {
        let all = self.all.lock();
        let stream = all.streams.get(&number).ok_or(Errno::NXIO)?;
        stream.state.lock().asked = Instant::now();
        Ok(())
    }
}

/// Ends a stream whose thread panics.
struct Ended<'a>(&'a Stream);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end(Err(Errno::IO));
        self.0.give_turn_back();
    }
}

impl Stream {
    /// Returns whether the stream still has a reader.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_read(&self.state.lock())
    }

    fn is_read(&self, state: &State) -> bool {
        state.asked.elapsed() < MAX_SILENCE && exists(self.pid)
    }

    /// Waits for a turn. Returns false if there is no reader any more.
    fn await_turn(&self) -> bool {
        let mut taken = self.turns.taken.lock();
        while *taken >= MAX_MADE {
            self.turns.given_back.wait_for(&mut taken, LOOK);
            if *taken >= MAX_MADE && !self.is_wanted() {
                return false;
            }
        }
        *taken += 1;
        drop(taken);
        let mut state = self.state.lock();
        (state.has_turn, state.has_begun) = (true, true);
        true
    }

    fn give_turn_back(&self) {
        if std::mem::take(&mut self.state.lock().has_turn) {
            *self.turns.taken.lock() -= 1;
            self.turns.given_back.notify_one();
        }
    }

    /// Adds bytes for the reader. Returns whether there is a reader.
    pub(crate) fn put(&self, bytes: &[u8]) -> bool {
        bytes.chunks(PIECE).all(|piece| self.put_piece(piece))
    }

    fn put_piece(&self, bytes: &[u8]) -> bool {
        let mut state = self.state.lock();
        if state.bytes.len() >= ROOM {
            drop(state);
            // Other streams may use the turn meanwhile.
            self.give_turn_back();
            if !self.await_room() || !self.await_turn() {
                let mut state = self.state.lock();
                state.bytes = Vec::new();
                state.end.get_or_insert(Err(Errno::TIMEDOUT));
                return false;
            }
            state = self.state.lock();
        }
        state.bytes.extend_from_slice(bytes);
        self.changed.notify_all();
        true
    }

    /// Waits until the reader has taken enough. Returns false if there is no reader any more.
    /// Nobody else adds bytes meanwhile.
    fn await_room(&self) -> bool {
        let mut state = self.state.lock();
        while state.bytes.len() >= ROOM {
            if !self.is_read(&state) {
                return false;
            }
            self.changed.wait_for(&mut state, LOOK);
        }
        true
    }

    fn end(&self, end: Result<(), Errno>) {
        self.state.lock().end.get_or_insert(end);
        self.changed.notify_all();
    }

    fn take(&self, most: usize) -> Result<Vec<u8>, Errno> {
        let mut state = self.state.lock();
        state.asked = Instant::now();
        let deadline = state.asked + WAIT;
        while state.has_begun && state.bytes.is_empty() && state.end.is_none() {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        let length = state.bytes.len().min(most.saturating_sub(1));
        let is_last = state.end.is_some() && length == state.bytes.len();
        if is_last
            && length == 0
            && let Some(Err(errno)) = state.end
        {
            return Err(errno);
        }
        // An error is returned alone, after all bytes that were made.
        let is_last = is_last && state.end == Some(Ok(()));
        let mut answer = vec![if is_last { LAST } else { MORE }];
        answer.extend(state.bytes.drain(..length));
        self.changed.notify_all();
        Ok(answer)
    }
}

/// Returns whether there is a thread of this number. A reader in a pid namespace that we do not see
/// has the number 0, and only its silence shows that it has ended.
fn exists(pid: u32) -> bool {
    if pid == 0 {
        return true;
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    fn all(streams: &Streams, number: u64) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        loop {
            let answer = streams.take(number, 1000)?;
            bytes.extend_from_slice(&answer[1..]);
            if answer[0] == LAST {
                return Ok(bytes);
            }
        }
    }

    #[test]
    fn long_answers_come_whole_and_in_order_and_wait_for_their_reader() {
        let streams = Streams::new();
        let made = Arc::new(Mutex::new(Rank::Stream, 0));
        let counter = Arc::clone(&made);
        let number = streams.begin(std::process::id(), move |stream| {
            for number in 0..100_000_u32 {
                assert!(stream.put(&number.to_le_bytes()));
                *counter.lock() = number;
            }
            Ok(())
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(*made.lock() as usize <= ROOM / 4, "more was made than there is room for");
        let expected: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(all(&streams, number.unwrap()), Ok(expected));
        assert_eq!(streams.take(number.unwrap(), 1000), Err(Errno::NXIO));
    }

    #[test]
    fn a_long_record_waits_for_its_reader_in_the_middle() {
        let streams = Streams::new();
        let long: Vec<u8> = (0..20 * ROOM as u32).flat_map(u32::to_le_bytes).collect();
        let expected = long.clone();
        let number = streams.begin(std::process::id(), move |stream| {
            assert!(stream.put(&long));
            Ok(())
        });
        std::thread::sleep(Duration::from_millis(100));
        let stream = Arc::clone(&streams.all.lock().streams[&number.unwrap()]);
        assert!(stream.state.lock().bytes.len() <= ROOM + PIECE, "more waits than there is room for");
        assert_eq!(all(&streams, number.unwrap()), Ok(expected));
    }

    #[test]
    fn an_error_or_a_panic_ends_a_stream_after_what_was_made() {
        let streams = Streams::new();
        let failed = |stream: &Stream| {
            stream.put(b"some");
            Err(Errno::NOENT)
        };
        let number = streams.begin(std::process::id(), failed).unwrap();
        // It may not have begun yet.
        let first = std::iter::repeat_with(|| streams.take(number, 1000)).find(|taken| *taken != Ok(vec![MORE]));
        assert_eq!(first, Some(Ok(b"\0some".to_vec())));
        assert_eq!(all(&streams, number), Err(Errno::NOENT));
        assert_eq!(streams.take(number, 1000), Err(Errno::NXIO));
        let number = streams.begin(std::process::id(), |_| panic!("on purpose")).unwrap();
        assert_eq!(all(&streams, number), Err(Errno::IO));
    }

    /// All streams get their turn in the end, also those that stop and go on, and never are more
    /// being made than there are turns.
    #[test]
    fn a_reader_that_stalls_keeps_nobody_waiting() {
        let streams = Arc::new(Streams::new());
        let making = Arc::new(Mutex::new(Rank::Stream, (0, 0)));
        let begin = || {
            let making = Arc::clone(&making);
            let make = move |stream: &Stream| {
                for number in 0..ROOM as u32 {
                    {
                        let mut making = making.lock();
                        making.0 += 1;
                        making.1 = making.0.max(making.1);
                    }
                    std::hint::black_box(number);
                    making.lock().0 -= 1;
                    assert!(stream.put(&number.to_le_bytes()));
                }
                Ok(())
            };
            streams.begin(std::process::id(), make).unwrap()
        };
        let expected: Vec<u8> = (0..ROOM as u32).flat_map(u32::to_le_bytes).collect();
        let stalled: Vec<u64> = (0..3 * MAX_MADE).map(|_| begin()).collect();
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..50)
                .map(|_| {
                    let number = begin();
                    let streams = &streams;
                    scope.spawn(move || all(streams, number))
                })
                .collect();
            for reader in readers {
                assert!(reader.join().unwrap().unwrap() == expected);
            }
        });
        // Streams that have ended give their turns back, and stalled ones do so when there is no
        // more room.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while *streams.turns.taken.lock() > 0 {
            assert!(std::time::Instant::now() < until, "those that wait for their readers have turns");
            std::thread::yield_now();
        }
        for number in stalled {
            assert!(all(&streams, number).unwrap() == expected);
        }
        assert!(making.lock().1 <= MAX_MADE);
        assert!(streams.all.lock().streams.is_empty());
    }

    #[test]
    fn there_are_only_so_many_at_a_time() {
        let streams = Streams::new();
        let begin_for = |pid| streams.begin(pid, |_| Ok(()));
        let begin = || begin_for(std::process::id());
        let numbers: Vec<_> = (0..MAX).map(|_| begin().unwrap()).collect();
        assert_eq!(begin(), Err(Errno::BUSY));
        assert_eq!(all(&streams, numbers[0]), Ok(Vec::new()));
        let gone = begin_for(u32::MAX).unwrap();
        assert_eq!(all(&streams, begin().unwrap()), Ok(Vec::new()), "a reader that has ended keeps others away");
        assert_eq!(streams.keep(gone), Err(Errno::NXIO));
        assert_eq!(streams.keep(numbers[0]), Err(Errno::NXIO));
        assert_eq!(streams.keep(numbers[1]), Ok(()));
    }
}

//! Reads long answers of a mount's server, which come in pieces.
//!
//! The answers are read as fast as the server makes them, however slowly they are shown: until the
//! server has finished, it keeps a state of the volume, whose space cannot be reused.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use ubtrfs::FileChange;
use ubtrfs_server::change_records::{decode, length};
use ubtrfs_server::control::Question;
use ubtrfs_server::control_ioctls::piece_in;
use ubtrfs_server::streams::{LAST, MORE};

use crate::ioctls::Mounted;
use crate::spool::{NotPut, Spool};

/// If pieces can't be stored until they are shown, the server is notified at this interval that the
/// reader is still there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// How often the server is asked whether the answer has its turn, or has a next piece.
const TURN: Duration = Duration::from_millis(50);

type Done<T> = std::result::Result<T, Errno>;

/// Asks the server of the mount at `path`, and passes each change in its answer to `visit` until
/// that returns false.
pub fn changes(path: &Path, question: &Question, mut visit: impl FnMut(FileChange) -> bool) -> Done<()> {
    let mount = Mounted::open_file(path)?;
    let number = mount.ask(question)?;
    answer(mount, number, |spool| show(spool, &mut visit))
}

/// Returns the answer with this number from the server of the mount at `path`. It has to fit into
/// memory.
pub fn whole(path: &Path, number: u64) -> Done<Vec<u8>> {
    answer(Mounted::open_file(path)?, number, |spool| {
        let mut bytes = Vec::new();
        while let Some(piece) = next(spool)? {
            bytes.extend(piece);
        }
        Ok(bytes)
    })
}

/// Marks the end of the spool when it is dropped.
struct Ended<'a>(&'a Spool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Reads an answer while `take` shows it. The mount can be unmounted as soon as the answer is read.
fn answer<T>(mount: Mounted, number: u64, take: impl FnOnce(&Spool) -> Done<T>) -> Done<T> {
    let spool = &Spool::default();
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            // Also marks the end if the thread panics.
            let _end = Ended(spool);
            read(&mount, number, spool)
        });
        let taken = take(spool);
        spool.close();
        let read = reader.join().unwrap_or(Err(Errno::IO));
        let taken = taken?;
        read?;
        Ok(taken)
    })
}

fn next(spool: &Spool) -> Done<Option<Vec<u8>>> {
    spool.take().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Reads the pieces as they come.
fn read(mount: &Mounted, number: u64, spool: &Spool) -> Done<()> {
    loop {
        let answer = mount.next_piece(number)?;
        let (mark, piece) = piece_in(&answer).and_then(<[u8]>::split_first).ok_or(Errno::PROTO)?;
        let (mark, mut piece) = (*mark, piece.to_vec());
        if piece.is_empty() && mark == MORE {
            thread::sleep(TURN);
            continue;
        }
        while !piece.is_empty() {
            match spool.put(piece, SIGN_OF_LIFE) {
                Ok(()) => break,
                // The reader of the spool takes no more.
                Err(NotPut::Closed) => return Ok(()),
                Err(NotPut::Full(again)) => piece = again,
            }
            if mark == MORE {
                mount.keep_stream(number)?;
            }
        }
        match mark {
            MORE => {}
            LAST => return Ok(()),
            _ => return Err(Errno::PROTO),
        }
    }
}

/// Passes the records in the pieces to `visit`.
fn show(spool: &Spool, visit: &mut impl FnMut(FileChange) -> bool) -> Done<()> {
    let mut bytes = Vec::new();
    while let Some(piece) = next(spool)? {
        bytes.extend(piece);
        let mut done = 0;
        while let Some(length) = length(&bytes[done..]).map_err(|_| Errno::PROTO)? {
            let change = decode(&bytes[done..done + length]).map_err(|_| Errno::PROTO)?;
            if !visit(change) {
                return Ok(());
            }
            done += length;
        }
        bytes.drain(..done);
    }
    Ok(())
}

//! Long answers of a mount's server, which come in pieces.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use ubtrfs::FileChange;
use ubtrfs_server::change_records::{decode, length};
use ubtrfs_server::control::{NEXT, Question};
use ubtrfs_server::streams::{LAST, MORE};

use crate::control;

/// Room for a piece: as much as an extended attribute can have.
const ROOM: usize = 64 << 10;
/// Pieces that wait to be shown.
const PIECES: usize = 16;
/// While what was read is not shown, as in a pager, the server hears that we are there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

type Done<T> = std::result::Result<T, Errno>;

/// Asks the server of the mount at `path`, and shows each change of its answer until `visit`
/// returns false.
pub fn changes(path: &Path, question: &Question, mut visit: impl FnMut(FileChange) -> bool) -> Done<()> {
    answer(path, question, |pieces| show(pieces, &mut visit))
}

/// Asks the server of the mount at `path` a question with an answer that fits into memory.
pub fn whole(path: &Path, question: &Question) -> Done<Vec<u8>> {
    answer(path, question, |pieces| Ok(pieces.into_iter().flatten().collect()))
}

fn answer<T>(path: &Path, question: &Question, take: impl FnOnce(Receiver<Vec<u8>>) -> Done<T>) -> Done<T> {
    let number = control::ask(path, &question.name())?;
    let number: u64 = std::str::from_utf8(&number).ok().and_then(|text| text.parse().ok()).ok_or(Errno::PROTO)?;
    let (sender, receiver) = sync_channel(PIECES);
    thread::scope(|scope| {
        let reader = scope.spawn(move || read(path, number, &sender));
        let taken = take(receiver)?;
        reader.join().unwrap_or(Err(Errno::IO))?;
        Ok(taken)
    })
}

/// Takes the pieces as they come.
fn read(path: &Path, number: u64, pieces: &SyncSender<Vec<u8>>) -> Done<()> {
    let name = format!("{NEXT}{number}");
    loop {
        let mut piece = vec![0; ROOM];
        let length = rustix::fs::getxattr(path, &*name, &mut piece[..])?;
        piece.truncate(length);
        let mark = *piece.first().ok_or(Errno::PROTO)?;
        piece.remove(0);
        let mut waiting = if piece.is_empty() { None } else { Some(piece) };
        let mut asked = Instant::now();
        while let Some(piece) = waiting.take() {
            match pieces.try_send(piece) {
                Ok(()) => {}
                // Nobody wants more.
                Err(TrySendError::Disconnected(_)) => return Ok(()),
                Err(TrySendError::Full(piece)) => {
                    waiting = Some(piece);
                    thread::sleep(POLL_INTERVAL);
                    if mark == MORE && asked.elapsed() > SIGN_OF_LIFE {
                        rustix::fs::getxattr(path, &*name, &mut [0_u8; 0][..])?;
                        asked = Instant::now();
                    }
                }
            }
        }
        match mark {
            MORE => {}
            LAST => return Ok(()),
            _ => return Err(Errno::PROTO),
        }
    }
}

/// Shows the records in the pieces.
fn show(pieces: Receiver<Vec<u8>>, visit: &mut impl FnMut(FileChange) -> bool) -> Done<()> {
    let mut bytes = Vec::new();
    for piece in pieces {
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

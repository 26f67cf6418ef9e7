//! The ioctls by which `ubtrfs` controls the server of a mount, and takes long answers from it.
//! Their numbers are our own, and any file or directory of the mount accepts them.

use ubtrfs::CompressionMode;
use ubtrfs_format::{Generation, TreeId};
use ubtrfs_fuse::Errno;

use crate::btrfs_ioctls::{text, u64_at};
use crate::control::{NEW_FILES, Question};

/// Bytes of the argument of [`NEXT`](ubtrfs_format::ioctl::NEXT).
pub const NEXT_SIZE: usize = ubtrfs_format::ioctl::size_of(ubtrfs_format::ioctl::NEXT);
/// Bytes of the argument of [`REMOUNT`](ubtrfs_format::ioctl::REMOUNT).
pub const REMOUNT_SIZE: usize = ubtrfs_format::ioctl::size_of(ubtrfs_format::ioctl::REMOUNT);
/// Bytes of the arguments of [`CHANGES`](ubtrfs_format::ioctl::CHANGES) and
/// [`CHANGES_SINCE`](ubtrfs_format::ioctl::CHANGES_SINCE).
pub const QUESTION_SIZE: usize = 16;
/// The offset of the piece in the answer to `NEXT`.
const PIECE: usize = 8;

/// A request to the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlIoctl {
    /// Make everything durable.
    Sync,
    Remount(Change),
    /// The mount is about to be unmounted by force.
    Force,
    /// A long answer begins.
    Ask(Question),
    /// The next piece of the stream of this number.
    Next(u64),
    /// The reader of this stream is still there.
    Keep(u64),
}

/// What a remount changes of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing. The ioctl only asks whether the caller may change anything.
    Nothing,
    /// Make changes durable, and write nothing more.
    ReadOnly,
    /// Write again. `EROFS` if the mount began read-only.
    Writable,
    /// How data is compressed; `None` for no compression.
    Compression(Option<CompressionMode>),
    /// Flags of new regular files.
    NewFiles(u64),
    /// How many threads compress data of one file.
    Threads(usize),
}

impl ControlIoctl {
    /// Reads the argument of `REMOUNT`.
    pub(crate) fn remount(data: &[u8]) -> Result<Self, Errno> {
        Change::of(&text(data)?).map(Self::Remount).ok_or(Errno::INVAL)
    }

    /// Reads the argument of `CHANGES`.
    pub(crate) fn changes(data: &[u8]) -> Result<Self, Errno> {
        let (old, new) = (TreeId(number(data, 0)?), TreeId(number(data, 8)?));
        Ok(Self::Ask(Question::Changes { old, new }))
    }

    /// Reads the argument of `CHANGES_SINCE`.
    pub(crate) fn changes_since(data: &[u8]) -> Result<Self, Errno> {
        let (subvolume, generation) = (TreeId(number(data, 0)?), Generation(number(data, 8)?));
        Ok(Self::Ask(Question::ChangesSince { subvolume, generation }))
    }

    /// Reads the argument of `NEXT`.
    pub(crate) fn next(data: &[u8]) -> Result<Self, Errno> {
        number(data, 0).map(Self::Next)
    }

    /// Reads the argument of `KEEP`.
    pub(crate) fn keep(data: &[u8]) -> Result<Self, Errno> {
        number(data, 0).map(Self::Keep)
    }
}

fn number(data: &[u8], at: usize) -> Result<u64, Errno> {
    u64_at(data, at).ok_or(Errno::INVAL)
}

impl Change {
    fn of(text: &str) -> Option<Self> {
        if let Some((_, flags)) = NEW_FILES.iter().find(|(name, _)| *name == text) {
            return Some(Self::NewFiles(*flags));
        }
        match text {
            "" => Some(Self::Nothing),
            "ro" => Some(Self::ReadOnly),
            "rw" => Some(Self::Writable),
            option => match option.split_once('=')? {
                ("compress", value) => CompressionMode::parse(value, false).map(Self::Compression),
                ("compress-force", value) => CompressionMode::parse(value, true).map(Self::Compression),
                ("thread_pool", value) => value.parse().ok().filter(|threads| *threads > 0).map(Self::Threads),
                _ => None,
            },
        }
    }
}

/// The argument of `REMOUNT`. `ENAMETOOLONG` for a text that is too long.
pub fn encode_remount(change: &str) -> Result<[u8; REMOUNT_SIZE], Errno> {
    let mut argument = [0; REMOUNT_SIZE];
    crate::btrfs_ioctls::put_text(&mut argument, 0, REMOUNT_SIZE, change)?;
    Ok(argument)
}

/// The argument that asks a question.
pub fn encode_question(question: &Question) -> [u8; QUESTION_SIZE] {
    let words = match question {
        Question::Changes { old, new } => [old.0, new.0],
        Question::ChangesSince { subvolume, generation } => [subvolume.0, generation.0],
    };
    let mut argument = [0; QUESTION_SIZE];
    for (place, word) in argument.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    argument
}

/// The argument of `NEXT` for the stream of this number.
pub fn encode_next(number: u64) -> [u8; NEXT_SIZE] {
    let mut argument = [0; NEXT_SIZE];
    argument[..PIECE].copy_from_slice(&number.to_le_bytes());
    argument
}

/// Bytes of the longest piece.
pub(crate) const MAX_PIECE: usize = NEXT_SIZE - PIECE;

/// The answer to `NEXT`.
pub(crate) fn encode_piece(piece: &[u8]) -> Vec<u8> {
    [&(piece.len() as u64).to_le_bytes(), piece].concat()
}

/// The piece in an answer to `NEXT`; `None` if the answer is malformed.
pub fn piece_in(answer: &[u8; NEXT_SIZE]) -> Option<&[u8]> {
    let length = usize::try_from(u64_at(answer, 0)?).ok()?;
    answer[PIECE..].get(..length)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn questions_and_pieces_are_read_as_they_were_written() {
        let changes = Question::Changes { old: TreeId(256), new: TreeId(5) };
        assert_eq!(ControlIoctl::changes(&encode_question(&changes)), Ok(ControlIoctl::Ask(changes)));
        let since = Question::ChangesSince { subvolume: TreeId(7), generation: Generation(u64::MAX) };
        assert_eq!(ControlIoctl::changes_since(&encode_question(&since)), Ok(ControlIoctl::Ask(since)));
        let mut answer = encode_next(7);
        assert_eq!(ControlIoctl::next(&answer), Ok(ControlIoctl::Next(7)));
        let piece = encode_piece(&[3; MAX_PIECE]);
        answer[..piece.len()].copy_from_slice(&piece);
        assert_eq!(piece_in(&answer), Some(&[3; MAX_PIECE][..]));
        answer[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(piece_in(&answer), None);
    }

    #[test]
    fn a_remount_says_what_is_changed() {
        let read = |text: &str| ControlIoctl::remount(&encode_remount(text).unwrap());
        for (text, change) in [
            ("", Change::Nothing),
            ("ro", Change::ReadOnly),
            ("rw", Change::Writable),
            ("datacow", Change::NewFiles(0)),
            ("compress=no", Change::Compression(None)),
            ("thread_pool=3", Change::Threads(3)),
        ] {
            assert_eq!(read(text), Ok(ControlIoctl::Remount(change)), "{text}");
        }
        for wrong in ["noatime", "compress=lz4", "thread_pool=0", "compress"] {
            assert_eq!(read(wrong), Err(Errno::INVAL), "{wrong}");
        }
        assert_eq!(encode_remount(&"x".repeat(REMOUNT_SIZE)), Err(Errno::NAMETOOLONG));
    }
}

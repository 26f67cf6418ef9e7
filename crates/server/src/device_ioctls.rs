//! The ioctls that add devices to a volume and replace them: btrfs's own, with their numbers and
//! arguments.

use ubtrfs::{Filesystem, ReplaceOptions, ReplaceProgress, ReplaceState};
use ubtrfs_format::ioctl::{ADD_DEVICE, REPLACE, size_of};
use ubtrfs_fuse::Errno;

use crate::btrfs_ioctls::{put_text, text, u64_at};
use crate::devices::Devices;

/// Bytes of the argument of [`ADD_DEVICE`]: a number that is not used, and a path.
pub const ADD_SIZE: usize = size_of(ADD_DEVICE);
/// Bytes of the argument of [`REPLACE`].
pub const REPLACE_SIZE: usize = size_of(REPLACE);
/// The first number of that argument, which begins a replacement.
pub const START: u64 = 0;
/// The same.
pub const STATUS: u64 = 1;
/// The same.
pub const CANCEL: u64 = 2;

const PATH: usize = 8;
/// Offsets in the argument of a replacement: the result, then the parameters or the progress.
const RESULT: usize = 8;
const BODY: usize = 16;
const SOURCE_PATH: usize = BODY + 16;
const TARGET_PATH: usize = SOURCE_PATH + PATH_SIZE;
const PATH_SIZE: usize = 1025;
/// The offsets of our own fields, in bytes that the kernel does not use: the most bytes per second;
/// the number of the device, the bytes that are done, and all bytes; and whether the answer comes
/// once the replacement has begun.
const SPARE: usize = BODY + 2072;
const LIMIT: usize = SPARE;
const SOURCE: usize = SPARE + 8;
const DONE: usize = SPARE + 16;
const TOTAL: usize = SPARE + 24;
const BACKGROUND: usize = SPARE + 32;

/// The result of a replacement, in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Good = 0,
    NotStarted = 1,
    AlreadyStarted = 2,
}

/// One of these commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceIoctl {
    Add(String),
    Replace(Request),
    Status,
    Cancel,
}

/// A replacement that is to begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The number of the old device; 0 if its path identifies it.
    pub source: u64,
    /// The path of the old device.
    pub source_path: String,
    /// The path of the new device.
    pub target: String,
    /// Read the old device only where no other device has the same data.
    pub avoid_source: bool,
    /// The most bytes per second; 0 is no limit.
    pub bytes_per_second: u64,
    /// The answer comes once the replacement has begun. The kernel's answer comes when it has
    /// ended, and the caller can't be killed before.
    pub in_background: bool,
}

/// The argument of [`ADD_DEVICE`].
pub fn encode_added(path: &str) -> Result<[u8; ADD_SIZE], Errno> {
    let mut argument = [0; ADD_SIZE];
    put_text(&mut argument, PATH, ADD_SIZE - PATH, path)?;
    Ok(argument)
}

impl Request {
    /// The argument that begins the replacement.
    pub fn encode(&self) -> Result<[u8; REPLACE_SIZE], Errno> {
        let mut argument = asking(START);
        for (at, number) in [
            (BODY, self.source),
            (BODY + 8, self.avoid_source.into()),
            (LIMIT, self.bytes_per_second),
            (BACKGROUND, self.in_background.into()),
        ] {
            argument[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        put_text(&mut argument, SOURCE_PATH, PATH_SIZE, &self.source_path)?;
        put_text(&mut argument, TARGET_PATH, PATH_SIZE, &self.target)?;
        Ok(argument)
    }

    fn decode(data: &[u8]) -> Result<Self, Errno> {
        let number = |at| u64_at(data, at).ok_or(Errno::INVAL);
        let path = |at: usize| data.get(at..at + PATH_SIZE).ok_or(Errno::INVAL).and_then(text);
        let source = number(BODY)?;
        Ok(Self {
            source,
            source_path: if source == 0 { path(SOURCE_PATH)? } else { String::new() },
            target: path(TARGET_PATH)?,
            avoid_source: match number(BODY + 8)? {
                0 => false,
                1 => true,
                _ => return Err(Errno::INVAL),
            },
            bytes_per_second: number(LIMIT)?,
            in_background: number(BACKGROUND)? != 0,
        })
    }
}

/// The argument of [`REPLACE`] that asks for [`STATUS`] or [`CANCEL`].
pub fn asking(command: u64) -> [u8; REPLACE_SIZE] {
    let mut argument = [0; REPLACE_SIZE];
    argument[..8].copy_from_slice(&command.to_le_bytes());
    argument
}

impl DeviceIoctl {
    /// Reads the argument of [`ADD_DEVICE`].
    pub(crate) fn add(data: &[u8]) -> Result<Self, Errno> {
        data.get(PATH..ADD_SIZE).ok_or(Errno::INVAL).and_then(text).map(Self::Add)
    }

    /// Reads the argument of [`REPLACE`].
    pub(crate) fn replace(data: &[u8]) -> Result<Self, Errno> {
        if data.len() < REPLACE_SIZE {
            return Err(Errno::INVAL);
        }
        match u64_at(data, 0) {
            Some(START) => Request::decode(data).map(Self::Replace),
            Some(STATUS) => Ok(Self::Status),
            Some(CANCEL) => Ok(Self::Cancel),
            _ => Err(Errno::INVAL),
        }
    }

    /// Executes the command. For a large device that may take long.
    pub(crate) fn answer(self, engine: &Filesystem, devices: &Devices) -> Result<Vec<u8>, Errno> {
        match self {
            Self::Add(path) => devices.add(engine, &path).map(|()| Vec::new()),
            Self::Status => Ok(progress(&engine.replacer().progress())),
            Self::Cancel => match engine.replacer().cancel().map_err(|error| error.errno()) {
                Ok(()) => Ok(outcome(CANCEL, Outcome::Good)),
                Err(Errno::NOTCONN) => Ok(outcome(CANCEL, Outcome::NotStarted)),
                Err(errno) => Err(errno),
            },
            Self::Replace(request) => {
                let source = devices.number_of(engine, request.source, &request.source_path)?;
                let options = ReplaceOptions {
                    avoid_source: request.avoid_source,
                    bytes_per_second: Some(request.bytes_per_second).filter(|limit| *limit > 0),
                };
                match devices.replace(engine, source, &request.target, options, request.in_background) {
                    Ok(()) => Ok(outcome(START, Outcome::Good)),
                    Err(Errno::INPROGRESS) => Ok(outcome(START, Outcome::AlreadyStarted)),
                    Err(errno) => Err(errno),
                }
            }
        }
    }
}

fn outcome(command: u64, outcome: Outcome) -> Vec<u8> {
    let mut argument = asking(command).to_vec();
    argument[RESULT..RESULT + 8].copy_from_slice(&(outcome as u64).to_le_bytes());
    argument
}

fn progress(progress: &ReplaceProgress) -> Vec<u8> {
    let mut argument = outcome(STATUS, Outcome::Good);
    let state = match progress.state {
        ReplaceState::Never => 0_u64,
        ReplaceState::Started => 1,
        ReplaceState::Finished => 2,
        ReplaceState::Canceled => 3,
        ReplaceState::Suspended => 4,
    };
    let thousandths = (u128::from(progress.done_bytes) * 1000).checked_div(progress.total_bytes.into());
    let thousandths = thousandths.map_or(1000, |thousandths| thousandths as u64);
    let shown = [state, thousandths, progress.started, progress.stopped, progress.write_errors, progress.unreadable];
    let ours = [(SOURCE, progress.source.0), (DONE, progress.done_bytes), (TOTAL, progress.total_bytes)];
    for (at, number) in (BODY..).step_by(8).zip(shown).chain(ours) {
        argument[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    argument
}

/// Returns whether the answer says that a replacement was begun or cancelled as asked. It was not
/// if one was running already, or none was.
pub fn is_good(argument: &[u8; REPLACE_SIZE]) -> bool {
    u64_at(argument, RESULT) == Some(Outcome::Good as u64)
}

/// Reads an answer to [`STATUS`]. The bytes and the number of the device are 0 on mounts that are
/// not ours.
pub fn progress_of(argument: &[u8; REPLACE_SIZE]) -> (ReplaceProgress, u64) {
    let number = |at| u64_at(argument, at).unwrap_or_default();
    let state = match number(BODY) {
        1 => ReplaceState::Started,
        2 => ReplaceState::Finished,
        3 => ReplaceState::Canceled,
        4 => ReplaceState::Suspended,
        _ => ReplaceState::Never,
    };
    let progress = ReplaceProgress {
        source: ubtrfs_format::DeviceId(number(SOURCE)),
        state,
        done_bytes: number(DONE),
        total_bytes: number(TOTAL),
        started: number(BODY + 16),
        stopped: number(BODY + 24),
        write_errors: number(BODY + 32),
        unreadable: number(BODY + 40),
    };
    (progress, number(BODY + 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_what_is_known_is_shown() {
        let added = encode_added("/dev/new").unwrap();
        assert_eq!(DeviceIoctl::add(&added), Ok(DeviceIoctl::Add("/dev/new".into())));
        assert_eq!(DeviceIoctl::add(&[1; ADD_SIZE]), Err(Errno::INVAL));
        for (source, path) in [(3, ""), (0, "/dev/old")] {
            let request = Request {
                source,
                source_path: path.into(),
                target: "/dev/new".into(),
                avoid_source: true,
                bytes_per_second: 5,
                in_background: source == 0,
            };
            let read = DeviceIoctl::replace(&request.encode().unwrap());
            assert_eq!(read, Ok(DeviceIoctl::Replace(request)));
        }
        assert_eq!(DeviceIoctl::replace(&asking(STATUS)), Ok(DeviceIoctl::Status));
        assert_eq!(DeviceIoctl::replace(&asking(CANCEL)), Ok(DeviceIoctl::Cancel));
        assert_eq!(DeviceIoctl::replace(&[0; 100]), Err(Errno::INVAL));
        let known = ReplaceProgress {
            source: ubtrfs_format::DeviceId(2),
            state: ReplaceState::Canceled,
            done_bytes: 1,
            total_bytes: 4,
            started: 5,
            stopped: 6,
            write_errors: 7,
            unreadable: 8,
        };
        assert_eq!(progress_of(progress(&known).first_chunk().unwrap()), (known, 250));
    }
}

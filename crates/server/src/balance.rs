//! The ioctls of a balance: btrfs's own, with their numbers and arguments, except for the one that
//! pauses and cancels. The argument of btrfs's own is a number in place of a pointer, which FUSE
//! does not pass on; ours has another number, and its argument points to that number.

use ubtrfs::{BalanceProgress, Filesystem};
use ubtrfs_format::ioctl::{BALANCE, size_of};
use ubtrfs_format::items::{BalanceArgs, BalanceFlags, BalanceItem};
use ubtrfs_fuse::Errno;

use crate::btrfs_ioctls::u64_at;
use crate::long_ioctls::within_limit;

/// Bytes of the argument of [`BALANCE`], and of the answer about its progress.
pub const ARGUMENT_SIZE: usize = size_of(BALANCE);
/// The argument of [`BALANCE_CONTROL`](ubtrfs_format::ioctl::BALANCE_CONTROL) that pauses a
/// balance.
pub const PAUSE: u64 = 1;
/// The argument of `BALANCE_CONTROL` that cancels a balance.
pub const CANCEL: u64 = 2;

/// The offsets of the state, of the arguments for data chunks (those for metadata and system chunks
/// follow), and of the progress.
const STATE: usize = 8;
const ARGS: usize = 16;
const PROGRESS: usize = ARGS + 3 * BalanceArgs::SIZE;
/// The offset of our own limit, in bytes that the kernel does not use: the most bytes per second.
const LIMIT: usize = PROGRESS + 24;
/// A bit of the state.
const RUNNING: u64 = 1;

/// An ioctl of a balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BalanceIoctl {
    Run(Box<Run>),
    Progress,
    Pause,
    Cancel,
}

/// A balance that is to begin or to be resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// What the balance does. With the flag `RESUME`, it resumes the paused balance.
    pub balance: BalanceItem,
    /// The most bytes per second; 0 is no limit.
    pub bytes_per_second: u64,
}

impl BalanceIoctl {
    /// Reads the argument of [`BALANCE`].
    pub(crate) fn run(data: &[u8]) -> Result<Self, Errno> {
        Run::decode(data).map(|run| Self::Run(Box::new(run))).ok_or(Errno::INVAL)
    }

    /// Reads the argument of `BALANCE_CONTROL`.
    pub(crate) fn control(data: &[u8]) -> Result<Self, Errno> {
        match u64_at(data, 0) {
            Some(PAUSE) => Ok(Self::Pause),
            Some(CANCEL) => Ok(Self::Cancel),
            _ => Err(Errno::INVAL),
        }
    }

    /// Makes the answer. A balance that this begins has ended when it returns.
    pub(crate) fn answer(self, engine: &Filesystem, goes_on: &dyn Fn() -> bool) -> Result<Vec<u8>, Errno> {
        let failed = |error: ubtrfs::Error| error.errno();
        match self {
            Self::Run(run) => {
                let resumes = run.balance.flags & BalanceFlags::RESUME != 0;
                let goes_on = within_limit(engine, run.bytes_per_second, goes_on);
                let goes_on = |_: &BalanceProgress| goes_on();
                let done = if resumes {
                    engine.balancer().resume(&goes_on)
                } else {
                    engine.balancer().start(&run.balance, &goes_on)
                };
                done.map(|progress| encode(&run.balance, false, progress)).map_err(failed)
            }
            Self::Progress => {
                let status = engine.balancer().status().ok_or(Errno::NOTCONN)?;
                Ok(encode(&status.balance, status.running, status.progress))
            }
            Self::Pause => engine.balancer().pause().map(|()| Vec::new()).map_err(failed),
            Self::Cancel => engine.balancer().cancel().map(|()| Vec::new()).map_err(failed),
        }
    }
}

impl Run {
    /// The argument that begins the balance.
    pub fn encode(&self) -> [u8; ARGUMENT_SIZE] {
        let mut argument = [0; ARGUMENT_SIZE];
        argument.copy_from_slice(&encode(&self.balance, false, BalanceProgress::default()));
        argument[LIMIT..LIMIT + 8].copy_from_slice(&self.bytes_per_second.to_le_bytes());
        argument
    }

    fn decode(data: &[u8]) -> Option<Self> {
        let flags = u64_at(data, 0)?;
        let args = |number: usize| BalanceArgs::parse(data.get(ARGS + number * BalanceArgs::SIZE..)?).ok();
        let balance = BalanceItem { flags, data: args(0)?, metadata: args(1)?, system: args(2)? };
        Some(Self { balance, bytes_per_second: u64_at(data, LIMIT)? })
    }
}

/// Makes an argument of a balance and its progress.
fn encode(balance: &BalanceItem, running: bool, progress: BalanceProgress) -> Vec<u8> {
    let mut argument = balance.flags.to_le_bytes().to_vec();
    argument.extend((u64::from(running) * RUNNING).to_le_bytes());
    for args in [balance.data, balance.metadata, balance.system] {
        argument.extend(args.to_bytes());
    }
    for number in [progress.expected, progress.considered, progress.completed] {
        argument.extend(number.to_le_bytes());
    }
    argument.resize(ARGUMENT_SIZE, 0);
    argument
}

/// Reads from an answer whether a balance is under way, and its progress: the chunks that were
/// chosen, considered, and emptied.
pub fn progress_in(answer: &[u8]) -> (bool, BalanceProgress) {
    let number = |at: usize| u64_at(answer, at).unwrap_or_default();
    let (expected, considered, completed) = (number(PROGRESS), number(PROGRESS + 8), number(PROGRESS + 16));
    (number(STATE) & RUNNING != 0, BalanceProgress { expected, considered, completed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_says_what_is_wanted() {
        let args = BalanceArgs { usage: 50, filters: 2, ..BalanceArgs::default() };
        let balance = BalanceItem { flags: BalanceFlags::DATA, data: args, ..BalanceItem::default() };
        let run = Run { balance, bytes_per_second: 7 };
        let argument = run.encode();
        assert_eq!(progress_in(&argument), (false, BalanceProgress::default()));
        let progress = BalanceProgress { expected: 5, considered: 3, completed: 2 };
        assert_eq!(progress_in(&encode(&balance, true, progress)), (true, progress));
        assert_eq!(BalanceIoctl::run(&argument), Ok(BalanceIoctl::Run(Box::new(run))));
        assert_eq!(BalanceIoctl::run(&argument[..100]), Err(Errno::INVAL));
        assert_eq!(BalanceIoctl::control(&PAUSE.to_le_bytes()), Ok(BalanceIoctl::Pause));
        assert_eq!(BalanceIoctl::control(&7_u64.to_le_bytes()), Err(Errno::INVAL));
    }
}

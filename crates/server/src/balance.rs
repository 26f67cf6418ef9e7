//! The ioctls of a balance: btrfs's own, with their numbers and arguments, but for the one that
//! pauses and cancels. The argument of that is a number in place of a pointer, which FUSE does not
//! pass on; ours, under another number, points to it.

use ubtrfs::{BalanceStatus, Errno, Filesystem, Result};
use ubtrfs_format::items::{BalanceArgs, BalanceFlags, BalanceItem};

/// `BTRFS_IOC_BALANCE_V2`, `_IOWR(0x94, 32, struct btrfs_ioctl_balance_args)`.
pub const BALANCE: u32 = 0xc400_9420;
/// `BTRFS_IOC_BALANCE_PROGRESS`, `_IOR(0x94, 34, struct btrfs_ioctl_balance_args)`.
pub const BALANCE_PROGRESS: u32 = 0x8400_9422;
/// `_IOW(0x94, 33, __u64)`, where btrfs has `_IOW(0x94, 33, int)`.
pub const BALANCE_CONTROL: u32 = 0x4008_9421;
/// Bytes of the arguments of the first two.
pub const ARGUMENT_SIZE: usize = 1024;
/// What [`BALANCE_CONTROL`] asks for.
pub const PAUSE: u64 = 1;
/// The same.
pub const CANCEL: u64 = 2;

/// The offsets of the state, of the arguments for data chunks (those for metadata and system chunks
/// follow), and of the progress.
const STATE: usize = 8;
const ARGS: usize = 16;
const PROGRESS: usize = ARGS + 3 * BalanceArgs::SIZE;
/// A bit of the state.
const RUNNING: u64 = 1;

/// An ioctl of a balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BalanceIoctl {
    Start(Box<BalanceItem>),
    Resume,
    Progress,
    Pause,
    Cancel,
}

impl BalanceIoctl {
    /// Reads a command; `None` if it is not one of these.
    pub(crate) fn parse(command: u32, data: &[u8]) -> Option<Result<Self>> {
        let read = match command {
            BALANCE => decode(data).map(|balance| {
                if balance.flags & BalanceFlags::RESUME == 0 { Self::Start(Box::new(balance)) } else { Self::Resume }
            }),
            BALANCE_PROGRESS => Some(Self::Progress),
            BALANCE_CONTROL => match data.first_chunk().map(|number| u64::from_le_bytes(*number)) {
                Some(PAUSE) => Some(Self::Pause),
                Some(CANCEL) => Some(Self::Cancel),
                _ => None,
            },
            _ => return None,
        };
        Some(read.ok_or_else(|| Errno::INVAL.into()))
    }

    /// Answers, for the first two when the balance has ended.
    pub(crate) fn answer(self, engine: &Filesystem) -> Result<Vec<u8>> {
        match self {
            Self::Start(balance) => engine.start_balance(&balance).map(|()| encode(&balance, None)),
            Self::Resume => engine.resume_balance().map(|()| vec![0; ARGUMENT_SIZE]),
            Self::Progress => {
                let status = engine.balance_status().ok_or(Errno::NOTCONN)?;
                Ok(encode(&status.balance, Some(&status)))
            }
            Self::Pause => engine.pause_balance().map(|()| Vec::new()),
            Self::Cancel => engine.cancel_balance().map(|()| Vec::new()),
        }
    }
}

/// The balance in an argument.
pub fn decode(data: &[u8]) -> Option<BalanceItem> {
    let flags = u64::from_le_bytes(*data.first_chunk()?);
    let args = |number: usize| BalanceArgs::parse(data.get(ARGS + number * BalanceArgs::SIZE..)?).ok();
    Some(BalanceItem { flags, data: args(0)?, metadata: args(1)?, system: args(2)? })
}

/// An argument with a balance, and how far it is.
pub fn encode(balance: &BalanceItem, status: Option<&BalanceStatus>) -> Vec<u8> {
    let running = status.is_some_and(|status| status.running);
    let mut argument = balance.flags.to_le_bytes().to_vec();
    argument.extend((u64::from(running) * RUNNING).to_le_bytes());
    for args in [balance.data, balance.metadata, balance.system] {
        argument.extend(args.to_bytes());
    }
    let progress = status.map(|status| status.progress).unwrap_or_default();
    for number in [progress.expected, progress.considered, progress.completed] {
        argument.extend(number.to_le_bytes());
    }
    argument.resize(ARGUMENT_SIZE, 0);
    argument
}

/// Whether an answer is of a balance that is under way, and how far it is: chunks that were chosen,
/// looked at, and emptied.
pub fn progress_in(answer: &[u8]) -> (bool, [u64; 3]) {
    let number =
        |at: usize| answer.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (number(STATE) & RUNNING != 0, [number(PROGRESS), number(PROGRESS + 8), number(PROGRESS + 16)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_says_what_is_wanted() {
        let args = BalanceArgs { usage: 50, filters: 2, ..BalanceArgs::default() };
        let balance = BalanceItem { flags: BalanceFlags::DATA, data: args, ..BalanceItem::default() };
        let argument = encode(&balance, None);
        assert_eq!(argument.len(), ARGUMENT_SIZE);
        assert_eq!(decode(&argument), Some(balance));
        assert_eq!(progress_in(&argument), (false, [0; 3]));
        assert!(matches!(BalanceIoctl::parse(BALANCE, &argument), Some(Ok(BalanceIoctl::Start(_)))));
        assert!(BalanceIoctl::parse(BALANCE, &argument[..100]).is_some_and(|read| read.is_err()));
        assert!(BalanceIoctl::parse(0x1234, &argument).is_none());
    }
}

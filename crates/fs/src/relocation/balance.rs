//! A balance: empties the chunks that filters choose, one after the other, so that their content
//! moves to fewer chunks or to chunks of another profile. An item in the root tree records that a
//! balance is in progress; the next mount can resume it.

use std::sync::Arc;

use ubtrfs_format::items::{BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem, BlockGroupFlags, SINGLE};
use ubtrfs_format::{Logical, TreeId};
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use super::Relocator;
use super::filters::{args_of, extended, limit, takes};
use super::group::Emptied;
use super::pace::Pace;
use crate::commit::BALANCE;
use crate::error::{Errno, Error, Result};
use crate::exclusive_op::Running;
use crate::fs_info::FsInfo;

/// The progress of a balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceProgress {
    /// Chunks that were chosen when the balance began.
    pub expected: u64,
    /// Chunks that were considered so far.
    pub considered: u64,
    /// Chunks that were emptied so far.
    pub completed: u64,
}

/// The status of a balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceStatus {
    /// The arguments of the balance.
    pub balance: BalanceItem,
    /// Whether it is running; otherwise it is paused.
    pub running: bool,
    /// Its progress.
    pub progress: BalanceProgress,
}

/// What a running balance is asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    GoOn,
    Pause,
    Cancel,
}

/// Called repeatedly; returns whether to go on.
type GoesOn<'a> = &'a dyn Fn(&BalanceProgress) -> bool;

#[derive(Debug, Default)]
struct State {
    balance: Option<BalanceItem>,
    running: bool,
    /// How often a balance has ended or paused.
    ended: u64,
    wish: Wish,
    progress: BalanceProgress,
}

impl State {
    /// Sets the state to that of a balance that begins, or of none.
    fn set(&mut self, balance: Option<&BalanceItem>) {
        let running = balance.is_some();
        *self = Self { balance: balance.copied(), running, ended: self.ended, ..Self::default() };
    }
}

/// The balance of a mount. There is one at a time.
pub struct Balancer {
    relocator: Relocator,
    state: Mutex<State>,
    /// Signalled when a balance ends or pauses.
    ended: Condvar,
}

/// A running balance. When this is dropped, also because of an error or a panic, the balance no
/// longer runs, and those that wait for its end go on.
struct Ends<'a>(&'a Balancer);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running = false;
        state.ended += 1;
        drop(state);
        self.0.ended.notify_all();
    }
}

impl Balancer {
    pub(crate) fn new(relocator: Relocator) -> Self {
        Self { relocator, state: Mutex::with_default(Rank::Balance), ended: Condvar::new() }
    }

    /// Returns the relocator that moves the extents.
    pub(crate) fn relocator(&self) -> &Relocator {
        &self.relocator
    }

    fn info(&self) -> &Arc<FsInfo> {
        &self.relocator.info
    }

    /// Loads the balance that an earlier mount left, which is paused.
    pub(crate) fn load(&self) -> Result<()> {
        let item = self.info().committed().tree(TreeId::ROOT)?.get(&BALANCE)?;
        self.state.lock().balance = item.map(|item| BalanceItem::parse(&item)).transpose()?;
        Ok(())
    }

    /// Balances, and returns when it is done. `goes_on` is called repeatedly; when it returns false
    /// the balance is cancelled. Returns the progress. `EINPROGRESS` if there is a balance already,
    /// `EINVAL` for arguments that make no sense, `ECANCELED` if it was paused or cancelled
    /// meanwhile, `ENOSPC` if there was no space to empty some chunks.
    pub fn start(&self, balance: &BalanceItem, goes_on: GoesOn<'_>) -> Result<BalanceProgress> {
        self.check(balance)?;
        let exclusive = self.begin_alone()?;
        {
            let mut state = self.state.lock();
            if state.balance.is_some() {
                return Err(Errno::INPROGRESS.into());
            }
            state.set(Some(balance));
        }
        let ends = Ends(self);
        if let Err(error) = self.relocator.committer.set_balance_item(Some(balance)) {
            self.state.lock().balance = None;
            return Err(error);
        }
        self.run(balance, goes_on, ends, exclusive)
    }

    /// Begins an exclusive operation. `EINPROGRESS` if another one runs or a device is being
    /// replaced.
    fn begin_alone(&self) -> Result<Running<'_>> {
        let exclusive = self.info().exclusive_op.begin()?;
        if self.info().volume.replacement().state().is_some() {
            return Err(Errno::INPROGRESS.into());
        }
        Ok(exclusive)
    }

    /// Resumes a balance that was paused. `ENOTCONN` if there is none, `EINPROGRESS` if it is
    /// running, or if another exclusive operation is.
    pub fn resume(&self, goes_on: GoesOn<'_>) -> Result<BalanceProgress> {
        if self.status().is_none() {
            return Err(Errno::NOTCONN.into());
        }
        let exclusive = self.begin_alone()?;
        let balance = {
            let mut state = self.state.lock();
            let balance = state.balance.ok_or(Errno::NOTCONN)?;
            if state.running {
                return Err(Errno::INPROGRESS.into());
            }
            self.check(&balance)?;
            // Chunks that were converted already need not be converted again.
            (state.running, state.wish, state.progress) = (true, Wish::GoOn, BalanceProgress::default());
            balance
        };
        let ends = Ends(self);
        let soft = |args: BalanceArgs| match args.filters & BalanceFilters::CONVERT {
            0 => args,
            _ => BalanceArgs { filters: args.filters | BalanceFilters::SOFT, ..args },
        };
        let BalanceItem { flags, data, metadata, system } = balance;
        let balance = BalanceItem { flags, data: soft(data), metadata: soft(metadata), system: soft(system) };
        self.run(&balance, goes_on, ends, exclusive)
    }

    /// Starts a thread that resumes the balance that an earlier mount left, if there is one.
    pub(crate) fn start_what_was_left(self: &Arc<Self>) -> std::io::Result<Option<JoinHandle<()>>> {
        if self.status().is_none() {
            return Ok(None);
        }
        let balancer = Arc::clone(self);
        let go_on = move || match balancer.resume(&|_| true) {
            Ok(_) => tracing::info!("the balance that an earlier mount left is done"),
            Err(Error::Posix(Errno::CANCELED | Errno::NOTCONN | Errno::INPROGRESS)) => {}
            Err(error) => tracing::error!("the balance that an earlier mount left has ended: {}", error.chain()),
        };
        ubtrfs_threads::thread::Builder::new().name("balance".into()).spawn(go_on).map(Some)
    }

    /// Pauses the running balance. The volume keeps its item. `ENOTCONN` if none is running.
    pub fn pause(&self) -> Result<()> {
        let state = self.state.lock();
        if !state.running {
            return Err(Errno::NOTCONN.into());
        }
        self.wait_for(state, Wish::Pause);
        Ok(())
    }

    /// Ends the balance that is running or paused. `ENOTCONN` if there is none.
    pub fn cancel(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.balance.is_none() {
            return Err(Errno::NOTCONN.into());
        }
        if !state.running {
            state.set(None);
            drop(state);
            return self.relocator.committer.set_balance_item(None);
        }
        self.wait_for(state, Wish::Cancel);
        Ok(())
    }

    /// Waits until the running balance has ended or paused as asked. Does not wait for one that
    /// begins after that.
    fn wait_for(&self, mut state: MutexGuard<'_, State>, wish: Wish) {
        state.wish = wish;
        let ended = state.ended;
        while state.ended == ended {
            self.ended.wait(&mut state);
        }
    }

    /// Returns the balance that is running or paused.
    pub fn status(&self) -> Option<BalanceStatus> {
        let state = self.state.lock();
        state.balance.map(|balance| BalanceStatus { balance, running: state.running, progress: state.progress })
    }

    /// Fails if the arguments can't be carried out: the volume must be able to have the profiles.
    fn check(&self, balance: &BalanceItem) -> Result<()> {
        let (mixed, devices) = {
            let space = self.info().space.lock();
            (space.is_mixed(), space.devices().open_devices())
        };
        let kinds = [
            (balance.data, BalanceFlags::DATA, BlockGroupFlags::DATA),
            (balance.metadata, BalanceFlags::METADATA, BlockGroupFlags::METADATA),
            (balance.system, BalanceFlags::SYSTEM, BlockGroupFlags::SYSTEM),
        ];
        for (args, bit, kind) in kinds {
            if balance.flags & bit == 0 || args.filters & BalanceFilters::CONVERT == 0 {
                continue;
            }
            let profile = BlockGroupFlags(args.target & !SINGLE);
            let raid = kind.with(profile).raid().filter(|raid| raid.parities == 0 && raid.least_devices <= devices);
            let raid = raid.filter(|_| profile.profile() == profile && args.target != 0).ok_or(Errno::INVAL)?;
            let kept = (raid.copies, raid.tolerated_losses());
            let loses = kind != BlockGroupFlags::DATA && self.most_copies(kind) > kept;
            if loses && balance.flags & BalanceFlags::FORCE == 0 {
                return Err(Errno::INVAL.into());
            }
        }
        if mixed && balance.data != balance.metadata {
            return Err(Errno::INVAL.into());
        }
        Ok(())
    }

    /// Returns the most copies that chunks of a kind have, and the most devices that they can lose.
    fn most_copies(&self, kind: BlockGroupFlags) -> (u64, u64) {
        let chunks = self.info().volume.chunk_map().all().into_iter().filter(|(_, chunk)| chunk.flags.contains(kind));
        let raids = chunks.filter_map(|(_, chunk)| chunk.flags.raid());
        raids.map(|raid| (raid.copies, raid.tolerated_losses())).max().unwrap_or_default()
    }

    fn run(
        &self,
        balance: &BalanceItem,
        goes_on: GoesOn<'_>,
        ends: Ends<'_>,
        _exclusive: Running<'_>,
    ) -> Result<BalanceProgress> {
        let done = self.empty_chunks(balance, goes_on);
        let wish = std::mem::take(&mut self.state.lock().wish);
        let is_over = wish != Wish::Pause && !self.info().is_read_only();
        let noted = if is_over { self.relocator.committer.set_balance_item(None) } else { Ok(()) };
        let progress = {
            let mut state = self.state.lock();
            if is_over && noted.is_ok() {
                state.balance = None;
            }
            state.progress
        };
        drop(ends);
        done.and(noted).map(|()| progress)
    }

    /// Returns the chunks that a balance chooses, those with the highest addresses first.
    fn chosen(&self, balance: &BalanceItem) -> Vec<(Logical, BlockGroupFlags)> {
        let space = self.info().space.lock();
        let mut left = [limit(&balance.data), limit(&balance.metadata), limit(&balance.system)];
        let mut chosen = Vec::new();
        for (start, chunk) in self.info().volume.chunk_map().all().into_iter().rev() {
            let Some((used, _, flags)) = space.usage(start) else { continue };
            if !space.can_be_emptied(start) {
                continue;
            }
            let number = if flags.contains(BlockGroupFlags::DATA) {
                0
            } else if flags.contains(BlockGroupFlags::METADATA) {
                1
            } else {
                2
            };
            if args_of(balance, flags).is_some_and(|args| takes(&args, start, &chunk, used)) && left[number] > 0 {
                left[number] -= 1;
                chosen.push((start, flags));
            }
        }
        chosen
    }

    /// Returns whether a running balance goes on. It pauses when the mount ends.
    fn goes_on(&self, asked: GoesOn<'_>) -> bool {
        let progress = self.state.lock().progress;
        let goes_on = asked(&progress);
        let is_ending = self.info().exclusive_op.is_ending();
        let mut state = self.state.lock();
        if state.wish == Wish::GoOn && is_ending {
            state.wish = Wish::Pause;
        } else if state.wish == Wish::GoOn && !goes_on {
            state.wish = Wish::Cancel;
        }
        state.wish == Wish::GoOn
    }

    fn empty_chunks(&self, balance: &BalanceItem, goes_on: GoesOn<'_>) -> Result<()> {
        self.set_profiles(balance);
        let chosen = self.chosen(balance);
        self.state.lock().progress.expected = chosen.len() as u64;
        let pace = self.relocator.rate.begin();
        let go_on = || self.goes_on(goes_on);
        let mut result = Ok(());
        for (start, flags) in chosen {
            if !go_on() {
                return Err(Errno::CANCELED.into());
            }
            self.state.lock().progress.considered += 1;
            let converts = args_of(balance, flags).is_some_and(|args| args.filters & BalanceFilters::CONVERT != 0);
            match self.empty_chunk(start, flags, converts, &pace, &go_on) {
                Ok(Emptied::All) => self.state.lock().progress.completed += 1,
                Ok(Emptied::Stopped) => return Err(Errno::CANCELED.into()),
                // The chunk was removed meanwhile.
                Err(error) if error.errno() == Errno::NOENT => {}
                Err(error) if error.errno() == Errno::NOSPC => result = Err(error),
                Err(error) => return Err(error),
            }
        }
        result
    }

    fn empty_chunk(
        &self,
        start: Logical,
        flags: BlockGroupFlags,
        converts: bool,
        pace: &Pace<'_>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Emptied> {
        let in_use = self.info().space.lock().in_use(start).ok_or(Errno::NOENT)?;
        if converts {
            self.relocator.make_converted_room(flags, in_use)?;
        }
        let emptied = self.relocator.empty_group(start, pace, goes_on)?;
        if !converts {
            // As long as readers keep the emptied chunk, what is written next needs no further
            // chunk.
            self.info().space.lock().open_emptied();
        }
        Ok(emptied)
    }

    fn set_profiles(&self, balance: &BalanceItem) {
        let mut space = self.info().space.lock();
        let mixed = space.is_mixed();
        let wanted = [
            (BlockGroupFlags::DATA, BalanceFlags::DATA, balance.data),
            (BlockGroupFlags::METADATA, BalanceFlags::METADATA, balance.metadata),
            (BlockGroupFlags::SYSTEM, BalanceFlags::SYSTEM, balance.system),
        ];
        for (kind, bit, args) in wanted {
            if balance.flags & bit != 0 && args.filters & BalanceFilters::CONVERT != 0 {
                let profile = BlockGroupFlags(args.target & !SINGLE);
                space.convert_to(kind, profile);
                if mixed && kind == BlockGroupFlags::DATA {
                    space.convert_to(BlockGroupFlags::METADATA, profile);
                }
            }
        }
        debug_assert!(extended(BlockGroupFlags(0)) == SINGLE, "one copy has a name of its own");
    }
}

impl Relocator {
    /// Allocates chunks of the profile that new ones have, until the content of a group fits in
    /// them.
    fn make_converted_room(&self, flags: BlockGroupFlags, bytes: u64) -> Result<()> {
        let kinds = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA, BlockGroupFlags::SYSTEM];
        let kind = kinds.into_iter().find(|kind| flags.contains(*kind)).ok_or(Errno::NOENT)?;
        self.take_room(kind, |space| space.has_converted_room(kind, bytes))
    }
}

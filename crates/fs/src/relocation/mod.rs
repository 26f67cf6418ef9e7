//! Emptying block groups: what is in them is moved elsewhere, in steps, while the volume is in use.
//!
//! ```text
//! in use ── SpaceState::begin_emptying, and a commit ──▶ emptied ── steps ──▶ empty ── a commit ──▶ gone
//!    ▲                                                     │
//!    └──────────── SpaceState::end_emptying ───────────────┘
//! ```
//!
//! From the beginning nobody gets space in the group, and nothing in it is overwritten in place;
//! after the commit that follows no such write is under way. So what the trees have there does not
//! change any more, and can be copied before the commit that makes the copy count. Each step takes
//! the first extents that are left, as many as there is memory and room for, and is one commit
//! (`commit/relocation`). After any of them the volume is whole, and nothing of it says that more
//! was to come.

mod balance;
mod batch;
mod copy;
mod filters;
mod group;
mod pace;
mod vacate;

use std::sync::Arc;

use ubtrfs_format::items::BlockGroupFlags;

use crate::commit::Committer;
use crate::error::{Errno, Result};
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::reserve::Reserver;
use ubtrfs_space::SpaceState;

pub use balance::{BalanceProgress, BalanceStatus, Balancer};
use pace::Rate;
pub use vacate::VacateProgress;

/// Empties block groups.
pub struct Relocator {
    info: Arc<FsInfo>,
    committer: Arc<Committer>,
    reserver: Arc<Reserver>,
    inactivator: Arc<Inactivator>,
    rate: Rate,
}

impl Relocator {
    pub(crate) fn new(
        info: Arc<FsInfo>,
        committer: Arc<Committer>,
        reserver: Arc<Reserver>,
        inactivator: Arc<Inactivator>,
    ) -> Self {
        Self { info, committer, reserver, inactivator, rate: Rate::default() }
    }

    /// From now on balances, removals and resizings move so many bytes in a second at the most,
    /// those that are under way, too.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        self.rate.limit(bytes_per_second);
    }

    /// Has `take` take what it wants of space, once there is enough: commits free what is pinned,
    /// chunks of this kind are made, and what was deleted is freed. It takes that between commits,
    /// since one in progress can't have its nodes in chunks that are made meanwhile. `ENOSPC` if
    /// there never is enough.
    fn take_room(&self, kind: BlockGroupFlags, take: impl Fn(&mut SpaceState) -> bool) -> Result<()> {
        /// Chunks may be small, and others take of them.
        const CHUNKS: usize = 16;
        /// Of what is deleted, as long as there is something.
        const FREED: usize = 64;
        let is_taken = || self.committer.between_commits(|| take(&mut self.info.space.lock()));
        if is_taken() {
            return Ok(());
        }
        self.reserver.commit()?;
        self.info.space.unpin();
        for _ in 0..CHUNKS {
            if is_taken() {
                return Ok(());
            }
            if !self.reserver.add_chunk(kind)? {
                break;
            }
        }
        for _ in 0..FREED {
            if !self.inactivator.free_some()?.freed {
                break;
            }
            self.committer.commit()?;
            self.info.space.unpin();
            if is_taken() {
                return Ok(());
            }
        }
        self.reserver.commit()?;
        self.info.space.unpin();
        if is_taken() { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }
}

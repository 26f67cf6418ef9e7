//! Emptying block groups: their content is moved elsewhere, in steps, while the volume is in use.
//!
//! ```text
//! in use ── SpaceState::begin_emptying, and a commit ──▶ emptied ── steps ──▶ empty ── a commit ──▶ gone
//!    ▲                                                     │
//!    └──────────── SpaceState::end_emptying ───────────────┘
//! ```
//!
//! From the beginning no space is allocated in the group, and nothing in it is overwritten in
//! place; after the commit that follows no such write is in flight. So the content that the trees
//! refer to does not change any more, and can be copied before the commit that switches to the
//! copy. Each step takes the first remaining extents, as many as there is memory and space for, and
//! is one commit (`commit/relocation`). After each step the volume is consistent, and nothing in it
//! records that more steps were to come.

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

    /// Limits the bytes per second that balances, removals and resizings move from now on,
    /// including those in progress. `None` removes the limit.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        self.rate.limit(bytes_per_second);
    }

    /// Calls `take` until it gets the space that it wants: commits free pinned space, chunks of
    /// this kind are allocated, and deleted inodes are freed. `take` is called between commits,
    /// since a commit in progress can't have its nodes in chunks that are allocated meanwhile.
    /// `ENOSPC` if there is never enough.
    fn take_room(&self, kind: BlockGroupFlags, take: impl Fn(&mut SpaceState) -> bool) -> Result<()> {
        /// The most chunks. They may be small, and others may allocate from them.
        const CHUNKS: usize = 16;
        /// The most rounds of freeing deleted inodes, as long as there are any.
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

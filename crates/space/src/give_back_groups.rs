//! Giving the space of groups that are being emptied to operations that would fail for lack of it
//! (invariant 43).

use std::time::Duration;

use ubtrfs_format::Logical;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Rank, is_held};

use crate::demand::Demand;
use crate::group::{BlockGroup, Emptying};
use crate::space::{Space, SpaceState};

/// The longest time for which an operation waits for a group. The present step of the group's
/// emptying has to end, which copies some MiB and commits.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// How groups that are being emptied can help an operation that finds too little space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// They can't: there is too little even with their space.
    No,
    /// Some are available again, and there is enough.
    Given,
    /// The emptying of some stops soon, and then there is enough.
    Soon,
}

/// An operation that waits for groups. Until this is dropped, no other group begins to be emptied.
#[must_use]
pub struct WaitsForGroups<'a>(&'a Space);

impl Drop for WaitsForGroups<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting_for_groups -= 1;
    }
}

impl Space {
    /// Notes that nothing is left in a group that was being emptied.
    pub fn emptying_ends(&self, start: Logical) {
        self.lock().emptying_ends(start);
        self.left.notify_all();
    }

    /// Notes that the emptying of a group has ended, and the group stays.
    pub fn leave(&self, start: Logical) {
        self.lock().leave(start);
        self.left.notify_all();
    }

    /// Waits until no group is asked back any more, for a limited time. The caller holds no lock
    /// that emptying needs.
    pub fn wait_for_groups(&self) -> WaitsForGroups<'_> {
        debug_assert!(
            ![Rank::InactivationTurn, Rank::DiscardTurn, Rank::Commit, Rank::Inode, Rank::Gate]
                .into_iter()
                .any(is_held),
            "invariant 43: who waits for a group holds nothing that emptying it needs"
        );
        let until = Instant::now() + MAX_WAIT;
        let mut inner = self.lock();
        inner.waiting_for_groups += 1;
        let is_asked_back = |group: &BlockGroup| group.emptying == Some(Emptying::AskedBack);
        while inner.groups.emptying().any(is_asked_back) && !inner.wait_until(&self.left, until) {}
        WaitsForGroups(self)
    }
}

impl SpaceState {
    /// Has groups that are being emptied give the space that an operation needs, if they can.
    pub fn ask_back(&mut self, demand: Demand) -> Help {
        let is_emptied = |group: &BlockGroup| group.emptying == Some(Emptying::Ended);
        if self.suffices_with(demand, is_emptied, self.reserved.relocation) {
            self.open_emptied();
            return Help::Given;
        }
        if !self.suffices_with(demand, |_| true, 0) {
            return Help::No;
        }
        self.groups.change_emptying(|group| {
            if group.emptying == Some(Emptying::UnderWay) {
                group.emptying = Some(Emptying::AskedBack);
            }
        });
        self.open_emptied();
        Help::Soon
    }

    /// Makes groups in which nothing is left available again, until the readers of their content
    /// have ended.
    pub fn open_emptied(&mut self) {
        self.groups.change_emptying(|group| {
            if group.emptying == Some(Emptying::Ended) {
                group.open_again();
            }
        });
    }

    /// Returns whether an operation waits for the space of a group that is being emptied.
    pub fn is_asked_back(&self, start: Logical) -> bool {
        self.groups.get(start).is_some_and(|group| group.emptying == Some(Emptying::AskedBack))
    }

    /// Returns whether operations wait for the space of groups.
    pub fn is_waited_for(&self) -> bool {
        self.waiting_for_groups > 0
    }

    /// Returns whether a demand could be reserved if some of the groups that are being emptied were
    /// available, and if steps of relocation had reserved only so many bytes.
    fn suffices_with(&mut self, demand: Demand, which: impl Fn(&BlockGroup) -> bool, relocation: u64) -> bool {
        let swap = |space: &mut Self| {
            space.groups.change_emptying(|group| {
                if group.is_held_by_emptying()
                    && which(group)
                    && let Some(held) = &mut group.held
                {
                    std::mem::swap(held, &mut group.available);
                }
            });
        };
        let reserved = self.reserved;
        self.unpin();
        swap(self);
        self.reserved.relocation = relocation.min(reserved.relocation);
        // Nothing may be freed between the two swaps: it would go to the wrong one of the two maps.
        let suffices = self.with_demand(demand).is_ok();
        self.reserved = reserved;
        swap(self);
        suffices
    }
}
